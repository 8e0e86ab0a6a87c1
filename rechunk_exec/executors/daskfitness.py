"""Whether workers of a ``distributed`` cluster will do: versions, memory, and sight of the arrays. Layer: executors."""

from __future__ import annotations

import asyncio
import logging
import sys
import weakref
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import Any

from rechunk_exec.errors import PlanError, RechunkError, StorageError
from rechunk_exec.executors import sight
from rechunk_exec.executors.shared import Shared
from rechunk_exec.sizes import format_bytes

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


class Fitness:
    """Which workers were not taken on, and what the others differ in."""

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self._unfit: dict[str, str] = {}

    def admits(self, address: str, there: Any) -> bool:
        """Whether a worker will do that has these versions, or this error instead."""
        problems = {sight.NEEDED_ALIKE: str(there)} if isinstance(there, Exception) else sight.differences(there)
        if sight.NEEDED_ALIKE in problems:
            if address not in self._unfit:
                self._warn(f"worker {address} gets no tasks: {problems[sight.NEEDED_ALIKE]}")
            self._unfit[address] = f"{problems[sight.NEEDED_ALIKE]} on worker {address}"
            return False
        for problem in problems.values():
            self._warn(f"worker {address} has other versions: {problem}")
        return True

    def forget_all_but(self, addresses: Container[str]) -> None:
        """Forget the workers that have gone."""
        self._unfit = {address: why for address, why in self._unfit.items() if address in addresses}

    def refuse_unfit(self) -> None:
        """Raise if a worker was not taken on."""
        if self._unfit:
            raise RechunkError(
                "workers must have rechunk_exec in the version that is here, since tasks and results are sent as "
                f"pickles; got {sight.summary(list(self._unfit.values()))}; install it there and start them again"
            )

    def _warn(self, warning: str) -> None:
        logger.warning(warning)
        self.warnings.append(warning)


def refuse_memory(members: Mapping[str, Member], told: Mapping[str, Any], needed_bytes: int) -> None:
    """Refuse workers that would be paused or killed for want of memory; ``told`` is what the scheduler says of each."""
    for address, worker in told.items():
        member = members.get(address)
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


def spare_memory(members: Mapping[str, Member], told: Mapping[str, Any]) -> int | None:
    """Return what the worker with the least has below where it is paused, on top of what it holds.

    None where one of them has no limit, or is not known to the scheduler; see :func:`refuse_memory`.
    """
    spare: list[int] = []
    for address, member in members.items():
        limit = told.get(address, {}).get("memory_limit")
        if not limit:
            return None
        member.idle_bytes = min(member.idle_bytes, told[address].get("metrics", {}).get("memory", 0))
        spare.append(int(_PAUSE_FRACTION * limit) - member.idle_bytes)
    return max(0, min(spare)) if spare else None


def refuse_unseen(answers: Mapping[str, Any]) -> None:
    """Refuse workers that do not see the arrays; ``answers`` are those to :func:`unseen_from`, by address."""
    problems = [
        f"worker {address} does not see {thing}"
        for address, found in answers.items()
        for thing in ([f"the arrays: {found}"] if isinstance(found, Exception) else found)
    ]
    if problems:
        raise StorageError(
            "executor 'dask' needs workers that see the source, the target and the place of the intermediates; "
            f"got {sight.summary(problems)}; use stores that all of them reach by the same name"
        )


async def unseen_from(landmarks: sight.Landmarks) -> tuple[str, ...]:
    """Return what a worker does not see of what the driver sees, for people."""
    # A store that is far away must not hold up the worker's own loop.
    return await asyncio.to_thread(sight.unseen, landmarks)
