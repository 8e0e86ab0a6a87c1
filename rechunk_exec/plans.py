"""Plans as values: the stages, their regions and exact figures, and why this plan. Layer: the planner.

Counts are never stored: ``tasks``, ``objects``, ``operations`` and ``traffic`` follow from the shapes by the sums of
:mod:`rechunk_exec.grid`, so they cannot disagree with what runs. Only what depends on more than shapes is a field:
``peak_bytes`` (:mod:`rechunk_exec.memory`) and ``predicted_s`` (:mod:`rechunk_exec.cost`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from rechunk_exec import wire
from rechunk_exec.errors import PlanError, SerializationError
from rechunk_exec.grid import Grid, boxes_touched, elements_touched
from rechunk_exec.memory import PROCESS_BYTES, RESULT_BYTES
from rechunk_exec.sizes import bytes_text, count_text, format_bytes

MOST_THREADS = 4096
"""More than any machine has cores, and any store takes requests of one task at once."""

_INTERMEDIATE = re.compile(r"temp-[1-9][0-9]{0,3}")


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlan:
    """One copy of the whole array. All shapes are in elements and no longer than ``shape``, but for ``chunk``.

    Raises
    ------
    PlanError
        If a region would not cover whole write units: then two tasks could write one unit.

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


def temp_bytes_of(stages: Sequence[StagePlan]) -> int:
    """Raw bytes that intermediates hold at most at once: all of them, since they stay until the job has ended."""
    return (len(stages) - 1) * stages[0].nbytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """A plan that was weighed, in figures."""

    name: str
    stages: int
    chosen: bool
    why: str
    """Why it was chosen, or was not."""
    peak_bytes: int
    """Bytes that it needs, also where that is more than the budget."""
    traffic: float
    operations: int
    objects: int
    temp_bytes: int
    tasks: int
    predicted_s: float

    @classmethod
    def of(cls, name: str, stages: Sequence[StagePlan], *, chosen: bool, why: str) -> Alternative:
        """The figures of ``stages``."""
        return cls(
            name=name,
            stages=len(stages),
            chosen=chosen,
            why=why,
            peak_bytes=max(stage.peak_bytes for stage in stages),
            traffic=sum(stage.traffic for stage in stages),
            operations=sum(stage.operations for stage in stages),
            objects=sum(stage.objects for stage in stages),
            temp_bytes=temp_bytes_of(stages),
            tasks=sum(stage.tasks for stage in stages),
            predicted_s=sum(stage.predicted_s for stage in stages),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The stages of a copy, in order, with the alternatives that were weighed. Figures are sums over the stages.

    Raises
    ------
    PlanError
        If there is no stage, the stages do not follow on each other, or one holds more than ``max_mem``.
    """

    stages: tuple[StagePlan, ...]
    max_mem: int
    """Budget of one worker process in bytes."""
    alternatives: tuple[Alternative, ...] = ()

    def __post_init__(self) -> None:
        if not self.stages:
            raise PlanError("a plan has at least one stage; got none")
        for before, after in zip(self.stages, self.stages[1:], strict=False):
            if before.target != after.source or before.shape != after.shape or before.itemsize != after.itemsize:
                raise PlanError(f"each stage reads what the one before it wrote; got {before!r}, then {after!r}")
        if self.stages[0].source != "source" or self.stages[-1].target != "target":
            raise PlanError("a plan goes from 'source' to 'target'; got other names at its ends")
        names = [stage.target for stage in self.stages[:-1]]
        if len(set(names)) < len(names) or not all(_INTERMEDIATE.fullmatch(name) for name in names):
            raise PlanError(f"intermediates are called temp-1, temp-2 and so on, each once; got {names}")
        if self.peak_bytes > self.max_mem:
            raise PlanError(f"a plan stays within max_mem; got a peak of {self.peak_bytes} for {self.max_mem} bytes")

    @property
    def traffic(self) -> float:
        """Bytes decoded plus bytes encoded over all stages, in array sizes; 2.0 is best."""
        return sum(stage.traffic for stage in self.stages)

    @property
    def operations(self) -> int:
        """Reads of read units plus writes of write units, over all stages."""
        return sum(stage.operations for stage in self.stages)

    @property
    def tasks(self) -> int:
        """Tasks of all stages."""
        return sum(stage.tasks for stage in self.stages)

    @property
    def objects(self) -> int:
        """Objects written over all stages, intermediates too."""
        return sum(stage.objects for stage in self.stages)

    @property
    def peak_bytes(self) -> int:
        """Most bytes that one worker process holds in any stage; never above ``max_mem``."""
        return max(stage.peak_bytes for stage in self.stages)

    @property
    def process_bytes(self) -> int:
        """Most bytes that a worker process may hold besides ``peak_bytes``, whatever its budget.

        A constant, what codecs work in as far as that is not counted, and the results of all tasks, which the process
        that runs the job holds.
        """
        uncounted = max(stage.uncounted_bytes for stage in self.stages)
        return PROCESS_BYTES + uncounted + RESULT_BYTES * self.tasks

    @property
    def temp_bytes(self) -> int:
        """Most raw bytes that intermediates hold at once; 0 for one stage."""
        return temp_bytes_of(self.stages)

    @property
    def predicted_s(self) -> float:
        """Seconds by the cost model, over all stages."""
        return sum(stage.predicted_s for stage in self.stages)

    def explain(self) -> str:
        """The plan in words and tables: what is done, each stage's figures, and the alternatives weighed."""
        beside = (
            f"Besides, a process may hold up to {format_bytes(self.process_bytes)} that do not count (process_bytes)."
        )
        parts = [str(self), _stage_table(self.stages), beside]
        if self.alternatives:
            parts += ["Weighed:", _alternative_table(self.alternatives)]
            parts += [f"  {one.name}: {one.why}" for one in self.alternatives]
        return "\n".join(parts)

    def __str__(self) -> str:
        first = self.stages[0]
        nbytes = bytes_text(first.nbytes)
        way = " -> ".join([first.source, *(stage.target for stage in self.stages)])
        temp = "no temporary store is used"
        if self.temp_bytes:
            temp = f"a temporary store holds up to {bytes_text(self.temp_bytes)}, then is removed"
        stages = "one stage" if len(self.stages) == 1 else f"{len(self.stages)} stages"
        return (
            f"Copy {first.shape} of {first.itemsize}-byte elements, {nbytes}, in {stages}: {way}; {temp}.\n"
            f"{count_text(self.tasks, 'task')}, {count_text(self.operations, 'operation')}, "
            f"{count_text(self.objects, 'object')} written, "
            f"traffic {self.traffic:.4g} array sizes, "
            f"peak memory {bytes_text(self.peak_bytes)} of {bytes_text(self.max_mem)} a worker, "
            f"about {_seconds(self.predicted_s)}."
        )

    def to_json(self) -> str:
        """The plan as one line of JSON."""
        return wire.to_json(self)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """The plan that :meth:`to_json` wrote.

        Raises
        ------
        SerializationError
            If ``text`` is not such a document.
        """
        return wire.from_json(cls, text)


def _stage_table(stages: Sequence[StagePlan]) -> str:
    return "\n".join(_stage_lines(number, stage) for number, stage in enumerate(stages))


def _stage_lines(number: int, stage: StagePlan) -> str:
    chunks = f" in chunks of {stage.chunk}" if stage.chunk != stage.write_unit else ""
    read_bytes = bytes_text(stage.elements_read * stage.itemsize)
    each = f"{stage.tasks_per_worker} x {format_bytes(stage.task_bytes)}"
    return (
        f"Stage {number}, {stage.source} -> {stage.target}: {count_text(stage.tasks, 'task')}, "
        f"each copies {stage.region}\n"
        f"  reads   {count_text(stage.read_units, 'unit')} of {stage.read_unit}, {read_bytes}, "
        f"{stage.read_amplification:.4g} times the array\n"
        f"  writes  {count_text(stage.objects, 'object')} of {stage.write_unit}{chunks}, {bytes_text(stage.nbytes)}\n"
        f"  memory  {bytes_text(stage.peak_bytes)} a worker: {each}, "
        f"{count_text(stage.threads, 'unit')} in flight\n"
        f"  time    about {_seconds(stage.predicted_s)}, {count_text(stage.operations, 'operation')}"
    )


def _alternative_table(alternatives: Sequence[Alternative]) -> str:
    rows: list[tuple[str, ...]] = [("", "plan", "memory", "traffic", "operations", "objects", "tasks", "temp", "time")]
    rows += [_alternative_cells(one) for one in alternatives]
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def _alternative_cells(one: Alternative) -> tuple[str, ...]:
    return (
        "*" if one.chosen else "",
        one.name,
        format_bytes(one.peak_bytes),
        f"{one.traffic:.4g}",
        str(one.operations),
        str(one.objects),
        str(one.tasks),
        format_bytes(one.temp_bytes),
        _seconds(one.predicted_s),
    )


def _seconds(seconds: float) -> str:
    """Seconds for people.

    >>> _seconds(0.25), _seconds(80), _seconds(9000)
    ('0.25 s', '1.3 min', '2.5 h')
    """
    if seconds < 60:
        return f"{seconds:.2g} s"
    return f"{seconds / 60:.2g} min" if seconds < 3600 else f"{seconds / 3600:.3g} h"
