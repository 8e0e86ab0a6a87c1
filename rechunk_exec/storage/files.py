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
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from rechunk_exec.errors import StorageError
from rechunk_exec.storage.objectbase import Allocate, Objects, ObjectWriter
from rechunk_exec.storage.retry import Requests

PARTIAL_NAME = re.compile(r"\..+\.[0-9a-f]{12}\.partial", re.DOTALL)
"""Names of files that are being written."""
ABANDONED_S = 60.0
"""A file that was not written to for so many seconds, and has not got its name, will not get it any more."""

T = TypeVar("T")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_CLOEXEC
_CAN_EXPECT = hasattr(os, "posix_fadvise")
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


def is_partial(name: str, of: str) -> bool:
    """Whether a file has the name of one that is being written to be called ``of``."""
    # What is being written to be called "jobs.jsonl" begins like what is to be called "jobs".
    return PARTIAL_NAME.fullmatch(name) is not None and name.rpartition(".")[0].rpartition(".")[0] == f".{of}"


class LocalObjects(Objects):
    """Files under a folder.

    Once the folder is held, files are named relative to it: whoever began with one array never meets another one that
    has taken its place under the same path.
    """

    streams = True

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)
        self.requests = Requests()
        self._held: int | None = None

    def name(self, key: str) -> str:
        return f"{self.folder}/{key}"

    def hold(self) -> None:
        """Hold the folder that is there now, as long as this object lives; nothing, if there is none."""
        with suppress(OSError):
            self._held = os.open(self.folder, _FOLDER)
            weakref.finalize(self, os.close, self._held).atexit = False

    def locate(self, key: str) -> tuple[str, int | None]:
        """Return a file's path, and the folder that it is relative to."""
        return (self.name(key), None) if self._held is None else (key, self._held)

    def _read(self, key: str, allocate: Allocate, start: int, length: int | None) -> memoryview | None:
        try:
            path, folder = self.locate(key)
            descriptor = os.open(path, _READ, dir_fd=folder)
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

    def expect(self, key: str, start: int, length: int | None) -> None:
        if not _CAN_EXPECT:
            return
        path, folder = self.locate(key)
        with suppress(OSError):
            descriptor = os.open(path, _READ, dir_fd=folder)
            try:
                os.posix_fadvise(descriptor, start, length or 0, os.POSIX_FADV_WILLNEED)
            finally:
                os.close(descriptor)

    def remove_abandoned(self, key: str) -> None:
        """Remove what processes have left that were killed while they wrote a file, where others may be writing it."""
        path = Path(self.name(key))
        for partial in path.parent.glob(f".{path.name}.*.partial"):
            with suppress(FileNotFoundError):  # its process was quicker
                if is_partial(partial.name, path.name) and time.time() - partial.stat().st_mtime > ABANDONED_S:
                    partial.unlink()

    def _is_link(self, key: str) -> bool:
        path, folder = self.locate(key)
        try:
            return stat.S_ISLNK(os.stat(path, dir_fd=folder, follow_symlinks=False).st_mode)
        except FileNotFoundError:
            return False

    def refuse_unreadable(self, key: str) -> None:
        path, folder = self.locate(key)

        def request() -> bool:
            try:
                return stat.S_ISREG(os.stat(path, dir_fd=folder).st_mode)
            except FileNotFoundError:
                return not self._is_link(key)

        if not self.requests.make(request, "read", self.name(key)):
            raise StorageError(f"cannot read {self.name(key)}: it is no file, or a link to what is not there")

    def create(self, key: str) -> ObjectWriter:
        return LocalWriter(self, key)

    def delete(self, key: str) -> None:
        path, folder = self.locate(key)

        def request() -> None:
            with suppress(FileNotFoundError):
                os.unlink(path, dir_fd=folder)

        self.requests.make(request, "delete", self.name(key))


class LocalWriter(ObjectWriter):
    """A file while it is written, under another name."""

    def __init__(self, objects: LocalObjects, key: str) -> None:
        self.objects, self.key = objects, key  # which keeps the folder open
        self.path, self.folder = objects.locate(key)
        folder, slash, name = self.path.rpartition("/")
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

    def reserve(self, size: int) -> int:
        with self.lock:
            offset, self.size = self.size, self.size + size
        # A hole, as far as nothing is placed in it.
        self._make(lambda: os.ftruncate(self.descriptor, offset + size))
        return offset

    def memory(self) -> memoryview | None:
        return None

    def shorten(self, size: int) -> None:
        self.size = size
        self._make(lambda: os.ftruncate(self.descriptor, size))

    def commit(self) -> int:
        try:
            self._close()
        except OSError as error:  # a network file system writes until then: what failed is in no second try
            raise self.objects.requests.error(error, "write", self.objects.name(self.key)) from error
        self._make(lambda: os.replace(self.partial, self.path, src_dir_fd=self.folder, dst_dir_fd=self.folder))
        return self.size

    def abort(self) -> None:
        with suppress(OSError):
            self._close()
        with suppress(OSError):
            os.unlink(self.partial, dir_fd=self.folder)

    def _make(self, request: Callable[[], T]) -> T:
        return self.objects.requests.make(request, "write", self.objects.name(self.key))

    def _open(self) -> int:
        try:
            return os.open(self.partial, _CREATE, 0o666, dir_fd=self.folder)
        except FileNotFoundError:
            self._make_folders()
            return os.open(self.partial, _CREATE, 0o666, dir_fd=self.folder)

    def _make_folders(self) -> None:
        if self.folder is None:
            os.makedirs(os.path.dirname(self.path), exist_ok=True)
            return
        inner = self.path.split("/")[:-1]
        for count in range(1, len(inner) + 1):
            with suppress(FileExistsError):
                os.mkdir("/".join(inner[:count]), dir_fd=self.folder)

    def _close(self) -> None:
        # Once only: by the second time another file may have the number.
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
