"""Runs whose tasks leave their results beside the target, for executors that nothing comes back to. Layer: executors.

The driver gives each stage a journal (:func:`records_kept`); workers run ranges of task numbers and note what came of
them there (:mod:`.rangework`); the driver reads it (:class:`Records`). So no results travel through an engine that
would hold them all, and a killed driver has lost nothing.
"""

from __future__ import annotations

import dataclasses
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from rechunk_exec.copy import finished_results
from rechunk_exec.errors import RechunkError, StorageError, TaskError
from rechunk_exec.executors.copyrun import task_error
from rechunk_exec.executors.missing import missing_tasks
from rechunk_exec.executors.rangework import here_of
from rechunk_exec.results import CopyReport, Event, OnEvent, TaskFailure, TaskResult
from rechunk_exec.storage import Journal, holds_documents
from rechunk_exec.tasks import ArrayRef, Stage

_READ_S = 1.0
"""How often results are read, at most."""
_READING = 10.0
"""How many times longer than reading takes the next reading is put off: a journal can be long."""
_TRIED_AGAIN = "a try before failed, or its worker was lost"


def recorded(stages: Sequence[Stage], journal: ArrayRef | None = None) -> tuple[Stage, ...]:
    """Return the stages, those without a journal with ``journal``, by default beside the last one's target."""
    job = uuid.uuid4().hex
    return tuple(
        stage if stage.journal else dataclasses.replace(stage, journal=journal or stages[-1].target, job=job)
        for stage in stages
    )


def refuse_unrecorded(stages: Sequence[Stage], kind: str, name: str) -> None:
    """Raise :class:`StorageError` if no record of tasks can lie beside a target."""
    for stage in stages:
        if not holds_documents(stage.target):
            raise StorageError(
                f"{kind} needs a target that takes records of tasks; got {stage.target}, in an icechunk "
                f"repository, for {name!r}; use executor='threads' or 'processes', or an object with staged_copy"
            )


@contextmanager
def records_kept(stages: Sequence[Stage]) -> Iterator[tuple[Stage, ...]]:
    """Give the stages journals where they have none; these are gone in the end."""
    kept = recorded(stages)
    try:
        yield kept
    finally:
        for given, stage in zip(stages, kept, strict=True):
            if given.journal is None and stage.journal is not None:
                with suppress(RechunkError):
                    Journal(stage.journal, stage.job).forget()


class Records:
    """What the driver knows of a run by its journal.

    Parameters
    ----------
    stages : sequence of Stage
        Of one job, each with a journal.
    run : str
        The name of the run.
    tell : callable
        Told of each task once it is seen to be done.
    """

    def __init__(self, stages: Sequence[Stage], run: str, tell: OnEvent) -> None:
        self.stages = stages
        self.results: tuple[TaskResult, ...] = ()
        self._run = run
        self._tell = tell
        self.listener_error: BaseException | None = None
        """What the listener raised."""
        self._told: set[tuple[int, int]] = set()
        self._next_look = 0.0
        self._begun = time.perf_counter()

    def begin(self) -> None:
        """Tell of the start; forget the failures of an earlier run of the same stages, which would stop this one."""
        for journal in self._journals():
            journal.forget_failures()
        self._tell(Event(kind="start", total=sum(len(stage) for stage in self.stages)))

    def look(self, *, last: bool = False) -> None:
        """Read what is done, and tell of what is new: each second, less often where reading takes long."""
        if not last and time.monotonic() < self._next_look:
            return
        began = time.monotonic()
        self.results = tuple(finished_results(self.stages))
        took = time.monotonic() - began
        self._next_look = time.monotonic() + max(_READ_S, _READING * took)
        for result in self.results:
            key = result.stage, result.index
            if key not in self._told:
                self._told.add(key)
                try:
                    self._tell_of(result)
                except BaseException as error:
                    self.listener_error = error
                    raise

    def _tell_of(self, result: TaskResult) -> None:
        for _ in range(result.attempts - 1):
            self._tell(Event(kind="retry", stage=result.stage, index=result.index, message=_TRIED_AGAIN))
        self._tell(Event(kind="task", stage=result.stage, index=result.index, result=result))

    def end(self) -> None:
        """See to it that no task of the run is running in this process any more, and none begins."""
        for stage in self.stages:
            here_of(self._run, stage).halt()

    def failure(self) -> TaskError | None:
        """Return the error of the first task that failed for good and was not done since, if there is one."""
        done = {(result.stage, result.index) for result in self.results}
        for failure in sorted(
            (failure for journal in self._journals() for failure in journal.failures()),
            key=lambda failure: (failure.stage, failure.index),
        ):
            stage = next((stage for stage in self.stages if stage.number == failure.stage), None)
            if stage is None or (failure.stage, failure.index) in done or not stage.has_task(failure.index):
                continue
            return task_error(stage[_position(stage, failure.index)], self._cause(stage, failure))
        return None

    def missing(self) -> str:
        """Say which tasks are not done; "" if all are."""
        return missing_tasks(self.stages, self.results)

    def report(self, executor: str) -> CopyReport:
        """Return what was done since the run began."""
        return CopyReport(
            executor=executor,
            results=self.results,
            seconds=time.perf_counter() - self._begun,
            retries=sum(result.attempts - 1 for result in self.results),
        )

    def _cause(self, stage: Stage, failure: TaskFailure) -> BaseException:
        here = here_of(self._run, stage).errors.get((failure.stage, failure.index))
        return here or RechunkError(f"{failure.message} (as text: it was raised in another process)")

    def _journals(self) -> list[Journal]:
        found = {(stage.journal.key, stage.job): (stage.journal, stage.job) for stage in self.stages if stage.journal}
        return [Journal(journal, job) for journal, job in found.values()]


def _position(stage: Stage, number: int) -> int:
    """Return where the task of this number is among those left."""
    before = 0
    for first, stop in stage.left or ((0, stage.tasks),):
        if first <= number < stop:
            return before + number - first
        before += stop - first
    raise IndexError(number)
