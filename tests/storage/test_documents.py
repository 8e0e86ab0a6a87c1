from __future__ import annotations

import errno
import os
import warnings
from pathlib import Path

import numpy as np
import pytest
import zarr
from zarr.storage import MemoryStore

from rechunk_exec.errors import StorageError
from rechunk_exec.storage import RetryPolicy, array_ref, retry_policy
from rechunk_exec.storage.documents import Documents, missing_folders, remove_empty
from rechunk_exec.tasks import ArrayRef
from tests.faults.stores import Faults, FaultyStore
from tests.storage.arrays import Place, make, read_by_zarr


@pytest.fixture(params=["local", "memory", "inside"])
def ref(request: pytest.FixtureRequest, tmp_path: Path) -> ArrayRef:
    store: Place = MemoryStore() if request.param == "memory" else tmp_path
    path = "g/a" if request.param == "inside" else ""
    return make(store, (5, 7), (2, 3), "i4", path=path, values=np.arange(35, dtype="i4").reshape(5, 7))


def test_documents_are_read_back_by_folder(ref: ArrayRef) -> None:
    documents = Documents(ref, read_only=False)
    assert (documents.read_all("one"), documents.names(), documents.folders()) == ({}, [], [])
    for number in range(3):
        documents.write(f"one/0-{number}", f'{{"é": {number}}}')
    documents.write("two/0-0", "other")
    documents.write("top", "first", durable=True)
    documents.write("top", "second")
    assert documents.read_all("one") == {f"0-{number}": f'{{"é": {number}}}' for number in range(3)}
    assert documents.read_all("two") == {"0-0": "other"}
    assert documents.read_all("on") == {}
    assert (documents.names(), documents.folders()) == (["top"], ["one", "two"])
    assert (documents.read("top"), documents.read("bottom")) == ("second", None)


def test_removing_documents_leaves_the_array(ref: ArrayRef) -> None:
    before = read_by_zarr(ref)
    documents = Documents(ref, read_only=False)
    documents.delete_folder("one")
    documents.delete("top")
    documents.write("one/0-0", "x")
    documents.write("two/0-0", "x")
    documents.write("top", "x")
    documents.delete_folder("one")
    documents.delete("top")
    assert (documents.folders(), documents.names()) == (["two"], [])
    documents.delete_folder("two")
    assert (read_by_zarr(ref) == before).all()


def test_nothing_is_left_of_what_was_removed(tmp_path: Path) -> None:
    ref = make(tmp_path / "a", (4,), (2,), "i4")
    before = sorted(path.name for path in (tmp_path / "a").iterdir())
    documents = Documents(ref, read_only=False)
    documents.write("one/x", "x")
    documents.delete_folder("one")
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == before


def test_zarr_passes_documents_over(tmp_path: Path) -> None:
    group = zarr.create_group(tmp_path)
    make(tmp_path, (4,), (2,), "i4", path="a")
    Documents(array_ref(tmp_path, "a"), read_only=False).write("job", "x")
    assert sorted(group.array_keys()) == ["a"]
    assert len(list(group.members(max_depth=None))) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that format 3 has it not in its specification
        zarr.consolidate_metadata(tmp_path)
    assert sorted(zarr.open_group(tmp_path, mode="r").array_keys()) == ["a"]


def test_what_is_half_written_is_no_document(tmp_path: Path) -> None:
    documents = Documents(make(tmp_path, (4,), (2,), "i4"), read_only=False)
    documents.write("job/0-0", "whole")
    (tmp_path / ".rechunk_exec/job/.0-1.json.abc.partial").write_text("ha")
    assert documents.read_all("job") == {"0-0": "whole"}


def test_what_is_durable_is_on_the_disk_with_the_names_that_lead_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "target"
    documents = Documents(array_ref(root), read_only=False)
    flushed: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda number: flushed.append(str(Path(f"/proc/self/fd/{number}").readlink())))
    documents.write("job/done/0-0", "x")
    assert flushed == []
    documents.write("job/done/0-1", "x", durable=True)
    folders = [root / ".rechunk_exec/job/done", root / ".rechunk_exec/job", root / ".rechunk_exec", root, tmp_path]
    assert flushed == [str(path) for path in (folders[0] / "0-1.json", *folders)]


def test_a_disk_that_does_not_take_it_is_an_error_of_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # It was an OSError, which ended the journal's thread in silence.
    def fails(number: int) -> None:
        raise OSError(errno.EIO, "it is broken")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(StorageError, match=r"cannot write .*0-1.json to the disk: .*it is broken"):
        Documents(array_ref(tmp_path), read_only=False).write("job/done/0-1", "x", durable=True)


def test_folders_that_are_missing_are_removed_again_only_if_they_are_empty(tmp_path: Path) -> None:
    ref = ArrayRef(store=str(tmp_path / "a" / "b"), path="c/d")
    made = missing_folders(ref)
    assert [str(path.relative_to(tmp_path)) for path in made] == ["a/b/c/d", "a/b/c", "a/b", "a"]
    made[0].mkdir(parents=True)
    assert missing_folders(ref) == ()
    (tmp_path / "a" / "b" / "mine").touch()
    remove_empty(made)
    assert sorted(path.name for path in (tmp_path / "a").rglob("*")) == ["b", "mine"]
    (tmp_path / "a" / "b" / "mine").unlink()
    remove_empty(made)
    assert list(tmp_path.iterdir()) == []
    assert missing_folders(ArrayRef(store=MemoryStore(), path="a")) == ()


@pytest.mark.parametrize("text", ['{"a": {"b": 1}, "c": "' + "x" * 50 + '"}', "no JSON"])
def test_a_document_of_which_a_part_came_is_asked_for_again(text: str) -> None:
    store = FaultyStore(MemoryStore(), Faults(seed=2, truncates=0.5))
    with retry_policy(RetryPolicy(tries=30, first_wait_s=0.001, longest_wait_s=0.01)):
        documents = Documents(ArrayRef(store=store), read_only=False)
        documents.write("one/x", text)
        assert {documents.read("one/x") for _ in range(10)} == {text}
    assert store.seen.truncated > 2
