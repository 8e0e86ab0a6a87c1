"""A job as users hold it: what it shows, what it does once, and what it leaves behind when it fails."""

from __future__ import annotations

import html
import itertools
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import pytest
import zarr

import rechunk_exec as rx
from rechunk_exec import storage
from rechunk_exec.executors import SerialExecutor, ThreadsExecutor
from rechunk_exec.results import Event, TaskResult
from rechunk_exec.tasks import ArrayRef, CopyTask, Stage
from tests.jobs import ToldCopy, ZarrArray, assert_exact, make_array, run_tasks, snapshot

ROOT = Path(__file__).parent.parent


@pytest.fixture
def source(tmp_path: Path) -> ZarrArray:
    return make_array(tmp_path / "source", (20, 20, 20), (1, 20, 20), dimension_names=("time", "y", "x"))


def one_stage(source: ZarrArray, target: Any, **options: Any) -> rx.Rechunked:
    """A job of several tasks in one stage: the target's chunks lie on the edges of the source's."""
    options = {"executor": "serial", "progress": False, **options}
    job = rx.rechunk(source, (1, 8, 4), 16_000, target, **options)
    assert len(job.stages) == 1
    assert len(job.stages[0]) > 1
    return job


def two_stages(source: ZarrArray, target: Any, **options: Any) -> rx.Rechunked:
    options = {"executor": "serial", "progress": False, **options}
    job = rx.rechunk(source, (20, 4, 4), 8_000, target, **options)
    assert len(job.stages) == 2
    return job


# What it shows.


def test_planning_and_looking_write_nothing(tmp_path: Path, source: ZarrArray) -> None:
    before = snapshot(tmp_path)
    job = two_stages(source, tmp_path / "target", temp_store=tmp_path / "temp")
    shown = repr(job)
    for text in (str(tmp_path / "source"), str(tmp_path / "target"), str(tmp_path / "temp"), "32000 bytes"):
        assert text in shown
    assert job.plan.explain() in shown
    assert len(list(job.tasks())) == job.plan.tasks
    assert job.report is None
    assert snapshot(tmp_path) == before


def test_one_stage_names_no_temp_store(tmp_path: Path, source: ZarrArray) -> None:
    shown = repr(one_stage(source, tmp_path / "target", temp_store=tmp_path / "temp"))
    assert str(tmp_path / "temp") not in shown
    assert "no temporary store is used" in shown


def test_the_stages_are_sequences_of_tasks(tmp_path: Path, source: ZarrArray) -> None:
    job = two_stages(source, tmp_path / "target")
    first, last = job.stages
    assert (first.source, last.target) == (
        ArrayRef(store=str(tmp_path / "source")),
        ArrayRef(store=str(tmp_path / "target")),
    )
    assert first.target == last.source
    tasks = list(job.tasks())
    assert tasks == [*first, *last] == [*first, *last]
    assert [(task.stage, task.index) for task in tasks] == [(s.number, i) for s in job.stages for i in range(len(s))]
    assert [(task.start, task.stop) for task in last] == [last.plan.box(index) for index in range(len(last))]
    for task in tasks:
        assert CopyTask.from_json(task.to_json()) == task
    assert pickle.loads(pickle.dumps(job.stages)) == job.stages


def test_a_job_of_millions_of_tasks_is_made_at_once(tmp_path: Path) -> None:
    array = zarr.create_array(tmp_path / "source", shape=(4, 60_000, 60_000), chunks=(1, 4, 4), dtype="f4")
    job = rx.rechunk(array, (4, 4, 4), 1000, tmp_path / "target", executor="serial")
    assert job.plan.tasks > 100_000_000
    assert len(pickle.dumps(job.stages)) < 4000
    assert job.stages[0][-1].stop == (4, 60_000, 60_000)
    assert next(iter(job.tasks())).start == (0, 0, 0)


def test_what_could_not_be_carried_over_is_told_before_and_after(tmp_path: Path) -> None:
    array = make_array(tmp_path / "source", (8, 8), (1, 8), "i4", zarr_format=2, fill_value=None)
    job = rx.rechunk(array, (8, 2), "1MB", tmp_path / "target", zarr_format=3, progress=False)
    assert "note: zarr format 3 has no null fill value" in repr(job)
    job.execute()
    assert job.report is not None
    assert any("no null fill value" in warning for warning in job.report.warnings)


# What it does.


