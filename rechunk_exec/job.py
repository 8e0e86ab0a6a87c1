"""A planned job: what it will do, and doing it. Layer: with the api, above executors and report."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import zarr

from rechunk_exec import batch, htmltext, storage
from rechunk_exec.budget import Budget
from rechunk_exec.cost import CostModel
from rechunk_exec.endrequests import EndRequests
from rechunk_exec.errors import PlanError, RechunkError, StorageError, TargetExistsError
from rechunk_exec.executors.base import Executor, worker_shape
from rechunk_exec.executors.registry import check_stages
from rechunk_exec.executors.staged import staged_copy
from rechunk_exec.keeper import Keeper
from rechunk_exec.leftovers import tell_what_is_left
from rechunk_exec.preparation import (
    Begun,
    Undertaking,
    begin,
    refuse_changed_target,
    refuse_places,
    refuse_what_is_there,
    remove_intermediates,
    tidy_ended,
    utc_now,
)
from rechunk_exec.report.progress import progress as progress_display
from rechunk_exec.report.tally import Tally, stage_times
from rechunk_exec.results import CopyReport, Event, OnEvent, TaskResult
from rechunk_exec.resuming import replaced, take_back
from rechunk_exec.sizes import bytes_text
from rechunk_exec.staging import stages_of
from rechunk_exec.storage import FinishedRecord
from rechunk_exec.tasks import CopyTask, Stage
from rechunk_exec.verification import VerifyOptions, verify_copied, verify_nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class JobParts:
    """What a job was made of."""

    work: Undertaking
    """Its stages are made by the job."""
    executor: Executor
    owned: bool
    """Whether we made the executor, and so close it."""
    verify: bool
    progress: bool | None
    budget: Budget
    """The memory of one worker, which the plan was made for."""
    cost: CostModel
    """What the report's predicted seconds are of, besides the plan's."""


class Rechunked:
    """A planned job. Shows its plan; nothing is written before :meth:`execute`.

    Attributes
    ----------
    plan : Plan
        The stages and their figures; ``plan.explain()`` tells what was weighed.
    stages : tuple of Stage
        The plan's stages with the arrays they copy between: lazy sequences of tasks. Of a job that goes on, the tasks
        that are left are known, and the others gone from here, once :meth:`execute` has begun.
    report : CopyReport or None
        After :meth:`execute`: what was done.
    """

    def __init__(self, parts: JobParts) -> None:
        self.plan = parts.work.plan
        self.report: CopyReport | None = None
        self._parts = parts
        self._begun = False
        self._session = parts.work.session
        self.stages = self._make_stages(parts.work)
        self._work = replace(parts.work, stages=self.stages)
        if not self._had_ended():  # else nothing is written, and who may only read the target is given it
            refuse_places(self._work)
        check = getattr(parts.executor, "check_stages", None)
        if callable(check):
            check(self.stages)

    def __repr__(self) -> str:
        return "\n".join([*self._lines(), "", self.plan.explain()])

    def _repr_html_(self) -> str:
        """What the text tells, as notebooks show it."""
        return f"<p>{htmltext.lines(chr(10).join(self._lines()))}</p>{self.plan._repr_html_()}"

    def _lines(self) -> list[str]:
        """Where the job's arrays are, and what is to be known of it besides its plan."""
        places = self._work.places
        lines = [f"rechunk {places.source}", f"     to {places.target}"]
        if self._work.intermediates:
            temp_bytes = self.plan.temp_bytes
            lines.append(f"    via {places.temp}, which holds {bytes_text(temp_bytes)}")
        if self._work.resumed is not None:
            lines.append(f"   goes on with the job begun at {self._work.resumed.begun}")
        if self.memory_text:
            lines.append(f"   {self.memory_text}")
        return [*lines, *(f"   note: {note}" for note in self._work.design.notes)]

    @property
    def memory_text(self) -> str:
        """How ``max_mem="auto"`` came to its number, for people; empty where a number was given."""
        return self._parts.budget.how

    def tasks(self) -> Iterator[CopyTask]:
        """Yield the tasks of all stages, in order."""
        for stage in self.stages:
            yield from stage

    def execute(self, *, on_event: OnEvent | None = None) -> zarr.Array[Any]:
        """Create the arrays, run the stages, and remove what was only needed on the way.

        While this runs in the main thread of a program that does not handle the signal SIGTERM, that ends it like
        Ctrl-C: workers are stopped, and what was done is on record. A request that Python loses, because it came in a
        callback where an exception is only printed, ends the job after the task that is next done.

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
        ResumeError
            If the job that was to go on was replaced since it was planned.
        """
        self._refuse_twice()
        parts, places = self._parts, self._work.places
        with contextlib.ExitStack() as stack:
            if parts.owned and hasattr(parts.executor, "close"):
                stack.callback(parts.executor.close)
            requests = stack.enter_context(EndRequests())
            stack.enter_context(storage.requests_of_driver())
            if self._session is not None:
                stack.enter_context(self._session.job())
            check_stages(parts.executor, self.stages)
            if self._had_ended():
                # What another driver has left is its own to tidy; and who may only read the target is given it too.
                with contextlib.suppress(TargetExistsError, StorageError), storage.sole_writer(places.target):
                    if self._had_ended():  # else another job has begun meanwhile
                        tidy_ended(places.target)
                return self._nothing_left()
            refuse_what_is_there(self._work)  # before a claim is written to what may be somebody else's
            lease = stack.enter_context(storage.sole_writer(places.target, documents=places.journalled))
            try:
                begun = begin(self._work, lease)
                self.stages = begun.stages
                report = self._run(begun, lease, requests, on_event)
                self._verify(begun, report, lease)
                requests.heed()
                self._finish(begun, report, lease)
                if self._session is not None:
                    self._session.commit(self._work.design.like)
            except BaseException as error:
                storage.interrupted(error)
                if lease.is_ours():
                    tell_what_is_left(error, self._work)
                raise
        self.report = replace(report, notes=(*self._work.design.notes, *report.notes))
        return self._open_target()

    def write_jobs(self, jobs: str | os.PathLike[str]) -> int:
        """Create the arrays, and write the tasks that are left to a file, one line of JSON each; none is run.

        The lines are run by :func:`rechunk_exec.run_job`, wherever the stores are seen, and the job is ended by
        :func:`rechunk_exec.finalize_jobs`; until then its target is unfinished. Where nothing is left it is ended at
        once, and the file is empty.

        Parameters
        ----------
        jobs : str or os.PathLike
            A path, or the URL of an object. With the modes ``overwrite`` and ``resume``, what is there is replaced.

        Returns
        -------
        int
            Number of lines.

        Raises
        ------
        SerializationError
            If an array has no name by which another process opens it, such as one in memory.
        PlanError
            If ``max_mem`` is a share of what this machine leaves: lines may run on others.
        StorageError
            If the target takes no documents, the file cannot be written, or arrays cannot be created.
        TargetExistsError, ResumeError
            As for :meth:`execute`.
        """
        if self._parts.budget.of_this_machine:
            raise PlanError(
                "max_mem must be a number where tasks run anywhere; got 'auto', which is "
                f"{self.plan.max_mem} bytes on this machine; give what each process that runs a line has"
            )
        self._refuse_twice()
        parts, name = self._parts, os.fspath(jobs)
        target = self._work.places.target
        work = replace(self._work, stages=tuple(replace(stage, journal=target) for stage in self.stages))
        with contextlib.ExitStack() as stack:
            if parts.owned and hasattr(parts.executor, "close"):
                stack.callback(parts.executor.close)
            stack.enter_context(EndRequests())
            stack.enter_context(storage.requests_of_driver())
            batch.refuse_unnamed(work.stages)
            temp = work.temp if work.intermediates else None
            batch.refuse_inside(name, [self._work.places.source, target, *([] if temp is None else [temp])])
            refuse_what_is_there(work)
            lease = stack.enter_context(storage.sole_writer(target))
            lines = stack.enter_context(batch.open_lines(name, replace_it=self._work.mode != "fail"))
            if self._had_ended():
                tidy_ended(target)
                self._nothing_left()
                return 0
            try:
                begun = begin(work, lease)
                self.stages = begun.stages
                lease.check()
                done = [sum(result.stage == stage.number for result in begun.done) for stage in begun.stages]
                batch.note_lines(target, begun.stages, temp=temp, done=done)
                count = batch.write_lines(lines, begun.stages)
                lease.check()  # lines of another driver's job may be in the file by now
                if not count:
                    self._finish_without_lines(begun, lease)
            except BaseException as error:
                storage.interrupted(error)
                if lease.is_ours():
                    tell_what_is_left(error, work)
                raise
        return count

    def _finish_without_lines(self, begun: Begun, lease: storage.Lease) -> None:
        report = CopyReport(executor="batch", results=(), seconds=0.0)
        self._verify(begun, report, lease)
        self._finish(begun, report, lease)

    def _refuse_twice(self) -> None:
        if self._begun:
            raise RechunkError("a job is executed once, and this one was; plan it again with rechunk() to run it again")
        self._begun = True

    def _had_ended(self) -> bool:
        """Whether this goes on with a job that has ended before; it, and no other that took its place."""
        resumed = self._work.resumed
        finished = None if resumed is None else storage.read_finished(self._work.places.target)
        return resumed is not None and finished is not None and finished.job == resumed.job

    def _nothing_left(self) -> zarr.Array[Any]:
        """The end of a job that had ended before."""
        self.stages = tuple(replace(stage, left=()) for stage in self.stages)
        self.report = CopyReport(executor=self._parts.executor.name, results=(), seconds=0.0)
        try:
            refuse_changed_target(self._work)
            self._verify_ended()
            array = self._open_target()
        except RechunkError:
            if self._had_ended():
                raise
            raise replaced(self._work.places.target) from None
        if not self._had_ended():  # what was opened is another driver's, which may be at it
            raise replaced(self._work.places.target)
        return array

    def _verify_ended(self) -> None:
        places = self._work.places
        if self._parts.verify:
            found = verify_nodes(
                places.source, places.target, VerifyOptions(executor=self._parts.executor, max_mem=self.plan.max_mem)
            )
            if not found.ok:
                raise RechunkError(
                    f"the target must hold the source's bits; {found}; its job had ended, so the target "
                    f"{places.target} was damaged or written to since; give mode='overwrite' to make it anew"
                )

    def _make_stages(self, work: Undertaking) -> tuple[Stage, ...]:
        places, target = work.places, work.places.target
        if work.session is not None:
            places = replace(places, target=replace(target, store=work.session))
        return stages_of(
            work.plan,
            places,
            job=uuid.uuid4().hex,
            journal=None if _tells(self._parts.executor) else target,
            digest=self._parts.verify,
        )

    def _run(self, begun: Begun, lease: storage.Lease, requests: EndRequests, on_event: OnEvent | None) -> CopyReport:
        """Run the tasks that are left."""
        keeper = Keeper(
            begun.journal, lease, told=_tells(self._parts.executor), left=sum(len(stage) for stage in begun.stages)
        )
        tally = Tally({stage.number: len(stage) for stage in begun.stages})
        cost, workers = self._parts.cost, worker_shape(self._parts.executor)

        def fresh_s(stage: Stage) -> float:
            return cost.fresh_s(stage.plan.fresh_bytes(workers.workers, len(stage)))

        with keeper, progress_display(self._parts.progress, stages=begun.stages) as display:
            listeners: list[OnEvent] = [tally.add, keeper, display, *([] if on_event is None else [on_event])]
            tell = storage.merging(begun.stages, _all_of(listeners, requests))
            report = staged_copy(begun.stages, self._parts.executor, on_event=tell)
            requests.heed()
        report = replace(
            report,
            stage_times=stage_times(tally, begun.stages, report, fresh_s),
            start_predicted_s=cost.worker_start_s if workers.to_start and report.results else 0.0,
        )
        if self._session is not None:
            report = replace(report, results=self._session.collect(begun.stages[-1], report.results))
        return replace(report, results=tuple(map(storage.without_changes, report.results)))

    def _verify(self, begun: Begun, report: CopyReport, lease: storage.Lease) -> None:
        parts = self._parts
        if not parts.verify:
            return
        results = (*begun.done, *report.results)
        found = verify_copied(self._work.stages, results, parts.executor, self.plan.max_mem, earlier=begun.done)
        lease.check()  # else it may be another job's target that was looked at
        if not found.ok:
            if begun.journal is not None:
                take_back(begun.journal, self._work.stages[-1], results, found)
            raise RechunkError(
                f"the target must hold the source's bits; {found}; the target is {self._work.places.target}; "
                "give mode='resume' to copy again what differs"
            )

    def _finish(self, begun: Begun, report: CopyReport, lease: storage.Lease) -> None:
        target = self._work.places.target
        if report.retries or self._work.resumed is not None:  # a worker that died while it wrote has left its file
            lease.await_workers()
            lease.check()
            storage.remove_partials(target)
        lease.check()
        remove_intermediates(self._work)
        lease.check()
        storage.reveal(target)
        if begun.journal is not None:
            lease.check()
            begun.journal.forget(others=True)
            lease.check()
            results: Sequence[TaskResult] = (*begun.done, *report.results)
            begun.journal.finish(
                FinishedRecord(
                    job=begun.journal.job,
                    ended=utc_now(),
                    tasks=tuple(stage.tasks for stage in self.plan.stages),
                    bytes_written=sum(result.bytes_written for result in results),
                )
            )

    def _open_target(self) -> zarr.Array[Any]:
        if self._session is not None:
            return storage.open_array(self._session.committed, read_only=True).array
        return storage.open_array(self._work.places.target, read_only=False).array


def _tells(executor: Executor) -> bool:
    """Whether an executor tells of each task as it is done; else the tasks have to."""
    return not getattr(executor, "needs_records", False)


def _all_of(listeners: Sequence[OnEvent], requests: EndRequests) -> OnEvent:
    def tell(event: Event) -> None:
        for listener in listeners:
            listener(event)
        requests.heed()  # after the journal has been told

    return tell


def write_jobs(job: Rechunked, jobs: str | os.PathLike[str]) -> int:
    """Write the tasks of a planned job to a file, one line of JSON each; see :meth:`Rechunked.write_jobs`."""
    return job.write_jobs(jobs)
