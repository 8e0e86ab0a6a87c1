"""Which call is started next, with a lane whose calls end in an order that the test says."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from rechunk_exec.errors import RechunkError, StorageError, TaskError
from rechunk_exec.executors.calls import Outcome
from rechunk_exec.executors.copyrun import CopyRun
from rechunk_exec.executors.scheduling import Lane, results_in_order, run_stage
from rechunk_exec.executors.shared import Shared
from rechunk_exec.results import Event
from tests.executors.recording import make_result, make_stage

STAGE = make_stage(1, 6, tasks_per_worker=3)


@dataclass
class Track:
    """Runs calls when it is asked how they ended: the last one that was begun first, one at a time."""

    slots: int = 3
    fails: dict[int, list[BaseException]] = field(default_factory=dict)
    """What calls raise, by argument: their first, second, ... try."""
    lost: dict[int, int] = field(default_factory=dict)
    """How often the worker of a call dies, by argument."""
    begun: list[int] = field(default_factory=list)
    most: int = 0
    _flying: dict[int, tuple[Shared[Any], int]] = field(default_factory=dict)

    @property
    def lane(self) -> Lane:
        return Lane(slots=lambda bound: min(self.slots, bound or self.slots), begin=self.begin, finished=self.finished)

    @property
    def flying(self) -> int:
        return len(self._flying)

    def begin(self, function: Shared[Callable[[Any], Any]], argument: Any) -> int:
        self.begun.append(argument)
        number = 100 + len(self.begun)
        self._flying[number] = function, argument
        self.most = max(self.most, self.flying)
        return number

    def finished(self) -> Sequence[Outcome]:
        number = max(self._flying)
        function, argument = self._flying.pop(number)
        stray = Outcome(number=3, value="of an earlier job")
        if self.lost.get(argument, 0):
            self.lost[argument] -= 1
            return [stray, Outcome(number=number, error=RechunkError("it died"), lost=True)]
        if self.fails.get(argument):
            return [stray, Outcome(number=number, error=self.fails[argument].pop(0))]
        return [stray, Outcome(number=number, value=function.value(argument))]


def run(track: Track) -> tuple[CopyRun, list[Event]]:
    events: list[Event] = []
    outcome = CopyRun(tell=events.append)
    run_stage(track.lane, Shared(lambda index: make_result(STAGE[index])), STAGE, outcome)
    return outcome, events


def test_a_stage_fills_the_slots_and_passes_over_calls_of_earlier_jobs() -> None:
    track = Track(slots=8)
    outcome, events = run(track)
    assert track.begun == [0, 1, 2, 3, 4, 5]
    assert track.most == 3, "the plan's tasks at once in a worker"
    assert sorted(result.index for result in outcome.results) == [0, 1, 2, 3, 4, 5]
    assert [event.index for event in events] == [2, 3, 4, 5, 1, 0], "as they ended"


def test_a_task_that_failed_comes_before_fresh_ones() -> None:
    track = Track(fails={1: [OSError("one"), OSError("two")]}, slots=2)
    outcome, events = run(track)
    assert track.begun == [0, 1, 1, 1, 2, 3, 4, 5]
    assert outcome.retries == 2
    assert [(event.index, event.message) for event in events if event.kind == "retry"] == [
        (1, "OSError: one"),
        (1, "OSError: two"),
    ]
    assert {result.index: result.attempts for result in outcome.results} == {0: 1, 1: 3, 2: 1, 3: 1, 4: 1, 5: 1}


@pytest.mark.parametrize(
    "failures, tries",
    [([OSError(str(number)) for number in range(9)], 3), ([StorageError("full", permanent=True)] * 9, 1)],
)
def test_a_task_that_fails_for_good_begins_nothing_more_and_waits_for_what_runs(
    failures: list[BaseException], tries: int
) -> None:
    track = Track(fails={2: failures})
    with pytest.raises(TaskError) as caught:
        run(track)
    assert (caught.value.stage, caught.value.index) == (1, 2)
    assert track.begun == [0, 1, *[2] * tries]
    assert track.flying == 0


def doubled(track: Track, tasks: Iterator[int], window: int) -> Iterator[int]:
    return results_in_order(track.lane, Shared(lambda number: 2 * number), tasks, window)


def test_results_of_a_map_are_in_order_whatever_ends_first() -> None:
    track = Track()
    assert list(doubled(track, iter(range(7)), 7)) == [0, 2, 4, 6, 8, 10, 12]
    assert track.most == 3


def test_a_call_of_a_map_is_made_again_if_its_worker_died_and_else_not() -> None:
    track = Track(lost={1: 2})
    assert list(doubled(track, iter(range(3)), 3)) == [0, 2, 4]
    assert track.begun.count(1) == 3
    with pytest.raises(RechunkError, match="it died"):
        list(doubled(Track(lost={1: 3}), iter(range(3)), 3))
    failing = Track(fails={1: [LookupError("no")]})
    results = doubled(failing, iter(range(3)), 3)
    assert next(results) == 0
    with pytest.raises(LookupError, match="no"):
        next(results)
    assert failing.begun.count(1) == 1
