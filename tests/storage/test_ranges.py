from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from rechunk_exec.storage.ranges import join

RANGES = st.lists(st.tuples(st.integers(0, 500), st.integers(1, 60)), max_size=30)


@given(RANGES, st.integers(0, 50), st.integers(1, 300))
def test_every_range_is_in_one_of_those_fetched_and_no_gap_is_longer_than_said(
    ranges: list[tuple[int, int]], gap_bytes: int, most_bytes: int
) -> None:
    ranges = sorted(ranges)
    starts, stops = [a for a, _ in ranges], [a + n for a, n in ranges]
    found = list(join(starts, stops, gap_bytes=gap_bytes, most_bytes=most_bytes))
    assert [number for one in found for number in range(one.first, one.last)] == list(range(len(ranges)))
    for one in found:
        inside = ranges[one.first : one.last]
        assert one.start == inside[0][0]
        assert one.stop == max(a + n for a, n in inside)
        assert one.stop - one.start <= most_bytes or len(inside) == 1
        reached = inside[0][0]
        for a, n in inside:
            assert a - reached <= gap_bytes
            reached = max(reached, a + n)
    for before, after in itertools.pairwise(found):  # no two that could be one
        together = max(before.stop, stops[after.first]) - before.start
        assert starts[after.first] - before.stop > gap_bytes or together > most_bytes
