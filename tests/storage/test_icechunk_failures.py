"""Jobs into icechunk sessions that fail or are refused: the branch stays as it was."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import zarr
from zarr.storage import WrapperStore

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
from rechunk_exec.executors import ProcessesExecutor
from rechunk_exec.results import CopyReport, Event, OnEvent, TaskResult
from rechunk_exec.storage.sessions import IcechunkFork, IcechunkTarget
from rechunk_exec.tasks import CopyTask, Stage
from tests.executors.recording import make_result
from tests.executors.workers import environment
from tests.jobs import InjectedError, ToldCopy, ZarrArray, elements, make_array
from tests.storage.repositories import (
    EXECUTORS,
    Make,
    make,
    memory_repository,
    messages,
    nothing_is_committed,
    one_stage,
    repo,
    source,
    two_processes,
    two_stages,
    values,
)
from tests.values import position_values, same_bits

__all__ = ["make", "repo", "source", "two_processes"]

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


def test_a_worker_that_dies_loses_nothing(tmp_path: Path, repo: Any, source: ZarrArray) -> None:
    with ProcessesExecutor(1) as executor:
        executor.task_function = DiesOnce(tmp_path / "dead")
        job = one_stage(source, repo.writable_session("main"), executor=executor)
        job.execute()
    assert job.report is not None
    assert job.report.retries == 1
    assert same_bits(values(repo, "layers/series"), elements(source))


@dataclass(frozen=True)
class DiesOnce:
    """A task function whose process dies after the copy of task 3, before it can tell."""

    mark: Path

    def __call__(self, task: CopyTask) -> TaskResult:
        result = rx.run_task(task)
        if task.index == 3 and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return result


def test_a_killed_job_leaves_the_branch_as_it_was(tmp_path: Path, repo: Any, source: ZarrArray) -> None:
    script = f"""
import os, signal, icechunk, rechunk_exec as rx
repo = icechunk.Repository.open(icechunk.local_filesystem_storage({str(tmp_path / "repository")!r}))
job = rx.rechunk({str(tmp_path / "source")!r}, (20, 4, 4), 12_000, repo.writable_session("main"), array_name="new",
                 executor="serial", progress=False)
