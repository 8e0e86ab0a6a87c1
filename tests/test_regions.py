"""Tasks of one's own: exact values, whole units, nothing in the way of a retry, and no code from strangers."""

from __future__ import annotations

import json
import logging
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.storage import MemoryStore

import rechunk_exec as rx
from rechunk_exec.errors import PlanError, RechunkError, SerializationError, StorageError, TaskError
from rechunk_exec.executors import PoolExecutor, ProcessesExecutor, Shared, ThreadsExecutor
from tests.executors.clusters import quieted
from tests.regionsums import die_once, give, masked, refuse, scaled, two_of
from tests.values import Array, position_values, same_bits

SHAPE = (5, 13, 11)
CUBE = position_values(SHAPE, "i4")
MASK = position_values(SHAPE[1:], "i4", seed=1) % 2 == 0


def cube(folder: Path) -> zarr.Array[Any]:
    return zarr.create_array(folder / "cube", data=CUBE, chunks=(1, 13, 11))


def mask(folder: Path) -> zarr.Array[Any]:
    return zarr.create_array(folder / "mask", data=MASK, chunks=(8, 8))


def series(folder: Path, shape: Sequence[int] = SHAPE, **fields: Any) -> zarr.Array[Any]:
    layout: dict[str, Any] = {"chunks": (5, 2, 2), "shards": (5, 4, 4), "dtype": "i4", "fill_value": 7, **fields}
    return zarr.create_array(folder / "series", shape=tuple(shape), **layout)


def masked_tasks(folder: Path, **options: object) -> list[rx.ChunkTask]:
    source, where = cube(folder), mask(folder)
    return [
        rx.ChunkTask(
            function=masked,
            reads=(out.at(source), rx.Chunk.of(where, out.start[1:], out.stop[1:])),
            writes=(out,),
            options=options,
        )
        for out in rx.Chunk.each(series(folder))
    ]


def task(out: rx.Chunk, source: object, function: Any = masked, **options: object) -> rx.ChunkTask:
    return rx.ChunkTask(function=function, reads=(out.at(source),), writes=(out,), options=options)


def read(path: Path) -> Array:
    return np.asarray(zarr.open_array(path, mode="r")[...])


@pytest.fixture(scope="module")
def processes() -> Iterator[ProcessesExecutor]:
    """Two workers, for all tests."""
    with ProcessesExecutor(2) as pool:
        yield pool


