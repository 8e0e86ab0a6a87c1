"""From a request to the best plan of each way. Layer: the planner; above weighing, below the algorithm.

Rows of sizes come from :mod:`rechunk_exec.candidates`, are combined under bounds (:mod:`rechunk_exec.combining`) and
weighed (:mod:`rechunk_exec.weighing`). The rows that win are made into stages again in integers, which must fit too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from rechunk_exec.candidates import StagedAxis, direct_axis, is_short, staged_axis
from rechunk_exec.combining import AxisOptions, Bounds, combine, thinned
from rechunk_exec.cost import SOURCE, StageWork
from rechunk_exec.deeper import deeper_axis
from rechunk_exec.grid import ceil_div, clip
from rechunk_exec.memory import StageMemory
from rechunk_exec.request import MOST_CHUNK_BYTES, PlanRequest
from rechunk_exec.stageplan import StagePlan
from rechunk_exec.waves import idle_factor
from rechunk_exec.weighing import EXACT, NEAR, Aim, Rows, Stages, Way, halvings, weigh_found

DIRECT = Way()
TWO = Way((False,))
_MANY = 5_000
"""Combinations from which on it is worth to look at some of them first."""
_HOPE = 2.0
"""How many times slower a plan of three and more stages may be around which faster ones are sought."""
_NETS = 3
"""How often regions of three and more stages are sought around those of the fastest plan, at most."""
_SOONER = 0.99
"""How much lower a bound has to be for a second search to be worth it."""
_TRIED = 1000
"""Rows tried in order of preference before the search is given up; nearly always the first is taken."""
_MOST_FACTOR = 1 << 16
"""Up to which factors of sizes are sought."""


class Axes:
    """What is worth choosing along the axes, made when it is first asked for: for all ways with so many stages."""

    def __init__(self, request: PlanRequest) -> None:
        self._request = request
        self._made: dict[int, list[AxisOptions]] = {}
        self._around: dict[tuple[tuple[int, ...], ...], list[AxisOptions]] = {}

    def of(self, way: Way) -> list[AxisOptions]:
        """The options of each axis."""
        if way.stages not in self._made:
            self._made[way.stages] = _axes(self._request, _plain(way))
        return self._made[way.stages]

    def around(self, way: Way, regions: Sequence[tuple[int, ...]]) -> list[AxisOptions]:
        """More options of three and more stages, with about these regions."""
        if (key := tuple(regions)) not in self._around:
            self._around[key] = _axes(self._request, _plain(way), regions)
        return self._around[key]


def rows_of(
    request: PlanRequest, way: Way, options: Axes, fastest: float = math.inf, alike: Sequence[Rows] = ()
) -> Rows | None:
    """The plans of one way worth weighing that fit, or None.

    Parameters
    ----------
    request : PlanRequest
    way : Way
    options : Axes
    fastest : float
        Seconds of a plan that is already known; plans that are slower, and not nearly as fast, are left out.
    alike : sequence of Rows
        Of other ways with as many stages.
    """
    if least_seconds(request, way) > fastest * NEAR:
        return None
    limits = _limits(request, way)
    axes = options.of(way)
    aim = Aim("seconds", _always(request, way))
    bounds = Bounds(limits=limits, weights=_second_weights(request, way), also=_object_bounds(request, way))
    if way == DIRECT:
        return weigh_found(request, way, axes, combine(axes, bounds), aim)
    parts: list[Rows] = []

    def search(few: Sequence[AxisOptions], fastest: float, most: int | None = None) -> tuple[float, bool]:
        """Weigh what may be near the fastest; the time of the fastest then, and whether all was weighed."""
        found = combine(few, replace(bounds, total=fastest * NEAR - aim.always)).first(most)
        rows = weigh_found(request, way, few, found, aim)
        if rows is None:
            return fastest, found.complete
        parts.append(rows)
        return min(fastest, rows.fastest), found.complete

    worth = fastest * NEAR
    if math.prod(map(len, axes)) > _MANY:
        # What is found among a few options bounds the search among all; of more stages it is where to seek around.
        sooner, _ = search(thinned(axes, _MANY, way.stages), fastest * (1 if way.stages == 2 or alike else _HOPE))
        fastest = min(fastest, sooner)
    found, complete = search(axes, fastest)
    if way.stages == 2 and not complete and found < fastest * _SOONER:
        # What was found bounds a second search, which has room for more of the combinations that matter.
        search(axes, found)
    nets = 0 if way.stages == 2 else _NETS if parts else min(1, len(alike))
    start = parts or alike
    for _ in range(nets):
        sooner, _ = search(options.around(way, _fastest_regions(start)), found, _MANY)
        if sooner >= found * _SOONER and min(rows.fastest for rows in start) <= worth:
            break
        found, start = sooner, parts or alike
    rows = Rows.joined(parts)
    return rows if rows is not None and rows.fastest <= worth else None


def _fastest_regions(parts: Sequence[Rows]) -> list[tuple[int, ...]]:
    """The regions of the row with the least seconds."""
    rows = min(parts, key=lambda rows: rows.fastest)
    return rows.row(int(rows.seconds.argmin()))[0::2]


def rows_with(request: PlanRequest, way: Way, options: Axes, wanted: Literal["objects", "object_bytes"]) -> Rows | None:
    """The plans of one way that fit and write about the fewest objects, or the largest ones, or None."""
    axes = options.of(way)
    bounds = Bounds(limits=_limits(request, way), weights=_object_weights(way), also=_object_bounds(request, way))
    return weigh_found(request, way, axes, combine(axes, bounds), Aim(wanted, request.objects))


def least_seconds(request: PlanRequest, way: Way) -> float:
    """Seconds that no plan of this way is below: everything is read once, in regions as large as the whole budget."""
    cost = request.cost
    again = len(way.sharded)
    reads = math.prod(map(ceil_div, request.shape, request.fetch_unit))
    regions = ceil_div(request.nbytes, request.task_budget)
    seconds = _always(request, way) + request.nbytes / cost.decode_bps + request.nbytes / cost.raw_read_bps * again
    return seconds + (reads + 2 * again * regions) * cost.operation_s / cost.in_flight


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
        stages = stages_of(request, rows.way, rows.row(number))
        if tried > _TRIED or (stages is not None and keeps_limits(request, stages)):
            return stages
    return None


def keeps_limits(request: PlanRequest, stages: Stages) -> bool:
    """Whether a plan writes no more and no smaller objects than the user wants."""
    most = math.inf if request.max_objects is None else request.max_objects
    return sum(stage.objects for stage in stages) <= most and smallest_object(stages) >= (request.min_object_bytes or 0)


def smallest_object(stages: Stages) -> float:
    """Raw bytes of an object of the intermediate with the smallest ones; infinite where there is no intermediate."""
    return min((math.prod(stage.write_unit) * stage.itemsize for stage in stages[:-1]), default=math.inf)


def stages_of(request: PlanRequest, way: Way, shapes: Sequence[tuple[int, ...]]) -> Stages | None:
    """The plan with these shapes, or None where the budget is too small for it.

    Parameters
    ----------
    request : PlanRequest
    way : Way
    shapes : sequence of tuple of int
        The first region, the chunk of the first intermediate, the second region, and so on. A chunk of 2**31 - 1
        bytes or more is cut into parts that still divide the regions on both sides.
    """
    stages: list[StagePlan] = []
    read: tuple[int, ...] | None = None
    for number in range(way.stages):
        region, chunk, shard = shapes[2 * number], None, None
        if number < len(way.sharded):
            chunk = _below_limit(request, *shapes[2 * number : 2 * number + 3])
            shard = region if way.sharded[number] else None
        stage = _stage_plan(request, request.memory(source=read, target=chunk, shard=shard), region, way.ends(number))
        if stage is None:
            return None
        stages.append(stage)
        read = chunk
    return tuple(stages)


def _stage_plan(
    request: PlanRequest, memory: StageMemory, region: tuple[int, ...], ends: tuple[str, str]
) -> StagePlan | None:
    """One stage with as many threads as the budget leaves it, or None."""
    for threads in halvings(request.threads):
        if memory.task_bytes(region, threads) <= request.task_budget:
            return unchecked_stage(request, memory, region, ends, threads)
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
        peak_bytes=0,
        predicted_s=0.0,
        restart=memory.restart,
    )
    slowdown, waiting = request.slowdowns(threads)
    reads = request.fetches(stage.region) if source == SOURCE else stage.read_units
    work = StageWork(
        decoded_bytes=stage.elements_read * stage.itemsize,
        written_bytes=stage.nbytes,
        operations=reads + stage.write_units,
        source=source,
        target=target,
        slowdown=slowdown,
        waiting=waiting,
        idle=float(idle_factor(shape, [np.array(n) for n in stage.region], request.cost.tasks_at_once)),
    )
    peak_bytes = stage.worker_bytes(memory.task_bytes(region, threads))
    return replace(
        stage,
        peak_bytes=peak_bytes,
        predicted_s=request.cost.stage_seconds(work),
        uncounted_bytes=stage.tasks_at_once * memory.uncounted_bytes(region, threads),
    )


def _plain(way: Way) -> Way:
    return Way((False,) * len(way.sharded))


def _axes(request: PlanRequest, way: Way, regions: Sequence[tuple[int, ...]] | None = None) -> list[AxisOptions]:
    """The options of each axis; of three and more stages those with about these regions, if there are some."""
    limits = _limits(request, way)
    sizes = list(zip(request.shape, request.read_unit, request.write_unit, request.fetch_unit, strict=True))
    least = tuple(1 if is_short(n, b, way.stages) else a for n, a, b, _ in sizes)
    axes = []
    for axis, (n, a, b, fetch) in enumerate(sizes):
        if way == DIRECT:
            axes.append(direct_axis(n, a, b, fetch, uneven=request.cost.tasks_at_once > 1))
            continue
        # where every size is tried, a first region may be less than a read unit
        first = limits[0] / _others(least, axis)
        last = limits[-1] / _others(request.write_unit, axis)
        given = StagedAxis(n=n, read_unit=a, write_unit=b, fetch_unit=fetch, most=(first, *limits[1:-1], last))
        around = None if regions is None else [region[axis] for region in regions]
        axes.append(staged_axis(given) if way.stages == 2 else deeper_axis(given, around))
    return axes


def _limits(request: PlanRequest, way: Way) -> list[float]:
    """For each stage an upper bound on the elements of a region: what its scratch leaves at the least."""
    ones = (1,) * len(request.shape)
    limits = []
    budget = min(request.task_budget, EXACT) / request.itemsize
    for number in range(way.stages):
        last = number == len(way.sharded)
        memory = request.memory(source=ones if number else None, target=None if last else ones)
        reading = math.prod(memory.read_unit) * memory.reading.stored
        writing = math.prod(memory.chunk) * memory.writing.stored
        whole = request.shard_scratch.assembled if not last and way.sharded[number] else 0
        limits.append(min(budget - max(reading, writing), budget / (1 + whole)))
    return limits


def _always(request: PlanRequest, way: Way) -> float:
    """Seconds that any plan of this way takes besides what its regions and chunks decide."""
    cost = request.cost
    return (
        request.nbytes / cost.raw_write_bps * len(way.sharded)
        + request.nbytes / cost.encode_bps
        + request.objects * cost.operation_s / cost.in_flight
        + cost.start_s * way.stages
    )


def _second_weights(request: PlanRequest, way: Way) -> list[float]:
    """Seconds that each factor of :func:`rechunk_exec.candidates.with_sums` adds."""
    cost = request.cost
    operation_s = cost.operation_s / cost.in_flight
    weights = [0.0] * way.stages
    for number in range(way.stages):
        read_s = request.itemsize / cost.read_bps(way.ends(number)[0])
        whole = number < len(way.sharded) and way.sharded[number]
        weights += [read_s, operation_s, operation_s if whole else 0.0]
    return weights + [0.0 if whole else operation_s for whole in way.sharded]


def _object_weights(way: Way) -> list[float]:
    """Objects of intermediates that each factor adds."""
    weights = [0.0] * way.stages
    for whole in (*way.sharded, False):
        weights += [0.0, 0.0, float(whole)]
    return weights + [float(not whole) for whole in way.sharded]


def _object_bounds(request: PlanRequest, way: Way) -> list[tuple[list[float], float]]:
    most = request.max_objects
    return [] if most is None else [(_object_weights(way), float(most - request.objects))]


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
    return next((k for k in range(2, min(math.isqrt(number), _MOST_FACTOR) + 1) if number % k == 0), number)


def _others(unit: tuple[int, ...], axis: int) -> int:
    return math.prod(unit[:axis] + unit[axis + 1 :])
