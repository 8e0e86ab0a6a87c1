"""Stored objects: whole ones and ranges in, whole ones out. The one place where chunks' bytes meet a store.

Local files are read into buffers that are used again, and are written beside and renamed, so that an object is there
whole or not at all; a shard is streamed into its file as its chunks are encoded. Any other store is used through zarr's
own interface. A missing object is ``None``; everything else that keeps bytes from coming is a :class:`StorageError`.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

from zarr.abc.store import RangeByteRequest, Store, SuffixByteRequest
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync
from zarr.storage import LocalStore

from rechunk_exec.errors import StorageError

PARTIAL_NAME = re.compile(r"\..+\.[0-9a-f]{12}\.partial")
"""Names of files that are being written."""

Allocate: TypeAlias = Callable[[int], memoryview]
"""Gives a buffer of at least that many bytes, to read into."""


class ObjectWriter(ABC):
    """One object being written. Appending is safe from several threads; nothing is visible before :meth:`commit`."""

    @abstractmethod
    def append(self, part: bytes | memoryview) -> int:
        """Add bytes at the end and return where they begin."""

    @abstractmethod
    def place(self, part: bytes, offset: int) -> None:
        """Put bytes at ``offset``, inside what has been appended or reserved."""

    @abstractmethod
    def commit(self) -> int:
        """Make the object visible, whole, and return its size in bytes."""

    @abstractmethod
    def abort(self) -> None:
        """Forget the object; what was there before stays."""


class Objects(ABC):
    """The objects of one array's store, by key relative to the array."""

    streams: bool
    """Whether an object's parts leave memory as they are appended."""

    @abstractmethod
    def read(self, key: str, allocate: Allocate, start: int = 0, length: int | None = None) -> memoryview | None:
        """Return the object's bytes, or ``length`` of them from ``start`` (from the end if negative).

        None if there is no such object; :class:`StorageError` if it is there and does not give these bytes.
        """

    @abstractmethod
    def refuse_unreadable(self, key: str) -> None:
        """Raise :class:`StorageError` if the object is there and cannot be read, where zarr takes that for absent."""

    @abstractmethod
    def create(self, key: str) -> ObjectWriter:
        """Begin to write the object."""

    @abstractmethod
    def delete(self, key: str) -> None:
        """Remove the object if it is there."""


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


class LocalObjects(Objects):
    """Files under a folder."""

    streams = True

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)

    def read(self, key: str, allocate: Allocate, start: int = 0, length: int | None = None) -> memoryview | None:
        path = f"{self.folder}/{key}"
        try:
            descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        except FileNotFoundError:
            if os.path.islink(path):
                raise StorageError(f"cannot read {path}: it is a link to what is not there") from None
            return None
        except OSError as error:
            raise StorageError(f"cannot read {path}: {error}") from error
        try:
            size = os.fstat(descriptor).st_size
            start += size if start < 0 else 0
            length = size - start if length is None else length
            if not 0 <= start <= start + length <= size:
                raise StorageError(f"{path} must hold bytes {start} to {start + length}; it has {size}: it is torn")
            buffer = allocate(length)[:length]
            got = 0
            while got < length:
                count = os.preadv(descriptor, [buffer[got:]], start + got)
                if count == 0:
                    raise StorageError(f"{path} ends at byte {start + got}, and had {size} before: it is changing")
                got += count
            return buffer
        except OSError as error:
            raise StorageError(f"cannot read {path}: {error}") from error
        finally:
            os.close(descriptor)

    def refuse_unreadable(self, key: str) -> None:
        path = f"{self.folder}/{key}"
        try:
            readable = stat.S_ISREG(os.stat(path).st_mode)
        except FileNotFoundError:
            readable = not os.path.islink(path)
        except OSError as error:
            raise StorageError(f"cannot read {path}: {error}") from error
        if not readable:
            raise StorageError(f"cannot read {path}: it is no file, or a link to what is not there")

    def create(self, key: str) -> ObjectWriter:
        return _LocalWriter(f"{self.folder}/{key}")

    def delete(self, key: str) -> None:
        path = f"{self.folder}/{key}"
        try:
            with suppress(FileNotFoundError):
                os.unlink(path)
        except OSError as error:
            raise StorageError(f"cannot delete {path}: {error}") from error


