"""The commands. Layer: cli."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from rich.console import Console

import rechunk_exec as rx
from rechunk_exec import wire
from rechunk_exec.api import describe
from rechunk_exec.cli.options import JobOptions, executor_options, job_options, opened_executor, option
from rechunk_exec.cli.outcome import ExitCode, print_json, reporting_errors
from rechunk_exec.demo import DEMO_SIZES, DemoRequest, run_demo
from rechunk_exec.machine_report import inspect_machine, installed_version
from rechunk_exec.plans import Plan
from rechunk_exec.report.tables import alternatives_table, facts_table, plan_table, report_table
from rechunk_exec.results import CopyReport

NAMED_BOXES = 20
"""Boxes that differ, of which the text names each; JSON names all."""
PIPE_WIDTH = 120
"""Columns of tables that do not go to a terminal."""


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(installed_version("rechunk_exec"), message="rechunk-exec %(version)s")
def program() -> None:
    """Rewrite big chunked arrays from one chunk layout to another, within a stated memory."""


@program.command()
@click.argument("source")
@click.argument("target")
@job_options
@click.option("--explain", is_flag=True, help="Print the alternatives that the plan was weighed against.")
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
@reporting_errors
def rechunk(*, source: str, target: str, explain: bool, quiet: bool, as_json: bool, **options: Any) -> None:
    """Write the array SOURCE to TARGET in other chunks. Both are paths or URLs of zarr stores."""
    console = results_console(quiet=quiet or as_json)
    with JobOptions(**options).planned(source, target, silent=quiet) as job:
        show_plan(console, job.plan, explain=explain, memory=job.memory_text)
        job.execute()
        report = job.report
        assert report is not None
    if as_json:
        print_json({"target": target, "plan": json.loads(job.plan.to_json()), "report": report_document(report)})
    if report.tasks:
        console.print(report_table(report))
    else:
        console.print("no task was left to run")
    console.print(f"written to {target}", markup=False, highlight=False, soft_wrap=True)


@program.command()
@click.argument("source")
@click.argument("target", required=False)
@job_options
@reporting_errors
def plan(*, source: str, target: str | None, as_json: bool, **options: Any) -> None:
    """Show how SOURCE would be written to TARGET, and why so. Nothing is written."""
    with JobOptions(**options).planned(source, target, silent=True) as job:
        if as_json:
            print_json({"target": target, "plan": json.loads(job.plan.to_json())})
        else:
            show_plan(results_console(), job.plan, explain=True, memory=job.memory_text)


@program.command()
@click.argument("source")
@click.argument("target")
@click.option(
    "--sample",
    type=click.FloatRange(min=0, max=1, min_open=True),
    metavar="SHARE",
    help="Compare only this share of the target's write units, 0.01 for one of a hundred; all if not given.",
)
@option("--max-mem", help="Memory of one worker process over its idle footprint; not bounded if not given.")
@executor_options
@reporting_errors
def verify(  # noqa: PLR0913 - one for each option
    *,
    source: str,
    target: str,
    sample: float | None,
    max_mem: int | None,
    executor: str,
    workers: int | None,
    as_json: bool,
) -> ExitCode:
    """Compare two arrays, or the arrays of two groups, bit for bit, whatever their chunks.

    The exit code is 1 if they differ, or the job of one of them has not ended.
    """
    with opened_executor(executor, workers) as pool:
        report = rx.verify(source, target, executor=pool, max_mem=max_mem, sample=sample)
    if as_json:
        print_json({"ok": report.ok, **wire.to_document(report)})
    console = results_console(quiet=as_json)
    console.print(str(report), markup=False, highlight=False, soft_wrap=True)
    for box in report.differing[:NAMED_BOXES]:
        console.print(f"  {box}", markup=False, highlight=False, soft_wrap=True)
    if len(report.differing) > NAMED_BOXES:
        console.print(f"  and {len(report.differing) - NAMED_BOXES} more: --json names all", highlight=False)
    return ExitCode.DONE if report.ok else ExitCode.FAILED


@program.command()
@click.option(
    "--dir",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("rechunk-exec-demo"),
    show_default=True,
    help="Where the two stores go.",
)
@click.option(
    "--size",
    type=click.Choice(list(DEMO_SIZES)),
    default="medium",
    show_default=True,
    help="; ".join(f"{name}: {size}" for name, size in DEMO_SIZES.items()) + ".",
)
@option("--max-mem", help="Memory of one worker; what suits the size if not given.")
@executor_options
@click.option("--keep/--no-keep", default=True, show_default=True, help="Leave the two stores there.")
@reporting_errors
def demo(*, folder: Path, size: str, executor: str, workers: int | None, as_json: bool, **options: Any) -> None:
    """Make a small frame cube on disk, rewrite it to whole-series shards, check every bit, and time a read."""
    with opened_executor(executor, workers) as pool:
        request = DemoRequest(folder=folder, size=DEMO_SIZES[size], executor=pool, **options)
        outcome = run_demo(request, results_console(quiet=as_json))
    if as_json:
        print_json(wire.to_document(outcome))


@program.command()
@click.argument("store", required=False)
@option("--array", help="Path of the array inside STORE.")
@reporting_errors
def info(*, store: str | None, array: str | None, as_json: bool) -> None:
    """Show what the array STORE is, and whether the job that writes it has finished.

    Without STORE, show what this machine offers: cores, memory, disk, versions, and whether fresh memory comes fast.
    """
    report = inspect_machine(Path.cwd()) if store is None else describe(store, array_name=array)
    if as_json:
        print_json(wire.to_document(report))
    else:
        results_console().print(facts_table(report.facts()))


def results_console(*, quiet: bool = False) -> Console:
    """Where results are printed: standard output, wide enough for tables where it is no terminal."""
    console = Console(quiet=quiet)
    return console if console.is_terminal else Console(quiet=quiet, width=PIPE_WIDTH)


def show_plan(console: Console, plan: Plan, *, explain: bool, memory: str = "") -> None:
    """Print a plan, with how its memory came about if there is something to say, and what it was weighed against."""
    console.print(plan_table(plan))
    if memory:
        console.print(memory, markup=False, highlight=False, soft_wrap=True)
    if explain:
        console.print(alternatives_table(plan))


def report_document(report: CopyReport) -> dict[str, Any]:
    """A report as JSON values: its sums, its warnings, and each task's result."""
    sums = ("tasks", "predicted_s", "bytes_read", "bytes_written", "peak_bytes", "codec_paths", "warnings")
    return {**{name: getattr(report, name) for name in sums}, **wire.to_document(report)}
