"""The main job by each of the peers, in one run. Run by hand; asserts nothing.

    python -m tests.benchmarks.peers [--folder DIR] [--layout blocks epochs] [--max-mem 2GB 600MB] [--rounds 3]

The cube of tests/benchmarks/frame.py goes from chunks (1, 1024, 1024) or (1, 2048, 2048) to shards (128, 256, 256) of
chunks (128, 64, 64), by every peer with the options that suit the job and ``max_mem`` best, and by ``rechunk_exec``.
Where a peer cannot make that, it makes the nearest it can, which the table shows.

Each peer has an environment of its own (:mod:`tests.benchmarks.peer_environments`), which is made when it is needed;
``--prepare`` makes all of them and stops. It takes some minutes, most of them for the Rust program, which wants cargo.
Each run is a fresh process that is measured from outside (:mod:`tests.benchmarks.processtree`): the clock runs from
when all is imported, with pools of processes started, to the end; processor time is that of all processes; memory is
the peak of the resident set over the idle one, of the largest process and of all together. ``rx.verify`` compares each
result with its source. Contenders take turns within a round, and the table has medians; one that fails or takes longer
than ``--limit-minutes`` is not tried again.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zarr

import rechunk_exec as rx
from rechunk_exec.sizes import parse_bytes
from tests.benchmarks.frame import CHUNK, LAYOUTS, SHAPE, SHARD, make_cube
from tests.benchmarks.peer_environments import ENVIRONMENTS, default_folder, prepare
from tests.benchmarks.peer_jobs import Request
from tests.benchmarks.processtree import ContenderError, Measured, watch

Shape = tuple[int, int, int]

PARTS: dict[str, tuple[Shape, ...]] = {
    "blocks": tuple((SHAPE[0], y, x) for y, x in ((1024, 2048), (1024, 1024), (512, 1024), (256, 1024), (256, 512))),
    "epochs": tuple((SHAPE[0], y, x) for y, x in ((1024, 2048), (512, 2048), (256, 2048), (256, 1024), (256, 512))),
}
"""Boxes of whole shards in which to copy a layout, each half of the one before, with as few chunks cut as may be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A peer with options."""

    name: str
    environment: str
    """A name of :data:`ENVIRONMENTS`; empty for this Python."""
    job: str
    """A name of :data:`tests.benchmarks.peer_jobs.JOBS`."""
    options: dict[str, Any] = field(default_factory=dict)
    source: str = "array"
    """``array``, ``group`` with the array in it, or ``v2``: the array in format 2."""
    target_path: str = ""
    """Where in the target the array is."""


@dataclass(slots=True)
class Runs:
    """What a contender did in all rounds."""

    measured: list[Measured] = field(default_factory=list)
    failure: str = ""
    layout: str = ""


def contenders(layout: str, max_mem: int, cores: int) -> Iterator[Contender]:
    """Who takes part, with options for the layout and the budget."""
    for executor in ("serial", "threads", "processes"):
        yield Contender(
            name=f"rechunk_exec {executor}", environment="", job="rechunk_exec", options={"executor": executor}
        )
    fitting = [part for part in PARTS[layout] if nbytes(part) <= max_mem]
    for part in fitting[:3]:
        size = f"{nbytes(part) / 1e6:.0f} MB parts"
        yield Contender(name=f"zarr+zarrs loop, {size}", environment="zarr", job="zarr_loop", options={"part": part})
        yield Contender(
            name=f"tensorstore, {size}", environment="tensorstore", job="tensorstore", options={"part": part}
        )
    yield Contender(name="zarrs_reencode", environment="zarrs_tools", job="zarrs_reencode", options={"arguments": []})
    # Shards are made in C order: the chunks of a row of them are wanted again by the next row, else by the next shard.
    columns = [n for n in (SHAPE[2] // LAYOUTS[layout][2], 1) if cache_bytes(layout, n) <= 0.9 * max_mem]
    if columns:
        arguments = ["--cache-size", str(cache_bytes(layout, columns[0]))]
        yield Contender(
            name=f"zarrs_reencode, {cache_bytes(layout, columns[0]) / 1e6:.0f} MB cache", environment="zarrs_tools",
            job="zarrs_reencode", options={"arguments": arguments},
        )  # fmt: skip
    # One for each core at a time, and room for what a copy of it takes.
    shared = next((part for part in fitting if 1.5 * cores * nbytes(part) <= max_mem), fitting[-1])
    yield Contender(
        name=f"dask, read in {nbytes(shared) / 1e6:.0f} MB parts, threads", environment="dask", job="dask_rechunk",
        options={"cluster": False, "chunks": shared},
    )  # fmt: skip
    for cluster in (False, True):
        where = "cluster, p2p" if cluster else "threads"
        yield Contender(
            name=f"dask rechunk, {where}", environment="dask", job="dask_rechunk", options={"cluster": cluster}
        )
    yield Contender(name="rechunker", environment="rechunker", job="rechunker", source="v2")
    yield Contender(name="cubed, processes", environment="cubed", job="cubed")
    yield Contender(
        name=f"xarray-beam, read in {nbytes(shared) / 1e6:.0f} MB parts", environment="xarray-beam", job="xarray_beam",
        options={"part": shared}, source="group", target_path="layer",
    )  # fmt: skip
    yield Contender(
        name="xarray-beam Rechunk", environment="xarray-beam", job="xarray_beam", source="group", target_path="layer"
    )
    yield Contender(name="rechunkit", environment="rechunkit", job="rechunkit")


def nbytes(part: Shape) -> int:
    """Raw bytes of a box."""
    return 4 * math.prod(part)


def cache_bytes(layout: str, columns: int) -> int:
    """Raw bytes of so many columns of a layout's chunks, all epochs of them, and some to spare."""
    return columns * SHAPE[0] * (nbytes(LAYOUTS[layout]) + 4096)


