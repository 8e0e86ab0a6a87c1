"""Bytes that a task holds at its peak, as a pure function. Layer: the planner; imports grid, errors and NumPy.

A task reads its region into one buffer, then writes the buffer. So at its peak it holds

    region + max(read side, write side)

* *Read side*: for each unit in flight, ``stored`` times its raw bytes (the encoded bytes, which rarely pass the raw
  ones) plus ``decoded`` times them (where it is decoded to) unless it can be decoded *in place*.
* *Write side*: for each encode call in flight, ``gathered`` times the chunk's raw bytes (its copy out of the region,
  unless it already lies there in place) plus ``stored`` times them (the encoder's output and the copy that travels).
  For stores that take only whole objects, ``assembled`` times the write unit for each one that is open.

A unit lies in place where it is one contiguous run of the region's buffer (C order: 1 on all axes before some axis,
whole on all axes after it), every region edge is on its grid, and the array is a whole number of units, so that none is
padded. There are no constants: what a worker needs whatever the job is its idle footprint, stated elsewhere.
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

import numpy as np
import numpy.typing as npt

from rechunk_exec.errors import PlanError
from rechunk_exec.grid import ceil_div, clip, most_units

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]


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

    def __post_init__(self) -> None:
        _refuse_negative(self.stored, self.decoded)


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

    def __post_init__(self) -> None:
        _refuse_negative(self.gathered, self.stored, self.assembled)


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

    def task_bytes(self, region: tuple[int, ...], threads: int) -> int:
        """Bytes that one task holds at its peak, with ``threads`` units in flight, rounded up to a whole byte."""
        region = clip(region, self.shape)
        region_bytes = math.prod(region) * self.itemsize
        return region_bytes + math.ceil(max(self._read_side(region, threads), self._write_side(region, threads)))

    def _read_side(self, region: tuple[int, ...], threads: int) -> float:
        units = math.prod(most_units(*sizes) for sizes in zip(self.shape, self.read_unit, region, strict=True))
        multiple = self.reading.stored
        if not (self.reading.in_place and lies_in_place(self.read_unit, region, self.shape)):
            multiple += self.reading.decoded
        return min(threads, units) * math.prod(self.read_unit) * self.itemsize * multiple

    def _write_side(self, region: tuple[int, ...], threads: int) -> float:
        chunks = math.prod(ceil_div(g, u) for g, u in zip(region, self.chunk, strict=True))
        units = math.prod(ceil_div(g, u) for g, u in zip(region, self.write_unit, strict=True))
        multiple = self.writing.stored
        if not (self.writing.in_place and lies_in_place(self.chunk, region, self.shape)):
            multiple += self.writing.gathered
        encoding = min(threads, chunks) * math.prod(self.chunk) * self.itemsize * multiple
        return encoding + min(threads, units) * math.prod(self.write_unit) * self.itemsize * self.writing.assembled


def lies_in_place(unit: tuple[int, ...], region: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Whether every unit is one contiguous run of a region's buffer; see the module.

    Parameters
    ----------
    unit, region, shape : tuple of int
        Elements of the unit, of the region (clipped to the array) and of the array.

    Examples
    --------
    >>> lies_in_place((1, 4, 6), (2, 8, 6), (10, 8, 6)), lies_in_place((1, 4, 3), (2, 8, 6), (10, 8, 6))
    (True, False)
    """
    if any(n == 0 or n % u or (g % u and g < n) for u, g, n in zip(unit, region, shape, strict=True)):
        return False
    axes = range(max(1, len(shape)))
    return any(all(u == 1 for u in unit[:axis]) and unit[axis + 1 :] == region[axis + 1 :] for axis in axes)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRows:
    """:class:`StageMemory` for many stages at once, one array of sizes per axis, for the search. No axis is empty."""

    shape: tuple[int, ...]
    itemsize: int
    region: Sequence[IntArray]
    """Elements of the region along each axis, clipped to the array."""
    read_unit: Sequence[IntArray]
    write_unit: Sequence[IntArray]
    chunk: Sequence[IntArray]
    reading: ReadScratch
    writing: WriteScratch

    def task_bytes(self, threads: int) -> FloatArray:
        """Bytes of one task, as float64 (exact below 2**53)."""
        sides = np.maximum(self._read_side(threads), self._write_side(threads))
        return product(self.region) * self.itemsize + np.ceil(sides)

    def _read_side(self, threads: int) -> FloatArray:
        units = product([_most_units(*sizes) for sizes in zip(self.shape, self.read_unit, self.region, strict=True)])
        multiple = self._multiple(self.reading.stored, self.reading.decoded, self.reading.in_place, self.read_unit)
        return np.minimum(threads, units) * product(self.read_unit) * self.itemsize * multiple

    def _write_side(self, threads: int) -> FloatArray:
        chunks = product([-(-g // u) for g, u in zip(self.region, self.chunk, strict=True)])
        multiple = self._multiple(self.writing.stored, self.writing.gathered, self.writing.in_place, self.chunk)
        encoding = np.minimum(threads, chunks) * product(self.chunk) * self.itemsize * multiple
        if not self.writing.assembled:
            return encoding
        units = product([-(-g // u) for g, u in zip(self.region, self.write_unit, strict=True)])
        whole = np.minimum(threads, units) * product(self.write_unit) * self.itemsize
        return np.asarray(encoding + whole * self.writing.assembled)

    def _multiple(self, always: float, scratch: float, in_place: bool, unit: Sequence[IntArray]) -> FloatArray:
        if not in_place or not scratch:
            return np.asarray(always + scratch, dtype=np.float64)
        return np.where(self._lies_in_place(unit), always, always + scratch).astype(np.float64)

    def _lies_in_place(self, unit: Sequence[IntArray]) -> BoolArray:
        """:func:`lies_in_place`, row by row."""
        aligned = np.asarray(True)
        contiguous = np.asarray(not unit)
        inner_whole = np.asarray(True)
        for u, g, n in zip(unit, self.region, self.shape, strict=True):
            aligned = aligned & (n % u == 0) & ((g % u == 0) | (g >= n))
        for axis in reversed(range(len(unit))):
            outer_one = np.asarray(True)
            for u in unit[:axis]:
                outer_one = outer_one & (u == 1)
            contiguous = contiguous | (outer_one & inner_whole)
            inner_whole = inner_whole & (unit[axis] == self.region[axis])
        return np.asarray(aligned & contiguous)


def _most_units(n: int, unit: IntArray, region: IntArray) -> IntArray:
    """:func:`rechunk_exec.grid.most_units`, row by row."""
    units = -(-n // unit)
    reach = -(-(unit - np.gcd(unit, region) + region) // unit)
    return np.asarray(np.where(region >= n, units, np.minimum(units, reach)))


def product(columns: Sequence[IntArray] | Sequence[FloatArray]) -> FloatArray:
    """Product over axes, row by row, as float64 so that it cannot wrap around."""
    total = np.asarray(1.0)
    for column in columns:
        total = total * column
    return np.asarray(total)
