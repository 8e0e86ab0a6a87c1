from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zarr
from zarr.storage import MemoryStore

import rechunk_exec as rx
from rechunk_exec import wire
from rechunk_exec.cli import main
from rechunk_exec.jobstatus import JobStatus, StageStatus, find_status, unfinished_text
from rechunk_exec.results import Event, TaskFailure
from rechunk_exec.storage import ArrayRef, Claim, FinishedRecord, Journal, lease, read_job
from rechunk_exec.storage.documents import Documents
from rechunk_exec.tasks import Stage
from tests.jobs import InjectedError, ZarrArray, assert_exact, make_array, snapshot
from tests.storage.journalled import job_record, result_of, stage_plan

ROOT = Path(__file__).parent.parent

GATED = """
import sys, time
from pathlib import Path
import rechunk_exec as rx
from rechunk_exec import keeper
from rechunk_exec.storage import claims

keeper.WRITE_S = claims.BEAT_S = 0.02
source, target, gate = sys.argv[1:]

def wait(event):
    if event.kind == "task":
        while not Path(gate, f"{event.stage}-{event.index}").exists():
            time.sleep(0.01)

rx.rechunk(source, (40, 4, 4), 16_000, target, executor="serial", progress=False).execute(on_event=wait)
"""
"""A job each of whose tasks waits, after it is done, for a file of its name."""


@pytest.fixture
def source(tmp_path: Path) -> ZarrArray:
    return make_array(tmp_path / "source", (40, 40, 20), (1, 40, 20), dimension_names=("time", "y", "x"))


def plan_job(source: ZarrArray, target: Any, **options: Any) -> rx.Rechunked:
    return rx.rechunk(source, (40, 4, 4), 16_000, target, **{"executor": "serial", "progress": False, **options})


def interrupt(job: rx.Rechunked, count: int) -> None:
    seen: list[Event] = []

    def listener(event: Event) -> None:
        seen.extend([event] if event.kind == "task" else [])
        if len(seen) == count:
            raise InjectedError

    with pytest.raises(InjectedError):
        job.execute(on_event=listener)


def wait_until(condition: Callable[[], object], process: subprocess.Popen[str]) -> None:
    ends = time.monotonic() + 60
    while not condition():
        if process.poll() is not None or time.monotonic() > ends:
            process.kill()
            pytest.fail(f"the job has stopped, or is stuck: {process.communicate()}")
        time.sleep(0.03)


