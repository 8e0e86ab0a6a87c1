"""Memory that is used again: fresh pages cost more than some codecs do.

A :class:`BufferPool` keeps what a task has returned for the next one. Large buffers are anonymous memory maps, so that
they can use huge pages and are given back to the system as a whole.
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

_MAPPED_FROM = 1 << 17
"""Smaller ones come from the C allocator, and stay with a thread's scratch memory."""


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
        """Let go of all but small buffers, so that what comes next does not add to them."""
        self._stored, self._decoded = (
            memoryview(bytearray()) if len(buffer) >= _MAPPED_FROM else buffer
            for buffer in (self._stored, self._decoded)
        )


class ScratchPool:
    """Scratch memory that was returned and waits to be used again. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: list[ScratchBuffers] = []

    @contextmanager
    def borrow(self, count: int) -> Iterator[list[ScratchBuffers]]:
        """Lend scratch memory for ``count`` units in flight; it goes back to the pool in the end."""
        with self._lock:
            taken = [self._free.pop() if self._free else ScratchBuffers() for _ in range(count)]
        try:
            yield taken
        finally:
            with self._lock:
                self._free.extend(taken)

    def clear(self) -> None:
        """Give what is free back to the system."""
        with self._lock:
            self._free.clear()


def elements_on(memory: memoryview, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return an array whose elements lie in the first bytes of a buffer, which holds at least as many."""
    return np.frombuffer(memory[: prod(shape) * dtype.itemsize], np.uint8).view(dtype).reshape(shape)


def _allocate(size: int) -> memoryview:
    if size < _MAPPED_FROM:
        return memoryview(bytearray(size))
    # Python's default is a shared mapping, which the kernel does not back with huge pages.
    mapping = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        mapping.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(mapping)
