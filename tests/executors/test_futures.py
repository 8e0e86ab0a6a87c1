from __future__ import annotations

import multiprocessing
import os
import pickle
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path
from typing import Any, ClassVar

import pytest

from rechunk_exec.errors import RechunkError, SerializationError, StorageError, TaskError
from rechunk_exec.executors import FuturesExecutor, PoolExecutor, resolve, worker_shape
from rechunk_exec.executors.machine import available_cores
from rechunk_exec.tasks import ArrayRef, Stage
from rechunk_exec.testing.calls import Witness
from tests.executors.contract import PoolContract
from tests.executors.recording import Recording, make_stage


def spawning_pool(workers: int) -> futures.ProcessPoolExecutor:
    return futures.ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))


class ForeignPool(futures.Executor):
    """A pool that says nothing about itself, such as those of other libraries, and counts what is sent."""

    def __init__(self, pool: futures.Executor | None = None) -> None:
        self._pool = pool or spawning_pool(2)
        self.sent_bytes: list[int] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> futures.Future[Any]:
        self.sent_bytes.append(len(pickle.dumps((fn, args, kwargs))))
        return self._pool.submit(fn, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._pool.shutdown(wait, cancel_futures=cancel_futures)


class SameThreadPool(futures.Executor):
    """Runs each call at once, where it is submitted."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> futures.Future[Any]:
        future: futures.Future[Any] = futures.Future()
        future.set_result(fn(*args, **kwargs))
        return future


@pytest.fixture(scope="module")
def threads() -> Iterator[futures.Executor]:
    with futures.ThreadPoolExecutor(4) as pool:
        yield pool


@pytest.fixture(scope="module")
def spawned() -> Iterator[futures.Executor]:
    """Two processes, for all tests that need two and leave them as they are."""
    with spawning_pool(2) as pool:
        yield pool


class OnGivenPool(PoolContract):
    given: ClassVar[str]
    """The fixture that is the pool."""
    pool: ClassVar[futures.Executor]

    @pytest.fixture(autouse=True)
    def _given(self, request: pytest.FixtureRequest) -> None:
        if "pool" not in vars(type(self)):
            type(self).pool = self.wrapped(request.getfixturevalue(self.given))

    @classmethod
    def teardown_class(cls) -> None:
        super().teardown_class()
        assert cls.pool.submit(abs, -1).result() == 1, "a pool that was given is not shut down"

    def wrapped(self, pool: futures.Executor) -> futures.Executor:
        return pool

    def make(self) -> PoolExecutor:
        executor = resolve(self.pool)
        assert isinstance(executor, FuturesExecutor)
        return executor


class TestThreadPool(OnGivenPool):
    given = "threads"

    def test_its_shape(self, executor: PoolExecutor) -> None:
        shape = worker_shape(executor)
        assert (shape.workers, shape.tasks_per_worker, shape.elastic) == (1, 4, True)
        assert shape.cores_per_worker == available_cores()
        assert executor.name == "ThreadPoolExecutor"


class TestProcessPool(OnGivenPool):
    given = "spawned"

    def test_its_shape(self, executor: PoolExecutor) -> None:
        shape = worker_shape(executor)
        assert (shape.workers, shape.tasks_per_worker, shape.elastic) == (2, 1, False)
        assert shape.cores_per_worker == max(1, available_cores() // 2)

    def test_stores_in_memory_are_refused(self, executor: PoolExecutor) -> None:
        with pytest.raises(StorageError, match=r"ProcessPoolExecutor.*memory"):
            executor.staged_copy([stage_in_memory()])


class TestForeignPool(OnGivenPool):
    given = "spawned"

    def wrapped(self, pool: futures.Executor) -> futures.Executor:
        return ForeignPool(pool)

    def test_its_shape(self, executor: PoolExecutor) -> None:
        shape = worker_shape(executor)
        assert (shape.workers, shape.tasks_per_worker) == (available_cores(), 1)

    def test_little_is_sent_a_task(self, executor: PoolExecutor, tmp_path: Path) -> None:
        executor.task_function = Recording(tmp_path)
        sent_bytes = self.pool.sent_bytes  # type: ignore[attr-defined]
        del sent_bytes[:]
        executor.staged_copy([make_stage(0, 50)])
        assert len(sent_bytes) <= 50 + 20, "a few calls are sent again, with the stage enclosed"
        assert max(sent_bytes) < 4000


class TestSameThreadPool(OnGivenPool):
    given = "threads"

    def wrapped(self, pool: futures.Executor) -> futures.Executor:
        return SameThreadPool()


def stage_in_memory() -> Stage:
    zarr = pytest.importorskip("zarr")
    stage = make_stage(0, 2)
    return Stage(number=0, plan=stage.plan, source=stage.source, target=ArrayRef(store=zarr.storage.MemoryStore()))


@pytest.fixture(scope="module")
def processes() -> Iterator[futures.ProcessPoolExecutor]:
    """A worker, for all tests that do not kill it."""
    with spawning_pool(1) as pool:
        yield pool


def test_a_pool_whose_worker_died_is_named(tmp_path: Path) -> None:
    with spawning_pool(1) as pool:
        executor = FuturesExecutor(pool)
        executor.task_function = Recording(tmp_path, dies={(0, 0): 1})
        with pytest.raises(RechunkError, match="make a new pool, or use executor='processes'") as caught:
            executor.staged_copy([make_stage(0, 5)])
        assert not isinstance(caught.value, TaskError)
        with pytest.raises(RechunkError, match="make a new pool"):
            executor.staged_copy([make_stage(0, 5)])


def test_a_pool_that_was_shut_down_is_named(tmp_path: Path) -> None:
    with futures.ThreadPoolExecutor(1) as pool:
        executor = FuturesExecutor(pool)
    with pytest.raises(RechunkError, match="keep it open"):
        executor.staged_copy([make_stage(0, 1)])


def test_an_object_is_sent_again_to_a_worker_that_lost_it(
    processes: futures.ProcessPoolExecutor, tmp_path: Path
) -> None:
    executor = FuturesExecutor(processes)
    handle = executor.put(Witness(tmp_path, 7))
    assert list(executor.map(_number, [handle])) == [7]
    others = [executor.put(number) for number in range(100)]
    assert list(executor.map(_value, others)) == list(range(100))
    assert list(executor.map(_number, [handle])) == [7]
    assert len(list(tmp_path.glob("loaded-*"))) == 2
    many = [executor.put(number) for number in range(200)]
    assert list(executor.map(_sum, [many])) == [sum(range(200))]


def test_set_up_is_called_before_the_calls_that_follow(processes: futures.ProcessPoolExecutor) -> None:
    executor = FuturesExecutor(processes)
    assert list(executor.map(os.getenv, ["RECHUNK_EXEC_SET_UP"])) == [None]
    executor.run_on_workers(_set_variable)
    assert list(executor.map(os.getenv, ["RECHUNK_EXEC_SET_UP"])) == ["yes"]


def test_calls_that_cannot_travel(processes: futures.ProcessPoolExecutor) -> None:
    executor = FuturesExecutor(processes)
    with pytest.raises(SerializationError, match="must pickle"):
        list(executor.map(lambda number: number, [1]))
    with pytest.raises(SerializationError, match="must pickle"):
        list(executor.map(str, [lambda: 1]))
    with pytest.raises(SerializationError, match="what a call returns must pickle"):
        list(executor.map(_return_lambda, [1]))
    assert list(executor.map(abs, [-1])) == [1]


def test_calls_that_were_cancelled_from_outside_fail(tmp_path: Path) -> None:
    class Cancelling(futures.Executor):
        def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> futures.Future[Any]:
            future: futures.Future[Any] = futures.Future()
            future.cancel()
            return future

    with pytest.raises(TaskError, match="cancelled"):
        FuturesExecutor(Cancelling()).staged_copy([make_stage(0, 1)])


def test_a_job_that_ends_badly_leaves_no_call_behind() -> None:
    with futures.ThreadPoolExecutor(4) as pool:
        executor = FuturesExecutor(pool)
        ended: list[float] = []
        results = executor.map(_Sleeper(ended), range(100))
        next(results)
        results.close()  # type: ignore[attr-defined]
        at_close = len(ended)
        time.sleep(0.1)
        assert len(ended) == at_close


def test_a_pool_that_forks_is_noted(tmp_path: Path) -> None:
    with futures.ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as pool:
        executor = FuturesExecutor(pool)
        assert "spawn" in executor.staged_copy([]).warnings[0]
    with spawning_pool(1) as pool:
        assert FuturesExecutor(pool).staged_copy([]).warnings == ()


@pytest.mark.parametrize("workers, error", [(0, ValueError), (-1, ValueError), ("2", TypeError), (True, TypeError)])
def test_wrong_options(workers: Any, error: type[Exception]) -> None:
    with futures.ThreadPoolExecutor(1) as pool, pytest.raises(error, match="workers"):
        FuturesExecutor(pool, workers=workers)
    with pytest.raises(TypeError, match="Executor"):
        FuturesExecutor("threads")  # type: ignore[arg-type]


def test_workers_may_be_told() -> None:
    assert worker_shape(FuturesExecutor(SameThreadPool(), workers=5)).workers == 5


class _Sleeper:
    def __init__(self, ended: list[float]) -> None:
        self.ended = ended

    def __call__(self, number: int) -> None:
        time.sleep(0.03)
        self.ended.append(time.monotonic())


def _number(handle: Any) -> int:
    number: int = handle.value.number
    return number


def _value(handle: Any) -> int:
    number: int = handle.value
    return number


def _sum(handles: Any) -> int:
    return sum(handle.value for handle in handles)


def _set_variable() -> None:
    os.environ["RECHUNK_EXEC_SET_UP"] = "yes"


def _return_lambda(number: int) -> Callable[[], int]:
    return lambda: number
