from __future__ import annotations

import gzip
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numcodecs import zstd
from zarr.codecs import BytesCodec, ShardingCodec, TransposeCodec
from zarr.storage import MemoryStore

from rechunk_exec.storage import Region, open_array, open_reader, open_writer
from rechunk_exec.storage.direct import is_filled
from tests.storage.arrays import (
    ZARR_VERSION,
    Place,
    Shape,
    box_of,
    count_objects,
    grid_size,
    make,
    object_names,
    read_box,
    read_by_us,
    read_by_zarr,
    write_box,
    write_by_us,
)
from tests.storage.codecs import CNAMES, SHUFFLES, V2_COMPRESSORS, V3_COMPRESSORS
from tests.values import position_values, same_bits

DTYPES: dict[str, Any] = {
    "b1": "?",
    "i1": "i1",
    "u2": "u2",
    "i4": "<i4",
    "i4-big": ">i4",
    "u8": "u8",
    "f2": "f2",
    "f4": "f4",
    "f8-big": ">f8",
    "c8": "c8",
    "c16-big": ">c16",
    "M8": "M8[ns]",
    "M8-big": ">M8[D]",
    "m8": "m8[s]",
    "S5": "S5",
    "S300": "S300",
    "U3": "U3",
    "U3-big": ">U3",
    "U100": "U100",
    "V6": "V6",
    "record": [("a", "<i4"), ("b", "<f4"), ("c", "S3")],
    "bytes-record": [("a", "u1"), ("b", "S2")],
}
SHAPES: dict[str, tuple[Shape, Shape]] = {
    "0-d": ((), ()),
    "one": ((1,), (1,)),
    "ragged": ((7,), (3,)),
    "longer than the axis": ((5,), (9,)),
    "two axes": ((5, 7), (2, 3)),
    "one axis longer": ((3, 5), (8, 2)),
    "three axes": ((4, 6, 5), (2, 3, 5)),
    "whole": ((4, 3), (4, 3)),
}


def check_both_ways(store: Place, shape: Shape, chunks: Shape, dtype: Any, **options: Any) -> None:
    """What zarr wrote we read, and what we write zarr reads, in the same objects; directly."""
    values = position_values(shape, dtype)
    theirs = make(store, shape, chunks, dtype, path="theirs", values=values, **options)
    assert open_reader(theirs).way == "direct"
    assert same_bits(read_by_us(theirs), values)
    ours = make(store, shape, chunks, dtype, path="ours", **options)
    assert write_by_us(ours, values).way == "direct"
    assert same_bits(read_by_zarr(ours), values)
    assert object_names(ours) == object_names(theirs)


@pytest.mark.parametrize("compressor", V2_COMPRESSORS.values(), ids=V2_COMPRESSORS)
def test_compressors_of_format_2(compressor: Any) -> None:
    check_both_ways(MemoryStore(), (5, 7), (2, 3), "<i4", zarr_format=2, compressors=compressor)


@pytest.mark.parametrize("compressors", V3_COMPRESSORS.values(), ids=V3_COMPRESSORS)
def test_compressors_of_format_3(compressors: tuple[Any, ...], tmp_path: Path) -> None:
    shards = {"shape": (4, 6), "index_location": "start"} if len(compressors) > 1 else None
    check_both_ways(tmp_path, (5, 7), (2, 3), "f8", compressors=compressors, shards=shards)


def is_again(name: str, layout: str) -> bool:
    """Whether other layouts show as much of a dtype; shards of records take a newer zarr than others."""
    return (layout == "v2-F" and "-big" not in name) or (layout == "v3" and np.dtype(DTYPES[name]).kind != "V")


