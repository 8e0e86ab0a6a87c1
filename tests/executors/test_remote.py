from __future__ import annotations

import os
import pickle
from typing import Any

import pytest

from rechunk_exec.errors import BudgetError, RechunkError, SerializationError
from rechunk_exec.executors.remote import Failure, Missing, Parcel, Reply, open_parcel, pack_call, run_call, run_set_up
from rechunk_exec.executors.shared import ARRIVALS, Shared


class GoodError(Exception):
    pass


class PickyError(Exception):
    """One of the many that pickle but do not load."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} and {second}")

    def __reduce__(self) -> tuple[Any, ...]:
        return PickyError, self.args  # what Exception does, whatever other packages register for it


class TwoFacedError(Exception):
    """Loads as something else."""

    def __reduce__(self) -> tuple[Any, ...]:
        return str, ("a string",)


class HiddenError(Exception):
    """Has no message that can be shown."""

    def __str__(self) -> str:
        return str(1 / 0)


def test_a_failure_that_pickles_is_itself_again() -> None:
    failure: Failure = pickle.loads(pickle.dumps(Failure.of(caught(GoodError("reason")))))
    error = failure.error()
    assert type(error) is GoodError
    assert str(error) == "reason"
    (note,) = error.__notes__
    assert f"In process {os.getpid()}" in note
    assert "raise error" in note


def test_our_errors_keep_their_attributes() -> None:
    error = Failure.of(caught(BudgetError("more", needed_bytes=5, max_mem=4))).error()
    assert isinstance(error, BudgetError)
    assert (error.needed_bytes, error.max_mem) == (5, 4)


@pytest.mark.parametrize("error", [PickyError(1, 2), TwoFacedError("face")])
def test_a_failure_that_does_not_travel_is_told_of(error: Exception) -> None:
    failure: Failure = pickle.loads(pickle.dumps(Failure.of(caught(error))))
    told = failure.error()
    assert type(told) is RechunkError
    assert f"{type(error).__name__}: {error}" in str(told)
    assert "raise error" in told.__notes__[0]


def test_a_failure_that_cannot_be_shown_is_told_of() -> None:
    """It ended the worker, which was taken for one that was killed."""
    failure: Failure = pickle.loads(pickle.dumps(Failure.of(caught(HiddenError()))))
    assert failure.summary == "HiddenError: (its message cannot be shown: ZeroDivisionError)"


def test_a_failure_of_a_class_that_is_not_here() -> None:
    failure = Failure(data=b"cnowhere\nNothing\n.", summary="Nothing: at all", text="traceback")
    told = failure.error()
    assert type(told) is RechunkError
    assert "Nothing: at all" in str(told)
    assert isinstance(told.__cause__, ModuleNotFoundError)


def test_causes_are_in_the_text() -> None:
    error = caught(GoodError("outer"))
    error.__cause__ = GoodError("inner")
    assert "inner" in Failure.of(error).text


def test_a_call_that_does_not_load() -> None:
    reply = run_call(b"cnowhere\nNothing\n.")
    outcome = reply.outcome(3)
    assert outcome.number == 3
    assert isinstance(outcome.error, SerializationError)


def test_a_parcel_asks_for_what_is_missing() -> None:
    function: Shared[Any] = Shared(abs)
    data, needs = pack_call(function, -4)
    parcel = Parcel(data=data, tokens=tuple(needs), set_ups=())
    asked = open_parcel(parcel)
    assert asked == Missing((function.token,))
    enclosed = ((function.token, function.pack().data),)
    reply = open_parcel(Parcel(data=data, tokens=tuple(needs), set_ups=(), enclosed=enclosed))
    assert isinstance(reply, Reply)
    assert reply.outcome(0).value == 4
    assert isinstance(open_parcel(parcel), Reply), "it is kept"
    ARRIVALS.forget(function.token)


def test_a_set_up_that_fails_is_tried_again_with_the_next_call() -> None:
    set_up: Shared[Any] = Shared(fail)
    ARRIVALS.keep(set_up.token, set_up.pack().data)
    for _ in range(2):
        reply = open_parcel(Parcel(data=b"", tokens=(), set_ups=(set_up.token,)))
        assert isinstance(reply, Reply)
        assert isinstance(reply.outcome(0).error, GoodError)


def test_a_set_up_is_called_once_in_a_process() -> None:
    calls.clear()
    set_up: Shared[Any] = Shared(count)
    ARRIVALS.keep(set_up.token, set_up.pack().data)
    for _ in range(3):
        assert run_set_up(set_up.token).failure is None
    assert calls == [1]
    ARRIVALS.forget(set_up.token)


calls: list[int] = []


def count() -> None:
    calls.append(1)


def fail() -> None:
    raise GoodError("set-up")


def caught(error: Exception) -> Exception:
    try:
        raise error
    except Exception as same:  # noqa: BLE001
        return same
