from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr
from zarr.codecs import BytesCodec, Crc32cCodec, GzipCodec, TransposeCodec, ZstdCodec
from zarr.core.buffer import Buffer
from zarr.storage import MemoryStore, WrapperStore

from rechunk_exec.errors import PlanError, StorageError
from rechunk_exec.storage import (
    ArrayRef,
    Design,
    TargetWishes,
    array_ref,
    create,
    design_intermediate,
    design_target,
    open_array,
)
from tests.storage.arrays import make, read_by_zarr, write_by_us
from tests.values import position_values, same_bits


def design(zarr_format: int, *, source_format: int = 0, shard: Any = None, dtype: Any = "f4", **options: Any) -> Design:
    source = make(MemoryStore(), (8, 6), (2, 3), dtype, zarr_format=source_format or zarr_format)
    wishes = TargetWishes(chunk=(4, 6), shard=shard, zarr_format=zarr_format, options=options)
    return design_target(open_array(source, read_only=True), wishes)


def codecs_of(made: Design) -> Any:
    metadata: Any = made.like.metadata
    if metadata.zarr_format == 2:
        return None if metadata.compressor is None else metadata.compressor.get_config()
    return [codec.to_dict() for codec in metadata.codecs[1:]]


ZSTD = {"name": "zstd", "configuration": {"level": 3, "checksum": False}}


@pytest.mark.parametrize("source_format", [2, 3])
@pytest.mark.parametrize(
    "options",
    [
        {"compressor": numcodecs.Zstd(3)},
        {"compressors": numcodecs.Zstd(3)},
        {"compressors": [numcodecs.Zstd(3)]},
        {"compressors": (ZstdCodec(level=3),)},
        {"compressor": ZstdCodec(level=3)},
        {"compressor": {"id": "zstd", "level": 3}},
        {"compressor": ZSTD},
    ],
    ids=str,
)
def test_a_compressor_of_either_format_serves_both(options: dict[str, Any], source_format: int) -> None:
    assert codecs_of(design(3, source_format=source_format, **options)) == [ZSTD]
    assert codecs_of(design(2, source_format=source_format, **options)) == {"id": "zstd", "level": 3, "checksum": False}


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("options", [{"compressor": None}, {"compressors": None}, {"compressors": []}], ids=str)
def test_no_compressor(options: dict[str, Any], zarr_format: int) -> None:
    assert codecs_of(design(zarr_format, source_format=5 - zarr_format, **options)) == (
        [] if zarr_format == 3 else None
    )


def test_several_compressors_are_for_format_3() -> None:
    both = [GzipCodec(level=1), Crc32cCodec()]
    assert [codec["name"] for codec in codecs_of(design(3, compressors=both))] == ["gzip", "crc32c"]
    with pytest.raises(PlanError, match=r"one compressor; got .* zarr_format=3"):
        design(2, compressors=both)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_the_defaults_can_be_asked_for(zarr_format: int) -> None:
    made = design(zarr_format, filters="auto", compressors="auto", serializer="auto")
    plain = zarr.create_array(MemoryStore(), shape=(8, 6), chunks=(4, 6), dtype="f4", zarr_format=zarr_format)  # type: ignore[arg-type]
    assert made.like.metadata.to_dict() == plain.metadata.to_dict()


def test_other_options_of_zarr_are_taken() -> None:
    made = design(
        3,
        fill_value=3,
        attributes={"z": 1},
        dimension_names=["a", "b"],
        chunk_key_encoding={"name": "v2", "separator": "/"},
        serializer=BytesCodec(endian="big"),
        filters=[TransposeCodec(order=(1, 0))],
        shard=(8, 6),
    )
    metadata: Any = made.like.metadata
    assert made.like.absent == 3
    assert metadata.attributes == {"z": 1}
    assert metadata.dimension_names == ("a", "b")
    assert metadata.encode_chunk_key((1, 2)) == "1/2"
    assert made.like.dtype == np.dtype(">f4")
    assert made.like.codec is not None
    assert made.like.codec.axes == (1, 0)
    two: Any = design(2, order="F", filters=[numcodecs.Delta("f4")], fill_value=None).like.metadata
    assert (two.order, two.filters, two.fill_value) == ("F", (numcodecs.Delta("f4"),), None)


