from __future__ import annotations

import errno
import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import zarr

import rechunk_exec as rx
from rechunk_exec.errors import RechunkError, SerializationError, StorageError
from rechunk_exec.executors import ProcessesExecutor, available_cores, worker_shape
from rechunk_exec.results import OVERRUN_BYTES
from rechunk_exec.tasks import ArrayRef, Stage
from tests.executors import sent
from tests.executors.contract import SurvivorContract
from tests.executors.recording import Recording, make_stage
from tests.executors.workers import FOREVER_S, PATIENCE_S, interrupted_when, wait_until, workers_of


@pytest.fixture(scope="module")
def workers() -> Iterator[ProcessesExecutor]:
    """Two workers, for all tests that leave the pool open: others take the places of those that are killed."""
    with ProcessesExecutor(2) as executor:
        yield executor


@pytest.fixture
def pool(workers: ProcessesExecutor) -> Iterator[ProcessesExecutor]:
    """The same, which copies again when a test has put something in place of that."""
    copy = workers.task_function
    yield workers
    workers.task_function = copy


class TestProcesses(SurvivorContract):
    @pytest.fixture
    def executor(self, pool: ProcessesExecutor) -> ProcessesExecutor:
        return pool


def test_its_shape() -> None:
    shape = worker_shape(ProcessesExecutor(2))
    assert (shape.workers, shape.tasks_per_worker, shape.elastic) == (2, 1, False)
    assert shape.cores_per_worker == max(1, available_cores() // 2)
    assert worker_shape(ProcessesExecutor()).workers == available_cores()


@pytest.mark.parametrize("workers, error", [(0, ValueError), (-1, ValueError), ("2", TypeError), (True, TypeError)])
def test_wrong_options(workers: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="workers"):
        ProcessesExecutor(workers)


def test_nothing_is_started_before_it_is_needed_and_nothing_is_left() -> None:
    before = set(psutil.Process().children(recursive=True))
    executor = ProcessesExecutor(2)
    executor.staged_copy([])
    assert set(psutil.Process().children(recursive=True)) == before
    assert list(executor.map(abs, [-1])) == [1]
    assert len(set(psutil.Process().children(recursive=True)) - before) == 1, "one task needs one worker"
    assert list(executor.map(abs, range(-40, 0))) == list(range(40, 0, -1))
    assert len(set(psutil.Process().children(recursive=True)) - before) == 2
    executor.close()
    assert set(psutil.Process().children(recursive=True)) == before


@pytest.mark.parametrize("code", ["EAGAIN", "EMFILE", "ENOMEM"])
def test_a_system_that_starts_no_more_processes_is_told(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    # It was an OSError of subprocess, which names no remedy.
    number = getattr(errno, code)

    def refuses(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    with ProcessesExecutor(1) as pool:
        with monkeypatch.context() as patch:
            patch.setattr(subprocess, "Popen", refuses)
            with pytest.raises(RechunkError, match=f"a worker process must start; got .*{os.strerror(number)}"):
                list(pool.map(abs, [-1]))
        assert list(pool.map(abs, [-2])) == [2]


def test_workers_that_do_not_end_by_themselves_are_killed_and_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    # The first had taken all the time there was; the others were killed, and left behind as they ended.
    monkeypatch.setattr("rechunk_exec.executors.workers._LEAVE_S", 0.1)
    with ProcessesExecutor(2) as executor:
        executor.run_on_workers(sent.end_slowly)
        workers = [worker._process for worker in executor._workers]
    assert [worker.returncode for worker in workers] == [-signal.SIGKILL] * 2


def test_one_that_is_forgotten_ends_its_workers() -> None:
    before = set(psutil.Process().children(recursive=True))
    executor = ProcessesExecutor(1)
    list(executor.map(abs, [-1]))
    del executor
    gc.collect()
    assert set(psutil.Process().children(recursive=True)) == before


def test_a_worker_that_dies_while_idle_costs_no_try(pool: ProcessesExecutor, tmp_path: Path) -> None:
    pool.task_function = recording = Recording(tmp_path, seconds=0.02)
    pool.staged_copy([make_stage(0, 8)])
    worker = workers_of(pool)[0]
    worker.kill()
    worker.wait(PATIENCE_S)
    report = pool.staged_copy([make_stage(1, 8)])
    assert report.retries == 0
    assert set(recording.tries().values()) == {1}


def test_a_worker_that_is_killed_from_outside(pool: ProcessesExecutor, tmp_path: Path) -> None:
    pool.task_function = recording = Recording(tmp_path, seconds=2.0)
    pool.run_on_workers(int)  # both are there, and begin their first tasks together

    def kill_one() -> None:
        wait_until(lambda: len(recording.tries()) >= 2)
        workers_of(pool)[0].kill()

    killer = threading.Thread(target=kill_one)
    killer.start()
    report = pool.staged_copy([make_stage(0, 4)])
    killer.join()
    assert report.tasks == 4
    assert report.retries == 1
    assert sorted(recording.tries().values()) == [1, 1, 1, 2]


def test_a_map_survives_a_worker_that_dies(pool: ProcessesExecutor, tmp_path: Path) -> None:
    assert list(pool.map(sent.DieOnce(tmp_path, 2), range(5))) == [0, 1, 2, 3, 4]
    assert (tmp_path / "died").exists()
    with pytest.raises(RechunkError, match="exited with code 7"):
        list(pool.map(sent.Leave(tmp_path), [7]))
    assert len(list(tmp_path.glob("left-*"))) == 3
    assert list(pool.map(abs, [-1])) == [1]


def test_results_and_errors_that_do_not_travel(pool: ProcessesExecutor) -> None:
    with pytest.raises(SerializationError, match="what a call returns must pickle"):
        list(pool.map(sent.return_lambda, [1]))
    with pytest.raises(SerializationError, match="what a call returns must load"):
        list(pool.map(sent.return_trap, [1]))
    with pytest.raises(RechunkError, match="StubbornError: stubborn") as caught:
        list(pool.map(sent.raise_stubborn, [1]))
    assert "raise_stubborn" in "".join(caught.value.__notes__), "the worker's traceback is a note"
    with pytest.raises(SerializationError, match="must pickle"):
        list(pool.map(lambda number: number, [1]))
    with pytest.raises(SerializationError, match="must pickle"):
        pool.put(lambda: 1)
    assert list(pool.map(abs, [-1])) == [1]


def test_a_function_that_workers_cannot_import(pool: ProcessesExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sent, "only_here", _here, raising=False)
    _here.__module__, _here.__qualname__, _here.__name__ = sent.__name__, "only_here", "only_here"
    with pytest.raises(SerializationError, match="define its function in a module"):
        list(pool.map(_here, [1]))


def test_large_objects_and_results(pool: ProcessesExecutor) -> None:
    handle = pool.put(bytes(5_000_000))
    assert list(pool.map(sent.length, [handle] * 4)) == [5_000_000] * 4
    assert [len(result) for result in pool.map(bytes, [5_000_000] * 6)] == [5_000_000] * 6


def test_stores_in_memory_are_refused(two: ProcessesExecutor) -> None:
    zarr = pytest.importorskip("zarr")
    stage = make_stage(0, 2)
    memory = zarr.storage.MemoryStore()
    for store in (memory, zarr.storage.LoggingStore(memory), "memory://somewhere", lambda: None):
        refused = Stage(number=0, plan=stage.plan, source=stage.source, target=ArrayRef(store=store))
        with pytest.raises(StorageError, match="executor='threads'"):
            two.staged_copy([refused])
    assert workers_of(two) == []


def test_live_stores_on_disk_are_not_refused(pool: ProcessesExecutor, tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr")
    stage = make_stage(0, 2)
    live = Stage(
        number=0, plan=stage.plan, source=stage.source, target=ArrayRef(store=zarr.storage.LocalStore(tmp_path))
    )
    (tmp_path / "log").mkdir()
    pool.task_function = Recording(tmp_path / "log")
    assert pool.staged_copy([live]).tasks == 2


def test_it_can_be_used_from_another_thread(tmp_path: Path) -> None:
    reports = []
    with ProcessesExecutor(1) as executor:
        executor.task_function = Recording(tmp_path)
        thread = threading.Thread(target=lambda: reports.append(executor.staged_copy([make_stage(0, 5)])))
        thread.start()
        thread.join()
        assert executor.staged_copy([make_stage(0, 5)]).tasks == 5
    assert reports[0].tasks == 5


def test_an_interrupt_stops_the_workers_at_once_and_the_pool_lives_on(pool: ProcessesExecutor, tmp_path: Path) -> None:
    pool.task_function = recording = Recording(tmp_path, seconds=FOREVER_S)
    with interrupted_when(lambda: len(recording.tries()) == 2):
        pool.staged_copy([make_stage(0, 10)])
    assert recording.entries() == []
    assert workers_of(pool) == []
    pool.task_function = Recording(tmp_path)
    assert pool.staged_copy([make_stage(0, 3)]).tasks == 3


def _here(number: int) -> int:
    return number


def test_a_worker_gives_back_what_a_job_held_before_the_next(tmp_path: Path) -> None:
    source = zarr.create_array(tmp_path / "source", shape=(32, 512, 512), chunks=(1, 512, 512), dtype="f4")
    source[:] = np.random.default_rng(0).random(source.shape, dtype="f4")
    with ProcessesExecutor(1) as pool:
        peaks = []
        for number, (chunk, budget) in enumerate([(512, "400MB"), (64, "12MB")]):
            target = tmp_path / f"target-{number}"
            job = rx.rechunk(source, (32, chunk, chunk), budget, target, executor=pool, progress=False)
            job.execute()
            assert job.report is not None
            peaks.append(job.report.peak_bytes - job.plan.peak_bytes)
    assert peaks[1] < OVERRUN_BYTES


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_pool_works_after_a_job_in_its_parent(tmp_path: Path) -> None:
    script = """
import multiprocessing, sys
from concurrent.futures import ProcessPoolExecutor
import numpy as np, zarr
import rechunk_exec as rx
folder = sys.argv[1]
source = zarr.create_array(folder + "/source", data=np.arange(24.0).reshape(4, 6), chunks=(1, 6))
rx.rechunk(source, (4, 2), "1MB", folder + "/one", executor="serial", progress=False).execute()
with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("fork")) as pool:
    two = rx.rechunk(folder + "/source", (4, 2), "1MB", folder + "/two", executor=pool, progress=False).execute()
assert (two[:] == source[:]).all()
"""
    command = [sys.executable, "-W", "ignore", "-c", script, str(tmp_path)]
    subprocess.run(
        command, check=True, timeout=PATIENCE_S, env=os.environ | {"PYTHONPATH": str(Path(rx.__file__).parents[1])}
    )
