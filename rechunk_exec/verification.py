"""Comparing two arrays by digests: each is read once, along its own chunks. Layer: above copy, below the api."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from math import prod
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from rechunk_exec import storage
from rechunk_exec.copy.buffers import ScratchBuffers
from rechunk_exec.copy.drain import drain
from rechunk_exec.digest import box_digest
from rechunk_exec.errors import StorageError
from rechunk_exec.grid import Grid
from rechunk_exec.storage import Index, Region, UnitReader
from rechunk_exec.tasks import ArrayRef


@dataclass(frozen=True, slots=True, kw_only=True)
class DifferingBox:
    """A box in which two arrays differ: one write unit of the target."""

    start: tuple[int, ...]
    """First element, on each axis."""
    stop: tuple[int, ...]
    """One past the last element, on each axis."""
    path: str = ""
    """The array's path in a group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """What comparing two arrays found."""

    differing: tuple[DifferingBox, ...]
    """The write units of the target whose elements are not bit for bit those of the source."""
    boxes: int
    """Write units compared."""
    bytes_read: int
    """Decoded bytes, of both arrays."""

    @property
    def ok(self) -> bool:
        """Whether the arrays hold the same bits."""
        return not self.differing

    def __str__(self) -> str:
        if self.ok:
            return f"verified: {self.boxes} boxes are the same to the bit"
        first = self.differing[0]
        return f"{len(self.differing)} of {self.boxes} boxes differ; the first is {first.start} to {first.stop}"


def verify_arrays(source: ArrayRef, target: ArrayRef, threads: int) -> VerifyReport:
    """Compare two arrays bit for bit; see :func:`rechunk_exec.verify`."""
    readers = storage.open_reader(source), storage.open_reader(target)
    shapes = [reader.stored.shape for reader in readers]
    kinds = [reader.stored.kind for reader in readers]
    if shapes[0] != shapes[1] or kinds[0] != kinds[1]:
        raise StorageError(
            f"arrays of one shape and dtype can be compared; got {shapes[0]} of {kinds[0]} at {source} "
            f"and {shapes[1]} of {kinds[1]} at {target}"
        )
    boxes = Grid(shapes[0], tuple(map(min, readers[1].stored.write_unit, shapes[0])))
    sums = [_sums(reader, boxes, threads) for reader in readers]
    differing = [boxes.box(int(number)) for number in np.flatnonzero(sums[0] != sums[1])]
    return VerifyReport(
        differing=tuple(DifferingBox(start=box.start, stop=box.stop) for box in differing),
        boxes=len(boxes),
        bytes_read=2 * prod(shapes[0]) * readers[0].stored.dtype.itemsize,
    )


def _sums(reader: UnitReader, boxes: Grid, threads: int) -> NDArray[np.uint64]:
    """Return the digest of each box, from one pass over the array's chunks."""
    stored = reader.stored
    sums = np.zeros(len(boxes), np.uint64)
    lock = Lock()

    def add(unit: Index, scratch: ScratchBuffers) -> None:
        start, stop = reader.unit_box(unit)
        shape = tuple(high - low for low, high in zip(start, stop, strict=True))
        region = Region(start, stop, np.empty(shape, stored.dtype))
        reader.read_named(unit, region, scratch)
        for number, low, high in _pieces(start, stop, boxes):
            digest = box_digest(region.part(low, high), low)
            with lock:
                sums[number : number + 1] += np.uint64(digest)

    everything = Region((0,) * len(stored.shape), stored.shape, np.empty(0))
    with ThreadPoolExecutor(threads) as helpers:
        units = reader.units(everything) if prod(stored.shape) else iter(())
        drain(units, add, [ScratchBuffers() for _ in range(threads)], helpers)
    return sums


def _pieces(start: Index, stop: Index, boxes: Grid) -> Iterator[tuple[int, Index, Index]]:
    """Yield the parts into which boxes cut ``[start, stop)``, each with the number of its box."""
    axes = [
        [(box, max(low, box * size), min(high, (box + 1) * size)) for box in range(low // size, -(-high // size))]
        for low, high, size in zip(start, stop, boxes.chunk, strict=True)
    ]
    for cut in product(*axes):
        number = 0
        for (position, _, _), count in zip(cut, boxes.grid_shape, strict=True):
            number = number * count + position
        yield number, tuple(low for _, low, _ in cut), tuple(high for _, _, high in cut)