def make_sources(folder: Path, layout: str) -> dict[str, Path]:
    """Make the cube, and the same chunks under other metadata: hard links cost nothing."""
    array, group, v2 = (folder / f"{layout}{kind}.zarr" for kind in ("", "-group", "-v2"))
    make_cube(folder, layout)
    if not group.exists():
        zarr.create_group(group)
        shutil.copytree(array, group / "layer", copy_function=os.link)
    if not v2.exists():
        shutil.copytree(array / "c", v2, copy_function=os.link)
        codec = {"id": "blosc", "cname": "zstd", "clevel": 3, "shuffle": 2, "blocksize": 0}
        metadata = {"zarr_format": 2, "shape": SHAPE, "chunks": LAYOUTS[layout], "dtype": "<f4", "fill_value": "NaN"}
        metadata |= {"compressor": codec, "filters": None, "order": "C", "dimension_separator": "/"}
        (v2 / ".zarray").write_text(json.dumps(metadata))
    return {"array": array, "group": group, "v2": v2}


def run_once(contender: Contender, sources: dict[str, Path], request: Request, options: argparse.Namespace) -> Runs:
    """Run a contender once; return what it did, verified."""
    target = Path(request.target)
    for path in (target, Path(request.temp)):
        shutil.rmtree(path, ignore_errors=True)
    Path(request.temp).mkdir(parents=True)
    for file in sources["array"].rglob("*"):  # the page cache holds the source for everyone
        if file.is_file():
            file.read_bytes()
    runs = Runs()
    try:
        program = str(prepare(contender.environment, options.environments)) if contender.environment else sys.executable
        given = dict(contender.options)
        if contender.job == "zarrs_reencode":
            given["program"], program = program, sys.executable
        request = dataclasses.replace(request, source=str(sources[contender.source]), options=given)
        command = [program, "-m", "tests.benchmarks.peer_jobs", contender.job, json.dumps(dataclasses.asdict(request))]
        runs.measured.append(watch(command, limit_s=60 * options.limit_minutes))
        made = target / contender.target_path
        report = rx.verify(sources["array"], made)
        array = zarr.open_array(made, mode="r")
        runs.layout = (
            f"shards {array.shards} of {array.chunks}" if array.shards else f"chunks {array.chunks}, no shards"
        )
        runs.failure = "" if report.ok else str(report)
    except (ContenderError, rx.RechunkError, subprocess.CalledProcessError, OSError) as error:
        runs.failure = str(error)
    for path in (target, Path(request.temp)):
        shutil.rmtree(path, ignore_errors=True)
    return runs


