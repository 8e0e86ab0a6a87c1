"""Weighing combinations: from a request to the best one-stage and the best two-stage plan. Layer: the planner.

Rows of sizes come from :mod:`rechunk_exec.candidates`; here each gets its memory, threads, time and figures, all at
once in float64 (exact below 2**53). The rows that win are made into stages again in integers, which must fit as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rechunk_exec.candidates import AxisOptions, Bounds, StagedAxis, combine, direct_axis, staged_axis
from rechunk_exec.cost import SOURCE, TARGET, CostModel, StageWork
from rechunk_exec.grid import ceil_div, clip
from rechunk_exec.memory import BoolArray, FloatArray, IntArray, MemoryRows, StageMemory, product
from rechunk_exec.plans import StagePlan
from rechunk_exec.request import MOST_CHUNK_BYTES, PlanRequest

NEAR = 1.02
"""Plans whose times are this near are as good as equal."""
TEMP = "temp-1"
_TRIED = 1000
"""Rows tried in order of preference before the search is given up; nearly always the first is taken."""
_EXACT = 2**52
"""Budgets are clipped to what float64 compares exactly."""

Stages = tuple[StagePlan, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Combinations that fit, weighed; one entry a combination."""

    regions: Sequence[Sequence[IntArray]]
    """For one stage the region; for two the first region, the intermediate chunk and the second region; by axis."""
    seconds: FloatArray
    traffic: FloatArray
    objects: FloatArray
    tasks: FloatArray
    busy: BoolArray
    """Whether each stage has more tasks than the executor runs at once."""
    held: FloatArray
    """Bytes that one task holds."""

    def row(self, number: int) -> list[tuple[int, ...]]:
        """The shapes of one combination."""
        return [tuple(int(sizes[number]) for sizes in shape) for shape in self.regions]

    def in_order(self, fastest: float) -> Iterator[int]:
        """Numbers of rows, best first: those near the fastest by preference, then the others by time."""
        least = float(self.seconds.min())
        ceiling = (fastest if fastest > 0 and least <= fastest * NEAR else least) * NEAR
        near = np.flatnonzero(self.seconds <= ceiling)
        keys = (self.seconds, self.held, self.tasks, ~self.busy, self.objects, self.traffic)
        yield from near[np.lexsort([key[near] for key in keys])].tolist()
        others = np.argsort(self.seconds, kind="stable")
        yield from others[len(near) :].tolist()


@dataclass(frozen=True, slots=True, kw_only=True)
class _StageRows:
    """One stage of many plans."""

    source: str
    target: str
    memory: MemoryRows
    elements_read: FloatArray
    operations: FloatArray
    tasks: FloatArray

    def weigh(self, request: PlanRequest) -> tuple[FloatArray, FloatArray]:
        """Seconds, infinite where the budget is too small, and the bytes that a task holds."""
        cost = request.cost
        budget = min(request.task_budget, _EXACT)
        slowdown, waiting = np.ones(self.tasks.shape), np.ones(self.tasks.shape)
        held = np.full(self.tasks.shape, np.inf)
        for threads in halvings(request.threads):
            asked = self.memory.task_bytes(threads)
            fits = np.isinf(held) & (asked <= budget)
            held[fits] = asked[fits]
            slowdown[fits], waiting[fits] = request.slowdowns(threads)
            if fits.all():
                break
        nbytes = math.prod(request.shape) * request.itemsize
        moving = self.elements_read * request.itemsize / cost.read_bps(self.source) + nbytes / cost.write_bps(
            self.target
        )
        seconds = moving * slowdown + self.operations * cost.operation_s / cost.in_flight * waiting
        seconds[np.isinf(held)] = np.inf
        if cost.tasks_at_once > 1:
            seconds = seconds * np.ceil(self.tasks / cost.tasks_at_once) * cost.tasks_at_once / self.tasks
        return seconds, held


def halvings(threads: int) -> Iterator[int]:
    """Numbers of units in flight to try, most first.

    >>> list(halvings(6))
    [6, 3, 1]
    """
    while threads:
        yield threads
        threads //= 2


def direct_rows(request: PlanRequest) -> Rows | None:
    """All one-stage plans worth weighing that fit, or None."""
    shape, cost = request.shape, request.cost
    limits = [_most_elements(request, request.memory())]
    axes = [direct_axis(*sizes) for sizes in zip(shape, request.read_unit, request.write_unit, strict=True)]
    operation_s = cost.operation_s / cost.in_flight
    bounds = Bounds(limits=limits, weights=[0.0, request.itemsize / cost.decode_bps, operation_s, 0.0])
    numbers = combine(axes, bounds).numbers
    region = _sizes(axes, numbers, 0)
    _, elements, units, tasks = (_products(axes, numbers, factor) for factor in range(4))
    objects = _objects(request)
    rows = _StageRows(
        source=SOURCE,
        target=TARGET,
        memory=_memory_rows(request.memory(), region, None, None),
        elements_read=elements,
        operations=units + objects,
        tasks=tasks,
    )
    seconds, held = rows.weigh(request)
    return _fitting(
        Rows(
            regions=[region],
            seconds=seconds,
            traffic=(elements + math.prod(shape)) / math.prod(shape),
            objects=np.full_like(tasks, objects),
            tasks=tasks,
            busy=_busy(cost, tasks),
            held=held,
        )
    )


