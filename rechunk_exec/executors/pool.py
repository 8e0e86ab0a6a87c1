"""Pools of workers: scheduling, written once for all of them. Layer: executors.

A back end says how to start a call and how to wait for the next one to end: four small methods. From them, and from
the two loops of :mod:`.scheduling`, :class:`PoolExecutor` makes ``map``, ``put``, ``run_on_workers`` and
``staged_copy``: stages in order with a full barrier, three tries a task, events, results in order, and nothing left
running when an error is raised.

All of it runs in the caller's thread, which is the only one that calls back.
"""

from __future__ import annotations

import itertools
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self, TypeVar

from rechunk_exec.copy import run_task
from rechunk_exec.errors import RechunkError
from rechunk_exec.executors.base import WorkerShape, check_count
from rechunk_exec.executors.calls import Call, Outcome
from rechunk_exec.executors.copyrun import CopyRun, StageTask, nobody
from rechunk_exec.executors.scheduling import Lane, results_in_order, run_stage
from rechunk_exec.executors.shared import Shared
from rechunk_exec.results import CopyReport, Event, OnEvent, TaskResult, in_order
from rechunk_exec.tasks import CopyTask, Stage

T = TypeVar("T")
R = TypeVar("R")


class PoolExecutor(ABC):
    """Base of the executors that are pools of workers. A worker is a process; it may run several calls at once.

    One job at a time: a second one while the first runs is an error, since the two would share the memory of one. A
    pool may be used for job after job. It is a context manager, which closes it in the end.
    """

    name: str
    tasks_per_worker: int
    task_function: Callable[[CopyTask], TaskResult] = staticmethod(run_task)
    """What :meth:`staged_copy` runs for each task; anything but the default is for tests."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._busy = threading.Lock()
        self._closed = False

    # What a back end says.

    @property
    @abstractmethod
    def worker_shape(self) -> WorkerShape:
        """What a plan needs to know of the workers."""

    @abstractmethod
    def _slots(self, tasks_per_worker: int | None) -> int:
        """How many calls may run at once now, at most ``tasks_per_worker`` in one worker; None: as many as it can.

        At least 1, also while there is no worker: a call that is started waits for one.
        """

    @abstractmethod
    def _start(self, call: Call) -> None:
        """Start a call. What is raised here stops the job; a failure of the call itself is an outcome."""

    @abstractmethod
    def _finished(self) -> Sequence[Outcome]:
        """Wait until a call has ended; return all that have. Each call that was started ends once.

        None may have ended if there is room for others now.
        """

    @abstractmethod
    def _settle(self, *, stop: bool) -> None:
        """Drop calls that have not begun and wait for those that have; with ``stop``, end them now if possible."""

    def _set_up(self, fn: Callable[[], object]) -> None:
        """See :meth:`run_on_workers`. Here: the only worker is this process."""
        fn()

    def _after_copy(self) -> None:  # noqa: B027 - most have nothing to do
        """Called when a staged copy has ended, well or badly."""

    def _notes(self) -> tuple[str, ...]:
        """What a report should say about the pool."""
        return ()

    def _shut(self) -> None:  # noqa: B027
        """Let go of the workers. Called once."""

    # What users call.

    def check_stages(self, stages: Sequence[Stage]) -> None:  # noqa: B027
        """Raise, before anything runs, if the workers could not run these stages."""

    def map(self, fn: Callable[[T], R], tasks: Iterable[T], *, window: int | None = None) -> Iterator[R]:
        """Call ``fn`` with each task and yield the results in order.

        Parameters
        ----------
        fn : callable
            A plain function; for worker processes, one that they can import. It is sent once a worker.
        tasks : iterable
            Its arguments. However many, only those in flight are held.
        window : int, optional
            How many tasks may be taken from ``tasks`` beyond those whose results have been yielded. Default: twice as
            many as can run at once.

        Raises
        ------
        Exception
            What ``fn`` raised, in the place of its result, after the calls in flight have ended. Nothing is tried again
            but a call whose worker died, up to three times.
        """
        if not callable(fn):
            raise TypeError(f"fn must be a function of one argument; got {fn!r}")
        limit = 2 * self._slots(None) if window is None else check_count("window", window)
        return self._map(self.put(fn), iter(tasks), limit)

    def put(self, obj: T) -> Shared[T]:
        """Return a handle of ``obj`` for use in tasks: the object is sent once a worker, not once a task.

        Raises
        ------
        SerializationError
            If it would have to pickle and does not.
        """
        return Shared(obj)

    def run_on_workers(self, fn: Callable[[], object]) -> None:
        """Call ``fn`` once in each worker process, before its next task; also in those that join later.

        For executors that run in this process, it is called here, once.
        """
        if not callable(fn):
            raise TypeError(f"fn must be a function without arguments; got {fn!r}")
        with self._job():
            self._set_up(fn)

    def staged_copy(self, stages: Sequence[Stage], *, on_event: OnEvent | None = None) -> CopyReport:
        """Run the tasks of ``stages``; see :meth:`rechunk_exec.executors.base.Executor.staged_copy`."""
        self.check_stages(stages)
        begun = time.perf_counter()
        run = CopyRun(tell=on_event or nobody)
        with self._job(self._after_copy):
            run.tell(Event(kind="start", total=sum(len(stage) for stage in stages)))
            for stage in stages:
                work: Shared[Callable[[int], TaskResult]] = self.put(StageTask(self.task_function, stage))
                run_stage(self._lane, work, stage, run)
        return CopyReport(
            executor=self.name,
            results=in_order(run.results),
            seconds=time.perf_counter() - begun,
            retries=run.retries,
            notes=self._notes(),
        )

    def close(self) -> None:
        """End the workers. Doing it twice is harmless; using the pool afterwards is an error."""
        if not self._closed:
            self._closed = True
            self._shut()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # How.

    @contextmanager
    def _job(self, after: Callable[[], None] | None = None) -> Iterator[None]:
        """Have the pool to oneself; whatever goes wrong, nothing runs any more when the error is raised."""
        if self._closed:
            raise RechunkError(f"a closed executor cannot be used again; got {self.name!r}, closed; make a new one")
        if not self._busy.acquire(blocking=False):
            raise RechunkError(
                f"an executor does one job at a time, so that two do not share the memory of one; got a second for "
                f"{self.name!r}; end the first (take all results of a map, or close() its iterator) or make another one"
            )
        try:
            yield
        except BaseException as error:
            self._settle(stop=not isinstance(error, (Exception, GeneratorExit)))
            raise
        finally:
            try:
                if after is not None:
                    after()
            finally:
                self._busy.release()

    def _begin(self, function: Shared[Callable[[Any], Any]], argument: object) -> int:
        """Start a call; return its number."""
        call = Call(number=next(self._numbers), function=function, argument=argument)
        self._start(call)
        return call.number

    def _map(self, fn: Shared[Callable[[T], R]], tasks: Iterator[T], window: int) -> Iterator[R]:
        with self._job():
            yield from results_in_order(self._lane, fn, tasks, window)

    @property
    def _lane(self) -> Lane:
        return Lane(slots=self._slots, begin=self._begin, finished=self._finished)