@pytest.mark.parametrize(
    "dtype,layout",
    [
        pytest.param(dtype, layout, id=f"{name}-{layout}", marks=pytest.mark.long if is_again(name, layout) else ())
        for name, dtype in DTYPES.items()
        for layout in ("v2", "v2-F", "v3", "v3-sharded")
    ],
)
def test_dtypes(dtype: Any, layout: str) -> None:
    options: dict[str, Any] = {"zarr_format": int(layout[1])}
    if layout == "v2-F":
        options |= {"order": "F", "compressors": V2_COMPRESSORS["zstd"]}
    if layout == "v3-sharded":
        if np.dtype(dtype).kind == "V" and ZARR_VERSION < (3, 2):
            pytest.skip("zarr 3.1 cannot read shards of such elements itself")
        options |= {"shards": (4, 3)}
    check_both_ways(MemoryStore(), (5, 7), (2, 3), dtype, **options)


@pytest.mark.parametrize("endian", ["big", "little"])
@pytest.mark.parametrize("dtype", ["i2", "f4", "c8", "U3", "M8[s]", "u1"])
def test_byte_orders_of_format_3(dtype: str, endian: Any) -> None:
    check_both_ways(MemoryStore(), (5, 7), (2, 3), dtype, shards=(2, 6), serializer=BytesCodec(endian=endian))


@pytest.mark.parametrize("shape,chunks", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("layout", ["v2", "v2-F", "v3", "v3-raw", "v3-end", "v3-start", "v3-no-crc32c"])
def test_shapes(shape: Shape, chunks: Shape, layout: str, tmp_path: Path) -> None:
    if not shape and layout in ("v3-end", "v3-start", "v3-no-crc32c") and ZARR_VERSION < (3, 2):
        pytest.skip("zarr 3.1 cannot read a shard without axes itself")
    twice = tuple(2 * size for size in chunks)
    sharding: dict[str, Any] = {
        "v2": {"zarr_format": 2, "chunk_key_encoding": {"name": "v2", "separator": "/"}},
        "v2-F": {"zarr_format": 2, "order": "F"},
        "v3": {},
        "v3-raw": {"compressors": None},
        "v3-end": {"shards": {"shape": twice, "index_location": "end"}},
        "v3-start": {"shards": {"shape": twice, "index_location": "start"}},
        "v3-no-crc32c": {
            "chunks": twice,
            "compressors": None,
            "serializer": ShardingCodec(chunk_shape=chunks, codecs=[BytesCodec()], index_codecs=[BytesCodec()]),
        },
    }
    options = {"chunks": chunks, **sharding[layout]}
    check_both_ways(tmp_path, shape, options.pop("chunks"), "f4", **options)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0), (2, 0, 1)])
@pytest.mark.parametrize("shards", [None, (4, 3, 10)])
def test_axes_stored_in_any_order(order: Shape, shards: Shape | None) -> None:
    filters = [TransposeCodec(order=order), TransposeCodec(order=(1, 0, 2))]
    check_both_ways(MemoryStore(), (4, 6, 5), (2, 3, 5), "i2", filters=filters, shards=shards)


layouts = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from([dtype for dtype in DTYPES.values() if np.dtype(dtype).kind != "V"]),
        "axes": st.lists(
            st.tuples(st.integers(1, 9), st.integers(1, 5), st.integers(1, 3)), max_size=3
        ),  # elements, chunk, chunks in a shard
        "format": st.sampled_from([2, 3]),
        "sharded": st.booleans(),
        "raw": st.booleans(),
        "box": st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=3, max_size=3),
    }
)


