from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest

from rechunk_exec.waves import idle_factor


def factor(shape: tuple[int, ...], region: tuple[int, ...], slots: int) -> float:
    return float(idle_factor(shape, [np.array(length) for length in region], slots))


def task_sizes(shape: tuple[int, ...], region: tuple[int, ...]) -> list[int]:
    """Elements of every task, largest first."""
    axes = [[min(g, n - start) for start in range(0, n, g)] for n, g in zip(shape, region, strict=True)]
    return sorted((math.prod(task) for task in itertools.product(*axes)), reverse=True)


def seconds(sizes: list[int], slots: int) -> int:
    """How long tasks take, a second an element, if the next one goes to the slot that is free first."""
    ends = [0] * slots
    for size in sizes:
        ends[ends.index(min(ends))] += size
    return max(ends)


@pytest.mark.parametrize(
    "slots, tasks, waves", [(1, 5, 5), (4, 5, 2), (4, 8, 2), (4, 1, 1), (3, 7, 3), (2, 7, 4), (16, 16, 1)]
)
def test_equal_tasks_run_in_waves(slots: int, tasks: int, waves: int) -> None:
    assert factor((tasks * 3, 5), (3, 5), slots) == pytest.approx(waves * slots / tasks, rel=1e-12)
    assert factor((5, tasks * 3), (5, 3), slots) == pytest.approx(waves * slots / tasks, rel=1e-12)


def test_tasks_at_the_edge_are_as_large_as_they_are() -> None:
    # three bands and a sliver on four slots: as long as one band
    assert factor((3001, 7), (1000, 7), 4) == pytest.approx(4 * 1000 / 3001, rel=1e-12)
    # nine bands, the last nearly whole: three waves
    assert factor((89, 7), (10, 7), 4) == pytest.approx(3 * 9 * 4 / 89, rel=1e-12)


def test_it_is_a_bound_that_is_nearly_reached() -> None:
    chance = random.Random(5)
    ratios = []
    for _ in range(400):
        shape = tuple(chance.randint(1, 40) for _ in range(chance.randint(0, 3)))
        region = tuple(chance.randint(1, n) for n in shape)
        slots = chance.randint(1, 9)
        sizes = task_sizes(shape, region)
        made = seconds(sizes, slots) * slots / sum(sizes)
        bound = factor(shape, region, slots)
        assert 1.0 <= bound <= made * (1 + 1e-12)
        ratios.append(made / bound)
    assert np.mean(np.array(ratios) > 1.1) < 0.05
    assert max(ratios) < 4 / 3 + 1e-9


def test_rows_are_weighed_as_single_plans_are() -> None:
    shape = (97, 301, 203)
    regions = [(97, 100, 203), (97, 80, 50), (10, 301, 203), (1, 1, 1), (97, 301, 203)]
    rows = idle_factor(shape, [np.array(lengths) for lengths in zip(*regions, strict=True)], 8)
    assert rows.tolist() == [factor(shape, region, 8) for region in regions]


def test_nothing_to_do_leaves_nobody_idle() -> None:
    assert factor((0, 5), (0, 5), 4) == 1.0
    assert factor((), (), 4) == 4.0
