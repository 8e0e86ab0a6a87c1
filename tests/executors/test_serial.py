from __future__ import annotations

from pathlib import Path

import pytest

from rechunk_exec.executors import SerialExecutor
from tests.executors.contract import PoolContract
from tests.executors.recording import Recording, make_stage
from tests.executors.workers import FOREVER_S, interrupted_when


def test_an_interrupt_in_a_task_is_raised_at_once(tmp_path: Path) -> None:
    executor = SerialExecutor()
    executor.task_function = recording = Recording(tmp_path, seconds=FOREVER_S)
    with interrupted_when(lambda: bool(recording.tries())):
        executor.staged_copy([make_stage(0, 50)])
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
