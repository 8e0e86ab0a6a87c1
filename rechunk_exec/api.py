"""The public functions: the one place where loose input is made exact. Layer: above executors and report.

:func:`rechunk` reads metadata, plans, and refuses what cannot work, with nothing written. :meth:`Rechunked.execute`
creates the arrays, has the executor run the stages, and cleans up what was only needed on the way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, TypeAlias

import zarr

from rechunk_exec import storage
from rechunk_exec.array_report import ArrayReport, describe_array
from rechunk_exec.budget import asked_bytes, budget_for
from rechunk_exec.chunkspec import ChunkSpec, resolve_chunks, resolve_shards
from rechunk_exec.cost import CostModel, resolve
from rechunk_exec.digest import work_bytes
from rechunk_exec.errors import BudgetError, PlanError, RechunkError
from rechunk_exec.executors.base import Executor, WorkerShape, worker_shape
from rechunk_exec.executors.registry import resolve as resolve_executor
from rechunk_exec.fitting import plan_for_workers
from rechunk_exec.job import JobParts, Rechunked
from rechunk_exec.jobstatus import JobStatus, read_status, refuse_unfinished_source, unfinished_text
from rechunk_exec.layouts import layouts_of
from rechunk_exec.naming import Options, Wanted, job_places, node_ref, target_ref
from rechunk_exec.plans import Plan
from rechunk_exec.preparation import Undertaking
from rechunk_exec.request import Limits
from rechunk_exec.resuming import refuse_other_job, refuse_other_plan, refuse_past_limits
from rechunk_exec.sizes import parse_bytes
from rechunk_exec.staging import JobPlaces
from rechunk_exec.tasks import ArrayRef
from rechunk_exec.verification import VerifyOptions, VerifyReport, verify_nodes

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
    target_shards: ChunkSpec = None,
    mode: Mode = "fail",
    zarr_format: Literal[2, 3] | None = None,
    storage_options: Options | None = None,
    temp_storage_options: Options | None = None,
    cost_model: str | CostModel = "local",
    verify: bool = False,
    progress: bool | None = None,
    target_bytes: int | str | None = None,
    max_objects: int | None = None,
    min_object_bytes: int | str | None = None,
    max_temp_bytes: int | str | None = None,
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
        ``"auto"`` is 60 % of what the machine and its control groups leave, divided by the executor's workers here; see
        :mod:`rechunk_exec.budget`.
    target_store : str, os.PathLike or zarr store, optional
        Where the target goes; None puts it beside the source.
    target_options : dict, optional
        Arguments of :func:`zarr.create_array` that replace what is carried over from the source (``compressors``,
        ``filters``, ``fill_value``, ...), or rechunker's ``compressor``.
    temp_store : str, os.PathLike or zarr store, optional
        Where intermediates go, if the plan needs any; None puts them beside the target.
    temp_options : dict, optional
        For intermediates: ``compressor`` or ``compressors``, as in ``target_options``. Without, they are uncompressed,
        unless the cost model says that their store is slow (``CostModel.temp_bps``).
    executor : str, executor, concurrent.futures.Executor, or callable
        What runs the tasks: ``"threads"``, ``"processes"``, ``"serial"``, or see :mod:`rechunk_exec.executors`.
    array_name : str, optional
        Path of the array inside ``target_store``.
    target_shards : tuple or dict, optional
        Shards of the target, in elements: what one write makes (zarr format 3). None writes each chunk on its own.
    mode : {"fail", "overwrite", "resume"}
        What to do if the target is there already. ``"overwrite"`` replaces an array, with all that is in its folder; it
        refuses where that holds what is not the array's.
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
    max_objects : int, optional
        Objects that all stages together may write, the target's included.
    min_object_bytes : int or str, optional
        Raw bytes that every object has at least, those at the far edges of the array aside.
    max_temp_bytes : int or str, optional
        Raw bytes that intermediates may hold at once; 0 for no intermediate.

    Returns
    -------
    Rechunked
        The job: shows its plan; :meth:`Rechunked.execute` runs it.

    Raises
    ------
    PlanError
        If the request cannot be planned.
    BudgetError
        If it needs more than ``max_mem`` to keep the limits; ``needed_bytes`` would do, or those in ``limits``.
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
    asked = asked_bytes(max_mem)
    if mode not in ("fail", "overwrite", "resume"):
        raise PlanError(f"mode must be 'fail', 'overwrite' or 'resume'; got {mode!r}")
    if target_options is not None and not isinstance(target_options, Mapping):
        raise PlanError(f"target_options must be a dict of zarr's names for options; got {target_options!r}")
    limits = Limits.asked(max_objects, min_object_bytes, max_temp_bytes)
    runner, workers = _runner(executor)
    places = job_places(
        Wanted(
            source=source,
            target_store=target_store,
            temp_store=temp_store,
            array_name=array_name,
            storage_options=storage_options,
            temp_storage_options=temp_storage_options,
        )
    )
    stored = storage.open_array(places.source, read_only=True)
    refuse_unfinished_source(places.source)
    names = storage.dimension_names(stored)
    chunk = resolve_chunks(
        target_chunks,
        shape=stored.shape,
        itemsize=stored.dtype.itemsize,
        current=stored.chunk,
        names=names,
        target_bytes=None if target_bytes is None else parse_bytes(target_bytes, name="target_bytes"),
    )
    shard = resolve_shards(target_shards, shape=stored.shape, chunk=chunk, names=names)
    wishes = storage.TargetWishes(
        chunk=chunk,
        shard=shard,
        zarr_format=stored.metadata.zarr_format if zarr_format is None else zarr_format,
        options=target_options or {},
    )
    design = storage.design_target(stored, wishes)
    _refuse_place(places, stored)
    begun = storage.read_job(places.target) if mode == "resume" and places.journalled else None
    temp_name = storage.new_temp_name(places.target) if begun is None else begun.temp_name
    places = places.with_temp(temp_name)
    if begun is None:
        storage.refuse_existing(places.source, places.target, mode)
    before = None if begun is None else begun.fingerprint
    budget = budget_for(asked, workers, executor=runner.name, begun=None if before is None else before.max_mem)
    if budget.warning:
        design = replace(design, notes=(*design.notes, budget.warning))
    design = storage.apart_from_groups(design, places.target)
    if not temp_options:
        temp_options = storage.lz4_options(stored, before, resolve(cost_model).compresses_temp)
    temp = storage.temp_form(stored, temp_options, places.temp)
    fingerprint = replace(
        storage.fingerprint(
            stored, places.source, design.like, max_mem=budget.max_mem, temp=None if temp_store is None else places.temp
        ),
        temp_codecs=temp.codecs,
    )
    layouts = layouts_of(stored, design, wishes, target=places.target, temp=temp)
    layouts = replace(layouts, limits=limits, has_temp_place=places.temp is not None)
    if verify:
        layouts = layouts.worked_in(work_bytes(stored.dtype))
    try:
        plan = plan_for_workers(layouts, budget.max_mem, cost_model, workers) if begun is None else begun.plan
        room = None if begun is not None else _too_little_room(plan, places.temp)
        if room is not None:
            fewer = replace(limits, max_temp_bytes=max(room, plan.stages[0].nbytes))
            plan = plan_for_workers(replace(layouts, limits=fewer), budget.max_mem, cost_model, workers)
    except BudgetError as refusal:
        refusal.args = (f"{refusal}; the array is {places.source}",)
        raise
    if begun is not None:
        refuse_other_job(begun, fingerprint, workers, places.target)
        refuse_other_plan(begun, stored, design.like, places.target)
        refuse_past_limits(begun, limits, places.target)
    work = Undertaking(
        places=places,
        stored=stored,
        design=design,
        fingerprint=fingerprint,
        mode=mode,
        resumed=begun,
        plan=plan,
        temp_name=temp_name,
        temp_options=temp_options,
        session=storage.session_target(places.target, design.like.metadata.zarr_format),
    )
    return Rechunked(
        JobParts(
            work=work,
            executor=runner,
            owned=isinstance(executor, str),
            verify=verify,
            progress=progress,
            budget=budget,
            cost=resolve(cost_model),
        )
    )


def _refuse_place(places: JobPlaces, stored: storage.StoredArray) -> None:
    """Raise :class:`PlanError` if the target would lie where the source or another array is."""
    storage.refuse_overlap(places.source, places.target)
    storage.refuse_links_into(places.target, places.source, stored)
    storage.refuse_inside_array(places.target)


def _too_little_room(plan: Plan, temp: ArrayRef | None) -> int | None:
    """The bytes that are free on a disk which has no room for a plan's several intermediates, or None."""
    if temp is None or plan.temp_bytes <= plan.stages[0].nbytes:
        return None
    free = storage.free_bytes(temp)
    return free if free is not None and free < plan.temp_bytes else None


