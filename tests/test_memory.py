import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rechunk_exec.errors import PlanError
from rechunk_exec.grid import ceil_div, clip, most_units
from rechunk_exec.memory import ALL_BESIDE, MemoryRows, ReadScratch, StageMemory, WriteScratch, beside
from tests import oracles

# along one axis: the array, the read unit, the chunk, chunks in a write unit, write units in a region
sizes_of_axis = st.tuples(*(st.integers(1, most) for most in (7, 8, 3, 3, 4)))
axes = st.lists(sizes_of_axis, max_size=3)
multiples = st.sampled_from([0, 1, 2])
ITEMSIZE = 70_001  # so that tasks hold from a few kB to a GB, and codecs' work counts in part and in full
some_bytes = st.sampled_from([0, 5, 100_000, 20_000_000])
readings = st.builds(
    ReadScratch, stored=multiples, decoded=multiples, in_place=st.booleans(), work=some_bytes, kept=some_bytes
)
writings = st.builds(
    WriteScratch,
    gathered=multiples,
    stored=multiples,
    in_place=st.booleans(),
    assembled=multiples,
    work=some_bytes,
    table=some_bytes,
)


def _memory(sizes: list[tuple[int, int, int, int, int]], reading: ReadScratch, writing: WriteScratch) -> StageMemory:
    return StageMemory(
        shape=tuple(n for n, *_ in sizes),
        itemsize=ITEMSIZE,
        read_unit=tuple(a for _, a, *_ in sizes),
        write_unit=tuple(c * k for _, _, c, k, _ in sizes),
        chunk=tuple(c for _, _, c, _, _ in sizes),
        reading=reading,
        writing=writing,
    )


def _region(sizes: list[tuple[int, int, int, int, int]]) -> tuple[int, ...]:
    return tuple(min(n, c * k * m) for n, _, c, k, m in sizes)


def _row(memory: StageMemory, region: tuple[int, ...]) -> MemoryRows:
    """The same for one row of the search."""
    columns = [
        [np.array([size]) for size in shape] for shape in (region, memory.read_unit, memory.write_unit, memory.chunk)
    ]
    return MemoryRows(
        shape=memory.shape,
        itemsize=memory.itemsize,
        region=columns[0],
        read_unit=columns[1],
        write_unit=columns[2],
        chunk=columns[3],
        reading=memory.reading,
        writing=memory.writing,
        restart=memory.restart,
    )


@settings(max_examples=100)
@given(axes, readings, writings, st.integers(1, 3))
@example([], ReadScratch(), WriteScratch(), 2)
def test_task_bytes_equal_the_model_by_counting(
    sizes: list[tuple[int, int, int, int, int]], reading: ReadScratch, writing: WriteScratch, threads: int
) -> None:
    memory, region = _memory(sizes, reading, writing), _region(sizes)
    held = memory.task_bytes(region, threads)
    counted = oracles.task_bytes(memory, region, threads)
    assert held >= counted
    if threads == 1:
        assert held == counted


@given(axes, readings, st.lists(st.integers(1, 9), min_size=3, max_size=3), st.integers(1, 9))
def test_units_that_restart_are_counted_at_least_as_often_as_the_chunks_they_are_of(
    sizes: list[tuple[int, int, int, int, int]], reading: ReadScratch, more: list[int], threads: int
) -> None:
    plain, region = _memory(sizes, reading, WriteScratch()), _region(sizes)
    restart = tuple(unit + add for unit, add in zip(plain.read_unit, more, strict=False))
    memory = replace(plain, restart=restart, reading=replace(reading, in_place=False))
    most = [
        oracles.restarted_touched(n, unit, size, chunk)[2]
        for n, unit, size, chunk in zip(memory.shape, memory.read_unit, region, restart, strict=True)
    ]
    units = min(threads, math.prod(most))
    each = math.prod(memory.read_unit) * ITEMSIZE * (reading.stored + reading.decoded)
    held = memory.task_bytes(region, threads)
    assert held >= math.prod(region) * ITEMSIZE + units * each + reading.kept
    assert _row(memory, region).task_bytes(threads).ravel().tolist() == [held]


@given(axes)
def test_beside_is_what_numpy_does_not_call_contiguous(sizes: list[tuple[int, int, int, int, int]]) -> None:
    memory, region = _memory(sizes, ReadScratch(), WriteScratch()), _region(sizes)
    for unit in (memory.read_unit, memory.chunk):
        found, counted = beside(unit, region, memory.shape), oracles.beside(unit, region, memory.shape)
        assert found == counted or (found == ALL_BESIDE and counted > 0)


@given(axes, readings, writings, st.integers(1, 3))
@example([], ReadScratch(), WriteScratch(), 2)
def test_rows_equal_the_exact_model(
    sizes: list[tuple[int, int, int, int, int]], reading: ReadScratch, writing: WriteScratch, threads: int
) -> None:
    memory, region = _memory(sizes, reading, writing), _region(sizes)
    assert _row(memory, region).task_bytes(threads).ravel().tolist() == [memory.task_bytes(region, threads)]


