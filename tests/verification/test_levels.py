"""From coarse to fine, in pieces, on any executor: always the same boxes, and nothing read twice without need."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.codecs import BloscCodec, ZstdCodec
from zarr.storage import MemoryStore

from rechunk_exec.digest import grid_digests
from rechunk_exec.errors import BudgetError, PlanError
from rechunk_exec.executors import ProcessesExecutor, ThreadsExecutor, WorkerShape
from rechunk_exec.storage import open_array
from rechunk_exec.tasks import ArrayRef, Stage
from rechunk_exec.verification import VerifyOptions, VerifyReport, verify_arrays
from rechunk_exec.verification.pieces import plan_reading
from tests.storage.arrays import Place, Shape, make
from tests.values import Array, position_values

SHAPE = (6, 40, 50)
VALUES = position_values(SHAPE, "f4")
UNIT = (6, 4, 7)
BLOSC = BloscCodec(cname="zstd", clevel=5, shuffle="shuffle", typesize=4, blocksize=1024)


def pair(
    place: Place, changed: Sequence[Shape] = (), values: Array = VALUES, **options: Any
) -> tuple[ArrayRef, ArrayRef]:
    """A source in whole epochs and a target in whole series, with some elements changed in the target."""
    other = values.copy()
    for index in changed:
        other.view("u4")[index] ^= np.uint32(1)
    source = make(place, SHAPE, (1, 40, 50), "f4", path="source", values=values, **options)
    return source, make(place, SHAPE, UNIT, "f4", path="target", values=other)


def unit_of(index: Shape) -> tuple[Shape, Shape]:
    start = tuple(at // size * size for at, size in zip(index, UNIT, strict=True))
    return start, tuple(min(low + size, n) for low, size, n in zip(start, UNIT, SHAPE, strict=True))


def boxes_of(report: VerifyReport) -> list[tuple[Shape, Shape]]:
    return [(box.start, box.stop) for box in report.differing]


@pytest.mark.parametrize("most", [1, 10, 79, 80])
def test_differences_are_found_in_their_write_units_however_coarse_the_first_pass(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rechunk_exec.verification.compare._MOST_BOXES", most)
    for changed in ([], [(0, 0, 0), (5, 39, 49)], [(0, 13, 7), (3, 13, 6), (2, 14, 6), (1, 36, 48)]):
        report = verify_arrays(*pair(MemoryStore(), changed))
        assert boxes_of(report) == sorted({unit_of(index) for index in changed})
        assert report.boxes == 80
        once = 2 * VALUES.nbytes
        if not changed or most >= 80:
            assert report.bytes_read == once
        else:
            assert once < report.bytes_read <= 2 * once


def test_only_coarse_boxes_that_differ_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rechunk_exec.verification.compare._MOST_BOXES", 10)
    source = make(MemoryStore(), SHAPE, (6, 8, 14), "f4", values=VALUES)
    other = VALUES.copy()
    other[0, 0, 0] += 1
    target = make(MemoryStore(), SHAPE, UNIT, "f4", values=other)
    report = verify_arrays(source, target)
    assert boxes_of(report) == [((0, 0, 0), UNIT)]
    # The coarse boxes are of (6, 16, 28) elements, which are whole chunks on both sides.
    assert report.bytes_read == 2 * VALUES.nbytes + 2 * 6 * 16 * 28 * 4


@given(
    st.lists(st.tuples(*(st.integers(0, n - 1) for n in SHAPE)), max_size=5),
    st.sampled_from([1, 7, 20, 10**6]),
    st.sampled_from([None, 30_000, 60_000]),
)
@settings(max_examples=15, deadline=None)
def test_any_changes_are_found_at_any_level_and_budget(changed: list[Shape], most: int, max_mem: int | None) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rechunk_exec.verification.compare._MOST_BOXES", most)
        changed = list(set(changed))
        report = verify_arrays(*pair(MemoryStore(), changed), VerifyOptions(max_mem=max_mem))
    assert boxes_of(report) == sorted({unit_of(index) for index in changed})


def run_by_loop(stages: Sequence[Stage]) -> None:
    raise AssertionError("a function is not asked to compare")


@pytest.mark.parametrize(
    "make_executor", [lambda: "serial", lambda: "threads", lambda: run_by_loop], ids=["serial", "threads", "function"]
)
def test_executors_here(make_executor: Callable[[], Any]) -> None:
    source, target = pair(MemoryStore(), [(2, 20, 20)])
    executor = make_executor()
    report = verify_arrays(source, target, VerifyOptions(executor=executor))
    assert boxes_of(report) == [unit_of((2, 20, 20))]
    assert report.executor == (executor if isinstance(executor, str) else "threads")


def test_worker_processes_and_foreign_pools(tmp_path: Path) -> None:
    source, target = pair(tmp_path, [(2, 20, 20)])
    (tmp_path / "target/c/0/0/0").write_bytes(b"torn")
    with ProcessesExecutor(1) as pool:
        report = verify_arrays(source, target, VerifyOptions(executor=pool))
    assert report.executor == "processes"
    assert boxes_of(report) == [unit_of((0, 0, 0)), unit_of((2, 20, 20))]
    assert [bool(box.reason) for box in report.differing] == [True, False]
    with ThreadPoolExecutor(2) as threads:
        assert verify_arrays(source, target, VerifyOptions(executor=threads)).differing == report.differing


def test_live_stores_are_compared_here_and_the_report_says_so() -> None:
    report = verify_arrays(*pair(MemoryStore(), [(2, 20, 20)]), VerifyOptions(executor="processes"))
    assert report.executor == "threads"
    assert boxes_of(report) == [unit_of((2, 20, 20))]


@pytest.mark.parametrize("compressors", [None, BLOSC, ZstdCodec()], ids=["raw", "blosc", "zstd"])
@pytest.mark.parametrize("size", [16, 64 << 20])
def test_large_chunks_are_read_in_bands_or_parts(
    size: int, compressors: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if chunks of this size were large, and rows of raw ones worth reading alone.
    monkeypatch.setattr("rechunk_exec.verification.pieces._WHOLE_BYTES", size)
    monkeypatch.setattr("rechunk_exec.verification.pieces._BAND_BYTES", 1600)
    monkeypatch.setattr("rechunk_exec.storage.bands._RAW_UNIT_BYTES", 400)
    changed = [(0, 0, 0), (4, 31, 49)]
    values = (np.arange(VALUES.size, dtype="f4") // 16).reshape(SHAPE)  # of which Blosc makes several blocks
    source, target = pair(tmp_path, changed, values, compressors=compressors)
    stored = open_array(source, read_only=True)
    reading = plan_reading([(source, stored)], at_once=1)
    if compressors is None or not isinstance(compressors, ZstdCodec):
        assert (reading.arrays[0].read_unit is not None) == (size == 16)
    report = verify_arrays(source, target)
    assert boxes_of(report) == [unit_of(index) for index in changed]
    (tmp_path / "source/c/3/0/0").write_bytes(b"")
    with pytest.raises(Exception, match="c/3/0/0"):
        verify_arrays(source, target)


@pytest.mark.parametrize(
    "shape, compressors",
    [(SHAPE, BLOSC), *(((5, 39, 47), compressors) for compressors in (None, BLOSC, ZstdCodec()))],
    ids=str,
)
def test_the_least_memory_is_named_and_does(shape: Shape, compressors: Any, tmp_path: Path) -> None:
    values = position_values(shape, "f4")
    source = make(tmp_path, shape, (1, 40, 50), "f4", path="source", values=values, compressors=compressors)
    target = make(tmp_path, shape, UNIT, "f4", path="target", values=values)
    with pytest.raises(BudgetError) as caught:
        verify_arrays(source, target, VerifyOptions(max_mem=100))
    least = caught.value.needed_bytes
    assert verify_arrays(source, target, VerifyOptions(max_mem=least)).ok
    with pytest.raises(BudgetError, match=f"max_mem of at least {least} bytes"):
        verify_arrays(source, target, VerifyOptions(max_mem=least - 1))
    # Never more than what any copy of it holds: a chunk as stored, a chunk decoded, and a part.
    assert least <= 3 * 40 * 50 * 4


@pytest.mark.parametrize("max_mem", [30_000, 100_000, 10**6, None])
def test_what_is_planned_fits(max_mem: int | None, tmp_path: Path) -> None:
    arrays = [(ref, open_array(ref, read_only=True)) for ref in pair(tmp_path)]
    reading = plan_reading(arrays, at_once=4, max_mem=max_mem)
    assert max_mem is None or reading.held_bytes <= max_mem
    assert reading.at_once == (4 if max_mem is None or max_mem >= 100_000 else 1)
    assert [pieces.forgiving for pieces in reading.arrays] == [False, True]
    for (_, stored), pieces in zip(arrays, reading.arrays, strict=True):
        covered = np.zeros(SHAPE, np.int8)
        for number in range(len(pieces.grid)):
            box = pieces.grid.box(number)
            covered[box.slices] += 1
            chunks = {
                tuple(at // c for at, c in zip(end, stored.chunk, strict=True))
                for end in (box.start, tuple(high - 1 for high in box.stop))
            }
            assert len(chunks) == 1, "a piece lies in one chunk"
        assert (covered == 1).all()


class WideThreads(ThreadsExecutor):
    """Two calls at once on eight cores: four threads for each."""

    @property
    def worker_shape(self) -> WorkerShape:
        return WorkerShape(workers=1, tasks_per_worker=2, cores_per_worker=8, elastic=True)


@pytest.mark.parametrize("fits", [1, 3, 8])
def test_no_more_pieces_are_held_than_fit(fits: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = pair(tmp_path)
    arrays = [(ref, open_array(ref, read_only=True)) for ref in (source, target)]
    held = plan_reading(arrays, at_once=1).held_bytes
    running: set[int] = set()
    most = []

    def watched(*arguments: Any) -> Any:
        running.add(threading.get_ident())
        most.append(len(running))
        time.sleep(0.002)
        try:
            return grid_digests(*arguments)
        finally:
            running.discard(threading.get_ident())

    monkeypatch.setattr("rechunk_exec.verification.sums.grid_digests", watched)
    monkeypatch.setattr("rechunk_exec.verification.sums._WORK_BYTES", 50_000)
    with WideThreads(2) as executor:
        assert verify_arrays(source, target, VerifyOptions(executor=executor, max_mem=held * (fits + 1) - 1)).ok
    assert len(most) >= 6
    assert max(most) <= fits


def test_a_sample_reads_a_share_and_finds_what_lies_in_it() -> None:
    source, target = pair(MemoryStore(), list(itertools.product([0], range(40), range(50))))
    everything = set(boxes_of(verify_arrays(source, target)))
    assert len(everything) == 80
    for sample, count in ((0.001, 1), (0.1, 8), (0.5, 40)):
        report = verify_arrays(source, target, VerifyOptions(sample=sample))
        assert (report.boxes, report.all_boxes, report.sampled) == (count, 80, True)
        assert len(report.differing) == count
        assert set(boxes_of(report)) <= everything
        assert boxes_of(report) == sorted(boxes_of(report))
        assert report == verify_arrays(source, target, VerifyOptions(sample=sample)), "the same ones each time"
        assert f"{count} of 80 boxes, a sample," in str(report)
    full = verify_arrays(source, target, VerifyOptions(sample=1))
    assert (full.boxes, full.all_boxes, full.sampled) == (80, None, False)


def test_a_sample_sees_nothing_outside_of_it() -> None:
    source, target = pair(MemoryStore())
    looked_at = set(boxes_of(verify_arrays(*pair(MemoryStore(), list(np.ndindex(SHAPE))), VerifyOptions(sample=0.2))))
    outside = next(index for index in np.ndindex(SHAPE) if unit_of(index) not in looked_at)
    inside = next(index for index in np.ndindex(SHAPE) if unit_of(index) in looked_at)
    report = verify_arrays(*pair(MemoryStore(), [outside, inside]), VerifyOptions(sample=0.2))
    assert boxes_of(report) == [unit_of(inside)]
    passed = verify_arrays(source, target, VerifyOptions(sample=0.2))
    assert str(passed) == "verified: 16 of 80 boxes, a sample, are the same to the bit"


def test_a_sample_does_not_read_all_of_the_target(tmp_path: Path) -> None:
    source, target = pair(tmp_path)
    kept = verify_arrays(*pair(MemoryStore(), list(np.ndindex(SHAPE))), VerifyOptions(sample=0.1)).differing
    names = {f"{box.start[0] // 6}/{box.start[1] // 4}/{box.start[2] // 7}" for box in kept}
    for path in (tmp_path / "target/c").rglob("*"):
        if path.is_file() and str(path.relative_to(tmp_path / "target/c")) not in names:
            path.write_bytes(b"torn")
    assert verify_arrays(source, target, VerifyOptions(sample=0.1)).ok
    assert len(verify_arrays(source, target).differing) == 72


@pytest.mark.parametrize("sample", [0, -0.1, 1.5, float("nan"), "0.1"])
def test_what_is_no_share_is_refused(sample: Any) -> None:
    with pytest.raises(PlanError, match="sample"):
        VerifyOptions(sample=sample)


@pytest.mark.parametrize(
    "damage, most",
    [
        *((damage, 1) for damage in ("truncated", "deleted", "flipped", "empty", "folder")),
        *((damage, 10**6) for damage in ("truncated", "flipped")),
    ],
)
def test_each_damaged_shard_is_found_alone(
    damage: str, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rechunk_exec.verification.compare._MOST_BOXES", most)
    values: Array = position_values((10, 12), "f4")
    source = make(tmp_path, (10, 12), (1, 12), "f4", path="source", values=values)
    target = make(tmp_path, (10, 12), (2, 3), "f4", path="target", values=values, shards=(4, 6))
    shards = sorted(path for path in (tmp_path / "target/c").rglob("*") if path.is_file())
    assert len(shards) == 6
    for shard in shards:
        whole = shard.read_bytes()
        if damage == "truncated":
            shard.write_bytes(whole[: len(whole) // 2])
        elif damage == "flipped":
            flipped = bytearray(whole)
            flipped[5] ^= 0x10
            shard.write_bytes(flipped)
        elif damage == "empty":
            shard.write_bytes(b"")
        else:
            shard.unlink()
            if damage == "folder":
                shard.mkdir()
        i, j = int(shard.parent.name), int(shard.name)
        report = verify_arrays(source, target)
        assert boxes_of(report) == [((4 * i, 6 * j), (min(4 * i + 4, 10), 6 * j + 6))]
        if damage in ("truncated", "empty", "folder"):
            assert f"c/{i}/{j}" in report.differing[0].reason
        elif damage == "deleted":
            assert report.differing[0].reason == ""
        if damage == "folder":
            shard.rmdir()
        shard.write_bytes(whole)
    assert verify_arrays(source, target).ok


def test_a_job_that_has_not_ended_is_never_ok() -> None:
    report = verify_arrays(*pair(MemoryStore()), VerifyOptions(unfinished="3 of 8 tasks are done"))
    assert not report.ok
    assert report.differing == ()
    assert str(report) == "unfinished: 3 of 8 tasks are done; so far, 80 boxes are the same to the bit"
