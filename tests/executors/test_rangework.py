"""Ranges of tasks in the driver's own process: what it waits for when the run is to end."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from rechunk_exec.executors.rangework import RangeWork, here_of
from rechunk_exec.executors.sight import Landmarks
from rechunk_exec.results import TaskResult
from rechunk_exec.storage import Journal
from rechunk_exec.tasks import ArrayRef, CopyTask
from tests.executors.recording import make_result, make_stage
from tests.executors.workers import PATIENCE_S, wait_until
from tests.jobs import make_array


def test_a_run_that_is_halted_ends_when_the_results_of_its_tasks_are_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The program ended at a Ctrl-C between the end of a task and the note of it: the task was run again.
    make_array(tmp_path / "t.zarr", (4,), (1,))
    target = ArrayRef(store=str(tmp_path / "t.zarr"))
    stage = replace(make_stage(0, 20), job="job", journal=target)
    begun: list[int] = []
    in_task, in_note = threading.Event(), threading.Event()
    add = Journal.add

    def copy(task: CopyTask) -> TaskResult:
        begun.append(task.index)
        if task.index == 1:
            in_task.set()
            wait_until(lambda: here_of("run", stage)._stopped)
        return make_result(task)

    def add_late(journal: Journal, results: Iterable[TaskResult], *, durable: bool = False) -> None:
        in_note.set()
        # Whoever waits for tasks alone has gone on by now.
        assert halted.wait(0.5) is False
        add(journal, results, durable=durable)

    halted = threading.Event()
    monkeypatch.setattr(Journal, "add", add_late)
    work = RangeWork(stage=stage, run="run", landmarks=Landmarks(paths=(), arrays=()), function=copy)
    running = threading.Thread(target=work, args=(0, 20))
    running.start()
    assert in_task.wait(PATIENCE_S)
    here_of("run", stage).halt()
    halted.set()
    assert sorted(Journal(target, "job").results()) == [(0, 0), (0, 1)]
    running.join()
    assert begun == [0, 1]
    assert in_note.is_set()
