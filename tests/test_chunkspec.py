import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rechunk_exec.chunkspec import AUTO_BYTES, exact_sizes, resolve_chunks, resolve_shards
from rechunk_exec.errors import PlanError

YX = ("y", "x")


def _chunks(spec: Any, *, names: Any = YX, **options: Any) -> tuple[int, ...]:
    return resolve_chunks(spec, shape=(20, 10), itemsize=4, current=(2, 5), names=names, **options)


@pytest.mark.parametrize(
    "spec, expected",
    [
        ((3, 4), (3, 4)),
        ([3, 4], (3, 4)),
        (None, (2, 5)),
        ((None, -1), (2, 10)),
        (-1, (20, 10)),
        (7, (7, 7)),
        (15, (15, 10)),
        ({"x": 5}, (2, 5)),
        ({"x": -1}, (2, 10)),
        ({"x": 99}, (2, 10)),
        ({0: 4}, (4, 5)),
        ({"y": None, 1: 3}, (2, 3)),
        ({}, (2, 5)),
        ((np.int64(3), np.uint8(4)), (3, 4)),
        ({np.int64(1): 4}, (2, 4)),
        ("auto", (20, 10)),
    ],
)
def test_forms(spec: Any, expected: tuple[int, ...]) -> None:
    sizes = _chunks(spec)
    assert sizes == expected
    assert all(type(size) is int for size in sizes)


@pytest.mark.parametrize(
    "spec, words",
    [
        ({"x": 0}, ["chunk of axis 'x'", "0", "-1 for the whole axis"]),
        ((3, -2), ["chunk of axis 'x'", "-2"]),
        ((3, True), ["True"]),
        ((3, np.True_), ["True"]),
        ((3, "4"), ["'4'"]),
        ((3, 4.0), ["4.0"]),
        ("whole", ["'whole'"]),
        ((3,), ["1", "2 axes"]),
        ((3, 4, 5), ["3", "2 axes"]),
        ({"z": 3}, ["'z'", "'y', 'x'", "0 to 1"]),
        ({2: 3}, ["2", "0 to 1"]),
        ({-1: 3}, ["-1", "0 to 1"]),
        ({True: 3}, ["True"]),
        ({"y": 3, 0: 4}, ["two for axis 'y'"]),
        ({"a": (5, 5)}, ["single array", "group", "'a'"]),
        ({"y": {"x": 5}}, ["single array", "group"]),
        ({"y": [5, 5]}, ["single array", "group"]),
    ],
)
def test_what_is_no_chunk_is_refused_with_the_place_and_the_value(spec: Any, words: list[str]) -> None:
    with pytest.raises(PlanError) as refused:
        _chunks(spec)
    assert [word for word in words if word not in str(refused.value)] == []


def test_axes_without_names_are_named_by_number() -> None:
    assert _chunks({1: 3}, names=None) == (2, 3)
    assert _chunks({"x": 3}, names=(None, "x")) == (2, 3)
    with pytest.raises(PlanError, match="the axes are numbered 0 to 1"):
        _chunks({"x": 3}, names=None)


@pytest.mark.parametrize("what", ["chunks", "shards"])
def test_a_name_of_several_axes_is_refused(what: str) -> None:
    # The last of them was taken.
    names = ("x", "y", "x")

    def resolve(spec: Any) -> Any:
        if what == "chunks":
            return resolve_chunks(spec, shape=(4, 6, 8), itemsize=4, current=(1, 2, 2), names=names)
        return resolve_shards(spec, shape=(4, 6, 8), chunk=(1, 2, 2), names=names)

    with pytest.raises(PlanError, match=rf"{what} name one axis each; got 'x', .* axes 0, 2; .* as in \{{0: -1\}}"):
        resolve({"x": -1})
    assert resolve({"y": -1, 2: 4}) == (1, 6, 4)
    assert resolve((4, 2, 4)) == (4, 2, 4)


def test_scalars_and_empty_axes() -> None:
    specs: list[Any] = [None, (), {}, -1, "auto"]
    for spec in specs:
        assert resolve_chunks(spec, shape=(), itemsize=8, current=()) == ()
    assert resolve_chunks((-1, 7), shape=(0, 5), itemsize=8, current=(1, 5)) == (1, 5)
    assert resolve_chunks("auto", shape=(0, 5), itemsize=8, current=(1, 5)) == (1, 5)
    assert resolve_chunks(None, shape=(3,), itemsize=8, current=(10,)) == (3,)


