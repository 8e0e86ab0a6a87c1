"""Arrays drawn as boxes in oblique projection, as pieces of SVG. Layer: the ground of the planner, above its grids.

A box is seen from the front, above and the right: the last axis runs to the right, the one before it down, the one
before that away. Its first element is at the front, top left. An array of two axes is a rectangle, of one a strip.

Along an axis lengths are true to scale, but for boxes too thin to be seen. Axes among each other are not: their lengths
go by the cube root, or 389 epochs of 6898 x 9618 would be a sheet. All lengths on the paper are in pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rechunk_exec.grid import ceil_div, units_touched

MOST_AXES = 3
MOST_LINES = 24
"""Most grid lines on one axis."""
EAST, RISE = 0.62, 0.5
"""How far to the right and up an axis that runs away goes, for each pixel of its length."""

_THINNEST_AXIS = 0.12  # of the longest
_THINNEST_BOX = 4.0
_LEAST_GAP = 3.0  # between grid lines
_STRIP = 24.0  # height of an array of one axis

Point = tuple[float, float, float]
"""Pixels away, down and to the right."""


@dataclass(frozen=True, slots=True)
class Frame:
    """Where an array of up to three axes is drawn."""

    shape: tuple[int, int, int]
    """In elements; axes that the array has not are one element long."""
    lengths: Point

    @classmethod
    def of(cls, shape: tuple[int, ...], longest: float) -> Frame:
        """A frame for an array of ``shape``, whose longest axis takes ``longest`` pixels.

        >>> Frame.of((8, 1000), 100)
        Frame(shape=(1, 8, 1000), lengths=(0.0, 20.0, 100.0))
        """
        most = max(shape, default=1) or 1
        missing = [0.0, _STRIP, longest][: MOST_AXES - len(shape)]
        away, down, right = missing + [longest * max((n / most) ** (1 / 3), _THINNEST_AXIS) for n in shape]
        return cls(_triple(shape), (away, down, right))

    def box(self, sizes: tuple[int, ...]) -> Point:
        """Lengths of a box of so many elements."""
        away, down, right = (
            min(length, max(length * (size / n), _THINNEST_BOX)) if n else 0.0
            for size, n, length in zip(_triple(sizes), self.shape, self.lengths, strict=True)
        )
        return away, down, right

    def cuts(self, axis: int, unit: int, restart: int = 0) -> tuple[list[float], bool]:
        """Where an axis is cut into units, which restart as in :mod:`rechunk_exec.grid`, and whether that is all cuts.

        >>> Frame.of((10,), 100).cuts(2, 4)
        ([40.0, 80.0], True)
        """
        n, length = self.shape[axis], self.lengths[axis]
        units = units_touched(n, unit, n, restart)
        room = int((length if axis else length * RISE) / _LEAST_GAP)
        step = max(1, ceil_div(units, max(1, min(MOST_LINES, room))))
        restart, units_between = (restart, ceil_div(restart, unit)) if restart else (n, max(units, 1))
        starts = (divmod(number, units_between) for number in range(step, units, step))
        return [length * ((chunk * restart + part * unit) / n) for chunk, part in starts], step == 1


def _triple(sizes: tuple[int, ...]) -> tuple[int, int, int]:
    """Sizes of up to three axes, with a 1 for each that is missing."""
    away, down, right = (1,) * (MOST_AXES - len(sizes)) + sizes
    return away, down, right


def box_svg(name: str, lengths: Point, colour: str, opacity: float) -> str:
    """A box at the first element, with the faces that are seen."""
    away, down, right = lengths
    faces: dict[float, list[Point]] = {1: [(0, 0, 0), (0, 0, right), (0, down, right), (0, down, 0)]}
    if away:
        faces[0.6] = [(0, 0, 0), (away, 0, 0), (away, 0, right), (0, 0, right)]
        faces[1.5] = [(0, 0, right), (away, 0, right), (away, down, right), (0, down, right)]
    drawn = (f'<path fill-opacity="{opacity * shade:.2g}" d="{_path(face)}Z"/>' for shade, face in faces.items())
    return f'<g data-box="{name}" fill="{colour}" stroke="{colour}" stroke-linejoin="round">{"".join(drawn)}</g>'


def grid_svg(frame: Frame, unit: tuple[int, ...], restart: tuple[int, ...]) -> str:
    """Lines between units on all faces that are seen; dotted on an axis where not all of them are drawn."""
    drawn = []
    for axis, (a, r) in enumerate(zip(_triple(unit), _triple(restart), strict=True)):
        cuts, complete = frame.cuts(axis, a, r)
        dotted = "" if complete else ' stroke-dasharray="1 2"'
        if cuts:
            path = "".join(_path(_line(frame, axis, cut)) for cut in cuts)
            drawn.append(f'<path fill="none" stroke-width=".7" stroke-opacity=".4"{dotted} d="{path}"/>')
    return f'<g data-grid="" stroke="currentColor">{"".join(drawn)}</g>'


def _line(frame: Frame, axis: int, cut: float) -> list[Point]:
    """A cut through an axis, over the two faces on which it is seen."""
    away, down, right = frame.lengths
    if axis == 0:
        return [(cut, 0, 0), (cut, 0, right), (cut, down, right)]
    if axis == 1:
        return [(0, cut, 0), (0, cut, right), (away, cut, right)]
    return [(0, down, cut), (0, 0, cut), (away, 0, cut)]


def number(pixels: float) -> str:
    """Pixels to a tenth.

    >>> number(2.0), number(1 / 3)
    ('2', '0.3')
    """
    return f"{pixels:.1f}".removesuffix(".0")


def _path(points: Sequence[Point]) -> str:
    placed = ((right + EAST * away, down - RISE * away) for away, down, right in points)
    return "M" + "L".join(f"{number(x)} {number(y)}" for x, y in placed)
