"""How time and memory grow: with the size of the array, the number of tasks, and the number of workers.

    python -m tests.benchmarks.growth [--folder DIR] [--quick] [--only size tasks workers]

Run by hand; asserts nothing. Each job runs in a fresh process that is measured from outside
(:mod:`tests.benchmarks.processtree`), with its workers started before the clock and memory touched before that (see
:func:`tests.benchmarks.frame.touch_memory`).

* ``size``: frame cubes of 1, 4 and 16 GB in chunks (1, 1024, 1024) to shards (128, 256, 256) of chunks (128, 64, 64)
  within 1 GB a worker.
* ``tasks``: arrays of 100 to 100,000 chunks of 2 kB, one task each, which reads one file and writes two. All of the
  time is overhead. What a task costs more than with ``serial`` is given in processor time too, which other programs
  on the machine do not change.
* ``workers``: one process on one core against two on two, for the 4 GB cube. Two cores are not always twice one core:
  the same is measured of encoding alone, in one process on one core and in two on two.

``--quick`` has small ones of each, to see that all of it runs.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numcodecs import blosc

import rechunk_exec as rx
from rechunk_exec.executors import ProcessesExecutor
from tests.benchmarks.contender import compete
from tests.benchmarks.frame import touch_memory
from tests.benchmarks.framedata import epoch, make_frame
from tests.benchmarks.peer_jobs import import_zarr
from tests.benchmarks.processtree import ContenderError, Measured, watch

CHUNKS = (1, 1024, 1024)
SIZES_YX = {"1 GB": (1024, 2048), "4 GB": (4096, 2048), "16 GB": (8192, 4096)}
EPOCHS = 128
TASKS = (100, 1_000, 10_000, 100_000)
TINY = (16, 32)
"""Elements of a tiny chunk."""
LIMIT_S = 3600.0


def copy(way: str, source: str, target: str, executor: str, workers: int) -> Iterator[str]:
    """One job as a contender; ``way`` is ``frame`` or ``tiny``."""
    if executor == "processes" and workers == 1:  # else one worker would have the codec threads of all cores
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    pool: Any = ProcessesExecutor(workers) if executor == "processes" else executor
    if executor == "processes":
        pool.run_on_workers(import_zarr)
    yield ""
    if way == "frame":
        chunks, shards = (EPOCHS, 64, 64), (EPOCHS, 256, 256)
        job = rx.rechunk(source, chunks, "1GB", target, target_shards=shards, executor=pool, progress=False)
    else:
        job = tiny_job(source, target, pool)
    planned = time.perf_counter()
    job.execute()
    yield json.dumps({"tasks": job.plan.tasks, "predicted_s": job.plan.predicted_s, "execute_s": since(planned)})


def since(began: float) -> float:
    """Seconds since then."""
    return time.perf_counter() - began


def tiny_job(source: str, target: str, executor: Any) -> rx.Rechunked:
    """A job within so little memory that each chunk of the source is a task."""
    halves = (1, TINY[0] // 2, TINY[1])
    try:
        rx.rechunk(source, halves, 1, target, executor=executor, progress=False)
    except rx.BudgetError as error:
        tasks = zarr.open_array(source, mode="r").shape[0]
        for tenths in range(10, 31, 2):
            budget = error.needed_bytes * tenths // 10
            job = rx.rechunk(source, halves, budget, target, executor=executor, progress=False)
            if job.plan.tasks == tasks:
                return job
    raise SystemExit("no budget was found that makes each chunk a task")


def make_tiny(path: Path, count: int) -> None:
    """Make an array of so many tiny chunks, whose values depend on their position."""
    if path.exists():
        return
    partial = path.with_suffix(".partial")
    array = zarr.create_array(partial, shape=(count, *TINY), chunks=(1, *TINY), dtype="f4", overwrite=True)
    for first in range(0, count, 1000):
        shape = (min(1000, count - first), *TINY)
        array[first : first + 1000] = first + np.arange(np.prod(shape), dtype="f4").reshape(shape) / 1000
    partial.rename(path)


def measure(
    source: Path, way: str, executor: str, workers: int, verify: bool = True
) -> tuple[Measured, dict[str, Any]]:
    """Run one job in a fresh process; return what it took and what it said."""
    target = source.with_name("target.zarr")
    shutil.rmtree(target, ignore_errors=True)
    one = [way, str(source), str(target), executor, str(workers)]
    touch_memory()
    measured = watch([sys.executable, "-m", "tests.benchmarks.growth", "--one", *one], limit_s=LIMIT_S)
    if verify:
        report = rx.verify(source, target)
        if not report.ok:
            raise SystemExit(str(report))
    shutil.rmtree(target)
    return measured, json.loads(measured.note)


def show(cells: list[object]) -> None:
    """Print a row of a table."""
    print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def head(*titles: str) -> None:
    """Print the head of a table."""
    print()
    show(list(titles))
    show(["---"] * len(titles))


def by_size(folder: Path, sizes: dict[str, tuple[int, int]], workers: int) -> None:
    """Time and memory against the size of the array."""
    head("size", "executor", "tasks", "seconds", "CPU s", "MB/s", "most of a process", "of all", "of the coordinator")
    for name, yx in sizes.items():
        source = folder / f"frame-{yx[0]}x{yx[1]}.zarr"
        make_frame(source, (EPOCHS, *yx), CHUNKS)
        for executor in ("serial", "threads", "processes"):
            one, said = measure(source, "frame", executor, workers)
            rate = 4 * EPOCHS * yx[0] * yx[1] / one.seconds / 1e6
            times = f"{one.seconds:.2f}", f"{one.cpu_seconds:.2f}", f"{rate:.0f}"
            peaks = (one.largest_bytes, one.together_bytes, one.first_bytes)
            show([name, executor, said["tasks"], *times, *(f"{n / 1e6:.0f} MB" for n in peaks)])


def by_tasks(folder: Path, counts: tuple[int, ...], workers: int) -> None:
    """Time and memory against the number of tasks."""
    head(
        "tasks", "executor", "seconds", "ms a task", "CPU ms a task", "CPU ms more than serial", "coordinator",
        "largest worker",
    )  # fmt: skip
    for count in counts:
        source = folder / f"tiny-{count}.zarr"
        make_tiny(source, count)
        serial_ms = 0.0
        for executor in ("serial", "threads", "processes"):
            one, said = measure(source, "tiny", executor, workers, verify=count <= 10_000)
            cpu_ms = 1000 * one.cpu_seconds / count
            serial_ms = cpu_ms if executor == "serial" else serial_ms
            times = (one.seconds, 1000 * one.seconds / count, cpu_ms, cpu_ms - serial_ms)
            peaks = (one.first_bytes, one.largest_bytes)
            show([said["tasks"], executor, *(f"{n:.2f}" for n in times), *(f"{n / 1e6:.0f} MB" for n in peaks)])
        shutil.rmtree(source)


def by_workers(folder: Path, yx: tuple[int, int]) -> None:
    """Two workers on two cores against one on one, and what the machine gives at best."""
    source = folder / f"frame-{yx[0]}x{yx[1]}.zarr"
    make_frame(source, (EPOCHS, *yx), CHUNKS)
    head("what", "one, s", "two, s", "ratio", "CPU s of one", "CPU s of two")
    runs = [measure(source, "frame", "processes", workers)[0] for workers in (1, 2, 1, 2)]
    ones, twos = runs[::2], runs[1::2]
    one, two = (min(run.seconds for run in several) for several in (ones, twos))
    cpus = [f"{min(run.cpu_seconds for run in several):.2f}" for several in (ones, twos)]
    show(["rechunk_exec processes", f"{one:.2f}", f"{two:.2f}", f"{one / two:.2f}", *cpus])
    one, two = (min(encoding_s(processes) for _ in range(3)) for processes in (1, 2))
    show(["encoding alone", f"{one:.2f}", f"{two:.2f}", f"{one / two:.2f}", "", ""])


def encoding_s(processes: int, pieces: int = 16) -> float:
    """Seconds in which so many processes, each on a core, encode the same pieces of data between them."""
    cores = sorted(os.sched_getaffinity(0))
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        list(pool.map(_encode, range(processes), [1] * processes, cores))  # started, and their data made
        began = time.perf_counter()
        list(pool.map(_encode, range(processes), [pieces // processes] * processes, cores))
        return since(began)


def _encode(_: int, pieces: int, core: int) -> None:
    os.sched_setaffinity(0, {core})
    blosc.set_nthreads(1)
    values = epoch((2048, 2048), 7)
    for _piece in range(pieces):
        blosc.compress(values, b"zstd", 3, blosc.BITSHUFFLE)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("growth-benchmark"))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", nargs="+", choices=("size", "tasks", "workers"), default=("size", "tasks", "workers"))
    parser.add_argument("--one", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        way, source, target, executor, workers = options.one
        compete(copy(way, source, target, executor, int(workers)))
        return
    folder: Path = options.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    cores = len(os.sched_getaffinity(0))
    sizes = {"0.3 GB": (512, 1024), "0.5 GB": (1024, 1024)} if options.quick else SIZES_YX
    try:
        if "tasks" in options.only:
            by_tasks(folder, TASKS[:2] if options.quick else TASKS, cores)
        if "workers" in options.only:
            by_workers(folder, (1024, 1024) if options.quick else SIZES_YX["4 GB"])
        if "size" in options.only:
            by_size(folder, sizes, cores)
    except ContenderError as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
