from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from rechunk_exec.executors import SerialExecutor
from tests.executors.contract import PoolContract
from tests.executors.recording import Recording, make_stage


def test_an_interrupt_in_a_task_is_raised_at_once(tmp_path: Path) -> None:
    executor = SerialExecutor()
    executor.task_function = recording = Recording(tmp_path, seconds=5.0)
    timer = threading.Timer(0.3, os.kill, [os.getpid(), signal.SIGINT])
    timer.start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        executor.staged_copy([make_stage(0, 50)])
    assert time.monotonic() - began < 3
    assert recording.entries() == []
    executor.task_function = Recording(tmp_path)
    assert executor.staged_copy([make_stage(1, 3)]).tasks == 3


def test_map_passes_on_what_is_no_exception_as_any_plain_loop() -> None:
    executor = SerialExecutor()
    with pytest.raises(SystemExit):
        list(executor.map(_leave, [3]))
    assert list(executor.map(abs, [-1])) == [1]


class TestSerial(PoolContract):
    def make(self) -> SerialExecutor:
        return SerialExecutor()


def _leave(number: int) -> None:
    raise SystemExit(number)