@given(layouts)
@settings(max_examples=25)
def test_any_box_of_any_layout(layout: dict[str, Any]) -> None:
    shape = tuple(n for n, _, _ in layout["axes"])
    chunks = tuple(size for _, size, _ in layout["axes"])
    options: dict[str, Any] = {"zarr_format": layout["format"]}
    if layout["format"] == 3 and layout["sharded"] and shape:
        options["shards"] = tuple(size * count for _, size, count in layout["axes"])
    if layout["raw"]:
        options["compressors"] = None
    values = position_values(shape, layout["dtype"])
    ref = make(MemoryStore(), shape, chunks, layout["dtype"], **options)
    write_by_us(ref, values, units=1)
    assert same_bits(read_by_zarr(ref), values)
    start = tuple(int(low * (n - 1)) for n, (low, _) in zip(shape, layout["box"], strict=False))
    stop = tuple(a + 1 + int(high * (n - a - 1)) for n, a, (_, high) in zip(shape, start, layout["box"], strict=False))
    elements, moved = read_box(open_reader(ref), start, stop)
    assert same_bits(elements, box_of(values, start, stop))
    touched = [
        sum(min((unit + 1) * size, n) - unit * size for unit in {element // size for element in range(a, b)})
        for n, size, a, b in zip(shape, chunks, start, stop, strict=True)
    ]
    assert moved.decoded == int(np.prod(touched, dtype=int)) * values.itemsize


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_bytes_read_from_the_store_are_the_files(zarr_format: int, tmp_path: Path) -> None:
    ref = make(tmp_path, (5, 7), (2, 3), "f8", values=position_values((5, 7), "f8"), zarr_format=zarr_format)
    files = sum((tmp_path / name).stat().st_size for name in object_names(ref))
    assert read_box(open_reader(ref), (0, 0), (5, 7))[1].stored == files


def test_bytes_written_are_the_files(tmp_path: Path) -> None:
    values = position_values((8, 6), "f8")
    ref = make(tmp_path, (8, 6), (2, 3), "f8", shards=(4, 6))
    written = write_box(open_writer(ref), (0, 0), values)
    assert written == sum((tmp_path / name).stat().st_size for name in object_names(ref))


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 0, 2)])
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_arrays_without_elements_open_and_have_no_objects(shape: Shape, zarr_format: int, tmp_path: Path) -> None:
    ref = make(tmp_path, shape, (2,) * len(shape), "i4", zarr_format=zarr_format)
    assert open_reader(ref).stored.shape == open_writer(ref).stored.shape == shape
    assert count_objects(ref) == 0


class NoScratch:
    """Memory that is not to be had."""

    def stored(self, size: int) -> memoryview:
        raise AssertionError(f"{size} bytes of scratch for what is stored")

    def decoded(self, size: int) -> memoryview:
        raise AssertionError(f"{size} bytes of scratch for elements")


class StoredScratch(NoScratch):
    def stored(self, size: int) -> memoryview:
        return memoryview(bytearray(size))


def test_raw_chunks_in_one_piece_need_no_scratch(tmp_path: Path) -> None:
    values = position_values((6, 4), "f4")
    for shards in (None, (4, 4)):
        ref = make(tmp_path / str(shards), (6, 4), (2, 4), "f4", values=values, compressors=None, shards=shards)
        reader = open_reader(ref)
        region = Region((0, 0), (6, 4), np.zeros((6, 4), "f4"))
        for unit in reader.units(region):
            reader.read(unit, region, NoScratch())
        assert same_bits(region.elements, values)


@pytest.mark.parametrize("name", ["zstd", "lz4", "blosc-lz4-shuffle", "gzip", "zstd-crc32c"])
def test_compressed_chunks_in_one_piece_are_decoded_in_place(name: str) -> None:
    values = position_values((6, 4), "f4")
    ref = make(MemoryStore(), (6, 4), (2, 4), "f4", values=values, compressors=V3_COMPRESSORS[name])
    reader = open_reader(ref)
    region = Region((0, 0), (6, 4), np.zeros((6, 4), "f4"))
    for unit in reader.units(region):
        reader.read(unit, region, StoredScratch())
    assert same_bits(region.elements, values)


def test_0d_elements_are_copied_and_not_lost() -> None:
    # An index of no axes gave a copy of the element, which was filled and forgotten.
    ref = make(MemoryStore(), (), (), "f8", values=np.array(1.5))
    assert read_by_us(ref)[()] == 1.5
    write_by_us(ref, np.array(2.5))
    assert read_by_zarr(ref)[()] == 2.5


