"""The C allocator's free memory, given back to the system, where that can be (glibc).

An arena keeps what was freed at its end up to a threshold, and does so for each thread. glibc raises the threshold to
twice the largest piece of mapped memory that was freed, up to 64 MiB; and ``malloc_trim`` gives back what is free
elsewhere, but at the end of the main arena only.
"""

from __future__ import annotations

import ctypes
import functools
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # malloc.h
_KEPT_BYTES = 4 << 20
"""What an arena may keep at its end. Codecs that work in more get it afresh for each chunk, which takes less time than
encoding so large a chunk by a wide margin."""


def trim_heap() -> None:
    """Give freed memory back."""
    library = _glibc()
    if library is not None:
        library.malloc_trim(0)


def bound_heap() -> None:
    """Bound what arenas keep from now on, for a process that is ours alone."""
    library = _glibc()
    if library is not None:
        library.mallopt(_MMAP_THRESHOLD, _KEPT_BYTES)
        library.mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)


@functools.cache
def _glibc() -> ctypes.CDLL | None:
    if sys.platform != "linux":
        return None
    try:
        library = ctypes.CDLL("libc.so.6")
        library.malloc_trim.argtypes = (ctypes.c_size_t,)
        library.mallopt.argtypes = (ctypes.c_int, ctypes.c_int)
    except (OSError, AttributeError):
        return None
    return library
