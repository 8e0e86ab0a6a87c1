"""The worker processes of a pool: started when calls want them, replaced when they die. Layer: executors.

There are no threads. The caller's thread looks at all pipes at once, so it knows exactly which call was running in a
worker that died: that one is lost, and nothing else.
"""

from __future__ import annotations

import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import wait
from typing import Any, NamedTuple

from rechunk_exec.errors import RechunkError
from rechunk_exec.executors.calls import Call, Outcome
from rechunk_exec.executors.copyrun import TRIES
from rechunk_exec.executors.machine import available_cores, thread_limits
from rechunk_exec.executors.main_module import UNGUARDED, MainModule, refuse_while_importing_main, unguarded_error
from rechunk_exec.executors.remote import pack_call
from rechunk_exec.executors.shared import Shared
from rechunk_exec.executors.worker import Doing, Preparation, WorkerProcess

_LOOK_S = 1.0
"""How often to look for processes that ended without their pipe."""
_LEAVE_S = 5.0
"""How long a process may take to end by itself."""


class Workers:
    """At most ``size`` worker processes, with one call at a time in each, and the calls that wait for one.

    Parameters
    ----------
    name : str
        Of their executor, for messages.
    size : int
    """

    def __init__(self, name: str, size: int) -> None:
        self.name = name
        self.size = size
        self.set_ups: list[Shared[Callable[[], object]]] = []
        """What each worker calls once, in order, before its first call."""
        self.variables: Sequence[Mapping[str, str]] = ({},) * size
        """Environment variables for the worker in each place, besides this process's and those that bound threads."""
        self.closed = False
        self._there: list[WorkerProcess] = []
        self._queue: deque[_Packed] = deque()
        self._early_deaths = 0
        self._nothing_left = True
        """Whether no worker has run what may have something to write when its process ends."""

    def __len__(self) -> int:
        return len(self._there)

    def __iter__(self) -> Iterator[WorkerProcess]:
        return iter(self._there)

    @property
    def cores_each(self) -> int:
        """The share of the cores that each may use."""
        return max(1, available_cores() // self.size)

    def start(self, call: Call) -> None:
        """Have a worker make a call, when one is free."""
        if getattr(call.function.value, "leaves_nothing", False) is not True:
            self._nothing_left = False
        data, needs = pack_call(call.function, call.argument)
        self._queue.append(_Packed(call.number, data, needs))
        self._dispatch()

    def finished(self) -> list[Outcome]:
        """Wait until a call has ended; return all that have.

        Raises
        ------
        RechunkError
            If a worker does not get ready for calls. All are ended then.
        """
        while True:
            self._dispatch()
            outcomes = self._collect()
            if outcomes:
                return outcomes

    def settle(self) -> None:
        """Drop the calls that wait, and wait for those that run."""
        self._queue.clear()
        with suppress(RechunkError):  # of a worker that could not start; all are ended then
            while any(worker.doing is Doing.CALL for worker in self._there):
                self._collect()

    def call_once(self, function: Shared[Callable[[], object]]) -> None:
        """Have each worker call a function, and those that join later before their first call.

        Raises
        ------
        RechunkError
            If one fails. All are ended then, for some have called it and some not.
        """
        self.set_ups.append(function)
        try:
            for worker in list(self._there):
                if worker.doing is Doing.NOTHING:
                    self._advance(worker)
            while len(self._there) < self.size or any(w.doing is not Doing.NOTHING for w in self._there):
                self._grow(self.size)
                self._collect()
        except BaseException:
            self.set_ups.remove(function)
            self.kill()
            raise

    def kill(self) -> None:
        """End all workers at once, and drop the calls that wait."""
        self._queue.clear()
        for worker in self._there:
            worker.kill()
        while self._there:
            self._bury(self._there[-1])

    def end(self, pid: int) -> None:
        """Let all workers end, if this is the process ``pid``; in a fork of it, they are its parent's."""
        if os.getpid() != pid:
            return
        deadline = time.monotonic() + _LEAVE_S
        for worker in self._there:
            if worker.doing is Doing.STARTING:  # it has nothing to lose
                worker.kill()
                continue
            if self._nothing_left and not self.set_ups:
                worker.begin_leave()
            worker.pipe.close()
        while self._there:
            self._there.pop().bury(max(0.0, deadline - time.monotonic()))

    def _dispatch(self) -> None:
        """Give calls to workers that do nothing, and start workers for the rest."""
        for worker in list(self._there):
            if self._queue and worker.doing is Doing.NOTHING:
                call = self._queue.popleft()
                try:
                    worker.begin_call(*call)
                except OSError:  # it died since, and has not begun the call
                    self._queue.appendleft(call)
                    self._bury(worker)
        coming = sum(worker.doing in {Doing.STARTING, Doing.SETTING_UP} for worker in self._there)
        self._grow(len(self._there) + len(self._queue) - coming)

    def _grow(self, size: int) -> None:
        """Start workers until there are ``size``, as far as the pool allows."""
        size = min(size, self.size)
        if len(self._there) >= size:
            return
        if self.closed:
            raise RechunkError(f"executor {self.name!r} was closed while a job ran on it")
        refuse_while_importing_main()
        preparation = Preparation(main=MainModule.here(), parent_pid=os.getpid(), cores=self.cores_each)
        environment = {**os.environ, **thread_limits(self.cores_each)}
        free = iter(set(range(self.size)) - {worker.slot for worker in self._there})
        while len(self._there) < size:
            slot = next(free)
            try:
                worker = WorkerProcess(slot, preparation, {**environment, **self.variables[slot]})
            except OSError as error:
                raise RechunkError(
                    f"a worker process must start; got {error}, with {len(self._there)} of {size} there; give fewer "
                    "workers, or raise the limits of processes, open files or memory"
                ) from error
            self._there.append(worker)

    def _collect(self) -> list[Outcome]:
        """Wait a while for replies and deaths; return the calls that ended."""
        by_pipe: dict[Any, WorkerProcess] = {worker.pipe: worker for worker in self._there}
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
            self.kill()
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
        if worker.set_ups < len(self.set_ups):
            try:
                worker.begin_set_up(self.set_ups[worker.set_ups])
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
                self.kill()
                raise unguarded_error(MainModule.here())
            # A signal may not be its fault; and 0 is what we hear of a process that somebody else has waited for.
            if code > 0 or self._early_deaths >= TRIES:
                self.kill()
                raise RechunkError(
                    "a worker process must import the main script and run the functions given to run_on_workers; "
                    f"{death} before it had; what it printed may say why"
                )
        return None

    def _bury(self, worker: WorkerProcess) -> int:
        self._there.remove(worker)
        return worker.bury(_LEAVE_S)


class _Packed(NamedTuple):
    """A call on its way to a worker."""

    number: int
    data: bytes
    needs: dict[str, Shared[Any]]


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
