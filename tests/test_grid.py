import itertools
import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rechunk_exec.errors import PlanError
from rechunk_exec.grid import (
    Box,
    Grid,
    axis_sums,
    ceil_div,
    clip,
    elements_touched,
    most_units,
    units_touched,
)
from tests import oracles

lengths = st.integers(0, 60)
sizes = st.integers(1, 70)


@given(lengths, sizes, sizes)
@example(0, 1, 1)
@example(1, 5, 5)
@example(13, 7, 3)
@example(12, 4, 4)
@example(12, 40, 5)
def test_sums_of_an_axis_equal_element_by_element_counts(n: int, unit: int, region: int) -> None:
    assert units_touched(n, unit, region) == oracles.units_touched(n, unit, region)
    assert elements_touched(n, unit, region) == oracles.elements_touched(n, unit, region)


@given(lengths, sizes, sizes)
def test_most_units_is_a_bound_and_exact_where_all_offsets_occur(n: int, unit: int, region: int) -> None:
    bound, most = most_units(n, unit, region), oracles.most_units(n, unit, region)
    assert bound >= most
    whole_regions = n // region
    if region >= n or region % unit == 0 or whole_regions >= unit // math.gcd(unit, region):
        assert bound == most


@given(st.integers(1, 60), st.lists(st.tuples(sizes, sizes), min_size=1))
def test_sums_for_arrays_equal_those_for_integers(n: int, pairs: list[tuple[int, int]]) -> None:
    units, regions = (np.array(column, dtype=np.int64) for column in zip(*pairs, strict=True))
    sums = axis_sums(n, units, regions)
    assert sums.units.tolist() == [units_touched(n, u, g) for u, g in pairs]
    assert sums.elements.tolist() == [elements_touched(n, u, g) for u, g in pairs]
    assert sums.tasks.tolist() == [ceil_div(n, g) for _, g in pairs]


@settings(max_examples=300)
@given(st.integers(0, 90), st.integers(1, 12), sizes, st.integers(1, 40))
@example(90, 4, 8, 22)
@example(23, 10, 3, 11)
def test_sums_of_units_that_restart_are_bounds_by_a_unit_a_boundary(n: int, unit: int, region: int, more: int) -> None:
    restart = unit + more
    units, elements, most = oracles.restarted_touched(n, unit, region, restart)
    boundaries = max(0, ceil_div(n, region) - 1)
    assert units <= units_touched(n, unit, region, restart) <= units + boundaries
    assert elements <= elements_touched(n, unit, region, restart) <= elements + unit * boundaries
    chunks = oracles.most_units(n, restart, region)
    assert max(most, chunks) <= most_units(n, unit, region, restart) <= most + 1 + chunks
    if n:
        sums = axis_sums(n, unit, np.array([region]), restart)
        assert (sums.units[0], sums.elements[0]) == (
            units_touched(n, unit, region, restart),
            elements_touched(n, unit, region, restart),
        )
        assert sums.tasks.tolist() == [boundaries + 1]


def test_sums_of_a_huge_axis_take_no_time_and_do_not_wrap() -> None:
    n = 10**15
    assert units_touched(n, n, 1) == n
    assert elements_touched(n, n, 1) == n * n
    sums = axis_sums(n, n, np.array([1, 1000], dtype=np.int64))
    assert sums.elements[0] == float(n * n)


shapes = st.lists(st.tuples(st.integers(0, 7), st.integers(1, 9)), max_size=3)


@given(shapes)
@example([])
@example([(0, 1), (4, 3)])
def test_boxes_of_a_grid_tile_the_array(axes: list[tuple[int, int]]) -> None:
    shape, chunk = tuple(n for n, _ in axes), tuple(u for _, u in axes)
    grid = Grid(shape, chunk)
    filled = np.zeros(shape, dtype=np.int64)
    for number in range(len(grid)):
        box = grid.box(number)
        assert box == grid.box_at(grid.index(number))
        filled[box.slices] += 1
        assert box.size == math.prod(box.shape) > 0
    assert (filled == 1).all()
    indices = list(itertools.product(*map(range, grid.grid_shape)))
    assert [grid.index(number) for number in range(len(grid))] == indices, "not in C order"


@given(shapes, st.data())
def test_units_touching_a_box_are_those_that_share_an_element(axes: list[tuple[int, int]], data: st.DataObject) -> None:
    shape, chunk = tuple(n for n, _ in axes), tuple(u for _, u in axes)
    start = tuple(data.draw(st.integers(0, n)) for n in shape)
    stop = tuple(data.draw(st.integers(a, n)) for a, n in zip(start, shape, strict=True))
    grid, box = Grid(shape, chunk), Box(start, stop)
    expected = [number for number in range(len(grid)) if grid.box(number).intersect(box) is not None]
    found = list(grid.touching(box))
    assert [unit.index for unit in found] == [grid.index(number) for number in expected]
    assert [unit.box for unit in found] == [grid.box(number) for number in expected]
    assert grid.count_touching(box) == len(expected)


@given(shapes, st.data())
def test_elements_of_units_are_those_of_their_boxes(axes: list[tuple[int, int]], data: st.DataObject) -> None:
    grid = Grid(tuple(n for n, _ in axes), tuple(unit for _, unit in axes))
    numbers = data.draw(st.lists(st.integers(0, len(grid) - 1), max_size=9)) if len(grid) else []
    assert grid.elements_of(numbers) == sum(math.prod(grid.box(number).shape) for number in numbers)


def test_touching_is_lazy() -> None:
    units = Grid((10**12, 100), (1, 1)).touching(Box((5, 7), (10**12, 100)))
    assert next(units).index == (5, 7)


def test_a_0d_grid_has_one_unit_that_every_box_touches() -> None:
    grid = Grid((), ())
    assert len(grid) == 1
    assert grid.box(0) == Box((), ())
    assert [unit.index for unit in grid.touching(Box((), ()))] == [()]
    assert Box((), ()).size == 1


@pytest.mark.parametrize("number", [-1, 4])
def test_units_beyond_the_grid_are_refused(number: int) -> None:
    with pytest.raises(IndexError, match=str(number)):
        Grid((7,), (2,)).box(number)


def test_box_arithmetic() -> None:
    box = Box((2, 3), (6, 9))
    assert box.shape == (4, 6)
    assert box.contains(Box((2, 4), (6, 9)))
    assert not box.contains(Box((2, 4), (7, 9)))
    assert not box.contains(Box((1, 4), (6, 9)))
    assert box.intersect(Box((6, 3), (8, 9))) is None
    assert box.intersect(Box((0, 5), (3, 20))) == Box((2, 5), (3, 9))
    assert box.relative_to((2, 1)) == Box((0, 2), (4, 8))
    assert clip((4, 50), (10, 20)) == (4, 20)


def test_mismatched_sizes_are_refused() -> None:
    with pytest.raises(PlanError, match="one size per axis"):
        Grid((4, 4), (2,))
    with pytest.raises(PlanError, match="at least one element"):
        Grid((4,), (0,))
    with pytest.raises(PlanError, match="as many starts as stops"):
        Box((1,), (2, 3))