def verify(  # noqa: PLR0913 - what rechunk takes, and the sample
    source: object,
    target: object,
    *,
    executor: object = "threads",
    max_mem: int | str | None = None,
    sample: float | None = None,
    storage_options: Options | None = None,
) -> VerifyReport:
    """Compare two arrays bit for bit, or all arrays of two groups, by digests that do not depend on chunking.

    Each array is read once, along its own chunks; what differs is read again, to find the write units. NaN payloads and
    the sign of zero count as bits, an absent chunk counts as fill value, strings count by a hash of each; byte order
    and attributes do not count. How sure that is: :mod:`rechunk_exec.digest`.

    Parameters
    ----------
    source, target : str, os.PathLike, zarr.Array, zarr.Group or zarr store
        Two arrays of one shape and dtype, or two groups, whose arrays are matched by path.
    executor : str, executor, concurrent.futures.Executor, or callable
        What computes the sums: a pool of workers. With others, such as a function, threads of this process do it.
    max_mem : int or str, optional
        Memory that one worker process may use, in bytes, or like ``"8GB"``: a decoded chunk, its stored bytes, and the
        part of it that is added up, for each thread. Not bounded if not given.
    sample : float, optional
        Share of the target's write units to look at: 0.01 is one of a hundred, at least one of each array. The same
        ones each time, spread at random. None looks at all.
    storage_options : dict, optional
        Options for URLs.

    Returns
    -------
    VerifyReport
        ``ok``, and ``differing``: the write units of ``target`` that differ or cannot be read, as boxes with ``start``
        and ``stop`` in elements, the ``path`` in a group, and the ``reason`` if they could not be compared. In groups
        also arrays that are on one side only, or of another shape or dtype, and arrays and groups that cannot be opened
        on either side. Where a job of ours, on either side, has not ended, ``unfinished`` says so, and it is not
        ``ok``.

    Raises
    ------
    StorageError
        If the source cannot be read, one of two arrays, or the outermost of a group, cannot be opened, or shapes or
        dtypes of two arrays differ.
    BudgetError
        If ``max_mem`` is less than reading one chunk takes; ``needed_bytes`` would do.

    Examples
    --------
    >>> import numpy as np, zarr
    >>> one = zarr.create_array({}, data=np.arange(6.0), chunks=2)
    >>> other = zarr.create_array({}, data=np.arange(6.0), chunks=3)
    >>> print(verify(one, other))
    verified: 2 boxes are the same to the bit
    >>> other[4] = 0
    >>> verify(one, other).differing[0].start
    (3,)
    """
    source_ref, target_ref = node_ref(source, storage_options), node_ref(target, storage_options)
    options = VerifyOptions(
        executor=_runner(executor)[0] if not isinstance(executor, str) else executor,
        max_mem=None if max_mem is None else parse_bytes(max_mem),
        sample=sample,
        unfinished=unfinished_text(source_ref, target_ref),
    )
    return verify_nodes(source_ref, target_ref, options)


