"""A store on which things go wrong, at given rates and by a seed."""

from __future__ import annotations

import asyncio
import errno
import itertools
import random
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from zarr.abc.store import ByteRequest, Store
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.storage import WrapperStore

METADATA = ("zarr.json", ".zarray", ".zgroup", ".zattrs", ".rechunk_exec-temp")


class BusyError(Exception):
    """What a client raises that knows of HTTP only."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the server answered {status}")
        self.status = status


@dataclass(frozen=True, kw_only=True)
class Faults:
    """What goes wrong. Rates are between 0 and 1, of all requests that it can happen to."""

    seed: int = 0
    fails: float = 0.0
    """Requests that fail for a passing reason. Of writes and deletes, half are done nevertheless."""
    truncates: float = 0.0
    """Reads that give less than was asked for."""
    delays: float = 0.0
    """Requests that take :attr:`delay_s` longer."""
    delay_s: float = 0.01
    hides_s: float = 0.0
    """For how long an object that was not there before is not shown; metadata always are."""
    denies: str = ""
    """Part of a key; requests for such keys are denied, for good."""
    loses: str = ""
    """Part of a key; such objects are never shown."""


@dataclass
class Seen:
    """What has happened so far, to a store and its read-only views."""

    requests: list[tuple[str, str]] = field(default_factory=list)
    """Verb and key of each."""
    failed: int = 0
    truncated: int = 0
    hidden: int = 0
    shown_at: dict[str, float] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=itertools.count)


class FaultyStore(WrapperStore[Store]):
    """Wraps a store, in any process: what is counted and what is hidden is each process's own."""

    _supports_sync_io = False

    def __init__(self, store: Store, faults: Faults | None = None, seen: Seen | None = None) -> None:
        super().__init__(store)
        self.faults = faults or Faults()
        self.seen = seen or Seen()

    def __getstate__(self) -> dict[str, Any]:
        return {"store": self._store, "faults": self.faults}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["store"], state["faults"])  # type: ignore[misc]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FaultyStore) and self._store == other._store

    __hash__ = None  # type: ignore[assignment]

    def _with_store(self, store: Store) -> FaultyStore:
        return FaultyStore(store, self.faults, self.seen)

    def with_read_only(self, read_only: bool = False) -> FaultyStore:
        return self._with_store(self._store.with_read_only(read_only))

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        luck = await self._begin("get", key)
        self._fail(luck)
        if self._is_hidden(key):
            self.seen.hidden += 1
            return None
        value = await self._store.get(key, prototype, byte_range)
        if value is not None and len(value) and not key.endswith(METADATA) and luck.random() < self.faults.truncates:
            self.seen.truncated += 1
            return prototype.buffer.from_bytes(value.to_bytes()[: luck.randrange(len(value))])
        return value

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        return [await self.get(key, prototype, byte_range) for key, byte_range in key_ranges]

    async def getsize(self, key: str) -> int:
        return await self._store.getsize(key)

    async def exists(self, key: str) -> bool:
        self._fail(await self._begin("exists", key))
        return not self._is_hidden(key) and await self._store.exists(key)

    async def set(self, key: str, value: Buffer) -> None:
        luck = await self._begin("set", key)
        done = luck.random() < 0.5
        if not done:
            self._fail(luck)
        new = not key.endswith(METADATA) and self.faults.hides_s and not await self._store.exists(key)
        await self._store.set(key, value)
        if new:
            self.seen.shown_at[key] = time.monotonic() + self.faults.hides_s
        if done:
            self._fail(luck)

    async def set_if_not_exists(self, key: str, value: Buffer) -> None:
        if not await self._store.exists(key):
            await self.set(key, value)

    async def delete(self, key: str) -> None:
        luck = await self._begin("delete", key)
        if luck.random() < 0.5:
            await self._store.delete(key)
            self._fail(luck)
        else:
            self._fail(luck)
            await self._store.delete(key)

    async def delete_dir(self, prefix: str) -> None:
        self._fail(await self._begin("delete_dir", prefix))
        await self._store.delete_dir(prefix)

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        self._fail(await self._begin("list_dir", prefix))
        async for name in self._store.list_dir(prefix):
            yield name

    async def _begin(self, verb: str, key: str) -> random.Random:
        self.seen.requests.append((verb, key))
        luck = random.Random(f"{self.faults.seed} {next(self.seen.numbers)}")
        if luck.random() < self.faults.delays:
            await asyncio.sleep(self.faults.delay_s)
        if self.faults.denies and self.faults.denies in key:
            raise PermissionError(errno.EACCES, f"access to {key} is denied")
        return luck

    def _fail(self, luck: random.Random) -> None:
        if luck.random() >= self.faults.fails:
            return
        self.seen.failed += 1
        raise luck.choice(
            [
                ConnectionResetError(errno.ECONNRESET, "reset by peer"),
                TimeoutError("timed out"),
                OSError(errno.EBUSY, "please reduce your request rate"),
                OSError(errno.ESTALE, "stale file handle"),
                BusyError(503),
                BusyError(429),
            ]
        )

    def _is_hidden(self, key: str) -> bool:
        if self.faults.loses and self.faults.loses in key:
            return True
        return time.monotonic() < self.seen.shown_at.get(key, 0)
