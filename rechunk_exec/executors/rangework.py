"""Ranges of a stage's tasks, run in a worker of an engine that nothing comes back from. Layer: executors.

A worker notes what came of its tasks in the journal beside the target, where the driver reads it (:mod:`.records`).
What engines give it are pairs of numbers, positions among the tasks that are left.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rechunk_exec.copy import run_task
from rechunk_exec.errors import RechunkError, StorageError, error_text
from rechunk_exec.executors.copyrun import TRIES, is_permanent, task_error
from rechunk_exec.executors.sight import NEEDED_ALIKE, Landmarks, differences, summary, unseen, versions
from rechunk_exec.results import TaskFailure, TaskResult
from rechunk_exec.storage import Journal
from rechunk_exec.tasks import CopyTask, Stage

_NOTE_S = 1.0
"""How often a worker notes results, and looks whether a task has failed elsewhere."""
_JOBS_KNOWN = 8
"""Of how many jobs a process keeps what it knows."""


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

    def check(self) -> None:
        """Refuse to work where this process is not one that the driver could have meant. Looks once a process.

        Raises
        ------
        StorageError
            If this process does not see what the driver sees.
        RechunkError
            If it has another version of this package.
        """
        self._here.check_once(self)

    def __call__(self, first: int, stop: int, *, done: Collection[int] = (), attempts: int = 0) -> Ran:
        """Run the tasks at the positions ``[first, stop)`` among those left, but for those ``done``, by number.

        ``attempts`` is how often the range was begun before, by a worker that was lost: which task it was at is not
        known, so each that is left may have been begun in it.

        Raises
        ------
        StorageError, RechunkError
            As :meth:`check`; or if this process cannot write to the journal.
        """
        self.check()
        with self._here.running():
            return self._run(first, stop, done, attempts)

    def _run(self, first: int, stop: int, done: Collection[int], attempts: int) -> Ran:
        here, journal = self._here, self.journal
        results: list[TaskResult] = []
        noted, noted_at = 0, time.monotonic()
        try:
            for position in range(first, stop):
                with here.places:
                    if here.stopped(journal):
                        return Ran(results=tuple(results), failed=True)
                    # Results are noted for many tasks at once; a task that knew of the journal would write its own.
                    task = dataclasses.replace(self.stage[position], journal=None)
                    if task.index in done:
                        continue
                    result = self._try(task, here, journal)
                if result is None:
                    return Ran(results=tuple(results), failed=True)
                results.append(dataclasses.replace(result, attempts=result.attempts + attempts))
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

    @property
    def _here(self) -> Here:
        return here_of(self.run, self.stage)

    def _try(self, task: CopyTask, here: Here, journal: Journal) -> TaskResult | None:
        """Run a task, three times if need be; None if it failed."""
        for attempt in range(1, TRIES + 1):
            try:
                result = self.function(task)
            except Exception as error:  # noqa: BLE001 - whatever a task raises
                if attempt < TRIES and not is_permanent(error):
                    continue
                here.errors[task.stage, task.index] = error
                failure = TaskFailure(stage=task.stage, index=task.index, message=error_text(error))
                try:
                    journal.add_failure(failure)
                except RechunkError:
                    raise task_error(task, error) from error
                return None
            return dataclasses.replace(result, attempts=attempt)
        return None


@dataclass(slots=True)
class Here:
    """What a process keeps of one run."""

    places: threading.BoundedSemaphore
    """One for each task that may run at once."""
    errors: dict[tuple[int, int], BaseException] = field(default_factory=dict)
    """Of the tasks that failed for good in this process."""
    _checked: bool = False
    _stopped: bool = False
    _looked_at: float = 0.0
    _ranges: int = 0
    """How many are running."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _ended: threading.Condition = field(init=False)
    """Notified when a range has ended."""

    def __post_init__(self) -> None:
        self._ended = threading.Condition(self._lock)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Have :meth:`halt` wait for a range, until its results are noted."""
        with self._lock:
            self._ranges += 1
        try:
            yield
        finally:
            with self._lock:
                self._ranges -= 1
                self._ended.notify_all()

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
        """Begin no other task in this process, and wait for those that run, and until their results are noted."""
        with self._lock:
            self._stopped = True
            self._ended.wait_for(lambda: not self._ranges)

    def stopped(self, journal: Journal) -> bool:
        """Whether a task has failed for good, here or, as far as was seen in the last second, elsewhere."""
        with self._lock:
            if not self._stopped:
                self._stopped = bool(self.errors)
            if not self._stopped and time.monotonic() - self._looked_at > _NOTE_S:
                self._stopped = bool(journal.failures())
                self._looked_at = time.monotonic()
            return self._stopped


def here_of(run: str, stage: Stage) -> Here:
    """Return what this process keeps of a run, for stages of one number of tasks at once."""
    return _here(run, stage.plan.tasks_per_worker)


@functools.lru_cache(maxsize=_JOBS_KNOWN)
def _here(run: str, tasks_at_once: int) -> Here:  # noqa: ARG001 - the run is what it is known by
    return Here(places=threading.BoundedSemaphore(tasks_at_once))
