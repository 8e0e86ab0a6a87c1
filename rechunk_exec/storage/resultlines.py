"""Results that a process adds one by one on a local disk, a line each, in a file of its own. Layer: storage.

To make a file takes up to a millisecond, a tenth of a short task; to add a line to one that is open takes some
hundredths. Whoever moves the lines elsewhere locks the file, so that no line is added between its reading and its
removal; who finds that its file was removed makes another.
"""

from __future__ import annotations

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

    Raises
    ------
    OSError
        From each method, if the file system cannot do what it must: hold files, and locks of them.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._mutex = threading.Lock()
        self._file: _File | None = None

    def add(self, text: str) -> None:
        """Add a line: all of it, or nothing."""
        line = text.encode() + b"\n"
        with self._mutex:
            while self._file is None or not self._file.add(line):
                self._file = _File(self._folder)


class _File:
    """An open file, which others may remove."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{secrets.token_hex(8)}{_ENDING}"
        self._descriptor = os.open(path, _ADD, 0o666)
        weakref.finalize(self, os.close, self._descriptor).atexit = False
        try:
            with _locked(self._descriptor):
                pass
        except OSError:  # no locks on this file system
            path.unlink(missing_ok=True)
            raise

    def add(self, line: bytes) -> bool:
        """Add a line; False if the file has been removed."""
        with _locked(self._descriptor):
            before = os.fstat(self._descriptor)
            if not before.st_nlink:
                return False
            try:
                while line:
                    line = line[os.write(self._descriptor, line) :]
            except OSError:  # a full disk
                os.ftruncate(self._descriptor, before.st_size)
                raise
        return True


def read_lines(folder: Path) -> dict[str, str]:
    """Return the lines of all files in a folder, each by a name."""
    lines: dict[str, str] = {}
    for path in _files(folder):
        with suppress(FileNotFoundError):  # its lines have been moved
            lines |= _lines_in(path.name, path.read_bytes())
    return lines


@contextmanager
def moved_lines(folder: Path) -> Iterator[dict[str, str]]:
    """Give the lines of all files in a folder, each by a name; they are gone when the context ends without an error."""
    with ExitStack() as held:
        lines: dict[str, str] = {}
        paths = []
        for path in _files(folder):
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
            held.callback(os.close, descriptor)
            held.enter_context(_locked(descriptor))
            lines |= _lines_in(path.name, path.read_bytes())
            paths.append(path)
        yield lines
        for path in paths:
            path.unlink(missing_ok=True)


@contextmanager
def _locked(descriptor: int) -> Iterator[None]:
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"*{_ENDING}"))


def _lines_in(name: str, content: bytes) -> dict[str, str]:
    """Return lines by the name of their file and their number. The last one may be still on its way, or have been cut.

    A power cut leaves zeros where lines were to be.
    """
    lines = content.split(b"\n")[:-1]
    return {f"{name}:{number}": line.decode(errors="replace") for number, line in enumerate(lines) if line.strip(b"\0")}
