"""An executor of your own, on the processes of a ``multiprocessing.Pool``, and a job that it runs.

    pip install '.[test]'
    python examples/executor_of_your_own.py FOLDER

The class is all that an executor needs. tests/examples/test_executor_of_your_own.py has it pass the contract that the
executors of this package pass: exact values, stages one after the other, three tries, errors, events and results.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import zarr

import rechunk_exec as rx
from rechunk_exec.results import Event, OnEvent


class PoolExecutor:
    """Runs each task in a process of a pool, which holds all tasks of a stage at once, some 700 bytes each."""

    name = "multiprocessing"
    tasks_per_worker = 1  # in one process at once

    def __init__(self, workers: int = 2) -> None:
        self._pool = multiprocessing.get_context("spawn").Pool(workers)

    def staged_copy(self, stages: Sequence[rx.Stage], *, on_event: OnEvent | None = None) -> rx.CopyReport:
        """Run the tasks of each stage that are left, then those of the next one."""
        began, results = time.perf_counter(), list[rx.TaskResult]()
        tell = on_event or (lambda _: None)
        tell(Event(kind="start", total=sum(len(stage) for stage in stages)))
        for stage in stages:
            running = [self._pool.apply_async(attempt, [task]) for task in stage]
            try:
                for result, failures in (pending.get() for pending in running):
                    results.append(result)
                    for message in failures:
                        tell(Event(kind="retry", stage=result.stage, index=result.index, message=message))
                    tell(Event(kind="task", stage=result.stage, index=result.index, result=result))
            finally:
                for pending in running:  # after an error too: nothing is left running
                    pending.wait()
        retries = sum(result.attempts - 1 for result in results)
        seconds = time.perf_counter() - began
        return rx.CopyReport(executor=self.name, results=tuple(results), seconds=seconds, retries=retries)

    def close(self) -> None:
        """End the processes."""
        self._pool.close()
        self._pool.join()


def attempt(task: rx.CopyTask) -> tuple[rx.TaskResult, list[str]]:
    """Run a task, three times at most; return its result, and what went wrong before."""
    failures: list[str] = []
    while True:
        try:
            return replace(rx.run_task(task), attempts=len(failures) + 1), failures
        except Exception as error:
            failures.append(f"{type(error).__name__}: {error}")
            if len(failures) == 3:
                told = f"task {task.index} of stage {task.stage} failed three times, at last: {failures[-1]}"
                raise rx.TaskError(told, stage=task.stage, index=task.index) from error


def main(folder: Path) -> None:
    """Rewrite a small stack of epochs with it, and tell."""
    epochs = np.random.default_rng(0).normal(size=(24, 120, 120)).astype("f4")
    zarr.create_array(folder / "epochs.zarr", data=epochs, chunks=(1, 120, 120))
    executor = PoolExecutor(2)
    job = rx.rechunk(folder / "epochs.zarr", (24, 10, 10), "200kB", folder / "series.zarr", executor=executor)
    series = job.execute()
    executor.close()
    same = np.asarray(series[...]).tobytes() == epochs.tobytes()
    print(job.report, "the same to the last bit" if same else "not the same", sep="\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
