"""What our pools do besides the public contract, as test classes to derive from: one subclass a back end.

What any executor must do is in :mod:`rechunk_exec.testing`, and test_contract.py derives from that. Here a task
function is put in place of the copy, which none but our own pools take: so there may be many tasks, and they move no
bytes. They write what they do to files, which survive the processes that they run in, and fail or die as they are told.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import ClassVar

import pytest

from rechunk_exec.errors import RechunkError, TaskError
from rechunk_exec.executors import PoolExecutor
from rechunk_exec.results import Event
from rechunk_exec.tasks import CopyTask, Stage
from tests.executors.recording import ALWAYS, InjectedError, Recording, TravellingError, make_stage, most_at_once


class PoolContract:
    """What ``staged_copy`` does with many tasks, and says of one that fails."""

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

    @pytest.mark.parametrize("tasks_per_worker", [1, 2])
    def test_no_more_tasks_at_once_in_a_worker_than_planned(
        self, executor: PoolExecutor, tmp_path: Path, tasks_per_worker: int
    ) -> None:
        executor.task_function = recording = Recording(tmp_path, seconds=0.02)
        executor.staged_copy([make_stage(0, 12, tasks_per_worker=tasks_per_worker)])
        pids = {entry["pid"] for entry in recording.entries()}
        for pid in pids:
            assert most_at_once([entry for entry in recording.entries() if entry["pid"] == pid]) <= tasks_per_worker

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
            executor.staged_copy([make_stage(0, 1000, tasks_per_worker=executor.tasks_per_worker)])
        ended = time.monotonic()
        tried = recording.tries()
        time.sleep(0.3)
        assert recording.tries() == tried, "a task was started after the error"
        assert len(tried) < 300
        assert {(entry["stage"], entry["index"]) for entry in recording.entries()} == tried.keys() - {(0, 0)}
        assert all(entry["ended"] <= ended for entry in recording.entries())

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

    def test_of_a_stage_of_14_million_tasks_only_those_are_made_that_are_run(
        self, executor: PoolExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made: list[int] = []
        make = Stage.__getitem__

        def make_noted(stage: Stage, position: int) -> CopyTask:
            made.append(position)
            return make(stage, position)

        executor.task_function = Recording(tmp_path, fails={(0, 0): ALWAYS})
        monkeypatch.setattr(Stage, "__getitem__", make_noted)
        with pytest.raises(TaskError):
            executor.staged_copy([make_stage(0, 14_000_000)])
        assert len(made) < 2000
        assert len(list(tmp_path.glob("*.tries"))) < 2000


class SurvivorContract(PoolContract):
    """What those pools do that run a task again whose worker died."""

    death: ClassVar[str] = "SIGKILL"
    """What an error says of a worker that was killed."""

    def test_a_task_that_always_kills_its_worker(self, executor: PoolExecutor, tmp_path: Path) -> None:
        executor.task_function = recording = Recording(tmp_path, dies={(0, 3): ALWAYS})
        with pytest.raises(TaskError, match=self.death) as caught:
            executor.staged_copy([make_stage(0, 9)])
        assert caught.value.index == 3
        assert recording.tries()[0, 3] == 3
