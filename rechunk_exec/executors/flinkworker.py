"""What a worker of Flink does: runs ranges of a stage's tasks and notes their results. Layer: executors, below flink.

It is a ``ProcessFunction`` of PyFlink by its methods, not by its class, so that it pickles by name and needs no PyFlink
to be read or tested. It travels once a slot, with the stage in it; elements are pairs of task positions.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Protocol

import psutil

from rechunk_exec.copy import configure_worker, finished_results, release_memory
from rechunk_exec.errors import RechunkError, StorageError
from rechunk_exec.executors.copyrun import TRIES, is_permanent
from rechunk_exec.executors.sight import NEEDED_ALIKE, Landmarks, differences, summary, unseen
from rechunk_exec.results import TaskFailure, TaskResult
from rechunk_exec.storage import Journal
from rechunk_exec.tasks import ArrayRef, CopyTask, Stage

_LOOK_S = 1.0
"""How often a worker looks whether a task of the stage has failed for good, and whether its task manager is there."""


class RuntimeContext(Protocol):
    """What Flink tells a worker of itself; a part of PyFlink's class of that name."""

    def get_attempt_number(self) -> int:
        """How often Flink has started this worker's part of the job before."""
        ...


@dataclass(slots=True, kw_only=True)
class RangeWorker:
    """Runs ranges of the tasks of one stage, in one worker.

    A task that fails for good is noted beside the target. The worker then passes over what is left, as all others do
    soon after: the job ends by itself, the tasks that ran have run to their end, and the driver reads what went wrong.
    Flink's own restarts are left for what only they can mend: a worker that died.
    """

    function: Callable[[CopyTask], TaskResult]
    """What runs a task."""
    stage: Stage
    """Without a journal, or each task would note its own result."""
    journal: ArrayRef
    landmarks: Landmarks
    """What the driver sees of the arrays, and this worker must see too."""
    versions: Mapping[str, str]
    """The driver's versions of the packages that decide what a task does."""
    cores: int | None
    """The cores of this worker; None where its process is not its own and stays as it is."""
    _journal: Journal | None = field(default=None, init=False)
    _done: frozenset[int] = field(default=frozenset(), init=False)
    _attempt: int = field(default=0, init=False)
    _stopped: bool = field(default=False, init=False)
    _looked: float = field(default=0.0, init=False)

    def open(self, context: RuntimeContext) -> None:
        """Get ready.

        Raises
        ------
        RechunkError
            If this worker has another version of this package than the driver.
        StorageError
            If it does not see what the driver sees.
        """
        self._refuse()
        if self.cores is not None:
            configure_worker(self.cores)
            _end_with_task_manager()
        self._journal = Journal(self.journal, self.stage.job)
        self._attempt = context.get_attempt_number()
        if self._attempt:  # an attempt begins from the first element, and what the last one noted need not run again
            noted = finished_results([replace(self.stage, journal=self.journal)])
            self._done = frozenset(result.index for result in noted)

    def process_element(self, element: tuple[int, int], context: object) -> Iterable[object]:
        """Run the tasks at positions ``[first, stop)`` of the stage and note their results, as one document."""
        results = []
        try:
            for position in range(*element):
                if self._is_over():
                    break
                task = self.stage[position]
                result = None if task.index in self._done else self._run(task)
                if result is not None:
                    results.append(result)
        finally:
            if results:
                self._notes.add(results)
        return ()

    def close(self) -> None:
        """Give back what a process that goes on has kept."""
        if self.cores is None:
            release_memory()

    @property
    def _notes(self) -> Journal:
        assert self._journal is not None, "Flink opens a function before it gives it elements"
        return self._journal

    def _refuse(self) -> None:
        differing = differences(self.versions)
        if NEEDED_ALIKE in differing:
            raise RechunkError(
                f"workers of Flink must have the driver's version of {NEEDED_ALIKE}; got {differing[NEEDED_ALIKE]}, "
                "where 'there' is the driver; install the same"
            )
        problems = unseen(self.landmarks)
        if problems:
            raise StorageError(
                f"workers of Flink must see the arrays that the driver sees; got {summary(problems)}; mount what holds "
                "them on each machine, and set credentials in the environment of the task managers",
                permanent=True,
            )

    def _run(self, task: CopyTask) -> TaskResult | None:
        """Run a task, three times if it fails; None if it has failed for good, which is noted then."""
        for tried in range(1, TRIES + 1):
            try:
                result = self.function(task)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is told to the driver
                if tried == TRIES or is_permanent(error):
                    message = f"{type(error).__name__}: {error}"
                    self._notes.add_failure(TaskFailure(stage=task.stage, index=task.index, message=message))
                    self._stopped = True
                    return None
            else:
                # Which task a lost attempt was at is not known: each that is left may have been begun in it.
                return replace(result, attempts=tried + self._attempt)
        return None

    def _is_over(self) -> bool:
        """Whether a task of the stage has failed for good, here or elsewhere."""
        now = time.monotonic()
        if not self._stopped and now - self._looked >= _LOOK_S:
            self._looked = now
            self._stopped = any(failure.stage == self.stage.number for failure in self._notes.failures())
        return self._stopped


def _end_with_task_manager() -> None:
    """End this process soon after the Java process that started it, which a worker of Flink does not do by itself.

    Else one whose task manager was killed would go on with its range, and then stay for ever.
    """
    java = next((parent for parent in psutil.Process().parents() if "java" in parent.name()), None)
    if java is not None:
        threading.Thread(target=_end_after, args=(java,), name="rechunk_exec-parent", daemon=True).start()


def _end_after(process: psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess):
        while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
            time.sleep(_LOOK_S)
    os._exit(1)
