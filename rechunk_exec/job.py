"""A planned job: what it will do, and doing it. Layer: with the api, above executors and report."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import zarr

from rechunk_exec import executors, storage
from rechunk_exec.errors import PlanError, RechunkError, StorageError
from rechunk_exec.executors.base import Executor
from rechunk_exec.executors.machine import available_cores
from rechunk_exec.plans import Plan
from rechunk_exec.report.progress import progress as progress_display
from rechunk_exec.results import CopyReport, Event, OnEvent
from rechunk_exec.sizes import format_bytes
from rechunk_exec.tasks import ArrayRef, CopyTask, Stage
from rechunk_exec.verification import verify_arrays

_METADATA_BYTES = 4096
"""A disk with less room than this is full: the metadata of an array would not fit."""


@dataclass(frozen=True, slots=True)
class JobPlaces:
    """Where the arrays of a job are."""

    source: ArrayRef
    target: ArrayRef
    temp: ArrayRef | None
    """The folder of the intermediates; None if there is no place for one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobParts:
    """What a job was made of."""

    places: JobPlaces
    stored: storage.StoredArray
    design: storage.Design
    mode: str
    executor: Executor
    owned: bool
    """Whether we made the executor, and so close it."""
    verify: bool
    progress: bool | None


class Rechunked:
    """A planned job. Shows its plan; nothing is written before :meth:`execute`.

    Attributes
    ----------
    plan : Plan
        The stages and their figures; ``plan.explain()`` tells what was weighed.
    stages : tuple of Stage
        The plan's stages with the arrays they copy between: lazy sequences of tasks.
    report : CopyReport or None
        After :meth:`execute`: what was done.
    """

    def __init__(self, *, plan: Plan, parts: JobParts) -> None:
        self.plan = plan
        self.report: CopyReport | None = None
        self._parts = parts
        self._begun = False
        self._session = storage.session_target(parts.places.target, parts.design.like.metadata.zarr_format)
        self.stages = self._make_stages()
        self._refuse_places()
        check = getattr(parts.executor, "check_stages", None)
        if callable(check):
            check(self.stages)

    def __repr__(self) -> str:
        places = self._parts.places
        lines = [f"rechunk {places.source}", f"     to {places.target}"]
        if self._intermediates:
            temp_bytes = self.plan.temp_bytes
            lines.append(f"    via {places.temp}, which holds {format_bytes(temp_bytes)} ({temp_bytes} bytes)")
        lines += [f"   note: {note}" for note in self._parts.design.notes]
        return "\n".join([*lines, "", self.plan.explain()])

    def tasks(self) -> Iterator[CopyTask]:
        """Yield the tasks of all stages, in order."""
        for stage in self.stages:
            yield from stage

    def execute(self, *, on_event: OnEvent | None = None) -> zarr.Array[Any]:
        """Create the arrays, run the stages, and remove what was only needed on the way.

        Parameters
        ----------
        on_event : callable, optional
            Called with each :class:`~rechunk_exec.results.Event`: one with the total, then one a task.

        Returns
        -------
        zarr.Array
            The target.

        Raises
        ------
        TaskError
            If a task failed after its tries. The intermediates are kept, and named in the message.
        StorageError, TargetExistsError
            If the arrays cannot be created.
        """
        if self._begun:
            raise RechunkError("a job is executed once, and this one was; plan it again with rechunk() to run it again")
        self._begun = True
        parts = self._parts
        with contextlib.ExitStack() as stack:
            if parts.owned and hasattr(parts.executor, "close"):
                stack.callback(parts.executor.close)
            if self._session is not None:
                stack.enter_context(self._session.job())
            executors.check_stages(parts.executor, self.stages)
            stack.enter_context(storage.sole_writer(parts.places.target))
            self._prepare()
            display = stack.enter_context(progress_display(self._parts.progress, stages=self.stages))
            try:
                report = executors.staged_copy(self.stages, parts.executor, on_event=_both(display, on_event))
                if self._session is not None:
                    report = replace(report, results=self._session.collect(self.stages[-1], report.results))
            except BaseException as error:
                self._tell_what_is_left(error)
                raise
            self._verify()
            self._finish(report)
            if self._session is not None:
                self._session.commit(parts.design.like)
        self.report = replace(report, notes=(*parts.design.notes, *report.notes))
        return self._open_target()

    @property
    def _intermediates(self) -> tuple[str, ...]:
        return tuple(stage.target for stage in self.plan.stages if stage.target != "target")

    def _make_stages(self) -> tuple[Stage, ...]:
        parts = self._parts
        target = parts.places.target
        if self._session is not None:
            target = replace(target, store=self._session)
        refs = {"source": parts.places.source, "target": target}
        refs |= {name: storage.child(self._temp_place(), name) for name in self._intermediates}
        job = uuid.uuid4().hex
        return tuple(
            Stage(
                number=number,
                plan=stage,
                source=refs[stage.source],
                target=refs[stage.target],
                job=job,
                record=getattr(parts.executor, "needs_records", False),
            )
            for number, stage in enumerate(self.plan.stages)
        )

    def _temp_place(self) -> ArrayRef:
        temp = self._parts.places.temp
        if temp is None:
            raise PlanError(
                f"the plan needs a temp store of {self.plan.temp_bytes} bytes, and there is no place for one beside "
                f"the target {self._parts.places.target}; give temp_store, or more max_mem"
            )
        return temp

    def _refuse_places(self) -> None:
        places = self._parts.places
        storage.refuse_unwritable(places.target, _METADATA_BYTES, "target")
        if self._intermediates:
            place = self._temp_place()
            for name, array in (("source", places.source), ("target", places.target)):
                if not (array.by_name and place.by_name) and array.store is not place.store:
                    continue
                try:
                    storage.refuse_overlap(array, place)
                except PlanError as error:
                    raise PlanError(
                        f"intermediates must lie outside the {name}; got {place} for {array}; give another temp_store"
                    ) from error
            storage.refuse_unwritable(place, self.plan.temp_bytes, "temp store")

    def _prepare(self) -> None:
        parts = self._parts
        storage.refuse_existing(parts.places.source, parts.places.target, parts.mode)
        self._refuse_places()
        if self._intermediates:
            storage.mark_temp(self._temp_place(), parts.places.target)
        try:
            making = contextlib.nullcontext(parts.places.target) if self._session is None else self._session.making()
            with making as target:
                if parts.mode == "overwrite":
                    storage.remove_array(target)
                for stage in self.stages[:-1]:
                    storage.remove_array(stage.target)  # left by a job that failed
                    storage.create(storage.design_intermediate(parts.stored, stage.plan.chunk), stage.target)
                storage.create(parts.design, target)
        except StorageError:
            self._remove_intermediates()  # nothing is in them
            raise

    def _verify(self) -> None:
        places = self._parts.places
        if self._parts.verify:
            # A thread holds a chunk, its stored bytes, and the part of it that lies in one box.
            held = 3 * max(self._parts.stored.chunk_bytes, self._parts.design.like.chunk_bytes, 1)
            threads = max(1, min(available_cores(), self.plan.max_mem // held))
            found = verify_arrays(places.source, places.target, threads)
            if not found.ok:
                error = RechunkError(f"the target must hold the source's bits; {found}; the target is {places.target}")
                self._tell_what_is_left(error)
                raise error

    def _finish(self, report: CopyReport) -> None:
        if report.retries:  # a worker that died while it wrote has left its file
            storage.remove_partials(self._parts.places.target)
        if self.stages[0].record:
            storage.remove_records(self._parts.places.target, self.stages[0].job)
        self._remove_intermediates()

    def _remove_intermediates(self) -> None:
        if self._intermediates:
            storage.remove_temp(self._temp_place(), self._intermediates)

    def _tell_what_is_left(self, error: BaseException) -> None:
        places = self._parts.places
        left = f"the target {places.target} is unfinished"
        if self._session is not None:  # the job cannot be resumed, so nothing is kept
            left = self._session.left
            with contextlib.suppress(StorageError):
                self._remove_intermediates()
        elif self._intermediates:
            left += f"; kept: the intermediates {', '.join(self._intermediates)} in {places.temp}"
        if isinstance(error, RechunkError) and error.args:
            error.args = (f"{error.args[0]}; {left}", *error.args[1:])
        else:
            error.add_note(left)

    def _open_target(self) -> zarr.Array[Any]:
        if self._session is not None:
            return storage.open_array(self._session.committed, read_only=True).array
        return storage.open_array(self._parts.places.target, read_only=False).array


def _both(first: OnEvent, second: OnEvent | None) -> OnEvent:
    def tell(event: Event) -> None:
        first(event)
        if second is not None:
            second(event)

    return tell