last = len(job.stages[0]) - 1
job.execute(on_event=lambda event: event.index == last and os.kill(os.getpid(), signal.SIGKILL))
"""
    with nothing_is_committed(repo):
        run = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, env=environment())
        assert run.returncode == -signal.SIGKILL, run.stderr.decode()
    one_stage(source, repo.writable_session("main"), array_name="new").execute()
    assert same_bits(values(repo, "new"), elements(source))


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

    def __init__(self, pool: ProcessesExecutor, lost: set[int]) -> None:
        self.pool = pool
        self.lost = lost

    def staged_copy(self, stages: Sequence[Stage], *, on_event: OnEvent | None = None) -> CopyReport:
        report = self.pool.staged_copy(stages, on_event=on_event)
        results = [replace(one, changes=None) if one.index in self.lost else one for one in report.results]
        return replace(report, results=tuple(results))


def test_changes_that_an_executor_loses_are_missed(
    repo: Any, source: ZarrArray, two_processes: ProcessesExecutor
) -> None:
    whole, lossy = Elsewhere(two_processes, set()), Elsewhere(two_processes, {1, 4})
    one_stage(source, repo.writable_session("main"), array_name="whole", executor=whole).execute()
    assert same_bits(values(repo, "whole"), elements(source))
    with nothing_is_committed(repo), pytest.raises(RechunkError, match=r"nothing from 2 of \d+ tasks, the first is 1;"):
        one_stage(source, repo.writable_session("main"), executor=lossy).execute()


def test_changes_have_no_json_form_and_are_not_dropped_in_silence() -> None:
    ref = storage.array_ref("/nowhere")
    task = CopyTask(stage=0, index=3, start=(0,), stop=(1,), source=ref, target=ref, threads=1, predicted_bytes=0)
    result = make_result(task)
    assert "changes" not in wire.to_document(result)
    assert wire.from_json(TaskResult, wire.to_json(result)) == result
    with pytest.raises(SerializationError, match=r"TaskResult\.changes must be something that JSON can name"):
        wire.to_json(replace(result, changes=b"x"))
    with pytest.raises(SerializationError, match=r"TaskResult\.changes is unknown"):
        wire.from_document(TaskResult, {**wire.to_document(result), "changes": None})


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


def test_without_a_temp_store_a_job_does_without_intermediates(repo: Any, source: ZarrArray) -> None:
    session = repo.writable_session("main")
    assert storage.temp_place(storage.array_ref(session.store, "new"), None, "x") is None
    job = rx.rechunk(source, (20, 4, 4), 16_000, session.store, array_name="new")
    assert len(job.stages) == 1


def test_a_session_with_changes_is_left_as_it_is(repo: Any, source: ZarrArray) -> None:
    session = repo.writable_session("main")
    planned = one_stage(source, session)
    make_array(session.store, (3,), (1,), "i2", name="mine")
    for refused in (lambda: one_stage(source, session), planned.execute):
        with nothing_is_committed(repo), pytest.raises(StorageError, match="uncommitted changes"):
            refused()
    assert same_bits(elements(zarr.open_array(session.store, path="mine", mode="r")), position_values((3,), "i2"))


def test_changes_of_others_that_came_into_the_session_meanwhile_are_not_committed(repo: Any, source: ZarrArray) -> None:
    """Such as those of another thread's job, which is not finished."""
    session = repo.writable_session("main")
    job = one_stage(source, session)

    def half_of_another(event: Event) -> None:
        if event.index == 3:
            make_array(session.store, (3,), (1,), "i2", name="layers/other")

    with nothing_is_committed(repo), pytest.raises(StorageError, match="changes of somebody else, of /layers/other"):
        job.execute(on_event=half_of_another)
    assert same_bits(elements(zarr.open_array(session.store, path="layers/series", mode="r")), elements(source))
    assert same_bits(
        elements(zarr.open_array(session.store, path="layers/other", mode="r")), position_values((3,), "i2")
    )


def test_a_session_that_was_discarded_meanwhile_is_not_committed(repo: Any, source: ZarrArray) -> None:
    session = repo.writable_session("main")
    job = one_stage(source, session)
    last = len(job.stages[0]) - 1

    def discard(event: Event) -> None:
        if event.kind == "task" and event.index == last:
            session.discard_changes()

    with nothing_is_committed(repo), pytest.raises(StorageError, match="does not have it any more"):
        job.execute(on_event=discard)


def test_a_store_of_a_session_inside_another_store_is_refused(tmp_path: Path, repo: Any, source: ZarrArray) -> None:
    session = repo.writable_session("main")
    wrapped: list[WrapperStore[Any]] = [WrapperStore(repo.readonly_session("main").store), WrapperStore(session.store)]
    with pytest.raises(StorageError, match="given as it is, or its session; got it in a WrapperStore"):
        rx.rechunk(zarr.open_array(wrapped[0], path="epochs", mode="r"), (20, 4, 4), "1MB", tmp_path / "target")
    with pytest.raises(StorageError, match="given as it is, or its session; got it in a WrapperStore"):
        rx.rechunk(source, (20, 4, 4), "1MB", wrapped[1], array_name="series")
    assert not session.has_uncommitted_changes


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
    memory = memory_repository()
    session = memory.writable_session("main")
    make_array(session.store, (8, 8), (1, 8), name="a")
    session.commit("one")
    with pytest.raises(StorageError, match="cannot read the repository, as if that were in memory"):
        one_stage(source, memory.writable_session("main"), executor="processes")
    reading = zarr.open_array(memory.readonly_session("main").store, path="a", mode="r")
    with pytest.raises(StorageError, match="cannot read the repository, as if that were in memory"):
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
