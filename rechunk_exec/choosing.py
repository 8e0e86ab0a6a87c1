"""The choice among the best plans of each way, and why. Layer: the planner; between search and algorithm."""

from __future__ import annotations

import math

from rechunk_exec.cost import SOURCE, TARGET
from rechunk_exec.grid import clip
from rechunk_exec.plans import Alternative, Plan
from rechunk_exec.request import PlanRequest
from rechunk_exec.search import DIRECT, unchecked_stage
from rechunk_exec.sizes import bytes_text
from rechunk_exec.stageplan import StagePlan
from rechunk_exec.weighing import ENOUGH, NEAR, Stages, Way

_COUNTS = ("one stage", "two stages", "three stages", "four stages")


def choose(request: PlanRequest, weighed: dict[Way, Stages]) -> Plan:
    """The plan that is preferred: least predicted time; see :mod:`rechunk_exec.algorithm` for near equals."""
    seconds = {way: _seconds(stages) for way, stages in weighed.items()}
    near = [way for way in weighed if seconds[way] <= min(seconds.values()) * NEAR]
    if request.cost.in_flight_scales:
        # On a disk plain pieces are simpler: no index, and what is lost is found by its name.
        near = [way for way in near if not any(way.sharded)] or near
    winner = min(near, key=lambda way: _preference(request, weighed[way]))
    return Plan(stages=weighed[winner], max_mem=request.max_mem, alternatives=_alternatives(request, weighed, winner))


def holds_all(request: PlanRequest) -> bool:
    """Whether each of several workers can hold the whole array, so that no memory asks for an intermediate."""
    if request.cost.tasks_at_once == 1:
        return False
    whole = unchecked_stage(request, request.memory(), request.shape, (SOURCE, TARGET), 1)
    return whole.task_bytes <= request.task_budget


def name_of(way: Way) -> str:
    """A way in words.

    >>> name_of(Way()), name_of(Way((True, False)))
    ('one stage', 'three stages, temp-1 sharded')
    """
    sharded = [f"temp-{number}" for number, whole in enumerate(way.sharded, 1) if whole]
    return _COUNTS[way.stages - 1] + (f", {' and '.join(sharded)} sharded" if sharded else "")


def _seconds(stages: Stages) -> float:
    return sum(stage.predicted_s for stage in stages)


def _preference(request: PlanRequest, stages: Stages) -> tuple[float, ...]:
    """What decides among plans of the same time; least is best."""
    slots = request.cost.tasks_at_once
    held = max(stage.peak_bytes for stage in stages)
    return (
        sum(stage.traffic for stage in stages),
        sum(stage.objects for stage in stages),
        slots > 1 and min(stage.tasks for stage in stages) <= slots,
        max(held, ENOUGH * request.tasks_per_worker),
        sum(stage.tasks for stage in stages),
        held,
    )


def _alternatives(request: PlanRequest, weighed: dict[Way, Stages], winner: Way) -> tuple[Alternative, ...]:
    """The plans weighed, and the one stage that would read everything once, whatever it needs."""
    won = _seconds(weighed[winner])
    alternatives = []
    for way, stages in weighed.items():
        seconds = _seconds(stages)
        if way == winner:
            why = _why(request, weighed, way)
        elif seconds <= won * NEAR:
            why = "not chosen: as fast within 2 %, but it moves more bytes, writes more objects or is less simple"
        else:
            why = f"not chosen: predicted to take {seconds / won:.3g} times as long"
        alternatives.append(Alternative.of(name_of(way), stages, chosen=way == winner, why=why))
    stage = weighed.get(DIRECT, (None,))[0]
    if stage is None or stage.elements_read > stage.elements:
        once = _reading_once(request)
        if once.task_bytes > request.task_budget:
            needed = bytes_text(once.task_bytes * request.tasks_per_worker)
            got = bytes_text(request.max_mem)
            why = f"not possible: needs max_mem of at least {needed}, got {got}"
            alternatives.append(Alternative.of("one stage, all read once", (once,), chosen=False, why=why))
    return tuple(one for one in alternatives if one.is_countable)


def _why(request: PlanRequest, weighed: dict[Way, Stages], winner: Way) -> str:
    if winner == DIRECT and len(weighed) == 1:
        stage = weighed[winner][0]
        if stage.elements_read == stage.elements:
            return "chosen: one pass reads and writes everything once; two stages cannot be faster"
        if not request.staged:
            return "chosen: there is no place for an intermediate, so it is one stage"
        limits = (request.max_objects, request.min_object_bytes, request.max_temp_bytes)
        if limits == (None, None, None) and request.most_stages > 1 and request.cost.deeper_s and holds_all(request):
            return (
                f"chosen: a task can hold the whole array, and two stages do not save {request.cost.deeper_s:g} s, "
                "which an intermediate must be worth then"
            )
        bounds = "the budget" if limits == (None, None, None) else "the budget and the limits"
        return f"chosen: no two stages within {bounds} are faster"
    if len(weighed) == 1:
        return "chosen: nothing else within max_mem is clearly faster"
    if _seconds(weighed[winner]) == min(map(_seconds, weighed.values())):
        return "chosen: least predicted time"
    return "chosen: as fast as the fastest within 2 %, and it moves fewer bytes, writes fewer objects or is simpler"


def _reading_once(request: PlanRequest) -> StagePlan:
    """The smallest one stage whose regions lie on the source's grid; it may hold more than the budget."""
    restart = request.restart or (0,) * len(request.shape)
    units = (chunk or unit for chunk, unit in zip(restart, request.read_unit, strict=True))
    region = clip(tuple(map(math.lcm, units, request.write_unit)), request.shape)
    return unchecked_stage(request, request.memory(), region, (SOURCE, TARGET), 1)
