"""What the copying asks of storage: units to read, jobs to write, and the memory they work in."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rechunk_exec.errors import StorageError
from rechunk_exec.storage.objectbase import Objects
from rechunk_exec.storage.stored import StoredArray

Index: TypeAlias = tuple[int, ...]
Slices: TypeAlias = tuple[slice, ...]


class Moved(NamedTuple):
    """Bytes that one read moved."""

    decoded: int
    """Of the unit's elements inside the array; more where that took blocks that reach beyond the unit."""
    stored: int
    """From the store; 0 for an absent chunk, and where zarr does not tell."""
    unexpected: int = 0
    """Chunks of which more had to be decoded than the plan counted on: whole ones, or larger blocks."""
    beyond_plan: int = 0
    """How many of the decoded bytes the plan did not count."""


class Written(NamedTuple):
    """What one write brought to an end."""

    objects: int
    """Objects that are stored whole by now."""
    stored: int
    """Their bytes; 0 where zarr does not tell."""


NOTHING_WRITTEN = Written(0, 0)


class Scratch(Protocol):
    """Memory of one unit in flight, used again for the next one."""

    def stored(self, size: int) -> memoryview:
        """Return a buffer of at least ``size`` bytes for what comes from a store."""

    def decoded(self, size: int) -> memoryview:
        """Return another buffer of at least ``size`` bytes, for elements."""


@dataclass(frozen=True, slots=True)
class Region:
    """The box that a task copies, and the memory that holds its elements."""

    start: Index
    stop: Index
    elements: NDArray[Any]
    """C-contiguous, of shape ``stop - start``, in the source's dtype."""
    spare_bytes: int = 0
    """What each thread may hold besides, as far as the plan counts it: for several units in one request."""

    def overlap(self, low: Index, high: Index) -> tuple[Slices, Slices]:
        """Return where the box ``[low, high)`` and the region meet: seen from the region, and from the box."""
        inside, seen = [], []
        for begin, end, a, b in zip(self.start, self.stop, low, high, strict=True):  # a loop: each small chunk asks
            first, last = max(begin, a), min(end, b)
            inside.append(slice(first - begin, last - begin))
            seen.append(slice(first - a, last - a))
        return tuple(inside), tuple(seen)

    def part(self, low: Index, high: Index) -> NDArray[Any]:
        """Return a view of the elements that lie in the box ``[low, high)``."""
        return self.view(self.overlap(low, high)[0])

    def view(self, inside: Slices) -> NDArray[Any]:
        """Return a view of the elements at some indices of the region."""
        index: Any = (*inside, ...)  # the ellipsis: 0-d elements too are viewed, not copied
        part: NDArray[Any] = self.elements[index]
        return part

    def units(self, unit: Index) -> Iterator[Index]:
        """Yield the grid indices, in C order, of the boxes of shape ``unit`` that the region touches."""
        return product(
            *(range(low // size, -(-high // size)) for low, high, size in zip(self.start, self.stop, unit, strict=True))
        )


class UnitReader(ABC):
    """Reads one array's units into regions. Safe to use from several threads."""

    way: str
    """How the bytes are decoded: ``direct``, ``gpu``, ``zarrs`` or ``zarr``."""

    def __init__(self, stored: StoredArray, objects: Objects) -> None:
        self.stored = stored
        self.objects = objects

    def units(self, region: Region) -> Iterator[Any]:
        """Yield what :meth:`read` takes, all that the region touches: read units, in C order, or groups of them."""
        return region.units(self.stored.chunk)

    def unit_box(self, unit: Index) -> tuple[Index, Index]:
        """Return the first element of a unit and one past its last, clipped to the array."""
        return box_of(unit, self.stored.chunk, self.stored.shape)

    def object_of(self, unit: Any) -> str:
        """Return the key of the object that holds a unit."""
        sizes = zip(unit, self.stored.chunk, self.stored.write_unit, strict=True)
        return self.stored.metadata.encode_chunk_key(tuple(a * chunk // size for a, chunk, size in sizes))

    def read_named(self, unit: Any, region: Region, scratch: Scratch) -> Moved:
        """:meth:`read`, with the chunk's key in an error."""
        try:
            return self.read(unit, region, scratch)
        except StorageError as error:
            key = self.object_of(unit)
            remedy = ""
            if self.stored.intermediate and error.permanent:
                remedy = "; remove it and resume the job: what is missing of an intermediate is made again"
            raise StorageError(
                f"{error}; the object is {key} of {self.stored.array.store_path}{remedy}", permanent=error.permanent
            ) from error

    def refuse_vanished(self) -> None:
        """Raise :class:`StorageError` if the array has been removed: then an absent chunk is no fill value.

        To be asked after reading, where chunks were absent: who removes an array removes its metadata first.
        """
        if not self.objects.holds_array():
            raise StorageError(
                f"absent chunks are fill value while the array's metadata are there; those of "
                f"{self.stored.array.store_path} have gone while it was read; is another job replacing the array?",
                permanent=True,
            )

    def expect(self, unit: Any, region: Region) -> None:  # noqa: B027 - a hint, which few can use
        """Say that :meth:`read` will be called for a unit: a disk may begin to read it."""

    @abstractmethod
    def read(self, unit: Any, region: Region, scratch: Scratch) -> Moved:
        """Copy what a unit and the region have in common into the region."""


class UnitWriter(ABC):
    """Writes regions to one array, whole write units only. Safe to use from several threads."""

    way: str

    def __init__(self, stored: StoredArray, objects: Objects) -> None:
        self.stored = stored
        self.objects = objects

    @abstractmethod
    def jobs(self, region: Region) -> AbstractContextManager[Iterator[Any]]:
        """Return the pieces of work that write the region, for :meth:`write`.

        The context ends when no thread writes any more; what is unfinished then, after a failure, is forgotten.
        """

    @abstractmethod
    def write(self, job: Any, region: Region, scratch: Scratch) -> Written:
        """Do one piece of work; return which objects it completed."""


def box_of(number: Index, size: Index, shape: Index) -> tuple[Index, Index]:
    """Return the first element and one past the last of a box of a grid, clipped to the array.

    >>> box_of((0, 2), (4, 4), (10, 10))
    ((0, 8), (4, 10))
    """
    low = tuple(map(operator.mul, number, size))
    return low, tuple(map(min, map(operator.add, low, size), shape))


def bytes_of(elements: NDArray[Any]) -> memoryview:
    """Return the memory of a contiguous array, of any dtype, as bytes."""
    return elements.reshape(-1).view(np.uint8).data
