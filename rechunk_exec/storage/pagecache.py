"""What the system keeps in memory of files that were read: whether, and having it forget them. Layer: storage.

Files of local disks only; other stores have no cache that can be asked.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_LOOKS = 8
"""Places of a file that are looked at."""
_PAGE_BYTES = 4096


def forget_cached(files: Iterable[Path]) -> None:
    """Ask the system to forget what it keeps of files, so that the next read comes from the disk.

    It keeps what is not yet on the disk, what others have mapped, and all of a file system that is in memory.
    """
    for file in files:
        with suppress(OSError), _Opened(file) as descriptor:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def cached_share(files: Iterable[Path]) -> float | None:
    """Return which share of files the system has in memory, by a few pages of each; None if it does not tell.

    What is looked at is not read from the disk for that.
    """
    seen = looks = 0
    for file in files:
        with suppress(OSError), _Opened(file) as descriptor:
            size = os.fstat(descriptor).st_size
            for look in range(min(_LOOKS, -(-size // _PAGE_BYTES))):
                found = _in_memory(descriptor, size * look // _LOOKS)
                if found is None:
                    return None
                seen, looks = seen + found, looks + 1
    return seen / looks if looks else None


def _in_memory(descriptor: int, offset: int) -> bool | None:
    """Whether the byte at ``offset`` can be had without waiting for a disk; None if the system does not tell."""
    try:
        return bool(os.preadv(descriptor, [bytearray(1)], offset, os.RWF_NOWAIT))
    except BlockingIOError:
        return False
    except (OSError, AttributeError):  # not on this file system, or not on this system
        return None


class _Opened:
    """A file that is open for reading while the context lasts."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._descriptor = -1

    def __enter__(self) -> int:
        self._descriptor = os.open(self._file, os.O_RDONLY | os.O_CLOEXEC)
        return self._descriptor

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)
