"""Any :class:`concurrent.futures.Executor` as an executor: thread and process pools, loky, MPI. Layer: executors.

Threads share this process, so calls and objects go to them as they are. Other pools are taken to be of processes that
nobody can address one by one: a call goes as bytes to whichever is free, and one that lacks a shared object says so,
and the call is sent again with the object enclosed. So objects are sent about once a worker there too.
"""

from __future__ import annotations

import queue
from abc import abstractmethod
from collections.abc import Callable, Sequence
from concurrent import futures
from typing import TypeVar

from rechunk_exec.copy import release_memory
from rechunk_exec.errors import RechunkError
from rechunk_exec.executors.base import WorkerShape, check_count
from rechunk_exec.executors.calls import Call, Outcome
from rechunk_exec.executors.machine import available_cores
from rechunk_exec.executors.pool import PoolExecutor
from rechunk_exec.executors.remote import Missing, Parcel, Reply, open_parcel, pack_call, refuse_live_stores
from rechunk_exec.executors.shared import Shared
from rechunk_exec.storage.unanswered import GRACE_S, Unanswered
from rechunk_exec.tasks import Stage

T = TypeVar("T")


class FuturesPool(PoolExecutor):
    """What executors on futures have in common: a queue of the futures that are done."""

    def __init__(self) -> None:
        super().__init__()
        self._flying: dict[futures.Future[object], Call] = {}
        self._done: queue.SimpleQueue[futures.Future[object]] = queue.SimpleQueue()
        self._unanswered = Unanswered()

    @abstractmethod
    def _pool(self) -> futures.Executor:
        """The pool that runs the calls."""

    def _submit(self, call: Call, missing: Sequence[str]) -> futures.Future[object]:
        """Submit a call, with the objects that a worker lacked for it."""
        return self._pool().submit(self._unanswered.run, call.function.value, call.argument)

    def _outcome(self, call: Call, value: object) -> Outcome | None:
        """How a call ended whose future holds ``value``, or None if it had to be started again."""
        return Outcome(number=call.number, value=value)

    def _start(self, call: Call, missing: Sequence[str] = ()) -> None:
        try:
            future = self._submit(call, missing)
        except (RuntimeError, futures.BrokenExecutor) as error:
            raise self._broken(error) from error
        self._flying[future] = call
        future.add_done_callback(self._done.put)

    def _finished(self) -> Sequence[Outcome]:
        while True:
            outcome = self._take(self._done.get())
            if outcome is not None:
                return [outcome]

    def _take(self, future: futures.Future[object]) -> Outcome | None:
        call = self._flying.pop(future, None)
        if call is None:
            return None  # of an earlier job, whose end was interrupted
        if future.cancelled():
            return Outcome(number=call.number, error=RechunkError("the call was cancelled from outside"))
        error = future.exception()
        if isinstance(error, futures.BrokenExecutor):
            raise self._broken(error) from error
        if error is not None:
            return Outcome(number=call.number, error=error)
        return self._outcome(call, future.result())

    def _broken(self, error: BaseException) -> RechunkError:
        return RechunkError(
            f"the pool of executor {self.name!r} must take calls until the job is done; it does not: {error}; "
            "if it was shut down, keep it open; if one of its workers died, make a new pool, or use "
            "executor='processes', which survives that"
        )

    def _settle(self, *, stop: bool) -> None:
        # A running call can be stopped in no pool of this kind; what threads wait for can.
        running = [future for future in self._flying if not future.cancel()]
        self._flying.clear()
        if stop and futures.wait(running, timeout=GRACE_S).not_done:  # a store may never answer
            self._unanswered.give_up()
            self._unanswered = Unanswered()
        futures.wait(running)


