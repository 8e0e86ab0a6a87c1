from __future__ import annotations

import gc
import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.storage import MemoryStore

from rechunk_exec import run_task
from rechunk_exec.copy import Worker, finished_results, release_memory
from rechunk_exec.copy import worker as copy_worker
from rechunk_exec.copy.meter import MemoryMeter
from rechunk_exec.errors import SerializationError, StorageError
from rechunk_exec.grid import elements_touched
from rechunk_exec.results import TaskResult
from rechunk_exec.stageplan import StagePlan
from rechunk_exec.storage import UnitReader, open_reader
from rechunk_exec.storage.chunkcodec import ChunkCodec
from rechunk_exec.tasks import ArrayRef, CopyTask, Stage
from tests.storage.arrays import Place, Shape, make, object_names, read_by_zarr
from tests.values import position_values, same_bits


def clipped(unit: Shape, shape: Shape) -> Shape:
    return tuple(map(min, unit, shape))


def stage_of(
    source: ArrayRef,
    target: ArrayRef,
    shape: Shape,
    units: tuple[Shape, Shape, Shape],
    *,
    threads: int = 2,
    **fields: Any,
) -> Stage:
    """A stage between two arrays; ``units`` are the read unit, the write unit and the region."""
    read_unit, write_unit, region = (clipped(unit, shape) for unit in units)
    plan = StagePlan(
        shape=shape,
        itemsize=4,
        source="source",
        target="target",
        read_unit=read_unit,
        write_unit=write_unit,
        chunk=write_unit,
        region=region,
        threads=threads,
        tasks_per_worker=1,
        peak_bytes=1000,
        predicted_s=0.0,
    )
    return Stage(number=0, plan=plan, source=source, target=target, **{"job": "a job", **fields})


SHAPE = (9, 7)
VALUES = position_values(SHAPE, "f4")


def simple_stage(place: Place, *, shards: Shape | None = (4, 4), **fields: Any) -> Stage:
    source = make(place, SHAPE, (1, 7), "f4", path="source", values=VALUES)
    target = make(place, SHAPE, (2, 2), "f4", path="target", shards=shards)
    return stage_of(source, target, SHAPE, ((1, 7), shards or (2, 2), (8, 4)), **fields)


