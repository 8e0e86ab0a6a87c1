"""What a job finds and makes before its first task, and how one goes on that was begun before."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import zarr
from zarr.storage import MemoryStore, StorePath

import rechunk_exec as rx
from rechunk_exec import storage
from rechunk_exec.executors import SerialExecutor
from rechunk_exec.results import Event
from rechunk_exec.storage import ArrayRef, Design, Lease
from rechunk_exec.tasks import Stage
from tests.jobs import InjectedError, ZarrArray, assert_exact, die_with_a_claim, make_array, snapshot


@pytest.fixture
def source(tmp_path: Path) -> ZarrArray:
    return make_array(tmp_path / "source", (20, 20, 20), (1, 20, 20), dimension_names=("time", "y", "x"))


def two_stages(source: ZarrArray, target: Any, **options: Any) -> rx.Rechunked:
    options = {"executor": "serial", "progress": False, **options}
    job = rx.rechunk(source, (20, 4, 4), 8_000, target, **options)
    assert [stage.tasks for stage in job.stages] == [len(stage) for stage in job.stages]
    assert len(job.stages) == 2
    return job


def stops_after(count: int) -> Callable[[Event], None]:
    """A listener that stops the job after so many tasks."""
    seen: list[Event] = []

    def listener(event: Event) -> None:
        seen.extend([event] if event.kind == "task" else [])
        if len(seen) == count:
            raise InjectedError(f"stopped after {count}")

    return listener


def interrupt(job: rx.Rechunked, count: int) -> None:
    with pytest.raises(InjectedError):
        job.execute(on_event=stops_after(count))


def job_document(target: Path) -> Path:
    return target / ".rechunk_exec" / "job.json"


def edit_job(target: Path, edit: Callable[[Any], object]) -> None:
    document = json.loads(job_document(target).read_text())
    edit(document)
    job_document(target).write_text(json.dumps(document))


# Beginning.


def test_a_target_is_marked_as_unfinished_before_it_is_an_array(
    tmp_path: Path, source: ZarrArray, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = storage.create
    seen: list[tuple[str, bool]] = []

    def looks(design: Design, ref: ArrayRef) -> None:
        record = storage.read_job(ArrayRef(store=str(tmp_path / "target")))
        seen.append((Path(str(ref.store)).name, record is not None))
        create(design, ref)

    monkeypatch.setattr(storage, "create", looks)
    two_stages(source, tmp_path / "target").execute()
    assert [marked for _, marked in seen] == [True, True]
    assert seen[-1][0] == "target"
    assert storage.read_finished(ArrayRef(store=str(tmp_path / "target"))) is not None


@pytest.mark.parametrize("mode", ["fail", "overwrite", "resume"])
def test_what_cannot_be_created_leaves_nothing(
    tmp_path: Path, source: ZarrArray, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    def fails(design: Design, ref: ArrayRef) -> None:
        raise rx.StorageError("no space")

    before = snapshot(tmp_path)
    job = two_stages(source, tmp_path / "target", mode=mode)
    monkeypatch.setattr(storage, "create", fails)
    with pytest.raises(rx.StorageError, match="no space"):
        job.execute()
    assert snapshot(tmp_path) == before


def test_a_package_that_is_not_installed_runs_too(
    tmp_path: Path, source: ZarrArray, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", unknown)
    assert_exact(two_stages(source, tmp_path / "target").execute(), source)
    record = storage.read_job(ArrayRef(store=str(tmp_path / "target")))
    assert record is not None
    assert record.package == "unknown"


# Going on.


@pytest.mark.parametrize("count", [1, 7, 12])
def test_a_job_goes_on_where_it_was_stopped(tmp_path: Path, source: ZarrArray, count: int) -> None:
    first = two_stages(source, tmp_path / "target")
    total = first.plan.tasks
    assert total > 12
    interrupt(first, count)
    again = two_stages(source, tmp_path / "target", mode="resume")
    assert "goes on with the job begun at" in repr(again)
    assert again.plan == first.plan
    assert_exact(again.execute(), source)
    assert again.report is not None
    assert again.report.tasks == total - count
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source", "target"]


def test_a_job_goes_on_more_than_once(tmp_path: Path, source: ZarrArray) -> None:
    total = two_stages(source, tmp_path / "target").plan.tasks
    ran = 0
    for count in (3, 4, 5):
        job = two_stages(source, tmp_path / "target", mode="resume")
        interrupt(job, count)
        ran += count
        assert rx.status(tmp_path / "target").done == ran
    last = two_stages(source, tmp_path / "target", mode="resume")
    assert_exact(last.execute(), source)
    assert last.report is not None
    assert last.report.tasks == total - ran


def test_where_nothing_was_begun_a_job_begins(tmp_path: Path, source: ZarrArray) -> None:
    job = two_stages(source, tmp_path / "target", mode="resume")
    assert_exact(job.execute(), source)
    assert job.report is not None
    assert job.report.tasks == job.plan.tasks


def test_a_job_that_has_ended_runs_nothing_and_writes_nothing(tmp_path: Path, source: ZarrArray) -> None:
    two_stages(source, tmp_path / "target").execute()
    before = {name: content for name, (_, content) in snapshot(tmp_path).items()}
    job = two_stages(source, tmp_path / "target", mode="resume")
    assert_exact(job.execute(), source)
    assert job.report is not None
    assert job.report.tasks == 0
    assert {name: content for name, (_, content) in snapshot(tmp_path).items()} == before


def test_what_was_left_of_a_driver_that_died_after_its_job_had_ended_is_gone_when_that_is_resumed(
    tmp_path: Path, source: ZarrArray
) -> None:
    two_stages(source, tmp_path / "target").execute()
    before = {name: content for name, (_, content) in snapshot(tmp_path).items()}
    die_with_a_claim(tmp_path / "target")
    half = tmp_path / "target" / ".rechunk_exec" / "drivers" / ".0a.json.0123456789ab.partial"
    half.write_text("{")
    left = {tmp_path / name: content for name, (_, content) in snapshot(tmp_path).items() if name not in before}
    assert len(left) == 4, "a lock, a folder of claims, a claim and half of one"
    assert_exact(two_stages(source, tmp_path / "target", mode="resume").execute(), source)
    assert {name: content for name, (_, content) in snapshot(tmp_path).items()} == before
    # As lines too.
    half.parent.mkdir()
    for path in left.keys() - {half.parent}:
        path.write_bytes(left[path])
    assert two_stages(source, tmp_path / "target", mode="resume").write_jobs(tmp_path / "lines") == 0
    (tmp_path / "lines").unlink()
    assert {name: content for name, (_, content) in snapshot(tmp_path).items()} == before


def test_a_finished_job_may_be_resumed_while_another_driver_has_its_target(tmp_path: Path, source: ZarrArray) -> None:
    two_stages(source, tmp_path / "target").execute()
    with storage.sole_writer(ArrayRef(store=str(tmp_path / "target"))):
        assert_exact(two_stages(source, tmp_path / "target", mode="resume").execute(), source)


def test_a_finished_job_may_be_resumed_by_who_may_only_read_its_target(
    tmp_path: Path, source: ZarrArray, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_stages(source, tmp_path / "target").execute()

    def refuse(*_: Any) -> None:
        raise rx.StorageError("access is denied", permanent=True)

    monkeypatch.setattr(storage.Lease, "claim", refuse)
    assert_exact(two_stages(source, tmp_path / "target", mode="resume").execute(), source)


def test_half_a_claim_of_a_driver_that_died_before_it_began_is_gone_at_the_end(
    tmp_path: Path, source: ZarrArray
) -> None:
    half = tmp_path / "target" / ".rechunk_exec" / "drivers" / ".0a.json.0123456789ab.partial"
    half.parent.mkdir(parents=True)
    half.write_text("{")
    assert_exact(two_stages(source, tmp_path / "target").execute(), source)
    assert not half.parent.exists()


def test_an_overwrite_that_died_while_it_removed_an_array_goes_on_by_its_own_words_only(
    source: ZarrArray, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore()
    target = StorePath(store, "t")
    make_array(store, (4,), (2,), name="t")
    remove_array = storage.remove_array

    def dies(ref: ArrayRef, lease: Lease | None = None) -> None:
        if ref.path == "t":
            del store._store_dict["t/zarr.json"]
            raise InjectedError
        remove_array(ref, lease)

    with monkeypatch.context() as patch:
        patch.setattr(storage, "remove_array", dies)
        with pytest.raises(InjectedError):
            two_stages(source, target, mode="overwrite").execute()
    assert rx.status(target).state == "unfinished"
    with pytest.raises(rx.ResumeError, match="with other words"):
        two_stages(source, target, mode="resume", target_options={"fill_value": 7})
    with pytest.raises(rx.TargetExistsError, match="an unfinished job"):
        two_stages(source, target)
    assert_exact(two_stages(source, target, mode="resume").execute(), source)
    assert "t/c/0" not in store._store_dict, "a chunk of the array that was there before"


def test_half_a_mark_of_intermediates_goes_with_the_job_that_is_replaced(tmp_path: Path, source: ZarrArray) -> None:
    words: dict[str, Any] = {"temp_store": tmp_path / "temp"}
    interrupt(two_stages(source, tmp_path / "target", **words), 5)
    (folder,) = (tmp_path / "temp").iterdir()
    shutil.rmtree(folder)
    folder.mkdir()
    (folder / "..rechunk_exec-temp.0123456789ab.partial").write_text("")
    assert_exact(two_stages(source, tmp_path / "target", mode="overwrite", **words).execute(), source)
    assert list((tmp_path / "temp").iterdir()) == []


def test_intermediates_that_were_removed_are_made_again(tmp_path: Path, source: ZarrArray) -> None:
    first = two_stages(source, tmp_path / "target", temp_store=tmp_path / "temp")
    stage_tasks = first.stages[0].tasks
    interrupt(first, stage_tasks + 1)
    shutil.rmtree(tmp_path / "temp")
    again = two_stages(source, tmp_path / "target", temp_store=tmp_path / "temp", mode="resume")
    assert_exact(again.execute(), source)
    assert again.report is not None
    assert {result.stage for result in again.report.results} == {0, 1}
    assert (1, 0) not in {(result.stage, result.index) for result in again.report.results}


def test_a_target_that_was_removed_begins_anew(tmp_path: Path, source: ZarrArray) -> None:
    interrupt(two_stages(source, tmp_path / "target"), 9)
    shutil.rmtree(tmp_path / "target")
    job = two_stages(source, tmp_path / "target", mode="resume")
    assert_exact(job.execute(), source)


def test_a_target_whose_metadata_were_removed_is_made_again(tmp_path: Path, source: ZarrArray) -> None:
    interrupt(two_stages(source, tmp_path / "target"), 20)
    (tmp_path / "target" / "zarr.json").unlink()
    assert_exact(two_stages(source, tmp_path / "target", mode="resume").execute(), source)


def test_a_target_that_was_changed_since_is_refused(tmp_path: Path, source: ZarrArray) -> None:
    interrupt(two_stages(source, tmp_path / "target"), 9)
    metadata = tmp_path / "target" / "zarr.json"
    document = json.loads(metadata.read_text())
    metadata.write_text(json.dumps({**document, "fill_value": 5.0}))
    job = two_stages(source, tmp_path / "target", mode="resume")
    with pytest.raises(rx.ResumeError, match=r"was changed since: its fill_value: 0.0 then, 5.0 now"):
        job.execute()


def test_files_half_written_are_removed_and_others_are_not(tmp_path: Path, source: ZarrArray) -> None:
    interrupt(two_stages(source, tmp_path / "target"), 20)
    half = tmp_path / "target" / "c" / "0" / ".0.0123456789ab.partial"
    by_zarr = tmp_path / "target" / f"zarr.{5:032x}.partial"
    foreign = [tmp_path / "target" / "c" / ".mine.partial", tmp_path / f"zarr.{5:032x}.partial"]
    for path in (half, by_zarr, *foreign):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"half")
    two_stages(source, tmp_path / "target", mode="resume").execute()
    assert not half.exists()
    assert not by_zarr.exists()
    assert all(path.exists() for path in foreign)


def test_a_job_that_another_has_replaced_since_it_was_planned_is_refused(tmp_path: Path, source: ZarrArray) -> None:
    interrupt(two_stages(source, tmp_path / "target"), 3)
    planned = two_stages(source, tmp_path / "target", mode="resume")
    interrupt(two_stages(source, tmp_path / "target", mode="overwrite"), 5)
    before = rx.status(tmp_path / "target")
    with pytest.raises(rx.ResumeError, match="another one was begun"):
        planned.execute()
    assert rx.status(tmp_path / "target") == before


def test_failures_of_a_run_before_are_gone_with_the_next_one(tmp_path: Path, source: ZarrArray) -> None:
    def fails(task: rx.CopyTask) -> rx.TaskResult:
        raise rx.StorageError("no more room", permanent=True)

    class Failing(SerialExecutor):
        task_function = staticmethod(fails)

    with pytest.raises(rx.TaskError):
        two_stages(source, tmp_path / "target", executor=Failing()).execute()
    (failure,) = rx.status(tmp_path / "target").failed
    assert (failure.stage, failure.index, failure.message) == (0, 0, "StorageError: no more room")
    two_stages(source, tmp_path / "target", mode="resume").execute()
    assert rx.status(tmp_path / "target").failed == ()


# Plans and journals that were edited.


def shrink(document: Any) -> None:
    for stage in document["plan"]["stages"]:
        stage["shape"][0] = 10
        for name in ("read_unit", "write_unit", "chunk", "region"):
            stage[name][0] = min(stage[name][0], 10)


def set_in_stage(name: str, value: object) -> Callable[[Any], None]:
    def edit(document: Any) -> None:
        document["plan"]["stages"][0][name] = value

    return edit


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a job that was stopped, for tests that leave it as it is."""
    folder = tmp_path_factory.mktemp("stopped")
    interrupt(two_stages(make_array(folder / "source", (20, 20, 20), (1, 20, 20)), folder / "target"), 5)
    return folder