def test_frames_by_hand() -> None:
    memory = StageMemory(
        shape=(389, 6144, 9216), itemsize=4, read_unit=(1, 1024, 1024), write_unit=(389, 256, 256), chunk=(389, 64, 64)
    )
    region = (389, 1024, 1024)
    held = math.prod(region) * 4
    # a source chunk is a plane of the region, so it is decoded there: only its encoded bytes come on top
    assert memory.task_bytes(region, threads=2) == held + max(2 * 1024 * 1024 * 4, 2 * 389 * 64 * 64 * 4 * 3)
    # half a chunk wide, it is decoded beside the region first
    half = (389, 1024, 512)
    assert memory.task_bytes(half, threads=2) == math.prod(half) * 4 + max(
        2 * 4 * 1024 * 1024 * 2, 2 * 389 * 64 * 64 * 12
    )


def test_a_chunk_longer_than_its_axis_is_decoded_whole() -> None:
    memory = StageMemory(shape=(10, 4), itemsize=8, read_unit=(100, 4), write_unit=(10, 2), chunk=(10, 2))
    assert memory.task_bytes((10, 2), threads=1) == 10 * 2 * 8 + 2 * 100 * 4 * 8


def test_stores_that_take_whole_objects_hold_the_write_unit() -> None:
    memory = StageMemory(
        shape=(64, 64),
        itemsize=1,
        read_unit=(1, 64),
        write_unit=(32, 32),
        chunk=(8, 8),
        writing=WriteScratch(assembled=1),
    )
    assert memory.task_bytes((32, 64), threads=4) == 32 * 64 + 4 * 64 * 3 + 2 * 32 * 32


def test_fractions_of_a_unit_are_rounded_up() -> None:
    memory = StageMemory(
        shape=(3,),
        itemsize=1,
        read_unit=(3,),
        write_unit=(3,),
        chunk=(3,),
        reading=ReadScratch(stored=0.5, decoded=2.0),
    )
    assert memory.task_bytes((3,), threads=1) == 3 + 6
    assert clip((3,), (2,)) == (2,)


def test_what_codecs_work_in_counts_beside_what_is_not_small() -> None:
    def held(itemsize: int, threads: int = 1, **work: int) -> int:
        reading, writing = ReadScratch(work=work.get("read", 0)), WriteScratch(work=work.get("write", 0))
        sizes: dict[str, Any] = {"read_unit": (1,), "write_unit": (1,), "chunk": (1,)}
        memory = StageMemory(shape=(4,), itemsize=itemsize, reading=reading, writing=writing, **sizes)
        return memory.task_bytes((4,), threads)

    large, small = 2**25, 2**12
    assert held(large, write=999_999) == held(large) + 999_999
    assert held(large, 2, read=300_000) == held(large, 2) + 600_000, "for each unit in flight"
    assert held(large, read=7, write=5) == held(large) + 12, "a thread keeps what it worked in before"
    assert held(small, write=10**8) == held(small) + 4, "of a toy it is noise"
    assert held(2**20, write=10**8) == held(2**20) + 2**18


def test_negative_multiples_are_refused() -> None:
    with pytest.raises(PlanError, match="at least 0"):
        ReadScratch(stored=-1)
    with pytest.raises(PlanError, match="at least 0"):
        WriteScratch(assembled=float("nan"))


@settings(max_examples=200)
@given(axes, readings, writings, st.integers(1, 3))
def test_what_codecs_work_in_counts_or_is_named(
    sizes: list[tuple[int, int, int, int, int]], reading: ReadScratch, writing: WriteScratch, threads: int
) -> None:
    memory, region = _memory(sizes, reading, writing), _region(sizes)
    idle = replace(memory, reading=replace(reading, work=0), writing=replace(writing, work=0))
    units = min(threads, math.prod(map(most_units, memory.shape, memory.read_unit, region)))
    chunks = min(threads, math.prod(map(ceil_div, region, memory.chunk)))
    work = units * reading.work + chunks * writing.work
    counted = memory.task_bytes(region, threads) - idle.task_bytes(region, threads)
    assert counted + memory.uncounted_bytes(region, threads) == work
    assert memory.uncounted_bytes(region, threads) >= 0


def test_toys_leave_work_uncounted_and_large_tasks_none() -> None:
    toy = StageMemory(
        shape=(64, 64), itemsize=4, read_unit=(8, 64), write_unit=(64, 8), chunk=(64, 8),
        writing=WriteScratch(work=1_000_000),
    )  # fmt: skip
    large = replace(toy, shape=(8192, 8192), read_unit=(64, 8192), write_unit=(8192, 64), chunk=(8192, 64))
    assert 1_990_000 < toy.uncounted_bytes((64, 64), 2) < 2_000_000
    assert large.uncounted_bytes((8192, 8192), 2) == 0
    assert replace(toy, shape=(0, 64)).uncounted_bytes((0, 64), 2) == 0
