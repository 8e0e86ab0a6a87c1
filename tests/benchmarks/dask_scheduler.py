"""What a long job costs the scheduler of a ``distributed`` cluster: its memory while the first of many tasks run.

    python tests/benchmarks/dask_scheduler.py [--tasks 200000] [--run 20000] [--workers 2]

The scheduler and the workers are processes of their own, so that what is measured is theirs alone. Tasks copy nothing.
Ends with exit code 1 if the scheduler has grown by more than 200 MB.
"""

from __future__ import annotations

import argparse
import importlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from rechunk_exec.executors import DaskExecutor
from rechunk_exec.results import Event
from tests.executors.recording import make_result, make_stage
from tests.executors.workers import environment, wait_until

MOST_GROWTH_BYTES = 200_000_000


class EnoughError(Exception):
    """So many tasks have run."""


@contextmanager
def started(*command: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-m", *command], env=environment(), stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(30)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--tasks", type=int, default=200_000, help="tasks that are planned")
    parser.add_argument("--run", type=int, default=20_000, help="tasks that are run")
    parser.add_argument("--workers", type=int, default=2)
    wanted = parser.parse_args()
    distributed: Any = importlib.import_module("distributed")
    with ExitStack() as stack:
        file = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "scheduler.json"
        scheduler = stack.enter_context(
            started("distributed.cli.dask_scheduler", "--port", "0", "--no-dashboard", "--scheduler-file", str(file))
        )
        wait_until(file.exists, 30)
        for _ in range(wanted.workers):
            stack.enter_context(
                started("distributed.cli.dask_worker", "--nthreads", "1", "--scheduler-file", str(file))
            )
        client = stack.enter_context(distributed.Client(scheduler_file=str(file), set_as_default=False))
        client.wait_for_workers(wanted.workers, 60)
        return measure(DaskExecutor(client), psutil.Process(scheduler.pid), wanted.tasks, wanted.run)


def measure(executor: DaskExecutor, scheduler: psutil.Process, tasks: int, run: int) -> int:
    """Run the first of many tasks and print how the scheduler's resident memory grew."""
    list(executor.map(abs, range(200)))  # what a first task costs is no growth
    before = most = scheduler.memory_info().rss
    done = 0
    began = time.perf_counter()

    def listen(event: Event) -> None:
        nonlocal done, most
        done += event.kind == "task"
        if done % 500 == 0:
            most = max(most, scheduler.memory_info().rss)
        if done == run:
            raise EnoughError

    executor.task_function = make_result
    with suppress(EnoughError):
        executor.staged_copy([make_stage(0, tasks)], on_event=listen)
    seconds = time.perf_counter() - began
    growth = most - before
    print(f"{tasks} tasks planned, {done} run in {seconds:.1f} s ({seconds / max(done, 1) * 1e3:.2f} ms a task)")
    print(f"scheduler: {before / 1e6:.0f} MB at first, at most {growth / 1e6:.1f} MB more")
    return int(growth > MOST_GROWTH_BYTES)


if __name__ == "__main__":
    sys.exit(main())
