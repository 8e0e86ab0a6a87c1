"""Results that a process adds one by one on a local disk, a line each, in files of its own. Layer: storage.

To make a file and give it its name takes up to a millisecond, a tenth of a short task; to add a line to one that is
there takes some hundredths. No locks are asked of the file system: a file has one writer, which opens it by its name
for each line, so that other machines see the line, and goes on to another file when this one is full, or its name has
gone. Whoever moves lines elsewhere takes files that are full, and renames those that nobody has written to for a
minute; these it takes the next time, when a writer that had just opened one has long closed it.
"""

from __future__ import annotations

import errno
import os
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from rechunk_exec.storage.files import ABANDONED_S

MOST_LINES = 4096
"""Of a file, but for its head."""
_ENDING, _FULL = ".lines", ".full.lines"
_ADD = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC


class ResultLines:
    """The files of this process. Safe to use from several threads.

    Parameters
    ----------
    folder : Path
        Where they are to be; made when it is needed.
    head : str
        The first line of each, which says what the others are.
    """

    def __init__(self, folder: Path, head: str) -> None:
        self._folder = folder
        self._head = head.encode() + b"\n"
        self._lock = threading.Lock()
        self._path = ""
        self._lines = 0

    def add(self, text: str) -> None:
        """Add a line: all of it, or nothing. Raises OSError where the file system cannot."""
        line = text.encode() + b"\n"
        with self._lock:
            if not self._lines:
                self._begin(line)
            else:
                try:
                    _append(os.open(self._path, _ADD), line)
                except FileNotFoundError:  # its lines have been moved
                    self._begin(line)
            self._lines += 1
            if self._lines == MOST_LINES:
                with suppress(FileNotFoundError):
                    _rename_full(Path(self._path))
                self._lines = 0

    def _begin(self, line: bytes) -> None:
        self._lines = 0
        self._path = str(self._folder / f"{secrets.token_hex(8)}{_ENDING}")
        self._folder.mkdir(parents=True, exist_ok=True)
        _append(os.open(self._path, _ADD | os.O_CREAT | os.O_EXCL, 0o666), self._head + line)


def _append(descriptor: int, line: bytes) -> None:
    """Add to a file and close it."""
    try:
        written = os.write(descriptor, line)
        if written < len(line):
            os.ftruncate(descriptor, os.fstat(descriptor).st_size - written)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        os.close(descriptor)


def read_lines(folder: Path) -> dict[str, list[str]]:
    """Return the lines of each file in a folder, the head first. Raises OSError where one cannot be read."""
    while True:
        names = _names(folder)
        files = {name: _lines_in(folder / name) for name in names}
        found = {name: lines for name, lines in files.items() if lines is not None}
        if len(found) == len(names):  # else one was just renamed, or its lines have been moved
            return found


def moved_lines(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the lines of each file that nobody writes to any more, with its name; it is removed when it has been used.

    For one caller at a time. Raises OSError where a file cannot be read, renamed or removed.
    """
    names = _names(folder)
    for name in names:
        lines = _lines_in(folder / name) if name.endswith(_FULL) else None
        if lines is not None:
            yield name, lines
            (folder / name).unlink(missing_ok=True)
    for name in names:
        with suppress(FileNotFoundError):  # its writer has renamed it
            path = folder / name
            if not name.endswith(_FULL) and time.time() - path.stat().st_mtime > ABANDONED_S:
                _rename_full(path)


def remove_lines(folder: Path) -> None:
    """Remove all files of lines in a folder."""
    for name in _names(folder):
        with suppress(FileNotFoundError):
            (folder / name).unlink()


def _rename_full(path: Path) -> None:
    path.rename(path.with_name(path.name.removesuffix(_ENDING) + _FULL))


def _names(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in entries if entry.name.endswith(_ENDING))
    except FileNotFoundError:
        return []


def _lines_in(path: Path) -> list[str] | None:
    """Return the lines of a file that are whole: the last one may be on its way, or be cut. None if it is not there.

    A power cut leaves zeros where lines were to be.
    """
    try:
        content = path.read_bytes().partition(b"\0")[0]
    except FileNotFoundError:
        return None
    return content.decode(errors="replace").split("\n")[:-1]