def test_auto_chunks_of_a_climate_series() -> None:
    spec: Any = {"time": -1, "lat": "auto", "lon": "auto"}
    options: Any = {
        "shape": (8760, 721, 1440),
        "itemsize": 4,
        "current": (1, 721, 1440),
        "names": ("time", "lat", "lon"),
    }
    chunk = resolve_chunks(spec, **options, target_bytes=16_000_000)
    assert chunk[0] == 8760
    assert 0.5 <= math.prod(chunk) * 4 / 16_000_000 <= 1.0
    assert resolve_chunks(spec, **options, target_bytes=16_000_000) == chunk
    assert 0.5 <= math.prod(resolve_chunks(spec, **options)) * 4 / AUTO_BYTES <= 1.0


@given(
    st.lists(st.tuples(st.integers(1, 5000), st.booleans()), min_size=1, max_size=4),
    st.integers(1, 10**7),
    st.sampled_from([1, 2, 4, 8]),
)
def test_auto_chunks_fill_at_least_half_of_their_goal(axes: list[tuple[int, bool]], goal: int, itemsize: int) -> None:
    shape = tuple(n for n, _ in axes)
    spec = tuple("auto" if auto else -1 for _, auto in axes)
    chunk = resolve_chunks(spec, shape=shape, itemsize=itemsize, current=shape, target_bytes=goal)
    fixed = math.prod(n for n, auto in axes if not auto) * itemsize
    nbytes = math.prod(chunk) * itemsize
    assert all(c == n for c, (n, auto) in zip(chunk, axes, strict=True) if not auto)
    assert all(1 <= c <= n for c, n in zip(chunk, shape, strict=True))
    if fixed <= goal:
        assert nbytes <= goal
        assert nbytes > goal / 4 or chunk == shape
    else:
        assert nbytes == fixed


def _shards(spec: Any, shape: tuple[int, ...], chunk: tuple[int, ...], names: Any = None) -> tuple[int, ...] | None:
    return resolve_shards(spec, shape=shape, chunk=chunk, names=names)


@pytest.mark.parametrize(
    "spec, shape, chunk, expected",
    [
        (None, (10,), (3,), None),
        ((6,), (10,), (3,), (6,)),
        (-1, (10,), (3,), (12,)),
        ((10,), (10,), (3,), (12,)),
        ((50,), (10,), (3,), (12,)),
        ({0: -1}, (10, 8), (3, 2), (12, 2)),
        ((None, 4), (10, 8), (3, 2), (3, 4)),
        ((), (), (), ()),
        ((4,), (0,), (1,), (1,)),
        ((-1,), (0,), (1,), (1,)),
        ((256,), (200,), (200,), (200,)),
    ],
)
def test_shards_hold_whole_chunks(spec: Any, shape: Any, chunk: Any, expected: Any) -> None:
    assert _shards(spec, shape, chunk) == expected


def test_a_shard_that_cuts_chunks_names_the_nearest_that_do_not() -> None:
    with pytest.raises(PlanError) as refused:
        _shards((4,), (10,), (3,))
    for word in ("(4,)", "(3,)", "3 or 6"):
        assert word in str(refused.value)
    assert "swapped" not in str(refused.value)
    with pytest.raises(PlanError, match="axis 'x': 4 or 6"):
        _shards({"x": 5}, (10, 20), (3, 2), YX)


def test_swapped_chunks_and_shards_are_recognised() -> None:
    with pytest.raises(PlanError, match="swapped") as refused:
        _shards((256,), (4096,), (1024,))
    assert "1024" in str(refused.value)
    assert "256" in str(refused.value)


@pytest.mark.parametrize("spec", ["auto", (0,), (2.5,), {"z": 4}, {0: (4,)}, (4, 4)])
def test_what_is_no_shard_is_refused(spec: Any) -> None:
    with pytest.raises(PlanError):
        _shards(spec, (10,), (2,))


@given(st.integers(0, 50), st.integers(1, 60), st.integers(1, 80))
def test_every_length_works_or_is_refused(n: int, chunk: int, shard: int) -> None:
    chunk = min(chunk, max(n, 1))
    try:
        resolved = _shards((shard,), (n,), (chunk,))
    except PlanError:
        assert shard % chunk
        return
    assert resolved is not None
    assert resolved[0] % chunk == 0
    assert resolved[0] - chunk < max(n, 1), "no chunk of a shard lies wholly beyond the array"


def test_stored_sizes_may_be_longer_than_the_axis() -> None:
    assert exact_sizes((100, -1), shape=(10, 4), name="source_chunks") == (100, 4)
    with pytest.raises(PlanError, match="source_chunks of axis 0"):
        exact_sizes((0,), shape=(10,), name="source_chunks")
    with pytest.raises(PlanError, match="1 axes"):
        exact_sizes((1, 2), shape=(10,), name="source_chunks")
