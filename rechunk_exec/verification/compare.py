"""Comparing two arrays, from coarse to fine: the whole, then large boxes, then the write units of those that differ."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from numbers import Real

import numpy as np

from rechunk_exec import storage
from rechunk_exec.errors import PlanError, StorageError
from rechunk_exec.grid import Box, Grid, clip
from rechunk_exec.storage import StoredArray
from rechunk_exec.tasks import ArrayRef
from rechunk_exec.verification.crew import Crew, crew_of
from rechunk_exec.verification.pieces import Reading, Shape, plan_reading
from rechunk_exec.verification.report import DifferingBox, VerifyReport
from rechunk_exec.verification.sums import ArraySums, Asked, Unreadable, numbers_touching, sums_of

_MOST_BOXES = 1 << 16
"""Boxes whose sums are held at once in the first pass over the arrays."""
_SEED = 0
"""Of the sample: the same write units each time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOptions:
    """How arrays are compared."""

    executor: object = "threads"
    max_mem: int | None = None
    """Bytes that one worker process may use; no bound if None."""
    sample: float | None = None
    """Share of the target's write units to look at; None: all."""
    unfinished: str = ""
    """What is known of jobs that have not ended, of the source or the target."""

    def __post_init__(self) -> None:
        is_number = isinstance(self.sample, Real)
        if self.sample is not None and not (is_number and 0 < self.sample <= 1):
            raise PlanError(f"a sample is a share of the target, above 0 and up to 1; got {self.sample!r}")


def verify_arrays(source: ArrayRef, target: ArrayRef, options: VerifyOptions | None = None) -> VerifyReport:
    """Compare two arrays bit for bit; see :func:`rechunk_exec.verify`.

    Raises
    ------
    StorageError
        If the source cannot be read, an array cannot be opened, or shapes or dtypes differ.
    BudgetError
        If ``max_mem`` is too little to read a chunk.
    """
    options = options or VerifyOptions()
    pair = Pair.opened(source, target)
    problem = pair.mismatch()
    if problem:
        raise StorageError(f"arrays of one shape and dtype can be compared; {problem}")
    with crew_of(options.executor, (source, target)) as crew:
        return replace(compared(pair, options, crew), unfinished=options.unfinished)


@dataclass(frozen=True, slots=True)
class Pair:
    """Two opened arrays."""

    source: ArrayRef
    target: ArrayRef
    stored: tuple[StoredArray, StoredArray]

    @classmethod
    def opened(cls, source: ArrayRef, target: ArrayRef) -> Pair:
        """Open two arrays."""
        stored = storage.open_array(source, read_only=True), storage.open_array(target, read_only=True)
        return cls(source, target, stored)

    def mismatch(self) -> str:
        """Say why the arrays cannot be compared; empty if they can."""
        one, other = self.stored
        if one.shape == other.shape and one.kind == other.kind:
            return ""
        return f"got {one.shape} of {one.kind} at {self.source} and {other.shape} of {other.kind} at {self.target}"

    @property
    def units(self) -> Grid:
        """The target's write units."""
        stored = self.stored[1]
        return Grid(stored.shape, tuple(max(1, size) for size in clip(stored.write_unit, stored.shape)))

    def reading(self, crew: Crew, max_mem: int | None) -> Reading:
        """How to read both."""
        arrays = list(zip((self.source, self.target), self.stored, strict=True))
        return plan_reading(arrays, at_once=crew.at_once, max_mem=max_mem)


