"""What runs inside a worker of Flink, without Flink."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from rechunk_exec.errors import RechunkError, StorageError
from rechunk_exec.executors import sight
from rechunk_exec.executors.flink import ranges_of
from rechunk_exec.executors.flinkworker import RangeWorker
from rechunk_exec.executors.rangework import RangeWork
from rechunk_exec.executors.sight import Landmarks
from rechunk_exec.results import TaskResult
from rechunk_exec.storage import Journal
from rechunk_exec.tasks import ArrayRef, CopyTask, Stage
from tests.executors.recording import make_result, make_stage
from tests.jobs import make_array


@dataclass
class Tries:
    """A task function that counts, and fails as told."""

    fails: dict[int, list[Exception]] = field(default_factory=dict)
    tried: list[int] = field(default_factory=list)

    def __call__(self, task: CopyTask) -> TaskResult:
        self.tried.append(task.index)
        left = self.fails.get(task.index, [])
        if left:
            raise left.pop(0)
        return make_result(task)


@dataclass(frozen=True)
class Context:
    attempt: int = 0

    def get_attempt_number(self) -> int:
        return self.attempt


Make = Callable[..., RangeWorker]


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    make_array(tmp_path / "t.zarr", (4,), (1,))
    return Journal(ArrayRef(store=str(tmp_path / "t.zarr")), "job")


@pytest.fixture
def make(tmp_path: Path, journal: Journal) -> Make:
    def make(function: Tries, *, stage: Stage | None = None, attempt: int = 0, **fields: Any) -> RangeWorker:
        work = RangeWork(
            stage=replace(stage or make_stage(1, 20), job="job", journal=ArrayRef(store=str(tmp_path / "t.zarr"))),
            run=fields.pop("run", str(tmp_path)),
            landmarks=Landmarks(paths=(str(tmp_path),), arrays=()),
            function=function,
        )
        worker = RangeWorker(work=replace(work, **fields), cores=None)
        worker.open(Context(attempt))
        return worker

    return make


def noted(journal: Journal) -> dict[int, int]:
    """The attempts of each task of stage 1 that was noted."""
    return {index: result.attempts for (stage, index), result in journal.results().items() if stage == 1}


def test_a_range_is_one_document(make: Make, journal: Journal, tmp_path: Path) -> None:
    tries = Tries()
    worker = make(tries)
    assert list(worker.process_element((3, 9), None)) == []
    assert tries.tried == [3, 4, 5, 6, 7, 8]
    assert noted(journal) == dict.fromkeys(range(3, 9), 1)
    assert len(list((tmp_path / "t.zarr/.rechunk_exec/job/done").iterdir())) == 1
    worker.close()


def test_numbers_are_those_of_the_tasks_that_are_left(make: Make, journal: Journal) -> None:
    tries = Tries()
    make(tries, stage=replace(make_stage(1, 20), left=((2, 4), (10, 13)))).process_element((1, 4), None)
    assert tries.tried == [3, 10, 11]
    assert set(noted(journal)) == {3, 10, 11}


def test_a_task_is_tried_three_times(make: Make, journal: Journal) -> None:
    tries = Tries({1: [OSError("one"), ValueError("two")]})
    make(tries).process_element((0, 3), None)
    assert tries.tried == [0, 1, 1, 1, 2]
    assert noted(journal) == {0: 1, 1: 3, 2: 1}
    assert journal.failures() == ()


def test_a_task_that_always_fails_is_noted_and_nothing_more_is_begun(make: Make, journal: Journal) -> None:
    tries = Tries({1: [LookupError(str(number)) for number in range(9)]})
    worker = make(tries)
    worker.process_element((0, 5), None)
    worker.process_element((5, 9), None)
    assert tries.tried == [0, 1, 1, 1]
    assert noted(journal) == {0: 1}, "what was done in its range is not lost"
    (failure,) = journal.failures()
    assert (failure.stage, failure.index, failure.message) == (1, 1, "LookupError: 2")


def test_what_cannot_get_better_is_not_tried_again(make: Make, journal: Journal) -> None:
    tries = Tries({0: [StorageError("the disk is full", permanent=True)] * 3})
    make(tries).process_element((0, 2), None)
    assert tries.tried == [0]
    assert journal.failures()[0].message == "StorageError: the disk is full"


def test_a_worker_stops_where_another_has_failed(make: Make) -> None:
    first, second = Tries({0: [OSError("x")] * 3}), Tries()
    make(first).process_element((0, 1), None)
    make(second, run="in another process").process_element((1, 20), None)
    assert second.tried == []


def test_another_attempt_passes_over_what_was_noted(make: Make, journal: Journal) -> None:
    make(Tries()).process_element((0, 3), None)
    tries = Tries({4: [OSError("x")]})
    worker = make(tries, attempt=1)
    worker.process_element((0, 3), None)
    worker.process_element((3, 5), None)
    assert tries.tried == [3, 4, 4]
    assert noted(journal) == {0: 1, 1: 1, 2: 1, 3: 2, 4: 3}


def test_a_worker_that_does_not_see_the_arrays(make: Make, tmp_path: Path) -> None:
    blind = Landmarks(paths=(str(tmp_path / "elsewhere"),), arrays=())
    with pytest.raises(StorageError, match=r"must see the arrays.*elsewhere: it does not exist there"):
        make(Tries(), landmarks=blind)


def test_a_worker_of_another_version(make: Make) -> None:
    with pytest.raises(RechunkError, match=r"99\.0"):
        make(Tries(), versions={**sight.versions(), "rechunk_exec": "99.0"})


def test_what_travels_does_not_grow_with_the_tasks(make: Make) -> None:
    sizes = [len(pickle.dumps(make(Tries(), stage=make_stage(1, tasks)))) for tasks in (10, 14_000_000)]
    assert max(sizes) < 4000
    assert sizes[1] - sizes[0] < 20


@pytest.mark.parametrize(
    "tasks, workers", [(0, 1), (1, 4), (63, 2), (1000, 4), (7001, 3), (14_000_000, 2), (10**9, 64)]
)
def test_ranges_are_all_of_the_tasks(tasks: int, workers: int) -> None:
    ranges = ranges_of(tasks, workers)
    assert len(ranges) <= 10_000
    assert [first for first, _ in ranges[1:]] == [stop for _, stop in ranges[:-1]]
    assert (ranges[0][0], ranges[-1][1]) == (0, tasks) if tasks else not ranges
    assert all(first < stop for first, stop in ranges)
    assert len(ranges) >= min(tasks, 8 * workers), "no worker gets much more than another"
