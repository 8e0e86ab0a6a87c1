"""Files of lines, such as one line of JSON a job: any line is read without those before it. Layer: storage.

All lines have one length, filled up with blanks at their ends, so a line's number says where it lies; on an object
store that is one request for a range of bytes. A file that was edited by hand, and whose lines are not as long as each
other any more, is read from its beginning, and its lines are counted.

On a local disk a file that is being written has another name until it is whole. It is locked meanwhile, and the system
unlocks it when its writer dies: so who comes later tells what a killed one has left.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from rechunk_exec.errors import StorageError
from rechunk_exec.storage.files import ABANDONED_S, LocalObjects, LocalWriter, is_partial
from rechunk_exec.storage.objectbase import ObjectWriter
from rechunk_exec.storage.objects import Objects, StoreObjects, objects_of
from rechunk_exec.storage.stores import array_ref, is_url, local_path, open_store
from rechunk_exec.storage.unanswered import sync
from rechunk_exec.tasks import ArrayRef

_BLOCK_BYTES = 2**20
_FIRST_BYTES = 2**13
"""How much is read to find the first line."""


class LinesFile:
    """The lines of a file.

    Parameters
    ----------
    name : str
        A path, or the URL of an object.

    Raises
    ------
    StorageError
        If there is no such file, or it cannot be read.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._objects, self._key = _place(name, read_only=True)
        size = _size(self._objects, self._key)
        if size is None:
            raise StorageError(f"a file of jobs must be there; there is none at {name}; write it with `init`")
        self._size = size
        self._width = self._find_width()
        self._count: int | None = None

    def __len__(self) -> int:
        if self._count is None:
            self._count = self._size // self._width if self._width else sum(1 for _ in self._scan())
        return self._count

    def __getitem__(self, number: int) -> str:
        if number >= 0:
            for line in self.between(number, number + 1):
                return line
        raise IndexError(f"{self.name} has {len(self)} lines, numbered from 0; got number {number}")

    def between(self, first: int, stop: int) -> Iterator[str]:
        """Yield the lines from number ``first`` to before ``stop``, as far as there are any."""
        while self._width and first < stop and first < len(self):
            some = min(stop, len(self), first + max(1, _BLOCK_BYTES // self._width))
            lines = self._read_lines(first, some)
            if lines is None:  # edited by hand
                self._width, self._count = 0, None
                break
            yield from lines
            first = some
        if not self._width:
            for number, line in enumerate(self._scan()):
                if number >= stop:
                    return
                if number >= first:
                    yield line

    def _read_lines(self, first: int, stop: int) -> list[str] | None:
        """Return some lines by where they must lie; None if that is not where they are."""
        start = first * self._width
        before = min(1, start)
        text = self._read(start - before, stop * self._width)
        lines = text[before:].split(b"\n")
        regular = (not before or text[:1] == b"\n") and not lines.pop()
        if not regular or {len(line) for line in lines} != {self._width - 1}:
            return None
        return [line.decode(errors="replace") for line in lines]

    def _scan(self, block_bytes: int = _BLOCK_BYTES) -> Iterator[str]:
        rest = b""
        for start in range(0, self._size, block_bytes):
            *lines, rest = (rest + self._read(start, min(self._size, start + block_bytes))).split(b"\n")
            for line in lines:
                yield line.decode(errors="replace")
        if rest:
            yield rest.decode(errors="replace")

    def _find_width(self) -> int:
        """Return the length of the lines with their ends, in bytes; 0 if they cannot all be as long as the first."""
        width = len(next(self._scan(_FIRST_BYTES), "").encode()) + 1
        return width if self._size % width == 0 and self._read(self._size - 1, self._size) in {b"\n", b""} else 0

    def _read(self, start: int, stop: int) -> bytes:
        if stop <= max(start, 0):
            return b""
        part = self._objects.read(self._key, start=start, length=stop - start)
        if part is None:
            raise StorageError(f"{self.name} was removed while it was read")
        return bytes(part)


class LinesWriter:
    """A file of lines while it is written; it is there, whole, after :meth:`commit`.

    What writers of this file have left that were killed is removed.

    Parameters
    ----------
    name : str
        A path, or the URL of an object, which is held in memory until the end.
    replace : callable, optional
        Whether a file that begins like this, and lies there, may be replaced; an empty one may. If not given none may.

    Raises
    ------
    StorageError
        If it cannot be written, or is there and is not to be replaced.
    """

    def __init__(self, name: str, *, replace: Callable[[str], bool] | None = None) -> None:
        objects, key = _place(name, read_only=False)
        size = _size(objects, key)
        if size is not None and replace is None:
            raise StorageError(
                f"a file of jobs is not replaced unasked; there is one at {name}; give another name, or "
                "mode='overwrite' or 'resume'"
            )
        if size and replace is not None:
            beginning = objects.read(key, start=0, length=min(size, _FIRST_BYTES))
            if beginning is not None and not replace(bytes(beginning).decode(errors="replace")):
                raise StorageError(
                    f"a file of jobs replaces nothing but a file of jobs; there is something else at {name}; give "
                    "another name"
                )
        self.name = name
        self._lock = -1
        self._writer = self._begin(objects, key)
        self._held = bytearray()
        remove_abandoned_lines(name)

    def write(self, line: str, width: int) -> None:
        """Add a line, filled up with blanks to ``width`` bytes."""
        self._held += line.encode().ljust(width) + b"\n"
        if len(self._held) >= _BLOCK_BYTES:
            self._flush()

    def commit(self) -> None:
        """Have the file be there."""
        self._flush()
        self._writer.commit()
        self._unlock()

    def abort(self) -> None:
        """Forget what was written."""
        with suppress(StorageError):
            self._writer.abort()
        self._unlock()

    def _begin(self, objects: Objects, key: str) -> ObjectWriter:
        """Begin to write the file, and lock it, if it is on a local disk."""
        while True:
            writer = objects.create(key)
            if not isinstance(writer, LocalWriter):
                return writer
            self._lock = os.dup(writer.descriptor)  # the writer closes its own before the file has its name
            with suppress(OSError):  # no locks on this file system
                fcntl.flock(self._lock, fcntl.LOCK_EX)
            if Path(writer.partial).exists():
                return writer
            writer.abort()  # it was taken for a dead one's before it was locked
            self._unlock()

    def _unlock(self) -> None:
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)

    def _flush(self) -> None:
        if self._held:
            self._writer.append(bytes(self._held))
            self._held.clear()


def remove_abandoned_lines(name: str) -> None:
    """Remove what processes have left that were killed while they wrote a file of lines, where others may write it.

    Where the file system knows no locks, that is what was not written to for a minute.
    """
    objects, key = _place(name, read_only=True)
    if not isinstance(objects, LocalObjects):
        return  # an object is put whole
    with suppress(OSError), os.scandir(objects.folder) as entries:
        for entry in list(entries):
            if is_partial(entry.name, key):
                with suppress(OSError):  # its writer was quicker, or it is somebody else's
                    _remove_if_abandoned(Path(entry.path))


def _remove_if_abandoned(path: Path) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):  # it is being written
            return
        except OSError:  # no locks on this file system
            if time.time() - os.fstat(descriptor).st_mtime <= ABANDONED_S:
                return
        path.unlink()
    finally:
        os.close(descriptor)


def _place(name: str, *, read_only: bool) -> tuple[Objects, str]:
    """Return the objects among which a file is, and its key there."""
    folder, _, key = name.rpartition("/")
    if not key:
        raise StorageError(f"a file of jobs must have a name; got {name!r}")
    if not is_url(name):
        path = local_path(array_ref(name)) or Path(name).absolute()
        if path.is_dir():
            raise StorageError(f"a file of jobs must be a file; there is a folder at {name}")
        folder, key = str(path.parent), path.name
    else:
        ArrayRef(store=name)  # which refuses credentials, wherever in the URL
    return objects_of(open_store(array_ref(folder), read_only=read_only), ""), key


def _size(objects: Objects, key: str) -> int | None:
    """Return the size of an object, in bytes; None if it is not there."""
    name = objects.name(key)
    if not isinstance(objects, StoreObjects):
        path = Path(name)
        return path.stat().st_size if path.is_file() else None
    store = objects.store

    def request() -> int | None:
        try:
            return sync(store.getsize(name))
        except FileNotFoundError:
            return None

    return objects.requests.make(request, "read", name)
