"""What the direct way cannot serve: through zarr, with the Rust codecs where they can, and nothing else touched."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr
from zarr.codecs import BloscCodec, BytesCodec, ShardingCodec, TransposeCodec
from zarr.codecs import numcodecs as outside
from zarr.storage import MemoryStore

from rechunk_exec.errors import StorageError
from rechunk_exec.storage import open_array, open_reader, open_writer
from tests.conftest import needed_module
from tests.storage.arrays import (
    ZARR_VERSION,
    count_objects,
    make,
    object_names,
    read_box,
    read_by_us,
    read_by_zarr,
    write_by_us,
)
from tests.values import position_values, same_bits

TEXT = np.dtypes.StringDType()


def nested(*codecs: Any) -> dict[str, Any]:
    return {
        "shards": (4, 6),
        "serializer": ShardingCodec(chunk_shape=(1, 3), codecs=[*codecs, BytesCodec()]),
        "compressors": None,
    }


def outsider(name: str, **configuration: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return getattr(outside, name)(**configuration)


CASES: dict[str, tuple[Any, dict[str, Any], str]] = {
    "v2 Delta": ("i4", {"zarr_format": 2, "filters": [numcodecs.Delta("i4")]}, "zarr"),
    "v2 Delta big": (">i4", {"zarr_format": 2, "filters": [numcodecs.Delta(">i4")]}, "zarr"),
    "v2 Shuffle F": ("f4", {"zarr_format": 2, "filters": [numcodecs.Shuffle(4)], "order": "F"}, "zarrs"),
    "v2 text": (TEXT, {"zarr_format": 2}, "zarr"),
    "v3 text": (TEXT, {}, "zarr"),
    "v3 text in shards": (TEXT, {"shards": (4, 6)}, "zarr"),
    "v3 Delta": ("i4", {"filters": lambda: [outsider("Delta", dtype="i4")]}, "zarr"),
    "v3 Adler32": ("f8", {"compressors": lambda: [outsider("Adler32")]}, "zarr"),
    "v3 Blosc of numcodecs": ("f8", {"compressors": lambda: [outsider("Blosc")]}, "zarr"),
    "nested": ("f4", nested(), "zarrs"),
    "nested transposed": ("f4", nested(TransposeCodec(order=(1, 0))), "zarrs"),
    "shards in Blosc": ("f4", {**nested(), "shards": None, "compressors": BloscCodec(typesize=4)}, "zarr"),
    "nested records": ([("a", "<i4"), ("b", "<f4")], nested(), "zarr"),
    "nested dates": ("M8[s]", nested(), "zarr"),
}


def options_of(name: str) -> dict[str, Any]:
    return {key: value() if callable(value) else value for key, value in CASES[name][1].items()}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("memory", [False, True], ids=["local", "memory"])
def test_values_are_exact_and_the_way_is_named(name: str, memory: bool, tmp_path: Path) -> None:
    if name == "nested records" and ZARR_VERSION < (3, 2):
        pytest.skip("zarr 3.1 cannot write shards of such elements itself")
    dtype, _, way = CASES[name]
    values = position_values((5, 7), dtype)
    store = MemoryStore() if memory else tmp_path
    config = copy.deepcopy(zarr.config.config)
    theirs = make(store, (5, 7), (2, 3), dtype, path="theirs", values=values, **options_of(name))
    ours = make(store, (5, 7), (2, 3), dtype, path="ours", **options_of(name))
    reader, writer = open_reader(theirs), open_writer(ours)
    assert reader.way == writer.way == ("zarr" if memory else way)
    assert open_array(theirs, read_only=True).reason
    assert same_bits(read_by_us(theirs), values)
    elements, moved = read_box(reader, (1, 2), (4, 7))
    assert same_bits(elements, values[1:4, 2:7])
    if reader.stored.fixed_size:
        unit = reader.stored.chunk
        touched = [
            sum(min((number + 1) * size, n) - number * size for number in {at // size for at in range(*span)})
            for n, size, span in zip((5, 7), unit, ((1, 4), (2, 7)), strict=True)
        ]
        assert moved.decoded == touched[0] * touched[1] * values.itemsize
    write_by_us(ours, values)
    assert same_bits(read_by_zarr(ours), values)
    assert object_names(ours) == object_names(theirs)
    assert zarr.config.config == config


def test_a_pipeline_of_the_users_stays_theirs(tmp_path: Path) -> None:
    values = position_values((5, 7), "f4")
    with zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}):
        ref = make(tmp_path, (5, 7), (2, 3), "f4", values=values, **nested())
        assert same_bits(read_by_us(ref), values)
        write_by_us(ref, position_values((5, 7), "f4", seed=1))
        assert zarr.config.get("codec_pipeline.path") == "zarrs.ZarrsCodecPipeline"
    assert same_bits(read_by_zarr(ref), position_values((5, 7), "f4", seed=1))


@pytest.mark.parametrize("order", ["C", "F"])
def test_the_order_that_the_user_configured_does_not_matter(order: str, tmp_path: Path) -> None:
    values = position_values((5, 7), "i4")
    with zarr.config.set({"array.order": order, "array.write_empty_chunks": True}):
        ref = make(tmp_path, (5, 7), (2, 3), "i4", zarr_format=2, filters=[numcodecs.Delta("i4")])
        write_by_us(ref, values)
        assert same_bits(read_by_us(ref), values)
        write_by_us(ref, np.zeros_like(values))
    assert count_objects(ref) == 0


def test_objects_of_no_fixed_size(tmp_path: Path) -> None:
    values = np.array([b"", b"\0\1", b"abc" * 40, b"\xff", b"x"] * 7, dtype=object).reshape(5, 7)
    dtype = zarr.dtype.VariableLengthBytes() if hasattr(zarr, "dtype") else object
    for zarr_format in (2, 3):
        ref = make(tmp_path / str(zarr_format), (5, 7), (2, 3), dtype, values=values, zarr_format=zarr_format)
        assert read_by_us(ref).tolist() == values.tolist()
        write_by_us(ref, values[::-1].copy())
        assert read_by_zarr(ref).tolist() == values[::-1].tolist()


def test_rounded_floats_are_copied_exactly(tmp_path: Path) -> None:
    values = position_values((5, 7), "f4")
    filters = [outsider("BitRound", keepbits=10)]
    theirs = make(tmp_path / "a", (5, 7), (2, 3), "f4", values=values, filters=filters)
    ours = make(tmp_path / "b", (5, 7), (2, 3), "f4", filters=filters)
    write_by_us(ours, read_by_us(theirs))
    assert same_bits(read_by_zarr(ours), read_by_zarr(theirs))


def test_pcodec(tmp_path: Path) -> None:
    needed_module("pcodec")
    values = position_values((5, 7), "f4")
    ref = make(tmp_path, (5, 7), (2, 3), "f4", values=values, serializer=outsider("PCodec"), compressors=None)
    assert open_reader(ref).way in ("zarr", "zarrs")
    assert same_bits(read_by_us(ref), values)


def test_0d_elements_through_zarr() -> None:
    ref = make(MemoryStore(), (), (), "i4", values=np.array(7, "i4"), zarr_format=2, filters=[numcodecs.Delta("i4")])
    assert open_reader(ref).way == "zarr"
    assert read_by_us(ref)[()] == 7
    write_by_us(ref, np.array(8, "i4"))
    assert read_by_zarr(ref)[()] == 8
    text = make(MemoryStore(), (), (), TEXT, values=np.array("é", TEXT))
    assert read_by_us(text)[()] == "é"
    write_by_us(text, np.array("ü", TEXT))
    assert read_by_zarr(text)[()] == "ü"


def test_a_failure_of_zarr_is_ours(tmp_path: Path) -> None:
    ref = make(tmp_path, (5,), (2,), "i4", zarr_format=2, filters=[numcodecs.Delta("i4")])
    (tmp_path / "1").mkdir()
    with pytest.raises(StorageError, match=r"cannot write unit \(1,\) .*of .*: .*Is a directory"):
        write_by_us(ref, position_values((5,), "i4"))
