"""Whether tasks of one's own may run side by side: found out before any does. Layer: above regions.

Tasks need no locks as long as each replaces whole write units, no two replace the same one, and none reads what one
of them replaces. A box that cuts a unit breaks the first rule, and mostly the second one too: two tasks would each
write the unit, and one of them would lose what it wrote.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rechunk_exec import storage
from rechunk_exec.chunktasks import Chunk, ChunkTask
from rechunk_exec.errors import PlanError
from rechunk_exec.grid import Box, Grid
from rechunk_exec.regions import refuse_outside, refuse_parts, rounded
from rechunk_exec.tasks import ArrayRef


def check_aligned(tasks: Iterable[ChunkTask]) -> None:
    """Refuse tasks that could not run side by side, or not twice. Reads metadata only.

    Parameters
    ----------
    tasks : iterable of ChunkTask
        All that are to run before somebody waits for all of them.

    Raises
    ------
    PlanError
        If a box does not lie in its array; if two tasks, or two boxes of one, write to the same write unit; if a box to
        be written is not whole write units (or up to the edge); or if a task reads what one of them writes. The
        message names the tasks by number, the unit, and the boxes that would be aligned.
    StorageError
        If an array cannot be opened.
    """
    arrays: dict[Hashable, _Touched] = {}
    every = tuple(tasks)
    for number, task in enumerate(every):
        for chunk, boxes in _boxes(task, arrays):
            stored = arrays[_place(chunk.array)].stored
            refuse_outside(chunk, stored, f"task {number}: {task}")
            boxes.append((number, chunk))
    for touched in arrays.values():
        if touched.written:
            owners = _owners(touched)
            for number, chunk in touched.written:
                refuse_parts(chunk, touched.stored, f"task {number}: {every[number]}")
            _refuse_mixed(touched, owners)


_Numbered = tuple[int, Chunk]


@dataclass(slots=True)
class _Touched:
    """An array, and which tasks read and write what of it."""

    stored: storage.StoredArray
    read: list[_Numbered] = field(default_factory=list)
    written: list[_Numbered] = field(default_factory=list)

    @property
    def grid(self) -> Grid:
        """Of its write units."""
        return Grid(self.stored.shape, self.stored.write_unit)

    def units(self, chunk: Chunk) -> Box:
        """Return the write units that a box touches, as a box of the grid."""
        unit = self.stored.write_unit
        return Box(
            tuple(low // size for low, size in zip(chunk.start, unit, strict=True)),
            tuple(-(-high // size) for high, size in zip(chunk.stop, unit, strict=True)),
        )


@dataclass(frozen=True, slots=True)
class _Owners:
    """Which box writes a unit, for the part of the grid that is written at all."""

    origin: tuple[int, ...]
    stop: tuple[int, ...]
    places: NDArray[np.int32]
    """1 + the place of the box among those written; 0: none."""

    def part(self, units: Box) -> NDArray[np.int32]:
        """Return those of a box of units inside, as a view."""
        index: Any = (*units.relative_to(self.origin).slices, ...)  # the ellipsis: of a 0-d grid too a view
        part: NDArray[np.int32] = self.places[index]
        return part


def _owners(touched: _Touched) -> _Owners:
    """Mark each unit with who writes it; refuse one that two write."""
    boxes = [touched.units(chunk) for _, chunk in touched.written]
    origin = tuple(map(min, zip(*(box.start for box in boxes), strict=True)))
    stop = tuple(map(max, zip(*(box.stop for box in boxes), strict=True)))
    owners = _Owners(origin, stop, np.zeros(Box(origin, stop).shape, np.int32))
    for place, box in enumerate(boxes):
        part = owners.part(box)
        if part.any():
            first = tuple(int(axis[0]) for axis in np.nonzero(np.atleast_1d(part)))[: part.ndim]
            index = tuple(low + number for low, number in zip(box.start, first, strict=True))
            raise _shared_unit(touched, index, touched.written[int(part[first]) - 1], touched.written[place])
        part[...] = place + 1
    return owners


def _shared_unit(touched: _Touched, index: tuple[int, ...], one: _Numbered, other: _Numbered) -> PlanError:
    unit, *aligned = (
        Chunk(array=one[1].array, start=box.start, stop=box.stop)
        for box in (touched.grid.box_at(index), *(rounded(chunk.box, touched.stored) for _, chunk in (one, other)))
    )
    who = f"task {one[0]} writes {one[1]} and task {other[0]} writes {other[1]}"
    return PlanError(
        "what two tasks write must not share a write unit, since each replaces it whole and one would lose what it "
        f"wrote; got {who}: both need unit {index}, which is {unit}; aligned to units of {touched.stored.write_unit} "
        f"the first would be {aligned[0]}, the second {aligned[1]}; give one task all of a unit"
    )


def _refuse_mixed(touched: _Touched, owners: _Owners) -> None:
    """Refuse what is read and written: what is read would depend on who comes first, and on how often."""
    for number, chunk in touched.read:
        units = touched.units(chunk).intersect(Box(owners.origin, owners.stop))
        found = np.zeros(0, np.int32) if units is None else owners.part(units)
        writers = found[found > 0]
        if writers.size:
            writer, written = touched.written[int(writers.flat[0]) - 1]
            raise PlanError(
                "a task must not read what it or another one writes, or its result would depend on which runs first, "
                f"and change when it runs again; got task {number}, which reads {chunk}, and task {writer}, which "
                f"writes {written}; write to another array"
            )


def _boxes(task: ChunkTask, arrays: dict[Hashable, _Touched]) -> Iterator[tuple[Chunk, list[_Numbered]]]:
    """Yield a task's boxes, each with the list that it belongs into."""
    for chunks, written in ((task.reads, False), (task.writes, True)):
        for chunk in chunks:
            place = _place(chunk.array)
            if place not in arrays:
                arrays[place] = _Touched(storage.open_array(chunk.array, read_only=True))
            yield chunk, arrays[place].written if written else arrays[place].read


def _place(ref: ArrayRef) -> Hashable:
    """Return what is the same for two names of one array."""
    path = storage.local_path(ref)
    if path is not None:
        return os.path.realpath(path)
    if isinstance(ref.store, str):
        return "/".join(part for part in (ref.store.rstrip("/"), ref.path) if part)
    return id(ref.store), ref.path
