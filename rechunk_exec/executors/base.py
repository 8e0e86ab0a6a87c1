"""What an executor is: something with ``staged_copy``. Layer: executors, below the pools.

An executor runs the tasks of some stages: stages in order, with a full barrier between them, each task at least once.
It does no chunk arithmetic: what a task covers is its stage's business, what it does is
:func:`rechunk_exec.copy.run_task`.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, SupportsIndex, runtime_checkable

from rechunk_exec.executors.machine import available_cores
from rechunk_exec.results import CopyReport, OnEvent
from rechunk_exec.tasks import Stage


@runtime_checkable
class Executor(Protocol):
    """What runs stages. Pools of workers are better derived from :class:`~rechunk_exec.executors.pool.PoolExecutor`."""

    name: str
    """What reports call it."""
    tasks_per_worker: int
    """How many tasks it runs at once in one worker process: the plan divides ``max_mem`` by it."""

    def staged_copy(self, stages: Sequence[Stage], *, on_event: OnEvent | None = None) -> CopyReport:
        """Run each task of ``stages``: stages in order, and none starts before all tasks of the one before have ended.

        Parameters
        ----------
        stages : sequence of Stage
            What to run.
        on_event : callable, optional
            Called in this thread with one :class:`~rechunk_exec.results.Event` before the first task and one for each
            task done.

        Raises
        ------
        TaskError
            If a task failed for good. No other task is running any more.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerShape:
    """What a plan needs to know of an executor's workers."""

    workers: int
    """Number of worker processes."""
    tasks_per_worker: int
    """Tasks that run at once in one worker process."""
    cores_per_worker: int
    """Cores that one worker process has to itself."""
    elastic: bool
    """Whether a plan may ask for fewer tasks at once in a worker than ``tasks_per_worker``, and gets them."""
    to_start: int = 0
    """Worker processes that are started before the first task runs; 0 where some are there."""
    here: bool = False
    """Whether all workers are on this machine, within the limits of this process."""
    spare_bytes: int | None = None
    """Bytes that each worker may still use, where it has a limit of its own that is known."""


def worker_shape(executor: object) -> WorkerShape:
    """Return the shape of an executor's workers: its own word, or a cautious guess for a foreign one.

    Examples
    --------
    >>> def foreign(stages): ...
    >>> foreign.tasks_per_worker = 3
    >>> shape = worker_shape(foreign)
    >>> shape.workers, shape.tasks_per_worker, shape.elastic
    (1, 3, False)
    """
    shape = getattr(executor, "worker_shape", None)
    if isinstance(shape, WorkerShape):
        return shape
    return WorkerShape(
        workers=1,
        tasks_per_worker=check_count("tasks_per_worker", getattr(executor, "tasks_per_worker", 1)),
        cores_per_worker=available_cores(),
        elastic=False,
    )


def check_count(name: str, number: object) -> int:
    """Return ``number`` if it is a whole number of at least 1.

    Raises
    ------
    TypeError, ValueError
        If it is not; the message begins with ``name``.

    Examples
    --------
    >>> check_count("workers", 0)
    Traceback (most recent call last):
    ValueError: workers must be at least 1; got 0
    """
    if isinstance(number, bool) or not isinstance(number, SupportsIndex):
        raise TypeError(f"{name} must be a whole number; got {number!r}")
    count = operator.index(number)
    if count < 1:
        raise ValueError(f"{name} must be at least 1; got {count}")
    return count