def status(target_store: object, *, array_name: str | None = None, storage_options: Options | None = None) -> JobStatus:
    """Return how far the job on a target is, from its journal. Nothing is written.

    Parameters
    ----------
    target_store : str, os.PathLike, zarr store or zarr.Array
        As given to :func:`rechunk`, or what that gave.
    array_name : str, optional
        As given to :func:`rechunk`.
    storage_options : dict, optional
        Options for URLs.

    Returns
    -------
    JobStatus
        ``done`` and ``total`` tasks over all stages, ``stages`` (the same for each), ``failed``, ``state``.

    Raises
    ------
    StorageError
        If no job of ours was begun there.
    ResumeError
        If its journal is damaged.
    """
    place = target_store.store_path if isinstance(target_store, zarr.Array) else target_store
    return read_status(target_ref(place, array_name, storage_options))


def describe(store: object, *, array_name: str | None = None, storage_options: Options | None = None) -> ArrayReport:
    """Return what a stored array is, and whether a job of ours has finished it; see :func:`status` for the arguments.

    Raises
    ------
    StorageError
        If no array can be opened there.
    """
    return describe_array(target_ref(store, array_name, storage_options))


def _runner(executor: object) -> tuple[Executor, WorkerShape]:
    """Return the executor and the shape of its workers."""
    try:
        runner = resolve_executor(executor)
        return runner, worker_shape(runner)
    except RechunkError:
        raise
    except (TypeError, ValueError) as error:
        raise PlanError(str(error)) from error
