"""Bytes in memory that grow as they are added to, and take no more than they are. Layer: storage.

A ``bytearray`` of some MB that grows leaves the places behind that it grew out of, and allocators keep those: while an
object of 11 MB was filled, 11 MB more were held than it has. So what is large lies in pages of its own, which the
kernel moves without copying, gives when they are first written to, and takes back at once.
"""

from __future__ import annotations

import mmap
from contextlib import suppress

_MAPPED_FROM = 1 << 20
"""What is smaller is left to the allocator."""


class GrowingBytes:
    """Bytes that are added at the end, or put over what is there. Not safe to use from several threads at once.

    Examples
    --------
    >>> content = GrowingBytes()
    >>> content.add(b"abc"), content.reserve(2), content.add(b"f")
    (0, 3, 5)
    >>> content.put(b"de", 3)
    >>> bytes(content.view())
    b'abcdef'
    """

    def __init__(self) -> None:
        self._memory: bytearray | mmap.mmap = bytearray()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, part: bytes | memoryview) -> int:
        """Add bytes at the end and return where they begin."""
        start = self.reserve(memoryview(part).nbytes)
        self.put(part, start)
        return start

    def put(self, part: bytes | memoryview, start: int) -> None:
        """Put bytes over those that are there from ``start`` on."""
        content = memoryview(part).cast("B")
        self._memory[start : start + len(content)] = content

    def reserve(self, size: int) -> int:
        """Add zeros at the end and return where they begin."""
        start = self._size
        if start + size > len(self._memory):
            self._grow(start + size)
        self._size += size
        return start

    def view(self) -> memoryview:
        """Return the bytes; nothing may be added while this is held."""
        return memoryview(self._memory)[: self._size]

    def clear(self) -> None:
        """Let go of all bytes; what holds a view keeps them."""
        self._memory = bytearray()
        self._size = 0

    def _grow(self, size: int) -> None:
        if isinstance(self._memory, bytearray) and size < _MAPPED_FROM:
            self._memory.extend(bytes(size - len(self._memory)))
            return
        room = max(size, 2 * len(self._memory))  # pages that nothing was written to take no memory
        if isinstance(self._memory, mmap.mmap):
            with suppress(SystemError, ValueError):  # not every system can
                self._memory.resize(room)
                return
        larger = mmap.mmap(-1, room, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        larger[: self._size] = self._memory[: self._size]
        self._memory = larger
