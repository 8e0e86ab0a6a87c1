"""Stages as a transform of a Beam pipeline: ``StagedCopy``, for pipelines of one's own too. Layer: executors.

What passes through the pipeline are pairs of numbers, the ranges of a stage's tasks. They are made on a worker, spread
over all of them by a ``Reshuffle``, and counted; the next stage has that count as a side input, which no runner has
before the last task has ended. Stages travel once, pickled in the transforms. Results go to the journal beside the
target (:mod:`.records`), so no runner has to hold them.
"""

from __future__ import annotations

import functools
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rechunk_exec.copy import run_task
from rechunk_exec.errors import RechunkError
from rechunk_exec.executors.beamrun import apache_beam
from rechunk_exec.executors.rangework import RangeWork
from rechunk_exec.executors.records import recorded
from rechunk_exec.executors.sight import Landmarks
from rechunk_exec.results import TaskResult
from rechunk_exec.tasks import ArrayRef, CopyTask, Stage

_RANGES = 4096
"""At most so many ranges of tasks a stage: enough for any cluster, and few for any runner."""

Range = tuple[int, int]
Count = tuple[int, int]
"""Tasks done, and how many ranges were cut short because a task failed."""

_CUT_SHORT: Range = (-1, -1)
"""Instead of a stage's ranges where the stage before has failed."""


@dataclass(frozen=True, slots=True)
class _Split:
    """Makes the ranges of a stage's tasks, once the stage before has been counted."""

    tasks: int
    counted: bool
    """Whether what it waits for is the count of a stage, not a PCollection of others."""

    # Methods of their own names: of an object that is called, Beam passes on no side inputs.
    def ranges(self, _: int, before: Any = None) -> Iterable[Range]:
        if self.counted and before[1]:
            return [_CUT_SHORT]
        size = max(1, -(-self.tasks // _RANGES))
        return ((first, min(first + size, self.tasks)) for first in range(0, self.tasks, size))


@dataclass(frozen=True, slots=True)
class _Copy:
    """Runs a range of tasks, and says in Beam's metrics what they moved."""

    work: RangeWork

    def ran(self, numbers: Range) -> Count:
        if numbers == _CUT_SHORT:
            return 0, 1
        ran = self.work(*numbers)
        metrics = apache_beam().metrics.Metrics
        metrics.counter("rechunk_exec", "tasks").inc(len(ran.results))
        for result in ran.results:
            metrics.counter("rechunk_exec", "bytes_read").inc(result.bytes_read)
            metrics.counter("rechunk_exec", "bytes_written").inc(result.bytes_written)
            metrics.distribution("rechunk_exec", "task_bytes").update(result.bytes_written)
            metrics.distribution("rechunk_exec", "task_ms").update(round(1000 * result.seconds))
        return len(ran.results), int(ran.failed)


def _sum(counts: Iterable[Count]) -> Count:
    held = list(counts)
    return sum(done for done, _ in held), sum(failed for _, failed in held)


def _refuse_failed(count: Count) -> int:
    """Return the number of tasks done; raise if one failed, so that the pipeline does not end as if all were well."""
    done, failed = count
    if failed:
        raise RechunkError(
            f"all tasks must be done; one failed, and the pipeline stopped after {done}; the journal beside the target "
            "says which and why"
        )
    return done


@functools.cache
def staged_copy_class() -> Any:
    """Return the class ``StagedCopy``, whose base is Beam's."""
    beam: Any = apache_beam()

    class StagedCopy(beam.PTransform):  # type: ignore[misc]
        """Copies the stages' arrays, in a pipeline of one's own: ``pipeline | StagedCopy(stages)``.

        Applied to a pipeline, or to a PCollection, which is waited for. Gives a PCollection of one number, the tasks
        done, that others can wait for. The arrays must exist: have a function as executor apply it, which
        :func:`rechunk_exec.rechunk` calls with stages that are ready.

        Parameters
        ----------
        stages : sequence of Stage
            They run in order; none starts before all tasks of the one before have ended.
        journal : ArrayRef, optional
            The array beside which tasks note their results, where the stages do not say. Default: the last target.
        """

        def __init__(
            self,
            stages: Sequence[Stage],
            journal: ArrayRef | None = None,
            *,
            run: str | None = None,
            task_function: Callable[[CopyTask], TaskResult] = run_task,
        ) -> None:
            super().__init__()
            held = tuple(stages)
            if not all(isinstance(stage, Stage) for stage in held):
                raise TypeError(f"stages must be a sequence of Stage; got {stages!r}")
            landmarks = Landmarks.of(held)
            name = run or uuid.uuid4().hex
            self._works = [
                RangeWork(stage=stage, run=name, landmarks=landmarks, function=task_function)
                for stage in recorded(held, journal)
            ]

        def expand(self, pbegin: Any) -> Any:
            start = pbegin.pipeline | "Start" >> beam.Create([0])
            before = [] if isinstance(pbegin, beam.pvalue.PBegin) else [beam.pvalue.AsIter(pbegin)]
            counts: list[Any] = []
            for work in self._works:
                label, split = f"stage {work.stage.number}", _Split(len(work.stage), bool(counts)).ranges
                counts.append(
                    start
                    | f"Ranges of {label}" >> beam.FlatMap(split, *before).with_output_types(Range)
                    | f"Spread {label}" >> beam.Reshuffle()
                    | f"Copy {label}" >> beam.Map(_Copy(work).ran).with_output_types(Count)
                    | f"Count {label}" >> beam.CombineGlobally(_sum).with_output_types(Count)
                )
                before = [beam.pvalue.AsSingleton(counts[-1])]
            return (
                tuple(counts)
                | "Counts" >> beam.Flatten(pipeline=pbegin.pipeline)
                | "Sum" >> beam.CombineGlobally(_sum).with_output_types(Count)
                | "Done" >> beam.Map(_refuse_failed).with_output_types(int)
            )

    return StagedCopy


def __getattr__(name: str) -> Any:
    if name == "StagedCopy":
        return staged_copy_class()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
