"""Plans and reports as tables for a terminal. Layer: report.

A column a stage, so that plans of two stages fit a terminal of 80 columns. Plain text is the values' own business:
``Plan.explain()`` and ``str(report)``.
"""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rechunk_exec.plans import Plan
from rechunk_exec.report.tally import format_seconds
from rechunk_exec.results import CopyReport, StageTime, TaskResult
from rechunk_exec.sizes import count_text, format_bytes
from rechunk_exec.stageplan import StagePlan


def plan_table(plan: Plan, *, title: str = "plan") -> RenderableType:
    """A plan: a column a stage, and the sums below."""
    rows = {
        "copies": [f"{stage.source} -> {stage.target}" for stage in plan.stages],
        "array": [f"{shape_text(stage.shape)}, {format_bytes(stage.nbytes)}" for stage in plan.stages],
        "a read decodes": [shape_text(stage.read_unit) for stage in plan.stages],
        "a task copies": [shape_text(stage.region) for stage in plan.stages],
        "a write stores": [_write_text(stage) for stage in plan.stages],
        "tasks": [f"{stage.tasks:,}" for stage in plan.stages],
        "objects written": [f"{stage.objects:,}" for stage in plan.stages],
        "operations": [f"{stage.operations:,}" for stage in plan.stages],
        "read amplification": [f"{stage.read_amplification:.2f}" for stage in plan.stages],
        "peak memory": [_memory_text(stage) for stage in plan.stages],
        "predicted time": [format_seconds(stage.predicted_s) for stage in plan.stages],
    }
    temp = f", intermediates hold up to {format_bytes(plan.temp_bytes)}" if plan.temp_bytes else ", no intermediate"
    summary = (
        f"{count_text(plan.tasks, 'task', ',')}, traffic {plan.traffic:.2f} array sizes, "
        f"at most {format_bytes(plan.peak_bytes)} of {format_bytes(plan.max_mem)} a worker, "
        f"about {format_seconds(plan.predicted_s)}{temp}"
    )
    return Group(_stage_table(rows, range(len(plan.stages)), title), Text(summary))


def alternatives_table(plan: Plan) -> RenderableType:
    """The alternatives that a plan was weighed against, and why each was taken or left."""
    table = Table(title="weighed", title_justify="left", box=None, pad_edge=False, header_style="bold")
    table.add_column("")
    table.add_column("plan")
    for header in ("memory", "traffic", "operations", "objects", "tasks", "temp", "time"):
        table.add_column(header, justify="right")
    for one in plan.alternatives:
        table.add_row(
            "*" if one.chosen else "",
            Text(one.name),
            format_bytes(one.peak_bytes),
            f"{one.traffic:.2f}",
            f"{one.operations:,}",
            f"{one.objects:,}",
            f"{one.tasks:,}",
            format_bytes(one.temp_bytes),
            format_seconds(one.predicted_s),
        )
    return Group(table, *(Text(f"{one.name}: {one.why}") for one in plan.alternatives))


def report_table(report: CopyReport, *, title: str = "done") -> RenderableType:
    """What a run did: a column a stage, and the warnings below."""
    numbers = sorted({result.stage for result in report.results})
    stages = [[result for result in report.results if result.stage == number] for number in numbers]
    times = {time.stage: time for time in report.stage_times}
    rows = {
        "codecs": [_codec_text(results) for results in stages],
        "tasks": [f"{len(results):,}" for results in stages],
        "decoded": [format_bytes(sum(result.bytes_read for result in results)) for results in stages],
        "written": [format_bytes(sum(result.bytes_written for result in results)) for results in stages],
        "fetched": [format_bytes(sum(result.stored_bytes_read for result in results)) for results in stages],
        "stored": [format_bytes(sum(result.stored_bytes_written for result in results)) for results in stages],
        "peak predicted": [format_bytes(max(result.predicted_bytes for result in results)) for results in stages],
        "peak measured": [format_bytes(max(result.peak_bytes for result in results)) for results in stages],
        "time predicted": [_time_text(times, number, "predicted_s") for number in numbers],
        "time measured": [_time_text(times, number, "measured_s") for number in numbers],
        "mean task": [format_seconds(sum(result.seconds for result in results) / len(results)) for results in stages],
    }
    if not times:
        del rows["time predicted"], rows["time measured"]
    tasks = count_text(report.tasks, "task", ",")
    summary = f"{tasks} in {format_seconds(report.seconds)} ({report.executor}), {report.retries} retries"
    if report.predicted_s is not None:
        start = f", {format_seconds(report.start_predicted_s)} of it to start workers" * bool(report.start_predicted_s)
        summary += f"; predicted {format_seconds(report.predicted_s)}{start}"
    warnings = (Text(f"warning: {warning}", style="yellow") for warning in report.warnings)
    return Group(_stage_table(rows, numbers, title), Text(summary), *warnings)


def facts_table(facts: Iterable[tuple[str, str]], *, title: str | None = None) -> Table:
    """Names and values in two columns."""
    table = Table(title=title, title_justify="left", box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for name, value in facts:
        table.add_row(Text(name), Text(value))
    return table


def shape_text(sizes: tuple[int, ...]) -> str:
    """A shape for people.

    >>> shape_text((389, 256, 256)), shape_text(())
    ('389 x 256 x 256', 'one element')
    """
    return " x ".join(map(str, sizes)) or "one element"


def _stage_table(rows: dict[str, list[str]], numbers: Iterable[int], title: str) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    table.add_column("")
    for number in numbers:
        table.add_column(f"stage {number}")
    for name, cells in rows.items():
        table.add_row(name, *map(Text, cells))
    return table


def _write_text(stage: StagePlan) -> str:
    unit = shape_text(stage.write_unit)
    return unit if stage.chunk == stage.write_unit else f"{unit} in chunks of {shape_text(stage.chunk)}"


def _memory_text(stage: StagePlan) -> str:
    peak = format_bytes(stage.peak_bytes)
    return peak if stage.tasks_per_worker == 1 else f"{peak}, {stage.tasks_per_worker} tasks at once"


def _time_text(times: dict[int, StageTime], number: int, name: str) -> str:
    seconds = getattr(times.get(number), name, None)
    return "-" if seconds is None else format_seconds(seconds)


def _codec_text(results: list[TaskResult]) -> str:
    return ", ".join(sorted({f"{result.reader} -> {result.writer}" for result in results}))
