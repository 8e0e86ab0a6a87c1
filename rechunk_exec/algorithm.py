"""The planner: from chunk layouts and a budget to a plan. Layer: the top of the planner; pure arithmetic.

1. What any plan needs: the least that a task can hold with one stage, or with two, over a small set of regions that
   does not depend on the budget. A smaller budget is a :class:`~rechunk_exec.errors.BudgetError` that names it.
2. One stage: every combination of the regions worth weighing that fits (:mod:`rechunk_exec.search`).
3. Two stages, through an uncompressed intermediate of one object a chunk, unless one stage is already faster than any
   two can be.
4. Choice: least predicted time; among those within 2 % least traffic, then fewest objects, then more tasks than the
   executor runs at once, then fewest tasks (regions as large as the budget allows), then least memory.
"""

from __future__ import annotations

import itertools
import math

from rechunk_exec.candidates import StagedAxis, least_staged_axis
from rechunk_exec.cost import SOURCE, TARGET
from rechunk_exec.errors import BudgetError
from rechunk_exec.grid import ceil_div, clip
from rechunk_exec.plans import Alternative, Plan, StagePlan
from rechunk_exec.request import MOST_CHUNK_BYTES, PlanRequest, SourceLayout, TargetLayout
from rechunk_exec.search import (
    NEAR,
    Stages,
    best,
    direct_rows,
    direct_stages,
    staged_rows,
    staged_stages,
    unchecked_stage,
)

__all__ = ["MOST_CHUNK_BYTES", "PlanRequest", "SourceLayout", "TargetLayout", "plan"]

_ONE, _TWO = "one stage", "two stages"
_MOST_LEAST = 20_000
"""Combinations that the least memory of two stages is sought among."""


def plan(request: PlanRequest) -> Plan:
    """The best plan for a request.

    Raises
    ------
    BudgetError
        If no plan holds within ``max_mem``; ``needed_bytes`` is the least that would do.

    Examples
    --------
    >>> from rechunk_exec.cost import CostModel
    >>> request = PlanRequest(
    ...     shape=(100, 200, 200), itemsize=4, source=SourceLayout(chunk=(1, 200, 200)),
    ...     target=TargetLayout(chunk=(100, 4, 4)), max_mem=160_000_000, cost=CostModel.local())
    >>> [(stage.source, stage.target, stage.region) for stage in plan(request).stages]
    [('source', 'target', (100, 200, 200))]
    """
    if 0 in request.shape:
        nothing = unchecked_stage(request, request.memory(), request.write_unit, (SOURCE, TARGET), request.threads)
        return Plan(stages=(nothing,), max_mem=request.max_mem)
    least = _least(request)
    if not request.shape:
        return _choose(request, {_ONE: least})
    direct = direct_rows(request)
    one = best(request, direct)
    if one is not None and (not request.staged or _beats_any_two(request, one)):
        return _choose(request, {_ONE: one})
    staged = None
    if request.staged:
        staged = staged_rows(request, math.inf if direct is None else float(direct.seconds.min()))
    fastest = min((float(rows.seconds.min()) for rows in (direct, staged) if rows is not None), default=0.0)
    found = {_ONE: best(request, direct, fastest), _TWO: best(request, staged, fastest)}
    weighed = {name: stages for name, stages in found.items() if stages is not None}
    # the plan that holds least fits even where the search, which thins its rows, found none of its kind
    weighed.setdefault(_ONE if len(least) == 1 else _TWO, least)
    return _choose(request, weighed)


def _choose(request: PlanRequest, weighed: dict[str, Stages]) -> Plan:
    seconds = {name: sum(stage.predicted_s for stage in stages) for name, stages in weighed.items()}
    near = [name for name in weighed if seconds[name] <= min(seconds.values()) * NEAR]
    winner = min(near, key=lambda name: _preference(request, weighed[name]))
    return Plan(stages=weighed[winner], max_mem=request.max_mem, alternatives=_alternatives(request, weighed, winner))


def _preference(request: PlanRequest, stages: Stages) -> tuple[float, int, bool, int, int]:
    """What decides among plans of the same time; least is best."""
    slots = request.cost.tasks_at_once
    return (
        sum(stage.traffic for stage in stages),
        sum(stage.objects for stage in stages),
        slots > 1 and min(stage.tasks for stage in stages) <= slots,
        sum(stage.tasks for stage in stages),
        max(stage.peak_bytes for stage in stages),
    )


def _beats_any_two(request: PlanRequest, direct: Stages) -> bool:
    """Whether one stage is as fast as two that read everything once and need no operations between them."""
    stage, cost = direct[0], request.cost
    reads = math.prod(ceil_div(n, a) for n, a in zip(request.shape, request.read_unit, strict=True))
    twice = (
        stage.nbytes / cost.decode_bps
        + stage.nbytes / cost.raw_write_bps
        + stage.nbytes / cost.raw_read_bps
        + stage.nbytes / cost.encode_bps
        + (reads + stage.objects) * cost.operation_s / cost.in_flight
    )
    return stage.predicted_s <= twice and stage.traffic <= 4


def _least(request: PlanRequest) -> Stages:
    """The plan that holds least; it decides which budgets are refused, so it must not depend on the budget.

    Raises
    ------
    BudgetError
        If that is more than the budget.
    """
    memory = request.memory()
    region = min(_small_regions(request), key=lambda region: memory.task_bytes(region, 1))
    needed = memory.task_bytes(region, 1)
    if needed <= request.task_budget:
        stages = direct_stages(request, region)
    else:
        shapes = _least_staged(request) if request.staged else None
        needed = min(needed, needed if shapes is None else _held_by_two(request, *shapes))
        stages = staged_stages(request, *shapes) if shapes is not None and needed <= request.task_budget else None
    if stages is None:
        raise _refusal(request, needed * request.tasks_per_worker)
    return stages


