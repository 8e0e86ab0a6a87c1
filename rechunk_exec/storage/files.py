"""Objects as files under a folder.

Files are read into buffers that are used again, and are written beside and renamed, so that an object is there whole or
not at all; a shard is streamed into its file as its chunks are encoded.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from rechunk_exec.errors import StorageError
from rechunk_exec.storage.objectbase import Allocate, Objects, ObjectWriter
from rechunk_exec.storage.retry import Requests

PARTIAL_NAME = re.compile(r"\..+\.[0-9a-f]{12}\.partial")
"""Names of files that are being written."""

T = TypeVar("T")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


class LocalObjects(Objects):
    """Files under a folder.

    Once the folder is there it is held open, and files are named relative to it: whoever began with one array never
    meets another one that has taken its place under the same path.
    """

    streams = True

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)
        self.requests = Requests()
        self._descriptor = -1
        self._lock = threading.Lock()

    def name(self, key: str) -> str:
        return f"{self.folder}/{key}"

    def hold(self) -> None:
        """Open the folder now, if it is there."""
        with suppress(OSError):
            self.descriptor()

    def descriptor(self, *, create: bool = False) -> int:
        """Return the open folder; :class:`FileNotFoundError` if it is not there and not to be made."""
        if self._descriptor < 0:
            with self._lock:
                if self._descriptor < 0:
                    self._descriptor = self._open_folder(create=create)
                    weakref.finalize(self, os.close, self._descriptor).atexit = False
        return self._descriptor

    def _open_folder(self, *, create: bool) -> int:
        try:
            return os.open(self.folder, _FOLDER)
        except FileNotFoundError:
            if not create:
                raise
        os.makedirs(self.folder, exist_ok=True)
        return os.open(self.folder, _FOLDER)

    def _read(self, key: str, allocate: Allocate, start: int, length: int | None) -> memoryview | None:
        try:
            descriptor = os.open(key, _READ, dir_fd=self.descriptor())
        except FileNotFoundError:
            if self._is_link(key):
                raise StorageError(f"cannot read {self.name(key)}: it is a link to what is not there") from None
            return None
        try:
            size = os.fstat(descriptor).st_size
            start += size if start < 0 else 0
            length = size - start if length is None else length
            if not 0 <= start <= start + length <= size:
                raise StorageError(
                    f"{self.name(key)} must hold bytes {start} to {start + length}; it has {size}: it is torn",
                    permanent=True,
                )
            buffer = allocate(length)[:length]
            got = 0
            while got < length:
                count = os.preadv(descriptor, [buffer[got:]], start + got)
                if count == 0:
                    raise StorageError(
                        f"{self.name(key)} ends at byte {start + got}, and had {size} before: it is changing"
                    )
                got += count
            return buffer
        finally:
            os.close(descriptor)

    def _is_link(self, key: str) -> bool:
        try:
            return stat.S_ISLNK(os.stat(key, dir_fd=self.descriptor(), follow_symlinks=False).st_mode)
        except FileNotFoundError:
            return False

    def refuse_unreadable(self, key: str) -> None:
        def request() -> bool:
            try:
                return stat.S_ISREG(os.stat(key, dir_fd=self.descriptor()).st_mode)
            except FileNotFoundError:
                return not self._is_link(key)

        if not self.requests.make(request, "read", self.name(key)):
            raise StorageError(f"cannot read {self.name(key)}: it is no file, or a link to what is not there")

    def create(self, key: str) -> ObjectWriter:
        return _LocalWriter(self, key)

    def delete(self, key: str) -> None:
        def request() -> None:
            with suppress(FileNotFoundError):
                os.unlink(key, dir_fd=self.descriptor())

        self.requests.make(request, "delete", self.name(key))


class _LocalWriter(ObjectWriter):
    def __init__(self, objects: LocalObjects, key: str) -> None:
        self.objects, self.key = objects, key  # which keeps the folder open
        folder, slash, name = key.rpartition("/")
        # A name of its own for each try: the same task may run twice at once.
        self.partial = f"{folder}{slash}.{name}.{secrets.token_hex(6)}.partial"
        self.descriptor = self._make(self._open)
        self.size = 0
        self.lock = threading.Lock()

    def append(self, part: bytes | memoryview) -> int:
        with self.lock:
            offset = self.size
            self.size += len(part)
        self.place(part, offset)
        return offset

    def place(self, part: bytes | memoryview, offset: int) -> None:
        def request() -> None:
            view, position = memoryview(part), offset
            while view:
                count = os.pwrite(self.descriptor, view, position)
                view, position = view[count:], position + count

        self._make(request)

    def commit(self) -> int:
        def request() -> None:
            self._close()
            folder = self.objects.descriptor()
            os.replace(self.partial, self.key, src_dir_fd=folder, dst_dir_fd=folder)

        self._make(request)
        return self.size

    def abort(self) -> None:
        with suppress(OSError):
            self._close()
        with suppress(OSError):
            os.unlink(self.partial, dir_fd=self.objects.descriptor())

    def _make(self, request: Callable[[], T]) -> T:
        return self.objects.requests.make(request, "write", self.objects.name(self.key))

    def _open(self) -> int:
        folder = self.objects.descriptor(create=True)
        try:
            return os.open(self.partial, _CREATE, 0o666, dir_fd=folder)
        except FileNotFoundError:
            inner = self.key.split("/")[:-1]
            for count in range(1, len(inner) + 1):
                with suppress(FileExistsError):
                    os.mkdir("/".join(inner[:count]), dir_fd=folder)
            return os.open(self.partial, _CREATE, 0o666, dir_fd=folder)

    def _close(self) -> None:
        # Once only: by the second time another file may have the number.
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
