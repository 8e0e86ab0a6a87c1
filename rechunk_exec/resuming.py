"""Which tasks of a job that was begun are still to be run. Layer: with the job, above storage.

A task is done if the journal says so and what it has stored is still there (:class:`~rechunk_exec.storage.Presence`).
Of a stage that writes an intermediate only that is needed which the next stage still has to read: an intermediate that
was removed, or lost, is made again as far as that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from rechunk_exec import storage
from rechunk_exec.errors import ResumeError
from rechunk_exec.executors.base import WorkerShape
from rechunk_exec.grid import Box, Grid, clip
from rechunk_exec.request import Limits
from rechunk_exec.results import TaskResult
from rechunk_exec.stageplan import StagePlan
from rechunk_exec.tasks import ArrayRef, Stage
from rechunk_exec.verification import VerifyReport

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
        presence = storage.Presence(stage.target)
        missing = {number for number in needed if not _is_done(stage, results.get((stage.number, number)), presence)}
        after = replace(stage, left=tuple(_runs(sorted(missing))))
        left.insert(0, after)
        done += [
            result
            for (number, index), result in results.items()
            if number == stage.number and index not in missing and 0 <= index < stage.tasks
        ]
    return Remainder(tuple(left), tuple(done))


def take_back(journal: storage.Journal, last: Stage, results: Iterable[TaskResult], found: VerifyReport) -> None:
    """Have the journal say that what differs is not done, nor what it was made of.

    Parameters
    ----------
    journal : Journal
    last : Stage
        The last stage of the job, whole.
    results : iterable of TaskResult
        Of all tasks of the job.
    found : VerifyReport
    """
    bad = {
        number
        for number in range(last.tasks)
        for start, stop in [last.box(number)]
        if any(_overlap(start, stop, box.start, box.stop) for box in found.differing)
    }
    journal.replace(result for result in results if result.stage == last.number and result.index not in bad)


def refuse_other_job(
    begun: storage.JobRecord, wanted: storage.Fingerprint, workers: WorkerShape, target: ArrayRef
) -> None:
    """Raise :class:`ResumeError` unless the job that was begun is the one that is asked for now."""
    differences = begun.fingerprint.differences(wanted, with_temp=len(begun.plan.stages) > 1)
    if differences:
        raise ResumeError(
            f"a job goes on as it was begun; the one at {target} was begun at {begun.begun} with other words: "
            f"{'; '.join(differences)}; nothing was touched; give these, or mode='overwrite' to begin anew"
        )
    at_once = min(stage.tasks_per_worker for stage in begun.plan.stages)
    if workers.tasks_per_worker > at_once and not workers.elastic:
        raise ResumeError(
            f"a job goes on within its memory; it was planned for {at_once} tasks at once in a worker; got an executor "
            f"that runs {workers.tasks_per_worker}; give one that runs fewer, or mode='overwrite' to plan anew"
        )


def refuse_other_plan(
    begun: storage.JobRecord, source: storage.StoredArray, wanted: storage.StoredArray, target: ArrayRef
) -> None:
    """Raise :class:`ResumeError` if the plan of a job is not one for its arrays.

    Such a plan was edited by hand: a part of the array would not be copied, and the job seem finished.

    Parameters
    ----------
    begun : JobRecord
    source : StoredArray
    wanted : StoredArray
        An array like the target.
    target : ArrayRef
        Where the job was begun.
    """
    first, last = begun.plan.stages[0], begun.plan.stages[-1]
    planned = (first.shape, first.itemsize, last.write_unit, begun.plan.max_mem)
    right = (source.shape, source.dtype.itemsize, clip(wanted.write_unit, source.shape), begun.fingerprint.max_mem)
    names = ("shape", "itemsize", "write unit", "max_mem")
    wrong = [f"its {name} is {a}, not {b}" for name, a, b in zip(names, planned, right, strict=True) if a != b]
    wrong += () if wrong else _other_read_units(begun.plan.stages, source.chunk)
    if wrong:
        raise ResumeError(
            f"a job goes on by the plan that it was begun with; the one recorded at {target} was changed: "
            f"{'; '.join(wrong)}; nothing was touched; give mode='overwrite' to begin anew"
        )


def replaced(target: ArrayRef) -> ResumeError:
    """Return what is raised where another job, or none, is at a target since this one was planned."""
    return ResumeError(
        f"a job goes on as it was when it was planned; since then another one was begun at {target}, or it was "
        "removed; plan again"
    )


def refuse_past_limits(begun: storage.JobRecord, limits: Limits, target: ArrayRef) -> None:
    """Raise :class:`ResumeError` if a job that was begun passes limits that are set only now."""
    plan = begun.plan
    sizes = (math.prod(stage.write_unit) * stage.itemsize for stage in plan.stages[:-1])
    passed = []
    if limits.max_objects is not None and plan.objects > limits.max_objects:
        passed.append(f"it writes {plan.objects} objects, and max_objects is {limits.max_objects}")
    if limits.min_object_bytes is not None and (least := min(sizes, default=math.inf)) < limits.min_object_bytes:
        passed.append(f"it writes objects of {least} bytes, and min_object_bytes is {limits.min_object_bytes}")
    if limits.max_temp_bytes is not None and plan.temp_bytes > limits.max_temp_bytes:
        passed.append(f"its intermediates hold {plan.temp_bytes} bytes, and max_temp_bytes is {limits.max_temp_bytes}")
    if passed:
        raise ResumeError(
            f"a job goes on by the plan that it was begun with; the one at {target} passes what is asked now: "
            f"{'; '.join(passed)}; nothing was touched; give no such limit, or mode='overwrite' to begin anew"
        )


def _other_read_units(stages: Sequence[StagePlan], source_chunk: tuple[int, ...]) -> Iterator[str]:
    """Say which stages decode what no plan of ours does.

    Of the source that is whole chunks or bands of their rows (:mod:`rechunk_exec.storage.bands`). How many rows is not
    looked at: each version has its own rule for that. Intermediates give any part of their chunks.
    """
    chunks = [clip(chunk, stages[0].shape) for chunk in (source_chunk, *(stage.chunk for stage in stages[:-1]))]
    for number, (stage, chunk) in enumerate(zip(stages, chunks, strict=True)):
        unit = stage.read_unit
        fits = all(u <= c for u, c in zip(unit, chunk, strict=True)) if number else _is_band(unit, chunk)
        if unit != chunk and not fits:
            parts = "a part of one" if number else "a band of its rows"
            yield f"its stage {number} reads units of {unit}, which are neither whole chunks of {chunk} nor {parts}"


def _is_band(unit: tuple[int, ...], chunk: tuple[int, ...]) -> bool:
    """Whether a box is some rows along one axis of a chunk: one index before that axis, and all on those after it."""
    cut = [axis for axis, (u, c) in enumerate(zip(unit, chunk, strict=True)) if u < c]
    return bool(cut) and unit[: cut[-1]] == (1,) * cut[-1] and unit[cut[-1] + 1 :] == chunk[cut[-1] + 1 :]


def _overlap(start: Sequence[int], stop: Sequence[int], low: Sequence[int], high: Sequence[int]) -> bool:
    return all(a < d and c < b for a, b, c, d in zip(start, stop, low, high, strict=True))


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
