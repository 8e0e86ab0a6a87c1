from __future__ import annotations

from collections.abc import Callable

import pytest

from rechunk_exec.report.tally import Tally, format_seconds
from rechunk_exec.results import Event, TaskResult


def task_event(stage: int, index: int, bytes_written: int) -> Event:
    result = TaskResult(
        stage=stage,
        index=index,
        seconds=1.0,
        bytes_read=2 * bytes_written,
        bytes_written=bytes_written,
        stored_bytes_read=bytes_written,
        stored_bytes_written=bytes_written,
        predicted_bytes=bytes_written,
        peak_bytes=bytes_written,
        reader="direct",
        writer="direct",
    )
    return Event(kind="task", stage=stage, index=index, result=result)


def clock_of(*times: float) -> Callable[[], float]:
    ticks = iter(times)
    return lambda: next(ticks)


def test_rate_and_time_left_follow_the_clock() -> None:
    tally = Tally(clock=clock_of(100, 102, 104))
    tally.add(Event(kind="start", total=8))
    assert tally.all.seconds_left is None
    tally.add(task_event(0, 0, 500))
    tally.add(task_event(0, 1, 700))
    assert (tally.all.done, tally.all.bytes_written, tally.all.bytes_per_second) == (2, 1200, 300)
    assert tally.all.seconds_left == 12


def test_a_stage_is_timed_from_the_end_of_the_one_before() -> None:
    tally = Tally({0: 2, 1: 2}, clock=clock_of(0, 1, 2, 12, 22))
    tally.add(Event(kind="start", total=4))
    for stage in (0, 1):
        for index in (0, 1):
            tally.add(task_event(stage, index, 100))
    assert (tally.stages[0].seconds, tally.stages[1].seconds, tally.all.seconds) == (2, 20, 22)
    assert tally.stages[1].seconds_left == 0


def test_stages_that_do_not_add_up_to_the_total_are_left_out() -> None:
    tally = Tally({0: 2, 1: 2}, clock=clock_of(0, 1))
    tally.add(Event(kind="start", total=3))
    tally.add(task_event(1, 0, 100))
    assert tally.stages == {}
    assert (tally.all.done, tally.all.total) == (1, 3)


def test_stages_are_known_by_their_number_not_their_place() -> None:
    tally = Tally({1: 1}, clock=clock_of(0, 1))
    tally.add(Event(kind="start", total=1))
    tally.add(task_event(1, 0, 100))
    assert tally.stages[1].done == 1


def test_retries_are_counted_and_finish_nothing() -> None:
    tally = Tally(clock=clock_of(0, 1))
    tally.add(Event(kind="start", total=1))
    tally.add(Event(kind="retry", message="no"))
    assert (tally.retries, tally.all.done) == (1, 0)


@pytest.mark.parametrize(
    "seconds,text",
    [
        (0.0, "0.00 s"),
        (0.999, "1.00 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min 0 s"),
        (3599.6, "1 h 0 min"),
        (7500, "2 h 5 min"),
    ],
)
def test_durations_for_people(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text
