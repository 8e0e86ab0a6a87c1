"""Predicted seconds beside measured ones: how stages are told apart, and where both are shown."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import rechunk_exec as rx
from rechunk_exec import wire
from rechunk_exec.cli.commands import report_document
from rechunk_exec.executors import available_cores
from rechunk_exec.report.tables import report_table
from rechunk_exec.report.tally import Tally, stage_times
from rechunk_exec.results import CopyReport, Event, StageTime, TaskResult
from tests.executors.recording import make_stage
from tests.jobs import assert_exact, make_array

TIMES = (StageTime(stage=0, predicted_s=2.5, measured_s=3.25), StageTime(stage=1, predicted_s=4.0, measured_s=None))


def result(stage: int, index: int, seconds: float) -> TaskResult:
    return TaskResult(
        stage=stage, index=index, seconds=seconds, bytes_read=10, bytes_written=10, stored_bytes_read=5,
        stored_bytes_written=5, predicted_bytes=8, peak_bytes=7, reader="direct", writer="direct",
    )  # fmt: skip


def report(**fields: Any) -> CopyReport:
    results = (result(0, 0, 1.0), result(1, 0, 2.0))
    return CopyReport(executor="serial", results=results, seconds=7.0, **fields)


def no_time(stage: Any) -> float:
    return 0.0


def told(times: list[tuple[int, int, float]], totals: dict[int, int], total: int) -> Tally:
    """A tally that was told of tasks of stages at these times."""
    now = 100.0
    tally = Tally(totals, clock=lambda: now)
    tally.add(Event(kind="start", total=total))
    for stage, index, now in times:  # noqa: B007 - the clock reads it
        tally.add(Event(kind="task", stage=stage, index=index, bytes_written=1))
    return tally


def test_stages_take_from_the_end_of_the_one_before() -> None:
    stages = [replace_predicted(make_stage(0, 2), 8.0), replace_predicted(make_stage(1, 1), 2.0)]
    tally = told([(0, 0, 101.0), (0, 1, 104.0), (1, 0, 110.0)], {0: 2, 1: 1}, 3)
    assert stage_times(tally, stages, report(), no_time) == (
        StageTime(stage=0, predicted_s=8.0, measured_s=4.0),
        StageTime(stage=1, predicted_s=2.0, measured_s=6.0),
    )


def test_memory_that_workers_get_is_predicted_for_stages_with_tasks_left() -> None:
    stages = [replace_predicted(make_stage(0, 2), 8.0), replace(replace_predicted(make_stage(1, 1), 2.0), left=())]
    tally = told([(0, 0, 101.0), (0, 1, 104.0)], {0: 2, 1: 0}, 2)
    times = stage_times(tally, stages, report(), lambda stage: 0.5 + stage.number)
    assert [time.predicted_s for time in times] == [8.5, 0.0]


def replace_predicted(stage: Any, seconds: float) -> Any:
    return replace(stage, plan=replace(stage.plan, predicted_s=seconds))


def test_only_the_tasks_that_were_left_are_predicted() -> None:
    one = replace(report(), results=(result(0, 1, 3.0),))
    stages = [
        replace(replace_predicted(make_stage(0, 4), 8.0), left=((1, 2),)),
        replace(replace_predicted(make_stage(1, 2), 3.0), left=()),
    ]
    times = stage_times(told([(0, 1, 103.0)], {0: 1, 1: 0}, 1), stages, one, no_time)
    assert [(time.predicted_s, time.measured_s) for time in times] == [(2.0, 3.0), (0.0, 0.0)]


def test_who_tells_of_tasks_only_in_the_end_is_not_believed() -> None:
    stages = [make_stage(0, 1), make_stage(1, 1)]
    times = stage_times(told([(0, 0, 100.5), (1, 0, 100.5)], {0: 1, 1: 1}, 2), stages, report(), no_time)
    assert [time.measured_s for time in times] == [None, None]


def test_where_nobody_predicted_nothing_is_shown() -> None:
    assert report().predicted_s is None
    assert "predicted" not in str(report()).replace("peak predicted", "")
    assert "time predicted" not in shown(report())
    assert report_document(report())["predicted_s"] is None


def shown(one: CopyReport) -> str:
    console = Console(width=120)
    with console.capture() as captured:
        console.print(report_table(one))
    return captured.get()


def test_both_are_shown() -> None:
    both = report(stage_times=TIMES, start_predicted_s=0.5)
    assert both.predicted_s == 7.0
    assert str(both).splitlines()[3:6] == [
        "predicted 7.00 s, 0.50 s of it to start workers, took 7.00 s",
        "  stage 0: predicted 2.50 s, took 3.25 s",
        "  stage 1: predicted 4.00 s, not known",
    ]
    table = shown(both)
    assert [line.split() for line in table.splitlines() if line.startswith("time")] == [
        ["time", "predicted", "2.5", "s", "4.0", "s"],
        ["time", "measured", "3.2", "s", "-"],
    ]
    assert "2 tasks in 7.0 s (serial), 0 retries; predicted 7.0 s, 0.50 s of it to start workers" in table
    document = json.loads(json.dumps(report_document(both)))
    assert document["predicted_s"] == 7.0
    assert document["start_predicted_s"] == 0.5
    assert [one["predicted_s"] for one in document["stage_times"]] == [2.5, 4.0]
    assert [one["measured_s"] for one in document["stage_times"]] == [3.25, None]
    assert wire.from_json(CopyReport, wire.to_json(both)) == both


@pytest.mark.parametrize("executor", [pytest.param("serial", marks=pytest.mark.long), "threads", "processes"])
def test_a_job_tells_both(tmp_path: Path, executor: str) -> None:
    source = make_array(tmp_path / "source.zarr", (40, 60, 50), (1, 60, 50))
    quick = replace(rx.CostModel.local(), stage_s=0.0, worker_start_s=3.5)
    job = rx.rechunk(
        source, (40, 6, 5), "40kB", tmp_path / "target.zarr", executor=executor, cost_model=quick, progress=False
    )
    assert_exact(job.execute(), source)
    assert job.report is not None
    assert [time.stage for time in job.report.stage_times] == list(range(len(job.plan.stages)))
    assert [time.predicted_s for time in job.report.stage_times] == [stage.predicted_s for stage in job.plan.stages]
    measured = [time.measured_s for time in job.report.stage_times]
    assert sum(one or 0.0 for one in measured) <= job.report.seconds
    assert all(one is not None and one > 0 for one in measured)
    assert job.report.start_predicted_s == (3.5 if executor == "processes" else 0.0)


@pytest.mark.parametrize(
    "executor, at_once",
    [
        ("serial", 1),
        ("threads", available_cores()),
        pytest.param("processes", available_cores(), marks=pytest.mark.long),
    ],
)
def test_memory_is_had_once_for_each_task_that_runs_at_once(tmp_path: Path, executor: str, at_once: int) -> None:
    source = make_array(tmp_path / "source.zarr", (8, 60, 50), (8, 10, 50))
    slow = replace(rx.CostModel.local(), fresh_bps=1000.0, stage_s=0.0)
    job = rx.rechunk(
        source, (8, 10, 25), "100kB", tmp_path / "target.zarr", executor=executor, cost_model=slow, progress=False
    )
    job.execute()
    assert job.report is not None
    (stage,) = job.plan.stages
    region_bytes = 4 * stage.region[0] * stage.region[1] * stage.region[2]
    fresh_s = min(at_once, stage.tasks) * region_bytes / 1000
    assert job.report.predicted_s == pytest.approx(stage.predicted_s + fresh_s)


def test_a_function_tells_of_no_stage(tmp_path: Path) -> None:
    source = make_array(tmp_path / "source.zarr", (40, 60, 50), (1, 60, 50))

    def staged_copy(stages: Any) -> None:
        for stage in stages:
            for task in stage:
                rx.run_task(task)

    job = rx.rechunk(source, (40, 6, 5), "40kB", tmp_path / "target.zarr", executor=staged_copy, progress=False)
    assert_exact(job.execute(), source)
    assert job.report is not None
    assert job.report.predicted_s == pytest.approx(job.plan.predicted_s)
    # It tells of all its tasks at once, in the end: of one stage that is when it ended.
    if len(job.plan.stages) > 1:
        assert {time.measured_s for time in job.report.stage_times} == {None}


def test_a_job_that_had_ended_took_and_predicts_nothing(tmp_path: Path) -> None:
    source = make_array(tmp_path / "source.zarr", (8, 6), (1, 6))
    arguments = (source, (8, 2), "1MB", tmp_path / "target.zarr")
    rx.rechunk(*arguments, progress=False).execute()
    again = rx.rechunk(*arguments, mode="resume", progress=False)
    again.execute()
    assert again.report is not None
    assert (again.report.tasks, again.report.predicted_s) == (0, None)
