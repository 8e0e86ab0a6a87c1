"""Objects' bytes as clients of object stores take them without copying. Layer: storage.

zarr hands an object to fsspec as ``bytes`` of its own, s3fs cuts those into parts, and botocore and aiohttp copy what
is not a file: 600 MB took 1,600 MB more while they were sent. A file is read in small pieces as it is sent. So what
s3fs gets instead is a file that lies in our memory, and that can be cut as ``bytes`` can: 600 MB take 26 MB more.
"""

from __future__ import annotations

import io
from typing import Any, cast

from zarr.abc.store import Store
from zarr.core.buffer import Buffer, default_buffer_prototype
from zarr.core.buffer.cpu import Buffer as HostBuffer
from zarr.storage import FsspecStore, MemoryStore, ObjectStore

from rechunk_exec.storage.objectbase import Drawn

_LENT_FROM = 1 << 20
"""Smaller objects are copied: that is faster than to be read piece by piece."""
_PIECE_BYTES = 1 << 17
"""botocore asks for a megabyte at a time, of which it makes more on several threads, and takes less as well."""


class _Held(Drawn):
    """Bytes that are in memory."""

    def __init__(self, content: memoryview) -> None:
        self._content = content

    def __len__(self) -> int:
        return len(self._content)

    def block(self, place: int) -> tuple[int, memoryview]:
        return 0, self._content


class Body(io.RawIOBase):
    """An object's bytes as a file to be read, and to be cut.

    Examples
    --------
    >>> body = Body(memoryview(b"abcdef"))
    >>> len(body), body[2:5].read(), body.seek(4), body.read()
    (6, b'cde', 4, b'ef')
    """

    def __init__(self, content: memoryview | Drawn, start: int = 0, stop: int | None = None) -> None:
        self._content = _Held(content) if isinstance(content, memoryview) else content
        self._start, self._stop = start, len(content) if stop is None else stop
        self._at = 0
        self._block, self._begins = memoryview(b""), 0
        """What was drawn last, and where it begins."""

    def __len__(self) -> int:
        return self._stop - self._start

    def __getitem__(self, part: slice) -> Body:
        start, stop, _ = part.indices(len(self))
        return Body(self._content, self._start + start, self._start + max(start, stop))

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a place, from the beginning, from here or from the end."""
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: len(self)}[whence]
        return self._at

    def read(self, size: int | None = -1, /) -> bytes:
        """Return all that comes next, or at most ``size`` bytes of it: as many as make a piece."""
        stop = len(self) if size is None or size < 0 else min(len(self), self._at + min(size, _PIECE_BYTES))
        parts: list[memoryview] = []
        while self._at < stop:
            parts.append(self._next(stop - self._at))
        return b"".join(parts)

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer with what comes next; return how many bytes that was."""
        part = self._next(min(len(buffer), len(self) - self._at))
        buffer[: len(part)] = part
        return len(part)

    def _next(self, size: int) -> memoryview:
        """Return what comes next of the block that is there, or of the one behind it: ``size`` bytes at most."""
        if size <= 0:
            return memoryview(b"")
        place = self._start + self._at
        if not self._begins <= place < self._begins + len(self._block):
            self._begins, self._block = self._content.block(place)
        offset = place - self._begins
        part = self._block[offset : offset + size]
        self._at += len(part)
        return part


class _LentBuffer(HostBuffer):
    """A buffer that lends its bytes as a :class:`Body`, where a copy of them is asked for."""

    def to_bytes(self) -> Any:
        return Body(memoryview(cast(Any, self.as_numpy_array())).cast("B"))


class _DrawnBuffer(HostBuffer):
    """A buffer that holds nothing, and gives a :class:`Body` whose bytes are made as they are read."""

    content: Drawn

    def to_bytes(self) -> Any:
        body = Body(self.content)
        return body if len(body) >= _LENT_FROM else body.read()


def is_s3fs(store: Store) -> bool:
    """Whether a store makes its requests by s3fs."""
    return isinstance(store, FsspecStore) and type(store.fs).__module__.partition(".")[0] == "s3fs"


def copies_sent(store: Store) -> float:
    """Return how many times the bytes of an object are in memory until it is stored.

    s3fs, obstore and a store in memory take ours, others a copy. A small object that grows has an eighth more at most,
    a large one only its pages (:mod:`.growing`). What s3fs and obstore send it through is a twentieth of it, and some
    more for small ones, which are copied.
    """
    if isinstance(store, MemoryStore):
        return 1.15
    return 1.2 if is_s3fs(store) or isinstance(store, ObjectStore) else 3


def draws(store: Store) -> bool:
    """Whether a store reads an object as it sends it, and takes one whose bytes are made then."""
    return is_s3fs(store)


def copies_received(store: Store) -> int:
    """Return how many times the bytes of an answer are in memory: fsspec's clients join the parts that came."""
    return 2 if isinstance(store, FsspecStore) else 1


def buffer_for(store: Store, content: memoryview) -> Buffer:
    """Return an object's bytes as zarr gives them to a store."""
    if is_s3fs(store) and len(content) >= _LENT_FROM:
        return _LentBuffer.from_bytes(content)
    return default_buffer_prototype().buffer.from_bytes(content)


def drawn_buffer(content: Drawn) -> Buffer:
    """Return an object whose bytes are made as they are sent, as zarr gives it to a store that :func:`draws`."""
    buffer = _DrawnBuffer.from_bytes(b"")
    buffer.content = content
    return buffer
