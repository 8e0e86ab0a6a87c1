from __future__ import annotations

import signal
import threading
import time
from pathlib import Path
from typing import Any, NoReturn

import pytest

from rechunk_exec.executors import ThreadsExecutor
from rechunk_exec.results import TaskResult
from rechunk_exec.tasks import CopyTask
from tests.executors.contract import PoolContract
from tests.executors.recording import Recording, make_result, make_stage, most_at_once
from tests.executors.workers import PATIENCE_S, interrupted_when


def test_an_interrupt_lets_running_tasks_end_and_starts_none(tmp_path: Path) -> None:
    begun, ended, interrupted = [], [], threading.Event()

    def interrupt(number: int, frame: object) -> NoReturn:
        interrupted.set()
        raise KeyboardInterrupt

    def end_after_the_interrupt(task: CopyTask) -> TaskResult:
        begun.append(task.index)
        assert interrupted.wait(PATIENCE_S)
        time.sleep(0.2)
        ended.append(task.index)
        return make_result(task)

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        with ThreadsExecutor(2) as executor:
            executor.task_function = end_after_the_interrupt
            with interrupted_when(lambda: len(begun) == 2):
                executor.staged_copy([make_stage(0, 50, tasks_per_worker=2)])
            assert sorted(begun) == sorted(ended) == [0, 1]
            executor.task_function = Recording(tmp_path)
            assert executor.staged_copy([make_stage(1, 3)]).tasks == 3
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_plan_may_ask_for_fewer_tasks_at_once(tmp_path: Path) -> None:
    with ThreadsExecutor(6) as executor:
        for tasks_per_worker in (1, 3, 6, 9):
            folder = tmp_path / str(tasks_per_worker)
            folder.mkdir()
            wanted = min(6, tasks_per_worker)
            recording, together = Recording(folder, seconds=0.05), threading.Barrier(wanted)

            def meet(
                task: CopyTask, together: threading.Barrier = together, recording: Recording = recording
            ) -> TaskResult:
                together.wait(PATIENCE_S)  # which as many others must begin meanwhile as are wanted
                return recording(task)

            executor.task_function = meet
            executor.staged_copy([make_stage(0, 12, tasks_per_worker=tasks_per_worker)])
            assert most_at_once(recording.entries()) <= wanted


@pytest.mark.parametrize("workers, error", [(0, ValueError), (-1, ValueError), ("2", TypeError), (True, TypeError)])
def test_wrong_options(workers: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="workers"):
        ThreadsExecutor(workers)


class TestThreads(PoolContract):
    def make(self) -> ThreadsExecutor:
        return ThreadsExecutor()
