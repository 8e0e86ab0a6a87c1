"""Whether a worker's memory stays flat: over 1,000 tasks of one job, and over 20 jobs; and what the driver takes.

    python tests/benchmarks/memory_flat.py [--tasks 1000] [--jobs 20] [--driver-tasks 20000]

Each line is a fresh process. *Growth* is resident memory after the last task less that after a tenth of them; of jobs,
after the last less after the fifth. The driver is the process that hands tasks to two worker processes; its figure is
the high-water mark over what it held before the job.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT)]  # as a script it sees its own folder only

from tests.benchmarks.memoryjobs import MB  # noqa: E402
from tests.benchmarks.memoryprobe import give_back, status  # noqa: E402

EXECUTORS = ("serial", "threads", "processes")
_FIFTH = 5


@dataclass(frozen=True, kw_only=True)
class Course:
    """Resident bytes of a worker on its way."""

    early: int
    late: int
    highest: int
    """Of the worker, over what it held at first."""
    driver: int = 0

    @property
    def growth(self) -> int:
        """How much more it held late than early."""
        return self.late - self.early


def over_tasks(folder: Path, executor: str, tasks: int, row_bytes: int = 256_000) -> Course:
    """Run one job of many tasks in this process, which should be a fresh one."""
    with ExitStack() as stack:
        runner, pids = _runner(stack, executor)
        _job(folder, "warm", runner, 4, row_bytes).execute()
        give_back()
        job = _job(folder, "target", runner, tasks, row_bytes)
        watched = {pid: status(pid, "VmRSS") for pid in pids()}
        course: list[dict[int, int]] = []

        def look(event: Any) -> None:
            if event.kind == "task":
                course.append({pid: status(pid, "VmRSS") for pid in watched} if len(course) % 20 == 0 else {})

        for pid in {os.getpid(), *watched}:
            Path(f"/proc/{pid}/clear_refs").write_text("5")
        before = status(os.getpid(), "VmRSS")
        job.execute(on_event=look)
        driver = status(os.getpid(), "VmHWM") - before
        seen = [held for held in course if held]
        assert len(course) == tasks, f"{len(course)} tasks where {tasks} were wanted"
        early = seen[len(seen) // 10]
        worst = max(watched, key=lambda pid: seen[-1][pid] - early[pid])
        return Course(
            early=early[worst],
            late=seen[-1][worst],
            highest=max(held[worst] for held in seen) - watched[worst],
            driver=0 if executor != "processes" else driver,
        )


def over_jobs(folder: Path, executor: str, jobs: int) -> Course:
    """Run many jobs, one after the other, in this process, which should be a fresh one."""
    with ExitStack() as stack:
        runner, pids = _runner(stack, executor)
        jobs_to_run = [
            _job(folder, f"target-{number}", runner, 8 + number % 3, 1_000_000 + 300_000 * (number % 4))
            for number in range(jobs)
        ]
        give_back()
        held: list[dict[int, int]] = []
        for job in jobs_to_run:
            job.execute()
            held.append({pid: status(pid, "VmRSS") for pid in pids()})
        worst = max(held[-1], key=lambda pid: held[-1][pid] - held[_FIFTH][pid])
        return Course(
            early=held[_FIFTH][worst],
            late=held[-1][worst],
            highest=max(one[worst] for one in held) - held[0][worst],
        )


def _runner(stack: ExitStack, executor: str) -> tuple[Any, Any]:
    from rechunk_exec.executors import ProcessesExecutor

    if executor != "processes":
        return executor, lambda: [os.getpid()]
    pool = stack.enter_context(ProcessesExecutor(2))
    pool.run_on_workers(give_back)
    return pool, lambda: [worker.pid for worker in pool._workers]


def _job(folder: Path, name: str, executor: Any, tasks: int, row_bytes: int) -> Any:
    """A job of so many tasks, two rows each, in the least memory."""
    import numpy as np
    import zarr

    import rechunk_exec as rx

    columns = row_bytes // 4
    source = zarr.create_array(folder / f"{name}-source", shape=(2 * tasks, columns), chunks=(1, columns), dtype="f4")
    rows = np.random.default_rng(tasks).random((2, columns), dtype="f4")
    for task in range(tasks):
        source[2 * task : 2 * task + 2] = rows + task

    def planned(max_mem: int) -> Any:
        options: dict[str, Any] = {"executor": executor, "progress": False, "max_temp_bytes": 0}
        return rx.rechunk(source, (2, columns), max_mem, folder / name, **options)

    try:
        job = planned(1)
    except rx.BudgetError as refusal:
        job = planned(refusal.needed_bytes)
    assert job.plan.tasks == tasks, job
    return job


def run_fresh(what: str, executor: str, count: int, row_bytes: int = 256_000) -> Course:
    """Run one of the two in a fresh process."""
    done = subprocess.run(
        [sys.executable, __file__, "--one", what, executor, str(count), str(row_bytes)],
        check=False,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    return Course(**json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    """Run all of it, or one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=20)
    parser.add_argument("--driver-tasks", type=int, default=20_000)
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        what, executor, count, row_bytes = asked.one
        with tempfile.TemporaryDirectory() as folder:
            course = (
                over_tasks(Path(folder), executor, int(count), int(row_bytes))
                if what == "tasks"
                else over_jobs(Path(folder), executor, int(count))
            )
        print(json.dumps(asdict(course)))
        return
    for executor in EXECUTORS:
        for what, count in (("tasks", asked.tasks), ("jobs", asked.jobs)):
            course = run_fresh(what, executor, count)
            early, late, growth, highest = (
                f"{size / MB:6.2f} MB" for size in (course.early, course.late, course.growth, course.highest)
            )
            print(f"{executor:9s} {count:5d} {what:5s} {early} early, {late} late: {growth} more; {highest} over idle")
    driver = run_fresh("tasks", "processes", asked.driver_tasks, 4096).driver
    print(f"driver of {asked.driver_tasks} tasks in processes: {driver / MB:.1f} MB over idle")


if __name__ == "__main__":
    main()
