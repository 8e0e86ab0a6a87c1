from __future__ import annotations

import re
from itertools import pairwise
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rechunk_exec.oblique import EAST, MOST_LINES, RISE, Frame, box_svg, grid_svg

LENGTHS = st.integers(1, 12) | st.integers(1, 10**15)
SHAPES = st.lists(LENGTHS, max_size=3).map(tuple)


@given(st.data(), SHAPES)
def test_grid_lines_are_bounded_apart_and_inside_the_array(data: st.DataObject, shape: tuple[int, ...]) -> None:
    frame = Frame.of(shape, 150)
    for axis, n in enumerate(shape, 3 - len(shape)):
        unit = data.draw(st.integers(1, n))
        cuts, complete = frame.cuts(axis, unit)
        assert len(cuts) <= MOST_LINES
        assert complete == (len(cuts) == -(-n // unit) - 1)
        edges = [0, *cuts, frame.lengths[axis]]
        assert edges == sorted(edges)
        seen = 1 if axis else RISE
        assert complete or min(seen * (b - a) for a, b in pairwise([0, *cuts])) > 2.999


@given(st.data(), st.integers(1, 30), st.integers(1, 30))
def test_every_cut_is_drawn_where_a_unit_ends(data: st.DataObject, n: int, unit: int) -> None:
    restart = data.draw(st.just(0) | st.integers(min(unit, n), n))
    unit_of = [((i // restart, i % restart // unit) if restart else (0, i // unit)) for i in range(n)]
    ends = [100 * i / n for i in range(1, n) if unit_of[i] != unit_of[i - 1]]
    cuts, complete = Frame.of((n,), 100).cuts(2, min(unit, n), restart)
    assert cuts == pytest.approx(ends) if complete else set(map(round, cuts)) <= set(map(round, ends))
    assert complete == (len(ends) < MOST_LINES)


@given(st.data(), SHAPES)
def test_a_box_is_to_scale_along_each_axis_or_just_visible(data: st.DataObject, shape: tuple[int, ...]) -> None:
    frame = Frame.of(shape, 150)
    sizes = tuple(data.draw(st.integers(1, n)) for n in shape)
    whole, box = frame.lengths[3 - len(shape) :], frame.box(sizes)[3 - len(shape) :]
    for length, drawn, size, n in zip(whole, box, sizes, shape, strict=True):
        assert drawn == pytest.approx(length * size / n) or 0 < length * size / n < drawn == 4


@given(st.data(), SHAPES)
def test_boxes_and_lines_lie_within_the_outline(data: st.DataObject, shape: tuple[int, ...]) -> None:
    frame = Frame.of(shape, 150)
    sizes = tuple(data.draw(st.integers(1, n)) for n in shape)
    away, down, right = frame.lengths
    drawn = box_svg("array", frame.lengths, "red", 1) + box_svg("unit", frame.box(sizes), "red", 1)
    drawn += grid_svg(frame, sizes, (0,) * len(shape))
    assert ET.fromstring(f"<g>{drawn}</g>")[0].attrib["data-box"] == "array"
    points = [(float(x), float(y)) for x, y in re.findall(r"[ML](\S+) ([^MLZ\"]+)", drawn)]
    assert len(points) >= 8
    slack = 0.2  # of rounding
    for x, y in points:
        assert -slack <= x <= right + EAST * away + slack
        assert -RISE * away - slack <= y <= down + slack
        assert y >= -x * RISE / EAST - slack, "above the edge that runs away, at the left"
        assert y <= down - (x - right) * RISE / EAST + slack, "below the edge that runs away, at the right"


def test_axes_of_very_different_lengths_are_all_to_be_seen() -> None:
    for shape in ((389, 6898, 9618), (1, 10**6), (10**6, 1), (1, 1, 10**12), (10**12, 1, 1)):
        lengths = Frame.of(shape, 150).lengths[3 - len(shape) :]
        assert max(lengths) == 150
        assert min(lengths) >= 18
        assert [b >= a for a, b in pairwise(lengths)] == [b >= a for a, b in pairwise(shape)]


def test_an_axis_without_all_its_lines_is_dotted() -> None:
    frame = Frame.of((100, 100), 150)
    assert "stroke-dasharray" not in grid_svg(frame, (50, 10), (0, 0))
    assert grid_svg(frame, (1, 10), (0, 0)).count("stroke-dasharray") == 1
