from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import zarr
from zarr.storage import MemoryStore

from rechunk_exec import wire
from rechunk_exec.storage import Fingerprint, array_ref, describe, fingerprint, layout_differences, open_array
from rechunk_exec.storage.stamps import Stamp
from rechunk_exec.tasks import ArrayRef
from tests.storage.arrays import Place, make
from tests.values import position_values

SHAPE = (6, 10)


def source_at(store: Place, **options: Any) -> ArrayRef:
    values = {"dimension_names": ("time", "y"), "attributes": {"units": "m"}, **options}
    chunks, dtype = values.pop("chunks", (1, 10)), values.pop("dtype", "f4")
    return make(store, SHAPE, chunks, dtype, values=position_values(SHAPE, dtype), **values)


def target_like(**options: Any) -> ArrayRef:
    values = {"chunks": (6, 2), "dtype": "f4", "attributes": {"units": "m"}, **options}
    return make(MemoryStore(), SHAPE, values.pop("chunks"), values.pop("dtype"), **values)


def print_of(source: ArrayRef, target: ArrayRef, *, max_mem: int = 1000, temp: ArrayRef | None = None) -> Fingerprint:
    stored = open_array(source, read_only=True)
    return fingerprint(stored, source, open_array(target, read_only=True), max_mem=max_mem, temp=temp)


def test_the_same_arrays_have_the_same_fingerprint(tmp_path: Path) -> None:
    ref = source_at(tmp_path)
    one = print_of(ref, target_like())
    assert one == print_of(ref, target_like())
    assert one.differences(print_of(ref, target_like()), with_temp=True) == []
    assert wire.from_json(Fingerprint, wire.to_json(one)) == one


@pytest.mark.parametrize(
    "edit,begins",
    [
        ({"source": "/elsewhere"}, "source: "),
        ({"max_mem": 1001}, "max_mem: 1000 then, 1001 now"),
        ({"source_metadata": {"shape": "[7,10]"}}, "the source's shape: [6,10] then, [7,10] now"),
        ({"source_metadata": {"more": "1"}}, "the source's more: none then, 1 now"),
        ({"target_metadata": {"fill_value": "5"}}, "the target's fill_value: "),
    ],
    ids=str,
)
def test_each_member_that_differs_is_named(tmp_path: Path, edit: dict[str, Any], begins: str) -> None:
    one = print_of(source_at(tmp_path), target_like())
    edit = {name: {**getattr(one, name), **value} if isinstance(value, dict) else value for name, value in edit.items()}
    (difference,) = one.differences(replace(one, **edit), with_temp=True)
    assert difference.startswith(begins)


def test_a_member_that_is_gone_is_named(tmp_path: Path) -> None:
    one = print_of(source_at(tmp_path), target_like())
    fewer = {name: text for name, text in one.source_metadata.items() if name != "dimension_names"}
    assert one.differences(replace(one, source_metadata=fewer), with_temp=True) == [
        'the source\'s dimension_names: ["time","y"] then, none now'
    ]


def test_another_temp_store_counts_where_there_are_intermediates(tmp_path: Path) -> None:
    ref = source_at(tmp_path)
    one, other = (print_of(ref, target_like(), temp=ArrayRef(store=f"/temp/{name}")) for name in "ab")
    assert one.differences(other, with_temp=False) == []
    assert one.differences(other, with_temp=True) == ["temp_store: /temp/a then, /temp/b now"]


@pytest.mark.parametrize(
    "options,named",
    [
        ({"chunks": (2, 10)}, "the source's chunk_grid"),
        ({"dtype": "i4"}, "the source's data_type"),
        ({"attributes": {"units": "cm"}}, "the source's attributes"),
        ({"fill_value": 7}, "the source's fill_value"),
        ({"compressors": None}, "the source's codecs"),
        ({"zarr_format": 2, "dimension_names": None}, "the source's zarr_format"),
    ],
    ids=str,
)
def test_another_source_is_told_by_its_metadata(tmp_path: Path, options: dict[str, Any], named: str) -> None:
    one = print_of(source_at(MemoryStore()), target_like())
    other = replace(print_of(source_at(MemoryStore(), **options), target_like()), source=one.source)
    assert any(text.startswith(named) for text in one.differences(other, with_temp=True))


