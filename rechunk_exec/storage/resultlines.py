"""Results that a process adds one by one on a local disk, a line each, in a file of its own. Layer: storage.

To make a file takes up to a millisecond, a tenth of a short task; to add a line to one that is open takes some
hundredths. Whoever moves the lines elsewhere locks the file, so that no line is added between its reading and its
removal; who finds that its file was removed makes another.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import threading
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

_ENDING = ".lines"
_ADD = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC


class ResultLines:
    """The file of this process. Safe to use from several threads.

    Parameters
    ----------
    folder : Path
        Where it is to be; made when it is needed.
    head : str
        Its first line, which says what the others are.

    Raises
    ------
    OSError
        From each method, if the file system cannot do what it must: hold files, and locks of them.
    """

    def __init__(self, folder: Path, head: str) -> None:
        self._folder = folder
        self._head = head
        self._mutex = threading.Lock()
        self._file: _File | None = None

    def add(self, text: str) -> None:
        """Add a line: all of it, or nothing."""
        line = text.encode() + b"\n"
        with self._mutex:
            while self._file is None or not self._file.add(line):
                self._file = _File(self._folder, self._head)


class _File:
    """An open file, which others may remove."""

    def __init__(self, folder: Path, head: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{secrets.token_hex(8)}{_ENDING}"
        self._descriptor = os.open(path, _ADD, 0o666)
        weakref.finalize(self, os.close, self._descriptor).atexit = False
        try:
            self.add(head.encode() + b"\n")
        except OSError:  # no locks on this file system, or no room
            path.unlink(missing_ok=True)
            raise

    def add(self, line: bytes) -> bool:
        """Add a line; False if the file has been removed."""
        descriptor = self._descriptor
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        try:
            before = os.fstat(descriptor)
            if not before.st_nlink:
                return False
            if os.write(descriptor, line) < len(line):  # the disk is full, nearly
                os.ftruncate(descriptor, before.st_size)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return True
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)


def read_lines(folder: Path) -> dict[str, list[str]]:
    """Return the lines of each file in a folder, the head first."""
    files = {}
    for path in _files(folder):
        with suppress(FileNotFoundError):  # its lines have been moved
            files[path.name] = _lines_in(path)
    return files


@contextmanager
def moved_lines(folder: Path) -> Iterator[dict[str, list[str]]]:
    """Give the lines of each file in a folder; the files are gone when the context ends without an error."""
    with ExitStack() as held:
        files = {}
        for path in _files(folder):
            with suppress(FileNotFoundError):
                descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)  # NFS wants that for a lock
                held.callback(os.close, descriptor)
                fcntl.flock(descriptor, fcntl.LOCK_EX)  # until it is closed
                files[path.name] = _lines_in(path)
        yield files
        for name in files:
            (folder / name).unlink(missing_ok=True)


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"*{_ENDING}"))


def _lines_in(path: Path) -> list[str]:
    """Return the lines of a file that are whole: the last one may be on its way, or be cut.

    A power cut leaves zeros where lines were to be.
    """
    content = path.read_bytes().partition(b"\0")[0]
    return content.decode(errors="replace").split("\n")[:-1]
