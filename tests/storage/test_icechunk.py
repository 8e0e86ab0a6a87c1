"""Icechunk sessions as source and target: real repositories on disk, one commit a job or none."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import rechunk_exec as rx
from rechunk_exec import storage, wire
from rechunk_exec.errors import (
    PlanError,
    RechunkError,
    ResumeError,
    SerializationError,
    StorageError,
    TargetExistsError,
    TaskError,
)
from rechunk_exec.executors import ProcessesExecutor, SerialExecutor, ThreadsExecutor
from rechunk_exec.executors.pool import PoolExecutor
from rechunk_exec.results import CopyReport, Event, OnEvent, TaskResult
from rechunk_exec.storage.objects import StoreObjects
from rechunk_exec.storage.sessions import IcechunkFork, IcechunkTarget
from rechunk_exec.tasks import CopyTask, Stage
from tests.conftest import needed_module
from tests.executors.recording import make_result
from tests.jobs import InjectedError, ToldCopy, ZarrArray, assert_kept_promises, elements, make_array
from tests.values import Array, position_values, same_bits

icechunk: Any = needed_module("icechunk")

SHAPE = (20, 24, 30)
FIRST = position_values(SHAPE, "f4", seed=1)
"""What the array ``epochs`` held in the snapshot tagged ``one``."""
SECOND = position_values(SHAPE, "f4", seed=2)
"""What it holds on the branch."""
BEFORE = {"epochs", "kept", "kept/beside"}
"""What is on the branch before a job."""

Make = Callable[[], PoolExecutor]


@pytest.fixture
def repo(tmp_path: Path) -> Any:
    """A repository with an array in two versions, and another one beside it."""
    made = icechunk.Repository.create(icechunk.local_filesystem_storage(str(tmp_path / "repository")))
    session = made.writable_session("main")
    make_array(session.store, SHAPE, (1, 24, 30), name="epochs", values=FIRST, attributes={"unit": "m"})
    make_array(session.store, (5, 3), (2, 3), "i2", name="kept/beside")
    made.create_tag("one", session.commit("one"))
    session = made.writable_session("main")
    zarr.open_array(session.store, path="epochs", mode="r+")[...] = SECOND
    session.commit("two")
    return made


@pytest.fixture
def source(tmp_path: Path) -> ZarrArray:
    return make_array(
        tmp_path / "source", SHAPE, (1, 24, 30), attributes={"unit": "m"}, dimension_names=["t", "y", "x"]
    )


def messages(repo: Any) -> list[str]:
    """Of the commits on the branch, the newest first."""
    return [snapshot.message for snapshot in repo.ancestry(branch="main")]


def names(repo: Any) -> set[str]:
    """What is on the branch."""
    return {name for name, _ in zarr.open_group(repo.readonly_session("main").store, mode="r").members(max_depth=None)}


def values(repo: Any, path: str) -> Array:
    """The elements of an array on the branch, read by zarr from a session of its own."""
    return elements(zarr.open_array(repo.readonly_session("main").store, path=path, mode="r"))


@contextmanager
def nothing_is_committed(repo: Any) -> Iterator[None]:
    """Fail if the branch is not as it was."""
    before = messages(repo), names(repo), values(repo, "epochs").tobytes()
    yield
    assert (messages(repo), names(repo), values(repo, "epochs").tobytes()) == before


def one_stage(source: object, session: Any, **options: Any) -> rx.Rechunked:
    """A job of one stage and a dozen tasks into a session."""
    options = {"executor": "serial", "progress": False, "array_name": "layers/series", **options}
    job = rx.rechunk(source, (20, 4, 4), 12_000, session.store, **options)
    assert len(job.stages) == 1
    assert len(job.stages[0]) >= 12
    return job


def two_stages(source: object, session: Any, temp: object, **options: Any) -> rx.Rechunked:
    """A job that needs an intermediate, into a session."""
    options = {"executor": "serial", "progress": False, "array_name": "layers/series", **options}
    job = rx.rechunk(source, (20, 4, 4), 16_000, session.store, temp_store=temp, **options)
    assert len(job.stages) == 2
    return job


def two_processes() -> PoolExecutor:
    return ProcessesExecutor(2)


EXECUTORS = pytest.mark.parametrize("make", [SerialExecutor, ThreadsExecutor, two_processes])


# A session as source.


@EXECUTORS
@pytest.mark.parametrize("newest", [True, False])
def test_any_snapshot_can_be_the_source(tmp_path: Path, repo: Any, make: Make, newest: bool) -> None:
    session = repo.readonly_session("main") if newest else repo.readonly_session(tag="one")
    array = zarr.open_array(session.store, path="epochs", mode="r")
    with make() as executor:
        job = rx.rechunk(array, (20, 8, 8), 80_000, tmp_path / "target", executor=executor, progress=False)
        target = job.execute()
    assert_kept_promises(job)
    assert same_bits(elements(target), SECOND if newest else FIRST)
    assert target.attrs["unit"] == "m"


def test_a_session_does_as_well_as_its_store_and_a_repository_may_be_in_memory(tmp_path: Path) -> None:
    repo = icechunk.Repository.create(icechunk.in_memory_storage())
    expected = position_values((6, 4), "f4")
    array = make_array(tmp_path / "source", (6, 4), (1, 4))
    rx.rechunk(array, (6, 1), "1MB", repo.writable_session("main"), progress=False).execute()
    assert len(messages(repo)) == 2
    job = rx.rechunk(repo.readonly_session("main"), (2, 4), "1MB", tmp_path / "target", progress=False)
    assert same_bits(elements(job.execute()), expected)
    # The other way, over the array at the root.
    rx.rechunk(
        tmp_path / "target", (3, 2), "1MB", repo.writable_session("main"), progress=False, mode="overwrite"
    ).execute()
    assert len(messages(repo)) == 3
    assert same_bits(values(repo, ""), expected)


# A session as target.


@EXECUTORS
@pytest.mark.parametrize("shards", [None, (20, 16, 16)])
def test_a_job_is_one_commit_that_holds_the_source_to_the_bit(
    repo: Any, source: ZarrArray, make: Make, shards: tuple[int, ...] | None
) -> None:
    session = repo.writable_session("main")
    with make() as executor:
        job = rx.rechunk(
            source,
            (20, 4, 4),
            12_000 if shards is None else 80_000,
            session.store,
            executor=executor,
            array_name="layers/series",
            target_shards=shards,
            verify=True,
            progress=False,
        )
        assert job.plan.tasks >= 2
        target = job.execute()
    assert_kept_promises(job)
    assert job.report is not None
    assert job.report.warnings == ()
    assert all(result.changes is None for result in job.report.results)
    assert len(messages(repo)) == 4
    assert "layers/series" in messages(repo)[0]
    assert same_bits(values(repo, "layers/series"), elements(source))
    assert same_bits(elements(target), elements(source))
    assert (target.chunks, target.shards, target.attrs["unit"]) == ((20, 4, 4), shards, "m")
    assert target.metadata.to_dict()["dimension_names"] == ("t", "y", "x")
    assert target.read_only
    assert session.read_only
    assert names(repo) == BEFORE | {"layers", "layers/series"}
    assert same_bits(values(repo, "epochs"), SECOND)
    assert same_bits(values(repo, "kept/beside"), position_values((5, 3), "i2"))


@EXECUTORS
def test_intermediates_lie_elsewhere_and_are_gone_after(
    tmp_path: Path, repo: Any, source: ZarrArray, make: Make
) -> None:
    with make() as executor:
        job = two_stages(source, repo.writable_session("main"), tmp_path / "temp", executor=executor)
        job.execute()
    assert_kept_promises(job)
    assert same_bits(values(repo, "layers/series"), elements(source))
    assert len(messages(repo)) == 4
    assert not list((tmp_path / "temp").iterdir())


def test_a_pool_of_others_processes_gives_changes_back_too(repo: Any, source: ZarrArray) -> None:
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        one_stage(source, repo.writable_session("main"), executor=pool).execute()
    assert same_bits(values(repo, "layers/series"), elements(source))


@EXECUTORS
def test_chunks_of_fill_value_and_strings(tmp_path: Path, repo: Any, make: Make) -> None:
    numbers = np.zeros((8, 6), "i4")
    numbers[2:4, 3:] = position_values((2, 3), "i4")
    sparse = make_array(tmp_path / "sparse", (8, 6), (1, 6), "i4", values=numbers, fill_value=0)
    texts = make_array(tmp_path / "texts", (8, 6), (1, 6), str, values=position_values((8, 6), object))
    with make() as executor:
        for array, name in ((sparse, "sparse"), (texts, "texts")):
            session = repo.writable_session("main")
            job = rx.rechunk(
                array, (4, 2), 2_000, session.store, executor=executor, array_name=name, progress=False, verify=True
            )
            job.execute()
    assert same_bits(values(repo, "sparse"), numbers)
    assert same_bits(values(repo, "texts"), elements(texts))
    assert len(messages(repo)) == 5


def test_an_array_without_elements_is_committed_too(tmp_path: Path, repo: Any) -> None:
    empty = make_array(tmp_path / "empty", (0, 4), (1, 4))
    with ProcessesExecutor(1) as executor:
        job = rx.rechunk(
            empty, (2, 2), "1MB", repo.writable_session("main").store, executor=executor, array_name="none"
        )
        assert job.execute().shape == (0, 4)
    assert "none" in names(repo)


@EXECUTORS
def test_an_array_is_replaced_and_is_its_own_source_in_one_commit(repo: Any, make: Make) -> None:
    """The snapshot that is read stays as it is, whatever is written to the branch."""
    array = zarr.open_array(repo.readonly_session("main").store, path="epochs", mode="r")
    session = repo.writable_session("main")
    with make() as executor:
        job = one_stage(array, session, array_name="epochs", mode="overwrite", executor=executor)
        target = job.execute()
    assert target.chunks == (20, 4, 4)
    assert same_bits(values(repo, "epochs"), SECOND)
    assert same_bits(elements(array), SECOND)
    assert len(messages(repo)) == 4
    assert names(repo) == BEFORE


def test_source_and_target_may_be_one_session(repo: Any) -> None:
    session = repo.writable_session("main")
    array = zarr.open_array(session.store, path="epochs", mode="r")
    one_stage(array, session, executor="threads").execute()
    assert same_bits(values(repo, "layers/series"), SECOND)
    session = repo.writable_session("main")
    with pytest.raises(PlanError, match="must not be the same"):
        one_stage(zarr.open_array(session.store, path="epochs", mode="r"), session, array_name="epochs")


def test_job_after_job_commits_again(repo: Any, source: ZarrArray) -> None:
    with ProcessesExecutor(2) as executor:
        for name in ("a", "b"):
            one_stage(source, repo.writable_session("main"), executor=executor, array_name=name).execute()
    assert len(messages(repo)) == 5
    assert same_bits(values(repo, "a"), elements(source))
    assert same_bits(values(repo, "b"), elements(source))


def test_commits_of_others_meanwhile_are_kept(repo: Any, source: ZarrArray) -> None:
    job = one_stage(source, repo.writable_session("main"))
    other = repo.writable_session("main")
    make_array(other.store, (3,), (1,), "i2", name="other")
    other.commit("meanwhile")
    job.execute()
    assert messages(repo)[1] == "meanwhile"
    assert same_bits(values(repo, "layers/series"), elements(source))
    assert same_bits(values(repo, "other"), position_values((3,), "i2"))


def test_an_array_that_cannot_be_committed_stays_in_the_session(repo: Any, source: ZarrArray) -> None:
    session = repo.writable_session("main")
    job = one_stage(source, session, array_name="same")
    other = repo.writable_session("main")
    make_array(other.store, (3,), (1,), "i2", name="same")
    other.commit("meanwhile")
    with nothing_is_committed(repo), pytest.raises(StorageError, match=r"cannot be committed to branch 'main'.*rebase"):
        job.execute()
    assert session.has_uncommitted_changes
    assert same_bits(elements(zarr.open_array(session.store, path="same", mode="r")), elements(source))


# What fails.


@EXECUTORS
def test_a_task_that_fails_is_run_again(tmp_path: Path, repo: Any, source: ZarrArray, make: Make) -> None:
    with make() as executor:
        executor.task_function = told = ToldCopy(tmp_path, fails={(0, 0): 1, (0, 3): 2})
        job = one_stage(source, repo.writable_session("main"), executor=executor)
        job.execute()
    assert job.report is not None
    assert job.report.retries == 3
    assert len(told.told()) == len(job.stages[0])
    assert same_bits(values(repo, "layers/series"), elements(source))
    assert len(messages(repo)) == 4


@EXECUTORS
def test_a_failed_job_commits_nothing_and_leaves_no_changes(
    tmp_path: Path, repo: Any, source: ZarrArray, make: Make
) -> None:
    session = repo.writable_session("main")
    (tmp_path / "told").mkdir()
    with make() as executor, nothing_is_committed(repo):
        executor.task_function = ToldCopy(tmp_path / "told", fails={(1, 5): 3})
        job = two_stages(source, session, tmp_path / "temp", executor=executor)
        with pytest.raises(TaskError, match="nothing was committed to branch 'main'") as caught:
            job.execute()
    assert isinstance(caught.value.__cause__, InjectedError)
    assert not session.has_uncommitted_changes
    assert not list((tmp_path / "temp").iterdir())
    one_stage(source, session).execute()  # the session can be used again
    assert same_bits(values(repo, "layers/series"), elements(source))


def test_a_job_that_is_interrupted_commits_nothing(repo: Any, source: ZarrArray) -> None:
    session = repo.writable_session("main")

    def interrupt(event: Event) -> None:
        if event.index == 2:
            raise KeyboardInterrupt

    with nothing_is_committed(repo), pytest.raises(KeyboardInterrupt):
        one_stage(source, session).execute(on_event=interrupt)
    assert not session.has_uncommitted_changes


@pytest.mark.parametrize("mode", ["fail", "overwrite"])
def test_what_does_not_verify_is_not_committed(repo: Any, source: ZarrArray, mode: str) -> None:
    session = repo.writable_session("main")
    job = one_stage(source, session, verify=True, array_name="epochs" if mode == "overwrite" else "new", mode=mode)

    def damage(event: Event) -> None:
        if event.kind == "task" and event.index == len(job.stages[0]) - 1:
            zarr.open_array(session.store, path=job.stages[0].target.path, mode="r+")[3, 4, 5] = 1

    with nothing_is_committed(repo), pytest.raises(RechunkError, match=r"1 of \d+ boxes differ.*nothing was committed"):
        job.execute(on_event=damage)
    assert not session.has_uncommitted_changes


class Elsewhere:
    """An executor of processes that loses what the tasks of ``lost`` have changed."""

    name = "elsewhere"
    tasks_per_worker = 1

    def __init__(self, lost: set[int]) -> None:
        self.lost = lost

    def staged_copy(self, stages: Sequence[Stage], *, on_event: OnEvent | None = None) -> CopyReport:
        with ProcessesExecutor(2) as executor:
            report = executor.staged_copy(stages, on_event=on_event)
        results = [replace(one, changes=None) if one.index in self.lost else one for one in report.results]
        return replace(report, results=tuple(results))


def test_changes_that_an_executor_loses_are_missed(repo: Any, source: ZarrArray) -> None:
    one_stage(source, repo.writable_session("main"), array_name="whole", executor=Elsewhere(set())).execute()
    assert same_bits(values(repo, "whole"), elements(source))
    with nothing_is_committed(repo), pytest.raises(RechunkError, match=r"nothing from 2 of \d+ tasks, the first is 1;"):
        one_stage(source, repo.writable_session("main"), executor=Elsewhere({1, 4})).execute()


def test_changes_have_no_json_form_and_are_not_dropped_in_silence() -> None:
    (stage,) = [replace(make_stage_task(), index=3)]
    result = make_result(stage)
    assert "changes" not in wire.to_document(result)
    assert wire.from_json(TaskResult, wire.to_json(result)) == result
    with pytest.raises(SerializationError, match=r"TaskResult\.changes must be something that JSON can name"):
        wire.to_json(replace(result, changes=b"x"))
    with pytest.raises(SerializationError, match=r"TaskResult\.changes is unknown"):
        wire.from_document(TaskResult, {**wire.to_document(result), "changes": None})


def make_stage_task() -> CopyTask:
    ref = storage.array_ref("/nowhere")
    return CopyTask(stage=0, index=0, start=(0,), stop=(1,), source=ref, target=ref, threads=1, predicted_bytes=0)


# What is refused.


def test_a_function_is_no_executor_for_it(repo: Any, source: ZarrArray) -> None:
    def run_all(stages: Sequence[Stage]) -> None:
        raise AssertionError

    with nothing_is_committed(repo), pytest.raises(StorageError, match=r"takes records of tasks.*'run_all'"):
        one_stage(source, repo.writable_session("main"), executor=run_all)


def test_resume_begins_anew_or_is_refused(repo: Any, source: ZarrArray) -> None:
    one_stage(source, repo.writable_session("main"), mode="resume").execute()
    assert same_bits(values(repo, "layers/series"), elements(source))
    with nothing_is_committed(repo), pytest.raises(ResumeError, match="leaves nothing in an icechunk repository"):
        one_stage(source, repo.writable_session("main"), mode="resume")
    with nothing_is_committed(repo), pytest.raises(TargetExistsError):
        one_stage(source, repo.writable_session("main"))
    with nothing_is_committed(repo), pytest.raises(TargetExistsError, match="replaces arrays only"):
        one_stage(source, repo.writable_session("main"), mode="overwrite", array_name="kept")


def test_intermediates_need_a_place_outside(tmp_path: Path, repo: Any, source: ZarrArray) -> None:
    session = repo.writable_session("main")
    assert storage.temp_place(storage.array_ref(session.store, "new"), None) is None
    with pytest.raises(AssertionError):  # it does without
        two_stages(source, session, None)
    with pytest.raises(PlanError, match="intermediates do not go to icechunk"):
        two_stages(source, session, repo.writable_session("main").store)
    # An array on disk has the same rule.
    with pytest.raises(PlanError, match="intermediates do not go to icechunk"):
        rx.rechunk(source, (20, 4, 4), 16_000, tmp_path / "target", temp_store=session.store)


def test_a_session_with_changes_is_left_as_it_is(repo: Any, source: ZarrArray) -> None:
    session = repo.writable_session("main")
    planned = one_stage(source, session)
    make_array(session.store, (3,), (1,), "i2", name="mine")
    for refused in (lambda: one_stage(source, session), planned.execute):
        with nothing_is_committed(repo), pytest.raises(StorageError, match="uncommitted changes"):
            refused()
    assert same_bits(elements(zarr.open_array(session.store, path="mine", mode="r")), position_values((3,), "i2"))


def test_sessions_that_cannot_be_committed(repo: Any, source: ZarrArray) -> None:
    store = repo.writable_session("main").store
    session = store.session
    with pytest.raises(StorageError, match="is a fork"):
        rx.rechunk(source, (20, 8, 8), 80_000, repo.writable_session("main").fork().store, array_name="new")
    make_array(store, (3,), (1,), "i2", name="mine")
    session.commit("three")
    for given in (store, repo.readonly_session("main").store):
        with nothing_is_committed(repo), pytest.raises(StorageError, match=r"read.only"):
            rx.rechunk(source, (20, 8, 8), 80_000, given, array_name="new")


def test_format_2_is_refused_before_anything_is_written(tmp_path: Path, repo: Any) -> None:
    old = make_array(tmp_path / "old", (8, 8), (1, 8), zarr_format=2)
    session = repo.writable_session("main")
    with pytest.raises(PlanError, match="icechunk holds arrays of zarr format 3"):
        rx.rechunk(old, (8, 2), "1MB", session.store, array_name="new")
    rx.rechunk(old, (8, 2), "1MB", session.store, array_name="new", zarr_format=3, progress=False).execute()
    assert same_bits(values(repo, "new"), position_values((8, 8), "f4"))


def test_processes_are_refused_what_they_cannot_see(tmp_path: Path, repo: Any, source: ZarrArray) -> None:
    memory = icechunk.Repository.create(icechunk.in_memory_storage())
    session = memory.writable_session("main")
    make_array(session.store, (8, 8), (1, 8), name="a")
    session.commit("one")
    with pytest.raises(StorageError, match="finds no repository"):
        one_stage(source, memory.writable_session("main"), executor="processes")
    reading = zarr.open_array(memory.readonly_session("main").store, path="a", mode="r")
    with pytest.raises(StorageError, match="finds no repository"):
        rx.rechunk(reading, (8, 1), "1MB", tmp_path / "target", executor="processes")
    writable = zarr.open_array(repo.writable_session("main").store, path="epochs", mode="r")
    with pytest.raises(StorageError, match="give the store of a read-only session"):
        rx.rechunk(writable, (20, 8, 8), 80_000, tmp_path / "target", executor="processes")


def test_planning_writes_nothing(tmp_path: Path, repo: Any, source: ZarrArray) -> None:
    def stored() -> set[str]:
        return {str(path) for path in (tmp_path / "repository").rglob("*")}

    before = stored()
    session = repo.writable_session("main")
    job = one_stage(source, session, executor="processes")
    assert "layers/series" in repr(job)
    assert stored() == before
    assert not session.has_uncommitted_changes


def test_tasks_that_were_sent_before_the_array_is_made_say_so(repo: Any, source: ZarrArray) -> None:
    job = one_stage(source, repo.writable_session("main"))
    assert isinstance(job.stages[0].target.store, IcechunkTarget)
    arrived: Stage = pickle.loads(pickle.dumps(job.stages[0]))
    assert arrived.target.store == IcechunkFork(None)
    with pytest.raises(StorageError, match=r"use Rechunked\.execute"):
        rx.run_task(arrived[0])
    with pytest.raises(SerializationError, match="by pickle"):
        job.stages[0][0].to_json()


# Objects in a session.


def allocate(size: int) -> memoryview:
    return memoryview(bytearray(size))


def test_objects_of_a_session(repo: Any) -> None:
    store = repo.writable_session("main").store
    zarr.create_array(store, name="raw", shape=(300,), chunks=(100,), dtype="u1", compressors=None)
    objects = StoreObjects(store, "raw")
    content = bytes(range(100)) * 9  # more than what icechunk keeps inline
    writer = objects.create("c/1")
    writer.append(content[:500])
    writer.append(content[500:])
    assert writer.commit() == 900
    assert bytes(objects.read("c/1", allocate) or b"") == content
    assert bytes(objects.read("c/1", allocate, 20, 50) or b"") == content[20:70]
    assert bytes(objects.read("c/1", allocate, -30, 30) or b"") == content[-30:]
    assert objects.read("c/0", allocate) is None
    assert objects.read("c/0", allocate, -30, 30) is None
    for _ in range(2):  # what is not there is deleted as well
        objects.delete("c/1")
        objects.delete("c/2")
        assert objects.read("c/1", allocate) is None
    StoreObjects(store, "nowhere").delete("c/0")
    assert not storage.holds_documents(storage.array_ref(store))
    assert storage.holds_documents(storage.array_ref("/nowhere"))


def test_an_object_that_is_too_short_is_an_error(repo: Any) -> None:
    store = repo.writable_session("main").store
    zarr.create_array(store, name="raw", shape=(300,), chunks=(100,), dtype="u1", compressors=None)
    objects = StoreObjects(store, "raw")
    writer = objects.create("c/1")
    writer.append(bytes(60))
    writer.commit()
    with pytest.raises(StorageError, match="c/1"):
        objects.read("c/1", allocate, 20, 50)
    with pytest.raises(StorageError, match="c/1"):
        objects.read("c/1", allocate, -70, 70)


def test_a_task_gives_back_its_own_changes_only(tmp_path: Path, repo: Any, source: ZarrArray) -> None:
    """However often it runs, and whatever else its process has run."""
    session = repo.writable_session("main")
    job = one_stage(source, session)
    target = job.stages[0].target.store
    assert isinstance(target, IcechunkTarget)
    with target.making() as ref:
        make_array(ref.store, SHAPE, (20, 4, 4), name="layers/series", values=np.zeros(SHAPE, "f4"))
    arrived: Stage = pickle.loads(pickle.dumps(job.stages[0]))
    assert repr(arrived.target.store) == "IcechunkFork()"  # what opens a repository is not shown
    results = [rx.run_task(arrived[index]) for index in (0, 1, 0)]
    assert "changes" not in repr(results[0])
    assert os.getpid()
    for result, task in zip(results, (arrived[0], arrived[1], arrived[0]), strict=True):
        assert result.changes is not None
        changed = elements(zarr.open_array(pickle.loads(result.changes).store, path="layers/series", mode="r"))
        expected = np.zeros(SHAPE, "f4")
        box = tuple(map(slice, task.start, task.stop))
        expected[box] = elements(source)[box]
        assert same_bits(changed, expected)
