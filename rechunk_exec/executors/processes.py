"""Worker processes of our own: spawned, never forked, and replaced when they die. Layer: executors."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Sequence
from typing import TypeVar

from rechunk_exec.errors import RechunkError
from rechunk_exec.executors.base import WorkerShape, check_count
from rechunk_exec.executors.calls import Call, Outcome
from rechunk_exec.executors.machine import available_cores
from rechunk_exec.executors.pool import PoolExecutor
from rechunk_exec.executors.remote import refuse_live_stores
from rechunk_exec.executors.shared import Shared
from rechunk_exec.executors.workers import Workers
from rechunk_exec.tasks import Stage

T = TypeVar("T")


class ProcessesExecutor(PoolExecutor):
    """Runs tasks in processes of its own, one at a time in each, started when needed, kept until it closes.

    Parameters
    ----------
    workers : int, optional
        How many processes. Default: the available cores.

    Examples
    --------
    >>> with ProcessesExecutor(2) as executor:
    ...     list(executor.map(abs, [-1, -2]))
    [1, 2]
    """

    name = "processes"
    tasks_per_worker = 1

    def __init__(self, workers: int | None = None) -> None:
        super().__init__()
        if os.name != "posix":
            raise RechunkError(f"executor 'processes' needs a POSIX system; got {os.name!r}; use executor='threads'")
        self._workers = Workers(self.name, available_cores() if workers is None else check_count("workers", workers))
        # At the latest when the program ends.
        self._end = weakref.finalize(self, self._workers.end, os.getpid())

    @property
    def worker_shape(self) -> WorkerShape:
        """As many workers as were asked for, sharing the cores."""
        return WorkerShape(
            workers=self._workers.size,
            tasks_per_worker=1,
            cores_per_worker=self._workers.cores_each,
            elastic=False,
            to_start=0 if len(self._workers) else self._workers.size,
            here=True,
        )

    def put(self, obj: T) -> Shared[T]:
        handle = super().put(obj)
        handle.pack()
        return handle

    def check_stages(self, stages: Sequence[Stage]) -> None:
        """Refuse stores that other processes do not see."""
        refuse_live_stores(stages, self.name)

    def _slots(self, tasks_per_worker: int | None) -> int:
        return self._workers.size

    def _start(self, call: Call) -> None:
        self._workers.start(call)

    def _finished(self) -> Sequence[Outcome]:
        return self._workers.finished()

    def _settle(self, *, stop: bool) -> None:
        try:
            if stop:
                self._workers.kill()
            self._workers.settle()
        except BaseException:
            self._workers.kill()
            raise

    def _set_up(self, fn: Callable[[], object]) -> None:
        self._workers.call_once(self.put(fn))

    def _shut(self) -> None:
        self._workers.closed = True
        self._end()
