"""One stage of a plan as a value: its regions and exact figures. Layer: the planner.

Counts are never stored: ``tasks``, ``objects``, ``operations`` and ``traffic`` follow from the shapes by the sums of
:mod:`rechunk_exec.grid`, so they cannot disagree with what runs. Only what depends on more than shapes is a field:
``peak_bytes`` (:mod:`rechunk_exec.memory`) and ``predicted_s`` (:mod:`rechunk_exec.cost`).
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

from rechunk_exec.errors import PlanError, SerializationError
from rechunk_exec.grid import Grid, boxes_touched, elements_touched

MOST_THREADS = 4096
"""More than any machine has cores, and any store takes requests of one task at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlan:
    """One copy of the whole array. All shapes are in elements and no longer than ``shape``, but for ``chunk``.

    Raises
    ------
    PlanError
        If a read unit, a write unit or the region is longer than the array; or if a region would not cover whole write
        units: then two tasks could write one unit.

    Examples
    --------
    >>> stage = StagePlan(
    ...     shape=(10, 8), itemsize=4, source="source", target="target", read_unit=(1, 8), write_unit=(10, 2),
    ...     chunk=(10, 2), region=(10, 4), threads=1, tasks_per_worker=1, peak_bytes=480, predicted_s=0.1)
    >>> stage.tasks, stage.operations, stage.traffic, stage.box(1)
    (2, 24, 3.0, ((0, 4), (10, 8)))
    """

    shape: tuple[int, ...]
    itemsize: int
    """Bytes of one element."""
    source: str
    """``"source"`` or ``"temp-1"``, ``"temp-2"``, ..."""
    target: str
    """``"target"`` or ``"temp-1"``, ``"temp-2"``, ..."""
    read_unit: tuple[int, ...]
    """What one read decodes, clipped to the array."""
    write_unit: tuple[int, ...]
    """What one write replaces whole: the shard if there is one, else the chunk; clipped to the array."""
    chunk: tuple[int, ...]
    """What one encode call gets: the chunk as it is stored, whole at the edges."""
    region: tuple[int, ...]
    """What one task copies, clipped to the array."""
    threads: int
    """Units in flight that one task's memory is counted for."""
    tasks_per_worker: int
    """Tasks that one worker process runs at once."""
    peak_bytes: int
    """Most bytes that one worker process holds over its tasks at once."""
    predicted_s: float
    """Seconds by the cost model."""
    uncounted_bytes: int = 0
    """Bytes that codecs of one worker process may work in besides: ``peak_bytes`` does not count all of that where
    tasks hold little, so that toys have small budgets."""
    restart: tuple[int, ...] | None = None
    """Elements after which read units are counted anew, 0 for never: the source's chunks, where these are no whole
    number of units. Units and elements read are upper bounds then (:mod:`rechunk_exec.grid`). None: on no axis."""

    def __post_init__(self) -> None:
        if any(n < 0 for n in self.shape):
            raise PlanError(f"a stage's array has no negative sizes; got shape {self.shape}")
        shapes = (self.read_unit, self.write_unit, self.chunk, self.region)
        if any(len(sizes) != len(self.shape) for sizes in shapes):
            raise PlanError(f"a stage's shapes need one size per axis of {self.shape}; got {shapes}")
        if any(u < min(n, 1) for sizes in shapes for u, n in zip(sizes, self.shape, strict=True)):
            raise PlanError(f"a stage's shapes need at least one element per axis of {self.shape}; got {shapes}")
        clipped = (self.read_unit, self.write_unit, self.region)
        if any(u > max(n, 1) for sizes in clipped for u, n in zip(sizes, self.shape, strict=True)):
            raise PlanError(
                f"a stage's read units, write units and regions are no longer than its array of {self.shape}; got "
                f"{clipped}; clip them to it"
            )
        if self.restart is not None and (
            len(self.restart) != len(self.shape)
            or any(r and r < u for r, u in zip(self.restart, self.read_unit, strict=True))
        ):
            raise PlanError(
                f"a stage's read units restart after at least one of them, or never (0), on each axis; got "
                f"{self.restart} for read units {self.read_unit}"
            )
        for g, b, n in zip(self.region, self.write_unit, self.shape, strict=True):
            if g < n and g % b:
                raise PlanError(
                    f"a region covers whole write units, or two tasks could write one; got region {self.region} "
                    f"for write units {self.write_unit} of shape {self.shape}; make it a multiple on every axis"
                )
        if min(self.itemsize, self.threads, self.tasks_per_worker) < 1 or self.peak_bytes < 0:
            raise PlanError(f"a stage's itemsize, threads and tasks_per_worker are at least 1; got {self!r}")
        if self.uncounted_bytes < 0:
            raise PlanError(f"a stage's uncounted_bytes are at least 0; got {self.uncounted_bytes}")
        if not self.predicted_s >= 0:
            raise PlanError(f"a stage takes at least 0 seconds; got {self.predicted_s}")

    def check_read(self) -> None:
        """Refuse what no plan of ours comes to; :class:`SerializationError`: it may have been edited."""
        refuse_many_threads(self.threads)
        refuse_many_threads(self.tasks_per_worker)

    @property
    def elements(self) -> int:
        """Elements of the array."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Raw bytes of the array."""
        return self.elements * self.itemsize

    @property
    def tasks(self) -> int:
        """Number of tasks."""
        return len(Grid(self.shape, self.region))

    @property
    def objects(self) -> int:
        """Write units written: stored objects, metadata aside."""
        return len(Grid(self.shape, self.write_unit))

    @property
    def write_units(self) -> int:
        """Write units written; each once."""
        return self.objects

    @property
    def read_units(self) -> int:
        """Read units touched, once for each task that touches them."""
        return boxes_touched(self.shape, self.read_unit, self.region, self.restart)

    @property
    def elements_read(self) -> int:
        """Elements decoded: those of all read units touched, once for each task that touches them."""
        restart = self.restart or (0,) * len(self.shape)
        return math.prod(map(elements_touched, self.shape, self.read_unit, self.region, restart))

    @property
    def operations(self) -> int:
        """Read units touched plus write units written."""
        return self.read_units + self.write_units

    @property
    def traffic(self) -> float:
        """Elements decoded plus elements written, in array sizes; 2.0 is best, 0.0 for an empty array."""
        return (self.elements_read + self.elements) / self.elements if self.elements else 0.0

    @property
    def read_amplification(self) -> float:
        """Elements decoded, in array sizes; 1.0 is best, 0.0 for an empty array."""
        return self.elements_read / self.elements if self.elements else 0.0

    @property
    def task_bytes(self) -> int:
        """Most bytes that one task holds."""
        region_bytes = math.prod(self.region) * self.itemsize
        return (self.peak_bytes - self.regions_bytes) // self.tasks_at_once + region_bytes

    @property
    def tasks_at_once(self) -> int:
        """Tasks that one worker runs at once at most: no more than there are."""
        return max(1, min(self.tasks_per_worker, self.tasks))

    def fresh_bytes(self, workers: int, tasks: int | None = None) -> int:
        """Bytes of the regions that so many workers hold at once, of ``tasks`` of the stage's tasks or all of them."""
        at_once = min(self.tasks if tasks is None else tasks, workers * self.tasks_per_worker)
        return at_once * math.prod(self.region) * self.itemsize

    @property
    def regions_bytes(self) -> int:
        """Bytes of all regions that one worker holds at once: no two overlap, so they are no more than the array."""
        return min(self.tasks_at_once * math.prod(self.region) * self.itemsize, self.nbytes)

    def worker_bytes(self, task_bytes: int) -> int:
        """Bytes that one worker holds at most, where one task holds ``task_bytes``."""
        region_bytes = math.prod(self.region) * self.itemsize
        return self.regions_bytes + self.tasks_at_once * (task_bytes - region_bytes)

    def written_by(self, tasks: Collection[int]) -> int:
        """Raw bytes that some tasks write, by their numbers."""
        return Grid(self.shape, self.region).elements_of(tasks) * self.itemsize

    def box(self, index: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """First elements and ends of the region of task ``index``, in C order of the regions.

        Raises
        ------
        IndexError
            If there is no such task.
        """
        box = Grid(self.shape, self.region).box(index)
        return box.start, box.stop


def refuse_many_threads(threads: int) -> None:
    """Raise :class:`SerializationError` for more threads than a plan of ours comes to: memory is taken for each."""
    if threads > MOST_THREADS:
        raise SerializationError(f"a document must ask for {MOST_THREADS} threads at most; got {threads}")
