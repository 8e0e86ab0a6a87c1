"""Predicted time after a probe beside the measured one, on the benchmark cases. Run by hand; asserts nothing.

    python tests/benchmarks/predicted.py [--folder DIR] [--rounds 3] [--only NAME] [--cpu]

The cubes of ``frame.py`` (made in the folder if they are not there) are copied to shards (128, 256, 256) of chunks
(128, 64, 64), in one stage and, where no part of a chunk can be decoded alone, in two, and a smaller cube to an S3
server (moto) on this machine. Each run is a fresh process: it reads the source once, so that the page cache holds it
for probe and copy alike, touches memory (see :func:`.frame.touch_memory`), probes with ``rechunk_exec.measure``, and
copies with the model that this gave.

``ratio`` is predicted over measured seconds, the median of the rounds, and ``worst`` the one farthest from 1. Where
other work takes cores from the copy, the wall clock says little of the prediction: ``share`` is the processor time that
the copy got, of all that the cores had in its seconds. With ``--cpu`` probes and copies are timed by the processor
seconds that they use, over all cores, which other work changes little; what waits, such as S3, is left out then.
Needs the extra ``test``, for S3.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from math import log
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np
import zarr

import rechunk_exec as rx
from rechunk_exec.executors import available_cores
from rechunk_exec.measuring import tiny
from rechunk_exec.measuring.moving import Mover
from tests.benchmarks.frame import LAYOUTS, compressor, cpu_seconds, make_cube, touch_memory

CORES = available_cores()
CHUNKS, SHARDS = {"time": -1, "y": 64, "x": 64}, {"time": -1, "y": 256, "x": 256}
SMALL = (128, 1024, 512)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One copy."""

    layout: str
    executor: str
    max_mem: str
    shards: Mapping[str, int] | None = None
    remote: bool = False


CASES = {
    **{
        f"{layout}, {executor}": Case(layout=layout, executor=executor, max_mem="2GB", shards=SHARDS)
        for layout in ("blocks", "epochs")
        for executor in ("serial", "threads", "processes")
    },
    **{
        f"two stages, {executor}": Case(layout="staged", executor=executor, max_mem="300MB", shards=SHARDS)
        for executor in ("serial", "threads", "processes")
    },
    "small, threads, to S3": Case(layout="small", executor="threads", max_mem="100MB", shards=SHARDS, remote=True),
}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("frame-benchmark"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="how long a probe measures")
    parser.add_argument("--only", help="cases whose name contains this text")
    parser.add_argument("--cpu", action="store_true", help="time by processor seconds")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        if options.cpu:
            time_by_processor()
        print(json.dumps(run_one(CASES[options.one], options.folder, options.seconds, by_processor=options.cpu)))
        return
    options.folder.mkdir(parents=True, exist_ok=True)
    for layout in LAYOUTS:
        make_cube(options.folder, layout)
    make_small(options.folder / "small.zarr")
    timed = "processor seconds over all cores" if options.cpu else "seconds"
    print(f"{CORES} cores, {options.rounds} rounds, {timed}, source in the page cache")
    print(f"{'':30}{'predicted':>10}{'measured':>9}{'ratio':>7}{'worst':>7}{'CPU s':>7}{'share':>7}  stages")
    for name, case in CASES.items():
        if options.cpu and case.remote:
            continue
        if not options.only or options.only in name:
            show(name, [run_apart(name, options) for _ in range(options.rounds)])


