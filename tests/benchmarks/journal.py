"""What the journal costs: one job with it and without it, in turns, in one run. Run by hand; asserts nothing.

    python tests/benchmarks/journal.py [--tasks 1500] [--rounds 5] [--task-ms 10] [--folder DIR]

Tasks wait until they have taken ``--task-ms`` each, so that the machine's drift in encoding does not hide a cost of
microseconds a task, and the serial executor runs one after the other. ``with`` is the job as users run it; ``without``
has a keeper that beats but writes no results. ``function`` is a plain function as executor, whose tasks run in the
driver's process; ``records`` is one whose tasks write their results by themselves, as those do that a function runs in
other processes. The table shows seconds and their ratio to ``without``, by medians and for each round's pair, and
the processor time of the journal's own calls, as a part of the ``--task-ms`` of all tasks: what the journal would cost
if nothing of it ran beside the tasks. The second is the one to trust on a machine that others use too.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self
from unittest import mock

import zarr

import rechunk_exec as rx
from rechunk_exec import job, keeper
from rechunk_exec.copy import noting, worker
from rechunk_exec.executors import SerialExecutor
from rechunk_exec.storage import Journal

WAYS = ("without", "with", "function", "records")
OF_THE_JOURNAL = (
    (worker, "note"),
    (Journal, "begin"),
    (Journal, "add"),
    (Journal, "add_one"),
    (Journal, "merge"),
    (Journal, "results"),
    (Journal, "forget"),
    (Journal, "finish"),
    (keeper.Keeper, "__call__"),
    (keeper.Keeper, "take"),
)
"""What is of the journal. Of calls within each other the outermost counts."""


class Metered:
    """Sums the processor time of the calls of a function, while the context lasts, but for those inside of others."""

    inside = threading.local()

    def __init__(self, owner: Any, name: str) -> None:
        self.seconds = 0.0
        call = getattr(owner, name)

        def metered(*arguments: Any, **options: Any) -> Any:
            if getattr(self.inside, "another", False):
                return call(*arguments, **options)
            self.inside.another = True
            began = time.thread_time()
            try:
                return call(*arguments, **options)
            finally:
                self.seconds += time.thread_time() - began
                self.inside.another = False

        self._patch = mock.patch.object(owner, name, metered)

    def __enter__(self) -> Self:
        self._patch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._patch.stop()


class TimedTasks:
    """A task function that takes a given time, the copy included; it yields the processor for the rest."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self, task: rx.CopyTask) -> rx.TaskResult:
        end = time.perf_counter() + self.seconds
        result = rx.run_task(task)
        time.sleep(max(0.0, end - time.perf_counter()))
        return result


def run_one(folder: Path, way: str, tasks: int, seconds: float) -> tuple[float, float]:
    """Run the job once and return how long its execution took, by the clock and of processors, in seconds."""
    timed = TimedTasks(seconds)
    executor: Any = SerialExecutor()
    executor.task_function = timed
    if way in {"function", "records"}:

        def executor(stages: Sequence[Any]) -> None:
            for stage in stages:
                for task in stage:
                    timed(task)

    planned = rx.rechunk(folder / "source", (1, 32, 64), 60_000, folder / way, executor=executor, progress=False)
    if planned.plan.tasks != tasks:
        raise SystemExit(f"{tasks} tasks were wanted; the plan has {planned.plan.tasks}")

    def without(_: object, *arguments: Any, **options: Any) -> keeper.Keeper:
        return keeper.Keeper(None, *arguments, **options)

    began = time.perf_counter()
    with ExitStack() as patches:
        if way == "without":
            patches.enter_context(mock.patch.object(job, "Keeper", without))
        if way == "records":
            patches.enter_context(mock.patch.object(noting, "_notebook", return_value=None))
        calls = [patches.enter_context(Metered(*call)) for call in OF_THE_JOURNAL]
        planned.execute()
    spent = time.perf_counter() - began, sum(call.seconds for call in calls)
    shutil.rmtree(folder / way)
    return spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=None, help="where; by default a temporary one")
    parser.add_argument("--tasks", type=int, default=1500)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--task-ms", type=float, default=10.0)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="journal-benchmark-", dir=options.folder))
    source = zarr.create_array(folder / "source", shape=(options.tasks, 64, 64), chunks=(1, 64, 64), dtype="f4")
    for start in range(0, options.tasks, 100):
        source[start : start + 100] = start
    spent: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
    for number in range(options.rounds):
        for way in WAYS if number % 2 else WAYS[::-1]:
            spent[way].append(run_one(folder, way, options.tasks, options.task_ms / 1000))
    shutil.rmtree(folder)
    base = spent["without"]
    for way in WAYS:
        median = statistics.median(clock for clock, _ in spent[way])
        ratio = median / statistics.median(clock for clock, _ in base)
        ratios = [mine / theirs for (mine, _), (theirs, _) in zip(spent[way], base, strict=True)]
        part = statistics.median(own for _, own in spent[way]) / options.tasks / (options.task_ms / 1000)
        print(
            f"{way:8} {median:8.3f} s, {ratio:.4f} of without (by round: {', '.join(f'{r:.4f}' for r in ratios)}); "
            f"processor time of the journal: {100 * part:.2f} % of the tasks' time"
        )


if __name__ == "__main__":
    main()
