"""Which tasks of a job that was begun are still to be run. Layer: with the job, above storage.

A task is done if the journal says so and what it has stored is still there (:class:`~rechunk_exec.storage.Presence`).
Of a stage that writes an intermediate only that is needed which the next stage still has to read: an intermediate that
was removed, or lost, is made again as far as that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from rechunk_exec import storage
from rechunk_exec.grid import Box, Grid
from rechunk_exec.plans import StagePlan
from rechunk_exec.results import TaskResult
from rechunk_exec.tasks import Stage

Results = Mapping[tuple[int, int], TaskResult]


@dataclass(frozen=True, slots=True)
class Remainder:
    """What is left of a job."""

    stages: tuple[Stage, ...]
    """All stages of the job, each with the tasks that are left."""
    done: tuple[TaskResult, ...]
    """Results of the tasks that need not be run again."""


def what_is_left(stages: Sequence[Stage], results: Results) -> Remainder:
    """Return what is left of a job whose tasks left ``results``.

    Parameters
    ----------
    stages : sequence of Stage
        All of the job's stages, whole.
    results : mapping
        From the journal, by stage and number of the task.
    """
    left: list[Stage] = []
    done: list[TaskResult] = []
    after: Stage | None = None
    for stage in reversed(stages):
        needed: Iterable[int] = range(stage.tasks) if after is None else _read_by(after, stage.plan)
        presence = storage.Presence(stage.target, listed=after is not None)
        missing = {number for number in needed if not _is_done(stage, results.get((stage.number, number)), presence)}
        after = replace(stage, left=tuple(_runs(sorted(missing))))
        left.insert(0, after)
        done += [
            result
            for (number, index), result in results.items()
            if number == stage.number and index not in missing and index < stage.tasks
        ]
    return Remainder(tuple(left), tuple(done))


def _is_done(stage: Stage, result: TaskResult | None, presence: storage.Presence) -> bool:
    return result is not None and presence.holds(result, *stage.box(result.index))


def _read_by(stage: Stage, before: StagePlan) -> Iterator[int]:
    """Yield the tasks of the stage before whose regions are read by the tasks left of ``stage``."""
    grid = Grid(before.shape, before.region)
    if len(stage) == stage.tasks:
        yield from range(len(grid))
        return
    seen: set[int] = set()
    for first, stop in stage.left or ():
        for number in range(first, stop):
            for unit in grid.touching(Box(*stage.box(number))):
                seen.add(grid.number(unit.index))
    yield from sorted(seen)


def _runs(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    first = 0
    for place, number in enumerate(numbers):
        if place + 1 == len(numbers) or numbers[place + 1] != number + 1:
            yield numbers[first], number + 1
            first = place + 1
