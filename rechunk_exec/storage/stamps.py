"""What tells one state of a stored object from another. Layer: storage.

A file is known by its size and by when it was written, to the nanosecond. An object of an object store by its size and
its ETag, or what its store has instead (:mod:`.told`), for one request. Where a store tells nothing of the kind, as one
in memory, by a checksum of its first and last bytes, so that what is read is bounded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from zarr.abc.store import ByteRequest, RangeByteRequest, Store, SuffixByteRequest
from zarr.core.buffer import default_buffer_prototype

from rechunk_exec.errors import StorageError
from rechunk_exec.storage.documents import forget_listings
from rechunk_exec.storage.failures import ShortAnswerError
from rechunk_exec.storage.objects import requests_to
from rechunk_exec.storage.told import Told, ask_of, refuse_failed
from rechunk_exec.storage.unanswered import each_of, sync

_REQUESTS = 16
"""How many objects are asked for at once."""
_PART_BYTES = 512 << 10
"""How many of an object's first bytes, and of its last ones, go into its checksum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """A stored chunk or metadata document, as its store tells of it."""

    key: str
    size: int
    """In bytes; -1 if it is absent, and 0 where it is larger than what was read of it and the store does not tell."""
    mtime_ns: int
    """When it was last written, in nanoseconds since 1970; 0 where the store does not tell."""
    mark: str = ""
    """What else changes when it is written, with its name: ``etag:"9a0364b9"``; or ``blake2b:`` and a checksum. Empty
    for files, and in jobs of before this was looked at."""

    def shows_change(self, now: Stamp) -> bool:
        """Whether the object was written between this stamp and a later one."""
        return (self.size, self.mtime_ns) != (now.size, now.mtime_ns) or bool(self.mark and self.mark != now.mark)


def file_stamp(key: str, path: Path) -> Stamp:
    """Return the stamp of a file.

    Raises
    ------
    StorageError
        If it cannot be looked at.
    """
    try:
        status = path.stat()
    except FileNotFoundError:
        return Stamp(key=key, size=-1, mtime_ns=0)
    except OSError as error:
        raise StorageError(f"cannot look at {path}: {error}") from error
    return Stamp(key=key, size=status.st_size, mtime_ns=status.st_mtime_ns)


def object_stamps(store: Store, path: str, keys: Iterable[str]) -> tuple[Stamp, ...]:
    """Return the stamps of objects under ``path`` of a store that is no local folder, several asked for at once.

    Raises
    ------
    StorageError
        If one cannot be looked at, after the tries.
    """
    forget_listings(store)
    requests, ask = requests_to(store), ask_of(store)

    def stamp(key: str) -> Stamp:
        name = f"{path}/{key}" if path else key
        return requests.make(lambda: _stamp(store, ask_of_one(name), key, name), "look at", name)

    def ask_of_one(name: str) -> Told | None:
        return Told(size=None, mark="") if ask is None else ask(name)

    return tuple(each_of(stamp, keys, threads=_REQUESTS))


def _stamp(store: Store, told: Told | None, key: str, name: str) -> Stamp:
    if told is not None and not told.mark:
        told = _checksum(store, name, told.size)
    if told is None:
        return Stamp(key=key, size=-1, mtime_ns=0)
    return Stamp(key=key, size=told.size or 0, mtime_ns=0, mark=told.mark)


def _checksum(store: Store, name: str, size: int | None) -> Told | None:
    """Return a checksum of an object's first and last bytes, and its size as far as that is known."""
    if size is None and type(store).getsize is not Store.getsize:  # which would read the object
        try:
            size = sync(store.getsize(name))
        except FileNotFoundError as error:
            refuse_failed(error)
            return None
    parts = _ends(store, name) if size is None else _ends_of(store, name, size)
    if parts is None:
        return None
    if size is None and len(parts) < 2 * _PART_BYTES:
        size = len(parts)
    return Told(size=size, mark=f"blake2b:{hashlib.blake2b(parts, digest_size=16).hexdigest()}")


def _ends_of(store: Store, name: str, size: int) -> bytes | None:
    """Return the first and last bytes of an object of known size, or all where it is small."""
    if size <= 2 * _PART_BYTES:
        return _read(store, name, None, size)
    first = _read(store, name, RangeByteRequest(0, _PART_BYTES), _PART_BYTES)
    last = _read(store, name, RangeByteRequest(size - _PART_BYTES, size), _PART_BYTES)
    return None if first is None or last is None else first + last


def _ends(store: Store, name: str) -> bytes | None:
    """Return the first and last bytes of an object of unknown size: all where it has less, and some twice."""
    first = sync(store.get(name, default_buffer_prototype(), RangeByteRequest(0, _PART_BYTES)))
    if first is None:
        return None
    if len(first) < _PART_BYTES:
        size = sync(store.getsize(name))
        if size != len(first):
            raise ShortAnswerError(f"it gave {len(first)} bytes of {size}")
        return first.to_bytes()
    last = _read(store, name, SuffixByteRequest(_PART_BYTES), _PART_BYTES)
    return None if last is None else first.to_bytes()[:_PART_BYTES] + last


def _read(store: Store, name: str, wanted: ByteRequest | None, size: int) -> bytes | None:
    answer = sync(store.get(name, default_buffer_prototype(), wanted))
    if answer is None:
        return None
    if len(answer) < size:
        raise ShortAnswerError(f"it gave {len(answer)} bytes where {size} were asked for")
    return answer.to_bytes()[:size]