@pytest.mark.parametrize(
    "options,named",
    [
        ({"chunks": (6, 5)}, "the target's chunk_grid"),
        ({"shards": (6, 4)}, "the target's codecs"),
        ({"attributes": {"units": "cm"}}, "the target's attributes"),
        ({"fill_value": 7}, "the target's fill_value"),
    ],
    ids=str,
)
def test_another_target_is_told_by_its_metadata(tmp_path: Path, options: dict[str, Any], named: str) -> None:
    source = source_at(tmp_path)
    differences = print_of(source, target_like()).differences(print_of(source, target_like(**options)), with_temp=True)
    assert any(text.startswith(named) for text in differences)


def test_long_members_are_held_by_their_digest(tmp_path: Path) -> None:
    one, other = (
        print_of(source_at(MemoryStore(), attributes={"text": "x" * 5000 + end}), target_like()) for end in "ab"
    )
    assert len(wire.to_json(one)) < 5000
    (difference,) = one.differences(replace(other, source=one.source), with_temp=True)
    assert difference.startswith("the source's attributes: sha256:")


def changed_size(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"x")


def touched(path: Path) -> None:
    status = path.stat()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))


@pytest.mark.parametrize("change", [changed_size, touched, Path.unlink])
def test_a_chunk_that_was_written_since_is_named(tmp_path: Path, change: Callable[[Path], None]) -> None:
    ref = source_at(tmp_path)
    one = print_of(ref, target_like())
    change(tmp_path / "c" / "3" / "0")
    assert one.differences(print_of(ref, target_like()), with_temp=True) == [
        "the source's chunk c/3/0 was written since"
    ]
    change(tmp_path / "c" / "4" / "0")
    assert one.differences(print_of(ref, target_like()), with_temp=True) == [
        "the source's chunk c/3/0 was written since, and 1 more of those looked at"
    ]


def rewritten(path: Path) -> None:
    path.write_bytes(path.read_bytes())
    touched(path)  # two writes within one tick of a coarse clock have one time


@pytest.mark.parametrize("change", [touched, rewritten])
@pytest.mark.parametrize("zarr_format, name", [(3, "zarr.json"), (2, ".zarray"), (2, ".zattrs")])
def test_metadata_that_were_written_since_are_named(
    tmp_path: Path, zarr_format: int, name: str, change: Callable[[Path], None]
) -> None:
    ref = source_at(tmp_path, zarr_format=zarr_format, dimension_names=None)
    one = print_of(ref, target_like())
    change(tmp_path / name)
    assert one.differences(print_of(ref, target_like()), with_temp=True) == [f"the source's {name} was written since"]


def test_what_metadata_say_is_named_rather_than_when_they_were_written(tmp_path: Path) -> None:
    ref = source_at(tmp_path)
    one = print_of(ref, target_like())
    zarr.open_array(tmp_path).attrs["units"] = "cm"
    (difference,) = one.differences(print_of(ref, target_like()), with_temp=True)
    assert difference.startswith("the source's attributes: ")


def test_a_job_of_before_metadata_were_looked_at_goes_on(tmp_path: Path) -> None:
    ref = source_at(tmp_path)
    one = print_of(ref, target_like())
    document = json.loads(wire.to_json(one))
    del document["source_documents"]
    before = wire.from_json(Fingerprint, json.dumps(document))
    touched(tmp_path / "zarr.json")
    assert before.differences(print_of(ref, target_like()), with_temp=True) == []


def test_a_job_of_before_marks_were_looked_at_goes_on() -> None:
    url = "memory://identity-test/before"
    ref = source_at(url, overwrite=True)
    document = json.loads(wire.to_json(print_of(ref, target_like())))
    document["source_documents"] = []
    del document["source_snapshot"]
    for stamp in document["source_chunks"]:
        assert stamp.pop("mark")
    before = wire.from_json(Fingerprint, json.dumps(document))
    assert before.differences(print_of(ref, target_like()), with_temp=True) == []
    zarr.open_array(url, mode="r+")[...] = 0
    assert before.differences(print_of(ref, target_like()), with_temp=True) != [], "sizes count"


