"""Intermediates in an icechunk repository: in forks of a session, which are never committed."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import zarr

import rechunk_exec as rx
from rechunk_exec.errors import RechunkError, StorageError, TaskError
from rechunk_exec.executors import ProcessesExecutor, SerialExecutor
from rechunk_exec.results import Event, TaskResult
from rechunk_exec.tasks import CopyTask, Stage
from tests.jobs import QUICK_STAGES, ToldCopy, ZarrArray, assert_exact, assert_kept_promises, elements, make_array
from tests.storage.repositories import (
    BEFORE,
    EXECUTORS,
    Make,
    make,
    memory_repository,
    messages,
    names,
    nothing_is_committed,
    repo,
    source,
    two_processes,
    two_stages,
    values,
)
from tests.values import same_bits

__all__ = ["make", "repo", "source", "two_processes"]


def to_disk(source: object, folder: Path, session: Any, **options: Any) -> rx.Rechunked:
    """A job of two stages to a folder, by a session."""
    options = {"executor": "serial", "progress": False, "cost_model": QUICK_STAGES, **options}
    job = rx.rechunk(source, (20, 4, 4), 16_000, folder / "target", temp_store=session, **options)
    assert len(job.stages) == 2
    return job


@EXECUTORS
def test_a_job_by_way_of_a_session(tmp_path: Path, repo: Any, source: ZarrArray, make: Make) -> None:
    session = repo.writable_session("main")
    with nothing_is_committed(repo), make() as executor:
        job = to_disk(source, tmp_path, session.store, executor=executor, verify=True)
        target = job.execute()
    assert_exact(target, source)
    assert_kept_promises(job)
    assert job.report is not None
    assert all(result.changes is None for result in job.report.results)
    assert not session.has_uncommitted_changes
    assert rx.status(tmp_path / "target").state == "finished"
    make_array(session.store, (3,), (1,), "i2", name="mine")
    session.commit("the session is as it was")
    assert names(repo) == BEFORE | {"mine"}


@EXECUTORS
@pytest.mark.parametrize("same", [True, False])
def test_a_target_in_the_same_repository_is_committed_without_the_intermediate(
    repo: Any, source: ZarrArray, make: Make, same: bool
) -> None:
    session = repo.writable_session("main")
    with make() as executor:
        temp = session if same else repo.writable_session("main")
        job = two_stages(source, session, temp, executor=executor)
        job.execute()
    assert_kept_promises(job)
    assert names(repo) == BEFORE | {"layers", "layers/series"}
    assert same_bits(values(repo, "layers/series"), elements(source))
    assert len(messages(repo)) == 4


def test_source_temp_and_target_in_one_repository(repo: Any, two_processes: ProcessesExecutor) -> None:
    array = zarr.open_array(repo.readonly_session("main").store, path="epochs", mode="r")
    expected = elements(array)
    two_stages(array, repo.writable_session("main"), repo.writable_session("main"), executor=two_processes).execute()
    assert names(repo) == BEFORE | {"layers", "layers/series"}
    assert same_bits(values(repo, "layers/series"), expected)


def test_a_repository_in_memory_holds_no_intermediates(tmp_path: Path, source: ZarrArray) -> None:
    with pytest.raises(StorageError, match=r"must see what is stored.*as if that were in memory"):
        to_disk(source, tmp_path, memory_repository().writable_session("main"), executor="threads")


def test_what_is_stored_of_an_intermediate_is_garbage_to_collect(tmp_path: Path, repo: Any, source: ZarrArray) -> None:
    def stored() -> int:
        return sum(path.stat().st_size for path in (tmp_path / "repository" / "chunks").rglob("*") if path.is_file())

    before = stored()
    to_disk(source, tmp_path, repo.writable_session("main")).execute()
    assert stored() > before
    repo.garbage_collect(datetime.now(UTC) + timedelta(days=1))
    assert stored() == before


def test_a_job_that_failed_goes_on_with_its_intermediates_made_again(
    tmp_path: Path, repo: Any, source: ZarrArray, two_processes: ProcessesExecutor
) -> None:
    with SerialExecutor() as executor:
        executor.task_function = ToldCopy(tmp_path, fails={(1, 5): 99})
        job = to_disk(source, tmp_path, repo.writable_session("main"), executor=executor)
        with nothing_is_committed(repo), pytest.raises(TaskError, match="made again"):
            job.execute()
    done = {(task.stage, task.index) for task in job.tasks()}
    again = to_disk(source, tmp_path, repo.writable_session("main"), mode="resume", executor=two_processes)
    assert_exact(again.execute(), source)
    assert again.report is not None
    stages = [result.stage for result in again.report.results]
    assert stages.count(1) == len(job.stages[1]) - 5, "what the target holds is not copied again"
    assert stages.count(0) > 0
    assert len(stages) <= len(done)


class LosesChanges:
    """A task function whose changes do not come back."""

    def __call__(self, task: CopyTask) -> TaskResult:
        return replace(rx.run_task(task), changes=None)


@pytest.mark.parametrize("make", ["two_processes"], indirect=True)
def test_changes_that_an_executor_loses_are_missed(tmp_path: Path, repo: Any, source: ZarrArray, make: Make) -> None:
    with make() as executor:
        executor.task_function = LosesChanges()
        with pytest.raises(RechunkError, match=r"must come back as TaskResult\.changes.*of stage 0"):
            to_disk(source, tmp_path, repo.writable_session("main"), executor=executor).execute()


def test_sessions_that_cannot_be_forked_are_refused_before_anything_is_written(
    tmp_path: Path, repo: Any, source: ZarrArray
) -> None:
    with pytest.raises(StorageError, match="read-only"):
        to_disk(source, tmp_path, repo.readonly_session("main").store)
    changed = repo.writable_session("main")
    make_array(changed.store, (3,), (1,), "i2", name="mine")
    with pytest.raises(StorageError, match="uncommitted changes"):
        to_disk(source, tmp_path, changed)
    with pytest.raises(StorageError, match="is a fork"):
        to_disk(source, tmp_path, repo.writable_session("main").fork().store)
    assert not (tmp_path / "target").exists()


def test_a_function_is_no_executor_for_it(tmp_path: Path, repo: Any, source: ZarrArray) -> None:
    def run_all(stages: Sequence[Stage]) -> None:
        raise AssertionError

    with pytest.raises(StorageError, match="takes records of tasks"):
        to_disk(source, tmp_path, repo.writable_session("main"), executor=run_all)


def test_what_a_worker_gets_of_a_stage_grows_by_what_was_merged_before_and_no_more(
    tmp_path: Path, repo: Any, source: ZarrArray
) -> None:
    sizes: list[int] = []
    job = to_disk(source, tmp_path, repo.writable_session("main"))

    def listen(event: Event) -> None:
        if event.kind == "start" or event.stage == 1:
            sizes.append(len(pickle.dumps(job.stages[1].source)))

    job.execute(on_event=listen)
    empty, *full = sizes
    assert len(set(full)) == 1
    assert empty < full[0] < empty + 400 * 7 * 3, "some bytes for each chunk"