def staged_rows(request: PlanRequest, fastest: float = math.inf) -> Rows | None:
    """All two-stage plans worth weighing that fit, or None.

    Parameters
    ----------
    request : PlanRequest
    fastest : float
        Seconds of a plan that is already known; plans that are slower, and not nearly as fast, are left out.
    """
    shape, cost = request.shape, request.cost
    ones = (1,) * len(shape)
    memories = request.memory(target=ones), request.memory(source=ones)
    limits = [_most_elements(request, memory) for memory in memories]
    axes = []
    for axis, (n, a, b) in enumerate(zip(shape, request.read_unit, request.write_unit, strict=True)):
        first = limits[0] / _others(request.read_unit, axis)
        second = limits[1] / _others(request.write_unit, axis)
        axes.append(staged_axis(StagedAxis(n=n, read_unit=a, write_unit=b, most_first=first, most_second=second)))
    operation_s = cost.operation_s / cost.in_flight
    decode_s, reread_s = request.itemsize / cost.decode_bps, request.itemsize / cost.raw_read_bps
    nbytes = math.prod(shape) * request.itemsize
    always = nbytes / cost.raw_write_bps + nbytes / cost.encode_bps + _objects(request) * operation_s
    bounds = Bounds(
        limits=limits,
        weights=[0.0, 0.0, decode_s, operation_s, operation_s, reread_s, operation_s, 0.0, 0.0],
        seconds=fastest * NEAR - always,
    )
    found = combine(axes, bounds)
    rows = weigh_staged(request, axes, found.numbers)
    if rows is not None and not found.complete:
        # What was found bounds a second search, which has room for more of the combinations that matter.
        found = combine(axes, replace(bounds, seconds=min(fastest, float(rows.seconds.min())) * NEAR - always))
        rows = weigh_staged(request, axes, found.numbers) or rows
    return rows


def weigh_staged(request: PlanRequest, axes: Sequence[AxisOptions], numbers: Sequence[IntArray]) -> Rows | None:
    """The two-stage plans of these options that fit, or None."""
    shape, cost = request.shape, request.cost
    first, chunk, second = (_sizes(axes, numbers, which) for which in range(3))
    products = [_products(axes, numbers, factor) for factor in range(2, 9)]
    elements, units, chunks, elements_again, units_again, tasks, tasks_again = products
    objects = _objects(request)
    ones = (1,) * len(shape)
    stages = [
        _StageRows(
            source=SOURCE,
            target=TEMP,
            memory=_memory_rows(request.memory(target=ones), first, None, chunk),
            elements_read=elements,
            operations=units + chunks,
            tasks=tasks,
        ),
        _StageRows(
            source=TEMP,
            target=TARGET,
            memory=_memory_rows(request.memory(source=ones), second, chunk, None),
            elements_read=elements_again,
            operations=units_again + objects,
            tasks=tasks_again,
        ),
    ]
    (seconds, held), (seconds_again, held_again) = (stage.weigh(request) for stage in stages)
    return _fitting(
        Rows(
            regions=[first, chunk, second],
            seconds=seconds + seconds_again,
            traffic=(elements + elements_again + 2.0 * math.prod(shape)) / math.prod(shape),
            objects=chunks + objects,
            tasks=tasks + tasks_again,
            busy=_busy(cost, np.minimum(tasks, tasks_again)),
            held=np.maximum(held, held_again),
        )
    )


def best(request: PlanRequest, rows: Rows | None, fastest: float = 0.0) -> Stages | None:
    """The row preferred among those near the fastest, as stages.

    Parameters
    ----------
    request : PlanRequest
    rows : Rows or None
    fastest : float
        The least time of any plan, in seconds, also of those in other rows.
    """
    if rows is None:
        return None
    for tried, number in enumerate(rows.in_order(fastest)):
        shapes = rows.row(number)
        stages = direct_stages(request, shapes[0]) if len(shapes) == 1 else staged_stages(request, *shapes)
        if stages is not None or tried > _TRIED:
            return stages
    return None


def direct_stages(request: PlanRequest, region: tuple[int, ...]) -> Stages | None:
    """The one-stage plan with this region, or None where the budget is too small for it."""
    stage = stage_plan(request, request.memory(), region, SOURCE, TARGET)
    return None if stage is None else (stage,)


def staged_stages(
    request: PlanRequest, first: tuple[int, ...], chunk: tuple[int, ...], second: tuple[int, ...]
) -> Stages | None:
    """The two-stage plan with these regions and intermediate chunk, or None where the budget is too small for it.

    A chunk of 2**31 - 1 bytes or more is cut into parts that still divide both regions.
    """
    chunk = _below_limit(request, first, chunk, second)
    writing = stage_plan(request, request.memory(target=chunk), first, SOURCE, TEMP)
    reading = stage_plan(request, request.memory(source=chunk), second, TEMP, TARGET)
    return None if writing is None or reading is None else (writing, reading)


