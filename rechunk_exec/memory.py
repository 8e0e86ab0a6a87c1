"""Bytes that a task holds at its peak, as a pure function. Layer: the planner; imports grid, errors and NumPy.

A task reads its region into one buffer, then writes the buffer. So at its peak it holds

    region + max(read side, write side) + work + kept

* *Read side*: for each unit in flight, ``stored`` times its raw bytes (the encoded bytes, which rarely pass the raw
  ones) plus ``decoded`` times them (where it is decoded to) unless it can be decoded *in place*.
* *Write side*: for each encode call in flight, ``gathered`` times the chunk's raw bytes (its copy out of the region,
  unless it already lies there in place) plus ``stored`` times them (the encoder's output and the copy that travels).
  For stores that take only whole objects, ``assembled`` times the write unit for each one that is open.
  And one ``table`` of where its chunks lie, for each write unit that is open.
* *Work*: the bytes that codecs work in, for each unit in flight; those of reading and those of writing, since
  allocators keep for each thread what it worked in last. They count up to the square of the array's bytes
  divided by 64 MiB, and to that of what the task holds besides divided by 256 KiB: in full where arrays have some
  dozens of MB and tasks more than some; of toys they are noise.
* *Kept*: tables of where the chunks of what is read lie.

A unit lies in place where it is one contiguous run of the region's buffer (C order: 1 on all axes before some axis,
whole on all axes after it), every region edge is on its grid, and it is not padded: where that axis of the array is no
whole number of units long, the last unit on it is. There are no constants but one: what a worker needs whatever the job
is its idle footprint, stated elsewhere; what a codec works in depends on its level and on the size of a chunk, and is
asked of the codec.
Shapes are those that codecs see: a chunk longer than its axis is decoded whole.

Worked example: float32, source chunks (1, 1024, 1024), target chunks (389, 256, 256), region (389, 1024, 1024), two
units in flight. The region is 389 * 1024 * 1024 * 4 = 1,631,584,256 bytes. A source chunk is a contiguous run of it,
but an array of 6898 rows has a padded chunk at its edge, so the read side is 2 * 4,194,304 * (1 + 1) = 16,777,216.
Target chunks are no such run: the write side is 2 * 101,974,016 * (1 + 2) = 611,844,096. The task holds 2,243,428,352
bytes.

>>> StageMemory(
...     shape=(389, 6898, 9618), itemsize=4, read_unit=(1, 1024, 1024), write_unit=(389, 256, 256),
...     chunk=(389, 256, 256)).task_bytes((389, 1024, 1024), threads=2)
2243428352
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from rechunk_exec.errors import PlanError
from rechunk_exec.grid import ceil_div, clip, most_units

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
_LARGE = 1 << 24
"""Beside so much all counts that a codec works in."""
ALL_BESIDE = 1 << 60
"""More units than any region has."""
PROCESS_BYTES = 5_000_000
"""What a worker process may come to hold besides its tasks, whatever these are: pages that allocators keep, what
threads and clients of stores take at first, lists of the journal. Up to 4.3 MB were measured; it is not counted."""
RESULT_BYTES = 400
"""What a driver, or a worker that is one, may hold for each task of a job until its report goes: the task's result."""


