"""What any executor must do, as test classes to derive from: one subclass a back end.

Tasks move no bytes here. They write what they do to files, which survive the processes that they run in, and fail or
die where they are told to.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from rechunk_exec.errors import RechunkError, TaskError
from rechunk_exec.executors import PoolExecutor, Shared, WorkerShape, worker_shape
from rechunk_exec.results import Event
from tests.executors.recording import ALWAYS, InjectedError, Recording, TravellingError, make_stage, most_at_once


class ExecutorContract:
    """What ``staged_copy`` promises."""

    def make(self) -> PoolExecutor:
        """A new executor of two or more workers, if it can have them."""
        raise NotImplementedError

    _reused: ClassVar[PoolExecutor | None] = None

    @pytest.fixture
    def executor(self) -> PoolExecutor:
        """An executor that other tests have used and will use: a pool serves job after job."""
        cls = type(self)
        if cls._reused is None:
            cls._reused = self.make()
        return cls._reused

    @classmethod
    def teardown_class(cls) -> None:
        if cls._reused is not None:
            cls._reused.close()
            cls._reused = None

    @pytest.fixture
    def fresh(self) -> Iterator[PoolExecutor]:
        """An executor that nobody has used."""
        with self.make() as executor:
            yield executor

    def test_all_tasks_run_once_and_results_are_in_order(self, executor: PoolExecutor, tmp_path: Path) -> None:
        executor.task_function = recording = Recording(tmp_path, slow=frozenset({(0, 1), (1, 0)}))
        stages = [make_stage(number, tasks, tasks_per_worker=2) for number, tasks in ((0, 7), (1, 5))]
        report = executor.staged_copy(stages)
        wanted = [(0, index) for index in range(7)] + [(1, index) for index in range(5)]
        assert [(result.stage, result.index) for result in report.results] == wanted
        assert recording.tries() == dict.fromkeys(wanted, 1)
        assert (report.tasks, report.retries, report.executor) == (12, 0, executor.name)
        assert report.seconds > 0

    def test_barrier(self, executor: PoolExecutor, tmp_path: Path) -> None:
        executor.task_function = recording = Recording(tmp_path, seconds=0.02)
        executor.staged_copy([make_stage(stage, 6) for stage in range(3)])
        for stage in range(2):
            ends = [entry["ended"] for entry in recording.entries() if entry["stage"] == stage]
            begins = [entry["began"] for entry in recording.entries() if entry["stage"] == stage + 1]
            assert max(ends) <= min(begins)

    @pytest.mark.parametrize("tasks_per_worker", [1, 2])
    def test_no_more_tasks_at_once_in_a_worker_than_planned(
        self, executor: PoolExecutor, tmp_path: Path, tasks_per_worker: int
    ) -> None:
        executor.task_function = recording = Recording(tmp_path, seconds=0.02)
        executor.staged_copy([make_stage(0, 12, tasks_per_worker=tasks_per_worker)])
        pids = {entry["pid"] for entry in recording.entries()}
        for pid in pids:
            assert most_at_once([entry for entry in recording.entries() if entry["pid"] == pid]) <= tasks_per_worker

    def test_a_task_that_fails_twice_is_run_three_times(self, executor: PoolExecutor, tmp_path: Path) -> None:
        executor.task_function = recording = Recording(tmp_path, fails={(0, 2): 2, (1, 0): 1})
        events: list[Event] = []
        report = executor.staged_copy([make_stage(0, 5), make_stage(1, 2)], on_event=events.append)
        once = {(0, index): 1 for index in range(5)} | {(1, index): 1 for index in range(2)}
        assert recording.tries() == once | {(0, 2): 3, (1, 0): 2}
        assert report.retries == 3
        assert {(r.stage, r.index): r.attempts for r in report.results} == recording.tries()
        retried = Counter((event.stage, event.index) for event in events if event.kind == "retry")
        assert retried == {(0, 2): 2, (1, 0): 1}
        assert "TravellingError" in next(event.message for event in events if event.kind == "retry")

    @pytest.mark.parametrize("error", [TravellingError, InjectedError])
    def test_a_task_that_always_fails(self, executor: PoolExecutor, tmp_path: Path, error: type[Exception]) -> None:
        executor.task_function = recording = Recording(tmp_path, fails={(0, 1): ALWAYS}, error=error)
        events: list[Event] = []
        with pytest.raises(TaskError, match="task 1 of stage 0") as caught:
            executor.staged_copy([make_stage(0, 50), make_stage(1, 3)], on_event=events.append)
        assert (caught.value.stage, caught.value.index) == (0, 1)
        assert error.__name__ in str(caught.value)
        assert "/nowhere/a" in str(caught.value)
        assert "(1,)" in str(caught.value)
        cause = caught.value.__cause__
        assert isinstance(cause, error if error is TravellingError else (error, RechunkError))
        assert error.__name__ in f"{type(cause).__name__}: {cause}"
        assert recording.tries()[0, 1] == 3
        assert not [key for key in recording.tries() if key[0] == 1]
        assert sum(event.kind == "retry" for event in events) == 2

    def test_other_tasks_are_waited_for_and_none_is_started(self, executor: PoolExecutor, tmp_path: Path) -> None:
        executor.task_function = recording = Recording(tmp_path, fails={(0, 0): ALWAYS}, seconds=0.1)
        with pytest.raises(TaskError):
            executor.staged_copy([make_stage(0, 100, tasks_per_worker=executor.tasks_per_worker)])
        ended = time.monotonic()
        tried = recording.tries()
        time.sleep(0.3)
        assert recording.tries() == tried, "a task was started after the error"
        assert len(tried) < 30
        assert {(entry["stage"], entry["index"]) for entry in recording.entries()} == tried.keys() - {(0, 0)}
        assert all(entry["ended"] <= ended for entry in recording.entries())

    def test_the_executor_can_be_used_after_a_failure(self, executor: PoolExecutor, tmp_path: Path) -> None:
        executor.task_function = Recording(tmp_path, fails={(0, 0): 3})
        with pytest.raises(TaskError):
            executor.staged_copy([make_stage(0, 4)])
        assert executor.staged_copy([make_stage(0, 4)]).tasks == 4

    def test_events_tell_the_total_once_and_each_task_once(self, executor: PoolExecutor, tmp_path: Path) -> None:
        executor.task_function = Recording(tmp_path)
        events: list[Event] = []
        threads = set()

        def listen(event: Event) -> None:
            events.append(event)
            threads.add(threading.get_ident())

        report = executor.staged_copy([make_stage(0, 4), make_stage(1, 0), make_stage(2, 3)], on_event=listen)
        assert events[0] == Event(kind="start", total=7)
        assert {event.kind for event in events[1:]} == {"task"}
        told = sorted((event.result for event in events[1:] if event.result), key=lambda r: (r.stage, r.index))
        assert tuple(told) == report.results
        assert [(e.stage, e.index) for e in events[1:]] == [(r.stage, r.index) for e in events[1:] if (r := e.result)]
        assert threads == {threading.get_ident()}

    def test_a_listener_that_raises_stops_the_run(self, executor: PoolExecutor, tmp_path: Path) -> None:
        executor.task_function = recording = Recording(tmp_path, seconds=0.02)

        def listen(event: Event) -> None:
            if event.kind == "task":
                raise LookupError("listener")

        with pytest.raises(LookupError, match="listener"):
            executor.staged_copy([make_stage(0, 100)], on_event=listen)
        tried = recording.tries()
        assert {(entry["stage"], entry["index"]) for entry in recording.entries()} == tried.keys()
        assert len(tried) < 50

    def test_running_again_is_harmless(self, executor: PoolExecutor, tmp_path: Path) -> None:
        executor.task_function = recording = Recording(tmp_path)
        stages = [make_stage(0, 3), make_stage(1, 3)]
        first, second = executor.staged_copy(stages), executor.staged_copy(stages)
        assert first.results == second.results
        assert set(recording.tries().values()) == {2}

    def test_empty_stages(self, executor: PoolExecutor, tmp_path: Path) -> None:
        executor.task_function = Recording(tmp_path)
        events: list[Event] = []
        assert executor.staged_copy([], on_event=events.append).results == ()
        assert executor.staged_copy([make_stage(0, 0)], on_event=events.append).results == ()
        assert events == [Event(kind="start", total=0)] * 2

    def test_a_stage_of_14_million_tasks_starts_at_once(self, executor: PoolExecutor, tmp_path: Path) -> None:
        executor.task_function = Recording(tmp_path, fails={(0, 0): ALWAYS})
        executor.staged_copy([make_stage(0, 1)][:0])
        began = time.monotonic()
        with pytest.raises(TaskError):
            executor.staged_copy([make_stage(0, 14_000_000)])
        assert time.monotonic() - began < 20
        assert len(list(tmp_path.glob("*.tries"))) < 2000

    def test_its_workers_are_told_of(self, executor: PoolExecutor) -> None:
        shape = worker_shape(executor)
        assert isinstance(shape, WorkerShape)
        assert shape.tasks_per_worker == executor.tasks_per_worker >= 1
        assert shape.workers >= 1
        assert shape.cores_per_worker >= 1


class PoolContract(ExecutorContract):
    """What ``map``, ``put``, ``run_on_workers`` and ``close`` promise."""

    def test_map_gives_results_in_order(self, executor: PoolExecutor) -> None:
        assert list(executor.map(_slow_square, range(12))) == [number**2 for number in range(12)]

    def test_map_of_nothing(self, executor: PoolExecutor) -> None:
        assert list(executor.map(_slow_square, [])) == []

    @pytest.mark.parametrize("window", [1, 3, None])
    def test_map_takes_no_more_than_its_window(self, executor: PoolExecutor, window: int | None) -> None:
        taken: list[int] = []

        def endless() -> Iterator[int]:
            while True:
                taken.append(len(taken))
                yield taken[-1]

        results = executor.map(_slow_square, endless(), window=window)
        for number in range(10):
            assert next(results) == number**2
            assert len(taken) <= number + 1 + (window or 2 * worker_shape(executor).workers * executor.tasks_per_worker)
        results.close()  # type: ignore[attr-defined]

    def test_map_raises_what_the_function_raised(self, executor: PoolExecutor) -> None:
        results = executor.map(_refuse_three, range(10))
        assert [next(results) for _ in range(3)] == [0, 1, 2]
        with pytest.raises(ValueError, match="three"):
            next(results)
        assert list(executor.map(_refuse_three, [4])) == [4]

    def test_map_survives_what_is_no_exception(self, executor: PoolExecutor) -> None:
        with pytest.raises(RechunkError, match="SystemExit"):
            list(executor.map(_leave, [3]))
        assert list(executor.map(abs, [-1])) == [1]

    def test_map_passes_on_what_its_tasks_raise(self, executor: PoolExecutor) -> None:
        def broken() -> Iterator[int]:
            yield 1
            raise LookupError("tasks")

        with pytest.raises(LookupError, match="tasks"):
            list(executor.map(abs, broken()))
        assert list(executor.map(abs, [-1])) == [1]

    @pytest.mark.parametrize("window, error", [(0, ValueError), (True, TypeError), ("2", TypeError)])
    def test_map_refuses_wrong_windows(self, executor: PoolExecutor, window: Any, error: type[Exception]) -> None:
        with pytest.raises(error, match="window"):
            executor.map(abs, [1], window=window)
        with pytest.raises(TypeError, match="function"):
            executor.map(3, [1])  # type: ignore[arg-type]

    def test_one_job_at_a_time(self, executor: PoolExecutor) -> None:
        results = executor.map(_slow_square, range(5))
        next(results)
        with pytest.raises(RechunkError, match="one job at a time"):
            next(executor.map(_slow_square, range(5)))
        with pytest.raises(RechunkError, match="one job at a time"):
            executor.staged_copy([make_stage(0, 2)])
        assert list(results) == [1, 4, 9, 16]
        assert list(executor.map(abs, [-1])) == [1]

    def test_put_is_sent_once_a_worker(self, executor: PoolExecutor, tmp_path: Path) -> None:
        handle = executor.put(Witness(tmp_path, 5))
        assert handle.value.number == 5
        results = list(executor.map(_use, [(handle, number) for number in range(20)]))
        assert [number for number, _ in results] == [5 + number for number in range(20)]
        pids = {pid for _, pid in results} - {os.getpid()}
        loaded = [int(path.name.split("-")[1]) for path in tmp_path.glob("loaded-*")]
        assert len(loaded) == len(set(loaded))
        assert set(loaded) - {os.getpid()} == pids
        assert len(list(tmp_path.glob("packed-*"))) == (1 if loaded else 0)

    def test_handles_inside_shared_objects(self, executor: PoolExecutor, tmp_path: Path) -> None:
        inner = executor.put(Witness(tmp_path, 5))
        outer = executor.put({"inner": inner})
        results = list(executor.map(_use_nested, [outer] * 4))
        assert results == [5] * 4

    def test_run_on_workers_runs_once_in_each(self, fresh: PoolExecutor, tmp_path: Path) -> None:
        fresh.run_on_workers(Mark(tmp_path, "early"))
        pids = set(fresh.map(_slow_pid, range(12)))
        fresh.run_on_workers(Mark(tmp_path, "late"))
        pids |= set(fresh.map(_slow_pid, range(12)))
        for name in ("early", "late"):
            marked = [int(path.name.split("-")[1]) for path in tmp_path.glob(f"{name}-*")]
            assert len(marked) == len(set(marked))
            assert set(marked) >= pids

    def test_run_on_workers_passes_on_failure(self, fresh: PoolExecutor) -> None:
        with pytest.raises((RechunkError, ValueError), match="set-up"):
            _set_up_and_use(fresh)

    def test_closing(self, fresh: PoolExecutor) -> None:
        assert list(fresh.map(abs, [-1])) == [1]
        fresh.close()
        fresh.close()
        with pytest.raises(RechunkError, match="closed"):
            list(fresh.map(abs, [-1]))
        with pytest.raises(RechunkError, match="closed"):
            fresh.staged_copy([])
        with pytest.raises(RechunkError, match="closed"):
            fresh.run_on_workers(_refuse)


class SurvivorContract(PoolContract):
    """What pools promise that run a task again whose worker died."""

    death: ClassVar[str] = "SIGKILL"
    """What an error says of a worker that was killed."""

    def test_a_killed_worker_costs_only_its_task(self, executor: PoolExecutor, tmp_path: Path) -> None:
        executor.task_function = recording = Recording(tmp_path, dies={(0, 3): 2, (1, 0): 1}, seconds=0.01)
        report = executor.staged_copy([make_stage(0, 9), make_stage(1, 2)])
        once = {(0, index): 1 for index in range(9)} | {(1, index): 1 for index in range(2)}
        assert recording.tries() == once | {(0, 3): 3, (1, 0): 2}
        assert report.retries == 3

    def test_a_task_that_always_kills_its_worker(self, executor: PoolExecutor, tmp_path: Path) -> None:
        executor.task_function = recording = Recording(tmp_path, dies={(0, 3): ALWAYS})
        with pytest.raises(TaskError, match=self.death) as caught:
            executor.staged_copy([make_stage(0, 9)])
        assert caught.value.index == 3
        assert recording.tries()[0, 3] == 3

    def test_run_on_workers_comes_before_the_tasks_of_a_worker_that_joins(
        self, fresh: PoolExecutor, tmp_path: Path
    ) -> None:
        fresh.run_on_workers(Mark(tmp_path, "set"))
        before = {path.name for path in tmp_path.glob("set-*")}
        workers = worker_shape(fresh).workers
        fresh.task_function = recording = Recording(tmp_path, dies={(0, index): 1 for index in range(workers)})
        fresh.staged_copy([make_stage(0, 30)])
        marked = [int(path.name.split("-")[1]) for path in tmp_path.glob("set-*")]
        assert len(marked) == len(set(marked)) > len(before)
        assert {entry["pid"] for entry in recording.entries()} <= set(marked)


class Witness:
    """Writes down when it is packed and unpacked."""

    def __init__(self, folder: Path, number: int) -> None:
        self.folder = folder
        self.number = number

    def __getstate__(self) -> dict[str, Any]:
        (self.folder / f"packed-{os.getpid()}-{time.monotonic_ns()}").touch()
        return self.__dict__

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        (self.folder / f"loaded-{os.getpid()}-{time.monotonic_ns()}").touch()


@dataclass(frozen=True)
class Mark:
    """A set-up function that leaves a file."""

    folder: Path
    name: str

    def __call__(self) -> None:
        (self.folder / f"{self.name}-{os.getpid()}-{time.monotonic_ns()}").touch()


def _slow_square(number: int) -> int:
    time.sleep(0.01 if number % 3 else 0.03)
    return number**2


def _slow_pid(number: int) -> int:
    time.sleep(0.01)
    return os.getpid()


def _refuse_three(number: int) -> int:
    if number == 3:
        raise ValueError("three")
    return number


def _refuse() -> None:
    raise ValueError("set-up")


def _set_up_and_use(executor: PoolExecutor) -> None:
    executor.run_on_workers(_refuse)
    list(executor.map(abs, [-1]))  # a pool whose workers nobody can address has not called it before


def _leave(number: int) -> None:
    raise SystemExit(number)


def _use(task: tuple[Shared[Witness], int]) -> tuple[int, int]:
    time.sleep(0.005)
    handle, number = task
    return handle.value.number + number, os.getpid()


def _use_nested(outer: Shared[dict[str, Shared[Witness]]]) -> int:
    return outer.value["inner"].value.number
