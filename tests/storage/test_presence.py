from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from zarr.storage import MemoryStore

from rechunk_exec.errors import StorageError
from rechunk_exec.storage import Presence, listing
from rechunk_exec.storage.objects import Objects, objects_of, put_object
from rechunk_exec.storage.stores import open_store
from rechunk_exec.storage.told import listed
from rechunk_exec.tasks import ArrayRef
from tests.faults.stores import FaultyStore
from tests.storage.arrays import make
from tests.storage.journalled import result_of
from tests.values import position_values

SHAPE = (5, 7)
BOX = ((2, 0), (4, 7))
"""Two whole rows of units, each of 2 x 3 elements: three objects."""


def array_at(store: Any, path: str = "") -> ArrayRef:
    return make(store, SHAPE, (2, 3), "i4", path=path, values=position_values(SHAPE, "i4"), compressors=None)


def written(objects: int = 3, stored: int = 3 * 24) -> Any:
    return result_of(1, objects_written=objects, stored_bytes_written=stored)


def held(ref: ArrayRef, result: Any = None) -> bool:
    return Presence(ref).holds(result or written(), *BOX)


@pytest.mark.parametrize("path", ["", "g/a"])
def test_files_that_are_whole_are_there(tmp_path: Path, path: str) -> None:
    ref = array_at(tmp_path, path)
    assert held(ref)
    assert held(ref, written(stored=0))  # zarr does not tell how many bytes it has stored


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def made_longer(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"x")


@pytest.mark.parametrize("path", ["", "g/a"])
@pytest.mark.parametrize("damage", [Path.unlink, emptied, cut_short, made_longer])
@pytest.mark.parametrize("unit", ["1/0", "1/1", "1/2"])
def test_files_that_are_lost_or_torn_are_not(
    tmp_path: Path, path: str, damage: Callable[[Path], None], unit: str
) -> None:
    ref = array_at(tmp_path, path)
    damage(tmp_path / path / "c" / unit)
    assert not held(ref)


