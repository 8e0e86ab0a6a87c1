"""Stored objects of any store. The one place where chunks' bytes meet a store.

Local files are read and written without zarr (:mod:`.files`), any other store through zarr's own interface.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, Store, SuffixByteRequest
from zarr.core.buffer import default_buffer_prototype
from zarr.storage import LocalStore, ZipStore

from rechunk_exec.errors import StorageError
from rechunk_exec.storage.bodies import buffer_for, drawn_buffer, draws, is_s3fs
from rechunk_exec.storage.cut import refuse_cut
from rechunk_exec.storage.failures import Outlook, ShortAnswerError, outlook
from rechunk_exec.storage.files import PARTIAL_NAME, LocalObjects
from rechunk_exec.storage.growing import GrowingBytes
from rechunk_exec.storage.objectbase import ARRAY_DOCUMENTS, Allocate, Drawn, Objects, ObjectWriter, Use
from rechunk_exec.storage.retry import Requests
from rechunk_exec.storage.unanswered import sync

__all__ = [
    "ARRAY_DOCUMENTS",
    "PARTIAL_NAME",
    "Allocate",
    "LocalObjects",
    "ObjectWriter",
    "Objects",
    "StoreObjects",
    "Use",
    "objects_of",
    "requests_to",
]


def objects_of(store: Store, path: str) -> Objects:
    """Return the objects under ``path`` of a zarr store."""
    if type(store) is LocalStore:
        return LocalObjects(Path(store.root) / path)
    return StoreObjects(store, path)


def put_object(objects: Objects, key: str, content: bytes) -> int:
    """Write an object whole, in place of what had its key, and return its size; if that fails nothing is left of it."""
    writer = objects.create(key)
    try:
        writer.append(content)
        return writer.commit()
    except BaseException:
        writer.abort()
        raise


def requests_to(store: Store) -> Requests:
    """Return how requests to a store are made."""
    if isinstance(store, LocalStore):
        return Requests()
    return Requests(store=str(store), remote=not isinstance(store, ZipStore))


class StoreObjects(Objects):
    """Objects of any zarr store, whole in memory while they are written."""

    streams = False

    def __init__(self, store: Store, path: str) -> None:
        self.store = store
        self.prefix = f"{path}/" if path else ""
        self.requests = requests_to(store)
        self.draws = draws(store)
        """Whether an object's parts are asked for as they are sent: :meth:`put_drawn`."""
        # s3fs asks for the size of an object before it reads it whole, but not before it reads it from some byte on.
        self._whole = OffsetByteRequest(0) if is_s3fs(store) else None

    def name(self, key: str) -> str:
        return self.prefix + key

    def _read(self, key: str, allocate: Allocate, start: int, length: int | None) -> memoryview | None:
        wanted: ByteRequest | None = self._whole
        if length is not None:
            wanted = SuffixByteRequest(-start) if start < 0 else RangeByteRequest(start, start + length)
        try:
            buffer = sync(self.store.get(self.name(key), prototype=default_buffer_prototype(), byte_range=wanted))
        except FileNotFoundError:
            return None
        except Exception as error:
            # Google and Azure refuse what lies outside of an object, each client in its own words.
            if length is not None and outlook(error, remote=self.requests.remote) is Outlook.UNKNOWN:
                size = self.size(key)
                if size is not None and not _lies_in(size, start, length):
                    raise self._torn(key, "nothing", length, size) from error
            raise
        if buffer is None:
            return None
        view = memoryview(cast(Any, buffer.as_numpy_array())).cast("B")
        if length is None or len(view) == length:
            return view
        return self._part(key, view, start, length)

    def _part(self, key: str, view: memoryview, start: int, length: int) -> memoryview:
        """Return the part that was asked for, of an answer that has another length."""
        size = self.size(key)
        if size is None:
            raise ShortAnswerError(f"it gave {len(view)} bytes where {length} were asked for")
        there = _lies_in(size, start, length)
        if there and len(view) == size > length:
            self.ignores_ranges = True
            first = start + size if start < 0 else start
            return view[first : first + length]
        if there and len(view) < length:
            raise ShortAnswerError(f"it gave {len(view)} bytes where {length} were asked for")
        raise self._torn(key, f"{len(view)} bytes", length, size)

    def _torn(self, key: str, given: str, length: int, size: int) -> StorageError:
        return StorageError(
            f"{self.name(key)} of {self.store} gave {given} where {length} bytes were expected; it has {size}: it is "
            "torn",
            permanent=True,
        )

    def refuse_short(self, key: str, size: int) -> None:
        whole = self.size(key)
        if whole is not None and whole != size:
            raise ShortAnswerError(f"it gave {size} bytes of {whole}")

    def read_document(self, key: str) -> memoryview | None:
        return self.read(key, use=lambda content: refuse_cut(content, lambda: self.size(key)))

    def size(self, key: str) -> int | None:
        """Return an object's size in bytes, if the store tells."""
        try:
            size: object = sync(self.store.getsize(self.name(key)))
        except Exception:  # noqa: BLE001 - asked after a failure, to tell of which kind that was
            return None
        return size if isinstance(size, int) else None

    def refuse_unreadable(self, key: str) -> None:
        return  # zarr asks the store itself

    def create(self, key: str) -> ObjectWriter:
        return _StoreWriter(self, key)

    def put_drawn(self, key: str, content: Drawn) -> int:
        """Write an object whole, of bytes that are made as they are sent, and return its size."""
        value, name = drawn_buffer(content), self.name(key)
        self.requests.make(lambda: sync(self.store.set(name, value)), "write", name)
        return len(content)

    def delete(self, key: str) -> None:
        def request() -> None:
            with suppress(FileNotFoundError, KeyError):  # icechunk says KeyError where no array is
                sync(self.store.delete(self.name(key)))

        self.requests.make(request, "delete", self.name(key))


def _lies_in(size: int, start: int, length: int) -> bool:
    """Whether ``length`` bytes from ``start``, from the end if negative, are in an object of this size."""
    first = start + size if start < 0 else start
    return 0 <= first <= first + length <= size


class _StoreWriter(ObjectWriter):
    def __init__(self, objects: StoreObjects, key: str) -> None:
        self.objects, self.key = objects, key
        self.content = GrowingBytes()
        self.end: int | None = None
        self.lock = threading.Lock()

    def append(self, part: bytes | memoryview) -> int:
        with self.lock:
            return self.content.add(part)

    def place(self, part: bytes | memoryview, offset: int) -> None:
        with self.lock:
            self.content.put(part, offset)

    def reserve(self, size: int) -> int:
        with self.lock:
            return self.content.reserve(size)

    def memory(self) -> memoryview | None:
        return self.content.view()

    def shorten(self, size: int) -> None:
        self.end = size  # views of the memory may still be held, so it stays as it is

    def commit(self) -> int:
        content = self.content.view()[: self.end]
        self.content.clear()
        size = len(content)
        value = buffer_for(self.objects.store, content)
        name = self.objects.name(self.key)
        self.objects.requests.make(lambda: sync(self.objects.store.set(name, value)), "write", name)
        return size

    def abort(self) -> None:
        self.content.clear()
