"""The public functions: the one place where loose input is made exact. Layer: above executors and report.

:func:`rechunk` reads metadata, plans, and refuses what cannot work, with nothing written. :meth:`Rechunked.execute`
creates the arrays, has the executor run the stages, and cleans up what was only needed on the way.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import zarr

from rechunk_exec import executors, storage
from rechunk_exec.chunkspec import resolve_chunks, resolve_shards
from rechunk_exec.cost import CostModel
from rechunk_exec.errors import PlanError, RechunkError, StorageError
from rechunk_exec.executors.base import Executor, worker_shape
from rechunk_exec.fitting import Layouts, plan_for_workers
from rechunk_exec.plans import Plan
from rechunk_exec.report.progress import progress as progress_display
from rechunk_exec.request import SourceLayout, TargetLayout
from rechunk_exec.results import CopyReport, Event, OnEvent
from rechunk_exec.sizes import format_bytes, parse_bytes
from rechunk_exec.tasks import ArrayRef, CopyTask, OptionValue, Stage

ChunkSpec: TypeAlias = Sequence[int | str | None] | Mapping[str, Any] | Mapping[int, Any] | int
Options: TypeAlias = Mapping[str, OptionValue]
Mode: TypeAlias = Literal["fail", "overwrite", "resume"]


def rechunk(  # noqa: PLR0913, PLR0917 - the first nine are rechunker's, in its order
    source: object,
    target_chunks: ChunkSpec,
    max_mem: int | str,
    target_store: object = None,
    target_options: Mapping[str, Any] | None = None,
    temp_store: object = None,
    temp_options: Mapping[str, Any] | None = None,
    executor: object = "threads",
    array_name: str | None = None,
    *,
    target_shards: ChunkSpec | None = None,
    mode: Mode = "fail",
    zarr_format: Literal[2, 3] | None = None,
    storage_options: Options | None = None,
    temp_storage_options: Options | None = None,
    cost_model: str | CostModel = "local",
    verify: bool = False,
    progress: bool | None = None,
    target_bytes: int | str | None = None,
) -> Rechunked:
    """Plan the rewrite of a zarr array to other chunks, within a stated memory. Nothing is written yet.

    Parameters
    ----------
    source : str, os.PathLike, zarr.Array or zarr store
        The array. It is only ever read.
    target_chunks : tuple, int, or dict by axis name or number
        Chunks of the target, in elements: what one read returns. -1 is the whole axis, None (or an axis that a dict
        does not name) keeps the source's chunk, ``"auto"`` fits the chunk to ``target_bytes``.
    max_mem : int or str
        Memory that one worker process may use on top of its idle footprint, in bytes, or like ``"8GB"`` or ``"2GiB"``.
    target_store : str, os.PathLike or zarr store, optional
        Where the target goes; None puts it beside the source.
    target_options : dict, optional
        Arguments of :func:`zarr.create_array` that replace what is carried over from the source (``compressors``,
        ``filters``, ``fill_value``, ...), or rechunker's ``compressor``.
    temp_store : str, os.PathLike or zarr store, optional
        Where intermediates go, if the plan needs any; None puts them beside the target.
    temp_options : dict, optional
        For intermediates, which are uncompressed: none are known yet.
    executor : str, executor, concurrent.futures.Executor, or callable
        What runs the tasks: ``"threads"``, ``"processes"``, ``"serial"``, or see :mod:`rechunk_exec.executors`.
    array_name : str, optional
        Path of the array inside ``target_store``.
    target_shards : tuple or dict, optional
        Shards of the target, in elements: what one write makes (zarr format 3). None writes each chunk on its own.
    mode : {"fail", "overwrite", "resume"}
        What to do if the target is there already.
    zarr_format : {2, 3}, optional
        Format of the target; None takes the source's.
    storage_options, temp_storage_options : dict, optional
        Options for URLs. No credentials: those come from the environment.
    cost_model : "local", "object" or CostModel
        What the plan's choice is made by.
    verify : bool
        Compare digests of source and target after the copy.
    progress : bool, optional
        None shows a bar on a terminal or notebook and logs lines elsewhere; False is silent.
    target_bytes : int or str, optional
        Size of a chunk with ``"auto"`` axes.

    Returns
    -------
    Rechunked
        The job: shows its plan; :meth:`Rechunked.execute` runs it.

    Raises
    ------
    PlanError
        If the request cannot be planned.
    BudgetError
        If it needs more than ``max_mem``; ``needed_bytes`` would do.
    TargetExistsError
        If something is at the target's place that ``mode`` does not replace.
    StorageError
        If the source cannot be opened, or a place cannot be written.

    Examples
    --------
    >>> import numpy as np, tempfile, zarr
    >>> folder = tempfile.mkdtemp()
    >>> epochs = zarr.create_array(
    ...     f"{folder}/epochs.zarr", shape=(8, 6, 6), chunks=(1, 6, 6), dtype="f4", dimension_names=["time", "y", "x"]
    ... )
    >>> epochs[:] = np.arange(8 * 6 * 6).reshape(8, 6, 6)
    >>> job = rechunk(epochs, {"time": -1, "y": 3, "x": 3}, "1MB", f"{folder}/series.zarr", progress=False)
    >>> series = job.execute()
    >>> series.chunks, bool((series[:] == epochs[:]).all())
    ((8, 3, 3), True)
    """
    budget = parse_bytes(max_mem)
    if mode not in ("fail", "overwrite", "resume"):
        raise PlanError(f"mode must be 'fail', 'overwrite' or 'resume'; got {mode!r}")
    if mode == "resume":
        raise PlanError("mode='resume' is not there yet; give mode='overwrite' to start anew")
    if verify:
        raise PlanError("verify=True is not there yet; compare source and target yourself, or leave it out")
    if temp_options:
        raise PlanError(
            f"intermediates are uncompressed and take no options yet; got temp_options={dict(temp_options)!r}"
        )
    runner = executors.resolve(executor)
    refs = _places(
        _Wanted(
            source=source,
            target_store=target_store,
            temp_store=temp_store,
            array_name=array_name,
            storage_options=storage_options,
            temp_storage_options=temp_storage_options,
        )
    )
    stored = storage.open_array(refs.source, read_only=True)
    names = storage.dimension_names(stored)
    itemsize = stored.dtype.itemsize
    chunk = resolve_chunks(
        target_chunks,
        shape=stored.shape,
        itemsize=itemsize,
        current=stored.chunk,
        names=names,
        target_bytes=None if target_bytes is None else parse_bytes(target_bytes),
    )
    shard = resolve_shards(target_shards, shape=stored.shape, chunk=chunk, names=names)
    wishes = storage.TargetWishes(
        chunk=chunk,
        shard=shard,
        zarr_format=stored.metadata.zarr_format if zarr_format is None else zarr_format,
        options=target_options or {},
    )
    design = storage.design_target(stored, wishes)
    storage.refuse_overlap(refs.source, refs.target)
    storage.refuse_existing(refs.source, refs.target, mode)
    layouts = Layouts(
        shape=stored.shape,
        itemsize=itemsize,
        source=SourceLayout(chunk=stored.chunk, scratch=storage.read_scratch(stored)),
        target=TargetLayout(chunk=chunk, shard=shard, scratch=storage.write_scratch(design.like, refs.target)),
    )
    plan = plan_for_workers(layouts, budget, cost_model, worker_shape(runner))
    return Rechunked(
        plan=plan,
        _parts=_Parts(
            refs=refs, stored=stored, design=design, mode=mode, executor=runner, owned=isinstance(executor, str)
        ),
        _progress=progress,
    )


@dataclass(frozen=True, slots=True)
class _Refs:
    """Where the arrays of a job are."""

    source: ArrayRef
    target: ArrayRef
    temp: ArrayRef | None
    """The folder of the intermediates; None if there is no place for one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """What a job was made of."""

    refs: _Refs
    stored: storage.StoredArray
    design: storage.Design
    mode: str
    executor: Executor
    owned: bool
    """Whether we made the executor, and so close it."""


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

    def __init__(self, *, plan: Plan, _parts: _Parts, _progress: bool | None) -> None:
        self.plan = plan
        self.report: CopyReport | None = None
        self._parts = _parts
        self._progress = _progress
        self.stages = self._make_stages()
        self._refuse_places()

    def __repr__(self) -> str:
        refs = self._parts.refs
        lines = [f"rechunk {refs.source}", f"     to {refs.target}"]
        if self._intermediates:
            lines.append(
                f"    via {refs.temp}, which holds {format_bytes(self.plan.temp_bytes)} ({self.plan.temp_bytes} bytes)"
            )
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
        if self.report is not None:
            raise RechunkError("the job has been executed; plan it again with rechunk() to run it again")
        parts = self._parts
        with contextlib.ExitStack() as stack:
            if parts.owned and hasattr(parts.executor, "close"):
                stack.callback(parts.executor.close)
            executors.check_stages(parts.executor, self.stages)
            self._prepare()
            display = stack.enter_context(progress_display(self._progress, stages=self.stages))
            try:
                report = parts.executor.staged_copy(self.stages, on_event=_both(display, on_event))
            except BaseException as error:
                self._tell_what_is_left(error)
                raise
        self._finish()
        self.report = replace(report, notes=(*parts.design.notes, *report.notes))
        return self._open_target()

    @property
    def _intermediates(self) -> tuple[str, ...]:
        return tuple(stage.target for stage in self.plan.stages if stage.target != "target")

    def _make_stages(self) -> tuple[Stage, ...]:
        parts = self._parts
        refs = {"source": parts.refs.source, "target": parts.refs.target}
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
        temp = self._parts.refs.temp
        if temp is None:
            raise PlanError(
                f"the plan needs a temp store of {self.plan.temp_bytes} bytes, and there is no place for one beside "
                f"the target {self._parts.refs.target}; give temp_store, or more max_mem"
            )
        return temp

    def _refuse_places(self) -> None:
        storage.refuse_unwritable(self._parts.refs.target, 0, "target")
        if self._intermediates:
            place = self._temp_place()
            storage.refuse_overlap(self._parts.refs.source, place)
            storage.refuse_unwritable(place, self.plan.temp_bytes, "temp store")

    def _prepare(self) -> None:
        parts = self._parts
        storage.refuse_existing(parts.refs.source, parts.refs.target, parts.mode)
        self._refuse_places()
        if parts.mode == "overwrite":
            storage.remove_array(parts.refs.target)
        if self._intermediates:
            place = self._temp_place()
            storage.mark_temp(place, parts.refs.target)
            for stage in self.stages[:-1]:
                storage.remove_array(stage.target)  # left by a job that failed
                storage.create(storage.design_intermediate(parts.stored, stage.plan.chunk), stage.target)
        storage.create(parts.design, parts.refs.target)

    def _finish(self) -> None:
        if self.stages[0].record:
            storage.remove_records(self._parts.refs.target)
        if self._intermediates:
            storage.remove_temp(self._temp_place(), self._intermediates)

    def _tell_what_is_left(self, error: BaseException) -> None:
        refs = self._parts.refs
        left = f"the target {refs.target} is unfinished"
        if self._intermediates:
            left += f"; kept: the intermediates {', '.join(self._intermediates)} in {refs.temp}"
        if isinstance(error, RechunkError) and error.args:
            error.args = (f"{error.args[0]}; {left}", *error.args[1:])
        else:
            error.add_note(left)

    def _open_target(self) -> zarr.Array[Any]:
        return storage.open_array(self._parts.refs.target, read_only=False).array


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """Where the arrays of a job are to be, as it was asked for."""

    source: object
    target_store: object
    temp_store: object
    array_name: str | None
    storage_options: Options | None
    temp_storage_options: Options | None


