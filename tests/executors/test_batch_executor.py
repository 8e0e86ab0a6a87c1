from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import zarr

import rechunk_exec as rx
from rechunk_exec.batch.executor import BatchExecutor
from rechunk_exec.errors import RechunkError, SerializationError
from rechunk_exec.executors import executor_named, known_names, resolve, staged_copy, worker_shape
from rechunk_exec.results import Event
from tests.executors.workers import environment, wait_until
from tests.jobs import QUICK_STAGES, assert_exact, make_array, snapshot

SHAPE = (12, 12, 12)


def plan(folder: Path, executor: object = None, **options: Any) -> rx.Rechunked:
    """A job of two stages of a few tasks."""
    if not (folder / "source").exists():
        make_array(folder / "source", SHAPE, (1, 12, 12))
    job = rx.rechunk(
        folder / "source",
        (12, 3, 4),
        "4kB",
        folder / "target",
        executor=executor or BatchExecutor(1),
        progress=False,
        cost_model=QUICK_STAGES,
        **options,
    )
    assert len(job.stages) == 2
    return job


def test_it_is_made_from_its_name() -> None:
    assert "batch" in known_names()
    assert isinstance(resolve("batch"), BatchExecutor)
    shape = worker_shape(executor_named("batch", 3))
    assert (shape.workers, shape.tasks_per_worker, shape.elastic) == (3, 1, False)


def test_a_job_by_its_name_is_ended_by_nobody_else_and_leaves_nothing_but_the_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    job = plan(tmp_path, "batch", verify=True)
    events: list[Event] = []
    refused: list[str] = []

    def listen(event: Event) -> None:
        events.append(event)
        if event.kind == "task" and not refused:
            (lines,) = (tmp_path / "tmp").glob("rechunk_exec-batch-*/jobs.jsonl")
            with pytest.raises(RechunkError, match="ended by its driver") as caught:
                rx.finalize_jobs(lines)
            refused.append(str(caught.value))

    assert_exact(job.execute(on_event=listen), zarr.open_array(tmp_path / "source", mode="r"))
    assert len(refused) == 1
    assert job.report is not None
    assert (job.report.executor, job.report.tasks) == ("batch", job.plan.tasks)
    assert [event.kind for event in events].count("task") == job.plan.tasks
    assert list((tmp_path / "tmp").iterdir()) == []
    assert rx.status(tmp_path / "target").state == "finished"
    assert not [name for name in snapshot(tmp_path / "target") if name.endswith("batch.json")]


def test_stages_that_one_holds_are_run_as_they_are(tmp_path: Path) -> None:
    source = make_array(tmp_path / "source", SHAPE, (1, 12, 12))
    job = rx.rechunk(source, (3, 12, 12), 8_000, tmp_path / "target", executor="serial", progress=False)
    target = job.execute()
    target[...] = 0
    (stage,) = (replace(stage, number=3, job="", journal=None) for stage in job.stages)
    report = staged_copy([stage], BatchExecutor(1))
    assert [(result.stage, result.index) for result in report.results] == [(3, index) for index in range(len(stage))]
    assert_exact(target, source)
    assert rx.status(tmp_path / "target").state == "finished", "the job's own record is as it was"


def test_lines_of_a_process_that_died_are_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []

    class Dying(subprocess.Popen[bytes]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            started.append(self)
            if len(started) == 1:
                self.kill()

    monkeypatch.setattr("rechunk_exec.batch.lineprocesses.subprocess.Popen", Dying)
    job = plan(tmp_path)
    assert_exact(job.execute(), zarr.open_array(tmp_path / "source", mode="r"))
    assert len(started) == 3, "one more than there are stages"


def test_processes_that_cannot_run_lines_end_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = plan(tmp_path)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(RechunkError, match=r"of stage 0, tasks 0 to \d+, did not in 3 rounds.*mode='resume'"):
        job.execute()
    monkeypatch.undo()
    again = plan(tmp_path, "serial", mode="resume")
    assert_exact(again.execute(), zarr.open_array(tmp_path / "source", mode="r"))


def test_stores_without_a_name_are_refused_and_nothing_is_written(tmp_path: Path) -> None:
    source = zarr.create_array(zarr.storage.MemoryStore(), shape=(4, 4), chunks=(1, 4), dtype="f4")
    with pytest.raises(SerializationError):
        rx.rechunk(source, (4, 1), "1MB", tmp_path / "target", executor=BatchExecutor(1), progress=False)
    assert list(tmp_path.iterdir()) == []


def test_wrong_options() -> None:
    with pytest.raises(ValueError, match="workers must be at least 1"):
        BatchExecutor(0)


_INTERRUPTED = """
import pathlib, sys
from rechunk_exec.batch.executor import BatchExecutor
from tests.executors.test_batch_executor import plan

if __name__ == "__main__":
    plan(pathlib.Path(sys.argv[1]), BatchExecutor(2)).execute()
"""


def test_an_interrupt_at_the_terminal_leaves_no_process_and_an_unfinished_target(tmp_path: Path) -> None:
    plan(tmp_path, "serial")  # which makes the source
    script = tmp_path / "job.py"
    script.write_text(_INTERRUPTED)
    run = subprocess.Popen(
        [sys.executable, script, tmp_path], env=environment(), start_new_session=True, stderr=subprocess.PIPE, text=True
    )
    driver = psutil.Process(run.pid)
    wait_until(lambda: len(driver.children()) == 2 or run.poll() is not None)
    family = [driver, *driver.children(recursive=True)]
    os.killpg(run.pid, signal.SIGINT)
    _, errors = run.communicate(timeout=120)
    assert run.returncode != 0
    assert "KeyboardInterrupt" in errors
    assert "is unfinished" in errors
    assert psutil.wait_procs(family, timeout=30)[1] == []
    assert rx.status(tmp_path / "target").state == "unfinished"
    again = plan(tmp_path, "serial", mode="resume")
    assert_exact(again.execute(), zarr.open_array(tmp_path / "source", mode="r"))
