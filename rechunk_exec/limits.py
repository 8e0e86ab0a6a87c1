"""The limits a user sets on objects, and what is said where no plan keeps them. Layer: the planner; below algorithm.

``max_objects`` bounds the objects that all stages write, ``min_object_bytes`` the raw bytes of each, those at the far
edges aside. The target's own objects are what was asked for: a limit that they break is refused at once. What is left
is the intermediates'. One stage has none, so with enough memory every limit that the target keeps can be kept. So a
plan that keeps them is sought in this order:

1. the plan that would be made without them;
2. the plans with the fewest, or the largest, objects that are found without looking at the limit: if these do not keep
   it, it is refused;
3. the search for the fastest, among those that keep them.

The first two do not depend on the limit's value, so the value that an error names is one with which the call succeeds,
and one less does not. The memory that it names is enough, and one byte less is not; it does not depend on ``max_mem``.
``max_temp_bytes`` decides how many stages there may be (:mod:`rechunk_exec.least`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from rechunk_exec.errors import BudgetError, PlanError
from rechunk_exec.least import direct_needs, least_needs
from rechunk_exec.request import PlanRequest
from rechunk_exec.search import Axes, keeps_limits, rows_with, smallest_object, stages_of
from rechunk_exec.weighing import Stages, Way

_TRIED = 20
"""Rows made into stages, of those with about the fewest or the largest objects."""

LIMITS = ("max_objects", "min_object_bytes", "max_temp_bytes")
"""Names of the limits, as users give them."""
_MOST_OR_LEAST = {"max_objects": "least", "min_object_bytes": "most", "max_temp_bytes": "least"}


@dataclass(frozen=True, slots=True)
class Extremes:
    """The plans of all ways with about the fewest objects, and with about the largest, that keep the other limit."""

    fewest: Stages | None
    largest: Stages | None

    def keeping(self, request: PlanRequest) -> Stages | None:
        """One that keeps all limits, or None."""
        return next(
            (one for one in (self.fewest, self.largest) if one is not None and keeps_limits(request, one)), None
        )

    def possible(self, request: PlanRequest) -> dict[str, int]:
        """For each limit that is set, the nearest value that would do."""
        values: dict[str, int] = {}
        if request.max_objects is not None and self.fewest is not None:
            values["max_objects"] = _objects(self.fewest)
        if request.min_object_bytes is not None and self.largest is not None:
            target = math.prod(request.write_unit) * request.itemsize
            values["min_object_bytes"] = int(min(smallest_object(self.largest), target))
        return values


def refuse_target(request: PlanRequest) -> None:
    """Refuse limits that the target itself breaks, whatever the plan.

    Raises
    ------
    PlanError
        If the target has more objects, or smaller ones, than the limits allow.
    """
    if request.max_objects is not None and request.objects > request.max_objects and 0 not in request.shape:
        raise PlanError(
            f"max_objects counts the target's objects too; got max_objects={request.max_objects} for a target of "
            f"{request.objects} objects of {request.write_unit}; give at least {request.objects}, or larger "
            f"{_unit_name(request)}s"
        )
    size = math.prod(request.write_unit) * request.itemsize
    if request.min_object_bytes is not None and size < request.min_object_bytes:
        raise PlanError(
            f"min_object_bytes bounds the target's objects too; got min_object_bytes={request.min_object_bytes} for "
            f"target {_unit_name(request)}s {request.write_unit} of {size} bytes; give at most {size}, or larger ones"
        )


def extremes(request: PlanRequest, ways: Iterable[Way], free: Sequence[Stages], options: Axes) -> Extremes:
    """What can be had of each limit within ``max_mem`` while the other one is kept.

    Parameters
    ----------
    request : PlanRequest
    ways : iterable of Way
        Those with intermediates.
    free : sequence of tuple of StagePlan
        The plans that are weighed without limits; one of them has one stage, if that fits.
    options : Axes
        The request's.
    """
    few, large = replace(request, max_objects=None), replace(request, min_object_bytes=None)
    fewest = [stages for stages in free if keeps_limits(few, stages)]
    largest = [stages for stages in free if keeps_limits(large, stages)]
    for way in ways:
        if request.max_objects is not None:
            fewest += _first(few, way, options, "objects")
        if request.min_object_bytes is not None:
            largest += _first(large, way, options, "object_bytes")
    return Extremes(min(fewest, key=_objects, default=None), max(largest, key=smallest_object, default=None))


def needed_bytes(request: PlanRequest, kept: Callable[[PlanRequest], bool]) -> int:
    """A ``max_mem`` with which the limits are kept, where one byte less is not enough.

    Parameters
    ----------
    request : PlanRequest
        Its ``max_mem`` does not matter.
    kept : callable
        Whether a request's limits are kept by a plan within its ``max_mem``.
    """
    low, high = least_needs(request), direct_needs(request)
    # Nearly always it is one of these two, and a search takes its time for each budget that is tried.
    if not kept(replace(request, max_mem=high - 1)):
        return high
    if kept(replace(request, max_mem=low)):
        return low
    high -= 1
    while high - low > 1:
        middle = (low + high) // 2
        if kept(replace(request, max_mem=middle)):
            high = middle
        else:
            low = middle
    return high


def refusal(request: PlanRequest, needed: int, possible: Mapping[str, int]) -> BudgetError:
    """The error for limits that no plan keeps within ``max_mem``.

    Parameters
    ----------
    request : PlanRequest
    needed : int
        The ``max_mem`` that would do.
    possible : mapping of str to int
        For limits by their names, the nearest values that would do.
    """
    got = ", ".join(f"{name}={getattr(request, name)}" for name in LIMITS if getattr(request, name) is not None)
    instead = [_remedy(name, value) for name, value in possible.items()]
    remedies = " or ".join([f"max_mem of at least {needed} bytes", *instead])
    return BudgetError(
        f"intermediates within max_mem need more or smaller objects than the limits allow; got {got} with "
        f"max_mem={request.max_mem} bytes; give {remedies}",
        needed_bytes=needed,
        max_mem=request.max_mem,
        limits=possible,
    )


def nearest(refusals: Sequence[BudgetError]) -> BudgetError:
    """Of the refusals of several ways to run a job, the one that needs least memory, with the limits nearest in any."""
    least = min(refusals, key=lambda refusal: refusal.needed_bytes)
    text = str(least)
    for name, value in least.limits.items():
        values = [refusal.limits[name] for refusal in refusals if name in refusal.limits]
        least.limits[name] = max(values) if _MOST_OR_LEAST[name] == "most" else min(values)
        text = text.replace(_remedy(name, value), _remedy(name, least.limits[name]))
    least.args = (text,)
    return least


def _remedy(name: str, value: int) -> str:
    return f"{name} of at {_MOST_OR_LEAST[name]} {value}"


def _first(request: PlanRequest, way: Way, options: Axes, wanted: Literal["objects", "object_bytes"]) -> list[Stages]:
    """The best of the first plans of one way, the rest of the request's limits kept; none or one."""
    rows = rows_with(request, way, options, wanted)
    if rows is None:
        return []
    keys = (rows.objects, -rows.object_bytes)
    order = np.lexsort(keys if wanted == "object_bytes" else keys[::-1])[:_TRIED]
    plans = [stages_of(request, way, rows.row(int(number))) for number in order]
    kept = [stages for stages in plans if stages is not None and keeps_limits(request, stages)]
    best = sorted(kept, key=_objects if wanted == "objects" else lambda stages: -smallest_object(stages))
    return best[:1]


def _objects(stages: Stages) -> int:
    return sum(stage.objects for stage in stages)


def _unit_name(request: PlanRequest) -> str:
    return "chunk" if request.target.shard is None else "shard"
