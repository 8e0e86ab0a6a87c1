"""A plan for the workers there are. Layer: above the planner and executors' shapes, below the api.

``max_mem`` is what one worker process may use, over all the tasks that it runs at once. An executor whose workers can
run fewer tasks than they might (threads) gets the plan that is predicted fastest: many tasks at once with small
regions, or few with large ones and more threads each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rechunk_exec import cost
from rechunk_exec.algorithm import plan
from rechunk_exec.errors import BudgetError
from rechunk_exec.executors.base import WorkerShape
from rechunk_exec.plans import Plan
from rechunk_exec.request import PlanRequest, SourceLayout, TargetLayout

_NEAR = 1.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Layouts:
    """What is copied: the array, and how it is and will be stored."""

    shape: tuple[int, ...]
    itemsize: int
    source: SourceLayout
    target: TargetLayout
    has_temp_place: bool
    """Whether an intermediate could be stored."""
    finer: SourceLayout | None = None
    """The source read in units finer than its chunks, where its codec allows that."""


def plan_for_workers(layouts: Layouts, max_mem: int, cost_model: str | cost.CostModel, workers: WorkerShape) -> Plan:
    """Return the fastest plan that workers of this shape can run within ``max_mem`` each.

    Raises
    ------
    BudgetError
        If there is none; its ``needed_bytes`` is the least over the ways in which the workers can run.
    """
    model = cost.resolve(cost_model)
    if cost_model == "local":
        model = model.scaled(workers.workers * workers.cores_per_worker)
    if not layouts.has_temp_place:
        # Rather no intermediate; a plan that needs one is refused by who knows the places, with its size.
        try:
            return _fastest(layouts, max_mem, model, workers, staged=False)
        except BudgetError:
            pass
    return _fastest(layouts, max_mem, model, workers, staged=True)


def _fastest(layouts: Layouts, max_mem: int, model: cost.CostModel, workers: WorkerShape, *, staged: bool) -> Plan:
    best: Plan | None = None
    refusals: list[BudgetError] = []
    ways = [
        (source, tasks) for source in (layouts.source, layouts.finer) if source for tasks in _tasks_at_once(workers)
    ]
    for source, tasks_at_once in ways:
        threads = max(1, workers.cores_per_worker // tasks_at_once)
        request = PlanRequest(
            shape=layouts.shape,
            itemsize=layouts.itemsize,
            source=source,
            target=layouts.target,
            max_mem=max_mem,
            cost=model.running(workers.workers * tasks_at_once, threads),
            tasks_per_worker=tasks_at_once,
            threads=threads,
            staged=staged,
        )
        try:
            candidate = plan(request)
        except BudgetError as refusal:
            refusals.append(refusal)
            continue
        # From whole chunks to finer reads, from many tasks at once to one: what comes later must be worth it.
        if best is None or candidate.predicted_s * _NEAR < best.predicted_s:
            best = candidate
    if best is None:
        raise min(refusals, key=lambda refusal: refusal.needed_bytes)
    return best


def _tasks_at_once(workers: WorkerShape) -> Iterator[int]:
    tasks = workers.tasks_per_worker
    yield tasks
    while workers.elastic and tasks > 1:
        tasks //= 2
        yield tasks