def spoilt(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("index_location", ["start", "end"])
def test_a_shard_of_the_right_size_is_torn_if_its_index_cannot_be_read(tmp_path: Path, index_location: str) -> None:
    shards = {"shape": (2, 6), "index_location": index_location}
    ref = make(tmp_path, SHAPE, (1, 3), "i4", values=position_values(SHAPE, "i4"), shards=shards, compressors=None)
    files = [tmp_path / "c/1" / number for number in "01"]
    result = written(objects=2, stored=sum(path.stat().st_size for path in files))
    assert held(ref, result)
    spoilt(files[1], 0 if index_location == "start" else -1)
    assert not held(ref, result)
    spoilt(files[1], 0 if index_location == "start" else -1)
    assert held(ref, result)
    files[0].write_bytes(bytes(files[0].stat().st_size))
    assert not held(ref, result)


def test_a_file_that_is_empty_is_torn_also_where_sizes_are_not_told(tmp_path: Path) -> None:
    ref = array_at(tmp_path)
    emptied(tmp_path / "c" / "1" / "2")
    assert not held(ref, written(stored=0))


@pytest.mark.parametrize("unit", ["0/0", "2/2"])
def test_what_other_tasks_have_written_does_not_count(tmp_path: Path, unit: str) -> None:
    ref = array_at(tmp_path)
    (tmp_path / "c" / unit).unlink()
    assert held(ref)


def test_more_objects_than_were_stored_are_not_the_tasks(tmp_path: Path) -> None:
    # A chunk of fill value is not stored; one that is there is another's.
    ref = array_at(tmp_path)
    assert not held(ref, written(objects=2, stored=0))


def test_units_of_fill_value_are_not_stored(tmp_path: Path) -> None:
    values = np.zeros(SHAPE, "i4")
    values[2, 3] = 1
    ref = make(tmp_path, SHAPE, (2, 3), "i4", values=values, compressors=None, config={"write_empty_chunks": False})
    assert held(ref, written(objects=1, stored=24))
    assert not held(ref, written(objects=2, stored=24))


def stored_in(kind: str, path: str) -> tuple[ArrayRef, Objects]:
    """An array in a store of a kind, and its objects."""
    store: Any = MemoryStore({}) if kind != "fsspec" else f"memory://presence-test-{secrets.token_hex(6)}"
    ref = array_at(FaultyStore(store) if kind == "wrapped" else store, path)
    return ref, objects_of(open_store(ref, read_only=False), path)


@pytest.mark.parametrize("path", ["", "g/a"])
@pytest.mark.parametrize("kind", ["memory", "fsspec", "wrapped"])
def test_objects_of_other_stores_that_are_lost_are_missed(kind: str, path: str) -> None:
    ref, objects = stored_in(kind, path)
    assert held(ref)
    objects.delete("c/0/0")
    assert held(ref), "another task's"
    objects.delete("c/1/1")
    assert not held(ref)


@pytest.mark.parametrize("size", [0, 23, 25])
@pytest.mark.parametrize("kind", ["memory", "fsspec"])
def test_objects_of_other_stores_that_have_another_size_are_torn(kind: str, size: int) -> None:
    ref, objects = stored_in(kind, "g/a")
    put_object(objects, "c/1/1", bytes(size))
    assert not held(ref)
    assert held(ref, written(stored=0)) is (size > 0), "zarr does not tell how many bytes it has stored"


@pytest.fixture
def listings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that are listed from now on."""
    paths: list[str] = []

    def counted(store: Any, path: str) -> Any:
        paths.append(path)
        return listed(store, path)

    monkeypatch.setattr(listing, "listed", counted)
    return paths


def test_other_stores_are_listed_once_and_only_where_it_matters(listings: list[str]) -> None:
    ref, _ = stored_in("fsspec", "g/a")
    there = Presence(ref)
    assert listings == []
    assert all(there.holds(written(), *BOX) for _ in range(3))
    assert listings == ["g/a"]


@pytest.mark.parametrize(
    "grid, most, fewest, folders",
    [
        ((4, 3, 2), 24, 1, [""]),
        ((4, 3, 2), 23, 1, ["c/0", "c/1", "c/2", "c/3"]),
        ((4, 3, 2), 5, 1, [f"c/{a}/{b}" for a in range(4) for b in range(3)]),
        ((4, 3, 2), 5, 3, ["c/0", "c/1", "c/2", "c/3"]),  # a folder of folders is fewer requests
        ((1, 12, 1), 5, 5, ["c/0"]),
        ((24,), 5, 1, [""]),  # no folders
        ((1, 1, 24), 5, 1, ["c/0/0"]),
    ],
    ids=str,
)
def test_folders_of_many_objects_are_listed_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
    listings: list[str],
    grid: tuple[int, ...],
    most: int,
    fewest: int,
    folders: list[str],
) -> None:
    shape = tuple(2 * n - 1 for n in grid)
    unit = (2,) * len(grid)
    ref = make(
        f"memory://presence-test-{secrets.token_hex(6)}", shape, unit, "i4", path="g/a",
        values=position_values(shape, "i4"), compressors=None,
    )  # fmt: skip
    monkeypatch.setattr(listing, "_MOST_OBJECTS", most)
    monkeypatch.setattr(listing, "_FEWEST_OBJECTS", fewest)
    there = Presence(ref)
    objects_of(open_store(ref, read_only=False), "g/a").delete(f"c/{'/'.join(str(n - 1) for n in grid)}")
    one = written(objects=1, stored=prod(unit) * 4)
    missing = [
        number
        for number in np.ndindex(grid)
        for start in [tuple(2 * place for place in number)]
        if not there.holds(one, start, tuple(min(low + 2, n) for low, n in zip(start, shape, strict=True)))
    ]
    assert missing == [tuple(n - 1 for n in grid)]
    assert listings == [f"g/a/{folder}".rstrip("/") for folder in folders], "each once, in order"
    held_sizes = sum(len(sizes or ()) for sizes in there._listing._folders.values())
    assert held_sizes <= most + prod(grid) // len(folders) + 1, "with the array's metadata"


def test_a_task_may_have_written_into_several_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "_MOST_OBJECTS", 3)
    monkeypatch.setattr(listing, "_FEWEST_OBJECTS", 1)
    ref, objects = stored_in("fsspec", "g/a")
    there = Presence(ref)
    whole = written(objects=9, stored=9 * 24)
    assert there.holds(whole, (0, 0), SHAPE)
    objects.delete("c/1/1")
    assert there.holds(whole, (0, 0), SHAPE), "as it was when it was listed"
    assert not Presence(ref).holds(whole, (0, 0), SHAPE)


@pytest.mark.parametrize("separator", [".", "/"])
def test_keys_of_format_2(monkeypatch: pytest.MonkeyPatch, separator: str) -> None:
    monkeypatch.setattr(listing, "_MOST_OBJECTS", 3)
    monkeypatch.setattr(listing, "_FEWEST_OBJECTS", 1)
    ref = make(
        f"memory://presence-test-{secrets.token_hex(6)}", SHAPE, (2, 3), "i4", values=position_values(SHAPE, "i4"),
        compressors=None, zarr_format=2, chunk_key_encoding={"name": "v2", "separator": separator},
    )  # fmt: skip
    assert held(ref)
    objects_of(open_store(ref, read_only=False), "").delete(f"1{separator}1")
    assert not held(ref)


def test_nothing_of_an_array_that_is_gone_is_there(tmp_path: Path) -> None:
    ref = array_at(tmp_path)
    (tmp_path / "zarr.json").unlink()
    there = Presence(ref)
    assert not there.exists
    assert not there.holds(written(), *BOX)
    assert not Presence(ArrayRef(store=MemoryStore())).exists


def test_an_array_that_cannot_be_opened_is_not_taken_for_gone(tmp_path: Path) -> None:
    ref = array_at(tmp_path)
    (tmp_path / "zarr.json").write_text("{torn")
    there = Presence(ref)
    assert there.exists
    with pytest.raises(StorageError, match="cannot open"):
        there.holds(written(), *BOX)


def test_an_array_of_no_dimensions(tmp_path: Path) -> None:
    ref = make(tmp_path, (), (), "i4", values=np.array(5, "i4"), compressors=None)
    result = result_of(0, objects_written=1, stored_bytes_written=4)
    assert Presence(ref).holds(result, (), ())
    (tmp_path / "c").unlink()
    assert not Presence(ref).holds(result, (), ())


@pytest.mark.parametrize("number,passes", [(errno.EIO, False), (errno.EACCES, False), (errno.ESTALE, True)])
@pytest.mark.parametrize("call", ["stat", "open"])
def test_a_file_that_cannot_be_looked_at_is_not_taken_for_lost(
    call: str, number: int, passes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = make(tmp_path, SHAPE, (1, 3), "i4", values=position_values(SHAPE, "i4"), shards=(2, 6), compressors=None)
    file = tmp_path / "c/1/1"
    result = written(objects=2, stored=sum((tmp_path / "c/1" / number).stat().st_size for number in "01"))
    whole = getattr(os, call)
    failed: list[Any] = []

    def fail(path: Any, *arguments: Any, **options: Any) -> Any:
        if os.fspath(path) == str(file) and not (passes and failed):
            failed.append(path)
            raise OSError(number, os.strerror(number))
        return whole(path, *arguments, **options)

    monkeypatch.setattr(os, call, fail)
    if passes:
        assert held(ref, result)
    else:
        with pytest.raises(StorageError, match=os.strerror(number)):
            held(ref, result)
    assert failed
