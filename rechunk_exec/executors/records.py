"""Runs whose tasks leave their results beside the target, for executors that nothing comes back to. Layer: executors.

The driver gives each stage a journal (:func:`recorded`); workers run ranges of task numbers and note what came of them
there (:class:`RangeWork`); the driver reads it (:class:`Records`). So no results travel through an engine that would
hold them all, and a killed driver has lost nothing.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from rechunk_exec.copy import finished_results, run_task
from rechunk_exec.errors import RechunkError, StorageError, TaskError
from rechunk_exec.executors.copyrun import TRIES, is_permanent, task_error
from rechunk_exec.executors.sight import NEEDED_ALIKE, Landmarks, differences, summary, unseen, versions
from rechunk_exec.results import Event, OnEvent, TaskFailure, TaskResult
from rechunk_exec.storage import Journal, holds_documents
from rechunk_exec.tasks import ArrayRef, CopyTask, Stage

_NOTE_S = 1.0
"""How often a worker notes results, and looks whether a task has failed elsewhere."""
_JOBS_KNOWN = 8
"""Of how many jobs a process keeps what it knows."""
_NAMED = 5
"""How many runs of missing tasks a message names."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What came of a range of tasks."""

    results: tuple[TaskResult, ...]
    failed: bool
    """Whether a task has failed for good, here or elsewhere, so that others were not begun."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeWork:
    """Runs ranges of a stage's tasks in a worker. Constant in size, however many tasks; pickles.

    A process runs no more tasks of a run at once than the plan has counted memory for, however many ranges its engine
    gives it. Each task is tried three times, and noted as failed for good after that; then no process begins another
    one, and those that run are ended. Nothing is raised for it: an engine would make the same tries again.
    """

    stage: Stage
    """With a journal."""
    run: str
    """The name of this run of the stages, never used twice."""
    landmarks: Landmarks
    versions: dict[str, str] = field(default_factory=versions)
    """Of the driver."""
    function: Callable[[CopyTask], TaskResult] = run_task

    def __call__(self, first: int, stop: int) -> Ran:
        """Run the tasks at the positions ``[first, stop)`` among those left.

        Raises
        ------
        StorageError
            If this process does not see what the driver sees, or cannot write to the journal.
        RechunkError
            If it has another version of this package.
        """
        here = _here(self.run, self.stage.plan.tasks_per_worker)
        here.check_once(self)
        journal = self.journal
        results: list[TaskResult] = []
        noted, noted_at = 0, time.monotonic()
        try:
            for position in range(first, stop):
                with here.places:
                    if here.stopped(journal):
                        return Ran(results=tuple(results), failed=True)
                    result = self._try(position, here, journal)
                if result is None:
                    return Ran(results=tuple(results), failed=True)
                results.append(result)
                if time.monotonic() - noted_at > _NOTE_S:
                    journal.add(results[noted:])
                    noted, noted_at = len(results), time.monotonic()
        finally:
            if results[noted:]:
                journal.add(results[noted:])
        return Ran(results=tuple(results), failed=False)

    @property
    def journal(self) -> Journal:
        """Where results are noted."""
        if self.stage.journal is None:
            raise RechunkError(f"a stage needs a journal for its tasks to be recorded in; got none of {self.stage}")
        return Journal(self.stage.journal, self.stage.job)

    def _try(self, position: int, here: _Here, journal: Journal) -> TaskResult | None:
        """Run a task, three times if need be; None if it failed."""
        # Results are noted for many tasks at once; a task that knew of the journal would write its own.
        task = dataclasses.replace(self.stage[position], journal=None)
        for attempt in range(1, TRIES + 1):
            try:
                result = self.function(task)
            except Exception as error:  # noqa: BLE001 - whatever a task raises
                if attempt < TRIES and not is_permanent(error):
                    continue
                here.errors[task.stage, task.index] = error
                failure = TaskFailure(stage=task.stage, index=task.index, message=f"{type(error).__name__}: {error}")
                try:
                    journal.add_failure(failure)
                except RechunkError:
                    raise task_error(task, error) from error
                return None
            return dataclasses.replace(result, attempts=attempt) if attempt > 1 else result
        return None


@dataclass(slots=True)
class _Here:
    """What a process keeps of one run."""

    places: threading.BoundedSemaphore
    count: int
    """How many places there are."""
    errors: dict[tuple[int, int], BaseException] = field(default_factory=dict)
    """Of the tasks that failed for good in this process."""
    _checked: bool = False
    _stopped: bool = False
    _looked_at: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def check_once(self, work: RangeWork) -> None:
        """Refuse to work where this process is not one that the driver could have meant."""
        with self._lock:
            if self._checked:
                return
            if NEEDED_ALIKE in (wrong := differences(work.versions)):
                raise RechunkError(
                    f"workers and driver must have the same version of {NEEDED_ALIKE}; got {wrong[NEEDED_ALIKE]}, "
                    "seen from a worker; install the same on both"
                )
            missing = unseen(work.landmarks)
            if missing:
                raise StorageError(
                    f"workers must see the arrays that the driver sees; one does not: {summary(missing)}; use a store "
                    "that all machines see",
                    permanent=True,
                )
            self._checked = True

    def halt(self) -> None:
        """Begin no other task in this process, and wait for those that run."""
        with self._lock:
            self._stopped = True
        held = 0
        try:
            while held < self.count:
                self.places.acquire()
                held += 1
        finally:
            for _ in range(held):
                self.places.release()

    def stopped(self, journal: Journal) -> bool:
        """Whether a task has failed for good, here or, as far as was seen in the last second, elsewhere."""
        with self._lock:
            if not self._stopped:
                self._stopped = bool(self.errors)
            if not self._stopped and time.monotonic() - self._looked_at > _NOTE_S:
                self._stopped = bool(journal.failures())
                self._looked_at = time.monotonic()
            return self._stopped


@functools.lru_cache(maxsize=_JOBS_KNOWN)
def _here(run: str, tasks_at_once: int) -> _Here:  # noqa: ARG001 - the run is what it is known by
    return _Here(places=threading.BoundedSemaphore(tasks_at_once), count=tasks_at_once)


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

    def begin(self) -> None:
        """Forget the failures of an earlier run of the same stages, which would stop this one."""
        for journal in self._journals():
            journal.forget_failures()

    def look(self, *, last: bool = False) -> None:
        """Read what is done, and tell of what is new: each second, less often where reading takes long."""
        if not last and time.monotonic() < self._next_look:
            return
        began = time.monotonic()
        self.results = tuple(finished_results(self.stages))
        took = time.monotonic() - began
        self._next_look = time.monotonic() + max(_NOTE_S, 10 * took)
        for result in self.results:
            key = result.stage, result.index
            if key not in self._told:
                self._told.add(key)
                try:
                    self._tell(Event(kind="task", stage=result.stage, index=result.index, result=result))
                except BaseException as error:
                    self.listener_error = error
                    raise

    def end(self) -> None:
        """See to it that no task of the run is running in this process any more, and none begins."""
        for places in {stage.plan.tasks_per_worker for stage in self.stages}:
            _here(self._run, places).halt()

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

    def _cause(self, stage: Stage, failure: TaskFailure) -> BaseException:
        here = _here(self._run, stage.plan.tasks_per_worker).errors.get((failure.stage, failure.index))
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


def missing_tasks(stages: Sequence[Stage], results: Sequence[TaskResult]) -> str:
    """Say how many and which tasks have no result, as runs of numbers; "" if all have."""
    total = sum(len(stage) for stage in stages)
    missing = total - len(results)
    if not missing:
        return ""
    done = {(result.stage, result.index) for result in results}
    named = [(stage.number, runs) for stage in stages if (runs := missing_runs(stage, done))]
    return f"{missing} of {total} tasks missing: " + "; ".join(f"of stage {number}: {runs}" for number, runs in named)


def missing_runs(stage: Stage, done: set[tuple[int, int]]) -> str:
    """Name the tasks that are missing, as runs of numbers; "" if none are."""
    runs: list[list[int]] = []
    for index in map(stage.task_number, range(len(stage))):
        if (stage.number, index) in done:
            continue
        if runs and runs[-1][1] == index - 1:
            runs[-1][1] = index
        elif len(runs) == _NAMED:
            return ", ".join(map(_run, runs)) + ", ..."
        else:
            runs.append([index, index])
    return ", ".join(map(_run, runs))


def _run(run: Sequence[int]) -> str:
    first, last = run
    return str(first) if first == last else f"{first} to {last}"