def compared(pair: Pair, options: VerifyOptions, crew: Crew) -> VerifyReport:
    """Compare two opened arrays, of one shape and dtype."""
    units = pair.units
    reading = pair.reading(crew, options.max_mem)
    count = len(units) if options.sample is None else min(len(units), max(1, round(len(units) * options.sample)))
    if count < len(units):
        numbers = sorted(random.Random(_SEED).sample(range(len(units)), count))
        boxes = [units.box(number) for number in numbers]
        differing, bytes_read = differing_units(pair, boxes, reading, crew)
    else:
        coarse = _coarse(units)
        whole = Box((0,) * len(units.shape), units.shape)
        differing, bytes_read = [], 0
        if len(units):
            first = sums_of(reading, Asked(regions=(whole,), cell=coarse.chunk), crew)
            differing, bytes_read = differing_cells(first.arrays[0], first.arrays[1], coarse), first.bytes_read
        if differing and coarse != units:
            regions = joined([box for box, _ in differing])
            differing, again = differing_units(pair, regions, reading, crew)
            bytes_read += again
    return VerifyReport(
        differing=tuple(DifferingBox(start=box.start, stop=box.stop, reason=reason) for box, reason in differing),
        boxes=count,
        all_boxes=len(units) if count < len(units) else None,
        bytes_read=bytes_read,
        executor=crew.pool.name,
        way="both sides were read",
    )


def differing_units(
    pair: Pair, regions: Sequence[Box], reading: Reading, crew: Crew
) -> tuple[list[tuple[Box, str]], int]:
    """Read some boxes of both arrays; return the target's write units in them that differ, and the bytes decoded.

    A unit that cannot be read comes with the reason, others with an empty one.
    """
    units = pair.units
    asked = Asked(regions=tuple(regions), cell=units.chunk)
    found = sums_of(reading, asked, crew)
    source, target = found.arrays
    differing: dict[Box, str] = {}
    for number, region in enumerate(regions):
        one, other = (ArraySums((array.sums[number],), array.unreadable) for array in (source, target))
        differing |= dict(differing_cells(one, other, asked.cells(number), region))
    return sorted(differing.items(), key=lambda item: item[0].start), found.bytes_read


def differing_cells(one: ArraySums, other: ArraySums, cells: Grid, region: Box | None = None) -> list[tuple[Box, str]]:
    """Return the cells whose sums differ, or are not known, as boxes of the array, with the reason in the latter case.

    ``cells`` is the grid of a region; the array's own if there is no region.
    """
    origin = region.start if region is not None else (0,) * len(cells.shape)
    reasons = dict(_unread(other.unreadable, cells, origin))
    numbers = {int(number) for number in np.flatnonzero(one.sums[0] != other.sums[0])}
    return [(_moved(cells.box(number), origin), reasons.get(number, "")) for number in sorted(numbers | reasons.keys())]


def _unread(gaps: Sequence[Unreadable], cells: Grid, origin: Shape) -> Iterator[tuple[int, str]]:
    """Yield the cells that some unreadable pieces touch, the first reason for each last."""
    whole = Box((0,) * len(origin), cells.shape)
    for gap in reversed(gaps):
        part = gap.box.relative_to(origin).intersect(whole)
        if part is not None:
            yield from ((number, gap.reason) for number in numbers_touching(cells, part))


def _moved(box: Box, origin: Shape) -> Box:
    return box.relative_to(tuple(-first for first in origin))


def _coarse(units: Grid) -> Grid:
    """Return a grid of at most so many boxes as sums may be held, each of whole units."""
    chunk = list(units.chunk)
    while len(grid := Grid(units.shape, tuple(chunk))) > _MOST_BOXES:
        counts = grid.grid_shape
        chunk[counts.index(max(counts))] *= 2
    return grid


def joined(boxes: Sequence[Box]) -> list[Box]:
    """Join boxes of one grid that lie side by side: along the last axis first, then what that gave along the others."""
    found = list(boxes)
    for axis in reversed(range(len(found[0].start) if found else 0)):
        rest = [(box.start[:axis] + box.start[axis + 1 :], box.stop[:axis] + box.stop[axis + 1 :]) for box in found]
        runs: list[tuple[object, Box]] = []
        for across, box in sorted(zip(rest, found, strict=True), key=lambda one: (one[0], one[1].start[axis])):
            if runs and runs[-1][0] == across and runs[-1][1].stop[axis] == box.start[axis]:
                runs[-1] = across, Box(runs[-1][1].start, box.stop)
            else:
                runs.append((across, box))
        found = [box for _, box in runs]
    return found