@pytest.mark.parametrize(
    "option,remedy",
    [
        ("shape", "source"),
        ("dtype", "not converted"),
        ("chunks", "target_chunks"),
        ("shards", "target_shards"),
        ("zarr_format", "zarr_format"),
        ("store", "target_store"),
        ("name", "array_name"),
        ("overwrite", "mode='overwrite'"),
        ("storage_options", "storage_options"),
        ("write_empty_chunks", "not stored"),
        ("config", "not stored"),
    ],
)
def test_an_option_that_belongs_elsewhere_is_sent_there(option: str, remedy: str) -> None:
    source = make(MemoryStore(), (8, 6), (2, 3), "f4")
    wishes = TargetWishes(chunk=(4, 6), shard=None, zarr_format=3, options={option: 1})
    with pytest.raises(PlanError, match=f"cannot set '{option}'.*{remedy}"):
        design_target(open_array(source, read_only=True), wishes)


def test_an_unknown_option_lists_the_known() -> None:
    with pytest.raises(PlanError, match=r"knows compressor, compressors, filters, .*; got 'compresor'"):
        design(3, compresor=None)


@pytest.mark.parametrize("options", [{"compressor": None, "compressors": None}], ids=str)
def test_one_thing_is_not_given_twice(options: dict[str, Any]) -> None:
    with pytest.raises(PlanError, match="both"):
        design(3, **options)


@pytest.mark.parametrize(
    "zarr_format,options",
    [
        (3, {"filters": [numcodecs.Delta("f4")]}),
        (3, {"compressor": 5}),
        (3, {"compressor": "zstd"}),
        (3, {"fill_value": "x"}),
        (3, {"dimension_names": ["one"]}),
        (3, {"filters": 5}),
        (2, {"filters": [TransposeCodec(order=(1, 0))]}),
        (2, {"serializer": BytesCodec(endian="big")}),
        (2, {"dimension_names": ["a", "b"]}),
        (2, {"compressor": "zstd"}),
    ],
    ids=str,
)
def test_what_the_format_cannot_hold_is_refused_and_the_default_offered(
    zarr_format: int, options: dict[str, Any]
) -> None:
    with pytest.raises(PlanError, match=rf"format {zarr_format}: .*'compressors': 'auto'.*zarr_format"):
        design(zarr_format, **options)


def test_an_order_of_format_2_is_not_ignored_in_format_3() -> None:
    with pytest.raises(PlanError, match=r"order of elements; got 'F'.*TransposeCodec"):
        design(3, order="F")
    assert design(3, order="C").like.codec is not None


def test_elements_that_zarr_would_misplace_are_stored_in_c_order(tmp_path: Path) -> None:
    # Of this filter zarr stores elements in C order whatever the metadata say, and reads them as these do.
    source = make(MemoryStore(), (8, 6), (8, 6), "f4", zarr_format=2, filters=[numcodecs.BitRound(10)], order="F")
    stored = open_array(source, read_only=True)
    made = design_target(stored, TargetWishes(chunk=(4, 6), shard=None, zarr_format=2, options={}))
    assert made.arguments["order"] == "C"
    assert "stored in C order, and not in 'F'" in made.notes[0]
    target = array_ref(tmp_path)
    create(made, target)
    values = numcodecs.BitRound(10).encode(position_values((8, 6), "f4")).view("f4")
    write_by_us(target, values)
    assert same_bits(read_by_zarr(target), values)
    with pytest.raises(PlanError, match=r"misplaces elements that go through .* in order 'F'"):
        design_target(stored, TargetWishes(chunk=(4, 6), shard=None, zarr_format=2, options={"order": "F"}))
    made = design(2, filters=[numcodecs.Delta("f4")], order="F")
    assert made.arguments["order"] == "F", "a filter of which they are right"


