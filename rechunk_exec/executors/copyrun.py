"""What a staged copy has come to, and what it sends to workers. Layer: executors, below the pools."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field

from rechunk_exec.copy import run_task
from rechunk_exec.errors import RechunkError, StorageError, TaskError, error_text
from rechunk_exec.results import Event, OnEvent, TaskResult
from rechunk_exec.tasks import CopyTask, Stage
from rechunk_exec.wire import SharedValues

TRIES = 3
"""How often a task is started before it has failed for good."""


@dataclass(frozen=True, slots=True)
class StageTask:
    """Runs a stage's tasks by number, so that a worker gets the stage once and then numbers."""

    function: Callable[[CopyTask], TaskResult]
    stage: Stage

    @property
    def leaves_nothing(self) -> bool:
        """Whether a process that has run it has nothing to write when it ends; see :mod:`.worker`."""
        return self.function is run_task

    def __call__(self, index: int) -> TaskResult:
        """Run task ``index``.

        Raises
        ------
        RechunkError
            If the function returns anything but that task's result: another task would count as done.
        """
        task = self.stage[index]
        result: object = self.function(task)
        if not isinstance(result, TaskResult) or (result.stage, result.index) != (task.stage, task.index):
            raise RechunkError(
                f"a task function must return the TaskResult of its task, as run_task does; got {result!r:.100} of "
                f"task {task.index} of stage {task.stage}"
            )
        return result


@dataclass(slots=True)
class CopyRun:
    """Results and retries so far, told to who listens."""

    tell: OnEvent
    results: list[TaskResult] = field(default_factory=list)
    retries: int = 0
    _values: SharedValues = field(default_factory=SharedValues)

    def done(self, result: TaskResult, *, attempts: int) -> None:
        """Note a task that is done."""
        result = result.sharing(self._values)  # all are held until the report goes
        if attempts > 1:
            result = dataclasses.replace(result, attempts=attempts)
        self.results.append(result)
        self.tell(Event(kind="task", stage=result.stage, index=result.index, result=result))

    def failed(self, stage: Stage, index: int, error: BaseException) -> None:
        """Note a try that failed and will be made again."""
        self.retries += 1
        self.tell(Event(kind="retry", stage=stage.number, index=index, message=error_text(error)))


def task_error(task: CopyTask, cause: BaseException) -> TaskError:
    """Return the error for a task that has failed for good."""
    tries = "is not tried again" if is_permanent(cause) else f"is tried {TRIES} times and failed each time, at last"
    error = TaskError(
        f"task {task.index} of stage {task.stage}, which copies the region {task.start} to {task.stop} of "
        f"{task.source} to {task.target}, {tries}: {error_text(cause)}; remove the cause and run the job again",
        stage=task.stage,
        index=task.index,
    )
    error.__cause__ = cause
    return error


def is_permanent(error: BaseException) -> bool:
    """Whether trying again cannot help: a full disk, denied access, damaged bytes."""
    return isinstance(error, StorageError) and error.permanent


def nobody(event: Event) -> None:
    """Listen to no events."""
