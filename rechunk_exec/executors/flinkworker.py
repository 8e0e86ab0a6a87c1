"""What a worker of Flink does: runs ranges of a stage's tasks and notes their results. Layer: executors, below flink.

It is a ``ProcessFunction`` of PyFlink by its methods, not by its class, so that it pickles by name and needs no PyFlink
to be read or tested. It travels once a slot, with the stage in it; elements are pairs of task positions.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

import psutil

from rechunk_exec.copy import configure_worker, finished_results, release_memory
from rechunk_exec.executors.rangework import RangeWork

_LOOK_S = 1.0
"""How often a worker looks whether its task manager is there."""


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

    work: RangeWork
    cores: int | None
    """The cores of this worker; None where its process is not its own and stays as it is."""
    _done: frozenset[int] = field(default=frozenset(), init=False)
    _attempt: int = field(default=0, init=False)

    def open(self, context: RuntimeContext) -> None:
        """Get ready.

        Raises
        ------
        StorageError, RechunkError
            As :meth:`rechunk_exec.executors.rangework.RangeWork.check`.
        """
        self.work.check()
        if self.cores is not None:
            configure_worker(self.cores)
            _end_with_task_manager()
        self._attempt = context.get_attempt_number()
        if self._attempt:  # an attempt begins from the first element, and what the last one noted need not run again
            self._done = frozenset(result.index for result in finished_results([self.work.stage]))

    def process_element(self, element: tuple[int, int], context: object) -> Iterable[object]:
        """Run the tasks at positions ``[first, stop)`` of the stage, whose results are noted."""
        self.work(*element, done=self._done, attempts=self._attempt)
        return ()

    def close(self) -> None:
        """Give back what a process that goes on has kept."""
        if self.cores is None:
            release_memory()


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
