"""Boxes and regular grids in exact integers. Layer: the ground of the planner; imports only errors and NumPy.

Everything about a copy is separable by axis. Along one axis of ``n`` elements lie units of ``a`` elements (what one
read decodes) and tasks of ``g`` elements: task ``j`` covers ``[j*g, min((j+1)*g, n))``. A task decodes every unit that
it touches, so a unit is decoded once, plus once more for each task boundary strictly inside it:

* units decoded = ``ceil(n/a)`` + boundaries that are not multiples of ``a``;
* elements decoded = ``n`` + the sizes of the units that those boundaries cut, each clipped to the array.

A boundary ``j*g`` is a multiple of ``a`` when ``j`` is one of ``a / gcd(a, g)``, so both sums cost O(1). Over several
axes units, elements and tasks are products of the sums of the axes.

Example: 10 elements in units of 4 are ``[0,4) [4,8) [8,10)``; tasks of 3 have boundaries at 3, 6 and 9, which cut each
unit once. So 3 + 3 units and 10 + 4 + 4 + 2 elements are decoded:

>>> units_touched(10, 4, 3), elements_touched(10, 4, 3)
(6, 20)

Units may restart every ``restart`` elements, the last before that being shorter: parts of chunks that are no whole
number of them. Then a boundary is taken to cut a unit wherever it is not itself a multiple of ``restart``, so these
sums are upper bounds, by a unit a boundary at most. Above, with a restart at 5, units are ``[0,4) [4,5) [5,9) [9,10)``:

>>> units_touched(10, 4, 3, 5), elements_touched(10, 4, 3, 5)
(7, 22)
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rechunk_exec.errors import PlanError


def ceil_div(n: int, unit: int) -> int:
    """Number of units of ``unit`` elements that cover ``n`` elements; 0 where ``n`` is 0.

    >>> ceil_div(10, 4), ceil_div(0, 0)
    (3, 0)
    """
    return -(-n // unit) if n else 0


def clip(unit: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    """``unit`` no longer than ``shape`` on any axis.

    >>> clip((4, 50), (10, 20))
    (4, 20)
    """
    return tuple(min(u, n) for u, n in zip(unit, shape, strict=True))


def units_touched(n: int, unit: int, region: int, restart: int = 0) -> int:
    """Units touched along one axis, summed over all tasks.

    Parameters
    ----------
    n, unit, region : int
        Elements along the axis, of one unit, and of one task.
    restart : int
        Elements after which units are counted anew; 0 for never.
    """
    if n == 0:
        return 0
    return _units(n, unit, restart) + _cuts(n, restart or unit, region)


def boxes_touched(
    shape: tuple[int, ...], unit: tuple[int, ...], region: tuple[int, ...], restart: tuple[int, ...] | None = None
) -> int:
    """Boxes of shape ``unit`` touched, summed over all tasks: the product of :func:`units_touched` over the axes.

    >>> boxes_touched((10, 20), (4, 20), (5, 10))
    8
    """
    return math.prod(map(units_touched, shape, unit, region, restart or (0,) * len(shape)))


def elements_touched(n: int, unit: int, region: int, restart: int = 0) -> int:
    """Elements of the units touched along one axis, clipped to the array, summed over all tasks."""
    if n == 0:
        return 0
    if restart:
        return n + unit * _cuts(n, restart, region)
    last = (n - 1) // unit * unit
    cuts_of_last = (n - 1) // region - last // region
    return n + unit * (_cuts(n, unit, region) - cuts_of_last) + (n - last) * cuts_of_last


def most_units(n: int, unit: int, region: int, restart: int = 0) -> int:
    """Most units that one task of ``region`` elements may touch along an axis (an upper bound, exact where it repeats).

    >>> most_units(100, 10, 20), most_units(100, 10, 21), most_units(100, 10, 100)
    (2, 3, 10)
    """
    units = _units(n, unit, restart)
    if region >= n:
        return units
    if restart:  # one more for each restart that the region may hold
        return min(units, ceil_div(unit - 1 + region, unit) + most_units(n, restart, region) - 1)
    return min(units, ceil_div(unit - math.gcd(unit, region) + region, unit))


def _units(n: int, unit: int, restart: int) -> int:
    if not restart:
        return ceil_div(n, unit)
    return n // restart * ceil_div(restart, unit) + ceil_div(n % restart, unit)


def _cuts(n: int, unit: int, region: int) -> int:
    """Task boundaries inside the axis that do not lie on the grid of units."""
    boundaries = ceil_div(n, region) - 1
    return boundaries - boundaries // (unit // math.gcd(unit, region))


@dataclass(frozen=True, slots=True)
class AxisSums:
    """The sums of one axis for many region sizes at once, as float64 (exact below 2**53)."""

    units: npt.NDArray[np.float64]
    """Units touched, summed over all tasks."""
    elements: npt.NDArray[np.float64]
    """Elements of those units."""
    tasks: npt.NDArray[np.float64]
    """Tasks along the axis."""


def axis_sums(n: int, unit: npt.NDArray[np.int64] | int, region: npt.NDArray[np.int64], restart: int = 0) -> AxisSums:
    """:func:`units_touched` and :func:`elements_touched` for arrays of sizes, for the search. ``n`` is at least 1.

    With ``restart``, ``unit`` is a number.
    """
    if restart:
        chunks = axis_sums(n, restart, region)
        restarted = chunks.units - ceil_div(n, restart)
        return AxisSums(
            units=_units(n, int(unit), restart) + restarted, elements=n + unit * restarted, tasks=chunks.tasks
        )
    boundaries = -(-n // region) - 1
    cuts = boundaries - boundaries // (unit // np.gcd(unit, region))
    last = (n - 1) // unit * unit
    cuts_of_last = (n - 1) // region - last // region
    whole = np.asarray(unit, dtype=np.float64) * (cuts - cuts_of_last)  # in floats: it may pass 2**63
    return AxisSums(
        units=(-(-n // unit) + cuts).astype(np.float64),
        elements=n + whole + np.asarray(n - last, dtype=np.float64) * cuts_of_last,
        tasks=(boundaries + 1).astype(np.float64),
    )


@dataclass(frozen=True, slots=True)
class Box:
    """A box of elements, ``start <= index < stop`` on every axis; ``()`` to ``()`` is the one of a 0-d array."""

    start: tuple[int, ...]
    """First index on every axis."""
    stop: tuple[int, ...]
    """One past the last index on every axis."""

    def __post_init__(self) -> None:
        if len(self.start) != len(self.stop):
            raise PlanError(f"a box has as many starts as stops; got {self.start} and {self.stop}")

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements along every axis."""
        return tuple(b - a for a, b in zip(self.start, self.stop, strict=True))

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def slices(self) -> tuple[slice, ...]:
        """The box as an index for an array.

        >>> Box((0, 2), (1, 4)).slices
        (slice(0, 1, None), slice(2, 4, None))
        """
        return tuple(slice(a, b) for a, b in zip(self.start, self.stop, strict=True))

    def intersect(self, other: Box) -> Box | None:
        """What both boxes hold, or None where they hold nothing in common.

        >>> Box((0,), (5,)).intersect(Box((3,), (9,)))
        Box(start=(3,), stop=(5,))
        """
        start = tuple(max(a, b) for a, b in zip(self.start, other.start, strict=True))
        stop = tuple(min(a, b) for a, b in zip(self.stop, other.stop, strict=True))
        if any(a >= b for a, b in zip(start, stop, strict=True)):
            return None
        return Box(start, stop)

    def contains(self, other: Box) -> bool:
        """Whether every element of ``other`` lies in this box."""
        return all(a <= b for a, b in zip(self.start, other.start, strict=True)) and all(
            a >= b for a, b in zip(self.stop, other.stop, strict=True)
        )

    def relative_to(self, origin: tuple[int, ...]) -> Box:
        """The same box counted from ``origin``: where it lies in a buffer that starts there.

        >>> Box((10, 4), (12, 8)).relative_to((10, 0))
        Box(start=(0, 4), stop=(2, 8))
        """
        return Box(
            tuple(a - o for a, o in zip(self.start, origin, strict=True)),
            tuple(b - o for b, o in zip(self.stop, origin, strict=True)),
        )


