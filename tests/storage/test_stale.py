"""Handles of a network file system that have gone stale (ESTALE): what they are for is tried again."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zarr
from zarr.storage import LocalStore

import rechunk_exec as rx
from rechunk_exec.errors import StorageError
from rechunk_exec.storage import Members, array_ref, members_of, open_array
from rechunk_exec.storage.documents import Documents
from rechunk_exec.storage.retry import RetryPolicy, retry_policy
from rechunk_exec.tasks import ArrayRef
from tests.jobs import assert_exact, make_array

SHAPE, CHUNKS = (6, 12, 10), (1, 12, 10)


class Stale:
    """Has a function fail a number of times, where one of its first arguments has some text in it."""

    def __init__(self, left: int) -> None:
        self.left = left

    def __call__(self, of: Any, name: str, text: str, patch: pytest.MonkeyPatch) -> None:
        real: Callable[..., Any] = getattr(of, name)

        def fails(*arguments: Any, **options: Any) -> Any:
            if self.left and any(text in str(argument) for argument in arguments[:2]):
                self.left -= 1
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
            return real(*arguments, **options)

        patch.setattr(of, name, fails)


@pytest.fixture(autouse=True)
def _quickly() -> Any:
    with retry_policy(RetryPolicy(tries=3, first_wait_s=0.001)):
        yield


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("name", ["get", "set", "set_if_not_exists"])
def test_arrays_are_created(name: str, zarr_format: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = make_array(tmp_path / "source", SHAPE, CHUNKS)
    job = rx.rechunk(
        source, (6, 4, 5), "1MB", tmp_path / "t", array_name="layers/a", zarr_format=zarr_format, progress=False
    )
    stale = Stale(2)
    stale(LocalStore, name, ".json" if zarr_format == 3 else "/.z", monkeypatch)
    assert_exact(job.execute(), source)
    if name == "set":
        assert not stale.left


def test_what_stays_stale_is_told_when_an_array_is_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = make_array(tmp_path / "source", SHAPE, CHUNKS)
    job = rx.rechunk(source, (6, 4, 5), "1MB", tmp_path / "t", progress=False)
    Stale(10**6)(LocalStore, "set", "zarr.json", monkeypatch)
    with pytest.raises(StorageError, match=r"cannot create the array .*Stale file handle"):
        job.execute()


@pytest.mark.parametrize("filled", [False, True])
def test_documents_are_listed(filled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    documents = Documents(ArrayRef(store=str(tmp_path)), read_only=False)
    for name in ("a/1", "a/2"):
        documents.write(name, "{}")
    stale = Stale(2)
    if filled:
        stale(os, "scandir", ".rechunk_exec", monkeypatch)
    else:
        stale(Path, "iterdir", ".rechunk_exec", monkeypatch)
    assert documents.names("a", filled=filled) == ["1", "2"]
    assert not stale.left
    stale.left = 3
    with pytest.raises(StorageError, match=r"cannot list .*Stale file handle"):
        documents.names("a", filled=filled)


def test_arrays_and_groups_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zarr.create_group(tmp_path / "group")
    make_array(tmp_path / "group/a", SHAPE, CHUNKS)
    stale = Stale(2)
    stale(Path, "stat", str(tmp_path / "group"), monkeypatch)
    assert open_array(array_ref(tmp_path / "group", "a"), read_only=True).shape == SHAPE
    assert not stale.left
    stale.left = 2
    assert members_of(array_ref(tmp_path / "group")) == Members(arrays={"a"})
    assert not stale.left