def _refuse_negative(*multiples: float) -> None:
    if any(not multiple >= 0 for multiple in multiples):
        raise PlanError(f"scratch is counted in multiples of a unit, at least 0; got {multiples}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadScratch:
    """What is held for each read unit in flight, in multiples of its raw bytes."""

    stored: float = 1
    """Encoded bytes; 0 for raw bytes that are read straight to where they go."""
    decoded: float = 1
    """Scratch that the unit is decoded into."""
    in_place: bool = True
    """Whether a unit that lies contiguous in the region is decoded there, without ``decoded``."""
    work: int = 0
    """Bytes, not a multiple, that the codec works in for each unit in flight."""
    kept: int = 0
    """Bytes, for the whole task, that are kept from unit to unit: indices of shards, tables of blocks."""

    def __post_init__(self) -> None:
        _refuse_negative(self.stored, self.decoded, self.work, self.kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteScratch:
    """What is held for each encode call in flight, in multiples of the chunk's raw bytes."""

    gathered: float = 1
    """The chunk's copy out of the region."""
    stored: float = 2
    """The encoder's output and the copy of it that travels; 0 for raw bytes."""
    in_place: bool = True
    """Whether a chunk that lies contiguous in the region is encoded from there, without ``gathered``."""
    assembled: float = 0
    """Multiples of a whole write unit, for each that is open at once; 0 where chunks are appended to a file."""
    work: int = 0
    """Bytes, not a multiple, that the codec works in for each unit in flight."""
    table: int = 0
    """Bytes, not a multiple, for each write unit that is open at once: the index of its chunks."""

    def __post_init__(self) -> None:
        _refuse_negative(self.gathered, self.stored, self.assembled, self.work, self.table)


RAW_READ = ReadScratch(stored=0, decoded=1)
"""Reading an uncompressed intermediate."""
RAW_WRITE = WriteScratch(gathered=1, stored=0)
"""Writing an uncompressed intermediate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """What decides the memory of a stage's tasks, but for the region. Shapes are not clipped to the array."""

    shape: tuple[int, ...]
    itemsize: int
    read_unit: tuple[int, ...]
    """What one decode call makes."""
    write_unit: tuple[int, ...]
    """What one write replaces whole."""
    chunk: tuple[int, ...]
    """What one encode call gets."""
    reading: ReadScratch = ReadScratch()
    writing: WriteScratch = WriteScratch()
    restart: tuple[int, ...] | None = None
    """Elements after which read units are counted anew, 0 for never; see :mod:`rechunk_exec.grid`."""

    def task_bytes(self, region: tuple[int, ...], threads: int) -> int:
        """Bytes that one task holds at its peak, with ``threads`` units in flight, rounded up to a whole byte."""
        held, work = self._held(region, threads)
        noticed = self._noticed(held)
        return held + sum(count * min(each, noticed) for count, each in work)

    def uncounted_bytes(self, region: tuple[int, ...], threads: int) -> int:
        """Bytes that codecs work in for one task beyond those that count: none, unless it holds little."""
        held, work = self._held(region, threads)
        noticed = self._noticed(held)
        return sum(count * max(0, each - noticed) for count, each in work)

    def _noticed(self, held: int) -> int:
        return min(noticed_bytes(self.shape, self.itemsize), min(held, _LARGE) ** 2 // 2**18)

    def _held(self, region: tuple[int, ...], threads: int) -> tuple[int, tuple[tuple[int, int], ...]]:
        """What a task holds besides what codecs work in; and that, for reading and writing: how often, and how much."""
        if 0 in self.shape:  # there are no tasks
            return 0, ()
        region = clip(region, self.shape)
        restart = self.restart or (0,) * len(self.shape)
        units = min(threads, math.prod(map(most_units, self.shape, self.read_unit, region, restart)))
        chunks = min(threads, math.prod(map(ceil_div, region, self.chunk)))
        open_units = min(threads, math.prod(map(ceil_div, region, self.write_unit)))
        decoded = min(units, beside(self.read_unit, region, self.shape)) if self.reading.in_place else units
        gathered = min(chunks, beside(self.chunk, region, self.shape)) if self.writing.in_place else chunks
        unit_bytes, chunk_bytes, object_bytes = (
            math.prod(box) * self.itemsize for box in (self.read_unit, self.chunk, self.write_unit)
        )
        reading = unit_bytes * (units * self.reading.stored + decoded * self.reading.decoded)
        encoding = chunk_bytes * (chunks * self.writing.stored + gathered * self.writing.gathered)
        writing = encoding + open_units * (object_bytes * self.writing.assembled + self.writing.table)
        held = math.prod(region) * self.itemsize + math.ceil(max(reading, writing)) + self.reading.kept
        return held, ((units, self.reading.work), (chunks, self.writing.work))


def noticed_bytes(shape: tuple[int, ...], itemsize: int) -> int:
    """How many bytes that a codec works in count where an array is copied: of toy arrays hardly any.

    >>> noticed_bytes((2**18,), 4), noticed_bytes((2**24,), 4)
    (16384, 67108864)
    """
    return (math.prod(shape) * itemsize) ** 2 // 2**26


def beside(unit: tuple[int, ...], region: tuple[int, ...], shape: tuple[int, ...]) -> int:
    """How many units of a region do not lie in place, at most; see the module.

    Parameters
    ----------
    unit, region, shape : tuple of int
        Elements of the unit, of the region (clipped to the array) and of the array.

    Examples
    --------
    >>> beside((1, 4, 6), (2, 8, 6), (10, 8, 6)), beside((1, 4, 3), (2, 8, 6), (10, 8, 6)) == ALL_BESIDE
    (0, True)
    >>> beside((1, 4, 6), (2, 8, 6), (10, 9, 6))  # the last unit of each of two planes is padded
    2
    """
    if not shape:
        return 0
    fewest = ALL_BESIDE
    for axis, (n, u) in enumerate(zip(shape, unit, strict=True)):
        runs = all(size == 1 for size in unit[:axis]) and unit[axis + 1 :] == region[axis + 1 :]
        inner = zip(shape[axis + 1 :], unit[axis + 1 :], strict=True)
        if runs and n and all(length and length % size == 0 for length, size in inner):
            fewest = min(fewest, math.prod(region[:axis]) if n % u else 0)
    straddled = any(g % u and g < n for u, g, n in zip(unit, region, shape, strict=True))
    return ALL_BESIDE if straddled else fewest


@dataclass(frozen=True, kw_only=True)
class MemoryRows:
    """:class:`StageMemory` for many stages at once, one array of sizes per axis, for the search. No axis is empty.

    What does not depend on the number of threads is counted once.
    """

    shape: tuple[int, ...]
    itemsize: int
    region: Sequence[IntArray]
    """Elements of the region along each axis, clipped to the array."""
    read_unit: Sequence[IntArray]
    write_unit: Sequence[IntArray]
    chunk: Sequence[IntArray]
    reading: ReadScratch
    writing: WriteScratch
    restart: tuple[int, ...] | None = None

    def task_bytes(self, threads: int, rows: IntArray | slice = slice(None)) -> FloatArray:
        """Bytes of one task, as float64 (exact below 2**53); of all rows, or those with these numbers."""
        units, chunks = np.minimum(threads, self._units[rows]), np.minimum(threads, self._chunks[rows])
        decoded = np.minimum(units, self._units_beside[rows]) if self.reading.in_place else units
        gathered = np.minimum(chunks, self._chunks_beside[rows]) if self.writing.in_place else chunks
        reading = self._unit_bytes[rows] * (units * self.reading.stored + decoded * self.reading.decoded)
        writing = self._chunk_bytes[rows] * (chunks * self.writing.stored + gathered * self.writing.gathered)
        if self.writing.assembled or self.writing.table:
            whole = self._object_bytes[rows] * self.writing.assembled + self.writing.table
            writing = writing + np.minimum(threads, self._objects[rows]) * whole
        held = self._region_bytes[rows] + np.ceil(np.maximum(reading, writing)) + self.reading.kept
        if not (self.reading.work or self.writing.work):
            return np.asarray(held)
        beside_held = np.floor(np.minimum(held, _LARGE) ** 2 / 2**18)
        noticed = np.minimum(noticed_bytes(self.shape, self.itemsize), beside_held)
        decoding, encoding = np.minimum(self.reading.work, noticed), np.minimum(self.writing.work, noticed)
        return np.asarray(held + units * decoding + chunks * encoding)

    @cached_property
    def _units(self) -> FloatArray:
        """Read units that a task touches at most."""
        axes = zip(self.shape, self.read_unit, self.region, self.restart or (0,) * len(self.shape), strict=True)
        return self._of_each(product([_most_units(*sizes) for sizes in axes]))

    @cached_property
    def _chunks(self) -> FloatArray:
        return self._count(self.chunk)

    @cached_property
    def _objects(self) -> FloatArray:
        return self._count(self.write_unit)

    @cached_property
    def _units_beside(self) -> FloatArray:
        return self._beside(self.read_unit)

    @cached_property
    def _chunks_beside(self) -> FloatArray:
        return self._beside(self.chunk)

    @cached_property
    def _unit_bytes(self) -> FloatArray:
        return self._bytes(self.read_unit)

    @cached_property
    def _chunk_bytes(self) -> FloatArray:
        return self._bytes(self.chunk)

    @cached_property
    def _object_bytes(self) -> FloatArray:
        return self._bytes(self.write_unit)

    @cached_property
    def _region_bytes(self) -> FloatArray:
        return self._bytes(self.region)

    def _of_each(self, values: FloatArray) -> FloatArray:
        """One value a row, also where all are the same."""
        return np.broadcast_to(values, np.broadcast_shapes((1,), *(sizes.shape for sizes in self.region)))

    def _bytes(self, box: Sequence[IntArray]) -> FloatArray:
        return self._of_each(product(box) * self.itemsize)

    def _count(self, unit: Sequence[IntArray]) -> FloatArray:
        return self._of_each(product([-(-g // u) for g, u in zip(self.region, unit, strict=True)]))

    def _beside(self, unit: Sequence[IntArray]) -> FloatArray:
        """:func:`beside`, row by row."""
        if not unit:
            return self._of_each(np.asarray(0.0))
        fewest, straddled = np.asarray(float(ALL_BESIDE)), np.asarray(False)
        runs, outer = np.asarray(True), np.asarray(1.0)
        before: list[tuple[BoolArray, FloatArray]] = []
        for u, g in zip(unit, self.region, strict=True):
            before.append((runs, outer))
            runs, outer = runs & (u == 1), outer * g
        inner_whole = np.asarray(True)
        for u, g, n, (runs, outer) in reversed(list(zip(unit, self.region, self.shape, before, strict=True))):
            on_grid = n % u == 0
            padded = np.where(on_grid, 0.0, outer)
            fewest = np.where(inner_whole & runs, np.minimum(fewest, padded), fewest)
            straddled = straddled | ((g % u != 0) & (g < n))
            inner_whole = inner_whole & (u == g) & on_grid
        return self._of_each(np.where(straddled, float(ALL_BESIDE), fewest))


def _most_units(n: int, unit: IntArray, region: IntArray, restart: int) -> IntArray:
    """:func:`rechunk_exec.grid.most_units`, row by row."""
    if restart:
        units = n // restart * -(-restart // unit) + -(-(n % restart) // unit)
        reach = -(-(unit - 1 + region) // unit) + _most_units(n, np.array(restart), region, 0) - 1
    else:
        units = -(-n // unit)
        reach = -(-(unit - np.gcd(unit, region) + region) // unit)
    return np.asarray(np.where(region >= n, units, np.minimum(units, reach)))


def product(columns: Sequence[IntArray] | Sequence[FloatArray]) -> FloatArray:
    """Product over axes, row by row, as float64 so that it cannot wrap around."""
    total = np.asarray(1.0)
    for column in columns:
        total = total * column
    return np.asarray(total)
