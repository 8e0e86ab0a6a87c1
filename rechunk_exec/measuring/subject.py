"""What is measured: the two ends of a copy, and a plan for it. Layer: measuring; reads metadata only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rechunk_exec import storage
from rechunk_exec.chunkspec import ChunkSpec, resolve_chunks, resolve_shards
from rechunk_exec.cost import CostModel
from rechunk_exec.executors.base import WorkerShape
from rechunk_exec.fitting import plan_for_workers
from rechunk_exec.grid import boxes_touched, clip
from rechunk_exec.layouts import layouts_of
from rechunk_exec.naming import Options, Wanted, job_places, source_ref
from rechunk_exec.plans import Plan
from rechunk_exec.tasks import ArrayRef


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """The copy that is asked about; as :func:`rechunk_exec.rechunk` takes it."""

    source: object
    target_store: object
    target_chunks: ChunkSpec
    target_shards: ChunkSpec
    target_options: Mapping[str, Any] | None
    zarr_format: int | None
    temp_store: object
    storage_options: Options | None
    temp_storage_options: Options | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What a probe samples."""

    source: ArrayRef
    stored: storage.StoredArray
    """The source."""
    design: storage.Design
    """The target's."""
    target: ArrayRef | None
    """Where the target is to go; None if that was not said."""
    temp: ArrayRef | None
    """Where intermediates are to go; None: where the target is."""
    plan: Plan
    preset: CostModel
    """What holds where nothing can be measured, for the cores to measure with."""

    @property
    def remote(self) -> bool:
        """Whether the source or the target is on no local disk."""
        ends = [self.source] if self.target is None else [self.source, self.target]
        return any(storage.local_path(end) is None for end in ends)

    @property
    def fetches(self) -> int:
        """Operations in which the plan reads the source: those for the units of one chunk are one."""
        first = self.plan.stages[0]
        return boxes_touched(first.shape, clip(self.stored.chunk, first.shape), first.region)


def subject_of(wishes: Wishes, *, max_mem: int, cores: int) -> Subject:
    """Return what is to be measured for a copy; see :func:`rechunk_exec.measuring.measure`."""
    if wishes.target_store is None:
        source, target = source_ref(wishes.source, wishes.storage_options), None
        temp = None
    else:
        places = job_places(
            Wanted(
                source=wishes.source,
                target_store=wishes.target_store,
                temp_store=wishes.temp_store,
                array_name=None,
                storage_options=wishes.storage_options,
                temp_storage_options=wishes.temp_storage_options,
            )
        )
        source, target = places.source, places.target
        temp = None if places.temp_store is None else storage.child(places.temp_store, "intermediates")
    stored = storage.open_array(source, read_only=True)
    names = storage.dimension_names(stored)
    chunk = resolve_chunks(
        wishes.target_chunks,
        shape=stored.shape,
        itemsize=stored.dtype.itemsize,
        current=stored.chunk,
        names=names,
        target_bytes=None,
    )
    shard = resolve_shards(wishes.target_shards, shape=stored.shape, chunk=chunk, names=names)
    wanted = storage.TargetWishes(
        chunk=chunk,
        shard=shard,
        zarr_format=stored.metadata.zarr_format if wishes.zarr_format is None else wishes.zarr_format,
        options=wishes.target_options or {},
    )
    design = storage.design_target(stored, wanted)
    form = storage.temp_form(stored, {}, temp if temp is not None else target)
    layouts = layouts_of(stored, design, wanted, target=source if target is None else target, temp=form)
    ends = [source, *([] if target is None else [target])]
    remote = any(storage.local_path(end) is None for end in ends)
    preset = (CostModel.object() if remote else CostModel.local()).scaled(cores)
    workers = WorkerShape(workers=1, tasks_per_worker=1, cores_per_worker=cores, elastic=False)
    return Subject(
        source=source,
        stored=stored,
        design=design,
        target=target,
        temp=temp,
        plan=plan_for_workers(layouts, max_mem, preset, workers),
        preset=preset,
    )
