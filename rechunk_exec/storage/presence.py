"""Whether the objects that a finished task wrote are there, whole. Layer: storage.

A result tells how many objects a task has stored and how many bytes. On a local disk both are looked up: files may be
lost or cut short by a power cut, or by people; or be as long as they were and hold zeros, which is seen in the index of
a shard. Other stores put an object whole or not at all, and there only the number of an intermediate's objects is
looked up, from one listing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import product
from pathlib import Path

from zarr.abc.store import Store
from zarr.core.sync import sync

from rechunk_exec.errors import StorageError
from rechunk_exec.results import TaskResult
from rechunk_exec.storage.documents import forget_listings
from rechunk_exec.storage.files import LocalObjects
from rechunk_exec.storage.persistent import persistent
from rechunk_exec.storage.stored import open_array
from rechunk_exec.storage.stores import local_path, open_store
from rechunk_exec.tasks import ArrayRef


class Presence:
    """The objects of one array.

    Parameters
    ----------
    ref : ArrayRef
        The array. If it is not there, none of its objects are.
    listed : bool
        Whether to list the objects where the array is on no local disk; else all count as present.
    """

    def __init__(self, ref: ArrayRef, *, listed: bool) -> None:
        self._folder: Path | None = local_path(ref)
        self._keys: set[str] | None = None
        try:
            self._stored = open_array(ref, read_only=True)
        except StorageError:
            self.exists = False
            return
        self.exists = True
        if self._folder is None and listed:
            store = open_store(ref, read_only=True)
            forget_listings(store)
            prefix = f"{ref.path}/" if ref.path else ""
            self._keys = {key.removeprefix(prefix) for key in sync(_keys(persistent(store), prefix))}

    def holds(self, result: TaskResult, start: tuple[int, ...], stop: tuple[int, ...]) -> bool:
        """Whether the box ``[start, stop)`` is stored as the result of its task says."""
        if not self.exists:
            return False
        if self._folder is None and self._keys is None:
            return True
        sizes = [size for key in self._object_keys(start, stop) if (size := self._size(key)) is not None]
        if len(sizes) != result.objects_written:
            return False
        if self._keys is not None:
            return True
        told = result.stored_bytes_written  # 0 where zarr does not tell
        return all(sizes) and told in {0, sum(sizes)} and all(map(self._has_index, self._object_keys(start, stop)))

    def _object_keys(self, start: tuple[int, ...], stop: tuple[int, ...]) -> list[str]:
        unit = self._stored.write_unit
        axes = (range(low // size, -(-high // size)) for low, high, size in zip(start, stop, unit, strict=True))
        return [self._stored.metadata.encode_chunk_key(number) for number in product(*axes)]

    def _size(self, key: str) -> int | None:
        """The size of an object; None if it is absent, and 1 where only that is known."""
        if self._keys is not None:
            return 1 if key in self._keys else None
        assert self._folder is not None
        try:
            return (self._folder / key).stat().st_size
        except OSError:
            return None

    def _has_index(self, key: str) -> bool:
        """Whether an object that is there is no shard, or a shard whose index can be read."""
        index = self._stored.index
        if index is None:
            return True
        assert self._folder is not None
        try:
            content = LocalObjects(self._folder).read(
                key, start=0 if index.at_start else -index.nbytes, length=index.nbytes
            )
            if content is not None:
                index.decode(content, key)
        except StorageError:
            return False
        return True


async def _keys(store: Store, prefix: str) -> list[str]:
    keys: AsyncIterator[str] = store.list_prefix(prefix)
    return [key async for key in keys]
