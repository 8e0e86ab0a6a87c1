"""Icechunk repositories to test with, and jobs into them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import zarr

import rechunk_exec as rx
from rechunk_exec.executors import ProcessesExecutor, SerialExecutor, ThreadsExecutor
from rechunk_exec.executors.pool import PoolExecutor
from tests.conftest import needed_module
from tests.jobs import QUICK_STAGES, ZarrArray, elements, make_array
from tests.values import Array, position_values

SHAPE = (20, 24, 30)
FIRST = position_values(SHAPE, "f4", seed=1)
"""What the array ``epochs`` held in the snapshot tagged ``one``."""
SECOND = position_values(SHAPE, "f4", seed=2)
"""What it holds on the branch."""
BEFORE = {"epochs", "kept", "kept/beside"}
"""What is on the branch before a job."""

Make = Callable[[], AbstractContextManager[PoolExecutor]]


def make_repository(tmp_path: Path, folder: str = "repository", **options: Any) -> Any:
    """A repository with an array in two versions, and another one beside it."""
    icechunk: Any = needed_module("icechunk")
    made = icechunk.Repository.create(icechunk.local_filesystem_storage(str(tmp_path / folder)))
    session = made.writable_session("main")
    make_array(session.store, SHAPE, (1, 24, 30), name="epochs", values=FIRST, attributes={"unit": "m"}, **options)
    make_array(session.store, (5, 3), (2, 3), "i2", name="kept/beside")
    made.create_tag("one", session.commit("one"))
    session = made.writable_session("main")
    zarr.open_array(session.store, path="epochs", mode="r+")[...] = SECOND
    session.commit("two")
    return made


@pytest.fixture
def repo(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What :func:`make_repository` makes: a copy of one that is made once."""
    made = tmp_path_factory.getbasetemp() / "icechunk"
    if not made.exists():
        make_repository(made)
    shutil.copytree(made / "repository", tmp_path / "repository")
    return open_repository(tmp_path)


def open_repository(tmp_path: Path) -> Any:
    """What :func:`make_repository` has made, opened again."""
    icechunk: Any = needed_module("icechunk")
    return icechunk.Repository.open(icechunk.local_filesystem_storage(str(tmp_path / "repository")))


def memory_repository() -> Any:
    """An empty repository in memory."""
    icechunk: Any = needed_module("icechunk")
    return icechunk.Repository.create(icechunk.in_memory_storage())


def make_source(tmp_path: Path) -> ZarrArray:
    return make_array(
        tmp_path / "source", SHAPE, (1, 24, 30), attributes={"unit": "m"}, dimension_names=["t", "y", "x"]
    )


@pytest.fixture
def source(tmp_path: Path) -> ZarrArray:
    return make_source(tmp_path)


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
    options = {
        "executor": "serial",
        "progress": False,
        "array_name": "layers/series",
        "cost_model": QUICK_STAGES,
        **options,
    }
    job = rx.rechunk(source, (20, 4, 4), 16_000, session.store, temp_store=temp, **options)
    assert len(job.stages) == 2
    return job


@pytest.fixture(scope="module")
def two_processes() -> Iterator[ProcessesExecutor]:
    with ProcessesExecutor(2) as executor:
        yield executor


@pytest.fixture
def make(request: pytest.FixtureRequest) -> Make:
    """What gives an executor to use in a ``with`` block; a pool of processes is the same for all tests of a module."""
    given: Make | str = request.param
    if not isinstance(given, str):
        return given
    pool: ProcessesExecutor = request.getfixturevalue("two_processes")
    copying = pool.task_function

    @contextmanager
    def lent() -> Iterator[PoolExecutor]:
        try:
            yield pool
        finally:
            pool.task_function = copying

    return lent


EXECUTORS = pytest.mark.parametrize("make", [SerialExecutor, ThreadsExecutor, "two_processes"], indirect=True)