def _small_regions(request: PlanRequest) -> list[tuple[int, ...]]:
    """Regions among which one holds least: single write units, or just large enough to be decoded into."""
    sizes = []
    for n, a, b in zip(request.shape, request.read_unit, request.write_unit, strict=True):
        sizes.append(sorted({min(n, size) for size in (b, -(-a // b) * b, math.lcm(a, b), n)}))
    if math.prod(map(len, sizes)) > _MOST_LEAST:
        sizes = [sorted({few[0], few[-1]}) for few in sizes][:14] + [few[:1] for few in sizes[14:]]
    return list(itertools.product(*sizes))


def _least_staged(request: PlanRequest) -> list[tuple[int, ...]] | None:
    """First region, chunk and second region of the two-stage plan that holds least."""
    axes = []
    for n, a, b in zip(request.shape, request.read_unit, request.write_unit, strict=True):
        axes.append(least_staged_axis(StagedAxis(n=n, read_unit=a, write_unit=b, most_first=n, most_second=n)))
    few = max(1, int(_MOST_LEAST ** (1 / max(1, len(axes)))))
    choices = [options.sizes.T.tolist()[:few] for options in axes]
    least = None
    for triples in itertools.product(*choices):
        first, chunk, second = (tuple(triple[which] for triple in triples) for which in range(3))
        if math.prod(chunk) * request.itemsize >= MOST_CHUNK_BYTES:
            continue
        held = _held_by_two(request, first, chunk, second)
        if least is None or held < least[0]:
            least = held, [first, chunk, second]
    return None if least is None else least[1]


def _held_by_two(request: PlanRequest, first: tuple[int, ...], chunk: tuple[int, ...], second: tuple[int, ...]) -> int:
    writing, reading = request.memory(target=chunk), request.memory(source=chunk)
    return max(writing.task_bytes(first, 1), reading.task_bytes(second, 1))


def _refusal(request: PlanRequest, needed: int) -> BudgetError:
    def size(shape: tuple[int, ...]) -> str:
        return f"{shape} of {math.prod(shape) * request.itemsize} bytes"

    source, target = request.source, request.target
    units = f"source chunk {size(source.chunk)}"
    if source.unit != source.chunk:
        units += f", read in units {size(source.unit)}"
    units += f", target chunk {size(target.chunk)}"
    if target.shard is not None:
        units += f" in shard {size(target.shard)}"
    tasks = f" for {request.tasks_per_worker} tasks a worker at once" if request.tasks_per_worker > 1 else ""
    fewer = " or run fewer tasks a worker" if request.tasks_per_worker > 1 else ""
    return BudgetError(
        f"a task must hold one target unit and the scratch to decode a source unit and encode a target chunk; "
        f"got max_mem={request.max_mem} bytes{tasks}, with {units}; "
        f"give max_mem of at least {needed} bytes, or smaller chunks{fewer}",
        needed_bytes=needed,
        max_mem=request.max_mem,
    )


def _alternatives(request: PlanRequest, weighed: dict[str, Stages], winner: str) -> tuple[Alternative, ...]:
    """The plans weighed, and the one stage that would read everything once, whatever it needs."""
    won = sum(stage.predicted_s for stage in weighed[winner])
    alternatives = []
    for name, stages in weighed.items():
        seconds = sum(stage.predicted_s for stage in stages)
        if name == winner:
            why = _why(weighed, name)
        elif seconds <= won * NEAR:
            why = "not chosen: as fast within 2 %, but it moves more bytes or writes more objects"
        else:
            why = f"not chosen: predicted to take {seconds / won:.3g} times as long"
        alternatives.append(Alternative.of(name, stages, chosen=name == winner, why=why))
    stage = weighed.get(_ONE, (None,))[0]
    if stage is None or stage.elements_read > stage.elements:
        once = _reading_once(request)
        if once.peak_bytes > request.max_mem:
            why = f"not possible: needs max_mem of at least {once.peak_bytes} bytes, got {request.max_mem}"
            alternatives.append(Alternative.of("one stage, all read once", (once,), chosen=False, why=why))
    return tuple(alternatives)


def _why(weighed: dict[str, Stages], winner: str) -> str:
    if winner == _ONE and _TWO not in weighed:
        stage = weighed[winner][0]
        if stage.elements_read == stage.elements:
            return "chosen: one pass reads and writes everything once; two stages cannot be faster"
        return "chosen: no two stages within the budget are faster"
    if len(weighed) == 1:
        return "chosen: the only one that fits in max_mem"
    seconds = {name: sum(stage.predicted_s for stage in stages) for name, stages in weighed.items()}
    if seconds[winner] == min(seconds.values()):
        return "chosen: least predicted time"
    return "chosen: as fast as the fastest within 2 %, and it moves fewer bytes or writes fewer objects"


def _reading_once(request: PlanRequest) -> StagePlan:
    """The smallest one stage whose regions lie on the source's grid; it may hold more than the budget."""
    region = clip(tuple(map(math.lcm, request.read_unit, request.write_unit)), request.shape)
    return unchecked_stage(request, request.memory(), region, (SOURCE, TARGET), 1)