@pytest.mark.parametrize(
    "zarr_format,dtype,options,named",
    [
        (2, "f4", {"filters": [numcodecs.Delta("f4")]}, "Delta"),
        (2, "i4", {"filters": [numcodecs.Delta("i4")]}, ""),
        (2, "f4", {"filters": [numcodecs.FixedScaleOffset(0.5, 10, "f4", "i2")]}, "FixedScaleOffset"),
        (2, "f4", {"filters": [numcodecs.BitRound(10)]}, ""),
        (2, "f4", {"filters": [numcodecs.Shuffle(4)], "compressor": numcodecs.Zstd(1)}, ""),
        (3, "f4", {"filters": [TransposeCodec(order=(1, 0))]}, ""),
        (3, "f4", {"filters": {"name": "numcodecs.delta", "configuration": {"dtype": "<f4"}}}, "Delta"),
        (3, "i4", {"filters": {"name": "numcodecs.delta", "configuration": {"dtype": "<i4"}}}, ""),
    ],
    ids=str,
)
def test_codecs_that_may_change_elements_are_told(zarr_format: int, dtype: str, options: Any, named: str) -> None:
    notes = [note for note in design(zarr_format, dtype=dtype, **options).notes if "verify=True" in note]
    assert len(notes) == bool(named)
    assert all(named in note for note in notes)


def test_shards_are_for_format_3() -> None:
    with pytest.raises(PlanError, match=r"target_shards=\(8, 6\) and format 2"):
        design(2, shard=(8, 6))


@pytest.mark.parametrize("zarr_format", [1, 4, "3", True])
def test_there_are_two_formats(zarr_format: Any) -> None:
    source = make(MemoryStore(), (8, 6), (2, 3), "f4")
    wishes = TargetWishes(chunk=(4, 6), shard=None, zarr_format=zarr_format, options={})
    with pytest.raises(PlanError, match="zarr_format must be 2, 3"):
        design_target(open_array(source, read_only=True), wishes)


def test_designing_writes_nothing(tmp_path: Path) -> None:
    source = make(tmp_path / "a", (8, 6), (2, 3), "f4")
    before = sorted(tmp_path.rglob("*"))
    design_target(open_array(source, read_only=True), TargetWishes(chunk=(4, 6), shard=None, zarr_format=2, options={}))
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_intermediates_leave_no_groups_above_them(zarr_format: int, tmp_path: Path) -> None:
    # zarr makes a group of every folder above an array; they stayed when the array was removed.
    source = make(MemoryStore(), (8, 6), (2, 3), "f4", zarr_format=zarr_format, attributes={"q": 1})
    made = design_intermediate(open_array(source, read_only=True), (3, 5))
    store = MemoryStore()
    create(made, ArrayRef(store=store, path="temp/temp-1"))
    assert {name.rpartition("/")[0] for name in store._store_dict} == {"temp/temp-1"}
    create(made, array_ref(tmp_path, "temp/temp-1"))
    assert {path.name for path in tmp_path.iterdir()} == {"temp"}
    assert {path.name for path in (tmp_path / "temp").iterdir()} == {"temp-1"}
    for ref in (ArrayRef(store=store, path="temp/temp-1"), array_ref(tmp_path, "temp/temp-1")):
        found = open_array(ref, read_only=False)
        assert found.metadata.to_dict() == made.like.metadata.to_dict()
        values = position_values((8, 6), "f4")
        write_by_us(ref, values)
        assert same_bits(read_by_zarr(ref), values)


def test_creating_where_something_is_is_refused(tmp_path: Path) -> None:
    ref = make(tmp_path / "a", (8, 6), (2, 3), "f4", values=np.ones((8, 6), "f4"))
    with pytest.raises(StorageError, match="cannot create"):
        create(design(3), ref)
    assert open_array(ref, read_only=True).chunk == (2, 3)


def test_creating_where_nothing_can_be_is_our_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for ref in (
        array_ref(tmp_path / "file"),
        array_ref(tmp_path / "file" / "a"),
        array_ref(MemoryStore(read_only=True)),
    ):
        with pytest.raises(StorageError, match="cannot create"):
            create(design(3), ref)


class SlowAndBroken(WrapperStore[MemoryStore]):
    """One document of an array cannot be written, and the others come late."""

    _supports_sync_io = False

    async def set(self, key: str, value: Buffer) -> None:
        if key.endswith(".zattrs"):
            raise ValueError("broken")
        await asyncio.sleep(0.3)
        await super().set(key, value)


def test_documents_that_come_after_a_failure_make_no_array() -> None:
    inner = MemoryStore()
    with pytest.raises(StorageError, match="broken"):
        create(design(2, attributes={"a": 1}), array_ref(SlowAndBroken(inner)))
    time.sleep(0.6)
    assert list(inner._store_dict) == []