def in_thread(function: Callable[[], Any]) -> Any:
    """What ``function`` returns in a thread that is not the main one."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(function).result()


@pytest.mark.parametrize("main", [True, False], ids=["main thread", "other thread"])
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("shards", [None, (4, 4)])
def test_a_stage_copies_the_array(shards: Shape | None, threads: int, main: bool, tmp_path: Path) -> None:
    stage = simple_stage(tmp_path, shards=shards, threads=threads)
    worker = Worker()

    def run() -> list[TaskResult]:
        return [worker.run(task) for task in stage]

    results = run() if main else in_thread(run)
    assert same_bits(read_by_zarr(stage.target), VALUES)
    assert [(result.stage, result.index) for result in results] == [(0, number) for number in range(4)]
    assert [result.bytes_written for result in results] == [8 * 4 * 4, 8 * 3 * 4, 1 * 4 * 4, 1 * 3 * 4]
    assert sum(result.bytes_read for result in results) == 2 * VALUES.nbytes
    stored = {
        ref.path: sum((tmp_path / ref.path / name).stat().st_size for name in object_names(ref))
        for ref in (stage.source, stage.target)
    }
    assert sum(result.stored_bytes_read for result in results) == 2 * stored["source"]
    assert sum(result.stored_bytes_written for result in results) == stored["target"]
    for result in results:
        assert (result.reader, result.writer, result.predicted_bytes, result.attempts) == ("direct", "direct", 1000, 1)
        assert result.seconds > 0
        assert result.peak_bytes >= 0


axes = st.tuples(
    st.integers(1, 9), st.integers(1, 5), st.integers(1, 4), st.integers(1, 3), st.integers(1, 3)
)  # elements, source's chunk, target's chunk, chunks in a write unit, write units in a region


@given(st.lists(axes, max_size=3), st.booleans(), st.sampled_from([(2, 2), (2, 3), (3, 2), (3, 3)]), st.integers(1, 3))
@settings(max_examples=40)
def test_any_layout_is_copied_and_counted(
    axes: list[tuple[int, int, int, int, int]], sharded: bool, formats: tuple[int, int], threads: int
) -> None:
    shape = tuple(axis[0] for axis in axes)
    source_chunk, chunk = tuple(axis[1] for axis in axes), tuple(axis[2] for axis in axes)
    sharded = sharded and bool(shape) and formats[1] == 3
    unit = tuple(size * axis[3] for size, axis in zip(chunk, axes, strict=True)) if sharded else chunk
    region = tuple(min(n, size * axis[4]) for n, size, axis in zip(shape, unit, axes, strict=True))
    values = position_values(shape, "f4")
    store = MemoryStore()
    source = make(store, shape, source_chunk, "f4", path="a", values=values, zarr_format=formats[0])
    target = make(store, shape, chunk, "f4", path="b", shards=unit if sharded else None, zarr_format=formats[1])
    units = (clipped(source_chunk, shape), clipped(unit, shape), region)
    stage = stage_of(source, target, shape, units, threads=threads)
    worker = Worker()
    results = [worker.run(task) for task in stage]
    assert same_bits(read_by_zarr(target), values)
    touched = prod(elements_touched(n, a, g) for n, a, g in zip(shape, units[0], region, strict=True))
    assert sum(result.bytes_read for result in results) == touched * 4 == stage.plan.elements_read * 4
    assert sum(result.bytes_written for result in results) == values.nbytes


def test_0d_arrays_are_one_task_and_empty_ones_none() -> None:
    store = MemoryStore()
    source = make(store, (), (), "f4", path="a", values=np.array(1.5, "f4"))
    target = make(store, (), (), "f4", path="b")
    stage = stage_of(source, target, (), ((), (), ()))
    assert [Worker().run(task).bytes_read for task in stage] == [4]
    assert read_by_zarr(target)[()] == 1.5
    empty = stage_of(source, target, (0, 3), ((0, 3), (0, 3), (0, 3)))
    assert list(empty) == []


def test_texts_are_copied(tmp_path: Path) -> None:
    dtype = np.dtypes.StringDType()
    values = position_values(SHAPE, dtype)
    source = make(tmp_path / "a", SHAPE, (1, 7), dtype, values=values, zarr_format=2)
    target = make(tmp_path / "b", SHAPE, (2, 2), dtype, shards=(4, 4))
    stage = stage_of(source, target, SHAPE, ((1, 7), (4, 4), (8, 4)))
    results = [Worker().run(task) for task in stage]
    assert same_bits(read_by_zarr(target), values)
    assert {(result.reader, result.writer) for result in results} == {("zarr", "zarr")}


def test_the_public_function_runs_a_task_in_any_thread(tmp_path: Path) -> None:
    stage = simple_stage(tmp_path)
    first = run_task(stage[0])
    rest = [in_thread(partial(run_task, task)) for task in stage[1:]]
    assert [result.index for result in (first, *rest)] == [0, 1, 2, 3]
    release_memory()
    run_task(stage[0])
    assert same_bits(read_by_zarr(stage.target), VALUES)


def test_arrays_are_opened_once_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[ArrayRef] = []

    def counting(ref: ArrayRef, *options: Any) -> UnitReader:
        opened.append(ref)
        return open_reader(ref, *options)

    monkeypatch.setattr("rechunk_exec.copy.worker.open_reader", counting)
    stage = simple_stage(tmp_path)
    worker = Worker()
    for task in stage:
        worker.run(task)
    assert len(opened) == 1
    worker.run(replace(stage, job="another")[0])
    assert len(opened) == 2
    worker.release()
    worker.run(stage[0])
    assert len(opened) == 3
    for number in range(20):
        worker.run(replace(stage, job=f"job {number}")[0])
    assert len(worker._pairs) <= 8


@pytest.mark.parametrize("job", ["", "new"])
def test_an_array_made_anew_under_the_same_name_is_another_array(job: str, tmp_path: Path) -> None:
    # Tasks without a job's name met the array that was opened for those before, with its chunks and codecs.
    worker = Worker()
    for chunk, seed in (((2, 2), 0), ((3, 5), 1)):
        values = position_values(SHAPE, "f4", seed)
        source = make(tmp_path, SHAPE, (1, 7), "f4", path="source", values=values, overwrite=True)
        target = make(tmp_path, SHAPE, chunk, "f4", path="target", overwrite=True)
        region = tuple(2 * size for size in chunk)
        stage = stage_of(source, target, SHAPE, ((1, 7), chunk, region), job=job and f"{job} {seed}")
        for task in stage:
            worker.run(task)
        assert same_bits(read_by_zarr(target), values)


def test_two_copies_of_a_task_at_once_leave_the_same_bytes(tmp_path: Path) -> None:
    stage = simple_stage(tmp_path, threads=1)
    worker = Worker()
    for task in stage:
        in_thread(partial(worker.run, task))
    before = {name: (tmp_path / "target" / name).read_bytes() for name in object_names(stage.target)}
    barrier = threading.Barrier(4)

    def run(_: int) -> None:
        barrier.wait()
        for task in stage:
            worker.run(task)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(run, range(4)))
    assert {name: (tmp_path / "target" / name).read_bytes() for name in object_names(stage.target)} == before


def test_threads_of_one_shard_do_not_mix(tmp_path: Path) -> None:
    values = position_values((64, 64), "f8")
    source = make(tmp_path / "a", (64, 64), (4, 4), "f8", values=values)
    target = make(tmp_path / "b", (64, 64), (4, 4), "f8", shards=(16, 16))
    stage = stage_of(source, target, (64, 64), ((4, 4), (16, 16), (32, 32)), threads=8)
    worker = Worker()
    for _ in range(3):
        for task in stage:
            worker.run(task)
        assert same_bits(read_by_zarr(target), values)


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def no_parts(folder: Path) -> bool:
    return not [path for path in folder.rglob("*") if "partial" in path.name]


@pytest.mark.parametrize("threads", [1, 4])
def test_a_source_that_is_torn_stops_the_task_before_it_writes(threads: int, tmp_path: Path) -> None:
    stage = simple_stage(tmp_path, threads=threads)
    torn = tmp_path / "source/c/3/0"
    whole = torn.read_bytes()
    torn.write_bytes(whole[:10])
    worker = Worker()
    with pytest.raises(StorageError):
        worker.run(stage[0])
    assert object_names(stage.target) == set()
    torn.write_bytes(whole)
    for task in stage:
        worker.run(task)
    assert same_bits(read_by_zarr(stage.target), VALUES)


FAILURES = itertools.product([0, 3, 7, 15], [1, 4], [True, False])
IN_TURN = {(0, 4, False), (3, 1, True), (7, 4, True), (15, 1, False), (15, 4, True)}
"""At each chunk, in each thread, alone and beside others."""


@pytest.mark.parametrize(
    "failing, threads, main",
    [pytest.param(*one, marks=[] if one in IN_TURN else pytest.mark.long) for one in FAILURES],
)
def test_a_failure_while_writing_leaves_no_parts_and_no_open_files(
    failing: int, threads: int, main: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Objects that other threads were in the middle of stayed as partial files, open for the life of the process.
    source = make(tmp_path / "a", (8, 8), (8, 8), "f4", values=position_values((8, 8), "f4"))
    target = make(tmp_path / "b", (8, 8), (2, 2), "f4", shards=(8, 4))
    stage = stage_of(source, target, (8, 8), ((8, 8), (8, 4), (8, 8)), threads=threads)
    worker = Worker()
    count = [0]
    lock = threading.Lock()
    real = ChunkCodec.encode

    def encode(self: ChunkCodec, elements: memoryview, allocate: Any) -> Any:
        with lock:
            count[0] += 1
            number = count[0]
        if number == failing + 1:
            raise MemoryError("no more")
        return real(self, elements, allocate)

    worker.run(stage[0])
    gc.collect()  # of earlier tests
    before = open_descriptors()
    with monkeypatch.context() as patch:
        patch.setattr(ChunkCodec, "encode", encode)
        with pytest.raises(MemoryError):
            worker.run(stage[0]) if main else in_thread(lambda: worker.run(stage[0]))
    assert no_parts(tmp_path / "b")
    assert open_descriptors() == before
    worker.run(stage[0])
    assert same_bits(read_by_zarr(target), position_values((8, 8), "f4"))


@pytest.mark.parametrize("threads", [pytest.param(1, marks=pytest.mark.long), 4])
def test_an_object_that_cannot_be_replaced_leaves_no_parts(threads: int, tmp_path: Path) -> None:
    stage = simple_stage(tmp_path, threads=threads)
    (tmp_path / "target/c/1/0").mkdir(parents=True)
    worker = Worker()
    gc.collect()  # of earlier tests
    before = open_descriptors()
    with pytest.raises(StorageError, match="cannot write"):
        worker.run(stage[0])
    assert no_parts(tmp_path / "target")
    worker.release()  # it holds the folders of arrays open between tasks
    gc.collect()  # and a traceback its frames
    assert open_descriptors() == before
    (tmp_path / "target/c/1/0").rmdir()
    for task in stage:
        worker.run(task)
    assert same_bits(read_by_zarr(stage.target), VALUES)


def test_tasks_of_other_objects_go_on_while_one_fails(tmp_path: Path) -> None:
    stage = simple_stage(tmp_path, threads=2)
    (tmp_path / "target/c/2/0").mkdir(parents=True)
    worker = Worker()

    def run(task: CopyTask) -> str:
        try:
            worker.run(task)
        except StorageError:
            return "failed"
        return "done"

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(run, stage)) == ["done", "done", "failed", "done"]
    (tmp_path / "target/c/2/0").rmdir()
    worker.run(stage[2])
    assert same_bits(read_by_zarr(stage.target), VALUES)


@pytest.mark.parametrize(
    "start,stop,what",
    [
        ((0, 0), (12, 4), "lie in the array"),
        ((8, 4), (9, 8), "lie in the array"),
        ((0,), (4,), "lie in the array"),
        ((0, 0, 0), (1, 1, 1), "lie in the array"),
        ((0, 0), (6, 4), "whole write units"),
        ((2, 0), (8, 4), "whole write units"),
        ((0, 4), (4, 6), "whole write units"),
    ],
)
def test_a_box_that_would_spoil_others_is_refused(start: Shape, stop: Shape, what: str, tmp_path: Path) -> None:
    # A box of half a write unit would have replaced the other half by fill value.
    stage = simple_stage(tmp_path)
    worker = Worker()
    for task in stage:
        worker.run(task)
    with pytest.raises(SerializationError, match=what):
        worker.run(replace(stage[0], start=start, stop=stop, read_unit=None))
    assert same_bits(read_by_zarr(stage.target), VALUES)


@pytest.mark.parametrize(
    "options", [{"shape": (9, 8)}, {"dtype": "f8"}, {"dtype": "i4"}, {"shape": (9, 7, 1)}], ids=str
)
def test_a_target_of_another_shape_or_dtype_is_refused(options: dict[str, Any], tmp_path: Path) -> None:
    # Elements would have been converted without a word.
    source = make(tmp_path / "a", SHAPE, (1, 7), "f4", values=VALUES)
    shape = options.get("shape", SHAPE)
    target = make(tmp_path / "b", shape, (4, 4, 1)[: len(shape)], options.get("dtype", "f4"))
    stage = stage_of(source, target, SHAPE, ((1, 7), (4, 4), (8, 4)))
    with pytest.raises(StorageError, match="one shape and dtype"):
        Worker().run(stage[0])


def test_byte_orders_may_differ(tmp_path: Path) -> None:
    source = make(tmp_path / "a", SHAPE, (1, 7), ">f4", values=VALUES.astype(">f4"), zarr_format=2, order="F")
    target = make(tmp_path / "b", SHAPE, (4, 4), "<f4")
    for task in stage_of(source, target, SHAPE, ((1, 7), (4, 4), (8, 4))):
        Worker().run(task)
    assert same_bits(read_by_zarr(target), VALUES)


def test_arrays_that_are_not_there_are_errors(tmp_path: Path) -> None:
    stage = simple_stage(tmp_path)
    nowhere = ArrayRef(store=str(tmp_path / "nowhere"))
    for broken in (replace(stage, source=nowhere), replace(stage, target=nowhere)):
        with pytest.raises(StorageError, match="nothing is at"):
            Worker().run(broken[0])
    assert not (tmp_path / "nowhere").exists()


def test_recorded_results_are_read_back_in_order(tmp_path: Path) -> None:
    first = simple_stage(tmp_path)
    first = replace(first, journal=first.target)
    second_target = make(tmp_path, SHAPE, (9, 1), "f4", path="second")
    second = replace(stage_of(first.target, second_target, SHAPE, ((2, 2), (9, 1), (9, 3))), number=1)
    second = replace(second, journal=first.target)
    worker = Worker()
    results = [worker.run(task) for stage in (first, second) for task in [*stage][::-1]]
    worker.run(first[2])
    found = finished_results([first, second])
    assert [(result.stage, result.index) for result in found] == [
        (0, 0),
        (0, 1),
        (0, 2),
        (0, 3),
        (1, 0),
        (1, 1),
        (1, 2),
    ]
    assert {result for result in found if (result.stage, result.index) != (0, 2)} <= set(results)
    assert finished_results([replace(first, job="another")]) == []
    assert same_bits(read_by_zarr(second_target), VALUES)


def test_results_are_recorded_only_if_asked_for(tmp_path: Path) -> None:
    stage = simple_stage(tmp_path)
    Worker().run(stage[0])
    assert finished_results([stage]) == []
    assert not (tmp_path / "target/.rechunk_exec").exists()


def test_a_task_that_failed_records_nothing(tmp_path: Path) -> None:
    stage = simple_stage(tmp_path)
    stage = replace(stage, journal=stage.target)
    (tmp_path / "source/c/0/0").write_bytes(b"")
    with pytest.raises(StorageError):
        Worker().run(stage[0])
    assert finished_results([stage]) == []


def test_buffers_are_kept_from_task_to_task(tmp_path: Path) -> None:
    stage = simple_stage(tmp_path, threads=2)
    worker = Worker()
    for task in stage:
        worker.run(task)
    assert len(worker._regions._free) == 1
    assert len(worker._scratches._free) == 2
    worker.release()
    assert worker._regions._free == []
    assert worker._scratches._free == []
    assert worker._pairs == {}


def test_memory_that_stays_loose_is_given_back_after_small_tasks_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = simple_stage(tmp_path)
    held = iter([50_000_000, 50_100_000, 51_000_000, 50_400_000])  # when tasks end
    left = iter([50_000_000, 50_200_000])  # when memory was given back
    trimmed: list[int] = []
    worker = Worker()
    monkeypatch.setattr(MemoryMeter, "_highest_and_held", staticmethod(lambda: (60_000_000, next(held))))
    monkeypatch.setattr(copy_worker, "resident_bytes", lambda: next(left))
    for task in list(stage)[:4]:
        with monkeypatch.context() as patch:
            patch.setattr(copy_worker, "trim_heap", lambda index=task.index: trimmed.append(index))
            worker.run(replace(task, job=""))
    assert trimmed == [0, 2], "at first, and after half a megabyte more than what was left then"


def test_what_zarr_serves_is_named_in_the_result(tmp_path: Path) -> None:
    source = make(
        tmp_path / "a", SHAPE, (1, 7), "i4", values=VALUES.view("i4"), zarr_format=2, filters=[numcodecs.Delta("i4")]
    )
    target = make(tmp_path / "b", SHAPE, (4, 4), "i4")
    result = Worker().run(stage_of(source, target, SHAPE, ((1, 7), (4, 4), (8, 4)))[0])
    assert (result.reader, result.writer) == ("zarr", "direct")


def test_a_worker_process_bounds_its_threads() -> None:
    code = (
        "import os, zarr\n"
        "from numcodecs import blosc\n"
        "from rechunk_exec.copy import configure_worker\n"
        "configure_worker(3)\n"
        "print(os.environ['RAYON_NUM_THREADS'], zarr.config.get('threading.max_workers'), "
        "zarr.config.get('async.concurrency'), blosc.set_nthreads(1))\n"
    )
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=dict(os.environ))
    assert run.stdout.split() == ["3", "3", "3", "1"]
