"""Weighing: memory, threads, time and figures of many plans at once. Layer: the planner; below the search.

Plans of one *way*, so many stages with intermediates stored in such a form, are rows of sizes from
:mod:`rechunk_exec.candidates`. They are weighed in float64 (exact below 2**53), those first that could be fastest; the
rest is not looked at once none of it can be near the fastest that fits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from rechunk_exec.combining import AxisOptions, Combinations
from rechunk_exec.cost import SOURCE, TARGET
from rechunk_exec.memory import BoolArray, FloatArray, IntArray, MemoryRows, product
from rechunk_exec.request import MOST_CHUNK_BYTES, PlanRequest
from rechunk_exec.stageplan import StagePlan
from rechunk_exec.waves import idle_factor

NEAR = 1.02
"""Plans whose times are this near are as good as equal."""
ENOUGH = 64 * 2**20
"""Bytes of a task from which a larger one is no longer worth its memory: such a task takes some 50 ms, and memory that
was never touched costs up to 2 seconds a GB until the kernel has cleared it."""
EXACT = 2**52
"""Budgets are clipped to what float64 compares exactly."""
_BATCH = 4096
"""Rows weighed at once."""
_IN_VAIN = 3
"""Batches weighed one after another, none of which has a better row than those before, after which no more are where
none could be better by more than 2 %."""

_COLUMNS = ("seconds", "traffic", "objects", "object_bytes", "tasks", "busy", "held")

Stages = tuple[StagePlan, ...]


@dataclass(frozen=True, slots=True)
class Way:
    """How many stages, and in which form their intermediates are stored.

    >>> Way((False, True)).stages, [Way((False, True)).ends(number) for number in range(3)]
    (3, [('source', 'temp-1'), ('temp-1', 'temp-2'), ('temp-2', 'target')])
    """

    sharded: tuple[bool, ...] = ()
    """For each intermediate, whether it has one object for each task that writes it, or one for each chunk."""

    @property
    def stages(self) -> int:
        """Number of stages."""
        return len(self.sharded) + 1

    def ends(self, number: int) -> tuple[str, str]:
        """Names of what stage ``number`` reads and writes."""
        source = SOURCE if number == 0 else f"temp-{number}"
        return source, TARGET if number == len(self.sharded) else f"temp-{number + 1}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Combinations that fit, weighed; one entry a combination."""

    way: Way
    sizes: Sequence[Sequence[IntArray]]
    """The first region, the chunk of the first intermediate, the second region, and so on; by axis."""
    seconds: FloatArray
    traffic: FloatArray
    objects: FloatArray
    object_bytes: FloatArray
    """Raw bytes of a whole object of the intermediate with the smallest ones; infinite where there is none."""
    tasks: FloatArray
    busy: BoolArray
    """Whether each stage has more tasks than the executor runs at once."""
    held: FloatArray
    """Bytes that one task holds."""

    @property
    def fastest(self) -> float:
        """The least seconds."""
        return float(self.seconds.min())

    def row(self, number: int) -> list[tuple[int, ...]]:
        """The shapes of one combination."""
        return [tuple(int(sizes[number]) for sizes in shape) for shape in self.sizes]

    def take(self, kept: IntArray) -> Rows:
        """The rows with these numbers."""
        columns: dict[str, Any] = {name: getattr(self, name)[kept] for name in _COLUMNS}
        return Rows(way=self.way, sizes=[[sizes[kept] for sizes in shape] for shape in self.sizes], **columns)

    @classmethod
    def joined(cls, parts: Sequence[Rows]) -> Rows | None:
        """All rows of several parts, of one way; None where there is no part."""
        if len(parts) < 2:
            return parts[0] if parts else None
        columns: dict[str, Any] = {name: np.concatenate([getattr(one, name) for one in parts]) for name in _COLUMNS}
        places = [
            [np.concatenate(sizes) for sizes in zip(*shapes, strict=True)]
            for shapes in zip(*(one.sizes for one in parts), strict=True)
        ]
        return cls(way=parts[0].way, sizes=places, **columns)

    def in_order(self, fastest: float) -> Iterator[int]:
        """Numbers of rows, best first: those near the fastest by preference, then the others by time."""
        least = self.fastest
        ceiling = (fastest if fastest > 0 and least <= fastest * NEAR else least) * NEAR
        near = np.flatnonzero(self.seconds <= ceiling)
        more_held = np.maximum(self.held, ENOUGH)
        keys = [self.seconds, self.held, self.tasks, more_held, ~self.busy, self.objects, self.traffic]
        if any(self.way.sharded):
            # with an object a task, one object less would be paid with many pieces, which are slow to read
            keys.insert(-1, self.seconds)
        yield from near[np.lexsort([key[near] for key in keys])].tolist()
        others = np.argsort(self.seconds, kind="stable")
        yield from others[len(near) :].tolist()


