from __future__ import annotations

from dataclasses import replace

import pytest

from rechunk_exec import Plan, plan_rechunk
from rechunk_exec.report.notebook import render
from rechunk_exec.report.tables import alternatives_table, facts_table, plan_table, report_table
from rechunk_exec.results import CopyReport
from tests.report.test_tally import task_event


@pytest.fixture
def plan() -> Plan:
    """Two stages: the budget holds a shard, but not a row of them."""
    return plan_rechunk((60, 1024, 1024), 4, (1, 1024, 1024), (60, 64, 64), "30MB", target_shards=(60, 256, 256))


def row(text: str, name: str) -> list[str]:
    """Cells of a table's row."""
    (line,) = (line for line in text.splitlines() if line.startswith(name + "  "))
    return [cell for cell in line[len(name) :].strip().split("  ") if cell]


def test_a_plan_has_a_column_a_stage_with_the_plan_s_own_figures(plan: Plan) -> None:
    text = render(plan_table(plan))
    assert len(plan.stages) == 2
    assert [cell.strip() for cell in row(text, "tasks")] == [str(stage.tasks) for stage in plan.stages]
    assert [cell.strip() for cell in row(text, "objects written")] == [str(stage.objects) for stage in plan.stages]
    assert [cell.strip() for cell in row(text, "operations")] == [str(stage.operations) for stage in plan.stages]
    assert "source -> temp-1" in text
    assert "60 x 256 x 256 in chunks of 60 x 64 x 64" in text
    assert f"{plan.tasks} tasks, traffic {plan.traffic:.2f} array sizes" in text
    assert "intermediates hold up to 252 MB" in " ".join(text.split())


def test_a_plan_of_two_stages_fits_a_terminal_of_80_columns() -> None:
    plan = plan_rechunk((60, 1024, 1024), 4, (1, 1024, 1024), (60, 64, 64), "30MB")
    assert len(plan.stages) == 2
    table = render(plan_table(plan)).partition("tasks, traffic")[0].splitlines()[:-1]
    assert max(len(line.rstrip()) for line in table) <= 80


def test_one_stage_needs_no_intermediate() -> None:
    assert "no intermediate" in render(plan_table(plan_rechunk((10, 10), 4, (1, 10), (10, 1), "1MB")))


@pytest.mark.parametrize("shape", [(), (0, 5), (7,)])
def test_arrays_of_any_rank_can_be_shown(shape: tuple[int, ...]) -> None:
    unit = tuple(max(1, n) for n in shape)
    assert "stage 0" in render(plan_table(plan_rechunk(shape, 8, unit, unit, "1MB")))


def test_alternatives_tell_which_was_chosen_and_why(plan: Plan) -> None:
    text = render(alternatives_table(plan))
    (starred,) = (line for line in text.splitlines() if line.startswith("*"))
    assert next(one.name for one in plan.alternatives if one.chosen) in starred
    assert all(one.name in text for one in plan.alternatives)


def test_a_report_has_a_column_a_stage_and_tells_of_overruns() -> None:
    results = [event.result for event in (task_event(0, 0, 1000), task_event(1, 0, 1000), task_event(1, 1, 3000))]
    measured = [result for result in results if result]
    measured[2] = replace(measured[2], peak_bytes=50_000_000)
    report = CopyReport(executor="threads", results=tuple(measured), seconds=2.0, retries=2, notes=("[odd] note",))
    text = render(report_table(report))
    assert [cell.strip() for cell in row(text, "written")] == ["1 kB", "4 kB"]
    assert "3 tasks in 2.0 s (threads), 2 retries" in text
    assert "warning: [odd] note" in text
    assert "warning: task 1 of stage 1 used 50 MB where 3 kB were predicted" in " ".join(text.split())


def test_a_report_of_no_tasks_can_be_shown() -> None:
    assert "0 tasks" in render(report_table(CopyReport(executor="serial", results=(), seconds=0.0)))


def test_facts_are_shown_as_they_are() -> None:
    assert render(facts_table([("disk", "[bold]5 GB")])).split() == ["disk", "[bold]5", "GB"]
