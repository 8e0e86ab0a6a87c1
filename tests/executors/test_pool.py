"""What is the same in all pools and needs no workers; the rest is in the contract."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from rechunk_exec.executors import SerialExecutor, ThreadsExecutor
from rechunk_exec.executors.copyrun import task_error
from rechunk_exec.executors.shared import Shared
from tests.executors.recording import make_stage


class Thing:
    """Something that weak references can watch."""


def test_serial_takes_one_task_at_a_time() -> None:
    taken = []

    def tasks() -> Iterator[int]:
        for number in range(5):
            taken.append(number)
            yield number

    results = SerialExecutor().map(abs, tasks())
    assert taken == []
    next(results)
    assert taken == [0]
    next(results)
    assert taken == [0, 1]


@pytest.mark.parametrize("executor", [SerialExecutor(), ThreadsExecutor(1)])
def test_a_failed_task_leaves_no_memory_behind(executor: Any) -> None:
    seen: list[weakref.ref[Thing]] = []

    def hold_and_fail(task: object) -> None:
        thing = Thing()
        seen.append(weakref.ref(thing))
        raise ValueError("no")

    executor.task_function = hold_and_fail
    gc.collect()
    gc.disable()
    try:
        alive = []
        with pytest.raises(Exception, match="no"):
            executor.staged_copy(
                [make_stage(0, 1)], on_event=lambda event: alive.append(sum(r() is not None for r in seen))
            )
    finally:
        gc.enable()
    assert len(seen) == 3
    assert max(alive) <= 1, "at most what the last try held, for its traceback"


def test_results_that_wait_for_a_slow_one_count_against_the_window() -> None:
    with ThreadsExecutor(4) as executor:
        taken = []

        def tasks() -> Iterator[float]:
            for number in range(100):
                taken.append(number)
                yield 0.2 if number == 0 else 0.0

        results = executor.map(_sleep, tasks(), window=6)
        next(results)
        assert len(taken) <= 6
        assert len(list(results)) == 99


def test_handles_work_in_any_executor() -> None:
    handle: Shared[list[int]] = SerialExecutor().put([1, 2, 3])
    with ThreadsExecutor(2) as executor:
        assert list(executor.map(_total, [handle, handle])) == [6, 6]


def test_the_error_of_a_task_says_all() -> None:
    cause = OSError(28, "No space left on device")
    error = task_error(make_stage(3, 9)[4], cause)
    assert (error.stage, error.index) == (3, 4)
    assert error.__cause__ is cause
    for part in ("task 4 of stage 3", "(4,) to (5,)", "/nowhere/a", "/nowhere/b", "3 times", "No space left on device"):
        assert part in str(error)


def _sleep(seconds: float) -> float:
    import time

    time.sleep(seconds)
    return seconds


def _total(handle: Shared[list[int]]) -> int:
    return sum(handle.value)
