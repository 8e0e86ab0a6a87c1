"""Whether the objects that a finished task wrote are there, whole. Layer: storage.

A result tells how many objects a task has stored and how many bytes. Both are looked up: files may be lost or cut short
by a power cut, objects by people and their programs. On a local disk each file is looked at, and may also be as long as
it was and hold zeros, which is seen in the index of a shard. Of any other store the array is listed, once if it has not
very many objects; a listing tells sizes, except where each would take a request of its own (:mod:`.listing`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import product
from pathlib import Path

from rechunk_exec.errors import StorageError
from rechunk_exec.results import TaskResult
from rechunk_exec.storage.files import LocalObjects
from rechunk_exec.storage.listing import Listing
from rechunk_exec.storage.objects import objects_of
from rechunk_exec.storage.retry import Requests
from rechunk_exec.storage.stored import StoredArray, open_array
from rechunk_exec.storage.stores import local_path, open_store
from rechunk_exec.tasks import ArrayRef


class Presence:
    """The objects of one array.

    Parameters
    ----------
    ref : ArrayRef
        The array. If it is not there, none of its objects are.
    """

    def __init__(self, ref: ArrayRef) -> None:
        self._ref = ref
        self._folder: Path | None = local_path(ref)

    @cached_property
    def exists(self) -> bool:
        """Whether the array is there."""
        return objects_of(open_store(self._ref, read_only=True), self._ref.path).holds_array()

    def holds(self, result: TaskResult, start: tuple[int, ...], stop: tuple[int, ...]) -> bool:
        """Whether the box ``[start, stop)`` is stored as the result of its task says.

        Raises
        ------
        StorageError
            If the array is there and cannot be opened, or its objects cannot be listed or looked at.
        """
        if not self.exists:
            return False
        keys = self._object_keys(start, stop)
        if self._folder is not None:
            return _are_whole(self._file_sizes(keys), result) and all(map(self._has_index, keys))
        sizes = self._listing.sizes(keys)
        return sizes is None or _are_whole(sizes, result)

    @cached_property
    def _stored(self) -> StoredArray:
        return open_array(self._ref, read_only=True)

    @cached_property
    def _listing(self) -> Listing:
        return Listing(self._ref, self._stored)

    def _object_keys(self, start: tuple[int, ...], stop: tuple[int, ...]) -> list[str]:
        unit = self._stored.write_unit
        axes = (range(low // size, -(-high // size)) for low, high, size in zip(start, stop, unit, strict=True))
        return [self._stored.metadata.encode_chunk_key(number) for number in product(*axes)]

    def _file_sizes(self, keys: Iterable[str]) -> list[int | None]:
        """The sizes of those files that are there."""
        assert self._folder is not None
        found = (_file_size(self._folder / key) for key in keys)
        return [size for size in found if size is not None]

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
        except StorageError as error:
            if isinstance(error.__cause__, OSError):  # it could not be looked at
                raise
            return False
        return True


def _file_size(path: Path) -> int | None:
    """Return the size of a file; None if it is not there."""

    def request() -> int | None:
        try:
            return path.stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            return None

    return Requests().make(request, "look at", str(path))


def _are_whole(sizes: Sequence[int | None], result: TaskResult) -> bool:
    """Whether objects of these sizes, which are there, are those that a task has stored; None is not known."""
    known = [size for size in sizes if size is not None]
    if len(sizes) != result.objects_written or not all(known):
        return False
    # Where zarr has written them, no sizes are told.
    return len(known) < len(sizes) or result.stored_bytes_written in {0, sum(known)}
