"""A plan for the workers there are. Layer: above the planner and executors' shapes, below the api.

``max_mem`` is what one worker process may use, over all the tasks that it runs at once. An executor whose workers can
run fewer tasks than they might (threads) gets the plan that is predicted fastest: many tasks at once with small
regions, or few with large ones and more threads each.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace

from rechunk_exec import cost
from rechunk_exec.algorithm import faster_plan, plan
from rechunk_exec.errors import BudgetError
from rechunk_exec.executors.base import WorkerShape
from rechunk_exec.limits import nearest
from rechunk_exec.memory import RAW_READ, RAW_WRITE, ReadScratch, WriteScratch
from rechunk_exec.plans import Plan
from rechunk_exec.request import RAW_SHARD_WRITE, SHARDED_TEMP, Limits, PlanRequest, SourceLayout, TargetLayout

_NEAR = 1.02
_FRESH_BPS = 2e9
"""Bytes per second at which a core gets memory that it did not have, where nobody measured it: in pages of 4 KiB."""
_MOST_IN_FLIGHT = 16
"""Each holds a unit, on a thread."""


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
    sharded_temp: bool = SHARDED_TEMP
    """Whether an intermediate may be stored as one object for each task that writes it."""
    shard_scratch: WriteScratch = RAW_SHARD_WRITE
    """What writing such an intermediate holds."""
    temp_reading: ReadScratch = RAW_READ
    """What reading an intermediate holds."""
    temp_writing: WriteScratch = RAW_WRITE
    """What writing one holds of which each chunk is an object."""
    compressed_temp: bool = False
    """Whether intermediates are compressed, which takes time and saves bytes."""
    limits: Limits = field(default_factory=Limits)

    def worked_in(self, work_bytes: int) -> Layouts:
        """The same for tasks each thread of which works in so many bytes besides, when their region has been read."""

        def more(scratch: ReadScratch) -> ReadScratch:
            return replace(scratch, work=max(scratch.work, work_bytes))

        return replace(
            self,
            source=replace(self.source, scratch=more(self.source.scratch)),
            finer=None if self.finer is None else replace(self.finer, scratch=more(self.finer.scratch)),
            temp_reading=more(self.temp_reading),
        )


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
    model = model.with_temp(compressed=layouts.compressed_temp)
    if not layouts.has_temp_place:
        # Rather no intermediate; a plan that needs one is refused by who knows the places, with its size.
        try:
            return _fastest(layouts, max_mem, model, workers, staged=False)
        except BudgetError:
            pass
    return _fastest(layouts, max_mem, model, workers, staged=True)


def _fastest(layouts: Layouts, max_mem: int, model: cost.CostModel, workers: WorkerShape, *, staged: bool) -> Plan:
    requests = _requests(layouts, max_mem, model, workers, staged=staged)
    timed: dict[int, float] = {}
    whole: dict[int, Plan] = {}
    refusals: list[BudgetError] = []
    first, last = 0, len(requests) - 1
    # The last one has most memory for a task. Where that tells in the time, it bounds the search of the others.
    for number in dict.fromkeys((last, first, *range(len(requests)))):
        earlier = {other: seconds for other, seconds in timed.items() if other < number}
        worth = min(earlier[_worth_it(earlier)] / _NEAR if earlier else math.inf, timed.get(last, math.inf) * _NEAR**2)
        try:
            candidate = faster_plan(requests[number], worth)
        except BudgetError as refusal:
            refusals.append(refusal)
            continue
        if candidate is not None:
            timed[number] = _seconds(candidate, requests[number], workers)
            if math.isinf(worth):
                whole[number] = candidate
    if not timed:
        raise nearest(refusals)
    best = _worth_it(timed)
    return whole[best] if best in whole else plan(requests[best])


def _worth_it(timed: Mapping[int, float]) -> int:
    """From whole chunks to finer reads, from many tasks at once to one: what comes later must be worth it."""
    numbers = sorted(timed)
    best = numbers[0]
    for number in numbers[1:]:
        if timed[number] * _NEAR < timed[best]:
            best = number
    return best


def _requests(
    layouts: Layouts, max_mem: int, model: cost.CostModel, workers: WorkerShape, *, staged: bool
) -> list[PlanRequest]:
    """What is asked of the planner for each way in which the workers can run."""
    requests = []
    for source in (layouts.source, layouts.finer):
        for tasks_at_once in _tasks_at_once(workers):
            if source is None:
                continue
            cores = max(1, workers.cores_per_worker // tasks_at_once)
            units = max(cores, _units_in_flight(model, workers.workers * tasks_at_once))
            requests.append(
                PlanRequest(
                    shape=layouts.shape,
                    itemsize=layouts.itemsize,
                    source=source,
                    target=layouts.target,
                    max_mem=max_mem,
                    cost=model.running(workers.workers * tasks_at_once, units),
                    tasks_per_worker=tasks_at_once,
                    threads=units,
                    codec_threads=cores,
                    staged=staged,
                    sharded_temp=layouts.sharded_temp,
                    shard_scratch=layouts.shard_scratch,
                    temp_reading=layouts.temp_reading,
                    temp_writing=layouts.temp_writing,
                    **asdict(layouts.limits),
                )
            )
    return requests


def _seconds(candidate: Plan, request: PlanRequest, workers: WorkerShape) -> float:
    """Seconds by which plans are compared that hold different regions: each worker first has to get the memory."""
    fresh_bps = request.cost.fresh_bps or _FRESH_BPS * request.cost.cores
    seconds = candidate.predicted_s + max(stage.fresh_bytes(workers.workers) for stage in candidate.stages) / fresh_bps
    # two intermediates at once must be worth their room here as they must among plans for one request
    return seconds * _NEAR if len(candidate.stages) > 2 else seconds


def _units_in_flight(model: cost.CostModel, tasks_at_once: int) -> int:
    """Units that each task should have in flight: its share of what the store serves, where requests wait for it."""
    if model.in_flight_scales:  # a disk, which its own threads keep busy
        return 1
    return min(_MOST_IN_FLIGHT, (model.helpful_in_flight or model.in_flight) // tasks_at_once)


def _tasks_at_once(workers: WorkerShape) -> Iterator[int]:
    tasks = workers.tasks_per_worker
    yield tasks
    while workers.elastic and tasks > 1:
        tasks //= 2
        yield tasks
