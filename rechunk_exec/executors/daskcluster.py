"""The workers of a ``distributed`` cluster: who they are, what they have, and whether they will do. Layer: executors.

Nothing is scheduled here. ``distributed`` is imported here only, when a :class:`DaskCluster` is made.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import signal
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent import futures
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from rechunk_exec.errors import MissingExtraError, PlanError, RechunkError, StorageError
from rechunk_exec.executors import sight
from rechunk_exec.executors.machine import thread_limits
from rechunk_exec.executors.main_module import refuse_while_importing_main
from rechunk_exec.executors.shared import ARRIVALS, Shared
from rechunk_exec.sizes import format_bytes
from rechunk_exec.tasks import Stage

_WAIT_S = 60.0
"""How long to wait for a worker where there is none."""
_PATIENCE_S = 0.5
"""How long to wait for an answer before looking whether the worker is still there."""
_PAUSE_FRACTION = 0.8
"""Of its memory limit: where a worker starts no more tasks, unless it is configured otherwise."""

logger = logging.getLogger("rechunk_exec")


@dataclass(slots=True, eq=False)
class Member:
    """A worker process of the cluster."""

    address: str
    threads: int
    """How many tasks it can run at once."""
    running: int = 0
    """How many calls of ours it was given that have not ended."""
    kept: dict[str, weakref.ref[Shared[Any]]] = field(default_factory=dict)
    """The shared objects that it was sent, by token."""
    idle_bytes: int = sys.maxsize
    """The least memory that it was seen to hold."""


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
        distributed = _distributed()
        if not (given is None or isinstance(given, str | distributed.Client)):
            raise TypeError(f"client must be a distributed.Client or the address of a scheduler; got {given!r}")
        if isinstance(given, distributed.Client) and given.asynchronous:
            raise TypeError(f"client must not be asynchronous, since executors wait; got {given!r}")
        self.local = given is None
        self.members: dict[str, Member] = {}
        self.warnings: list[str] = []
        self._unfit: dict[str, str] = {}
        self._size, self._cores = size, cores
        self._cluster: Any = None
        self._client: Any = None if isinstance(given, str) else given
        self._owned = not isinstance(given, distributed.Client)
        self._looked_s = self._seen_s = time.monotonic()
        if isinstance(given, str):
            try:
                self._client = distributed.Client(given, set_as_default=False)
            except (OSError, ValueError, TimeoutError) as error:
                raise RechunkError(
                    f"a scheduler must answer at the address given as client; got {given!r}: {error}"
                ) from error
        if not self.local:
            self.wait()

    @property
    def started(self) -> bool:
        """Whether there is a client now."""
        return self._client is not None

    @property
    def client(self) -> Any:
        """The client; a cluster of our own is started if it has not been."""
        if self._client is None:
            distributed = _distributed()
            refuse_while_importing_main()
            try:
                # No limit of memory, for the plan has one. The dashboard at any free port: others use the usual one.
                self._cluster = distributed.LocalCluster(
                    n_workers=self._size,
                    threads_per_worker=1,
                    processes=True,
                    memory_limit=None,
                    dashboard_address="127.0.0.1:0",
                    env=thread_limits(self._cores),
                )
                self._client = distributed.Client(self._cluster, set_as_default=False)
            except RuntimeError as error:
                raise RechunkError(
                    f"worker processes must start; got {type(error).__name__}: {error}; what they printed may say why. "
                    'What starts a job in a script stands under the guard `if __name__ == "__main__":`'
                ) from error
            self.wait()
        return self._client

    def wait(self) -> None:
        """Wait until there is a worker."""
        self._seen_s = time.monotonic()
        self.look()
        while not self.members:
            self._refuse_unfit()
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
            if self._client.status != "running":
                raise RuntimeError(f"the client is {self._client.status}")
            threads: Mapping[str, int] = self._client.nthreads()
        except (OSError, RuntimeError, TimeoutError, AttributeError) as error:
            raise RechunkError(
                f"the scheduler must answer until the job is done; it does not: {type(error).__name__}: {error}; keep "
                "the cluster and its client open"
            ) from error
        self._looked_s = time.monotonic()
        for address in self._unfit.keys() - threads.keys():
            del self._unfit[address]
        left = [self.members.pop(address) for address in self.members.keys() - threads.keys()]
        self._admit({address: threads[address] for address in threads if address not in self.members})
        if self._cluster is not None and len(self.members) < self._size:
            # It gives up workers that do not start again in good time, which on a busy machine they may not.
            self._cluster.scale(self._size)
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
        loop = self._client.loop.asyncio_loop
        calls = {address: asyncio.run_coroutine_threadsafe(self._call(function, address), loop) for address in chosen}
        while futures.wait(calls.values(), _PATIENCE_S).not_done:
            there = self._client.nthreads()
            for address in calls.keys() - there.keys():
                calls[address].cancel()
        return {
            address: OSError("it has gone") if call.cancelled() else call.result() for address, call in calls.items()
        }

    async def _call(self, function: Callable[..., object], address: str) -> object:
        answers: dict[str, object] = await self._client.run(function, workers=[address], on_error="return")
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
        self._refuse_unfit()
        self._refuse_memory(max(stage.plan.peak_bytes for stage in stages))
        see = partial(_unseen, sight.Landmarks.of(stages))
        problems = [
            f"worker {address} does not see {thing}"
            for address, found in self.ask(see).items()
            for thing in ([f"the arrays: {found}"] if isinstance(found, Exception) else found)
        ]
        if problems:
            raise StorageError(
                "executor 'dask' needs workers that see the source, the target and the place of the intermediates; "
                f"got {sight.summary(problems)}; use stores that all of them reach by the same name"
            )

    def end(self, *, at_once: bool = False) -> None:
        """Let go of what was started here: the client, the processes. A client that was given stays as it is.

        Processes end when their tasks have, or after some seconds; ``at_once``, they are killed.
        """
        client, cluster, self._client, self._cluster = self._client, self._cluster, None, None
        self.members.clear()
        for nanny in cluster.workers.values() if cluster is not None and at_once else ():
            nanny.auto_restart = False
            with suppress(ProcessLookupError, TypeError):  # it has no process any more
                os.kill(nanny.pid, signal.SIGKILL)
        if self._owned and client is not None:
            client.close()
        if cluster is not None:
            cluster.close()

    def _admit(self, threads: Mapping[str, int]) -> None:
        """Take on new workers, if their versions will do."""
        answers = dict.fromkeys(threads, sight.versions()) if self.local else self.ask(sight.versions, threads)
        for address, there in answers.items():
            if isinstance(there, OSError):  # it has gone again
                continue
            problems = {sight.NEEDED_ALIKE: str(there)} if isinstance(there, Exception) else sight.differences(there)
            if sight.NEEDED_ALIKE in problems:
                if address not in self._unfit:
                    self._warn(f"worker {address} gets no tasks: {problems[sight.NEEDED_ALIKE]}")
                self._unfit[address] = f"{problems[sight.NEEDED_ALIKE]} on worker {address}"
                continue
            for problem in problems.values():
                self._warn(f"worker {address} has other versions: {problem}")
            self.members[address] = Member(address, threads[address])

    def _warn(self, warning: str) -> None:
        logger.warning(warning)
        self.warnings.append(warning)

    def _refuse_unfit(self) -> None:
        if self._unfit:
            raise RechunkError(
                "workers must have rechunk_exec in the version that is here, since tasks and results are sent as "
                f"pickles; got {sight.summary(list(self._unfit.values()))}; install it there and start them again"
            )

    def _refuse_memory(self, needed_bytes: int) -> None:
        """Refuse workers that would be paused or killed for want of memory."""
        for address, worker in self._client.scheduler_info(n_workers=-1)["workers"].items():
            member = self.members.get(address)
            limit = worker["memory_limit"]
            if member is None or not limit:
                continue
            member.idle_bytes = min(member.idle_bytes, worker.get("metrics", {}).get("memory", 0))
            if member.idle_bytes + needed_bytes > _PAUSE_FRACTION * limit:
                raise PlanError(
                    f"a worker's memory_limit must hold the plan's {format_bytes(needed_bytes)} ({needed_bytes} bytes) "
                    f"and the {format_bytes(member.idle_bytes)} that it has already, below the {_PAUSE_FRACTION:.0%} "
                    f"where dask pauses it; got {format_bytes(limit)} ({limit} bytes) on worker {address}; give less "
                    "max_mem, or start workers with more memory or fewer threads"
                )


def is_client(thing: object) -> bool:
    """Whether something is a client of ``distributed``, which is not imported for that."""
    distributed = sys.modules.get("distributed")
    return distributed is not None and isinstance(thing, distributed.Client)


def _distributed() -> Any:
    try:
        return importlib.import_module("distributed")
    except ImportError as error:
        raise MissingExtraError("distributed", "dask") from error


def _answer(call: futures.Future[object]) -> object:
    return OSError("it has gone") if call.cancelled() else call.exception() or call.result()


def _keep(objects: Sequence[tuple[str, bytes]], forgotten: Sequence[str]) -> None:
    """Keep and forget shared objects, in a worker."""
    for token in forgotten:
        ARRIVALS.forget(token)
    for token, data in objects:
        ARRIVALS.keep(token, data)


async def _unseen(landmarks: sight.Landmarks) -> tuple[str, ...]:
    # A store that is far away must not hold up the worker's own loop.
    return await asyncio.to_thread(sight.unseen, landmarks)
