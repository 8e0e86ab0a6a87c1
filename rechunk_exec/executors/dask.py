"""A ``distributed`` cluster as executor. Layer: executors.

We say which worker runs a call, and send it no more than it can start at once, or a few more where calls are short. It
runs no more at once than it has threads: so it holds no more tasks than the plan has counted memory for. One that dies
takes with it only what it had; we know what that was and try it again, where the scheduler would do so without a word.
And the scheduler holds a few keys (:mod:`.daskcalls`), however many tasks there are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

from rechunk_exec.copy import configure_worker, release_memory
from rechunk_exec.errors import RechunkError, error_text
from rechunk_exec.executors.base import WorkerShape, check_count
from rechunk_exec.executors.calls import Call, Outcome
from rechunk_exec.executors.daskcalls import DaskCalls, Packed
from rechunk_exec.executors.daskcluster import DaskCluster
from rechunk_exec.executors.daskfitness import Member
from rechunk_exec.executors.machine import available_cores
from rechunk_exec.executors.pool import PoolExecutor
from rechunk_exec.executors.remote import refuse_live_stores
from rechunk_exec.executors.shared import Shared
from rechunk_exec.tasks import Stage

T = TypeVar("T")

_LOOK_S = 0.5
"""How often to look for workers that have joined or left."""


class DaskExecutor(PoolExecutor):
    """Runs tasks on the workers of a ``distributed`` cluster, as many at once in each as it has threads.

    Parameters
    ----------
    client : distributed.Client or str, optional
        A client, which stays open, or the address of a scheduler. Default: a cluster of processes on this machine,
        started with the first task and ended by :meth:`close`.
    workers : int, optional
        How many processes to start, where no cluster is given. Default: the available cores.

    Raises
    ------
    MissingExtraError
        If ``distributed`` is not installed.
    RechunkError
        If the scheduler does not answer, or gets no worker within a minute.

    Examples
    --------
    >>> with DaskExecutor(workers=2) as executor:  # doctest: +SKIP
    ...     list(executor.map(abs, [-1, -2]))
    [1, 2]
    """

    name = "dask"

    def __init__(self, client: object = None, *, workers: int | None = None) -> None:
        super().__init__()
        if client is not None and workers is not None:
            raise TypeError(f"workers is for a cluster that is started here; got workers={workers!r} and {client!r}")
        self.tasks_per_worker = 1
        self._size = available_cores() if workers is None else check_count("workers", workers)
        self._cores = max(1, available_cores() // self._size)
        self._cluster = DaskCluster(client, size=self._size, cores=self._cores)
        self._bound: int | None = None
        self._calls = DaskCalls(self._cluster)
        self._queue: deque[Packed] = deque()
        self._set_ups: list[Shared[Callable[[], object]]] = []
        if self._cluster.local:
            self._set_ups.append(self.put(partial(configure_worker, self._cores)))

    @property
    def worker_shape(self) -> WorkerShape:
        """The workers that are there now. One that was started elsewhere has as many cores as it has threads."""
        if self._cluster.local:
            return WorkerShape(
                workers=self._size,
                tasks_per_worker=1,
                cores_per_worker=self._cores,
                elastic=False,
                to_start=0 if self._cluster.started else self._size,
                here=True,
            )
        if self._cluster.started:
            self._look()
        members = self._cluster.members.values()
        threads = self.tasks_per_worker = max((member.threads for member in members), default=self.tasks_per_worker)
        return WorkerShape(
            workers=max(1, len(members)),
            tasks_per_worker=threads,
            cores_per_worker=threads,
            elastic=True,
            spare_bytes=self._cluster.spare_bytes() if self._cluster.started else None,
        )

    def put(self, obj: T) -> Shared[T]:
        handle = super().put(obj)
        handle.pack()
        return handle

    def check_stages(self, stages: Sequence[Stage]) -> None:
        """Refuse stages that the workers could not run.

        Raises
        ------
        StorageError
            If a store is in this process's memory, or a worker does not see one.
        PlanError
            If a worker may not have the memory that the plan gives it.
        RechunkError
            If a worker has another version of this package.
        """
        refuse_live_stores(stages, self.name)
        if self._cluster.started:
            self._look()
            self._cluster.refuse(stages)

    def _slots(self, tasks_per_worker: int | None) -> int:
        self._bound = tasks_per_worker
        if not self._cluster.started:
            return self._size
        self._look(_LOOK_S)
        return max(1, sum(map(self._room, self._cluster.members.values())))

    def _start(self, call: Call) -> None:
        self._queue.append(self._calls.pack(call, self._set_ups))
        self._dispatch()

    def _finished(self) -> Sequence[Outcome]:
        while True:
            joined = self._look(_LOOK_S)
            self._dispatch()
            outcomes, again = self._calls.received(0.0 if joined else _LOOK_S)
            self._queue.extendleft(again)
            if outcomes or joined:
                return outcomes

    def _settle(self, *, stop: bool) -> None:
        self._queue.clear()
        try:
            if stop and self._cluster.local:
                self._cluster.end(at_once=True)
            elif self._cluster.started:  # what runs on a worker of others cannot be stopped
                with suppress(RechunkError):  # of a scheduler that has gone
                    while self._calls:
                        self._finished()
        finally:
            self._calls.forget()

    def _set_up(self, fn: Callable[[], object]) -> None:
        function: Shared[Callable[[], object]] = self.put(fn)
        nothing: Shared[Callable[[object], object]] = self.put(_do_nothing)
        self._set_ups.append(function)
        try:
            self._cluster.start()
            self._cluster.wait()
            for member in list(self._cluster.members.values()):
                call = Call(number=next(self._numbers), function=nothing, argument=None)
                self._launch(self._calls.pack(call, self._set_ups), member)
            while self._calls or self._queue:
                for outcome in self._finished():
                    if outcome.error is not None and not outcome.lost:
                        raise RechunkError(
                            "each worker must run the function given to run_on_workers; one failed with "
                            f"{error_text(outcome.error)}; see the cause"
                        ) from outcome.error
        except BaseException:
            self._set_ups.remove(function)
            raise

    def _after_copy(self) -> None:
        if self._cluster.started and not self._cluster.local:  # its workers have other work to do
            with suppress(OSError, RuntimeError):
                self._cluster.ask(release_memory)

    def _notes(self) -> tuple[str, ...]:
        return tuple(self._cluster.fitness.warnings)

    def _shut(self) -> None:
        self._cluster.end()

    def _look(self, every_s: float = 0.0) -> bool:
        """See which workers there are; calls on one that has left are lost. Return whether one has joined."""
        before = set(self._cluster.members)
        for gone in self._cluster.look(every_s):
            self._calls.lose(gone)
        return not before.issuperset(self._cluster.members)

    def _room(self, member: Member) -> int:
        """How many calls a worker may have."""
        most = min(member.threads, self._bound or member.threads)
        return most if most < member.threads else most * (1 + self._calls.ahead)

    def _dispatch(self) -> None:
        """Give calls to workers that have room."""
        if self._queue:
            _ = self._cluster.client  # which starts one of our own
        while self._queue:
            free = [member for member in self._cluster.members.values() if member.running < self._room(member)]
            if not free:
                return
            self._launch(self._queue.popleft(), min(free, key=lambda member: member.running))

    def _launch(self, packed: Packed, member: Member) -> None:
        try:
            self._calls.launch(packed, member)
        except OSError:  # the next look shows that it has gone
            self._queue.appendleft(packed)
            self._look()


def _do_nothing(argument: object) -> None:
    """Have a worker do what comes before its next call."""
