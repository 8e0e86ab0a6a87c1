"""The commands for arrays of independent jobs: init, run-task, failed, finalize. Layer: cli."""

from __future__ import annotations

import functools
import json
from typing import Any

import click

import rechunk_exec as rx
from rechunk_exec import wire
from rechunk_exec.batch import INDEX_VARIABLES, JobsFile, unfinished_lines
from rechunk_exec.cli.commands import program, report_document, results_console, show_plan
from rechunk_exec.cli.options import JobOptions, executor_options, opened_executor, option, plan_options
from rechunk_exec.cli.outcome import print_json, reporting_errors
from rechunk_exec.cli.parsing import parse_range, parsed_by
from rechunk_exec.cli.watching import show

NAMED_FAILURES = 20
"""Errors of lines that the text tells; JSON tells all."""


@program.command()
@click.argument("source")
@click.argument("target")
@click.option("--jobs", required=True, metavar="FILE", help="Where the lines go: a path, or the URL of an object.")
@plan_options
@reporting_errors
def init(*, source: str, target: str, jobs: str, as_json: bool, **options: Any) -> None:
    """Create the array TARGET, and write what is to be copied from SOURCE to FILE, one line a task.

    Each line is run by `run-task`, in a process that has --max-mem; the job is ended by `finalize`.
    """
    wanted = JobOptions(**options, executor="serial", workers=None)
    with wanted.planned(source, target, silent=True) as job:
        count = job.write_jobs(jobs)
    stages = [{"stage": stage.number, "lines": len(stage)} for stage in job.stages]
    if as_json:
        plan = json.loads(job.plan.to_json())
        print_json({"target": target, "jobs": jobs, "lines": count, "stages": stages, "plan": plan})
        return
    console = results_console()
    show_plan(console, job.plan, explain=False)
    say = functools.partial(console.print, markup=False, highlight=False, soft_wrap=True)
    say(f"{count} lines in {jobs}" if count else f"nothing is left to do; {target} is finished")
    first = 0
    for stage in job.stages:
        if len(stage):
            say(f"  stage {stage.number}: indices {first} to {first + len(stage) - 1}")
        first += len(stage)


@program.command("run-task")
@click.argument("jobs")
@click.option(
    "--index",
    type=click.IntRange(min=0),
    metavar="I",
    help=f"The line's number, from 0; that in {' or '.join(INDEX_VARIABLES)} if not given.",
)
@click.option(
    "--range",
    "numbers",
    callback=parsed_by(parse_range),
    metavar="A:B",
    help="Lines from number A to before B, one after the other; those beyond the last are left out.",
)
@option("--stage")
@reporting_errors
def run_line(*, jobs: str, index: int | None, numbers: range | None, stage: int | None, as_json: bool) -> None:
    """Run one line of the file JOBS, or several.

    The exit code is 4, and nothing is written, while an earlier stage is unfinished.
    """
    if index is not None and numbers is not None:
        raise click.UsageError("--index and --range exclude each other")
    try:
        report = rx.run_job(jobs, index if numbers is None else numbers, stage=stage)
    except IndexError as error:
        raise click.UsageError(str(error)) from error
    if as_json:
        print_json(report_document(report))
        return
    say = functools.partial(results_console().print, markup=False, highlight=False, soft_wrap=True)
    say(str(report) if report.results else "the job has ended; nothing was run")


@program.command()
@click.argument("jobs")
@option("--stage", help="Of this stage, and counted within it.")
@click.option("--to", metavar="FILE", help="Also write these lines to FILE, for an array that counts from 0.")
@reporting_errors
def failed(*, jobs: str, stage: int | None, to: str | None, as_json: bool) -> None:
    """Print the numbers of the lines to run again, like 3,7-9: of the first stage that is not done.

    Lines that failed are among them, and those that were killed, never started, or are running now. Nothing is printed
    if all are done. The errors go to standard error.
    """
    found = unfinished_lines(jobs, stage=stage)
    if to is not None:
        file = JobsFile(jobs)
        before = 0 if stage is None else file.first_of_stage(stage)
        file.copy([before + index for index in found.indices], to)
    if as_json:
        print_json({"lines": len(found.indices), "ranges": str(found), **wire.to_document(found)})
        return
    for one in found.failures[:NAMED_FAILURES]:
        click.echo(f"task {one.index} of stage {one.stage} failed: {one.message}", err=True)
    if len(found.failures) > NAMED_FAILURES:
        click.echo(f"and {len(found.failures) - NAMED_FAILURES} more: --json names all", err=True)
    if found.indices:
        click.echo(str(found))


@program.command()
@click.argument("jobs")
@click.option(
    "--verify/--no-verify",
    default=None,
    help="Compare source and target before; as `init` was told if not given.",
)
@executor_options
@reporting_errors
def finalize(*, jobs: str, verify: bool | None, executor: str, workers: int | None, as_json: bool) -> None:
    """End the job of the file JOBS: check that all lines are done, and remove what was only needed on the way.

    The exit code is 4, and nothing is changed, while a line is not done.
    """
    with opened_executor(executor, workers) as pool:
        found = rx.finalize_jobs(jobs, verify=verify, executor=pool)
    show(found, as_json=as_json)