def _places(wanted: _Wanted) -> _Refs:
    source = _source_ref(wanted.source, wanted.storage_options)
    if wanted.target_store is None:
        target = storage.beside(source, "-rechunked")
        if target is None:
            raise PlanError(f"the source {source} has no place beside it for the target; give target_store")
    else:
        target = storage.array_ref(wanted.target_store, "", _options_for(wanted.target_store, wanted.storage_options))
    if wanted.array_name is not None:
        name = wanted.array_name.strip("/")
        if not name or ".." in name.split("/"):
            raise PlanError(f"array_name must be a path inside target_store; got {wanted.array_name!r}")
        target = storage.child(target, name)
    temp = None
    if wanted.temp_store is not None:
        temp = storage.array_ref(wanted.temp_store, "", _options_for(wanted.temp_store, wanted.temp_storage_options))
    return _Refs(source, target, storage.temp_place(target, temp))


def _source_ref(source: object, storage_options: Options | None) -> ArrayRef:
    if isinstance(source, zarr.Array):
        return storage.array_ref(source.store_path)
    if isinstance(source, zarr.Group):
        raise PlanError("a group has several arrays; give one of them as the source (groups come in a later version)")
    try:
        return storage.array_ref(source, "", _options_for(source, storage_options))
    except StorageError as error:
        raise PlanError(
            f"the source must be a path, a URL, a zarr array or a zarr store; got a {type(source).__name__}"
        ) from error


def _options_for(store: object, options: Options | None) -> Options | None:
    return options if isinstance(store, str) and storage.is_url(store) else None


def _both(first: OnEvent, second: OnEvent | None) -> OnEvent:
    def tell(event: Event) -> None:
        first(event)
        if second is not None:
            second(event)

    return tell
