"""The workers of a ``distributed`` cluster: who they are and what they have. Layer: executors, below dask.

Nothing is scheduled here; whether they will do is seen in :mod:`.daskfitness`, and :mod:`.daskclient` talks to
``distributed``.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent import futures
from functools import partial
from typing import Any

from rechunk_exec.errors import RechunkError
from rechunk_exec.executors import sight
from rechunk_exec.executors.daskclient import DaskClient
from rechunk_exec.executors.daskfitness import Fitness, Member, refuse_memory, refuse_unseen, spare_memory, unseen_from
from rechunk_exec.executors.shared import ARRIVALS, Shared
from rechunk_exec.tasks import Stage

_WAIT_S = 60.0
"""How long to wait for a worker where there is none."""
_PATIENCE_S = 0.5
"""How long to wait for an answer before looking whether the worker is still there."""


class DaskCluster:
    """A cluster that is given, or one of processes on this machine, started when its client is first asked for.

    Parameters
    ----------
    given : distributed.Client, str or None
        A client, or the address of a scheduler; None starts ``size`` processes of one thread each.
    size : int
        Number of processes to start.
    cores : int
        Number of cores that each of these may use.
    """

    def __init__(self, given: object, *, size: int, cores: int) -> None:
        self.members: dict[str, Member] = {}
        self.fitness = Fitness()
        self._connection = DaskClient(given, size=size, cores=cores)
        self._looked_s = self._seen_s = time.monotonic()
        if not self.local:
            self.wait()

    @property
    def local(self) -> bool:
        """Whether its workers are processes that are started here."""
        return self._connection.local

    @property
    def started(self) -> bool:
        """Whether there is a client now."""
        return self._connection.client is not None

    @property
    def client(self) -> Any:
        """The client; a cluster of our own is started if it has not been."""
        self.start()
        return self._connection.client

    def start(self) -> None:
        """Start a cluster of our own, if it has not been."""
        if not self.started:
            self._connection.start()
            self.wait()

    def wait(self) -> None:
        """Wait until there is a worker."""
        self._seen_s = time.monotonic()
        self.look()
        while not self.members:
            self.fitness.refuse_unfit()
            time.sleep(0.1)
            self.look()

    def look(self, every_s: float = 0.0) -> list[Member]:
        """Note the workers that have joined since the last time; return those that have left.

        Does nothing if the last time was less than ``every_s`` ago.

        Raises
        ------
        RechunkError
            If the scheduler does not answer, or there was no worker for a minute.
        """
        now = time.monotonic()
        if now - self._looked_s < every_s:
            return []
        try:
            if self._connection.client.status != "running":
                raise RuntimeError(f"the client is {self._connection.client.status}")
            threads: Mapping[str, int] = self._connection.client.nthreads()
        except (OSError, RuntimeError, TimeoutError, AttributeError) as error:
            raise RechunkError(
                f"the scheduler must answer until the job is done; it does not: {type(error).__name__}: {error}; keep "
                "the cluster and its client open"
            ) from error
        self._looked_s = time.monotonic()
        self.fitness.forget_all_but(threads)
        left = [self.members.pop(address) for address in self.members.keys() - threads.keys()]
        self._admit({address: threads[address] for address in threads if address not in self.members})
        self._connection.refill(len(self.members))
        if self.members:
            self._seen_s = now
        elif now - self._seen_s > _WAIT_S:
            raise RechunkError(
                f"the cluster must have workers; it had none for {_WAIT_S:.0f} s; start some, and give an adaptive "
                "cluster a minimum"
            )
        return left

    def ask(self, function: Callable[..., object], addresses: Iterable[str] | None = None) -> dict[str, Any]:
        """Call a function in worker processes, beside their tasks; return values, or what was raised, by address.

        A worker that has gone is an OSError, at once: a connection to it would be tried for half a minute.
        """
        chosen = list(self.members if addresses is None else addresses)
        loop = self._connection.client.loop.asyncio_loop
        calls = {address: asyncio.run_coroutine_threadsafe(self._call(function, address), loop) for address in chosen}
        while futures.wait(calls.values(), _PATIENCE_S).not_done:
            there = self._connection.client.nthreads()
            for address in calls.keys() - there.keys():
                calls[address].cancel()
        return {
            address: OSError("it has gone") if call.cancelled() else call.result() for address, call in calls.items()
        }

    async def _call(self, function: Callable[..., object], address: str) -> object:
        answers: dict[str, object] = await self._connection.client.run(function, workers=[address], on_error="return")
        return answers[address]

    def share(self, member: Member, needs: Mapping[str, Shared[Any]]) -> None:
        """Send a worker the objects that it lacks, and have it forget those that nobody has a handle of any more.

        Raises
        ------
        OSError
            If it has gone.
        """
        forgotten = [token for token, handle in member.kept.items() if handle() is None]
        lacking = {token: handle for token, handle in needs.items() if token not in member.kept}
        if not forgotten and not lacking:
            return
        objects = [(token, handle.pack().data) for token, handle in lacking.items()]
        (answer,) = self.ask(partial(_keep, objects, forgotten), [member.address]).values()
        if isinstance(answer, Exception):
            raise OSError(f"worker {member.address} took no objects: {answer}") from answer
        for token in forgotten:
            del member.kept[token]
        member.kept |= {token: weakref.ref(handle) for token, handle in lacking.items()}

    def refuse(self, stages: Sequence[Stage]) -> None:
        """Refuse stages that the workers could not run; see :meth:`DaskExecutor.check_stages`."""
        self.look()
        if self.local or not stages:  # processes of this machine see what this one does
            return
        self.fitness.refuse_unfit()
        told: Mapping[str, Any] = self._connection.client.scheduler_info(n_workers=-1)["workers"]
        refuse_memory(self.members, told, max(stage.plan.peak_bytes for stage in stages))
        refuse_unseen(self.ask(partial(unseen_from, sight.Landmarks.of(stages))))

    def spare_bytes(self) -> int | None:
        """Return the bytes that a task may use in the worker with the least; None where one has no limit."""
        return spare_memory(self.members, self._connection.client.scheduler_info(n_workers=-1)["workers"])

    def end(self, *, at_once: bool = False) -> None:
        """Let go of what was started here: the client, the processes. A client that was given stays as it is.

        Processes end when their tasks have, or after some seconds; ``at_once``, they are killed.
        """
        self.members.clear()
        self._connection.end(at_once=at_once)

    def _admit(self, threads: Mapping[str, int]) -> None:
        """Take on new workers, if their versions will do."""
        answers = dict.fromkeys(threads, sight.versions()) if self.local else self.ask(sight.versions, threads)
        for address, there in answers.items():
            if not isinstance(there, OSError) and self.fitness.admits(address, there):  # else it has gone again
                self.members[address] = Member(address, threads[address])


def _keep(objects: Sequence[tuple[str, bytes]], forgotten: Sequence[str]) -> None:
    """Keep and forget shared objects, in a worker."""
    for token in forgotten:
        ARRIVALS.forget(token)
    for token, data in objects:
        ARRIVALS.keep(token, data)