@dataclass(frozen=True, slots=True, kw_only=True)
class _StageRows:
    """One stage of many plans."""

    ends: tuple[str, str]
    memory: MemoryRows
    elements_read: FloatArray
    operations: FloatArray
    tasks: FloatArray

    def weigh(self, request: PlanRequest) -> tuple[FloatArray, FloatArray]:
        """Seconds, infinite where the budget is too small, and the bytes that a task holds."""
        cost = request.cost
        slowdown, waiting, held = self._held(request)
        reading = self.elements_read * request.itemsize / cost.read_bps(self.ends[0])
        moving = reading + request.nbytes / cost.write_bps(self.ends[1])
        seconds = moving * slowdown + self.operations * cost.operation_s / cost.in_flight * waiting
        seconds[np.isinf(held)] = np.inf
        idle = idle_factor(request.shape, self.memory.region, cost.tasks_at_once)
        return seconds * idle + cost.start_s, held

    def _held(self, request: PlanRequest) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Slowdown, waiting and bytes held with as many threads as the budget leaves; infinite bytes where it is none.

        More threads hold no less, so what one thread is too many for is not asked again.
        """
        budget = min(request.task_budget, EXACT)
        slowdown, waiting = np.ones(self.tasks.shape), np.ones(self.tasks.shape)
        held = np.full(self.tasks.shape, np.inf)
        left = np.flatnonzero(self.memory.task_bytes(1) <= budget)
        for threads in halvings(request.threads):
            asked = self.memory.task_bytes(threads, left)
            fits = asked <= budget
            held[left[fits]] = asked[fits]
            slowdown[left[fits]], waiting[left[fits]] = request.slowdowns(threads)
            left = left[~fits]
            if not len(left):
                break
        return slowdown, waiting, held


def halvings(threads: int) -> Iterator[int]:
    """Numbers of units in flight to try, most first.

    >>> list(halvings(6))
    [6, 3, 1]
    """
    while threads:
        yield threads
        threads //= 2


def weigh(request: PlanRequest, way: Way, axes: Sequence[AxisOptions], numbers: Sequence[IntArray]) -> Rows | None:
    """The plans of these options that fit, or None.

    Parameters
    ----------
    request : PlanRequest
    way : Way
    axes : sequence of AxisOptions
        With the factors of :func:`rechunk_exec.candidates.with_sums`.
    numbers : sequence of int arrays
        Numbers of the options: one array an axis, one entry a plan.
    """
    stages = way.stages
    sizes = _sizes(way, axes, numbers)
    factors = [
        product([options.factors[factor][chosen] for options, chosen in zip(axes, numbers, strict=True)])
        for factor in range(stages, 5 * stages - 1)
    ]
    chunks, cuts = factors[3 * stages :], [_cuts(request, chunk) for chunk in sizes[1::2]]
    tasks = factors[2 : 3 * stages : 3]
    written = [tasks[i] if sharded else chunks[i] * cuts[i] for i, sharded in enumerate(way.sharded)]
    written.append(np.full_like(tasks[0], request.objects))
    weighed = [
        _StageRows(
            ends=way.ends(number),
            memory=_memory_rows(request, way, sizes, number),
            elements_read=factors[3 * number],
            operations=factors[3 * number + 1] * (cuts[number - 1] if number else 1.0) + written[number],
            tasks=tasks[number],
        ).weigh(request)
        for number in range(stages)
    ]
    cost, elements = request.cost, math.prod(request.shape)
    rows = Rows(
        way=way,
        sizes=sizes,
        seconds=_sum([seconds for seconds, _ in weighed]),
        traffic=(_sum(factors[0 : 3 * stages : 3]) + float(stages) * elements) / elements,
        objects=_sum(written),
        object_bytes=_object_bytes(request, way, sizes),
        tasks=_sum(tasks),
        busy=np.asarray((np.minimum.reduce(tasks) > cost.tasks_at_once) | (cost.tasks_at_once == 1)),
        held=np.maximum.reduce([held for _, held in weighed]),
    )
    fits = np.flatnonzero(np.isfinite(rows.seconds) & _complies(request, rows))
    return rows.take(fits) if len(fits) else None


@dataclass(frozen=True, slots=True)
class Aim:
    """What is sought: the least seconds, the fewest objects, or the largest objects of intermediates."""

    column: Literal["seconds", "objects", "object_bytes"]
    always: float = 0.0
    """Seconds or objects that all plans of a way have besides what combinations add up to."""

    def bounds(self, request: PlanRequest, way: Way, axes: Sequence[AxisOptions], found: Combinations) -> FloatArray:
        """For each combination what it cannot be below; sizes of objects are negative, so that least is best."""
        if self.column == "object_bytes":
            return -_object_bytes(request, way, _sizes(way, axes, found.numbers))
        return np.asarray(found.weights + self.always)

    def near(self, rows: Rows) -> float:
        """Up to how much is as good as the best of these."""
        if self.column == "object_bytes":
            return -float(rows.object_bytes.max())
        return float(getattr(rows, self.column).min()) * (NEAR if self.column == "seconds" else 1.0)


def weigh_found(
    request: PlanRequest, way: Way, axes: Sequence[AxisOptions], found: Combinations, aim: Aim
) -> Rows | None:
    """The plans of these combinations that fit and may be near the best, or None."""
    bounds = aim.bounds(request, way, axes, found)
    order = np.argsort(bounds, kind="stable")
    parts: list[Rows] = []
    near = math.inf
    in_vain = 0
    for start in range(0, len(order), _BATCH):
        batch = order[start : start + _BATCH]
        if bounds[batch[0]] > near or (in_vain > _IN_VAIN and bounds[batch[0]] * NEAR**2 > near):
            break
        rows = weigh(request, way, axes, [numbers[batch] for numbers in found.numbers])
        in_vain += bool(parts)
        if rows is not None:
            parts.append(rows)
            in_vain = 0 if aim.near(rows) < near else in_vain
            near = min(near, aim.near(rows))
    return Rows.joined(parts)


def _sizes(way: Way, axes: Sequence[AxisOptions], numbers: Sequence[IntArray]) -> list[list[IntArray]]:
    """Regions and chunks in turn; by axis."""
    return [
        [options.sizes[which][chosen] for options, chosen in zip(axes, numbers, strict=True)]
        for which in range(2 * way.stages - 1)
    ]


def _memory_rows(request: PlanRequest, way: Way, sizes: Sequence[Sequence[IntArray]], number: int) -> MemoryRows:
    """Memory of stage ``number`` of many plans."""
    ones = (1,) * len(request.shape)
    region, last = sizes[2 * number], number == len(way.sharded)
    read = sizes[2 * number - 1] if number else None
    chunk = None if last else sizes[2 * number + 1]
    sharded = not last and way.sharded[number]
    memory = request.memory(
        source=ones if number else None, target=None if last else ones, shard=ones if sharded else None
    )
    unit = chunk
    if chunk is not None and sharded:
        unit = [-(-g // c) * c for g, c in zip(region, chunk, strict=True)]
    return MemoryRows(
        shape=memory.shape,
        itemsize=memory.itemsize,
        region=region,
        read_unit=read or [np.array(u, dtype=np.int64) for u in memory.read_unit],
        write_unit=unit or [np.array(u, dtype=np.int64) for u in memory.write_unit],
        chunk=chunk or [np.array(u, dtype=np.int64) for u in memory.chunk],
        reading=memory.reading,
        writing=memory.writing,
        restart=memory.restart,
    )


def _cuts(request: PlanRequest, chunk: Sequence[IntArray]) -> FloatArray:
    """Into about how many parts a chunk is cut to stay below the limit of one encode call."""
    over = product(chunk) * request.itemsize / MOST_CHUNK_BYTES
    return np.asarray(2.0 ** np.maximum(np.floor(np.log2(over)) + 1, 0))


def _object_bytes(request: PlanRequest, way: Way, sizes: Sequence[Sequence[IntArray]]) -> FloatArray:
    least = np.full(sizes[0][0].shape, np.inf)
    for number, sharded in enumerate(way.sharded):
        unit = sizes[2 * number] if sharded else sizes[2 * number + 1]
        bytes_each = product(unit) * request.itemsize
        least = np.minimum(least, bytes_each if sharded else bytes_each / _cuts(request, unit))
    return least


def _complies(request: PlanRequest, rows: Rows) -> BoolArray:
    """Whether the limits on objects are kept."""
    kept = rows.objects <= (math.inf if request.max_objects is None else request.max_objects)
    return np.asarray(kept & (rows.object_bytes >= (request.min_object_bytes or 0)))


def _sum(columns: Sequence[FloatArray]) -> FloatArray:
    """The sum, row by row, from left to right: as single plans are added up."""
    total = np.asarray(0.0)
    for column in columns:
        total = total + column
    return np.asarray(total)