@contextmanager
def gated_job(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], Callable[[Sequence[tuple[int, int]]], None]]]:
    """A job in another process, and what lets its tasks pass."""
    gate = tmp_path / "gate"
    gate.mkdir()
    command = [sys.executable, "-c", GATED, str(tmp_path / "source"), str(tmp_path / "target"), str(gate)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def pass_by(tasks: Sequence[tuple[int, int]]) -> None:
        for stage, index in tasks:
            (gate / f"{stage}-{index}").touch()

    try:
        yield process, pass_by
    finally:
        process.kill()
        process.communicate()


def status_or_none(target: Path) -> JobStatus | None:
    return find_status(ArrayRef(store=str(target)))


# Where there is no job.


def test_a_place_without_a_job(tmp_path: Path, source: ZarrArray) -> None:
    for place in (tmp_path / "nothing", tmp_path / "source", MemoryStore()):
        with pytest.raises(rx.StorageError, match="no job of rechunk_exec is recorded at"):
            rx.status(place)
    assert not (tmp_path / "nothing").exists()
    assert unfinished_text(*(ArrayRef(store=str(tmp_path / name)) for name in ("source", "source"))) == ""


def test_a_damaged_journal(tmp_path: Path, source: ZarrArray) -> None:
    interrupt(plan_job(source, tmp_path / "target"), 3)
    document = tmp_path / "target" / ".rechunk_exec" / "job.json"
    document.write_text(document.read_text()[:-30])
    before = snapshot(tmp_path)
    with pytest.raises(rx.ResumeError, match="its document 'job' is not"):
        rx.status(tmp_path / "target")
    assert snapshot(tmp_path) == before


# One that was stopped, and one that has ended.


def test_a_job_that_was_stopped(tmp_path: Path, source: ZarrArray) -> None:
    job = plan_job(source, tmp_path / "target")
    first, last = (stage.tasks for stage in job.stages)
    interrupt(job, first + 2)
    before = snapshot(tmp_path)
    status = rx.status(tmp_path / "target")
    assert snapshot(tmp_path) == before
    assert (status.state, status.done, status.total) == ("unfinished", first + 2, first + last)
    assert status.stages == (
        StageStatus(number=0, source="source", target="temp-1", done=first, total=first),
        StageStatus(number=1, source="temp-1", target="target", done=2, total=last),
    )
    boxes = [job.plan.stages[1].box(index) for index in range(2)]
    written = [4 * math.prod(b - a for a, b in zip(*box, strict=True)) for box in boxes]
    assert status.bytes_written == 128_000 + sum(written)
    assert (status.bytes_per_second, status.seconds_left, status.driver, status.failed) == (None, None, "", ())
    text = f"{tmp_path / 'target'} is unfinished: {first + 2} of {first + last} tasks of its job are done"
    one, other = (ArrayRef(store=str(tmp_path / name)) for name in ("source", "target"))
    assert unfinished_text(one, other) == unfinished_text(other, one) == unfinished_text(other, other) == text


def test_a_job_that_was_stopped_and_cannot_take_its_claim_back_does_not_run(
    source: ZarrArray, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It was told as running for a minute, and kept others out, as long as its process lived.
    def denied(*arguments: object, **options: object) -> None:
        raise rx.StorageError("nothing may be removed")

    store = MemoryStore()
    with monkeypatch.context() as patched:
        patched.setattr(lease, "remove_claim", denied)
        interrupt(plan_job(source, store), 1)
        status = rx.status(store)
        assert (status.state, status.done, status.driver) == ("unfinished", 1, "")
    assert_exact(plan_job(source, store, mode="resume").execute(), source)
    assert rx.status(store).state == "finished"
    assert not [key for key in store._store_dict if "drivers" in key]


def test_a_comparison_with_an_array_whose_job_has_not_ended_is_not_ok_on_either_side(
    tmp_path: Path, source: ZarrArray, capsys: pytest.CaptureFixture[str]
) -> None:
    target, fill = tmp_path / "target", zarr.create_array(tmp_path / "fill", shape=source.shape, dtype=source.dtype)
    interrupt(plan_job(source, target), 1)  # of two stages: the target holds nothing yet
    for sides in ((fill, target), (target, fill), (target, target)):
        report = rx.verify(*sides)
        assert not report.ok
        assert report.differing == ()
        assert report.unfinished.startswith(f"{target} is unfinished: 1 of ")
        assert str(report).startswith(f"unfinished: {target} is unfinished")
    assert main(["verify", str(target), str(tmp_path / "fill")]) == 1
    assert capsys.readouterr().out.startswith(f"unfinished: {target} is unfinished")
    interrupt(plan_job(source, tmp_path / "group", array_name="sub/a"), 1)
    zarr.create_array(tmp_path / "others", name="sub/a", shape=source.shape, dtype=source.dtype)
    report = rx.verify(tmp_path / "group", tmp_path / "others")
    assert not report.ok
    assert report.unfinished.startswith(f"{tmp_path / 'group'}/sub/a is unfinished: 1 of ")


def test_a_damaged_journal_of_a_source_does_not_keep_it_from_being_compared(tmp_path: Path, source: ZarrArray) -> None:
    target = plan_job(source, tmp_path / "target").execute()
    (tmp_path / "target" / ".rechunk_exec" / "job.json").write_text("{")
    assert rx.verify(target, source).ok
    with pytest.raises(rx.ResumeError, match="its document 'job' is not"):
        rx.verify(source, target)


def test_a_job_that_has_ended(tmp_path: Path, source: ZarrArray) -> None:
    job = plan_job(source, tmp_path / "target")
    target = job.execute()
    for place in (tmp_path / "target", str(tmp_path / "target"), target):
        status = rx.status(place)
        assert (status.state, status.done, status.total) == ("finished", job.plan.tasks, job.plan.tasks)
        assert status.bytes_written == 2 * 128_000
    assert unfinished_text(*(ArrayRef(store=str(tmp_path / name)) for name in ("source", "target"))) == ""


def test_an_array_inside_a_store(source: ZarrArray) -> None:
    store = MemoryStore()
    plan_job(source, store, array_name="g/a").execute()
    assert rx.status(store, array_name="g/a").state == "finished"
    assert rx.status(zarr.open_array(store, path="g/a")).state == "finished"
    with pytest.raises(rx.StorageError, match="no job"):
        rx.status(store)


def test_tasks_that_failed_are_told_until_they_are_done(tmp_path: Path, source: ZarrArray) -> None:
    damaged = tmp_path / "source" / "c" / "25" / "0" / "0"
    damaged.write_bytes(damaged.read_bytes()[:-3])
    job = plan_job(source, tmp_path / "target")
    with pytest.raises(rx.TaskError) as error:
        job.execute()
    (failure,) = rx.status(tmp_path / "target").failed
    assert (failure.stage, failure.index) == (error.value.stage, error.value.index)
    assert "c/25/0/0" in failure.message
    assert f"failed: task {failure.index} of stage 0: {failure.message}" in str(rx.status(tmp_path / "target"))
    record = read_job(ArrayRef(store=str(tmp_path / "target")))
    assert record is not None
    Journal(ArrayRef(store=str(tmp_path / "target")), record.job).add([result_of(failure.index, failure.stage)])
    assert rx.status(tmp_path / "target").failed == ()


def test_a_job_by_a_function_that_cannot_tell_of_its_tasks(tmp_path: Path, source: ZarrArray) -> None:
    seen: list[tuple[str, int]] = []

    def loop(stages: Sequence[Stage]) -> None:
        for stage in stages:
            for task in stage:
                rx.run_task(task)
                status = rx.status(tmp_path / "target")
                seen.append((status.state, status.done))

    job = plan_job(source, tmp_path / "target", executor=loop)
    assert_exact(job.execute(), source)
    assert seen == [("running", number + 1) for number in range(job.plan.tasks)]
    assert rx.status(tmp_path / "target").state == "finished"


def test_results_of_tasks_that_there_are_not_do_not_count(tmp_path: Path) -> None:
    ref = ArrayRef(store=str(tmp_path / "target"))
    journal = Journal(ref, "job")
    journal.begin(job_record())  # four tasks
    journal.add([result_of(index) for index in (1, 2, 4, 99)])
    journal.add([result_of(0, stage=1)])
    status = rx.status(tmp_path / "target")
    assert (status.done, status.total, status.bytes_written) == (2, 4, 2 * 320 // 4)


def test_bytes_written_are_those_of_the_tasks_done(tmp_path: Path) -> None:
    source = make_array(tmp_path / "source", (23, 17), (2, 17), "f8")
    job = rx.rechunk(source, (23, 3), 2500, tmp_path / "target", executor="serial", progress=False)
    job.write_jobs(tmp_path / "jobs")
    assert [stage.region for stage in job.plan.stages] == [(8, 17), (23, 3)]
    written = 0
    for index in (2, 0, 1, 3, 8):  # two are of fewer elements than others of their stage
        written += sum(result.bytes_written for result in rx.run_job(tmp_path / "jobs", index).results)
        assert rx.status(tmp_path / "target").bytes_written == written > 0


def test_a_result_a_document_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ref = ArrayRef(store=str(tmp_path / "target"))
    Journal(ref, "job").begin(job_record())
    for index in (1, 2):
        Journal(ref, "job").add([result_of(index)])
    read: list[str] = []
    plain = Documents.read

    def told(self: Documents, name: str) -> str | None:
        read.append(name)
        return plain(self, name)

    monkeypatch.setattr(Documents, "read", told)
    assert rx.status(tmp_path / "target").done == 2
    assert read
    assert not [name for name in read if "done" in name]


def test_a_job_that_is_resumed_while_it_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Its results had gone to another name, and the old one counted none.
    ref = ArrayRef(store=str(tmp_path / "target"))
    Journal(ref, "job").begin(job_record())
    Journal(ref, "job").add([result_of(index) for index in (1, 2)])
    plain = Journal.done
    waiting = [True]

    def done(self: Journal) -> set[tuple[int, int]]:
        if waiting:
            waiting.clear()
            again = Journal(ref, "again")
            again.add([result_of(index) for index in (1, 2)])
            again.begin(job_record("again"))
            again.forget(others=True)
        return plain(self)

    monkeypatch.setattr(Journal, "done", done)
    assert rx.status(tmp_path / "target").done == 2


def test_a_job_that_ends_while_it_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # It had not ended when that was looked for, and nobody ran it any more when that was: it seemed abandoned.
    ref = ArrayRef(store=str(tmp_path / "target"))
    Journal(ref, "job").begin(job_record())
    plain = Journal.done

    def done(self: Journal) -> set[tuple[int, int]]:
        Journal(ref, "job").finish(FinishedRecord(job="job", ended="now", tasks=(4,), bytes_written=320))
        return plain(self)

    monkeypatch.setattr(Journal, "done", done)
    status = rx.status(tmp_path / "target")
    assert (status.state, status.done, status.bytes_written) == ("finished", 4, 320)


def test_many_tasks_are_counted(tmp_path: Path) -> None:
    tasks = 5_000
    ref = ArrayRef(store=str(tmp_path / "target"))
    fields = {"read_unit": (1, 1), "write_unit": (1, 1), "chunk": (1, 1), "region": (1, 1)}
    plan = rx.Plan(stages=(stage_plan(shape=(tasks, 1), **fields),), max_mem=1000)
    journal = Journal(ref, "job")
    journal.begin(replace(job_record(), plan=plan))
    for first in range(0, tasks, 500):
        journal.add([result_of(index) for index in range(first, first + 499)])
    status = rx.status(tmp_path / "target")
    assert (status.done, status.total) == (tasks - 10, tasks)


# One that runs.


def test_a_running_job_is_seen_to_go_on_and_watching_ends_with_it(tmp_path: Path, source: ZarrArray) -> None:
    job = plan_job(source, tmp_path / "target")
    tasks = [(task.stage, task.index) for task in job.tasks()]
    seen: list[int] = []
    with gated_job(tmp_path) as (process, pass_by):
        for number, task in enumerate(tasks):

            def told(least: int = number + 1) -> bool:
                status = status_or_none(tmp_path / "target")
                if status is not None:
                    assert status.state == "running"
                    assert status.total == len(tasks)
                    seen.append(status.done)
                return status is not None and status.done >= least

            wait_until(told, process)
            if number == 5:
                wait_until(lambda: rx.status(tmp_path / "target").bytes_per_second is not None, process)
                status = rx.status(tmp_path / "target")
                assert status.driver.startswith(f"process {process.pid} on ")
                assert status.seconds_left is not None
                assert status.seconds_left > 0
            if task == tasks[-3]:
                break
            pass_by([task])
        with watching(tmp_path / "target") as looks:
            first = next(looks)
            assert (first["state"], first["done"]) == ("running", len(tasks) - 2)
            pass_by(tasks)
            assert process.wait(60) == 0, process.communicate()
            watched = [first, *looks]
    assert seen == sorted(seen)
    assert set(range(1, len(tasks) - 1)) <= set(seen)
    assert rx.status(tmp_path / "target").state == "finished"
    assert [look["state"] for look in watched] == ["running"] * (len(watched) - 1) + ["finished"]
    assert [look["done"] for look in watched] == sorted(look["done"] for look in watched)
    assert {look["total"] for look in watched} == {len(tasks)}


WATCH = """
import sys
from rechunk_exec.cli import main, watching
watching.WATCH_S = 0.05
sys.exit(main(["status", sys.argv[1], "--watch", "--json"]))
"""


def documents(lines: Any) -> Iterator[dict[str, Any]]:
    """The JSON documents of a stream, each as soon as its last line has come."""
    held = ""
    for line in lines:
        held += line
        if line == "}\n":
            yield json.loads(held)
            held = ""


@contextmanager
def watching(target: Path) -> Iterator[Iterator[dict[str, Any]]]:
    """What the command prints that watches a job, a document a look, until it ends by itself."""
    command = [sys.executable, "-c", WATCH, str(target)]
    watch = subprocess.Popen(command, env=os.environ | {"PYTHONPATH": str(ROOT)}, text=True, stdout=subprocess.PIPE)
    assert watch.stdout is not None
    with watch, watch.stdout:
        try:
            yield documents(watch.stdout)
            assert watch.wait(60) == 0
        finally:
            watch.kill()


def test_a_job_that_was_killed_is_not_running(tmp_path: Path, source: ZarrArray) -> None:
    with gated_job(tmp_path) as (process, _):
        wait_until(lambda: getattr(status_or_none(tmp_path / "target"), "done", 0), process)
        process.kill()
        process.wait()
        status = rx.status(tmp_path / "target")
        assert (status.state, status.done, status.driver) == ("unfinished", 1, "")


def claim_of(**fields: Any) -> Claim:
    now = time.time()
    claim = Claim(driver="d", host="far", system="far:1:1", pid=7, pid_began=0.0, began=now - 10, beat=now)
    return replace(claim, **fields)


@pytest.mark.parametrize(
    "fields,pace",
    [
        ({"done": 5, "left": 20, "bytes_written": 1000}, (100.0, 30.0)),
        ({"done": 20, "left": 20, "bytes_written": 1000}, (100.0, 0.0)),
        ({"done": 0, "left": 20}, (None, None)),
        ({"began": time.time() + 10_000, "done": 5, "left": 20}, (None, None)),
    ],
    ids=["some", "all", "none", "a clock that went back"],
)
def test_the_pace_is_that_of_the_driver(fields: dict[str, Any], pace: tuple[float | None, float | None]) -> None:
    store = MemoryStore()
    Journal(ArrayRef(store=store), "job").begin(job_record())
    Documents(ArrayRef(store=store), read_only=False).write("drivers/d", wire.to_json(claim_of(**fields)))
    status = rx.status(store)
    assert (status.state, status.driver) == ("running", "process 7 on far")
    assert (status.bytes_per_second, status.seconds_left) == pytest.approx(pace)


def test_a_silent_driver_runs_no_more() -> None:
    store = MemoryStore()
    Journal(ArrayRef(store=store), "job").begin(job_record())
    claim = claim_of(began=time.time() - 5000, beat=time.time() - 4000, done=1, left=2)
    Documents(ArrayRef(store=store), read_only=False).write("drivers/d", wire.to_json(claim))
    assert rx.status(store).state == "unfinished"


def test_a_status_in_words() -> None:
    status = JobStatus(
        target="/t",
        state="running",
        begun="2024-02-29T12:00:00+00:00",
        stages=(StageStatus(number=0, source="source", target="target", done=3, total=12),),
        failed=(TaskFailure(stage=0, index=4, message="OSError: no"),),
        bytes_written=3_000_000,
        bytes_per_second=2e6,
        seconds_left=75.0,
        driver="process 7 on far",
    )
    assert str(status).splitlines() == [
        "/t: running by process 7 on far, begun at 2024-02-29T12:00:00+00:00",
        "3 of 12 tasks are done (25 %), 3 MB written, 2 MB/s, 1 min 15 s left",
        "  stage 0, source -> target: 3 of 12",
        "  failed: task 4 of stage 0: OSError: no",
    ]
    assert wire.from_document(JobStatus, json.loads(json.dumps(wire.to_document(status)))) == status


# The command.


def run(capsys: pytest.CaptureFixture[str], *words: str | Path, code: int = 0) -> tuple[str, str]:
    """What the program writes to its output and tells of errors."""
    capsys.readouterr()
    assert main(list(map(str, words))) == code
    return capsys.readouterr()


def test_the_command_shows_what_the_function_does(
    tmp_path: Path, source: ZarrArray, capsys: pytest.CaptureFixture[str]
) -> None:
    interrupt(plan_job(source, tmp_path / "target"), 3)
    found = rx.status(tmp_path / "target")
    assert main(["status", str(tmp_path / "target")]) == 0
    assert capsys.readouterr().out.strip() == str(found)
    assert main(["status", str(tmp_path / "target"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document.pop("done"), document.pop("total")) == (3, found.total)
    assert wire.from_document(JobStatus, document) == found


def test_the_command_watches_an_array_inside_a_store(
    tmp_path: Path, source: ZarrArray, capsys: pytest.CaptureFixture[str]
) -> None:
    plan_job(source, tmp_path / "target", array_name="g/a").execute()
    assert main(["status", str(tmp_path / "target"), "--array", "g/a", "--watch"]) == 0
    assert ": finished, begun at " in capsys.readouterr().out
    assert main(["status", str(tmp_path / "target")]) == 1


def test_the_command_says_where_there_is_no_job_and_where_one_is_damaged(
    tmp_path: Path, source: ZarrArray, capsys: pytest.CaptureFixture[str]
) -> None:
    _, told = run(capsys, "status", tmp_path / "nothing", code=1)
    assert re.fullmatch(r"rechunk-exec: .*no job of rechunk_exec is recorded at .*nothing\n", told)
    printed, _ = run(capsys, "status", tmp_path / "nothing", "--json", code=1)
    assert json.loads(printed)["error"]["type"] == "StorageError"
    interrupt(plan_job(source, tmp_path / "target"), 3)
    (tmp_path / "target" / ".rechunk_exec" / "job.json").write_text("{}")
    _, told = run(capsys, "status", tmp_path / "target", "--watch", code=1)
    assert "'rechunk_exec': 1" in told
    assert "Traceback" not in told