def test_a_job_of_before_stores_in_memory_were_looked_at_goes_on() -> None:
    ref = source_at(MemoryStore())
    before = replace(print_of(ref, target_like()), source_chunks=(), source_documents=())
    assert before.differences(print_of(ref, target_like()), with_temp=True) == []


def test_metadata_documents_on_any_store_that_were_written_since_are_named() -> None:
    url = "memory://identity-test/documents"
    ref = source_at(url, overwrite=True)
    one = print_of(ref, target_like())
    assert one == print_of(ref, target_like())
    zarr.open_array(url, mode="r+").attrs["units"] = "m"  # as it was
    assert one.differences(print_of(ref, target_like()), with_temp=True) == ["the source's zarr.json was written since"]


def test_a_chunk_that_came_is_named(tmp_path: Path) -> None:
    ref = make(tmp_path, SHAPE, (1, 10), "f4")
    one = print_of(ref, target_like())
    zarr.open_array(tmp_path)[5] = 3
    assert one.differences(print_of(ref, target_like()), with_temp=True) == [
        "the source's chunk c/5/0 was written since"
    ]


def test_chunks_are_looked_at_over_the_whole_array(tmp_path: Path) -> None:
    ref = make(tmp_path, (3000,), (1,), "i1")
    stamps = print_of(ref, make(MemoryStore(), (3000,), (3000,), "i1")).source_chunks
    numbers = [int(stamp.key.rpartition("/")[2]) for stamp in stamps]
    assert len(numbers) == len(set(numbers)) == 256
    assert (numbers[0], numbers[-1]) == (0, 2999)
    assert max(b - a for a, b in pairwise(numbers)) <= 12
    assert {stamp.size for stamp in stamps} == {-1}


def test_objects_are_looked_at_by_size() -> None:
    ref = array_ref("memory://identity-test/a")
    zarr.create_array("memory://identity-test/a", shape=(4,), chunks=(1,), dtype="i4", overwrite=True)[...] = 7
    one = print_of(ref, make(MemoryStore(), (4,), (4,), "i4"))
    assert [stamp.key for stamp in one.source_chunks] == ["c/0", "c/1", "c/2", "c/3"]
    assert {(stamp.size > 0, stamp.mtime_ns) for stamp in one.source_chunks} == {(True, 0)}


def test_a_zip_file_is_one_chunk(tmp_path: Path) -> None:
    with zarr.storage.ZipStore(tmp_path / "a.zip", mode="w") as store:
        zarr.create_array(store, shape=(4,), chunks=(2,), dtype="i4")[...] = 7
    one = print_of(array_ref(tmp_path / "a.zip"), make(MemoryStore(), (4,), (4,), "i4"))
    status = (tmp_path / "a.zip").stat()
    assert one.source_chunks == (Stamp(key="", size=status.st_size, mtime_ns=status.st_mtime_ns),)
    touched(tmp_path / "a.zip")
    now = print_of(array_ref(tmp_path / "a.zip"), make(MemoryStore(), (4,), (4,), "i4"))
    assert one.differences(now, with_temp=True) == ["the source's file was written since"]


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_target_is_as_it_was_to_be_whatever_its_attributes(zarr_format: int) -> None:
    wanted = target_like(zarr_format=zarr_format)
    begun = print_of(wanted, wanted)
    same = target_like(zarr_format=zarr_format, attributes={"history": "looked at"})
    assert layout_differences(begun, open_array(same, read_only=True)) == []


@pytest.mark.parametrize(
    "options,named",
    [
        ({"chunks": (6, 5)}, "its chunk_grid: "),
        ({"fill_value": 7}, "its fill_value: "),
        ({"dtype": "i4"}, "its data_type: "),
        ({"zarr_format": 2}, "its zarr_format: 3 then, 2 now"),
    ],
    ids=str,
)
def test_a_target_that_is_otherwise_is_told(options: dict[str, Any], named: str) -> None:
    begun = print_of(target_like(), target_like())
    differences = layout_differences(begun, open_array(target_like(**options), read_only=True))
    assert any(text.startswith(named) for text in differences)


def test_describe_and_open_agree(tmp_path: Path) -> None:
    ref = source_at(tmp_path)
    array = open_array(ref, read_only=True).array
    assert fingerprint(describe(array), ref, describe(array), max_mem=1, temp=None) == print_of(ref, ref, max_mem=1)
