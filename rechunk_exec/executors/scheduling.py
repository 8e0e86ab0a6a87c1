"""Which call is started next, and what comes of one that has ended: for a map, and for a stage. Layer: executors.

Both loops run in the caller's thread, and know of a pool only what its :class:`Lane` offers. What is raised out of them
may leave calls running, which the pool then ends.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from rechunk_exec.errors import RechunkError, TaskError
from rechunk_exec.executors.calls import Outcome
from rechunk_exec.executors.copyrun import TRIES, CopyRun, is_permanent, task_error
from rechunk_exec.executors.shared import Shared
from rechunk_exec.results import TaskResult
from rechunk_exec.tasks import Stage

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """What a pool offers to who schedules calls on it."""

    slots: Callable[[int | None], int]
    """How many calls may run at once now, of at most so many in one worker, or of as many as it can."""
    begin: Callable[[Shared[Callable[[Any], Any]], object], int]
    """Start a call of a function with an argument; return its number."""
    finished: Callable[[], Sequence[Outcome]]
    """Wait until a call has ended; return all that have, also of an earlier job whose end was interrupted."""


def results_in_order(lane: Lane, fn: Shared[Callable[[T], R]], tasks: Iterator[T], window: int) -> Iterator[R]:
    """Yield what ``fn`` returns for each task, in order; a call whose worker died is made again.

    At most ``window`` tasks are taken beyond those whose results were yielded.

    Raises
    ------
    Exception
        What ``fn`` raised, in the place of its result.
    """
    flying: dict[int, _Mapped[T]] = {}
    ended: dict[int, Outcome] = {}
    numbered = enumerate(tasks)
    turn = 0
    while True:
        room = min(lane.slots(None) - len(flying), window - len(flying) - len(ended))
        for place, task in itertools.islice(numbered, max(0, room)):
            flying[lane.begin(fn, task)] = _Mapped(place, task)
        if not flying:
            return
        for outcome in lane.finished():
            mapped = flying.pop(outcome.number, None)
            if mapped is None:
                continue
            if outcome.lost and mapped.tries < TRIES:
                flying[lane.begin(fn, mapped.task)] = dataclasses.replace(mapped, tries=mapped.tries + 1)
            else:
                ended[mapped.place] = outcome
        while turn in ended:
            yield cast(R, _value(ended.pop(turn)))
            turn += 1


def run_stage(lane: Lane, work: Shared[Callable[[int], TaskResult]], stage: Stage, run: CopyRun) -> None:
    """Run all tasks of a stage, each up to three times; ``work`` runs one by its place in the stage.

    Raises
    ------
    TaskError
        If a task failed for good. None is running any more then.
    """
    fresh = iter(range(len(stage)))
    again: deque[int] = deque()
    failures: dict[int, int] = {}
    flying: dict[int, int] = {}
    fatal: TaskError | None = None
    while True:
        # Asked each time: workers may join and leave.
        while fatal is None and len(flying) < lane.slots(stage.plan.tasks_per_worker):
            index = again.popleft() if again else next(fresh, None)
            if index is None:
                break
            flying[lane.begin(work, index)] = index
        if not flying:
            break
        for outcome in lane.finished():
            index = flying.pop(outcome.number, None)
            if index is None:
                continue
            if outcome.error is None:
                run.done(cast(TaskResult, outcome.value), attempts=failures.pop(index, 0) + 1)
                continue
            failures[index] = TRIES if is_permanent(outcome.error) else failures.get(index, 0) + 1
            if failures[index] == TRIES:
                fatal = fatal or task_error(stage[index], outcome.error)
            elif fatal is None:
                again.append(index)
                run.failed(stage, stage.task_number(index), outcome.error)
    if fatal is not None:
        raise fatal


@dataclass(frozen=True, slots=True)
class _Mapped(Generic[T]):
    """A task of a map that is in flight."""

    place: int
    task: T
    tries: int = 1


def _value(outcome: Outcome) -> object:
    if isinstance(outcome.error, Exception):
        raise outcome.error
    if outcome.error is not None:  # not to be taken for an exit or an interrupt of this process
        raise RechunkError(f"a call must return or raise an Exception; got {outcome.error!r}") from outcome.error
    return outcome.value
