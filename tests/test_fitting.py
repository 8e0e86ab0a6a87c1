"""Plans for workers: in which units to read, and how many tasks at once, where several ways do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from rechunk_exec import weighing
from rechunk_exec.combining import AxisOptions
from rechunk_exec.cost import CostModel
from rechunk_exec.executors.base import WorkerShape
from rechunk_exec.fitting import Layouts, plan_for_workers
from rechunk_exec.memory import IntArray
from rechunk_exec.plans import Plan
from rechunk_exec.request import PlanRequest, SourceLayout, TargetLayout
from rechunk_exec.weighing import Rows, Way

GB = 10**9
ONE = WorkerShape(workers=1, tasks_per_worker=1, cores_per_worker=2, elastic=False)
TWO = replace(ONE, workers=2, cores_per_worker=1)
THREADS = WorkerShape(workers=1, tasks_per_worker=2, cores_per_worker=2, elastic=True)
CHUNK, BAND = (1, 1024, 1024), (1, 32, 1024)
"""A chunk of an epoch, and what of it decodes on its own."""


def planned(
    workers: WorkerShape,
    *,
    max_mem: int = 2 * GB,
    shape: tuple[int, ...] = (128, 2048, 2048),
    cost: str | CostModel = "local",
    finer: bool = True,
) -> Plan:
    """The plan of epochs in square chunks, to shards of whole histories."""
    epochs = shape[0]
    layouts = Layouts(
        shape=shape,
        itemsize=4,
        source=SourceLayout(chunk=CHUNK),
        target=TargetLayout(chunk=(epochs, 64, 64), shard=(epochs, 256, 256)),
        has_temp_place=True,
        finer=SourceLayout(chunk=CHUNK, read_unit=BAND, together=True) if finer else None,
    )
    return plan_for_workers(layouts, max_mem, cost, workers)


def units_and_regions(plan: Plan) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    return [(stage.read_unit, stage.region) for stage in plan.stages]


def test_one_task_at_a_time_reads_whole_chunks_where_they_fit() -> None:
    assert units_and_regions(planned(ONE)) == [(CHUNK, (128, 1024, 1024))]


def test_several_workers_of_a_small_array_rather_hold_less_each() -> None:
    assert units_and_regions(planned(TWO)) == [(BAND, (128, 512, 1024))]


def test_threads_rather_run_one_task_at_a_time_than_to_hold_two_large_regions() -> None:
    assert planned(THREADS, finer=False).stages[0].tasks_per_worker == 1


def test_memory_that_is_used_for_many_tasks_costs_nothing() -> None:
    frame = planned(TWO, shape=(389, 6898, 9618), max_mem=4 * GB)
    assert units_and_regions(frame) == [(CHUNK, (389, 1024, 1024))]


@pytest.mark.parametrize("fresh_bps, unit", [(40e9, CHUNK), (0.4e9, BAND)])
def test_how_dear_memory_is_may_be_measured(fresh_bps: float, unit: tuple[int, ...]) -> None:
    cost = replace(CostModel.local(), fresh_bps=fresh_bps)
    assert planned(TWO, cost=cost).stages[0].read_unit == unit


def test_bands_of_a_chunk_are_fetched_together() -> None:
    """Each band for itself would be 32 times as many operations, and an intermediate the better way."""
    cost = replace(CostModel.local(), operation_s=5e-4)
    within = 100 * 10**6
    assert units_and_regions(planned(TWO, max_mem=within, cost=cost)) == [(BAND, (128, 256, 512))]
    assert len(planned(TWO, max_mem=within, cost=cost, finer=False).stages) == 2


def test_ways_to_share_a_worker_that_are_slower_than_one_that_is_known_are_hardly_searched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weighed: dict[int, int] = {}
    weigh = weighing.weigh

    def counted(
        request: PlanRequest, way: Way, axes: Sequence[AxisOptions], numbers: Sequence[IntArray]
    ) -> Rows | None:
        if way.stages > 1:
            weighed[request.tasks_per_worker] = weighed.get(request.tasks_per_worker, 0) + len(numbers[0])
        return weigh(request, way, axes, numbers)

    monkeypatch.setattr(weighing, "weigh", counted)
    rows, columns = 1_000_000, 200_000
    layouts = Layouts(
        shape=(rows, columns),
        itemsize=4,
        source=SourceLayout(chunk=(1, columns)),
        target=TargetLayout(chunk=(rows, 1)),
        has_temp_place=True,
    )
    plan_for_workers(layouts, 2 * GB, "object", replace(THREADS, tasks_per_worker=32, cores_per_worker=32))
    assert weighed[1] > 0
    assert sum(weighed.get(tasks, 0) for tasks in (32, 16, 8, 4)) < weighed[1] / 10