class FuturesExecutor(FuturesPool):
    """Runs tasks on a pool that the user made and shuts down.

    Parameters
    ----------
    pool : concurrent.futures.Executor
        A ``ThreadPoolExecutor`` is one worker that runs many tasks at once; any other pool is taken for worker
        processes of one task each. It should do no other work meanwhile, which would need memory too.
    workers : int, optional
        How many workers there are, where the pool does not say.

    Examples
    --------
    >>> from concurrent.futures import ThreadPoolExecutor
    >>> with ThreadPoolExecutor(4) as pool:
    ...     list(FuturesExecutor(pool).map(abs, [-1, -2]))
    [1, 2]
    """

    def __init__(self, pool: futures.Executor, *, workers: int | None = None) -> None:
        super().__init__()
        if not isinstance(pool, futures.Executor):
            raise TypeError(f"pool must be a concurrent.futures.Executor; got {pool!r}")
        self.name = type(pool).__name__
        self._given = pool
        self._threads = isinstance(pool, futures.ThreadPoolExecutor)
        size = check_count("workers", workers) if workers is not None else _size(pool)
        self.tasks_per_worker = size if self._threads else 1
        self._workers = 1 if self._threads else size
        self._set_ups: list[Shared[Callable[[], object]]] = []

    @property
    def worker_shape(self) -> WorkerShape:
        """One worker for a thread pool, else as many as the pool says, sharing the cores."""
        return WorkerShape(
            workers=self._workers,
            tasks_per_worker=self.tasks_per_worker,
            cores_per_worker=max(1, available_cores() // self._workers),
            elastic=self._threads,
            here=self._threads or isinstance(self._given, futures.ProcessPoolExecutor),
        )

    def put(self, obj: T) -> Shared[T]:
        """See :meth:`PoolExecutor.put`. A worker of a process pool may get an object twice, when it starts."""
        handle = super().put(obj)
        if not self._threads:
            handle.pack()
        return handle

    def check_stages(self, stages: Sequence[Stage]) -> None:
        """Refuse stores that processes could not see, unless these are threads."""
        if not self._threads:
            refuse_live_stores(stages, self.name)

    def _pool(self) -> futures.Executor:
        return self._given

    def _slots(self, tasks_per_worker: int | None) -> int:
        if self._threads:
            return min(self.tasks_per_worker, tasks_per_worker or self.tasks_per_worker)
        return self._workers

    def _submit(self, call: Call, missing: Sequence[str]) -> futures.Future[object]:
        if self._threads:
            return super()._submit(call, missing)
        data, needs = pack_call(call.function, call.argument)
        tokens = tuple(needs)
        for handle in self._set_ups:
            needs |= handle.pack().needs() | {handle.token: handle}
        parcel = Parcel(
            data=data,
            tokens=tokens,
            set_ups=tuple(handle.token for handle in self._set_ups),
            enclosed=tuple((token, needs[token].pack().data) for token in missing),
        )
        return self._given.submit(open_parcel, parcel)

    def _outcome(self, call: Call, value: object) -> Outcome | None:
        if isinstance(value, Missing):
            self._start(call, value.tokens)
            return None
        if isinstance(value, Reply):
            return value.outcome(call.number)
        return super()._outcome(call, value)

    def _set_up(self, fn: Callable[[], object]) -> None:
        if self._threads:
            super()._set_up(fn)
        else:
            self._set_ups.append(self.put(fn))

    def _notes(self) -> tuple[str, ...]:
        context = getattr(self._given, "_mp_context", None)
        if context is None or context.get_start_method() != "fork":
            return ()
        problem = f"the given {self.name} forks its workers, which may hang in libraries that use threads"
        return (f"{problem}; make it with mp_context=multiprocessing.get_context('spawn')",)

    def _after_copy(self) -> None:
        if self._threads:
            release_memory()


def _size(pool: futures.Executor) -> int:
    for name in ("_max_workers", "num_workers"):  # the standard library's pools and loky; mpi4py
        size = getattr(pool, name, None)
        if isinstance(size, int) and size > 0:
            return size
    return available_cores()
