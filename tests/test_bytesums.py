from __future__ import annotations

import numpy as np
import pytest

from rechunk_exec.bytesums import ByteSums
from tests.values import Array, position_values


def slow_sums(rows: Array, weights: Array) -> list[list[int]]:
    """The sums by their definition, in Python's integers."""
    runs, n = weights.shape
    return [
        [
            sum(a * b for a, b in zip(run, of, strict=True)) % 2**64
            for run, of in zip(row, weights.tolist(), strict=True)
        ]
        for row in rows.reshape(len(rows), runs, n).tolist()
    ]


@pytest.mark.parametrize("rows", [1, 63, 64, 65, 200])
@pytest.mark.parametrize("runs, n", [(1, 1), (1, 64), (3, 5), (2, 256), (1, 257), (3, 300), (1, 1000)])
def test_the_sums_are_what_their_definition_says(runs: int, n: int, rows: int) -> None:
    weights = position_values((runs, n), "u8")
    values = position_values((rows, runs * n), "u1")
    assert ByteSums(weights, len(values)).of(values).tolist() == slow_sums(values, weights)


@pytest.mark.parametrize("n", [255, 256, 257, 259, 511, 512, 513, 2048])
def test_the_largest_bytes_and_weights_add_up_exactly(n: int) -> None:
    weights = np.full((2, n), 2**64 - 1, np.uint64)
    values = np.full((70, 2 * n), 255, np.uint8)
    assert ByteSums(weights, len(values)).of(values).tolist() == [[-255 * n % 2**64] * 2] * 70


def test_rows_are_added_up_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    weights, values = position_values((2, 100), "u8"), position_values((300, 200), "u1")
    for bytes_at_once in (1, 30_000, 1 << 20):
        monkeypatch.setattr("rechunk_exec.bytesums._BYTES_AT_ONCE", bytes_at_once)
        sums = ByteSums(weights, 300)
        assert sums.of(values).tolist() == slow_sums(values, weights)
        assert sums.of(values[:7]).tolist() == slow_sums(values[:7], weights), "what was there before does not count"


@pytest.mark.parametrize("expected", [0, 1, 64, 1000])
def test_more_or_fewer_rows_than_expected(expected: int) -> None:
    weights, values = position_values((2, 70), "u8"), position_values((150, 140), "u1")
    assert ByteSums(weights, expected).of(values).tolist() == slow_sums(values, weights)


def test_no_rows() -> None:
    assert ByteSums(np.ones((3, 4), np.uint64), 0).of(np.zeros((0, 12), np.uint8)).shape == (0, 3)
