"""The command that measures a cost model. Layer: cli."""

from __future__ import annotations

from typing import Any

import click

import rechunk_exec as rx
from rechunk_exec.cli.commands import program, results_console
from rechunk_exec.cli.options import ZARR_FORMATS, option
from rechunk_exec.cli.outcome import reporting_errors
from rechunk_exec.cost import CostModel
from rechunk_exec.report.tables import facts_table
from rechunk_exec.report.tally import format_seconds
from rechunk_exec.sizes import format_bytes


@program.command()
@click.argument("source")
@click.argument("target", required=False)
@option("--chunks", "target_chunks", help="Chunks of the target, as for `rechunk`; the source's if not given.")
@option("--shards", "target_shards", help="Shards of the target, as for `rechunk`.")
@option(
    "--max-mem",
    default="1GB",
    show_default=True,
    help="Memory that the job will have for a worker, and the probe has.",
)
@option("--temp-store")
@option("--zarr-format")
@click.option("--cores", type=click.IntRange(min=1), metavar="N", help="Cores to measure with; all if not given.")
@click.option("--cached", is_flag=True, help="Read the source from the page cache, not from the disk.")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=3.0,
    show_default=True,
    help="About how long to measure.",
)
@reporting_errors
def probe(*, source: str, target: str | None, zarr_format: str | None, as_json: bool, **options: Any) -> None:
    """Measure how fast SOURCE is read and a target like TARGET is written, in a few seconds.

    SOURCE is only read. The probe writes to a hidden folder beside TARGET, or without TARGET to the system's folder for
    temporary files, and removes it. What --json prints is a file for the option --cost-model of other commands.
    """
    model = rx.measure(source, target, zarr_format=ZARR_FORMATS[zarr_format], **options)
    if as_json:
        click.echo(model.to_json())
    else:
        results_console().print(facts_table(_facts(model), title="cost model"))


def _facts(model: CostModel) -> list[tuple[str, str]]:
    """Names and values for people."""
    rates = {
        "reading and decoding": model.decode_bps,
        "encoding and writing": model.encode_bps,
        "reading intermediates": model.raw_read_bps,
        "writing intermediates": model.raw_write_bps,
    }
    helpful = f", up to {model.helpful_in_flight} help" if model.helpful_in_flight else ""
    return [
        *((name, f"{format_bytes(round(rate))} a second") for name, rate in rates.items()),
        ("an operation", f"{model.operation_s * 1000:.3g} ms, {model.in_flight} side by side{helpful}"),
        *(("memory, at first", f"{format_bytes(round(bps))} a second") for bps in [model.fresh_bps] if bps),
        ("to start workers", format_seconds(model.worker_start_s)),
        ("cores", f"{model.cores} that these rates stand for"),
        *(("note", note) for note in model.notes),
    ]
