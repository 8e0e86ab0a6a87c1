"""Pools of loky, which are ``concurrent.futures`` executors that say how many workers they have."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import pytest

import rechunk_exec as rx
from rechunk_exec.errors import RechunkError, TaskError
from rechunk_exec.executors import FuturesExecutor, PoolExecutor, available_cores, worker_shape
from tests.conftest import needed_module
from tests.executors.recording import Recording, make_stage
from tests.executors.test_futures import OnGivenPool
from tests.jobs import ToldCopy, assert_exact, assert_kept_promises, make_array


def loky_pool(workers: int) -> futures.Executor:
    loky: Any = needed_module("loky")
    pool: futures.Executor = loky.ProcessPoolExecutor(workers)
    return pool


@pytest.fixture(scope="module")
def loky() -> Iterator[futures.Executor]:
    with loky_pool(2) as pool:
        yield pool


class TestLoky(OnGivenPool):
    given = "loky"

    def test_its_shape(self, executor: PoolExecutor) -> None:
        shape = worker_shape(executor)
        assert (shape.workers, shape.tasks_per_worker, shape.elastic) == (2, 1, False)
        assert shape.cores_per_worker == max(1, available_cores() // 2)

    def test_a_job_of_two_stages(self, executor: PoolExecutor, tmp_path: Path) -> None:
        source = make_array(tmp_path / "source.zarr", (37, 41, 29), (2, 41, 29), "u4")
        (tmp_path / "told").mkdir()
        executor.task_function = told = ToldCopy(tmp_path / "told", fails={(0, 1): 1}, seconds=0.01)
        job = rx.rechunk(source, (37, 5, 6), "60kB", tmp_path / "t.zarr", executor=executor, progress=False)
        assert len(job.stages) == 2
        assert_exact(job.execute(), source)
        assert_kept_promises(job)
        assert job.report is not None
        assert job.report.retries == 1
        ends = [entry["ended"] for entry in told.told() if entry["stage"] == 0]
        begins = [entry["began"] for entry in told.told() if entry["stage"] == 1]
        assert max(ends) <= min(begins)


def test_a_pool_whose_worker_died_is_named(tmp_path: Path) -> None:
    with loky_pool(1) as pool:
        executor = FuturesExecutor(pool)
        executor.task_function = Recording(tmp_path, dies={(0, 0): 1})
        with pytest.raises(RechunkError, match="make a new pool, or use executor='processes'") as caught:
            executor.staged_copy([make_stage(0, 5)])
        assert not isinstance(caught.value, TaskError)