class _LocalWriter(ObjectWriter):
    def __init__(self, path: str) -> None:
        self.path = path
        folder, _, name = path.rpartition("/")
        # A name of its own for each try: the same task may run twice at once.
        self.partial = f"{folder}/.{name}.{secrets.token_hex(6)}.partial"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)
        try:
            try:
                self.descriptor = os.open(self.partial, flags, 0o666)
            except FileNotFoundError:
                os.makedirs(folder, exist_ok=True)
                self.descriptor = os.open(self.partial, flags, 0o666)
        except OSError as error:
            raise StorageError(f"cannot write {path}: {error}") from error
        self.size = 0
        self.lock = threading.Lock()

    def append(self, part: bytes | memoryview) -> int:
        with self.lock:
            offset = self.size
            self.size += len(part)
        self.place(part, offset)
        return offset

    def place(self, part: bytes | memoryview, offset: int) -> None:
        view = memoryview(part)
        try:
            while view:
                count = os.pwrite(self.descriptor, view, offset)
                view, offset = view[count:], offset + count
        except OSError as error:
            raise StorageError(f"cannot write {self.path}: {error}") from error

    def commit(self) -> int:
        try:
            self._close()
            os.replace(self.partial, self.path)
        except OSError as error:
            raise StorageError(f"cannot write {self.path}: {error}") from error
        return self.size

    def abort(self) -> None:
        with suppress(OSError):
            self._close()
        with suppress(OSError):
            os.unlink(self.partial)

    def _close(self) -> None:
        # Once only: by the second time another file may have the number.
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class StoreObjects(Objects):
    """Objects of any zarr store, whole in memory while they are written."""

    streams = False

    def __init__(self, store: Store, path: str) -> None:
        self.store = store
        self.prefix = f"{path}/" if path else ""

    def read(self, key: str, allocate: Allocate, start: int = 0, length: int | None = None) -> memoryview | None:
        request: RangeByteRequest | SuffixByteRequest | None = None
        if length is not None:
            request = SuffixByteRequest(-start) if start < 0 else RangeByteRequest(start, start + length)
        name = self.prefix + key
        try:
            buffer = sync(self.store.get(name, prototype=default_buffer_prototype(), byte_range=request))
        except (FileNotFoundError, KeyError):
            return None
        except Exception as error:
            raise StorageError(f"cannot read {name} from {self.store}: {type(error).__name__}: {error}") from error
        if buffer is None:
            return None
        view = memoryview(buffer.to_bytes())
        if length is not None and len(view) != length:
            raise StorageError(f"{name} of {self.store} gave {len(view)} bytes where {length} were expected")
        return view

    def refuse_unreadable(self, key: str) -> None:
        return  # zarr asks the store itself

    def create(self, key: str) -> ObjectWriter:
        return _StoreWriter(self.store, self.prefix + key)

    def delete(self, key: str) -> None:
        try:
            with suppress(FileNotFoundError, KeyError):
                sync(self.store.delete(self.prefix + key))
        except Exception as error:
            raise StorageError(f"cannot delete {self.prefix + key} of {self.store}: {error}") from error


class _StoreWriter(ObjectWriter):
    def __init__(self, store: Store, name: str) -> None:
        self.store, self.name = store, name
        self.content = bytearray()
        self.lock = threading.Lock()

    def append(self, part: bytes | memoryview) -> int:
        with self.lock:
            offset = len(self.content)
            self.content += part
        return offset

    def place(self, part: bytes, offset: int) -> None:
        with self.lock:
            self.content[offset : offset + len(part)] = part

    def commit(self) -> int:
        size = len(self.content)
        value = default_buffer_prototype().buffer.from_bytes(self.content)
        self.content = bytearray()
        try:
            sync(self.store.set(self.name, value))
        except Exception as error:
            raise StorageError(f"cannot write {self.name} to {self.store}: {type(error).__name__}: {error}") from error
        return size

    def abort(self) -> None:
        self.content = bytearray()
