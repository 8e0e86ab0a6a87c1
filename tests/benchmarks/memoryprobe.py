"""What a job holds over its idle footprint, measured in a fresh process: run as a script by who measures.

    python tests/benchmarks/memoryprobe.py make JOB FOLDER
    python tests/benchmarks/memoryprobe.py run JOB FOLDER

The meter of the package has no part in it, but that it is kept from resetting the kernel's mark for each task. *Idle*
is what a process holds after it has run a tiny job of the same kind, which imports what is needed and opens the same
codecs, and given back what it kept. Then the kernel's high-water mark of resident memory is reset
(``/proc/PID/clear_refs``), the job runs, and the mark is read. Workers in processes of their own are measured from
outside, each by itself; the largest counts.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from tests.benchmarks.memoryjobs import Job, Source, codec_options, from_json, make_source, store_of

_PLENTY = 10**12


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What a job took, in bytes, and what was said of it."""

    predicted: int
    beside: int
    """What a process may hold besides, by the plan."""
    needed: int
    max_mem: int
    measured: int
    """High-water mark over idle, of the largest worker."""
    told: int
    """The largest peak that a task reported, times the tasks at once."""
    driver: int
    """High-water mark over idle of the process that drove the workers, if that is another."""
    verified: int
    """High-water mark over idle after source and target were compared too, where they were."""
    stages: int
    tasks: int
    ways: tuple[str, ...]
    seconds: float


def run(job: Job, folder: Path) -> Measured:
    """Run a job with all that measures it."""
    source = store_of(job.source.place, f"source-{job.source.number}", folder)
    if job.source.place == "memory":
        make_source(job.source, source)
    with ExitStack() as stack:
        executor, pids, on_workers = _executor(job, stack)
        target = store_of(job.place, f"target-{job.number}", folder)
        plan = partial(_plan, job, source, target, executor)
        needed = _needed(plan)
        max_mem = job.max_mem or (int(needed * job.room) if job.room else max(needed, 2 * job.source.nbytes))
        on_workers(partial(warm_up, asdict(job), str(folder)))
        warm_up(asdict(job), str(folder), executor=executor)
        measured = plan(max_mem)
        for fn in (leave_marks, give_back):
            on_workers(fn)
            fn()
        workers = set(pids()) or {os.getpid()}
        marks = {pid: _reset(pid) for pid in {os.getpid(), *workers}}
        began = time.perf_counter()
        copying: dict[int, int] = {}

        def look(_: object) -> None:
            copying.update({pid: status(pid, "VmHWM") - idle for pid, idle in marks.items()})

        measured.execute(on_event=look if job.verify else None)
        seconds = time.perf_counter() - began
        peaks = {pid: status(pid, "VmHWM") - idle for pid, idle in marks.items()}
    verified = max(peaks[pid] for pid in workers) if job.verify else 0
    peaks = copying or peaks  # comparing afterwards is another promise
    report = measured.report
    at_once = {stage.number: stage.plan.tasks_per_worker for stage in measured.stages}
    return Measured(
        predicted=measured.plan.peak_bytes,
        beside=measured.plan.process_bytes,
        needed=needed,
        max_mem=max_mem,
        measured=max(peaks[pid] for pid in workers),
        told=max(result.peak_bytes * at_once[result.stage] for result in report.results),
        driver=0 if os.getpid() in workers else peaks[os.getpid()],
        verified=verified,
        stages=len(measured.stages),
        tasks=report.tasks,
        ways=tuple(sorted({way for result in report.results for way in (result.reader, result.writer)})),
        seconds=seconds,
    )


def warm_up(record: dict[str, Any], folder: str, executor: Any = "serial") -> None:
    """Run a tiny job of the same kind in this process."""
    job = from_json(record)
    side = 4
    shape = tuple(side for _ in job.source.shape)
    source = replace(job.source, chunks=tuple(1 for _ in shape), shards=shape if job.source.shards else None)
    small = replace(job, chunks=tuple(side // 2 for _ in shape), shards=shape if job.shards else None, source=source)
    name = f"warm-{job.number}-{os.getpid()}-{time.monotonic_ns()}"
    place = store_of(job.source.place, f"{name}-source", Path(folder))
    make_source(source, place, shape)
    _plan(small, place, store_of(job.place, name, Path(folder)), executor, _PLENTY).execute()


def leave_marks() -> None:
    """Keep the package's own meter in this process from resetting the kernel's mark."""
    from rechunk_exec.copy import meter

    meter._CLEAR_REFS = Path(os.devnull)


def give_back() -> None:
    """Let go of what is free in this process."""
    from rechunk_exec.copy import release_memory

    gc.collect()
    release_memory()


def status(pid: int, name: str) -> int:
    """A figure of a process from ``/proc``, in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def _reset(pid: int) -> int:
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    return status(pid, "VmRSS")


def _plan(job: Job, source: Any, target: Any, executor: Any, max_mem: int) -> Any:
    import zarr

    import rechunk_exec as rx

    options: dict[str, Any] = {"zarr_format": job.zarr_format}
    # Live stores, beside which there is no place.
    if job.place == "objects":
        options["temp_store"] = f"{target._store.root}-temp"
    elif job.place == "s3":
        options["temp_store"] = type(target)(target.fs, path=f"{target.path}-temp")
    return rx.rechunk(
        zarr.open_array(source, mode="r"),
        job.chunks,
        max_mem,
        target,
        target_shards=job.shards,
        target_options={"compressors": codec_options(job.codec, job.zarr_format, job.source.elements.itemsize)},
        executor=executor,
        verify=job.verify,
        progress=False,
        mode="overwrite",
        **options,
    )


def _needed(plan: Callable[[int], Any]) -> int:
    import rechunk_exec as rx

    try:
        plan(1)
    except rx.BudgetError as refusal:
        return refusal.needed_bytes
    return 1


def _executor(job: Job, stack: ExitStack) -> tuple[Any, Callable[[], Sequence[int]], Callable[[Any], None]]:
    """The executor, the processes of its workers if they are others, and what calls a function in each."""
    from rechunk_exec.executors import DaskExecutor, ProcessesExecutor, ThreadsExecutor

    if job.executor == "processes":
        pool = stack.enter_context(ProcessesExecutor(job.workers))
        return pool, lambda: [worker.pid for worker in pool._workers], pool.run_on_workers
    if job.executor == "dask":
        from distributed import Client

        options: dict[str, Any] = {"threads_per_worker": 1, "processes": True, "dashboard_address": None}
        client = stack.enter_context(Client(n_workers=job.workers, **options))  # type: ignore[no-untyped-call]
        return DaskExecutor(client), lambda: list(client.run(os.getpid).values()), client.run
    executor: Any = "serial" if job.executor == "serial" else ThreadsExecutor(job.workers)
    return executor, list, lambda fn: None


def main() -> None:
    """Do what the command line says, and print what was measured."""
    what, text, folder = sys.argv[1:]
    job = from_json(json.loads(text))
    if what == "make":
        make_source(job.source, store_of(job.source.place, f"source-{job.source.number}", Path(folder)))
        return
    print(json.dumps(asdict(run(job, Path(folder)))))


if __name__ == "__main__":
    main()


__all__ = ["Measured", "Source", "run", "status"]