@pytest.mark.parametrize("shuffle", SHUFFLES)
@pytest.mark.parametrize("cname", CNAMES)
def test_elements_wider_than_blosc_counts(cname: str, shuffle: str) -> None:
    check_both_ways(MemoryStore(), (9,), (4,), "S300", compressors=V3_COMPRESSORS[f"blosc-{cname}-{shuffle}"])


def test_regions_of_the_other_byte_order_are_turned(tmp_path: Path) -> None:
    values = position_values((5, 7), ">f4")
    ref = make(tmp_path, (5, 7), (2, 3), "<f4")
    write_box(open_writer(ref), (0, 0), values)
    assert same_bits(read_by_zarr(ref), values)


def test_edge_units_hold_no_chunks_from_outside_the_array(tmp_path: Path) -> None:
    ref = make(tmp_path, (5, 7), (1, 1), "i2", shards=(4, 4))
    write_by_us(ref, position_values((5, 7), "i2") | np.int16(1))
    index = open_array(ref, read_only=True).index
    assert index is not None
    corner = (tmp_path / "c" / "1" / "1").read_bytes()
    entries = index.decode(memoryview(corner)[-index.nbytes :], "c/1/1")
    stored = entries[..., 1] != 2**64 - 1
    assert stored.sum() == grid_size((1, 3), (1, 1))
    assert stored[:1, :3].all()


def stored_zstd(content: bytes) -> bytes:
    """A Zstandard frame of raw blocks that does not state its size (RFC 8878, 3.1.1), as streaming writers make it."""
    frame = b"\x28\xb5\x2f\xfd\x00\x58"
    for start in range(0, len(content), 50):
        block = content[start : start + 50]
        frame += struct.pack("<I", (start + 50 >= len(content)) | len(block) << 3)[:3] + block
    return frame


SKIPPABLE = b"\x50\x2a\x4d\x18" + struct.pack("<I", 5) + b"hello"


@pytest.mark.parametrize(
    "name,write",
    [
        ("zstd", stored_zstd),
        ("zstd", lambda content: stored_zstd(content[:80]) + stored_zstd(content[80:])),
        ("zstd", lambda content: zstd.compress(content[:80], 1) + zstd.compress(content[80:], 1)),
        ("zstd", lambda content: SKIPPABLE + zstd.compress(content, 1)),
        ("zstd", lambda content: zstd.compress(content, 1) + SKIPPABLE),
        ("gzip", lambda content: gzip.compress(content[:80]) + gzip.compress(content[80:])),
        ("gzip", lambda content: gzip.compress(content, 9)),
    ],
    ids=["no size", "two without", "two frames", "skippable first", "skippable last", "two members", "level 9"],
)
def test_frames_of_other_writers(name: str, write: Callable[[bytes], bytes], tmp_path: Path) -> None:
    values = position_values((8, 5), "i4")
    ref = make(tmp_path, (8, 5), (8, 5), "i4", values=values, compressors=V3_COMPRESSORS[name])
    (tmp_path / "c/0/0").write_bytes(write(values.tobytes()))
    assert same_bits(read_by_zarr(ref), values)
    assert same_bits(read_by_us(ref), values)


@given(st.binary(min_size=1, max_size=6), st.integers(1, 40), st.integers(0, 300), st.integers(0, 7))
def test_is_filled_compares_every_bit(fill: bytes, count: int, place: int, bit: int) -> None:
    content = bytearray(fill * count)
    assert is_filled(memoryview(content), fill)
    content[place % len(content)] ^= 1 << bit
    assert not is_filled(memoryview(content), fill)


@pytest.mark.parametrize("size", [1, 3, 8, 300])
@pytest.mark.parametrize("place", [0, 65535, 65536, 131071, -1])
def test_is_filled_compares_beyond_its_first_piece(size: int, place: int) -> None:
    fill = bytes(range(1, 201))[:size] + bytes(max(0, size - 200))
    content = bytearray(fill * (200_000 // size))
    assert is_filled(memoryview(content), fill)
    content[place] ^= 1
    assert not is_filled(memoryview(content), fill)
