"""What each executor costs: one job of two stages on each, equal to the byte, in one run. Run by hand; asserts no time.

    python tests/benchmarks/executors.py [--folder DIR] [--only NAME ...]

For each executor the table shows the seconds of its first job, a small one of two stages, which holds all that has to
be started; of the same job again; and of one of 134 MB, also in two stages; and how much longer a task of that took
than with ``serial``, by the wall clock, with two workers. What needs a package or a program that is not there is left
out. Flink wants an environment of its own: ``python tests/benchmarks/executors.py --only serial flink`` there, with the
address of a cluster in FLINK_ADDRESS.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from rich.console import Console
from rich.table import Table

import rechunk_exec as rx
from rechunk_exec.executors import BeamExecutor, DaskExecutor, FlinkExecutor, ProcessesExecutor

BIG, SMALL = (128, 512, 512), (16, 64, 64)
PRISM = Path(os.environ.get("RECHUNK_EXEC_PRISM") or Path.home() / ".cache" / "rechunk_exec") / "prism-v2.77.0"

Make = Callable[[ExitStack], Any]


def loop(stages: Sequence[rx.Stage]) -> None:
    """A plain function as executor."""
    for stage in stages:
        for task in stage:
            rx.run_task(task)


def loky(stack: ExitStack) -> Any:
    """A pool of loky."""
    from loky import ProcessPoolExecutor as LokyPool

    return stack.enter_context(LokyPool(2))


def prism(stack: ExitStack) -> Any:
    """Beam on Prism."""
    return BeamExecutor("PrismRunner", [f"--prism_location={PRISM}"])


EXECUTORS: dict[str, Make] = {
    "serial": lambda stack: "serial",
    "threads": lambda stack: "threads",
    "processes": lambda stack: stack.enter_context(ProcessesExecutor(2)),
    "ProcessPoolExecutor": lambda stack: stack.enter_context(ProcessPoolExecutor(2, mp_context=get_context("spawn"))),
    "loky": loky,
    "function": lambda stack: loop,
    "dask": lambda stack: stack.enter_context(DaskExecutor(workers=2)),
    "beam, in memory": lambda stack: BeamExecutor(),
    "beam, 2 processes": lambda stack: BeamExecutor(
        None, ["--direct_running_mode=multi_processing", "--direct_num_workers=2"]
    ),
    "beam, Prism": prism,
    "flink": lambda stack: FlinkExecutor(os.environ["FLINK_ADDRESS"]),
    "batch": lambda stack: None,
}


def run_job(folder: Path, shape: tuple[int, ...], executor: Any) -> tuple[float, int]:
    """Run one job; return its seconds, without checking, and its tasks."""
    name = "x".join(map(str, shape))
    source, target = folder / f"{name}.zarr", folder / "target.zarr"
    chunks = (shape[0], 32, 32)
    budget = "8MB" if shape == BIG else "400kB"
    job = rx.rechunk(
        source, chunks, budget, target, executor="serial" if executor is None else executor, mode="overwrite",
        progress=False,
    )  # fmt: skip
    assert len(job.stages) == 2, job.plan
    began = time.perf_counter()
    if executor is None:
        run_lines(job, folder / "jobs.jsonl")
    else:
        job.execute()
    seconds = time.perf_counter() - began
    there = np.asarray(zarr.open_array(target, mode="r")[...])
    assert np.array_equal(there.view("u4"), values(shape).view("u4"))
    return seconds, job.plan.tasks


def run_lines(job: rx.Rechunked, jobs: Path) -> None:
    """Run a job's lines, those of a stage by two processes, each half of them."""
    job.write_jobs(jobs)
    for stage in job.stages:
        half = -(-len(stage) // 2)
        command = [sys.executable, "-m", "rechunk_exec", "run-task", str(jobs), "--stage", str(stage.number)]
        ranges = [f"{first}:{stop}" for first, stop in ((0, half), (half, len(stage))) if first < stop]
        halves = [subprocess.Popen([*command, "--range", part], stdout=subprocess.DEVNULL) for part in ranges]
        assert [one.wait() for one in halves] == [0] * len(halves)
    rx.finalize_jobs(jobs)


def values(shape: tuple[int, ...]) -> Any:
    """Values that depend on position, and compress as measured ones do."""
    epochs, rows, columns = (
        np.arange(n, dtype="f4").reshape(-1, *[1] * after) for n, after in zip(shape, (2, 1, 0), strict=True)
    )
    return np.round(np.sin(epochs / 9 + rows / 50) * columns + epochs * rows / 7, 2).astype("f4")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="What each executor costs.")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--only", nargs="+", choices=EXECUTORS)
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp())
    for shape in (BIG, SMALL):
        name = "x".join(map(str, shape))
        array = zarr.create_array(
            folder / f"{name}.zarr", shape=shape, chunks=(1, *shape[1:]), dtype="f4", overwrite=True
        )
        array[...] = values(shape)
    table = Table("executor", "first small job, s", "again, s", "134 MB, s", "tasks", "more than serial, ms a task")
    serial_s = 0.0
    for name in options.only or EXECUTORS:
        if (name == "flink" and "FLINK_ADDRESS" not in os.environ) or (name == "beam, Prism" and not PRISM.exists()):
            continue
        with ExitStack() as stack:
            executor = EXECUTORS[name](stack)
            first, _ = run_job(folder, SMALL, executor)
            again, _ = run_job(folder, SMALL, executor)
            seconds, tasks = run_job(folder, BIG, executor)
        serial_s = seconds if name == "serial" else serial_s
        more = f"{(seconds - serial_s) / tasks * 1000:.1f}"
        table.add_row(name, f"{first:.2f}", f"{again:.2f}", f"{seconds:.2f}", str(tasks), more)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