@pytest.mark.parametrize("make", [one_stage, two_stages])
def test_the_report_counts_what_was_run(tmp_path: Path, source: ZarrArray, make: Any) -> None:
    job = make(source, tmp_path / "target")
    target = job.execute()
    assert_exact(target, source)
    report = job.report
    assert report.tasks == len(report.results) == job.plan.tasks
    assert (report.retries, report.warnings) == (0, ())
    assert 0 < report.seconds < 60
    assert report.bytes_written == 32_000 * len(job.stages)
    assert report.bytes_read + report.bytes_written == pytest.approx(32_000 * job.plan.traffic)
    for result, task in zip(report.results, job.tasks(), strict=True):
        assert isinstance(result, TaskResult)
        assert (result.stage, result.index, result.attempts) == (task.stage, task.index, 1)
        assert result.predicted_bytes == task.predicted_bytes <= job.plan.max_mem
        assert (result.reader, result.writer) == ("direct", "direct")
        assert result.seconds > 0
    first_stage = [result for result in report.results if result.stage == 0]
    assert sum(result.stored_bytes_read for result in first_stage) > 0
    assert sum(result.stored_bytes_written for result in report.results) > 0
    assert f"{report.tasks} tasks in " in str(report)


def test_a_job_is_executed_once(tmp_path: Path, source: ZarrArray) -> None:
    job = one_stage(source, tmp_path / "target")
    job.execute()
    before = snapshot(tmp_path)
    with pytest.raises(rx.RechunkError, match=r"executed once.*plan it again"):
        job.execute()
    assert snapshot(tmp_path) == before


def test_a_job_that_failed_is_planned_again_too(tmp_path: Path, source: ZarrArray) -> None:
    job = one_stage(source, tmp_path / "target", executor="threads")
    (tmp_path / "target").write_text("in the way")
    with pytest.raises(rx.TargetExistsError):
        job.execute()
    (tmp_path / "target").unlink()
    with pytest.raises(rx.RechunkError, match="plan it again"):
        job.execute()
    assert_exact(one_stage(source, tmp_path / "target").execute(), source)


def test_events_come_in_the_callers_thread_in_order(tmp_path: Path, source: ZarrArray) -> None:
    for executor in (SerialExecutor(), ThreadsExecutor(4)):
        job = two_stages(source, tmp_path / executor.name, executor=executor)
        events: list[Event] = []
        job.execute(on_event=events.append)
        assert events[0] == Event(kind="start", total=job.plan.tasks)
        assert job.report is not None
        assert {(event.stage, event.index) for event in events[1:]} == {(t.stage, t.index) for t in job.tasks()}
        assert sorted((e.result for e in events[1:] if e.result), key=lambda r: (r.stage, r.index)) == list(
            job.report.results
        )
        executor.close()


def test_a_listener_that_fails_stops_the_job(tmp_path: Path, source: ZarrArray) -> None:
    def listener(event: Event) -> None:
        if event.kind == "task":
            raise LookupError("no more of that")

    job = two_stages(source, tmp_path / "target", executor="threads")
    with pytest.raises(LookupError, match="no more of that") as error:
        job.execute(on_event=listener)
    assert any("is unfinished" in note and "temp-1" in note for note in error.value.__notes__)


def test_stages_can_be_run_again_by_hand(tmp_path: Path, source: ZarrArray) -> None:
    job = one_stage(source, tmp_path / "target")
    target = job.execute()
    target[...] = 0
    report = rx.staged_copy(job.stages)
    assert report.tasks == job.plan.tasks
    assert_exact(target, source)


def test_a_task_can_be_run_by_another_program(tmp_path: Path, source: ZarrArray) -> None:
    def staged_copy(stages: Sequence[Stage]) -> None:
        lines = "\n".join(task.to_json() for stage in stages for task in stage)
        program = "import sys, rechunk_exec as rx\nfor line in sys.stdin: rx.run_task(rx.CopyTask.from_json(line))"
        subprocess.run([sys.executable, "-c", program], input=lines, text=True, check=True, cwd=ROOT)

    job = two_stages(source, tmp_path / "target", executor=staged_copy)
    assert_exact(job.execute(), source)
    assert job.report is not None
    assert job.report.tasks == job.plan.tasks


# What it leaves behind.


def test_a_task_that_fails_for_good_names_itself_and_keeps_the_intermediates(tmp_path: Path, source: ZarrArray) -> None:
    (tmp_path / "told").mkdir()
    with SerialExecutor() as executor:
        executor.task_function = ToldCopy(tmp_path / "told", fails={(1, 2): 3})
        job = two_stages(source, tmp_path / "target", temp_store=tmp_path / "temp", executor=executor)
        with pytest.raises(rx.TaskError, match="injected into task 2 of stage 1") as error:
            job.execute()
    assert (error.value.stage, error.value.index) == (1, 2)
    message = str(error.value)
    for text in ("3 times", f"the target {tmp_path / 'target'} is unfinished", "kept: the intermediates temp-1"):
        assert text in message
    (place,) = (tmp_path / "temp").iterdir()
    assert str(place) in message
    assert_exact(zarr.open_array(place / "temp-1", mode="r"), source)
    assert job.report is None
    assert str(pickle.loads(pickle.dumps(error.value))) == message


