"""What a driver does beside the copy: keep the journal. Layer: with the job.

A keeper listens to the events of the run, as a progress bar does. Its thread writes the results that came since it last
looked, so that a driver that is killed has lost the record of a few seconds' tasks at most, and no task waits for a
write. Where the executor cannot tell of its tasks, those that run in the driver's process hand their results over; the
others write their own, and the thread only merges these.
"""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import Self

from rechunk_exec.copy import noted_by
from rechunk_exec.errors import RechunkError, TaskError, error_text
from rechunk_exec.results import Event, TaskFailure, TaskResult
from rechunk_exec.storage import MERGED_AT_ONCE, Journal, Lease, interrupted, thread_of_driver

WRITE_S = 1.0
"""How often results are written."""
MERGE_S = 10.0
"""How often those that tasks have written by themselves are merged."""
_WORTH_A_WAIT_S = 5.0
"""Results of a job that runs longer are waited for until they are on the disk."""


class Keeper:
    """Keeps the journal of a run while its context lasts.

    Parameters
    ----------
    journal : Journal or None
        None where the store holds no documents.
    lease : Lease
        Is told what was done, and asked for before another task is begun.
    told : bool
        Whether events tell of the tasks as they are done, or tasks hand over or write their results by themselves.
    left : int
        Tasks that are to be run.
    """

    def __init__(self, journal: Journal | None, lease: Lease, *, told: bool, left: int) -> None:
        self._journal = journal
        self._lease = lease
        self._told = told
        self._left = left
        self._began = self._merged = time.monotonic()
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._waiting: list[TaskResult] = []
        self._taken: set[tuple[int, int]] = set()
        self._offer = ExitStack()
        self._done = 0
        self._bytes_written = 0
        self._written = 0
        self._failure: Exception | None = None
        self._end = threading.Event()
        self._thread = thread_of_driver(self._keep, "rechunk_exec-journal")

    def __enter__(self) -> Self:
        self._thread.start()
        if self._journal is not None and not self._told:
            self._offer.enter_context(noted_by(self._journal.job, self))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        interrupted(error)
        self._offer.close()
        self._end.set()
        self._thread.join()
        if error is None:
            self._lease.check()
            self._write()
            self._refuse_failure()
            return
        if isinstance(error, Exception):  # a task may have failed since another driver has removed arrays
            self._lease.explain(error)
        if not self._lease.is_ours():
            return
        with suppress(RechunkError):  # such as a full disk, which is what the error may be about
            self._write()
        if isinstance(error, TaskError) and self._journal is not None:
            message = error_text(error.__cause__ or error)
            with suppress(RechunkError):
                self._journal.add_failure(TaskFailure(stage=error.stage, index=error.index, message=message))

    def __call__(self, event: Event) -> None:
        """Take note of an event. Raises what went wrong with the journal, or with the claim, since the last one."""
        self._lease.check()
        self._refuse_failure()
        if event.result is not None:
            with self._lock:
                if (event.result.stage, event.result.index) not in self._taken:
                    self._count(event.result)
                if self._told:
                    self._waiting.append(event.result)

    def take(self, result: TaskResult) -> None:
        """Take the result of a task of this process, to be written soon. Raises as for an event."""
        self._lease.check()
        self._refuse_failure()
        key = result.stage, result.index
        with self._lock:
            if key not in self._taken:  # a task may run twice
                self._taken.add(key)
                self._count(result)
            self._waiting.append(result)

    def flush(self) -> None:
        """Write what was taken. Raises what went wrong with the journal."""
        self._refuse_failure()
        self._write()

    def _count(self, result: TaskResult) -> None:
        self._done += 1
        self._bytes_written += result.bytes_written
        self._lease.note(done=self._done, left=self._left, bytes_written=self._bytes_written)

    def _refuse_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _keep(self) -> None:
        while not self._end.wait(WRITE_S) and self._lease.is_ours():
            try:
                self._write()
                if self._journal is not None and not self._told and time.monotonic() - self._merged >= MERGE_S:
                    self._merged = time.monotonic()
                    with self._writing:
                        self._journal.merge()
            except Exception as error:  # noqa: BLE001 - a thread has nobody to raise it to; the next event does
                self._failure = error
                return

    def _write(self) -> None:
        with self._writing:  # who flushes waits for what the thread is at
            with self._lock:
                results, self._waiting = self._waiting, []
            if not results or self._journal is None:
                return
            try:
                self._journal.add(results, durable=time.monotonic() - self._began > _WORTH_A_WAIT_S)
            except RechunkError:
                with self._lock:
                    self._waiting = results + self._waiting
                raise
            self._written += 1
            if self._written % MERGED_AT_ONCE == 0:
                self._journal.merge()
