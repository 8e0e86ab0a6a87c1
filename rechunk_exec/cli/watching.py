"""The command that shows how far a job is. Layer: cli."""

from __future__ import annotations

import time

import click

import rechunk_exec as rx
from rechunk_exec import wire
from rechunk_exec.cli.commands import program, results_console
from rechunk_exec.cli.options import option
from rechunk_exec.cli.outcome import print_json, reporting_errors
from rechunk_exec.jobstatus import JobStatus

WATCH_S = 2.0
"""How often ``--watch`` looks."""


@program.command()
@click.argument("target")
@option("--array")
@click.option("--watch", is_flag=True, help="Look again every two seconds, until nobody runs the job any more.")
@reporting_errors
def status(*, target: str, array: str | None, watch: bool, as_json: bool) -> None:
    """Show how far the job is that writes TARGET: its stages, its pace, and what has failed."""
    while True:
        found = rx.status(target, array_name=array)
        show(found, as_json=as_json)
        if not watch or found.state != "running":
            return
        time.sleep(WATCH_S)


def show(found: JobStatus, *, as_json: bool) -> None:
    """Print a status: for people, or as one JSON document."""
    if as_json:
        print_json({"done": found.done, "total": found.total, **wire.to_document(found)})
    else:
        results_console().print(str(found), markup=False, highlight=False, soft_wrap=True)
