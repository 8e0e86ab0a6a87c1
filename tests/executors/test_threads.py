from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from rechunk_exec.executors import ThreadsExecutor
from tests.executors.contract import PoolContract
from tests.executors.recording import Recording, make_stage, most_at_once


def test_an_interrupt_lets_running_tasks_end_and_starts_none(tmp_path: Path) -> None:
    with ThreadsExecutor(2) as executor:
        executor.task_function = recording = Recording(tmp_path, seconds=1.0)
        timer = threading.Timer(0.4, os.kill, [os.getpid(), signal.SIGINT])
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            executor.staged_copy([make_stage(0, 50, tasks_per_worker=2)])
        assert len(recording.entries()) == len(recording.tries()) == 2
        executor.task_function = Recording(tmp_path)
        assert executor.staged_copy([make_stage(1, 3)]).tasks == 3


def test_a_plan_may_ask_for_fewer_tasks_at_once(tmp_path: Path) -> None:
    with ThreadsExecutor(6) as executor:
        for tasks_per_worker in (1, 3, 6, 9):
            folder = tmp_path / str(tasks_per_worker)
            folder.mkdir()
            executor.task_function = recording = Recording(folder, seconds=0.05)
            executor.staged_copy([make_stage(0, 12, tasks_per_worker=tasks_per_worker)])
            assert most_at_once(recording.entries()) == min(6, tasks_per_worker)


@pytest.mark.parametrize("workers, error", [(0, ValueError), (-1, ValueError), ("2", TypeError), (True, TypeError)])
def test_wrong_options(workers: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="workers"):
        ThreadsExecutor(workers)


class TestThreads(PoolContract):
    def make(self) -> ThreadsExecutor:
        return ThreadsExecutor()
