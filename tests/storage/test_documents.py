from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import zarr
from zarr.storage import MemoryStore

from rechunk_exec.storage import array_ref
from rechunk_exec.storage.documents import Documents
from rechunk_exec.tasks import ArrayRef
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
