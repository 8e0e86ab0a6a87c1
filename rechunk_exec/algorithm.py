"""The planner: from chunk layouts and a budget to a plan. Layer: the top of the planner; pure arithmetic.

1. What any plan needs: the least that a task can hold with one stage, or with two, over a small set of regions that
   does not depend on the budget (:mod:`rechunk_exec.least`). A smaller budget is a
   :class:`~rechunk_exec.errors.BudgetError` that names it.
2. One stage: every combination of the regions worth weighing that fits (:mod:`rechunk_exec.search`).
3. Two, three and four stages, through uncompressed intermediates of one object a chunk, or one a task; unless what is
   known already is faster than any of them can be. A third has to save ``CostModel.deeper_s``, and so has a fourth,
   which is only tried where the third did. So has a second, where each of several workers can hold the whole array:
   no memory asks for an intermediate then.
4. Choice (:mod:`rechunk_exec.choosing`): least predicted time; among those within 2 % least traffic, then fewest
   objects, then more tasks than the executor runs at once, then least memory of a task down to 64 MiB, and below that
   fewest tasks. On a disk intermediates of one object a task have to be faster than that.
5. The user's limits (:mod:`rechunk_exec.limits`): only plans that keep them are weighed; where there are none the error
   names the limit, and the memory, that would do.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import replace

from rechunk_exec import limits
from rechunk_exec.choosing import choose, holds_all
from rechunk_exec.cost import SOURCE, TARGET
from rechunk_exec.errors import BudgetError
from rechunk_exec.grid import ceil_div
from rechunk_exec.least import least_stages
from rechunk_exec.plans import Plan
from rechunk_exec.request import MOST_CHUNK_BYTES, PlanRequest, SourceLayout, TargetLayout
from rechunk_exec.search import DIRECT, TWO, Axes, best, keeps_limits, rows_of, unchecked_stage
from rechunk_exec.weighing import NEAR, Rows, Stages, Way

__all__ = ["MOST_CHUNK_BYTES", "PlanRequest", "SourceLayout", "TargetLayout", "plan"]

_MIXED = 3
"""Stages up to which intermediates of one plan may have several forms."""


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
    return _planned(request, math.inf)


def faster_plan(request: PlanRequest, seconds: float) -> Plan | None:
    """The best plan for a request if it is predicted to take less than ``seconds``, or None.

    Of what is slower only as much is looked at as is needed to know that; so it may miss in ``alternatives``.

    Raises
    ------
    BudgetError
        As :func:`plan` does, whatever ``seconds`` are.
    """
    planned = _planned(request, seconds)
    return planned if planned.predicted_s < seconds else None


def _planned(request: PlanRequest, below: float) -> Plan:
    """The best plan; some slower one where none takes less than ``below`` seconds."""
    if 0 in request.shape:
        nothing = unchecked_stage(request, request.memory(), request.write_unit, (SOURCE, TARGET), request.threads)
        return Plan(stages=(nothing,), max_mem=request.max_mem)
    if request.max_objects is None and request.min_object_bytes is None:
        return choose(request, _weighed(request, Axes(request), below))
    return _limited(request, below)


def _limited(request: PlanRequest, below: float) -> Plan:
    """The best plan that keeps the limits on objects; or one that takes ``below`` seconds or more."""
    limits.refuse_target(request)
    if below < math.inf:
        # limits make no plan faster
        unlimited = _unlimited(request)
        faster = choose(unlimited, _weighed(unlimited, Axes(unlimited), below))
        if faster.predicted_s >= below:
            return faster
    planned = _within_limits(request)
    if isinstance(planned, Plan):
        return planned
    needed = limits.needed_bytes(request, lambda other: not isinstance(_first_within(other, Axes(other)), dict))
    if needed <= request.max_mem:
        # the search found none with more memory than is enough
        within = _within_limits(replace(request, max_mem=needed))
        if isinstance(within, Plan):
            return replace(within, max_mem=request.max_mem)
    raise limits.refusal(request, needed, _enough(request, planned))


def _enough(request: PlanRequest, possible: Mapping[str, int]) -> Mapping[str, int]:
    """Those of the values that are enough alone: room for an intermediate is not, if its objects pass another limit."""
    room = possible.get("max_temp_bytes")
    if room is None:
        return possible
    roomy = replace(request, max_temp_bytes=room)
    if not isinstance(_first_within(roomy, Axes(roomy)), dict):
        return possible
    return {name: value for name, value in possible.items() if name != "max_temp_bytes"}


def _within_limits(request: PlanRequest) -> Plan | dict[str, int]:
    """The best plan that keeps the limits on objects; or the values of the limits that would do."""
    options = Axes(request)
    first = _first_within(request, options)
    if not isinstance(first, tuple):
        return first
    weighed = _weighed(request, options, known=sum(stage.predicted_s for stage in first))
    way = Way(tuple(stage.write_unit != stage.chunk for stage in first[:-1]))
    weighed.setdefault(way, first)
    return choose(request, weighed)


def _first_within(request: PlanRequest, options: Axes) -> Plan | Stages | dict[str, int]:
    """The plan that is best without the limits, if it keeps them; else one that does; else the values that would do."""
    unlimited = _unlimited(request)
    try:
        free = _weighed(unlimited, options)
    except BudgetError as refused:
        return refused.limits
    if keeps_limits(request, (chosen := choose(unlimited, free)).stages):
        return chosen
    kept = [stages for stages in free.values() if keeps_limits(request, stages)]
    if kept:
        return min(kept, key=lambda stages: sum(stage.predicted_s for stage in stages))
    extremes = limits.extremes(request, _ways(request), tuple(free.values()), options)
    return extremes.keeping(request) or extremes.possible(request)


def _unlimited(request: PlanRequest) -> PlanRequest:
    return replace(request, max_objects=None, min_object_bytes=None)


def _weighed(
    request: PlanRequest, options: Axes, below: float = math.inf, known: float = math.inf
) -> dict[Way, Stages]:
    """The best plan of each way; empty where none keeps the limits.

    Parameters
    ----------
    request : PlanRequest
    options : Axes
    below : float
        Seconds; plans that take longer, or as long, are not looked for.
    known : float
        Seconds of a plan that there is; much slower ones are not looked for.
    """
    least = least_stages(request)
    if not request.shape:
        return {DIRECT: least}
    direct = rows_of(request, DIRECT, options)
    one = best(request, direct)
    if one is not None and (request.most_stages == 1 or _beats_any_two(request, one)):
        return {DIRECT: one}
    found = [] if direct is None else [direct]
    if keeps_limits(request, least):
        known = min(known, sum(stage.predicted_s for stage in least))
    needless = holds_all(request)
    for way in _ways(request):
        alike = [rows for rows in found if rows.way.stages == way.stages]
        if way.stages > (2 if needless else 3) and not any(rows.way.stages == way.stages - 1 for rows in found):
            # where one stage less did not gain by it, this one does not either
            break
        fastest = min((known, *(rows.fastest for rows in found if rows.way.stages < way.stages)))
        if way.stages > 2 or needless:
            fastest = (fastest - request.cost.deeper_s) / NEAR
        elif direct is not None:
            # one stage that reads and writes less is preferred where it is nearly as fast
            fastest = min(fastest, float(direct.seconds[direct.traffic < 4].min(initial=math.inf)) / NEAR)
        fastest = min((fastest, below / NEAR, *(rows.fastest for rows in alike)))
        if request.cost.in_flight_scales and any(way.sharded):
            # on a disk it has to be faster than what is nearly as fast as the fastest: see choosing
            fastest /= NEAR**2
        rows = rows_of(request, way, options, fastest, alike)
        if rows is not None:
            found.append(rows)
    return _best_of(request, found, least)


def _best_of(request: PlanRequest, found: list[Rows], least: Stages) -> dict[Way, Stages]:
    fastest = min((rows.fastest for rows in found), default=0.0)
    weighed = {rows.way: stages for rows in found if (stages := best(request, rows, fastest)) is not None}
    # the plan that holds least fits even where the search, which thins its rows, found none of its kind
    if keeps_limits(request, least):
        weighed.setdefault(DIRECT if len(least) == 1 else TWO, least)
    return weighed


def _ways(request: PlanRequest) -> list[Way]:
    """The ways to copy in two or more stages, fewer stages first; with many intermediates all of these in one form."""
    forms = (False, True) if request.sharded_temp else (False,)
    counts = range(2, request.most_stages + 1)
    ways = [Way(sharded) for stages in counts for sharded in itertools.product(forms, repeat=stages - 1)]
    ways = [way for way in ways if way.stages <= _MIXED or len(set(way.sharded)) == 1]
    # of as many stages those in one form first: they bound the search for the mixed ones
    return sorted(ways, key=lambda way: (way.stages, len(set(way.sharded))))


def _beats_any_two(request: PlanRequest, direct: Stages) -> bool:
    """Whether one stage is as fast as two that read everything once and need no operations between them."""
    stage, cost = direct[0], request.cost
    reads = math.prod(map(ceil_div, request.shape, request.fetch_unit))
    twice = (
        stage.nbytes / cost.decode_bps
        + stage.nbytes / cost.raw_write_bps
        + stage.nbytes / cost.raw_read_bps
        + stage.nbytes / cost.encode_bps
        + (reads + stage.objects) * cost.operation_s / cost.in_flight
        + cost.start_s * 2
    )
    return stage.predicted_s <= twice and stage.traffic <= 4
