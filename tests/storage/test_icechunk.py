"""Icechunk sessions as source and target: real repositories on disk, one commit a job."""

from __future__ import annotations

import re
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import rechunk_exec as rx
from rechunk_exec.errors import (
    PlanError,
    StorageError,
)
from rechunk_exec.executors import ProcessesExecutor
from tests.executors.workers import environment
from tests.jobs import ZarrArray, assert_kept_promises, elements, make_array
from tests.storage.repositories import (
    BEFORE,
    EXECUTORS,
    FIRST,
    SECOND,
    Make,
    make,
    make_repository,
    memory_repository,
    messages,
    names,
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
    repo = memory_repository()
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
            12_000 if shards is None else 100_000,
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
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
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


def test_an_array_without_elements_is_committed_too(
    tmp_path: Path, repo: Any, two_processes: ProcessesExecutor
) -> None:
    empty = make_array(tmp_path / "empty", (0, 4), (1, 4))
    job = rx.rechunk(
        empty, (2, 2), "1MB", repo.writable_session("main").store, executor=two_processes, array_name="none"
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


def test_job_after_job_commits_again(repo: Any, source: ZarrArray, two_processes: ProcessesExecutor) -> None:
    for name in ("a", "b"):
        one_stage(source, repo.writable_session("main"), executor=two_processes, array_name=name).execute()
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
    with (
        nothing_is_committed(repo),
        pytest.raises(StorageError, match=r"cannot be committed to branch 'main'.*of /same;.*rebase") as caught,
    ):
        job.execute()
    assert session.has_uncommitted_changes
    assert "the session holds it" in str(caught.value)
    assert "discarded" not in str(caught.value)
    assert same_bits(elements(zarr.open_array(session.store, path="same", mode="r")), elements(source))


LEAVE_AT_ONCE = """
    import os

    print("done", flush=True)
    os._exit(0)
"""
"""What follows ``main()`` in the example: the interpreter is not ended in order. One of some hundred that have used
icechunk 2 crashes then, with or without this package: threads of icechunk reach for it when it is gone already
(https://github.com/PyO3/pyo3-async-runtimes/issues/40)."""


def test_the_example_of_the_docs(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "icechunk.md").read_text()
    (example,) = re.findall(r"^```python\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    repo = make_repository(tmp_path, folder="frames", dimension_names=["time", "y", "x"])
    (tmp_path / "example.py").write_text(example + LEAVE_AT_ONCE)
    run = subprocess.run(
        [sys.executable, "-W", "error", "example.py"],
        check=False,
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    assert f"(20, 24, 30) {messages(repo)[0]}" in run.stdout
    assert run.stdout.endswith("done\n")
    assert same_bits(values(repo, "series"), SECOND)
