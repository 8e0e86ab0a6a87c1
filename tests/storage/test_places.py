from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import zarr
from zarr.storage import MemoryStore, ObjectStore, StorePath, ZipStore

import rechunk_exec as rx
from rechunk_exec.errors import StorageError, TargetExistsError
from rechunk_exec.storage import (
    ArrayRef,
    array_ref,
    create,
    design_intermediate,
    mark_temp,
    open_array,
    refuse_existing,
    refuse_foreign_temp,
    refuse_unwritable,
    remove_array,
    remove_temp,
    temp_place,
)
from rechunk_exec.storage.objects import objects_of, put_object
from rechunk_exec.storage.stores import open_store
from tests.conftest import needed_module
from tests.jobs import assert_exact, make_array
from tests.storage.arrays import make, read_by_zarr, write_by_us


def tree(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


ENCODINGS: list[dict[str, Any]] = [
    {"zarr_format": 2},
    {"zarr_format": 2, "chunk_key_encoding": {"name": "v2", "separator": "/"}},
    {},
    {"chunk_key_encoding": {"name": "default", "separator": "."}},
    {"chunk_key_encoding": {"name": "v2", "separator": "."}},
    {"chunk_key_encoding": {"name": "v2", "separator": "/"}},
]


def an_array(place: Path) -> None:
    make(place, (4,), (2,), "i4", values=np.arange(4, dtype="i4"))


def an_array_of_format_2(place: Path) -> None:
    make(place, (4,), (2,), "i4", zarr_format=2)


def a_group(place: Path) -> None:
    zarr.create_group(place)


def a_group_of_format_2(place: Path) -> None:
    zarr.create_group(place, zarr_format=2)


def a_foreign_folder(place: Path) -> None:
    place.mkdir()
    (place / "photo.jpg").write_bytes(b"x")


def a_file(place: Path) -> None:
    place.write_bytes(b"x")


def a_broken_link(place: Path) -> None:
    place.symlink_to("nowhere")


def a_damaged_array(place: Path) -> None:
    an_array(place)
    (place / "zarr.json").write_text("{")


@pytest.mark.parametrize(
    "occupy,what",
    [
        (an_array, "an array"),
        (an_array_of_format_2, "an array"),
        (a_group, "a group"),
        (a_group_of_format_2, "a group"),
        (a_foreign_folder, "no zarr array"),
        (a_file, "a file"),
        (a_broken_link, "a broken symbolic link"),
        (a_damaged_array, "a damaged array"),
    ],
)
def test_what_is_in_the_way_is_refused_and_not_touched(occupy: Any, what: str, tmp_path: Path) -> None:
    occupy(tmp_path / "target")
    before = tree(tmp_path)
    source, target = array_ref(tmp_path / "source"), array_ref(tmp_path / "target")
    with pytest.raises(TargetExistsError, match=f"{what}.*target.*source") as caught:
        refuse_existing(source, target, "fail")
    assert isinstance(caught.value, FileExistsError)
    if what == "an array":
        refuse_existing(source, target, "overwrite")
    else:
        with pytest.raises(TargetExistsError, match="arrays only"):
            refuse_existing(source, target, "overwrite")
    assert tree(tmp_path) == before


def test_what_is_of_no_array_is_not_replaced_with_one(tmp_path: Path) -> None:
    an_array(tmp_path / "target")
    (tmp_path / "target/README.txt").write_text("mine")
    an_array(tmp_path / "target/nested")
    for name in ("c-1", "1a", "c.x", "C"):
        (tmp_path / "target" / name).write_text("mine")
    before = tree(tmp_path)
    source, target = array_ref(tmp_path / "source"), array_ref(tmp_path / "target")
    for mode in ("overwrite", "fail"):
        with pytest.raises(TargetExistsError):
            refuse_existing(source, target, mode)
    with pytest.raises(TargetExistsError, match=r"'1a', 'C', 'README.txt', 'c-1', 'c.x' and 1 more.*move that away"):
        refuse_existing(source, target, "overwrite")
    assert tree(tmp_path) == before


@pytest.mark.parametrize("options", [*ENCODINGS, {"shape": ()}, {"shape": (), "zarr_format": 2}], ids=str)
def test_chunks_of_any_key_and_what_is_hidden_are_replaced(tmp_path: Path, options: dict[str, Any]) -> None:
    options = {"shape": (4, 4), "chunks": (2, 2)[: len(options.get("shape", (4, 4)))], "dtype": "i4", **options}
    zarr.create_array(tmp_path / "target", fill_value=0, **options)[...] = 7
    for name in (".DS_Store", ".zarr.json.0123456789abcdef.partial", ".nfs0001"):
        (tmp_path / "target" / name).write_text("x")
    assert len(tree(tmp_path)) > 4
    refuse_existing(array_ref(tmp_path / "source"), array_ref(tmp_path / "target"), "overwrite")


def nested_in(kind: str, folder: Path, request: pytest.FixtureRequest) -> Any:
    """A place for an array in a store of a kind."""
    if kind == "disk":
        return folder / "target"
    if kind == "memory":
        return StorePath(MemoryStore(), "a")
    if kind == "obstore":
        return StorePath(ObjectStore(needed_module("obstore.store").MemoryStore()), "a")
    return request.getfixturevalue("s3").store("a")


@pytest.mark.parametrize("kind", ["disk", "memory", "obstore", "s3"])
def test_a_job_that_replaces_an_array_leaves_those_inside_it(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    # They went with it, in silence.
    source = make_array(tmp_path / "source", (4, 4), (1, 4))
    place = nested_in(kind, tmp_path, request)
    options: Any = {"mode": "overwrite", "progress": False, "executor": "serial"}
    rx.rechunk(source, (4, 1), "1MB", place, **options).execute()
    job = rx.rechunk(source, (4, 4), "1MB", place, **options)
    ref = array_ref(place)
    objects = objects_of(open_store(ref, read_only=False), ref.path)
    nested = {"nested/zarr.json": b"{}", "nested/c/0": b"x"}
    for key, content in nested.items():
        put_object(objects, key, content)
    for refused in (job.execute, lambda: rx.rechunk(source, (4, 4), "1MB", place, **options)):
        with pytest.raises(TargetExistsError, match="'nested'"):
            refused()
    for key, content in nested.items():
        found = objects.read(key, lambda size: memoryview(bytearray(size)))
        assert found is not None
        assert bytes(found) == content
    assert_exact(open_array(ref, read_only=True).array, source)


def test_nothing_and_an_empty_folder_are_free(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for target in (
        array_ref(tmp_path / "none"),
        array_ref(tmp_path / "empty"),
        ArrayRef(store=MemoryStore(), path="a"),
    ):
        refuse_existing(array_ref(tmp_path / "source"), target, "fail")


def test_what_is_in_a_live_store_is_refused() -> None:
    store = MemoryStore()
    zarr.create_group(store, path="g")
    make(store, (4,), (2,), "i4", path="g/a")
    source = ArrayRef(store="/source")
    for path, what in (("g/a", "an array"), ("g", "a group")):
        with pytest.raises(TargetExistsError, match=what):
            refuse_existing(source, ArrayRef(store=store, path=path), "fail")
    refuse_existing(source, ArrayRef(store=store, path="g/b"), "fail")


def test_what_is_in_a_zip_file_is_refused(tmp_path: Path) -> None:
    # zarr 3.1 fails to list a zip file that it has not opened.
    with ZipStore(tmp_path / "a.zip", mode="w") as store:
        zarr.create_array(store, shape=(4,), chunks=(2,), dtype="i4")
    with pytest.raises(TargetExistsError, match="an array"):
        refuse_existing(ArrayRef(store="/source"), array_ref(tmp_path / "a.zip"), "fail")


class DiskUsage(NamedTuple):
    free: int


def test_places_that_can_be_written(tmp_path: Path) -> None:
    refuse_unwritable(array_ref(tmp_path / "a/b/c"), 0, "target")
    refuse_unwritable(ArrayRef(store=MemoryStore()), 10**18, "target")
    refuse_unwritable(ArrayRef(store="s3://b/a"), 10**18, "target")


def test_places_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError, match=r"temp store must be in a folder; .*file is a file"):
        refuse_unwritable(array_ref(tmp_path / "file" / "a"), 0, "temp store")
    with pytest.raises(StorageError, match="read-only store"):
        refuse_unwritable(ArrayRef(store=MemoryStore(read_only=True)), 0, "target")
    with pytest.raises(StorageError, match="zip files are read only"):
        refuse_unwritable(array_ref(tmp_path / "a.zip"), 0, "target")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: DiskUsage(99))
    refuse_unwritable(array_ref(tmp_path / "a"), 99, "target")
    with pytest.raises(StorageError, match=r"needs 100 bytes; .* has 99 left"):
        refuse_unwritable(array_ref(tmp_path / "a"), 100, "target")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(StorageError, match="must be writable"):
        refuse_unwritable(array_ref(tmp_path / "a"), 0, "target")


def test_a_read_only_folder(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        (tmp_path / "probe").mkdir()
    except PermissionError:
        with pytest.raises(StorageError, match="must be writable"):
            refuse_unwritable(array_ref(tmp_path / "a/b"), 0, "target")
    else:
        pytest.skip("this user may write everywhere")
    finally:
        tmp_path.chmod(0o700)


def test_intermediates_come_and_go_and_foreign_files_stay(tmp_path: Path) -> None:
    place, target = array_ref(tmp_path / "temp"), array_ref(tmp_path / "target")
    mark_temp(place, target)
    make(tmp_path / "temp/temp-1", (4,), (2,), "i4", values=np.arange(4, dtype="i4"))
    mark_temp(place, target)  # a job begun again finds its own
    (tmp_path / "temp/mine.txt").write_text("x")
    remove_temp(place, ["temp-1", "temp-2"])
    assert tree(tmp_path) == ["temp", "temp/mine.txt"]
    (tmp_path / "temp/mine.txt").unlink()
    mark_temp(place, target)
    remove_temp(place, [])
    assert tree(tmp_path) == []


def test_intermediates_in_a_live_store() -> None:
    store = MemoryStore()
    make(store, (4,), (2,), "i4", path="mine")
    before = dict(store._store_dict)
    place = ArrayRef(store=store, path="temp")
    mark_temp(place, ArrayRef(store=store, path="target"))
    made = design_intermediate(open_array(ArrayRef(store=store, path="mine"), read_only=True), (2,))
    create(made, ArrayRef(store=store, path="temp/temp-1"))
    write_by_us(ArrayRef(store=store, path="temp/temp-1"), np.arange(4, dtype="i4"))
    remove_temp(place, ["temp-1"])
    assert store._store_dict == before


@pytest.mark.parametrize("occupy", [an_array, a_group, a_foreign_folder])
def test_intermediates_take_no_place_that_is_not_ours(occupy: Any, tmp_path: Path) -> None:
    occupy(tmp_path / "temp")
    before = tree(tmp_path)
    with pytest.raises(TargetExistsError, match="free or ours"):
        mark_temp(array_ref(tmp_path / "temp"), array_ref(tmp_path / "target"))
    assert tree(tmp_path) == before


def test_a_file_in_the_place_of_intermediates_is_an_error(tmp_path: Path) -> None:
    a_file(tmp_path / "temp")
    with pytest.raises((StorageError, TargetExistsError)):
        mark_temp(array_ref(tmp_path / "temp"), array_ref(tmp_path / "target"))
    assert (tmp_path / "temp").read_bytes() == b"x"


def test_an_array_is_removed_whole(tmp_path: Path) -> None:
    an_array(tmp_path / "a")
    an_array(tmp_path / "b")
    remove_array(array_ref(tmp_path / "a"))
    assert [path.name for path in tmp_path.iterdir()] == ["b"]
    remove_array(array_ref(tmp_path / "a"))
    store = MemoryStore()
    make(store, (4,), (2,), "i4", path="a", values=np.arange(4, dtype="i4"))
    make(store, (4,), (2,), "i4", path="ab", values=np.arange(4, dtype="i4"))
    remove_array(ArrayRef(store=store, path="a"))
    assert {name.split("/")[0] for name in store._store_dict} == {"ab", "zarr.json"}


def test_an_array_that_cannot_be_removed_is_our_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    an_array(tmp_path / "a")

    def refuse(path: Path) -> None:
        raise PermissionError(path)

    monkeypatch.setattr(shutil, "rmtree", refuse)
    with pytest.raises(StorageError, match="cannot remove the array"):
        remove_array(array_ref(tmp_path / "a"))


def test_an_array_behind_a_link_is_removed_and_the_link_stays(tmp_path: Path) -> None:
    # The link itself was moved aside, and then could not be removed as a folder.
    (tmp_path / "disk").mkdir()
    an_array(tmp_path / "disk/a")
    (tmp_path / "link").symlink_to("disk/a")
    remove_array(array_ref(tmp_path / "link"))
    assert tree(tmp_path) == ["disk", "disk/a", "link"]
    ref = make(tmp_path / "link", (4,), (1,), "i4", values=np.arange(4, dtype="i4"))
    assert open_array(array_ref(tmp_path / "disk/a"), read_only=True).chunk == (1,)
    assert read_by_zarr(ref).tolist() == [0, 1, 2, 3]


def test_a_name_that_is_too_long_for_intermediates_is_an_error_of_ours(tmp_path: Path) -> None:
    target = array_ref(tmp_path / ("t" * 245))
    refuse_unwritable(target, 0, "target")
    place = temp_place(target, None, "x")
    assert place is not None
    with pytest.raises(StorageError, match="too long"):
        refuse_foreign_temp(place)
    with pytest.raises(StorageError, match="too long"):
        refuse_unwritable(place, 0, "temp store")
    assert tree(tmp_path) == []