def run_apart(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Run a case in a process of its own."""
    command = [sys.executable, __file__, "--folder", str(options.folder), "--seconds", str(options.seconds)]
    command += ["--cpu"] * options.cpu
    done = subprocess.run([*command, "--one", name], stdout=subprocess.PIPE, text=True, check=True)
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def show(name: str, runs: list[dict[str, Any]]) -> None:
    """Print a row."""
    ratios = [run["predicted"] / run["measured"] for run in runs]
    middle = {key: statistics.median(run[key] for run in runs) for key in ("predicted", "measured", "cpu", "share")}
    stages = zip(*(run["stages"] for run in runs), strict=True)
    medians = ["/".join(f"{statistics.median(figures):.2f}" for figures in zip(*s, strict=True)) for s in stages]
    print(
        f"{name:30}{middle['predicted']:10.2f}{middle['measured']:9.2f}{statistics.median(ratios):7.2f}"
        f"{max(ratios, key=lambda ratio: abs(log(ratio))):7.2f}{middle['cpu']:7.2f}{middle['share']:7.0%}  "
        f"{'  '.join(medians)}",
        flush=True,
    )


def time_by_processor() -> None:
    """Have probes count the processor seconds of this process over all cores, and those that starting workers takes."""
    Mover.clock = staticmethod(lambda: cpu_seconds() / CORES)

    def start_seconds(workers: int) -> float:
        before = cpu_seconds()
        for _ in range(workers):
            subprocess.run([sys.executable, "-c", tiny._START], input=b"", stdout=subprocess.DEVNULL, check=True)
        return (cpu_seconds() - before) / CORES

    tiny.start_seconds = start_seconds


def run_one(case: Case, folder: Path, seconds: float, *, by_processor: bool) -> dict[str, Any]:
    """Probe and copy; return the seconds."""
    source = folder / f"{case.layout}.zarr"
    for chunk in (source / "c").rglob("*"):
        if chunk.is_file():
            chunk.read_bytes()
    if not case.remote:
        return copy(case, source, str(folder / "target.zarr"), seconds, by_processor=by_processor)
    from tests.s3 import Bucket, running_server

    with running_server() as address:
        bucket = Bucket.at(address)
        os.environ.update(bucket.environment)
        bucket.make()
        return copy(case, source, bucket.url("target.zarr"), seconds, by_processor=False)


def copy(case: Case, source: Path, target: str, seconds: float, *, by_processor: bool) -> dict[str, Any]:
    """Probe and copy from ``source`` to ``target``."""
    shutil.rmtree(target, ignore_errors=True)
    touch_memory()
    model = rx.measure(
        source,
        target,
        target_chunks=CHUNKS,
        target_shards=case.shards,
        target_options={"compressors": compressor()},
        max_mem=case.max_mem,
        cached=True,
        seconds=seconds,
    )
    job = rx.rechunk(
        source, CHUNKS, case.max_mem, target, executor=case.executor, target_shards=case.shards, cost_model=model,
        target_options={"compressors": compressor()}, progress=False,
    )  # fmt: skip
    touch_memory()
    began, used = time.perf_counter(), cpu_seconds()
    job.execute()
    elapsed, used = time.perf_counter() - began, cpu_seconds() - used
    shutil.rmtree(target, ignore_errors=True)
    report = job.report
    assert report is not None
    return {
        "predicted": report.predicted_s,
        "measured": used / CORES if by_processor else report.seconds,
        "cpu": used,
        "share": used / elapsed / CORES,
        "stages": [[stage.predicted_s, stage.measured_s or 0.0] for stage in report.stage_times],
        "model": json.loads(model.to_json()),
    }


def make_small(path: Path) -> None:
    """Make a cube like the others, of 268 MB."""
    if path.exists():
        return
    array = zarr.create_array(
        path, shape=SMALL, chunks=(1, *SMALL[1:]), dtype="f4", fill_value=np.nan, compressors=compressor(),
        dimension_names=["time", "y", "x"],
    )  # fmt: skip
    noise = np.random.default_rng(0).standard_normal(SMALL, dtype="f4") * np.float32(0.01)
    trend = np.arange(SMALL[0], dtype="f4").reshape(-1, 1, 1) * np.float32(0.01)
    array[...] = ((noise + trend).view("u4") & np.uint32(0xFFFFF000)).view("f4")


if __name__ == "__main__":
    main()
