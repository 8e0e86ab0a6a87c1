"""How many calls a worker of a ``distributed`` cluster is given: as many as it can run, and some more of short ones."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from rechunk_exec.executors import DaskExecutor, daskcalls
from tests.executors.clusters import running_in_this_process
from tests.executors.workers import PATIENCE_S

TASKS = 64
_GATE = threading.Event()


def short(number: int) -> int:
    return 3 * number


def slow(number: int) -> int:
    time.sleep(0.03)
    return 3 * number


def slow_from_half(number: int) -> int:
    """The calls of the second half wait until the test has seen how many there are."""
    if number >= TASKS // 2:
        assert _GATE.wait(PATIENCE_S)
        time.sleep(0.03)
    return 3 * number


def most_given(executor: DaskExecutor, function: Callable[[int], int], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many calls the worker had each time when it was given one, in a map that is checked besides."""
    given: list[int] = []
    launch = executor._calls.launch

    def counted(packed: Any, member: Any) -> None:
        launch(packed, member)
        given.append(member.running)

    monkeypatch.setattr(executor._calls, "launch", counted)
    assert list(executor.map(function, range(TASKS), window=TASKS)) == [3 * number for number in range(TASKS)]
    assert len(given) == TASKS
    return given


def test_short_calls_wait_at_the_worker_for_its_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daskcalls, "_ARRIVAL_S", 1.0)  # nothing is slow on a busy machine
    with running_in_this_process(1, 2) as client:
        given = most_given(DaskExecutor(client), short, monkeypatch)
    assert max(given) > 2, "it has two threads"
    assert max(given[:16]) <= 2, "how long calls take is not known before some have ended"
    assert max(given) <= 10


def test_other_calls_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    with running_in_this_process(1, 2) as client:
        executor = DaskExecutor(client)
        most_given(executor, short, monkeypatch)
        assert max(most_given(executor, slow, monkeypatch)) <= 2, "and those of another function count no more"


def test_nor_do_short_ones_where_fewer_may_run_than_there_are_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daskcalls, "_ARRIVAL_S", 1.0)
    with running_in_this_process(1, 2) as client:
        executor = DaskExecutor(client)
        assert list(executor.map(short, range(TASKS), window=TASKS))[-1] == 3 * (TASKS - 1)
        assert executor._slots(2) > 2
        assert executor._slots(1) == 1


def test_calls_that_become_slow_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    _GATE.clear()
    with running_in_this_process(1, 2) as client:
        executor = DaskExecutor(client)
        threading.Timer(0.3, _GATE.set).start()
        given = most_given(executor, slow_from_half, monkeypatch)
    assert max(given[TASKS // 2 + 10 :]) <= 2
