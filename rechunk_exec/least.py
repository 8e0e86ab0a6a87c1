"""The least memory that any plan needs, and the refusal of less. Layer: the planner; between search and algorithm."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

from rechunk_exec.candidates import StagedAxis, least_staged_axis
from rechunk_exec.errors import BudgetError
from rechunk_exec.request import MOST_CHUNK_BYTES, PlanRequest
from rechunk_exec.search import DIRECT, TWO, stages_of
from rechunk_exec.weighing import Stages

_MOST_LEAST = 20_000
"""Combinations that the least memory of two stages is sought among."""


def least_stages(request: PlanRequest) -> Stages:
    """The plan that holds least; it decides which budgets are refused, so it must not depend on the budget.

    Raises
    ------
    BudgetError
        If that is more than the budget.
    """
    region, needed = _least_direct(request)
    if needed <= request.task_budget:
        stages = stages_of(request, DIRECT, [region])
    else:
        shapes = _least_staged(request) if request.staged else None
        staged = needed if shapes is None else _held_by_two(request, *shapes)
        forbidden = request.most_stages < 2 and staged <= request.task_budget
        if request.most_stages > 1:
            needed = min(needed, staged)
        fits = shapes is not None and needed <= request.task_budget
        stages = stages_of(request, TWO, shapes) if shapes is not None and fits else None
        if stages is None:
            raise _refusal(request, needed * request.tasks_per_worker, forbidden=forbidden)
    if stages is None:
        raise _refusal(request, needed * request.tasks_per_worker, forbidden=False)
    return stages


def least_needs(request: PlanRequest) -> int:
    """The least ``max_mem`` with which any plan fits, whatever its objects."""
    try:
        least_stages(replace(request, max_mem=1))
    except BudgetError as refused:
        return refused.needed_bytes
    return 1


def direct_needs(request: PlanRequest) -> int:
    """The least ``max_mem`` with which one stage fits."""
    return _least_direct(request)[1] * request.tasks_per_worker


def _least_direct(request: PlanRequest) -> tuple[tuple[int, ...], int]:
    """The region with which one stage holds least, and how many bytes that is for a task."""
    memory = request.memory()
    region = min(_small_regions(request), key=lambda region: memory.task_bytes(region, 1))
    return region, memory.task_bytes(region, 1)


def _small_regions(request: PlanRequest) -> list[tuple[int, ...]]:
    """Regions among which one holds least: single write units, or just large enough to be decoded into."""
    sizes = []
    restart = request.restart or (0,) * len(request.shape)
    for n, a, b, chunk in zip(request.shape, request.read_unit, request.write_unit, restart, strict=True):
        # a write unit of whole read units is large enough, and more is only more to hold
        larger = () if b % a == 0 and not chunk else (-(-a // b) * b, math.lcm(a, b), n)
        sizes.append(sorted({min(n, size) for size in (b, *larger)}))
    if math.prod(map(len, sizes)) > _MOST_LEAST:
        sizes = [sorted({few[0], few[-1]}) for few in sizes][:14] + [few[:1] for few in sizes[14:]]
    return list(itertools.product(*sizes))


def _least_staged(request: PlanRequest) -> list[tuple[int, ...]] | None:
    """First region, chunk and second region of the two-stage plan that holds least."""
    axes = []
    for n, a, b in zip(request.shape, request.read_unit, request.write_unit, strict=True):
        axes.append(least_staged_axis(StagedAxis(n=n, read_unit=a, write_unit=b, fetch_unit=a, most=(n, n))))
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


def _refusal(request: PlanRequest, needed: int, *, forbidden: bool) -> BudgetError:
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
    limit = ""
    if forbidden:
        limit = (
            f"; two stages would fit, with max_temp_bytes of at least {request.nbytes}, got {request.max_temp_bytes}"
        )
    fewer = " or run fewer tasks a worker" if request.tasks_per_worker > 1 else ""
    return BudgetError(
        f"a task must hold one target unit and the scratch to decode a source unit and encode a target chunk; "
        f"got max_mem={request.max_mem} bytes{tasks}, with {units}; "
        f"give max_mem of at least {needed} bytes, or smaller chunks{fewer}{limit}",
        needed_bytes=needed,
        max_mem=request.max_mem,
        limits={"max_temp_bytes": request.nbytes} if forbidden else None,
    )