def test_an_interrupt_passes_and_tells_what_is_left(tmp_path: Path, source: ZarrArray) -> None:
    def interrupted(stages: Sequence[Stage]) -> None:
        rx.run_task(stages[0][0])
        raise KeyboardInterrupt

    job = two_stages(source, tmp_path / "target", executor=interrupted)
    with pytest.raises(KeyboardInterrupt) as error:
        job.execute()
    (note,) = error.value.__notes__
    assert str(tmp_path / "target") in note
    assert "temp-1" in note


def test_a_function_that_forgets_tasks_is_told_which(tmp_path: Path, source: ZarrArray) -> None:
    job: rx.Rechunked

    def forgets(stages: Sequence[Stage]) -> None:
        for task in list(stages[0])[1:]:
            rx.run_task(task)

    job = one_stage(source, tmp_path / "target", executor=forgets)
    with pytest.raises(rx.RechunkError, match=rf"1 of {job.plan.tasks} tasks missing: of stage 0: 0") as error:
        job.execute()
    assert "is unfinished" in str(error.value)


def test_a_function_that_fails_is_the_cause(tmp_path: Path, source: ZarrArray) -> None:
    def fails(stages: object) -> None:
        raise LookupError("no cluster")

    job = one_stage(source, tmp_path / "target", executor=fails)
    with pytest.raises(rx.RechunkError, match=r"'fails' failed with LookupError: no cluster") as error:
        job.execute()
    assert isinstance(error.value.__cause__, LookupError)


def test_an_executor_that_reports_nothing(tmp_path: Path, source: ZarrArray) -> None:
    class Silent:
        name = "silent"
        tasks_per_worker = 1

        def staged_copy(self, stages: Sequence[Stage], *, on_event: object = None) -> None:
            rx.staged_copy(stages)

    job = one_stage(source, tmp_path / "target", executor=Silent())
    with pytest.raises(rx.RechunkError, match="must return a CopyReport; got None from 'silent'"):
        job.execute()