def compare(options: argparse.Namespace, layout: str, max_mem: str) -> None:
    """Run all contenders for one layout and budget, and print the table."""
    folder = options.folder.absolute()
    sources = make_sources(folder, layout)
    cores = len(os.sched_getaffinity(0))
    request = Request(
        source="", target=str(folder / "target.zarr"), temp=str(folder / "temp"), chunk=CHUNK, shard=SHARD,
        max_mem=parse_bytes(max_mem), cores=cores,
    )  # fmt: skip
    named = {
        contender.name: contender
        for contender in contenders(layout, request.max_mem, cores)
        if not options.only or any(text in contender.name for text in options.only)
    }
    runs = {name: Runs() for name in named}
    for number in range(options.rounds):
        for name, contender in named.items():
            if runs[name].failure:
                continue
            once = run_once(contender, sources, request, options)
            runs[name].measured += once.measured
            runs[name].failure, runs[name].layout = once.failure, once.layout
            figures = [f"{one.seconds:.2f} s" for one in once.measured]
            print(f"round {number + 1}: {name}: {' '.join([*figures, once.failure])}", file=sys.stderr, flush=True)
            with (folder / "peers.jsonl").open("a") as log:
                said: dict[str, Any] = {"layout": layout, "max_mem": max_mem, "name": name, "failure": once.failure}
                log.write(json.dumps(said | {"runs": [dataclasses.asdict(one) for one in once.measured]}) + "\n")
    print(f"\nSource chunks {LAYOUTS[layout]}, `max_mem` {max_mem}, {options.rounds} rounds, {cores} cores:\n")
    print("| | seconds | CPU s | peak of the largest process | of all | |\n|---|---|---|---|---|---|")
    for name, contender in named.items():
        title = f"{name} ({ENVIRONMENTS[contender.environment].title})" if contender.environment else name
        print(f"| {title} | " + " | ".join(row(runs[name])) + " |")


def row(runs: Runs) -> list[str]:
    """The cells of a contender."""
    if not runs.measured:
        return ["", "", "", "", runs.failure]
    seconds, cpu = (
        statistics.median(getattr(one, name) for one in runs.measured) for name in ("seconds", "cpu_seconds")
    )
    largest, together = (
        max(getattr(one, name) for one in runs.measured) / 1e6 for name in ("largest_bytes", "together_bytes")
    )
    usual = runs.layout == f"shards {SHARD} of {CHUNK}"
    remarks = [runs.failure, "" if usual else runs.layout, runs.measured[0].note]
    return [f"{seconds:.2f}", f"{cpu:.2f}", f"{largest:.0f} MB", f"{together:.0f} MB", "; ".join(filter(None, remarks))]


def main() -> None:
    """Make what is missing, run, and print a table for each layout and budget."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("frame-benchmark"), help="for the cubes and results")
    parser.add_argument("--environments", type=Path, default=default_folder(), help="for the peers' environments")
    parser.add_argument("--prepare", action="store_true", help="make all environments, and stop")
    parser.add_argument("--layout", nargs="+", choices=("blocks", "epochs"), default=["blocks", "epochs"])
    parser.add_argument("--max-mem", nargs="+", default=["2GB", "600MB"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit-minutes", type=float, default=10.0, help="of one run")
    parser.add_argument("--only", nargs="+", help="contenders whose name contains one of these texts")
    options = parser.parse_args()
    if options.prepare:
        for name in ENVIRONMENTS:
            prepare(name, options.environments)
        return
    options.folder.mkdir(parents=True, exist_ok=True)
    for max_mem in options.max_mem:
        for layout in options.layout:
            compare(options, layout, max_mem)


if __name__ == "__main__":
    main()
