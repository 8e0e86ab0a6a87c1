"""What pools of workers promise besides: ``map``, ``put``, ``run_on_workers`` and ``close``. Layer: testing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar, cast, runtime_checkable

import pytest

import rechunk_exec as rx
from rechunk_exec.executors import Executor, Shared, resolve, worker_shape
from rechunk_exec.testing import calls
from rechunk_exec.testing.contract import ExecutorContract
from rechunk_exec.testing.record import Faults
from rechunk_exec.testing.trial import TASKS, Trial

T = TypeVar("T")
R = TypeVar("R")


@runtime_checkable
class Pool(Executor, Protocol):
    """An executor that is a pool of workers; :class:`~rechunk_exec.executors.PoolExecutor` says what each does."""

    def map(self, fn: Callable[[T], R], tasks: Iterable[T], *, window: int | None = None) -> Iterator[R]: ...
    def put(self, obj: T) -> Shared[T]: ...
    def run_on_workers(self, fn: Callable[[], object]) -> None: ...
    def close(self) -> None: ...


class PoolContract(ExecutorContract):
    """Derive from this as from :class:`ExecutorContract`; each executor that is made gets workers of its own.

    Attributes
    ----------
    survives_deaths : bool
        Whether a worker that is killed costs the one task that it was running, and another takes its place.
    """

    survives_deaths: ClassVar[bool] = False

    @pytest.fixture
    def pool(self, executor: Executor) -> Pool:
        """The executor that all tests of the class use."""
        assert isinstance(executor, Pool)
        return executor

    @pytest.fixture
    def surviving(self) -> None:
        """Skip what pools cannot do that do not survive deaths, before one is made for it."""
        if not self.survives_deaths:
            pytest.skip("a stated exception: survives_deaths is false")

    @pytest.fixture
    def fresh(self) -> Iterator[Pool]:
        """An executor that nobody has used."""
        given = self.make_executor()
        executor = cast(Pool, resolve(given))
        try:
            yield executor
        finally:
            executor.close()
            if given is not executor:
                self.end_executor(given)

    @pytest.fixture
    def closing(self, pool: Pool) -> Iterator[Pool]:
        """The executor that all tests of the class use, for its last one; a test after that would get another."""
        yield pool
        self._end_kept()

    # map

    def test_map_gives_results_in_order(self, pool: Pool) -> None:
        assert list(pool.map(calls.slow_square, range(12))) == [number**2 for number in range(12)]
        assert list(pool.map(calls.slow_square, [])) == []

    @pytest.mark.parametrize("window", [1, 3, None])
    def test_map_takes_no_more_than_its_window(self, pool: Pool, window: int | None) -> None:
        taken: list[int] = []

        def endless() -> Iterator[int]:
            while True:
                taken.append(len(taken))
                yield taken[-1]

        results: Any = pool.map(calls.slow_square, endless(), window=window)
        for number in range(10):
            assert next(results) == number**2
            assert len(taken) <= number + 1 + (window or 2 * worker_shape(pool).workers * pool.tasks_per_worker)
        results.close()

    def test_map_raises_what_the_function_raised(self, pool: Pool) -> None:
        results = pool.map(calls.refuse_three, range(10))
        assert [next(results) for _ in range(3)] == [0, 1, 2]
        with pytest.raises(ValueError, match="three"):
            next(results)
        assert list(pool.map(calls.refuse_three, [4])) == [4]

    def test_map_survives_what_is_no_exception(self, pool: Pool) -> None:
        with pytest.raises(rx.RechunkError, match="SystemExit"):
            list(pool.map(calls.leave_python, [3]))
        assert list(pool.map(abs, [-1])) == [1]

    def test_map_passes_on_what_its_tasks_raise(self, pool: Pool) -> None:
        def broken() -> Iterator[int]:
            yield 1
            raise LookupError("tasks")

        with pytest.raises(LookupError, match="tasks"):
            list(pool.map(abs, broken()))
        assert list(pool.map(abs, [-1])) == [1]

    @pytest.mark.parametrize("window, error", [(0, ValueError), (True, TypeError), ("2", TypeError)])
    def test_map_refuses_wrong_windows(self, pool: Pool, window: Any, error: type[Exception]) -> None:
        with pytest.raises(error, match="window"):
            pool.map(abs, [1], window=window)
        with pytest.raises(TypeError, match="function"):
            pool.map(3, [1])  # type: ignore[arg-type]

    def test_one_job_at_a_time(self, pool: Pool, trial: Trial) -> None:
        results = pool.map(calls.slow_square, range(5))
        next(results)
        with pytest.raises(rx.RechunkError, match="one job at a time"):
            list(pool.map(abs, [1]))
        assert "one job at a time" in str(trial.run(pool, "second").error)
        assert list(results) == [1, 4, 9, 16]
        assert list(pool.map(abs, [-1])) == [1]

    # put

    def test_put_is_sent_once_a_worker(self, pool: Pool, tmp_path: Path) -> None:
        handle = pool.put(calls.Witness(tmp_path, 5))
        assert handle.value.number == 5
        results = list(pool.map(calls.use, [(handle, number) for number in range(20)]))
        assert [number for number, _ in results] == [5 + number for number in range(20)]
        loaded = calls.left_by(tmp_path, "loaded")
        assert len(loaded) == len(set(loaded))
        assert set(loaded) - {os.getpid()} == {pid for _, pid in results} - {os.getpid()}
        assert len(calls.left_by(tmp_path, "packed")) == (1 if loaded else 0)

    def test_handles_inside_shared_objects(self, pool: Pool, tmp_path: Path) -> None:
        inner = pool.put(calls.Witness(tmp_path, 5))
        outer = pool.put({"inner": inner})
        assert list(pool.map(calls.use_nested, [outer] * 4)) == [5] * 4  # type: ignore[arg-type]

    # run_on_workers

    def test_run_on_workers_runs_once_in_each(self, fresh: Pool, tmp_path: Path) -> None:
        fresh.run_on_workers(calls.Mark(tmp_path, "early"))
        pids = set(fresh.map(calls.slow_pid, range(12)))
        fresh.run_on_workers(calls.Mark(tmp_path, "late"))
        pids |= set(fresh.map(calls.slow_pid, range(12)))
        for name in ("early", "late"):
            marked = calls.left_by(tmp_path, name)
            assert len(marked) == len(set(marked))
            assert set(marked) >= pids

    def test_run_on_workers_passes_on_failure(self, fresh: Pool) -> None:
        def set_up_and_use() -> None:
            fresh.run_on_workers(calls.refuse)
            list(fresh.map(abs, [-1]))  # a pool whose workers nobody can address has not called it before

        with pytest.raises((rx.RechunkError, ValueError), match="set-up"):
            set_up_and_use()

    # Workers that die, and the end.

    @pytest.mark.usefixtures("surviving")
    def test_a_killed_worker_costs_only_its_task(self, pool: Pool, tmp_path: Path) -> None:
        trial = Trial(tmp_path)
        run = trial.run(pool, "deaths", Faults(dies={(0, 3): 2, (1, 0): 1}))
        if run.error is not None:
            raise run.error
        assert run.tries() == dict.fromkeys(TASKS, 1) | {(0, 3): 3, (1, 0): 2}
        assert run.report is not None
        assert run.report.retries == 3
        assert run.target == trial.values.tobytes()

    @pytest.mark.usefixtures("surviving")
    def test_a_worker_that_joins_later_is_set_up_before_its_tasks(self, fresh: Pool, tmp_path: Path) -> None:
        (tmp_path / "marks").mkdir()
        fresh.run_on_workers(calls.Mark(tmp_path / "marks", "set"))
        before = set(calls.left_by(tmp_path / "marks", "set"))
        workers = worker_shape(fresh).workers
        run = Trial(tmp_path).run(fresh, "deaths", Faults(dies={(0, index): 1 for index in range(workers)}))
        if run.error is not None:
            raise run.error
        pids = set(fresh.map(calls.slow_pid, range(12)))
        marked = calls.left_by(tmp_path / "marks", "set")
        assert len(marked) == len(set(marked)) > len(before)
        assert pids - before, "workers have joined"
        assert pids <= set(marked)

    def test_closing(self, closing: Pool) -> None:
        assert list(closing.map(abs, [-1])) == [1]
        closing.close()
        closing.close()
        with pytest.raises(rx.RechunkError, match="closed"):
            list(closing.map(abs, [-1]))
        with pytest.raises(rx.RechunkError, match="closed"):
            closing.staged_copy([])
        with pytest.raises(rx.RechunkError, match="closed"):
            closing.run_on_workers(calls.refuse)
