"""Digests of boxes of arrays, from one pass over the pieces of each.

What a pass is asked for are some *regions* of the arrays, cut into *cells* of one grid. Work is a run of numbers of
pieces, so it is small and pickles, and what it gives back are the sums of the cells that its pieces touch: sums of one
cell from several pieces simply add up.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from rechunk_exec import storage
from rechunk_exec.copy.buffers import BufferPool, ScratchBuffers, ScratchPool, elements_on
from rechunk_exec.copy.drain import drain
from rechunk_exec.digest import grid_digests
from rechunk_exec.errors import StorageError
from rechunk_exec.grid import Box, Grid
from rechunk_exec.storage import Region, UnitReader
from rechunk_exec.verification.crew import Crew
from rechunk_exec.verification.pieces import Pieces, Reading, Shape
from rechunk_exec.weights import Words

_WORK_BYTES = 64 << 20
"""About how much one call decodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a pass is to compute: the digests of the cells of some regions."""

    regions: tuple[Box, ...]
    """Boxes that begin on the grid of cells, and end on it or at the array's end."""
    cell: Shape
    """Elements of a cell."""

    def cells(self, region: int) -> Grid:
        """The cells of a region, counted from its start."""
        return Grid(self.regions[region].shape, self.cell)


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A box of an array whose stored bytes cannot be read."""

    box: Box
    reason: str


@dataclass(frozen=True, slots=True)
class ArraySums:
    """The sums of one array."""

    sums: tuple[Words, ...]
    """For each region, the digests of its cells."""
    unreadable: tuple[Unreadable, ...]
    """Pieces that are missing in the sums, by their place."""


@dataclass(frozen=True, slots=True)
class PassResult:
    """What a pass over some arrays found."""

    arrays: tuple[ArraySums, ...]
    bytes_read: int
    """Decoded bytes."""


def sums_of(reading: Reading, asked: Asked, crew: Crew) -> PassResult:
    """Return the digests of what is asked for, of each array. Each piece is read once.

    Raises
    ------
    StorageError
        If an array that is not forgiven cannot be read.
    """
    sums = [
        [np.zeros(asked.cells(region).grid_shape, np.uint64) for region in range(len(asked.regions))]
        for _ in reading.arrays
    ]
    unreadable: list[list[Unreadable]] = [[] for _ in reading.arrays]
    bytes_read = 0
    threads = crew.threads_for(reading.at_once)
    work = chain.from_iterable(
        _work(number, pieces, asked.regions, threads, crew) for number, pieces in enumerate(reading.arrays)
    )
    for done in crew.map(Summing(reading.arrays, asked), work, reading.at_once):
        bytes_read += done.bytes_read
        unreadable[done.array] += done.unreadable
        for (region, first), part in done.parts.items():
            place = tuple(slice(low, low + n) for low, n in zip(first, part.shape, strict=True))
            sums[done.array][region][place] += part
    return PassResult(
        tuple(
            ArraySums(tuple(found), tuple(sorted(gaps, key=lambda gap: gap.box.start)))
            for found, gaps in zip(sums, unreadable, strict=True)
        ),
        bytes_read,
    )


@dataclass(frozen=True, slots=True)
class Work:
    """Some pieces of one array."""

    array: int
    pieces: Sequence[int]
    threads: int


def _work(array: int, pieces: Pieces, regions: Sequence[Box], threads: int, crew: Crew) -> Iterator[Work]:
    grid = pieces.grid
    whole = len(regions) == 1 and regions[0].shape == pieces.shape
    numbers: Sequence[int] = range(len(grid)) if whole else sorted(_touched(grid, regions))
    step = max(1, _WORK_BYTES // max(1, pieces.piece_bytes))
    step = max(1, min(step, -(-len(numbers) // (4 * crew.slots))))
    for low in range(0, len(numbers), step):
        yield Work(array, numbers[low : low + step], threads)


def _touched(grid: Grid, regions: Iterable[Box]) -> set[int]:
    return {number for region in regions for number in numbers_touching(grid, region)}


def numbers_touching(grid: Grid, box: Box) -> Iterator[int]:
    """Yield the numbers, in C order of the grid, of the units that a box touches."""
    for unit in grid.touching(box):
        number = 0
        for place, count in zip(unit.index, grid.grid_shape, strict=True):
            number = number * count + place
        yield number


@dataclass(slots=True)
class Partial:
    """The sums of some pieces of an array."""

    array: int
    parts: dict[tuple[int, Shape], Words] = field(default_factory=dict)
    """Sums of a block of cells, by region and first cell in it."""
    unreadable: list[Unreadable] = field(default_factory=list)
    bytes_read: int = 0

    def add(self, region: int, first: Shape, sums: Words) -> None:
        """Add the sums of a block of cells."""
        known = self.parts.get((region, first))
        if known is None or known.shape == sums.shape:
            self.parts[region, first] = sums if known is None else known + sums
            return
        larger = np.zeros([max(sizes) for sizes in zip(known.shape, sums.shape, strict=True)], np.uint64)
        for part in (known, sums):
            larger[tuple(map(slice, part.shape))] += part
        self.parts[region, first] = larger


class Summing:
    """Computes the sums of some pieces, in any process; keeps opened arrays and buffers for as long as a pass lasts."""

    leaves_nothing: ClassVar[bool] = True
    """A process that has run it has nothing to write when it ends; see :mod:`rechunk_exec.executors.worker`."""

    def __init__(self, arrays: tuple[Pieces, ...], asked: Asked) -> None:
        self._arrays = arrays
        self._asked = asked
        # As arrays, since there may be thousands: one comparison finds those that a piece touches.
        shape = len(asked.regions), len(asked.cell)
        self._starts = np.array([region.start for region in asked.regions], np.int64).reshape(shape)
        self._stops = np.array([region.stop for region in asked.regions], np.int64).reshape(shape)
        self._lock = threading.Lock()
        self._readers: dict[int, UnitReader] = {}
        self._memory = BufferPool()
        self._scratches = ScratchPool()

    def __reduce__(self) -> tuple[Any, ...]:
        return Summing, (self._arrays, self._asked)

    def __call__(self, work: Work) -> Partial:
        """Return the sums of the cells that the pieces touch."""
        reader = self._reader(work.array)
        done = Partial(work.array)
        adding = _Adding(self._arrays[work.array], done, [], threading.Lock())

        def add(number: int, scratch: ScratchBuffers) -> None:
            self._add_piece(number, reader, adding, scratch)

        with self._scratches.borrow(work.threads) as scratches:
            if work.threads == 1:
                drain(work.pieces, add, scratches, None)
            else:
                with ThreadPoolExecutor(work.threads) as helpers:
                    drain(work.pieces, add, scratches, helpers)
        if adding.absent:
            try:
                reader.refuse_vanished()
            except StorageError as error:
                if not adding.pieces.forgiving:
                    raise
                done.unreadable += [Unreadable(box, str(error)) for box in adding.absent]
        return done

    def _add_piece(self, number: int, reader: UnitReader, adding: _Adding, scratch: ScratchBuffers) -> None:
        box = adding.pieces.grid.box(number)
        parts = self._parts(box)
        if not parts:
            return
        # Only what the regions need: bands may be read without the rows around them.
        low = tuple(map(min, zip(*(part.start for _, part in parts), strict=True)))
        high = tuple(map(max, zip(*(part.stop for _, part in parts), strict=True)))
        with self._elements(Box(low, high), reader.stored, adding.pieces) as elements:
            region = Region(low, high, elements)
            bytes_read, absent = 0, False
            try:
                for unit in reader.units(region):
                    moved = reader.read_named(unit, region, scratch)
                    bytes_read += moved.decoded
                    absent |= not moved.stored
            except StorageError as error:
                if not adding.pieces.forgiving:
                    raise
                with adding.lock:
                    adding.done.unreadable.append(Unreadable(box, str(error)))
                return
            cell = self._asked.cell
            sums = [
                (region_number, part, grid_digests(region.part(part.start, part.stop), part.start, cell))
                for region_number, part in parts
            ]
        with adding.lock:
            adding.done.bytes_read += bytes_read
            if absent:
                adding.absent.append(box)
            for region_number, part, found in sums:
                adding.done.add(region_number, self._first_cell(region_number, part), found)

    def _parts(self, box: Box) -> list[tuple[int, Box]]:
        """Return what each region has in common with a box."""
        start, stop = np.array(box.start, np.int64), np.array(box.stop, np.int64)
        meets = ((self._starts < stop) & (self._stops > start)).all(axis=1)
        parts = ((int(number), box.intersect(self._asked.regions[number])) for number in np.flatnonzero(meets))
        return [(number, part) for number, part in parts if part is not None]

    def _first_cell(self, region: int, part: Box) -> Shape:
        origin = self._asked.regions[region].start
        return tuple(a // c - o // c for a, o, c in zip(part.start, origin, self._asked.cell, strict=True))

    def _reader(self, array: int) -> UnitReader:
        with self._lock:
            if array not in self._readers:
                pieces = self._arrays[array]
                self._readers[array] = storage.open_reader(pieces.ref, pieces.read_unit)
            return self._readers[array]

    @contextmanager
    def _elements(self, box: Box, stored: storage.StoredArray, pieces: Pieces) -> Iterator[NDArray[Any]]:
        if not stored.fixed_size or not stored.dtype.itemsize:
            yield np.empty(box.shape, stored.dtype)
            return
        with self._memory.borrow(pieces.piece_bytes) as memory:
            yield elements_on(memory, box.shape, stored.dtype)


@dataclass(frozen=True, slots=True)
class _Adding:
    """Where the sums of an array's pieces go."""

    pieces: Pieces
    done: Partial
    absent: list[Box]
    """Pieces of which a chunk was absent, or may have been: fill value, as long as the array is there."""
    lock: threading.Lock
