"""Threads of this process: the default. Layer: executors."""

from __future__ import annotations

from concurrent import futures

from rechunk_exec.copy import release_memory
from rechunk_exec.executors.base import WorkerShape, check_count
from rechunk_exec.executors.futures import FuturesPool
from rechunk_exec.executors.machine import available_cores


class ThreadsExecutor(FuturesPool):
    """Runs tasks on threads of this process, which share its memory and see its stores, those in memory too.

    Parameters
    ----------
    workers : int, optional
        How many tasks may run at once; a plan may ask for fewer, to give each more memory. Default: the available
        cores.

    Examples
    --------
    >>> with ThreadsExecutor(2) as executor:
    ...     list(executor.map(abs, [-1, -2]))
    [1, 2]
    """

    name = "threads"

    def __init__(self, workers: int | None = None) -> None:
        super().__init__()
        self.tasks_per_worker = available_cores() if workers is None else check_count("workers", workers)
        self._threads: futures.ThreadPoolExecutor | None = None

    @property
    def worker_shape(self) -> WorkerShape:
        """One worker, this process, with all cores."""
        return WorkerShape(
            workers=1,
            tasks_per_worker=self.tasks_per_worker,
            cores_per_worker=available_cores(),
            elastic=True,
            here=True,
        )

    def _pool(self) -> futures.Executor:
        if self._threads is None:
            self._threads = futures.ThreadPoolExecutor(self.tasks_per_worker, thread_name_prefix="rechunk_exec")
        return self._threads

    def _slots(self, tasks_per_worker: int | None) -> int:
        return min(self.tasks_per_worker, tasks_per_worker or self.tasks_per_worker)

    def _after_copy(self) -> None:
        release_memory()

    def _shut(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)
