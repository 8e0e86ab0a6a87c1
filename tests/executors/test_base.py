from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from rechunk_exec.executors import Executor, SerialExecutor, ThreadsExecutor, WorkerShape, available_cores, worker_shape
from rechunk_exec.executors.base import check_count
from rechunk_exec.results import CopyReport, OnEvent
from rechunk_exec.tasks import Stage


class Foreign:
    name = "foreign"
    tasks_per_worker = 3

    def staged_copy(self, stages: Sequence[Stage], *, on_event: OnEvent | None = None) -> CopyReport:
        return CopyReport(executor=self.name, results=(), seconds=0.0)


def test_who_is_an_executor() -> None:
    foreign: Executor = Foreign()
    assert isinstance(foreign, Executor)
    assert isinstance(SerialExecutor(), Executor)
    assert not isinstance(object(), Executor)


def test_the_shape_of_foreign_workers() -> None:
    cores = available_cores()
    assert worker_shape(Foreign()) == WorkerShape(workers=1, tasks_per_worker=3, cores_per_worker=cores, elastic=False)
    assert worker_shape(object()) == WorkerShape(workers=1, tasks_per_worker=1, cores_per_worker=cores, elastic=False)


def test_a_foreign_executor_that_states_nonsense() -> None:
    foreign = Foreign()
    foreign.tasks_per_worker = 0
    with pytest.raises(ValueError, match="tasks_per_worker must be at least 1; got 0"):
        worker_shape(foreign)


def test_the_shapes_of_those_in_this_process() -> None:
    cores = available_cores()
    assert worker_shape(SerialExecutor()) == WorkerShape(
        workers=1, tasks_per_worker=1, cores_per_worker=cores, elastic=False, here=True
    )
    assert worker_shape(ThreadsExecutor(7)) == WorkerShape(
        workers=1, tasks_per_worker=7, cores_per_worker=cores, elastic=True, here=True
    )
    assert worker_shape(ThreadsExecutor()).tasks_per_worker == cores


def test_counts() -> None:
    assert check_count("workers", np.int64(3)) == 3
    wrong: tuple[tuple[Any, type[Exception]], ...] = (
        (0, ValueError),
        (-2, ValueError),
        (True, TypeError),
        (2.0, TypeError),
        ("2", TypeError),
        (None, TypeError),
    )
    for number, error in wrong:
        with pytest.raises(error, match="workers"):
            check_count("workers", number)