@pytest.mark.parametrize("executor", ["serial", "threads", "processes", "dask"])
def test_masked_cube_on_each_pool(
    tmp_path: Path, executor: str, processes: ProcessesExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    if executor == "dask":
        quieted()
        monkeypatch.setattr("rechunk_exec.executors.dask.available_cores", lambda: 1)  # as many workers are started
    tasks = masked_tasks(tmp_path, offset=3)
    results = rx.run_chunk_tasks(tasks, processes if executor == "processes" else executor, progress=False)
    assert len(results) == len(tasks) == 12
    assert same_bits(read(tmp_path / "series"), np.where(MASK, CUBE + np.int32(3), np.int32(0)))
    assert sum(result.bytes_written for result in results) == CUBE.nbytes
    of_mask = {64, 40, 24, 15}  # one chunk of it, clipped
    assert {result.bytes_read for result in results} == {CUBE.nbytes + size for size in of_mask}


def test_again_over_torn_units(tmp_path: Path) -> None:
    tasks = masked_tasks(tmp_path)
    rx.run_chunk_tasks(tasks, "serial", progress=False)
    objects = sorted((tmp_path / "series" / "c").rglob("*"))
    for number, path in enumerate(path for path in objects if path.is_file()):
        path.write_bytes(path.read_bytes()[: 5 * number])
    rx.run_chunk_tasks(tasks, "serial", progress=False)
    assert same_bits(read(tmp_path / "series"), np.where(MASK, CUBE, np.int32(0)))


def test_several_threads_of_one_task(tmp_path: Path) -> None:
    source = cube(tmp_path)
    (out,) = rx.Chunk.each(series(tmp_path), SHAPE)
    result = rx.chunk_task(rx.ChunkTask(function=give, reads=(out.at(source),), writes=(out,), options={"what": CUBE}))
    assert (result.bytes_read, result.bytes_written, result.objects_written) == (CUBE.nbytes, CUBE.nbytes, 12)
    assert 0 <= result.function_seconds <= result.seconds
    one = rx.ChunkTask(
        function=masked, reads=(out.at(source), rx.Chunk.of(mask(tmp_path), (0, 0), (13, 11))), writes=(out,), threads=3
    )
    rx.chunk_task(one)
    assert same_bits(read(tmp_path / "series"), np.where(MASK, CUBE, np.int32(0)))


def test_of_a_large_chunk_the_rows_that_are_needed(tmp_path: Path) -> None:
    values = position_values((2, 512, 512), "u1")
    blosc = zarr.codecs.BloscCodec(cname="zstd", blocksize=1 << 15)
    for name, codec in (("blosc", blosc), ("raw", None)):
        source = zarr.create_array(tmp_path / name, data=values, chunks=(1, 512, 512), compressors=codec)
        target = zarr.create_array(tmp_path / f"of {name}", shape=(2, 512, 512), chunks=(2, 128, 512), dtype="u1")
        tasks = [task(out, source, np.copy) for out in rx.Chunk.each(target)]
        results = rx.run_chunk_tasks(tasks, "threads", progress=False)
        assert [result.bytes_read for result in results] == [2 * 128 * 512] * 4
        assert same_bits(read(tmp_path / f"of {name}"), values)


def test_several_outputs_and_none_read(tmp_path: Path) -> None:
    source = cube(tmp_path)
    highest = zarr.create_array(tmp_path / "highest", shape=(13, 11), chunks=(13, 4), dtype=">i4")
    positive = zarr.create_array(tmp_path / "positive", shape=(13, 11), chunks=(5, 4), dtype="bool")
    tasks = [
        rx.ChunkTask(
            function=two_of,
            reads=(rx.Chunk.of(source, (0, *out.start), (5, *out.stop)),),
            writes=(out, out.at(positive)),
        )
        for out in rx.Chunk.each(highest)
    ]
    rx.run_chunk_tasks(tasks, "threads", progress=False)
    assert same_bits(read(tmp_path / "highest"), CUBE.max(axis=0))
    assert same_bits(read(tmp_path / "positive"), CUBE[0] > 0)
    scalar = zarr.create_array(tmp_path / "scalar", shape=(), dtype="f8")
    (point,) = rx.Chunk.each(scalar)
    tasks = [rx.ChunkTask(function=np.float64, reads=(), writes=(point,))]
    rx.run_chunk_tasks(tasks, "serial", progress=False)
    assert read(tmp_path / "scalar") == 0.0


def test_a_handle_is_its_object_to_the_function_and_is_sent_once(tmp_path: Path, processes: ProcessesExecutor) -> None:
    factors = position_values((11,), "i8")
    source = cube(tmp_path)
    handle = processes.put(factors)
    tasks = [task(out, source, scaled, factors=handle) for out in rx.Chunk.each(series(tmp_path), (5, 4, 11))]
    assert all(len(pickle.dumps(each)) < 2000 for each in tasks)
    rx.check_aligned(tasks)
    assert len(list(processes.map(rx.chunk_task, tasks))) == 4
    assert isinstance(handle, Shared)
    assert same_bits(read(tmp_path / "series"), CUBE * factors.astype("i4"))


def test_a_worker_that_dies_costs_one_try(tmp_path: Path, processes: ProcessesExecutor) -> None:
    source = cube(tmp_path)
    tasks = [task(out, source, die_once, mark=str(tmp_path / "died")) for out in rx.Chunk.each(series(tmp_path))]
    rx.run_chunk_tasks(tasks, processes, progress=False)
    assert (tmp_path / "died").exists()
    assert same_bits(read(tmp_path / "series"), CUBE)


def test_outputs_that_share_a_unit(tmp_path: Path) -> None:
    source, target = cube(tmp_path), series(tmp_path)
    boxes = [((0, 0, 8), (5, 4, 11)), ((0, 0, 0), (5, 3, 4)), ((0, 3, 0), (5, 8, 4))]
    tasks = [task(rx.Chunk.of(target, *box), source) for box in boxes]
    told = (
        r"task 1 writes .*\[0:5, 0:3, 0:4\] and task 2 writes .*\[0:5, 3:8, 0:4\]: both need unit \(0, 0, 0\), "
        r"which is .*\[0:5, 0:4, 0:4\]; .* the first would be .*\[0:5, 0:4, 0:4\], the second .*\[0:5, 0:8, 0:4\]"
    )
    with pytest.raises(PlanError, match=told):
        rx.run_chunk_tasks(tasks, "serial", progress=False)
    assert (read(tmp_path / "series") == 7).all(), "nothing has run"
    rx.check_aligned(tasks[:1])


def test_one_array_under_two_names(tmp_path: Path) -> None:
    source, target = cube(tmp_path), series(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path / "series")
    outs = [rx.Chunk.of(array, (0, 4, 4), (5, 8, 8)) for array in (target, tmp_path / "link")]
    outs.append(rx.Chunk(array=rx.ArrayRef(store=str(tmp_path), path="series"), start=(0, 4, 4), stop=(5, 8, 8)))
    for two in (outs[:2], outs[::2]):
        with pytest.raises(PlanError, match=r"task 0 .* task 1 .*: both need unit \(0, 1, 1\)"):
            rx.check_aligned([task(out, source) for out in two])


def test_two_outputs_of_one_task_that_share_a_unit(tmp_path: Path) -> None:
    (out,) = rx.Chunk.each(series(tmp_path), SHAPE)
    both = rx.ChunkTask(function=two_of, reads=(), writes=(out, out))
    with pytest.raises(PlanError, match=r"task 0 writes .* and task 0 writes"):
        rx.check_aligned([both])


def test_a_box_that_is_not_whole_units(tmp_path: Path) -> None:
    source, target = cube(tmp_path), series(tmp_path)
    partial = task(rx.Chunk.of(target, (0, 2, 0), (5, 8, 11)), source)
    with pytest.raises(PlanError, match=r"\(5, 4, 4\).*in task 0: .*aligned would be \[0:5, 0:8, 0:11\]"):
        rx.check_aligned([partial])
    with pytest.raises(PlanError, match="whole write units"):
        rx.chunk_task(partial)
    with pytest.raises(PlanError, match="whole write units"):
        list(rx.Chunk.each(target, (5, 4, 6)))
    rx.check_aligned([task(rx.Chunk.of(target, (0, 8, 0), (5, 13, 11)), source)])


def test_boxes_outside(tmp_path: Path) -> None:
    source, target = cube(tmp_path), series(tmp_path)
    out = rx.Chunk.of(target, (0, 12, 0), (5, 16, 11))
    for check in (lambda: rx.check_aligned([task(out, source)]), lambda: rx.chunk_task(task(out, source))):
        with pytest.raises(PlanError, match="lie in its array"):
            check()
    inside = rx.Chunk.of(target, (0, 12, 0), (5, 13, 11))
    wide = rx.ChunkTask(function=masked, reads=(rx.Chunk.of(source, (0, 0), (1, 1)),), writes=(inside,))
    for check in (lambda: rx.check_aligned([wide]), lambda: rx.chunk_task(wide)):
        with pytest.raises(PlanError, match="lie in its array"):
            check()
    with pytest.raises(PlanError, match="start < stop"):
        rx.Chunk.of(source, (0, 0, 0), (5, 0, 11))


def test_what_is_written_is_not_read(tmp_path: Path) -> None:
    target = series(tmp_path)
    outs = list(rx.Chunk.each(target, (5, 4, 11)))
    neighbour = rx.ChunkTask(
        function=masked, reads=(rx.Chunk.of(target, (0, 3, 0), (1, 5, 1)),), writes=(outs[2],), options={}
    )
    rx.check_aligned([neighbour])
    first = rx.ChunkTask(function=give, reads=(), writes=(outs[0],))
    with pytest.raises(PlanError, match=r"task 0, which reads .*\[0:1, 3:5, 0:1\], and task 1"):
        rx.check_aligned([neighbour, first])
    with pytest.raises(PlanError, match="must not read what it or another one writes"):
        rx.check_aligned([task(outs[0], target)])


@pytest.mark.parametrize("what", [CUBE.astype("i8"), CUBE[:4], (CUBE, CUBE), None, "text"])
def test_a_function_that_returns_something_else(tmp_path: Path, what: Any) -> None:
    (out,) = rx.Chunk.each(series(tmp_path), SHAPE)
    with pytest.raises(RechunkError, match="a task's function must return"):
        rx.chunk_task(task(out, cube(tmp_path), give, what=what))
    assert (read(tmp_path / "series") == 7).all()


def test_a_function_that_raises(tmp_path: Path) -> None:
    source = cube(tmp_path)
    tasks = [
        task(out, source, refuse if number == 2 else give, **({} if number == 2 else {"what": CUBE[:, :4, :4] * 0}))
        for number, out in enumerate(rx.Chunk.each(series(tmp_path, (5, 8, 8))))
    ]
    with pytest.raises(TaskError, match=r"ValueError in task 2, refuse.*no such sum") as caught:
        rx.run_chunk_tasks(tasks, ThreadsExecutor(1), progress=False)
    assert caught.value.index == 2
    assert isinstance(caught.value.__cause__, ValueError)


def test_fill_chunks_are_not_stored(tmp_path: Path) -> None:
    outs = list(rx.Chunk.each(series(tmp_path)))
    source = cube(tmp_path)
    results = [
        rx.chunk_task(task(outs[0], source, give, what=np.full((5, 4, 4), value, "i4"))).objects_written
        for value in (1, 7)
    ]
    assert results == [1, 0]
    assert (read(tmp_path / "series") == 7).all()


def test_stores_in_memory_do_not_travel(tmp_path: Path) -> None:
    store = MemoryStore()
    target = zarr.create_array(store, name="series", shape=SHAPE, chunks=(5, 4, 11), dtype="i4")
    source = cube(tmp_path)
    tasks = [task(out, source, give, what=CUBE[:, out.box.slices[1]]) for out in rx.Chunk.each(target)]
    with pytest.raises(SerializationError, match="in this process's memory"), ProcessesExecutor(1) as pool:
        list(pool.map(rx.chunk_task, tasks))
    rx.run_chunk_tasks(tasks, "threads", progress=False)
    assert same_bits(np.asarray(target[...]), CUBE)


def test_json_runs_only_functions_that_are_given(tmp_path: Path) -> None:
    tasks = masked_tasks(tmp_path, offset=-2)
    lines = [each.to_json() for each in tasks]
    assert json.loads(lines[0])["function"] == "tests.regionsums:masked"
    again = [rx.ChunkTask.from_json(line, [scaled, masked]) for line in lines]
    assert again == tasks
    with pytest.raises(SerializationError, match=r"one of .*scaled; got 'tests.regionsums:masked'"):
        rx.ChunkTask.from_json(lines[0], [scaled])
    with pytest.raises(SerializationError, match="which are none"):
        rx.ChunkTask.from_json(lines[0].replace("tests.regionsums:masked", "os:system"), [])
    with pytest.raises(SerializationError, match="module:name"):
        rx.ChunkTask.from_json(lines[0].replace("tests.regionsums:masked", "masked"), [masked])
    of_a_script = lines[0].replace("tests.regionsums:masked", "__main__:masked")
    assert rx.ChunkTask.from_json(of_a_script, [masked, scaled]) == tasks[0]
    with pytest.raises(SerializationError, match=r"absolute path"):
        rx.ChunkTask.from_json(lines[0].replace(f"{tmp_path}/cube", "simplecache::s3://x"), [masked])
    with pytest.raises(SerializationError, match="must have a name"):
        task(tasks[0].writes[0], tmp_path / "cube", lambda epochs: epochs).to_json()
    with pytest.raises(SerializationError, match="JSON can name"):
        task(tasks[0].writes[0], tmp_path / "cube", what=CUBE).to_json()
    for each in again:
        rx.chunk_task(each)
    assert same_bits(read(tmp_path / "series"), np.where(MASK, CUBE - np.int32(2), np.int32(0)))


def test_a_task_that_makes_no_sense(tmp_path: Path) -> None:
    (out,) = rx.Chunk.each(series(tmp_path), SHAPE)
    with pytest.raises(PlanError, match="must write something"):
        rx.ChunkTask(function=masked, reads=(out,), writes=())
    with pytest.raises(PlanError, match="threads"):
        rx.ChunkTask(function=masked, reads=(), writes=(out,), threads=0)
    wrong: Any = [out]
    with pytest.raises(TypeError, match="tuple of Chunk"):
        rx.ChunkTask(function=masked, reads=wrong, writes=(out,))
    wrong = "masked"
    with pytest.raises(TypeError, match="callable"):
        rx.ChunkTask(function=wrong, reads=(), writes=(out,))
    with pytest.raises(StorageError, match="nothing is at the path"):
        list(rx.Chunk.each(tmp_path / "nowhere"))


def test_an_executor_that_is_no_pool() -> None:
    with pytest.raises(TypeError, match="pool of workers"):
        rx.run_chunk_tasks([], print)


def test_a_pool_of_others_stays_open(tmp_path: Path) -> None:
    tasks = masked_tasks(tmp_path)
    with ThreadPoolExecutor(2) as pool:
        for _ in range(2):
            assert len(rx.run_chunk_tasks(iter(tasks), pool, progress=False)) == 12
    pool_of_ours: PoolExecutor = ThreadsExecutor(2)
    for _ in range(2):
        rx.run_chunk_tasks(tasks, pool_of_ours, progress=False)
    assert rx.run_chunk_tasks([], pool_of_ours) == []
    pool_of_ours.close()


def test_progress_at_each_tenth(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = zarr.create_array(tmp_path / "long", data=np.arange(40, dtype="i4"), chunks=(1,))
    target = zarr.create_array(tmp_path / "target", shape=(40,), chunks=(1,), dtype="i4")
    tasks = [task(out, source, give, what=np.full(1, out.start[0], "i4")) for out in rx.Chunk.each(target)]
    with caplog.at_level(logging.INFO, logger="rechunk_exec"):
        rx.run_chunk_tasks(tasks, "serial")
    lines = [record.message for record in caplog.records if "of 40 tasks" in record.message]
    assert [line.split(":")[0] for line in lines] == [f"{4 * n} of 40 tasks ({10 * n} %)" for n in range(1, 11)]
    assert "16 B" in lines[0]
    assert same_bits(read(tmp_path / "target"), np.arange(40, dtype="i4"))


def test_the_example_of_the_page(tmp_path: Path) -> None:
    root = Path(__file__).parent.parent
    script, _ = re.findall(
        r"^```python\n(.*?)^```$", (root / "docs" / "regions.md").read_text(), re.MULTILINE | re.DOTALL
    )
    values = position_values((5, 130, 100), "u2").astype("f4")
    coherence = position_values((130, 100), "u1").astype("f4") / 255
    zarr.create_array(tmp_path / "series.zarr", data=values, chunks=(5, 64, 64))
    zarr.create_array(tmp_path / "coherence.zarr", data=coherence, chunks=(64, 64))
    (tmp_path / "example.py").write_text(script)
    command = [sys.executable, "-W", "error", "example.py"]
    environment = os.environ | {"PYTHONPATH": str(root)}
    run = subprocess.run(
        command, check=False, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, run.stderr
    wanted = np.polynomial.polynomial.polyfit(np.arange(5) * 12.0, values.reshape(5, -1), 1)[1].reshape(130, 100)
    valid = coherence >= np.float32(0.5)
    np.testing.assert_allclose(read(tmp_path / "fitted.zarr"), np.where(valid, wanted, np.nan), rtol=1e-4, atol=1e-3)
    assert same_bits(read(tmp_path / "valid.zarr"), valid)
