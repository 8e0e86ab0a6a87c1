"""Worker processes of our own: spawned, never forked, and replaced when they die. Layer: executors.

The pool has no threads. The caller's thread looks at all pipes at once, so it knows exactly which call was running in a
worker that died: that one is run again, and nothing else is lost.
"""

from __future__ import annotations

import os
import signal
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import wait
from typing import Any, NamedTuple, TypeVar

from rechunk_exec.errors import RechunkError
from rechunk_exec.executors.base import WorkerShape, check_count
from rechunk_exec.executors.calls import Call, Outcome
from rechunk_exec.executors.copyrun import TRIES
from rechunk_exec.executors.machine import available_cores, thread_limits
from rechunk_exec.executors.main_module import UNGUARDED, MainModule, refuse_while_importing_main, unguarded_error
from rechunk_exec.executors.pool import PoolExecutor
from rechunk_exec.executors.remote import pack_call, refuse_live_stores
from rechunk_exec.executors.shared import Shared
from rechunk_exec.executors.worker import Doing, Preparation, WorkerProcess
from rechunk_exec.tasks import Stage

T = TypeVar("T")

_LOOK_S = 1.0
"""How often to look for processes that ended without their pipe."""
_LEAVE_S = 5.0
"""How long a process may take to end by itself."""


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
        self._size = available_cores() if workers is None else check_count("workers", workers)
        self._workers: list[WorkerProcess] = []
        self._queue: deque[_Packed] = deque()
        self._set_ups: list[Shared[Callable[[], object]]] = []
        self._early_deaths = 0
        self._end = weakref.finalize(self, _end_all, self._workers, os.getpid())

    @property
    def worker_shape(self) -> WorkerShape:
        """As many workers as were asked for, sharing the cores."""
        return WorkerShape(
            workers=self._size,
            tasks_per_worker=1,
            cores_per_worker=max(1, available_cores() // self._size),
            elastic=False,
            to_start=0 if self._workers else self._size,
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
        return self._size

    def _start(self, call: Call) -> None:
        data, needs = pack_call(call.function, call.argument)
        self._queue.append(_Packed(call.number, data, needs))
        self._dispatch()

    def _finished(self) -> Sequence[Outcome]:
        while True:
            self._dispatch()
            outcomes = self._collect()
            if outcomes:
                return outcomes

    def _settle(self, *, stop: bool) -> None:
        self._queue.clear()
        try:
            if stop:
                self._kill()
            with suppress(RechunkError):  # of a worker that could not start; all are ended then
                while any(worker.doing is Doing.CALL for worker in self._workers):
                    self._collect()
        except BaseException:
            self._kill()
            raise

    def _set_up(self, fn: Callable[[], object]) -> None:
        function: Shared[Callable[[], object]] = self.put(fn)
        self._set_ups.append(function)
        try:
            for worker in list(self._workers):
                if worker.doing is Doing.NOTHING:
                    self._advance(worker)
            while len(self._workers) < self._size or any(w.doing is not Doing.NOTHING for w in self._workers):
                self._grow(self._size)
                self._collect()
        except BaseException:
            self._set_ups.remove(function)
            self._kill()  # some have been set up, some not
            raise

    def _shut(self) -> None:
        self._end()

    def _environment(self, slot: int) -> dict[str, str]:
        """The environment of the worker process in place ``slot``: this one's, with its threads bound to its share."""
        return dict(os.environ) | thread_limits(self.worker_shape.cores_per_worker)

    def _dispatch(self) -> None:
        """Give calls to workers that do nothing, and start workers for the rest."""
        for worker in list(self._workers):
            if self._queue and worker.doing is Doing.NOTHING:
                call = self._queue.popleft()
                try:
                    worker.begin_call(*call)
                except OSError:  # it died since, and has not begun the call
                    self._queue.appendleft(call)
                    self._bury(worker)
        coming = sum(worker.doing in {Doing.STARTING, Doing.SETTING_UP} for worker in self._workers)
        self._grow(len(self._workers) + len(self._queue) - coming)

    def _grow(self, size: int) -> None:
        """Start workers until there are ``size``, as far as the pool allows."""
        size = min(size, self._size)
        if len(self._workers) >= size:
            return
        if self._closed:
            raise RechunkError(f"executor {self.name!r} was closed while a job ran on it")
        refuse_while_importing_main()
        preparation = Preparation(
            main=MainModule.here(), parent_pid=os.getpid(), cores=self.worker_shape.cores_per_worker
        )
        free = iter(set(range(self._size)) - {worker.slot for worker in self._workers})
        while len(self._workers) < size:
            slot = next(free)
            self._workers.append(WorkerProcess(slot, preparation, self._environment(slot)))

    def _collect(self) -> list[Outcome]:
        """Wait a while for replies and deaths; return the calls that ended."""
        by_pipe: dict[Any, WorkerProcess] = {worker.pipe: worker for worker in self._workers}
        heard = [by_pipe[pipe] for pipe in wait(list(by_pipe), _LOOK_S)]
        outcomes = [self._hear(worker) for worker in heard]
        if not heard:
            outcomes = [self._mourn(worker) for worker in by_pipe.values() if worker.vanished]
        return [outcome for outcome in outcomes if outcome is not None]

    def _hear(self, worker: WorkerProcess) -> Outcome | None:
        """Take a worker's reply, or its death; return the call that ended by it."""
        doing, number = worker.doing, worker.call
        reply = worker.receive()
        if reply is None:
            return self._mourn(worker)
        if doing is Doing.CALL:
            worker.doing = Doing.NOTHING
            return reply.outcome(number)
        if reply.failure is not None:
            self._kill()
            what = "run the function given to run_on_workers"
            if doing is Doing.STARTING:
                what = 'import the main script, all but what is under its `if __name__ == "__main__":`'
            raise RechunkError(
                f"each worker process must {what}; one failed with {reply.failure.summary}; see the cause"
            ) from reply.failure.error()
        worker.set_ups += doing is Doing.SETTING_UP
        self._early_deaths = 0
        self._advance(worker)
        return None

    def _advance(self, worker: WorkerProcess) -> None:
        """Have a worker call the next function that it has not, if any."""
        worker.doing = Doing.NOTHING
        if worker.set_ups < len(self._set_ups):
            try:
                worker.begin_set_up(self._set_ups[worker.set_ups])
            except OSError:
                self._mourn(worker)

    def _mourn(self, worker: WorkerProcess) -> Outcome | None:
        """Put a dead worker away; return the call that was lost with it."""
        code = self._bury(worker)
        death = f"process {worker.pid} " + (
            f"exited with code {code}" if code >= 0 else f"was killed by {_signal(-code)}"
        )
        if worker.doing is Doing.CALL:
            error = RechunkError(f"worker {death} while it ran the task; perhaps for lack of memory")
            return Outcome(number=worker.call, error=error, lost=True)
        if worker.doing is not Doing.NOTHING:
            self._early_deaths += 1
            if code == UNGUARDED:
                self._kill()
                raise unguarded_error(MainModule.here())
            # A signal may not be its fault; and 0 is what we hear of a process that somebody else has waited for.
            if code > 0 or self._early_deaths >= TRIES:
                self._kill()
                raise RechunkError(
                    "a worker process must import the main script and run the functions given to run_on_workers; "
                    f"{death} before it had; what it printed may say why"
                )
        return None

    def _bury(self, worker: WorkerProcess) -> int:
        self._workers.remove(worker)
        return worker.bury(_LEAVE_S)

    def _kill(self) -> None:
        """End all workers at once."""
        self._queue.clear()
        for worker in self._workers:
            worker.kill()
        while self._workers:
            self._bury(self._workers[-1])


class _Packed(NamedTuple):
    """A call on its way to a worker."""

    number: int
    data: bytes
    needs: dict[str, Shared[Any]]


def _end_all(workers: list[WorkerProcess], pid: int) -> None:
    """Let all workers end; at the latest when the program does."""
    if os.getpid() != pid:  # a fork of the program; the workers are its parent's
        return
    deadline = time.monotonic() + _LEAVE_S
    for worker in workers:
        worker.pipe.close()
        if worker.doing is Doing.STARTING:  # it has nothing to lose
            worker.kill()
    while workers:
        workers.pop().bury(max(0.0, deadline - time.monotonic()))


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
