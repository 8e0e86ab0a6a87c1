"""The parts of a probe: phases, samples spread over an array, and the page cache."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rechunk_exec.measuring.moving import Phase, fill_from, repeat_first, spread
from rechunk_exec.storage import Region
from rechunk_exec.storage.pagecache import cached_share, forget_cached


def test_a_rate_leaves_out_what_operations_took() -> None:
    phase = Phase(nbytes=1000, seconds=10.0, operations=20)
    assert phase.rate(0.0) == 100
    assert phase.rate(0.25) == 200
    assert phase.most_each_s == 0.4
    assert phase.rate(0.4) == pytest.approx(500) == phase.rate(5.0)


def test_quick_places_weigh_no_more_than_slow_ones() -> None:
    phase = Phase()
    phase.add(1000, 10.0)
    phase.add(4000, 10.0)
    phase.add(0, 1.0)
    assert phase.nbytes == 5000
    assert phase.rate(0.0) == pytest.approx(1 / ((0.01 + 0.0025) / 2))


@given(st.integers(0, 300), st.integers(1, 40))
def test_samples_are_each_once_and_spread(count: int, few: int) -> None:
    numbers = list(spread(count))
    assert sorted(numbers) == list(range(count))
    first = sorted(numbers[:few])
    if len(first) > 1 and count > 3 * few:
        gaps = np.diff([first[-1] - count, *first])
        assert gaps.max() <= 3 * count / len(first) + 1


@pytest.mark.parametrize("count", [4096, 4097, 5000, 10_000, 65_536])
def test_samples_of_many_are_each_once(count: int) -> None:
    assert sorted(spread(count)) == list(range(count))


def test_samples_of_very_many() -> None:
    numbers = [number for number, _ in zip(spread(10**12), range(50), strict=False)]
    assert len(set(numbers)) == 50
    assert all(0 <= number < 10**12 for number in numbers)
    assert min(numbers) < 10**11
    assert max(numbers) > 9 * 10**11


@pytest.mark.parametrize("shape", [(3, 5), (2, 2), (1, 1), (7, 11)])
def test_regions_are_filled_with_a_sample_again_and_again(shape: tuple[int, int]) -> None:
    sample = np.arange(6, dtype="i4").reshape(2, 3)
    region = Region((0, 0), shape, np.full(shape, -1, "i4"))
    fill_from(sample, region)
    assert region.elements.reshape(-1).tolist() == [number % 6 for number in range(shape[0] * shape[1])]


@pytest.mark.parametrize(
    "share, first", [(1.0, [0, 1, 2, 3, 4]), (0.5, [0, 1, 0, 1, 0]), (0.79, [0, 1, 2, 0, 1]), (0.1, [0, 1, 2, 3, 4])]
)
def test_planes_that_were_not_read_are_like_those_that_were(share: float, first: list[int]) -> None:
    region = Region((0, 0), (5, 2), np.arange(10).reshape(5, 2))
    repeat_first(share, region)
    assert region.elements.tolist() == [[2 * plane, 2 * plane + 1] for plane in first]
    repeat_first(share, Region((), (), np.array(7)))


def test_what_was_forgotten_is_not_in_memory_where_the_system_tells(tmp_path: Path) -> None:
    files = [tmp_path / f"{number}" for number in range(3)]
    for file in files:
        file.write_bytes(bytes(100_000))
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
    known = cached_share(files)
    assert known is None or 0 <= known <= 1
    for file in files:
        file.read_bytes()
    read = cached_share(files)
    assert read in {None, 1.0}
    forget_cached([*files, tmp_path / "absent"])
    after = cached_share(files)
    assert (after is None) == (read is None)
    if after is not None:
        assert after <= 1
    assert [file.read_bytes() for file in files] == [bytes(100_000)] * 3


def test_files_that_are_not_there_tell_nothing(tmp_path: Path) -> None:
    assert cached_share([tmp_path / "absent"]) is None
    assert cached_share([]) is None
    (tmp_path / "empty").touch()
    assert cached_share([tmp_path / "empty"]) is None
