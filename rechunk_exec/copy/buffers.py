"""Memory that is used again: fresh pages cost more than some codecs do.

A :class:`BufferPool` keeps what a task has returned for the next one. Large buffers are anonymous memory maps, so that
they can use huge pages and are given back to the system as a whole.
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_MAPPED_FROM = 1 << 20


class BufferPool:
    """Buffers that were returned and wait to be used again. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: list[memoryview] = []

    @contextmanager
    def borrow(self, size: int) -> Iterator[memoryview]:
        """Lend a buffer of exactly ``size`` bytes; it goes back to the pool in the end."""
        buffer = self._take(size)
        try:
            yield buffer[:size]
        finally:
            with self._lock:
                self._free.append(buffer)

    def clear(self) -> None:
        """Give all free buffers back to the system."""
        with self._lock:
            self._free.clear()

    def _take(self, size: int) -> memoryview:
        with self._lock:
            fitting = [number for number, buffer in enumerate(self._free) if len(buffer) >= size]
            if fitting:
                return self._free.pop(min(fitting, key=lambda number: len(self._free[number])))
            # One that is too small is no use to tasks of one stage, which are of one size: drop it before a larger is
            # made.
            if self._free:
                self._free.pop()
        return _allocate(size)


class ScratchBuffers:
    """Scratch memory of one unit in flight: two buffers that grow to what is asked for."""

    def __init__(self) -> None:
        self._stored = memoryview(bytearray())
        self._decoded = memoryview(bytearray())

    def stored(self, size: int) -> memoryview:
        """Return a buffer of at least ``size`` bytes for what comes from a store."""
        if len(self._stored) < size:
            self._stored = memoryview(bytearray())  # let go before the larger one is made
            self._stored = _allocate(size)
        return self._stored

    def decoded(self, size: int) -> memoryview:
        """Return another buffer of at least ``size`` bytes, for elements."""
        if len(self._decoded) < size:
            self._decoded = memoryview(bytearray())
            self._decoded = _allocate(size)
        return self._decoded

    def shrink(self) -> None:
        """Let go of large buffers, so that what comes next does not add to them."""
        self._stored, self._decoded = (
            memoryview(bytearray()) if len(buffer) >= _MAPPED_FROM else buffer
            for buffer in (self._stored, self._decoded)
        )


def _allocate(size: int) -> memoryview:
    if size < _MAPPED_FROM:
        return memoryview(bytearray(size))
    # Python's default is a shared mapping, which the kernel does not back with huge pages.
    mapping = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        mapping.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(mapping)
