"""Fill values: what stands for chunks that are not stored, bit for bit, in each of the three ways."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
from zarr.codecs import BytesCodec, ShardingCodec
from zarr.codecs import numcodecs as outside
from zarr.storage import MemoryStore

from rechunk_exec.storage import TargetWishes, array_ref, create, design_target, open_array, open_reader, open_writer
from rechunk_exec.tasks import ArrayRef
from tests.storage.arrays import ZARR_VERSION, count_objects, make, object_names, read_by_us, read_by_zarr, write_by_us
from tests.values import Array, position_values, same_bits

RECORD = np.dtype([("a", "<i4"), ("b", "<f4")])


def bits(dtype: str, number: int) -> Any:
    """The float whose bits are ``number``."""
    return np.array([number], f"u{dtype[1]}").view(dtype)[0]


FILLS: dict[str, tuple[Any, Any]] = {
    "f4 0.0": ("f4", np.float32(0.0)),
    "f4 -0.0": ("f4", np.float32(-0.0)),
    "f4 NaN": ("f4", np.float32(np.nan)),
    "f8 -inf": ("f8", -np.inf),
    "f8 0.1": ("f8", 0.1),
    "f2 -0.0": ("f2", np.float16(-0.0)),
    "c8 NaN": ("c8", np.complex64(complex(np.nan, 1))),
    "c16 -0j": ("c16", complex(0.0, -0.0)),
    "M8 NaT": ("M8[ns]", np.datetime64("NaT", "ns")),
    "m8 NaT": ("m8[s]", np.timedelta64("NaT", "s")),
    "M8 5": ("M8[ns]", np.datetime64(5, "ns")),
    "S3": ("S3", b"ab"),
    "U3": ("U3", "é"),
    "V4": ("V4", np.void(b"\1\2\3\4")),
    "i2": ("i2", -32768),
    "u8": ("u8", 2**64 - 1),
    "bool": ("?", True),
    "record -0.0": (RECORD, np.array((7, -0.0), RECORD)[()]),
    "record NaN": (RECORD, np.array((7, np.nan), RECORD)[()]),
}
LAYOUTS: dict[str, dict[str, Any]] = {
    "direct v2": {"zarr_format": 2},
    "direct v3": {},
    "direct shards": {"shards": (4, 6)},
    "zarr v2": {"zarr_format": 2, "filters": [numcodecs.Shuffle(1)]},
    "zarr v3": {"compressors": "adler32"},
    "zarr nested": {
        "shards": (4, 6),
        "compressors": None,
        "serializer": ShardingCodec(chunk_shape=(1, 3), codecs=[BytesCodec()]),
    },
}
"""On a local disk the last is served by zarrs, if that knows the dtype."""


def make_layout(store: Any, layout: str, dtype: Any, fill: Any) -> ArrayRef:
    options = dict(LAYOUTS[layout])
    if options.get("compressors") == "adler32":  # known to neither our way nor zarrs
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            options["compressors"] = [outside.Adler32()]
    if "shards" in options and np.dtype(dtype).kind == "V" and ZARR_VERSION < (3, 2):
        pytest.skip("zarr 3.1 cannot read shards of such elements itself")
    return make(store, (8, 7), (2, 3), dtype, fill_value=fill, **options)


def filled(dtype: Any, fill: Any) -> Array:
    values = np.empty((8, 7), dtype)
    values[...] = np.array(fill, dtype)
    return values


def neighbours(dtype: Any, fill: Any) -> list[Any]:
    """Elements that differ from the fill value in one bit: the lowest and the highest of the first and last byte."""
    kind = np.dtype(dtype)
    near = []
    for place in (0, -1):
        for mask in (0x01, 0x80):
            content = bytearray(np.array(fill, kind).tobytes())
            content[place] ^= mask
            if kind.kind != "U" and (kind.kind != "b" or content[0] < 2):
                near.append(np.frombuffer(bytes(content), kind)[0])
    return near


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype,fill", FILLS.values(), ids=FILLS)
def test_fill_values_are_kept_and_told_from_their_neighbours(
    dtype: Any, fill: Any, layout: str, tmp_path: Path
) -> None:
    ref = make_layout(tmp_path, layout, dtype, fill)
    absent = filled(dtype, fill)
    assert same_bits(read_by_us(ref), absent)
    writer = write_by_us(ref, absent)
    assert writer.way in (layout.split(maxsplit=1)[0], "zarrs")
    assert count_objects(ref) == 0, "chunks of fill value are not stored"
    values = absent.copy()
    for row, element in enumerate(neighbours(dtype, fill)):
        values[2 * row : 2 * row + 2, :3] = element  # a whole chunk, and one element of that beside it
        values[2 * row + 1, 4] = element
    write_by_us(ref, values)
    assert same_bits(read_by_us(ref), values)
    assert same_bits(read_by_zarr(ref), values)
    write_by_us(ref, absent)
    assert count_objects(ref) == 0, "objects that become all fill value are deleted"
    assert same_bits(read_by_zarr(ref), absent)


def test_nested_shards_of_known_dtypes_go_through_zarrs(tmp_path: Path) -> None:
    ref = make_layout(tmp_path, "zarr nested", "f4", -0.0)
    assert open_reader(ref).way == open_writer(ref).way == "zarrs"


@pytest.mark.parametrize("hexadecimal", ["0x7fc12345", "0xffc00000", "0x7fc00001"])
def test_nan_fill_values_with_other_bits_are_kept_in_the_values(hexadecimal: str, tmp_path: Path) -> None:
    # zarr reads them and writes "NaN": the target's fill value is another one, so nothing may be left out for it.
    ref = make(tmp_path / "a", (8, 7), (2, 3), "f4")
    document = json.loads((tmp_path / "a" / "zarr.json").read_text())
    document["fill_value"] = hexadecimal
    (tmp_path / "a" / "zarr.json").write_text(json.dumps(document))
    wanted = filled("f4", bits("f4", int(hexadecimal, 16)))
    assert same_bits(read_by_us(ref), wanted)
    design = design_target(
        open_array(ref, read_only=True), TargetWishes(chunk=(4, 7), shard=None, zarr_format=3, options={})
    )
    assert any("NaN of other bits" in note for note in design.notes)
    target = array_ref(tmp_path / "b")
    create(design, target)
    write_by_us(target, read_by_us(ref))
    assert same_bits(read_by_zarr(target), wanted)


@pytest.mark.parametrize("dtype", ["i4", "f8", "S3", "M8[ns]", "U2", "?", RECORD], ids=str)
def test_null_fill_reads_as_the_default_and_leaves_nothing_out(dtype: Any) -> None:
    ref = make(MemoryStore(), (8, 7), (2, 3), dtype, fill_value=None, zarr_format=2)
    assert same_bits(read_by_us(ref), read_by_zarr(ref))
    default = np.datetime64("NaT", "ns") if dtype == "M8[ns]" else np.zeros((), dtype)
    assert same_bits(read_by_us(ref), filled(dtype, default))
    values = np.zeros((8, 7), dtype)
    write_by_us(ref, values)
    assert count_objects(ref) == 4 * 3
    assert same_bits(read_by_zarr(ref), values)


@pytest.mark.parametrize("dtype", ["i4", "f8", "c16"])
def test_null_fill_leaves_nothing_out_through_zarr(dtype: str) -> None:
    ref = make(MemoryStore(), (8, 7), (2, 3), dtype, fill_value=None, zarr_format=2, filters=[numcodecs.Shuffle(1)])
    assert open_reader(ref).way == "zarr"
    write_by_us(ref, np.zeros((8, 7), dtype))
    assert count_objects(ref) == 4 * 3
    assert same_bits(read_by_us(ref), np.zeros((8, 7), dtype))


@pytest.mark.parametrize("index_location", ["start", "end"])
def test_inner_chunks_of_fill_value_are_not_stored(index_location: str, tmp_path: Path) -> None:
    shards = {"shape": (4, 6), "index_location": index_location}
    ref = make(tmp_path, (4, 12), (2, 3), "f4", fill_value=np.nan, compressors=None, shards=shards)
    values = filled("f4", np.nan)[:4, :].repeat(2, axis=1)[:, :12].copy()
    values[3, 7] = 1
    write_by_us(ref, values)
    assert object_names(ref) == {"c/0/1"}
    index_bytes = 4 * 16 + 4
    assert (tmp_path / "c/0/1").stat().st_size == index_bytes + 2 * 3 * 4
    assert same_bits(read_by_zarr(ref), values)


def test_one_cell_of_a_million_is_one_chunk(tmp_path: Path) -> None:
    values = np.ones((1000, 1000))
    values[123, 456] = 3
    source = make(
        tmp_path / "a",
        (1000, 1000),
        (250, 1000),
        "f8",
        values=values,
        fill_value=1.0,
        config={"write_empty_chunks": True},
    )
    assert count_objects(source) == 4
    stored = open_array(source, read_only=True)
    target = array_ref(tmp_path / "b")
    create(design_target(stored, TargetWishes(chunk=(50, 50), shard=None, zarr_format=3, options={})), target)
    write_by_us(target, read_by_us(source), units=20)
    assert object_names(target) == {"c/2/9"}
    assert open_array(target, read_only=True).absent == 1.0
    assert same_bits(read_by_zarr(target), values)


def test_0d_fill() -> None:
    ref = make(MemoryStore(), (), (), "f4", fill_value=-0.0)
    assert same_bits(read_by_us(ref), np.array(-0.0, "f4"))
    write_by_us(ref, np.array(0.0, "f4"))
    assert count_objects(ref) == 1
    assert same_bits(read_by_zarr(ref), np.array(0.0, "f4"))
    write_by_us(ref, np.array(-0.0, "f4"))
    assert count_objects(ref) == 0


def test_texts_of_fill_value(tmp_path: Path) -> None:
    dtype = np.dtypes.StringDType()
    ref = make(tmp_path, (8, 7), (2, 3), dtype, fill_value="none")
    assert set(read_by_us(ref).ravel()) == {"none"}
    values = position_values((8, 7), dtype)
    values[:2] = "none"
    write_by_us(ref, values)
    assert same_bits(read_by_zarr(ref), values)
    write_by_us(ref, np.full((8, 7), "none", dtype))
    assert same_bits(read_by_zarr(ref), np.full((8, 7), "none", dtype))
