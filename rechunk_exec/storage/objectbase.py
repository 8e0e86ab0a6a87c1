"""What stored objects are to the rest: whole ones and ranges in, whole ones out. Layer: storage.

A missing object is ``None``; everything else that keeps bytes from coming is a
:class:`~rechunk_exec.errors.StorageError`, after as many tries as :mod:`.retry` makes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeAlias

from rechunk_exec.errors import StorageError
from rechunk_exec.storage.failures import NotThereYetError
from rechunk_exec.storage.retry import Requests

ARRAY_DOCUMENTS = ("zarr.json", ".zarray")
"""Where there is one of these, there is an array (or, in format 3, a group)."""
METADATA_NAMES = (*ARRAY_DOCUMENTS, ".zattrs")
"""Documents of an array."""

Allocate: TypeAlias = Callable[[int], memoryview]
"""Gives a buffer of at least that many bytes, to read into."""

Use: TypeAlias = Callable[[memoryview], object]
"""Takes an object's bytes, and raises :class:`StorageError` if they are damaged."""


def fresh(size: int) -> memoryview:
    """Return a new buffer of ``size`` bytes."""
    return memoryview(bytearray(size))


class Drawn(ABC):
    """An object's bytes, made as they are asked for: the same each time, from any thread, in any order."""

    @abstractmethod
    def __len__(self) -> int:
        """How many there are."""

    @abstractmethod
    def block(self, place: int) -> tuple[int, memoryview]:
        """Return where the block that holds the byte ``place`` begins, and its bytes."""


class ObjectWriter(ABC):
    """One object being written. Appending is safe from several threads; nothing is visible before :meth:`commit`."""

    @abstractmethod
    def append(self, part: bytes | memoryview) -> int:
        """Add bytes at the end and return where they begin."""

    @abstractmethod
    def place(self, part: bytes | memoryview, offset: int) -> None:
        """Put bytes at ``offset``, inside what has been appended or reserved."""

    @abstractmethod
    def reserve(self, size: int) -> int:
        """Make room for bytes at the end, which are zero until they are placed, and return where they begin."""

    @abstractmethod
    def memory(self) -> memoryview | None:
        """Return the object's bytes so far, to be filled in place; None where they are not kept in memory.

        Nothing may be appended as long as the view is held.
        """

    @abstractmethod
    def shorten(self, size: int) -> None:
        """Let go of all bytes from ``size`` on."""

    @abstractmethod
    def commit(self) -> int:
        """Make the object visible, whole, and return its size in bytes."""

    @abstractmethod
    def abort(self) -> None:
        """Forget the object; what was there before stays."""


class Objects(ABC):
    """The objects of one array's store, by key relative to the array."""

    streams: bool
    """Whether an object's parts leave memory as they are appended."""

    ignores_ranges: bool = False
    """Whether the store has given a whole object where a part was asked for, as plain HTTP servers do."""
    requests: Requests
    """How requests are made, and made again."""

    def read(  # noqa: PLR0913 - where and how much, and what to do with it
        self,
        key: str,
        allocate: Allocate = fresh,
        start: int = 0,
        length: int | None = None,
        *,
        use: Use | None = None,
        required: bool = False,
    ) -> memoryview | None:
        """Return the object's bytes, or ``length`` of them from ``start`` (from the end if negative).

        None if there is no such object; :class:`StorageError` if it is there and does not give these bytes.

        Parameters
        ----------
        key : str
        allocate : callable, optional
            Gives the buffer, where the bytes are read into one.
        start, length : int, optional
            In bytes.
        use : callable, optional
            Is called with the bytes. Where it finds them damaged, and the store gave fewer than the object has, the
            object is fetched again.
        required : bool
            Whether the object is known to have been written: if it is absent, it is waited for, and then an error.
        """

        def request() -> memoryview | None:
            content = self._read(key, allocate, start, length)
            if content is None:
                if required:
                    self._refuse_absent(key)
            elif use is not None:
                try:
                    use(content)
                except StorageError:
                    if length is None:
                        self.refuse_short(key, len(content))
                    raise
            return content

        return self.requests.make(request, "read", self.name(key))

    def read_document(self, key: str) -> memoryview | None:
        """Return a document in JSON; None if there is none. One of which a part came is asked for again.

        What the store itself holds cut is returned as it is: who reads it finds the damage.
        """
        return self.read(key)  # files are never given in part

    def expect(self, key: str, start: int, length: int | None) -> None:  # noqa: B027 - a hint, which few can use
        """Say that these bytes of an object will be read: a disk may begin. Where that fails, reading tells."""

    def holds_array(self) -> bool:
        """Whether the metadata of an array, or of a group, are there."""
        return any(self.read(name) is not None for name in ARRAY_DOCUMENTS)

    def _refuse_absent(self, key: str) -> None:
        if not self.holds_array():
            raise StorageError(
                f"{self.name(key)} is gone, and so are the metadata of its array: it has been removed", permanent=True
            )
        raise NotThereYetError("it was written, and is not there")

    @abstractmethod
    def name(self, key: str) -> str:
        """Return what messages call the object."""

    @abstractmethod
    def _read(self, key: str, allocate: Allocate, start: int, length: int | None) -> memoryview | None:
        """Make one request; see :meth:`read`."""

    def refuse_short(self, key: str, size: int) -> None:  # noqa: B027 - files are never given in part
        """Raise :class:`ShortAnswerError` if the object has another size, in bytes, than what came of it."""

    @abstractmethod
    def refuse_unreadable(self, key: str) -> None:
        """Raise :class:`StorageError` if the object is there and cannot be read, where zarr takes that for absent."""

    @abstractmethod
    def create(self, key: str) -> ObjectWriter:
        """Begin to write the object."""

    @abstractmethod
    def delete(self, key: str) -> None:
        """Remove the object if it is there."""