def stage_plan(
    request: PlanRequest, memory: StageMemory, region: tuple[int, ...], source: str, target: str
) -> StagePlan | None:
    """One stage with as many threads as the budget leaves it, or None."""
    for threads in halvings(request.threads):
        if memory.task_bytes(region, threads) <= request.task_budget:
            return unchecked_stage(request, memory, region, (source, target), threads)
    return None


def unchecked_stage(
    request: PlanRequest, memory: StageMemory, region: tuple[int, ...], ends: tuple[str, str], threads: int
) -> StagePlan:
    """One stage, whatever it holds."""
    source, target = ends
    shape = request.shape
    stage = StagePlan(
        shape=shape,
        itemsize=request.itemsize,
        source=source,
        target=target,
        read_unit=clip(memory.read_unit, shape),
        write_unit=clip(memory.write_unit, shape),
        chunk=memory.chunk,
        region=clip(region, shape),
        threads=threads,
        tasks_per_worker=request.tasks_per_worker,
        peak_bytes=memory.task_bytes(region, threads) * request.tasks_per_worker,
        predicted_s=0.0,
    )
    slowdown, waiting = request.slowdowns(threads)
    work = StageWork(
        decoded_bytes=stage.elements_read * stage.itemsize,
        written_bytes=stage.nbytes,
        operations=stage.operations,
        tasks=stage.tasks,
        source=source,
        target=target,
        slowdown=slowdown,
        waiting=waiting,
    )
    return replace(stage, predicted_s=request.cost.stage_seconds(work))


def _below_limit(
    request: PlanRequest, first: tuple[int, ...], chunk: tuple[int, ...], second: tuple[int, ...]
) -> tuple[int, ...]:
    """The chunk cut until it stays below the limit, along the axes that take the fewest cuts."""
    parts = list(chunk)
    while math.prod(parts) * request.itemsize >= MOST_CHUNK_BYTES:
        cuts = []
        for axis, (g1, g2, n) in enumerate(zip(first, second, request.shape, strict=True)):
            if parts[axis] > 1:
                anywhere = g1 >= n and g2 >= n
                cuts.append((2 if anywhere else _smallest_factor(parts[axis]), axis))
        factor, axis = min(cuts)
        parts[axis] = ceil_div(parts[axis], factor)
    return tuple(parts)


def _smallest_factor(number: int) -> int:
    return next((k for k in range(2, math.isqrt(number) + 1) if number % k == 0), number)


def _most_elements(request: PlanRequest, memory: StageMemory) -> float:
    """An upper bound on the elements of a region: what its scratch leaves at the least."""
    reading = math.prod(memory.read_unit) * memory.reading.stored
    writing = math.prod(memory.chunk) * memory.writing.stored
    return min(request.task_budget, _EXACT) / request.itemsize - max(reading, writing)


def _objects(request: PlanRequest) -> int:
    """Write units of the target."""
    return math.prod(ceil_div(n, b) for n, b in zip(request.shape, request.write_unit, strict=True))


def _others(unit: tuple[int, ...], axis: int) -> int:
    return math.prod(unit[:axis] + unit[axis + 1 :])


def _sizes(axes: Sequence[AxisOptions], numbers: Sequence[IntArray], which: int) -> list[IntArray]:
    return [options.sizes[which][chosen] for options, chosen in zip(axes, numbers, strict=True)]


def _products(axes: Sequence[AxisOptions], numbers: Sequence[IntArray], factor: int) -> FloatArray:
    return product([options.factors[factor][chosen] for options, chosen in zip(axes, numbers, strict=True)])


def _memory_rows(
    memory: StageMemory, region: Sequence[IntArray], read: Sequence[IntArray] | None, written: Sequence[IntArray] | None
) -> MemoryRows:
    """Many stages of which only these shapes differ."""
    return MemoryRows(
        shape=memory.shape,
        itemsize=memory.itemsize,
        region=region,
        read_unit=read or [np.array(u, dtype=np.int64) for u in memory.read_unit],
        write_unit=written or [np.array(u, dtype=np.int64) for u in memory.write_unit],
        chunk=written or [np.array(u, dtype=np.int64) for u in memory.chunk],
        reading=memory.reading,
        writing=memory.writing,
    )


def _busy(cost: CostModel, tasks: FloatArray) -> BoolArray:
    return np.asarray((tasks > cost.tasks_at_once) | (cost.tasks_at_once == 1))


def _fitting(rows: Rows) -> Rows | None:
    """The rows that fit the budget."""
    fits = np.flatnonzero(np.isfinite(rows.seconds))
    if not len(fits):
        return None
    return Rows(
        regions=[[sizes[fits] for sizes in shape] for shape in rows.regions],
        seconds=rows.seconds[fits],
        traffic=rows.traffic[fits],
        objects=rows.objects[fits],
        tasks=rows.tasks[fits],
        busy=rows.busy[fits],
        held=rows.held[fits],
    )
