"""Objects' bytes as clients of object stores take them without copying. Layer: storage.

zarr hands an object to fsspec as ``bytes`` of its own, s3fs cuts those into parts, and botocore and aiohttp copy what
is not a file: 600 MB took 1,600 MB more while they were sent. A file is read in small pieces as it is sent. So what
s3fs gets instead is a file that lies in our memory, and that can be cut as ``bytes`` can: 600 MB take 26 MB more.
"""

from __future__ import annotations

import io
from typing import Any

from zarr.abc.store import Store
from zarr.core.buffer import Buffer, default_buffer_prototype
from zarr.core.buffer.cpu import Buffer as HostBuffer
from zarr.storage import FsspecStore, MemoryStore, ObjectStore

_LENT_FROM = 1 << 20
"""Smaller objects are copied: that is faster than to be read piece by piece."""


class Body(io.RawIOBase):
    """Bytes in memory as a file to be read, and to be cut.

    Examples
    --------
    >>> body = Body(memoryview(b"abcdef"))
    >>> len(body), body[2:5].read(), body.seek(4), body.read()
    (6, b'cde', 4, b'ef')
    """

    def __init__(self, content: memoryview) -> None:
        self._content = content
        self._at = 0

    def __len__(self) -> int:
        return len(self._content)

    def __getitem__(self, part: slice) -> Body:
        return Body(self._content[part])

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

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer with what comes next; return how many bytes that was."""
        part = self._content[self._at : self._at + len(buffer)]
        buffer[: len(part)] = part
        self._at += len(part)
        return len(part)


class _LentBuffer(HostBuffer):
    """A buffer that lends its bytes as a :class:`Body`, where a copy of them is asked for."""

    def to_bytes(self) -> Any:
        return Body(memoryview(self.as_numpy_array()).cast("B"))  # type: ignore[arg-type]  # an array has a buffer


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


def copies_received(store: Store) -> int:
    """Return how many times the bytes of an answer are in memory: fsspec's clients join the parts that came."""
    return 2 if isinstance(store, FsspecStore) else 1


def buffer_for(store: Store, content: memoryview) -> Buffer:
    """Return an object's bytes as zarr gives them to a store."""
    if is_s3fs(store) and len(content) >= _LENT_FROM:
        return _LentBuffer.from_bytes(content)
    return default_buffer_prototype().buffer.from_bytes(content)
