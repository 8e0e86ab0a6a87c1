"""A store on which single requests are made again: those that create, list and remove. Layer: storage.

What zarr does in several steps cannot be repeated as a whole, since the second try would meet what the first one had
made; and many requests would hardly ever all go well. Each of them can be made again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

import tenacity
from zarr.abc.store import ByteRequest, Store
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.storage import WrapperStore

from rechunk_exec.storage.cut import is_json, refuse_cut
from rechunk_exec.storage.failures import Outlook, outlook
from rechunk_exec.storage.objectbase import METADATA_NAMES
from rechunk_exec.storage.objects import requests_to
from rechunk_exec.storage.retry import RetryPolicy, current_policy

T = TypeVar("T")

_DOCUMENTS = (*METADATA_NAMES, ".zgroup", ".zmetadata")


def persistent(store: Store) -> Store:
    """Return a store on which single requests are made again if they fail for a passing reason."""
    return _PersistentStore(store, current_policy(), remote=requests_to(store).remote)


class _PersistentStore(WrapperStore[Store]):
    _supports_sync_io = False  # what zarr 3.4 may read and write by instead

    def __init__(self, store: Store, policy: RetryPolicy, *, remote: bool) -> None:
        super().__init__(store)
        self._policy, self._remote = policy, remote

    def _with_store(self, store: Store) -> _PersistentStore:
        return type(self)(store, self._policy, remote=self._remote)

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        return await self._make(lambda: self._got(key, prototype, byte_range))

    async def _got(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None) -> Buffer | None:
        answer = await self._store.get(key, prototype, byte_range)
        document = byte_range is None and self._remote and key.rpartition("/")[2] in _DOCUMENTS
        if answer is not None and document and not is_json(content := answer.to_bytes()):
            size: int | None = None
            with suppress(Exception):  # asked after a failure, to tell of which kind that was
                size = await self._store.getsize(key)
            refuse_cut(content, lambda: size)
        return answer

    async def exists(self, key: str) -> bool:
        return await self._make(lambda: self._store.exists(key))

    async def set(self, key: str, value: Buffer) -> None:
        await self._make(lambda: self._store.set(key, value))

    async def set_if_not_exists(self, key: str, value: Buffer) -> None:
        await self._make(lambda: self._store.set_if_not_exists(key, value))

    async def delete(self, key: str) -> None:
        await self._make(lambda: self._store.delete(key))

    async def delete_dir(self, prefix: str) -> None:
        await self._make(lambda: self._store.delete_dir(prefix))

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        for name in await self._make(lambda: _collected(self._store.list_dir(prefix))):
            yield name

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        for name in await self._make(lambda: _collected(self._store.list_prefix(prefix))):
            yield name

    async def _make(self, request: Callable[[], Awaitable[T]]) -> T:
        loop = tenacity.AsyncRetrying(
            stop=tenacity.stop_after_attempt(self._policy.tries),
            wait=tenacity.wait_random_exponential(self._policy.first_wait_s, self._policy.longest_wait_s),
            retry=tenacity.retry_if_exception(lambda error: outlook(error, remote=self._remote) is Outlook.PASSING),
            reraise=True,
        )

        async def attempt() -> T:
            return await request()

        return await loop(attempt)


async def _collected(names: AsyncIterator[str]) -> list[str]:
    return [name async for name in names]
