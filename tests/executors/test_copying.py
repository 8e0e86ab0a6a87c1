"""Each executor copies real arrays to the byte, in one stage and in two, with tasks at the far edges."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import rechunk_exec as rx
from rechunk_exec.executors import PoolExecutor, ProcessesExecutor, SerialExecutor, ThreadsExecutor, staged_copy
from rechunk_exec.tasks import Stage
from tests.executors.test_remote import HiddenError

SHAPE = (37, 41, 29)
VALUES = (np.arange(np.prod(SHAPE), dtype="u4") * 2654435761).astype("u4").reshape(SHAPE)

ONE_STAGE = (4, 41, 29)
"""Chunks to which the source's are copied in one stage, however many tasks run at once."""


def stored(array: Path | zarr.Array[Any]) -> bytes:
    opened = array if isinstance(array, zarr.Array) else zarr.open_array(array, mode="r")
    return np.asarray(opened[:]).tobytes()


def run_all(stages: Sequence[Stage]) -> None:
    for stage in stages:
        for task in stage:
            rx.run_task(task)


@contextmanager
def spawning_pool() -> Iterator[futures.Executor]:
    with futures.ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield pool


EXECUTORS: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "serial": lambda: nullcontext("serial"),
    "threads": lambda: nullcontext("threads"),
    "function": lambda: nullcontext(run_all),
    "thread pool": lambda: futures.ThreadPoolExecutor(3),
    "process pool": spawning_pool,
}


@pytest.fixture(scope="module")
def processes() -> Iterator[ProcessesExecutor]:
    """Two workers, for all tests."""
    with ProcessesExecutor(2) as executor:
        yield executor


@pytest.fixture(
    params=[
        "serial",
        "threads",
        "processes",
        "function",
        "thread pool",
        pytest.param("process pool", marks=pytest.mark.long),
    ]
)
def executor(request: pytest.FixtureRequest) -> Iterator[object]:
    """Each kind. A pool of processes of others does a job of two stages in the public contract too."""
    if request.param == "processes":
        yield request.getfixturevalue("processes")
    else:
        with EXECUTORS[request.param]() as given:
            yield given


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source.zarr"
    zarr.create_array(path, shape=SHAPE, chunks=(2, 41, 29), dtype="u4", fill_value=7)[:] = VALUES
    return path


def test_one_stage_and_two(source: Path, tmp_path: Path, executor: object) -> None:
    for stages, chunks, max_mem in ((1, ONE_STAGE, "10MB"), (2, (37, 5, 2), "30kB")):
        target = tmp_path / f"{stages}.zarr"
        job = rx.rechunk(source, chunks, max_mem, target, executor=executor, progress=False)
        assert len(job.stages) == stages
        job.execute()
        assert stored(target) == VALUES.tobytes()
        assert job.report is not None
        assert [(r.stage, r.index) for r in job.report.results] == [(t.stage, t.index) for t in job.tasks()]


def test_an_array_of_nothing(tmp_path: Path, executor: object) -> None:
    zarr.create_array(tmp_path / "empty.zarr", shape=(0, 5), chunks=(1, 5), dtype="f4")
    job = rx.rechunk(tmp_path / "empty.zarr", (1, 2), "1MB", tmp_path / "t.zarr", executor=executor, progress=False)
    assert job.execute().shape == (0, 5)


def test_stores_in_memory_work_in_this_process_only(source: Path) -> None:
    for executor in ("serial", "threads"):
        memory = zarr.storage.MemoryStore()
        job = rx.rechunk(source, ONE_STAGE, "10MB", memory, executor=executor, progress=False)
        assert stored(job.execute()) == VALUES.tobytes()
    memory = zarr.storage.MemoryStore()
    with pytest.raises(rx.StorageError, match="memory"):
        rx.rechunk(source, ONE_STAGE, "10MB", memory, executor="processes", progress=False).execute()
    assert memory._store_dict == {}


def test_stages_that_one_holds(source: Path, tmp_path: Path, processes: ProcessesExecutor) -> None:
    job = rx.rechunk(source, ONE_STAGE, "10MB", tmp_path / "t.zarr", progress=False)
    target = job.execute()
    target[:] = 0
    for executor in ("serial", processes):
        assert rx.staged_copy(job.stages, executor).tasks == len(job.stages[0])
        assert stored(target) == VALUES.tobytes()


def test_what_are_no_stages(source: Path, tmp_path: Path) -> None:
    job = rx.rechunk(source, ONE_STAGE, "10MB", tmp_path / "t.zarr", progress=False)
    with pytest.raises(TypeError, match="put it in a list"):
        staged_copy(job.stages[0])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="Stage"):
        staged_copy([1])  # type: ignore[list-item]
    assert staged_copy(iter(())).tasks == 0  # type: ignore[arg-type]


def test_a_task_that_cannot_be_done(source: Path, tmp_path: Path, processes: ProcessesExecutor) -> None:
    job = rx.rechunk(source, ONE_STAGE, "10MB", tmp_path / "t.zarr", executor=processes, progress=False)
    chunk = next(path for path in sorted(source.rglob("*")) if path.is_file() and path.name != "zarr.json")
    chunk.write_bytes(b"torn")
    with pytest.raises(rx.TaskError) as caught:
        job.execute()
    assert isinstance(caught.value.__cause__, rx.StorageError)
    assert str(source) in str(caught.value)


def fail(task: rx.CopyTask) -> rx.TaskResult:
    raise HiddenError


def return_nothing(task: rx.CopyTask) -> None:
    rx.run_task(task)


def return_anothers(task: rx.CopyTask) -> rx.TaskResult:
    return replace(rx.run_task(task), index=0)


@pytest.mark.parametrize(
    "function, told",
    [
        (fail, r"task 0 .*HiddenError: \(its message cannot be shown: ZeroDivisionError\)"),
        (return_nothing, r"task 0 .*must return the TaskResult of its task.*; got None of task 0 of stage 0"),
        (return_anothers, r"task 1 .*must return the TaskResult of its task.* of task 1 of stage 0"),
    ],
)
@pytest.mark.parametrize("kind", [SerialExecutor, lambda: ThreadsExecutor(1), lambda: ProcessesExecutor(1)])
def test_a_function_of_tasks_that_does_what_it_should_not(
    function: Any, told: str, kind: Callable[[], PoolExecutor], source: Path, tmp_path: Path
) -> None:
    """They ended in an error of Python's; with the result of another task, its own was done without having been."""
    with kind() as executor:
        executor.task_function = function
        job = rx.rechunk(source, ONE_STAGE, 100_000, tmp_path / "target", executor=executor, progress=False)
        assert len(job.stages[0]) > 1
        with pytest.raises(rx.TaskError, match=told):
            job.execute()
    assert rx.status(tmp_path / "target").state == "unfinished"