@pytest.mark.parametrize(
    "edit,problem",
    [
        (shrink, r"its shape is \(10, 20, 20\), not \(20, 20, 20\)"),
        (lambda document: document["plan"].update(max_mem=10**12), "its max_mem is 1000000000000, not 8000"),
        (set_in_stage("region", [4, 20, 20]), "whole write units|two tasks could write"),
        (set_in_stage("region", [0, 20, 20]), "at least one element"),
        (set_in_stage("shape", [-20, 20, 20]), "negative"),
        (set_in_stage("target", "../../elsewhere"), "each stage reads what the one before it wrote"),
        (set_in_stage("threads", True), r"stages\[0\].threads must be an integer"),
        (lambda document: document["plan"]["stages"].pop(), "goes from 'source' to 'target'"),
        (lambda document: document["plan"]["stages"].clear(), "at least one stage"),
        (lambda document: document.update(job="../../up"), "a job's name"),
        (lambda document: document.update(rechunk_exec=7), "got 7"),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_an_edited_job_is_refused_and_nothing_is_written(
    stopped: Path, edit: Callable[[Any], object], problem: str
) -> None:
    whole = job_document(stopped / "target").read_bytes()
    edit_job(stopped / "target", edit)
    try:
        before = snapshot(stopped)
        with pytest.raises(rx.ResumeError, match=problem):
            two_stages(zarr.open_array(stopped / "source", mode="r"), stopped / "target", mode="resume")
        assert snapshot(stopped) == before
    finally:
        job_document(stopped / "target").write_bytes(whole)


def test_an_edited_name_of_an_intermediate_removes_nothing(tmp_path: Path, source: ZarrArray) -> None:
    # What is called an intermediate is removed in the end.
    precious = make_array(tmp_path / "precious", (4,), (2,))
    interrupt(two_stages(source, tmp_path / "target"), 5)

    def rename(document: Any) -> None:
        first, last = document["plan"]["stages"]
        first["target"] = last["source"] = "../precious"

    edit_job(tmp_path / "target", rename)
    with pytest.raises(rx.ResumeError, match="intermediates are called temp-1"):
        two_stages(source, tmp_path / "target", mode="resume")
    assert_exact(zarr.open_array(tmp_path / "precious"), precious)


def test_damaged_results_are_refused_before_anything_is_removed(tmp_path: Path, source: ZarrArray) -> None:
    interrupt(two_stages(source, tmp_path / "target"), 5)
    record = storage.read_job(ArrayRef(store=str(tmp_path / "target")))
    assert record is not None
    for path in (tmp_path / "target" / ".rechunk_exec" / record.job / "done").iterdir():
        path.write_text(path.read_text()[:-9])
    before = {name: content for name, (_, content) in snapshot(tmp_path).items()}
    with pytest.raises(rx.ResumeError, match="must be JSON"):
        two_stages(source, tmp_path / "target", mode="resume").execute()
    assert {name: content for name, (_, content) in snapshot(tmp_path).items()} == before
    two_stages(source, tmp_path / "target", mode="overwrite").execute()


# What is told.


def test_an_error_tells_how_many_tasks_are_done(tmp_path: Path, source: ZarrArray) -> None:
    job = two_stages(source, tmp_path / "target")
    with pytest.raises(InjectedError) as error:
        job.execute(on_event=stops_after(7))
    (note,) = error.value.__notes__
    assert f"is unfinished: 7 of {job.plan.tasks} tasks are done" in note
    assert "the same call with mode='resume' goes on from here" in note
    again = two_stages(source, tmp_path / "target", mode="resume")
    with pytest.raises(InjectedError) as error:
        again.execute(on_event=stops_after(2))
    assert f"9 of {job.plan.tasks} tasks are done" in error.value.__notes__[0]


def test_an_error_of_a_function_tells_how_many_tasks_are_done(tmp_path: Path, source: ZarrArray) -> None:
    def gives_up(stages: Sequence[Stage]) -> None:
        for task in stages[0][:3]:
            rx.run_task(task)
        raise InjectedError

    job = two_stages(source, tmp_path / "target", executor=gives_up)
    with pytest.raises(rx.RechunkError, match=rf"3 of {job.plan.tasks} tasks are done"):
        job.execute()