@dataclass(frozen=True, slots=True)
class Unit:
    """One unit of a grid: where it stands, and its elements."""

    index: tuple[int, ...]
    """Place in the grid, in units."""
    box: Box
    """The elements of it that are in the array."""


@dataclass(frozen=True, slots=True)
class Grid:
    """An array cut into units of one shape, the last along each axis clipped.

    >>> grid = Grid(shape=(5, 4), chunk=(2, 4))
    >>> len(grid), grid.grid_shape, grid.box(2)
    (3, (3, 1), Box(start=(4, 0), stop=(5, 4)))
    >>> [unit.index for unit in grid.touching(Box((1, 0), (4, 1)))]
    [(0, 0), (1, 0)]
    """

    shape: tuple[int, ...]
    """Elements of the array."""
    chunk: tuple[int, ...]
    """Elements of one unit; may be longer than the array."""

    def __post_init__(self) -> None:
        if len(self.shape) != len(self.chunk):
            raise PlanError(f"a grid needs one size per axis; got chunk {self.chunk} for shape {self.shape}")
        if any(n < 0 or u < 0 or (u == 0 and n > 0) for n, u in zip(self.shape, self.chunk, strict=True)):
            raise PlanError(f"a grid needs units of at least one element; got chunk {self.chunk} for {self.shape}")

    @property
    def grid_shape(self) -> tuple[int, ...]:
        """Units along every axis."""
        return tuple(ceil_div(n, u) for n, u in zip(self.shape, self.chunk, strict=True))

    def __len__(self) -> int:
        return math.prod(self.grid_shape)

    def index(self, number: int) -> tuple[int, ...]:
        """Place of unit ``number`` in C order.

        Raises
        ------
        IndexError
            If there is no such unit; numbers from the end are not meant.
        """
        if not 0 <= number < len(self):
            raise IndexError(f"a grid of {len(self)} units has no unit {number}")
        places: list[int] = []
        for count in reversed(self.grid_shape):
            number, place = divmod(number, count)
            places.append(place)
        return tuple(reversed(places))

    def number(self, index: tuple[int, ...]) -> int:
        """Number, in C order, of the unit at ``index``: what :meth:`index` gives back.

        >>> Grid(shape=(5, 4), chunk=(2, 2)).number((1, 0))
        2
        """
        number = 0
        for place, count in zip(index, self.grid_shape, strict=True):
            number = number * count + place
        return number

    def box(self, number: int) -> Box:
        """Elements of unit ``number`` in C order, clipped to the array."""
        return self.box_at(self.index(number))

    def elements_of(self, numbers: Collection[int]) -> int:
        """Elements of some units in all; one that is named twice counts twice.

        >>> Grid(shape=(5, 4), chunk=(2, 4)).elements_of([0, 2])
        12

        Raises
        ------
        ValueError
            If there is no such unit.
        """
        if not self.shape:
            return len(numbers)
        places = np.unravel_index(np.fromiter(numbers, np.intp, len(numbers)), self.grid_shape)
        elements = np.ones(len(numbers), np.int64)
        for place, size, unit in zip(places, self.shape, self.chunk, strict=True):
            elements *= np.minimum(unit, size - place * unit)
        return int(elements.sum())

    def box_at(self, index: tuple[int, ...]) -> Box:
        """Elements of the unit at ``index``, clipped to the array."""
        return Box(
            tuple(i * u for i, u in zip(index, self.chunk, strict=True)),
            tuple(min((i + 1) * u, n) for i, u, n in zip(index, self.chunk, self.shape, strict=True)),
        )

    def touching(self, box: Box) -> Iterator[Unit]:
        """The units that hold an element of ``box``, lazily, in C order. ``box`` lies in the array."""
        if any(a >= b for a, b in zip(box.start, box.stop, strict=True)):
            return
        ranges = [range(a // u, (b - 1) // u + 1) for a, b, u in zip(box.start, box.stop, self.chunk, strict=True)]
        # itertools.product lists its ranges first; the outer axis, which may be very long, is not among them
        for outer in ranges[0] if ranges else (None,):
            for inner in itertools.product(*ranges[1:]):
                index = inner if outer is None else (outer, *inner)
                yield Unit(index, self.box_at(index))

    def count_touching(self, box: Box) -> int:
        """Number of units that :meth:`touching` yields."""
        if any(a >= b for a, b in zip(box.start, box.stop, strict=True)):
            return 0
        return math.prod((b - 1) // u - a // u + 1 for a, b, u in zip(box.start, box.stop, self.chunk, strict=True))