def test_preparing_that_fails_leaves_no_intermediates(
    tmp_path: Path, source: ZarrArray, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = two_stages(source, tmp_path / "target", temp_store=tmp_path / "temp")
    create = storage.create

    def fails(design: storage.Design, ref: ArrayRef) -> None:
        if ref.store == str(tmp_path / "target"):
            raise rx.StorageError("no space")
        create(design, ref)

    monkeypatch.setattr(storage, "create", fails)
    with pytest.raises(rx.StorageError, match="no space"):
        job.execute()
    assert list((tmp_path / "temp").iterdir()) == []
    assert not (tmp_path / "target").exists()


def test_a_failed_verification_keeps_what_there_is_to_look_at(
    tmp_path: Path, source: ZarrArray, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoils(stages: Sequence[Stage]) -> None:
        run_tasks(job)
        zarr.open_array(tmp_path / "target", mode="r+")[19, 19, 19] = 0

    job = two_stages(source, tmp_path / "target", executor=spoils, verify=True)
    with pytest.raises(rx.RechunkError, match=r"1 of 25 boxes differ.*kept: the intermediates temp-1"):
        job.execute()
    assert job.report is None


def test_the_plan_is_json(tmp_path: Path, source: ZarrArray) -> None:
    job = two_stages(source, tmp_path / "target")
    document = json.loads(job.plan.to_json())
    assert len(document["stages"]) == 2
    assert rx.Plan.from_json(job.plan.to_json()) == job.plan


def test_files_that_a_worker_left_half_written_are_removed_after_a_retry(tmp_path: Path, source: ZarrArray) -> None:
    left = tmp_path / "target" / "c" / "0" / ".0.0123456789ab.partial"
    foreign = tmp_path / "target" / "c" / ".mine.partial"
    tries = itertools.count()

    class Dying(SerialExecutor):
        @staticmethod
        def task_function(task: rx.CopyTask) -> rx.TaskResult:
            result = rx.run_task(task)
            if next(tries) == 0:
                for path in (left, foreign):
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(b"half")
                raise OSError("the worker died")
            return result

    job = rx.rechunk(source, (8, 3, 2), "1MB", tmp_path / "target", executor=Dying(), progress=False)
    assert_exact(job.execute(), source)
    assert not left.exists()
    assert foreign.exists()


def test_a_second_job_on_a_target_is_refused_while_the_first_runs(tmp_path: Path, source: ZarrArray) -> None:
    refusals = []

    def second(stages: Sequence[Stage]) -> None:
        other = rx.rechunk(source, (4, 3, 2), "1MB", tmp_path / "target", mode="overwrite", progress=False)
        with pytest.raises(rx.TargetExistsError, match=r"one job at a time.*nothing was touched") as refusal:
            other.execute()
        refusals.append(refusal)
        for stage in stages:
            for task in stage:
                rx.run_task(task)

    job = rx.rechunk(source, (8, 3, 2), "1MB", tmp_path / "target", executor=second, progress=False)
    target = job.execute()
    assert_exact(target, source)
    assert target.chunks == (8, 3, 2)
    assert len(refusals) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source", "target"]


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_zarr_lists_a_group_without_a_warning_while_an_array_in_it_is_written(
    tmp_path: Path, source: ZarrArray, zarr_format: Literal[2, 3]
) -> None:
    # It warned of the lock, which was in the group beside the array.
    group = zarr.open_group(tmp_path / "group", mode="w", zarr_format=zarr_format)
    job = rx.rechunk(
        source,
        (8, 3, 2),
        "1MB",
        tmp_path / "group",
        array_name="a/b",
        executor="serial",
        progress=False,
        zarr_format=zarr_format,
    )
    listed: list[list[str]] = []

    def listen(event: Event) -> None:
        if event.kind == "task":
            with warnings.catch_warnings():
                warnings.simplefilter("error", zarr.errors.ZarrUserWarning)
                listed.append(sorted(name for name, _ in group.members(max_depth=None)))

    assert_exact(job.execute(on_event=listen), source)
    assert listed == [["a", "a/b"]] * job.plan.tasks
    with pytest.raises(rx.TargetExistsError, match="the target's place must be free"):
        rx.rechunk(source, (8, 3, 2), "1MB", tmp_path / "group" / "a" / "b", progress=False)


def test_a_second_job_on_an_array_in_a_group_is_kept_out_however_the_array_is_named(
    tmp_path: Path, source: ZarrArray
) -> None:
    zarr.open_group(tmp_path / "group", mode="w")
    first = rx.rechunk(source, (8, 3, 2), "1MB", tmp_path / "group", array_name="a", executor="serial", progress=False)
    second = rx.rechunk(source, (8, 3, 2), "1MB", tmp_path / "group" / "a", mode="overwrite", progress=False)
    refused: list[str] = []

    def listen(event: Event) -> None:
        if event.kind == "start":
            with pytest.raises(rx.TargetExistsError, match="one job at a time") as caught:
                second.execute()
            refused.append(str(caught.value))

    assert_exact(first.execute(on_event=listen), source)
    assert len(refused) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["group", "source"]


def test_the_lock_of_a_killed_job_is_free(tmp_path: Path, source: ZarrArray) -> None:
    script = """
import os, signal, sys
import rechunk_exec as rx
def die(stages):
    os.kill(os.getpid(), signal.SIGKILL)
rx.rechunk(sys.argv[1], (8, 3, 2), "1MB", sys.argv[2], executor=die, progress=False).execute()
"""
    command = [sys.executable, "-c", script, str(tmp_path / "source"), str(tmp_path / "target")]
    environment = os.environ | {"PYTHONPATH": str(Path(rx.__file__).parents[1])}
    assert subprocess.run(command, check=False, env=environment, timeout=60).returncode == -signal.SIGKILL
    assert any(path.name.endswith(".lock") for path in tmp_path.iterdir())
    job = rx.rechunk(source, (8, 3, 2), "1MB", tmp_path / "target", mode="overwrite", progress=False)
    assert_exact(job.execute(), source)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source", "target"]


def test_a_chunk_that_cannot_be_decoded_is_named(tmp_path: Path, source: ZarrArray) -> None:
    damaged = next(path for path in (tmp_path / "source" / "c").rglob("*") if path.is_file())
    damaged.write_bytes(damaged.read_bytes()[:-3])
    key = damaged.relative_to(tmp_path / "source").as_posix()
    job = rx.rechunk(source, (8, 3, 2), "1MB", tmp_path / "target", executor="serial", progress=False)
    with pytest.raises(rx.TaskError, match=re.escape(f"the object is {key} of")):
        job.execute()
    with pytest.raises(rx.StorageError, match=re.escape(f"the object is {key} of")):
        rx.verify(source, source)


def test_a_notebook_is_shown_the_job_and_no_name_is_taken_for_html(tmp_path: Path) -> None:
    array = make_array(tmp_path / "<b>source&", (8, 6), (1, 6))
    options: dict[str, Any] = {"target_options": {"filters": "auto"}, "progress": False}
    job = rx.rechunk(array, (8, 2), "1MB", tmp_path / "t\udcff", zarr_format=2, **options)
    shown = job._repr_html_()
    assert str(tmp_path / "&lt;b&gt;source&amp;") in shown
    assert "<b>" not in shown
    assert r"t\udcff" in shown
    shown.encode()
    assert job.plan._repr_html_() in shown
    notes = [line.strip() for line in repr(job).splitlines() if line.startswith("   note: ")]
    assert notes == [note for note in notes if html.escape(note) in shown]
