from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec, ShardingCodec, TransposeCodec, ZstdCodec
from zarr.registry import register_codec
from zarr.storage import MemoryStore

from rechunk_exec.errors import PlanError
from rechunk_exec.storage import (
    ArrayRef,
    Design,
    StoredArray,
    TargetWishes,
    array_ref,
    create,
    design_intermediate,
    design_target,
    dimension_names,
    open_array,
    open_reader,
)
from tests.storage.arrays import make, read_by_us, read_by_zarr, write_by_us
from tests.storage.codecs import V2_COMPRESSORS, V3_COMPRESSORS
from tests.values import Array, position_values, same_bits


def design(source: StoredArray, zarr_format: int, **options: Any) -> Design:
    """The design of a target of (1, 4) chunks, or what fits."""
    chunk = tuple(itertools.islice((1, 4, 2), len(source.shape)))
    return design_target(source, TargetWishes(chunk=chunk, shard=None, zarr_format=zarr_format, options=options))


def carried(ref: ArrayRef, zarr_format: int, path: str = "carried") -> ArrayRef:
    """The array copied to another of ``zarr_format`` in the same store."""
    target = ArrayRef(store=ref.store, path=path)
    create(design(open_array(ref, read_only=True), zarr_format), target)
    write_by_us(target, read_by_us(ref))
    return target


def metadata(ref: ArrayRef) -> Any:
    return open_array(ref, read_only=True).metadata


def compressor_facts(codec: Any) -> Any:
    """What two compressors have in common if they are the same, whatever the format."""
    if codec is None:
        return None
    if hasattr(codec, "get_config"):
        facts = dict(codec.get_config())
    else:
        document = codec.to_dict()
        facts = {"id": document["name"].removeprefix("numcodecs."), **document.get("configuration", {})}
    if facts["id"] == "blosc":
        names = {"noshuffle": 0, "shuffle": 1, "bitshuffle": 2, -1: 1}
        facts["shuffle"] = names.get(facts["shuffle"], facts["shuffle"])
        facts.pop("typesize", None)
    facts.pop("checksum", None) if not facts.get("checksum") else None
    return {name: value for name, value in facts.items() if value is not None}


@pytest.mark.parametrize("name", V2_COMPRESSORS)
def test_compressors_of_format_2_to_3_and_back(name: str) -> None:
    compressor = V2_COMPRESSORS[name]
    values = position_values((5, 7), "i4")
    source = make(MemoryStore(), (5, 7), (2, 3), "i4", path="a", values=values, zarr_format=2, compressors=compressor)
    there = carried(source, 3)
    assert same_bits(read_by_zarr(there), values)
    codecs = metadata(there).codecs[1:]
    assert [compressor_facts(codec) for codec in codecs] == (
        [] if compressor is None else [compressor_facts(compressor)]
    )
    back = carried(there, 2, "back")
    assert compressor_facts(metadata(back).compressor) == compressor_facts(compressor)
    assert same_bits(read_by_zarr(back), values)


@pytest.mark.parametrize("name", V3_COMPRESSORS)
def test_compressors_of_format_3_stay_or_are_refused_by_format_2(name: str) -> None:
    compressors = V3_COMPRESSORS[name]
    values = position_values((5, 7), "i4")
    source = make(MemoryStore(), (5, 7), (2, 3), "i4", path="a", values=values, compressors=compressors, shards=(4, 6))
    same = carried(source, 3)
    assert [codec.to_dict() for codec in metadata(same).codecs[1:]] == [
        codec.to_dict() for codec in metadata(source).codecs[0].codecs[1:]
    ]
    assert same_bits(read_by_zarr(same), values)
    if len(compressors) > 1 or name == "crc32c":
        with pytest.raises(PlanError, match=r"format 2 .*'compressor': 'auto'.*zarr_format=3"):
            carried(source, 2, "two")
    else:
        two = carried(source, 2, "two")
        facts = [compressor_facts(metadata(two).compressor)] if compressors else []
        assert [{**compressor_facts(codec), **fact} for codec, fact in zip(compressors, facts, strict=True)] == facts
        assert same_bits(read_by_zarr(two), values)


FORMATS = [(2, 3), (3, 2), pytest.param((2, 2), marks=pytest.mark.long), pytest.param((3, 3), marks=pytest.mark.long)]
"""Of source and target. Where nothing is translated, records and compressors show once that nothing is lost."""
DTYPES = [
    "?",
    "i1",
    "<i4",
    ">i4",
    "u8",
    "f2",
    ">f8",
    "c8",
    "M8[ns]",
    "m8[s]",
    "S5",
    "U3",
    ">U3",
    "V6",
    np.dtypes.StringDType(),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("formats", FORMATS, ids=str)
def test_dtypes_and_byte_orders_are_kept(dtype: Any, formats: tuple[int, int]) -> None:
    kind = np.dtype(dtype)
    values = position_values((5, 7), kind)
    options: dict[str, Any] = {"zarr_format": formats[0]}
    if formats[0] == 3 and kind.byteorder == ">":
        options["serializer"] = BytesCodec(endian="big")
    source = make(MemoryStore(), (5, 7), (2, 3), kind, path="a", values=values, **options)
    target = carried(source, formats[1])
    assert open_array(target, read_only=True).dtype == open_array(source, read_only=True).dtype == kind
    assert same_bits(read_by_zarr(target), values)


def test_records_are_kept() -> None:
    dtype = np.dtype([("a", "<i4"), ("b", "<f4"), ("c", "S3")])
    values = position_values((5, 7), dtype)
    source = make(MemoryStore(), (5, 7), (2, 3), dtype, path="a", values=values, zarr_format=2)
    three = carried(source, 3)
    assert same_bits(read_by_zarr(three), values)
    assert same_bits(read_by_zarr(carried(three, 2, "back")), values)


@pytest.mark.parametrize("formats", [(2, 2), (2, 3), (3, 2), (3, 3)], ids=str)
@pytest.mark.parametrize("fields", ["<i4 <f8", ">i4 >f8", ">i4 <f8", ">i4 S3"])
def test_records_keep_their_byte_order_or_it_is_told(fields: str, formats: tuple[int, int]) -> None:
    dtype = np.dtype([(name, kind) for name, kind in zip("ab", fields.split(), strict=True)])
    values = position_values((5, 7), dtype.newbyteorder("<")).astype(dtype)
    options: dict[str, Any] = (
        {"serializer": BytesCodec(endian="big")} if formats[0] == 3 and dtype == dtype.newbyteorder(">") else {}
    )
    store = MemoryStore()
    make(store, (5, 7), (2, 3), dtype, path="a", zarr_format=formats[0], **options)
    source = array_ref(store, "a")
    write_by_us(source, values)
    made = design(open_array(source, read_only=True), formats[1])
    target = carried(source, formats[1])
    kept = open_array(target, read_only=True).dtype == open_array(source, read_only=True).dtype
    assert kept != any("byte order" in note for note in made.notes)
    assert kept or formats == (2, 3)  # in which mixed orders have no place, and before zarr 3.4 none
    assert same_bits(read_by_zarr(target).astype(dtype), values)
    assert same_bits(read_by_us(target).astype(dtype), values)


def test_what_zarr_creates_and_cannot_open_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    # Nested records in format 2, with zarr 3.1: the first task failed.
    source = open_array(make(MemoryStore(), (5,), (2,), "i4", path="a"), read_only=True)

    def cannot_open(*_: Any, **__: Any) -> Any:
        raise ValueError("no data type found")

    monkeypatch.setattr(zarr, "open_array", cannot_open)
    with pytest.raises(PlanError, match=r"cannot be in zarr format 2: ValueError: no data type found"):
        design(source, 2)


@pytest.mark.parametrize(
    "dtype,fill",
    [
        ("f4", np.nan),
        ("f4", -0.0),
        ("f8", np.inf),
        ("f8", -np.inf),
        ("f4", np.float32(1e37)),
        ("i2", -32768),
        ("u8", 2**64 - 1),
        ("?", True),
        ("c8", complex(np.nan, -1)),
        ("M8[ns]", np.datetime64("NaT", "ns")),
        ("m8[s]", np.timedelta64(7, "s")),
        ("S3", b"ab"),
        ("U3", "é"),
        ([("a", "<i4"), ("b", "<f4")], np.array((7, -0.0), dtype=[("a", "<i4"), ("b", "<f4")])[()]),
    ],
    ids=str,
)
@pytest.mark.parametrize("formats", FORMATS, ids=str)
def test_fill_values_are_kept(dtype: Any, fill: Any, formats: tuple[int, int]) -> None:
    source = make(MemoryStore(), (5, 7), (2, 3), dtype, path="a", fill_value=fill, zarr_format=formats[0])
    target = carried(source, formats[1])
    stored = open_array(target, read_only=True)
    assert stored.fill == np.array(fill, stored.dtype).tobytes() == open_array(source, read_only=True).fill
    assert same_bits(read_by_zarr(target), read_by_zarr(source))


def test_a_null_fill_becomes_the_default_and_is_told() -> None:
    source = make(MemoryStore(), (5, 7), (2, 3), "i4", path="a", fill_value=None, zarr_format=2)
    assert metadata(carried(source, 2)).fill_value is None
    made = design(open_array(source, read_only=True), 3)
    assert made.like.fill == bytes(4)
    assert [note for note in made.notes if "null" in note]


@pytest.mark.parametrize("names", [["time", "y"], ["time", None], None])
def test_dimension_names_to_format_2_and_back(names: Any) -> None:
    source = make(MemoryStore(), (5, 7), (2, 3), "i4", path="a", dimension_names=names, attributes={"q": [1, {"x": 2}]})
    whole = names if names and None not in names else None
    two = carried(source, 2)
    assert metadata(two).attributes == {"q": [1, {"x": 2}], **({"_ARRAY_DIMENSIONS": whole} if whole else {})}
    assert dimension_names(open_array(two, read_only=True)) == (tuple(whole) if whole else None)
    three = carried(two, 3, "back")
    assert metadata(three).attributes.get("_ARRAY_DIMENSIONS") is None
    assert metadata(three).attributes["q"] == [1, {"x": 2}]
    assert dimension_names(open_array(three, read_only=True)) == (tuple(whole) if whole else None)
    assert metadata(carried(source, 3, "same")).dimension_names == metadata(source).dimension_names


def test_both_kinds_of_names_never_stay() -> None:
    attributes = {"_ARRAY_DIMENSIONS": ["old", "names"]}
    source = make(MemoryStore(), (5, 7), (2, 3), "i4", path="a", dimension_names=["t", "y"], attributes=attributes)
    assert "_ARRAY_DIMENSIONS" not in metadata(carried(source, 3)).attributes
    assert metadata(carried(source, 2, "two")).attributes["_ARRAY_DIMENSIONS"] == ["t", "y"]


@pytest.mark.parametrize("names", [["only one"], "ab", 5, []])
def test_an_attribute_that_names_no_axes_is_an_attribute(names: Any) -> None:
    source = make(
        MemoryStore(), (5, 7, 3), (2, 3, 1), "i4", path="a", zarr_format=2, attributes={"_ARRAY_DIMENSIONS": names}
    )
    target = carried(source, 3)
    assert metadata(target).attributes["_ARRAY_DIMENSIONS"] == names
    assert dimension_names(open_array(target, read_only=True)) is None


def test_0d_arrays_get_the_attribute_that_xarray_wants_in_format_2() -> None:
    # Format 3 keeps no names for no axes; without the attribute xarray cannot open the array in format 2.
    source = make(MemoryStore(), (), (), "i4", path="a", values=np.array(7, "i4"))
    two = carried(source, 2)
    assert metadata(two).attributes == {"_ARRAY_DIMENSIONS": []}
    assert metadata(carried(two, 3, "back")).attributes == {"_FillValue": 0}


@pytest.mark.parametrize("separator", [".", "/"])
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_the_encoding_of_chunk_keys_is_kept(separator: Any, zarr_format: int) -> None:
    encoding = {"name": "v2" if zarr_format == 2 else "default", "separator": separator}
    source = make(MemoryStore(), (5, 7), (2, 3), "i4", path="a", zarr_format=zarr_format, chunk_key_encoding=encoding)
    same = carried(source, zarr_format)
    assert metadata(same).encode_chunk_key((1, 2)) == metadata(source).encode_chunk_key((1, 2))
    other = carried(source, 5 - zarr_format, "other")
    wanted = f"1{separator}2" if zarr_format == 3 else "c/1/2"
    assert metadata(other).encode_chunk_key((1, 2)) == wanted


@pytest.mark.parametrize("shape", [(5, 7), (4, 6, 5)])
def test_order_f_is_a_transpose_in_format_3_and_back(shape: tuple[int, ...]) -> None:
    values = position_values(shape, "i4")
    source = make(
        MemoryStore(),
        shape,
        (2,) * len(shape),
        "i4",
        path="a",
        values=values,
        zarr_format=2,
        order="F",
        compressors=None,
    )
    three = carried(source, 3)
    assert metadata(three).codecs[0].to_dict()["configuration"]["order"] == tuple(reversed(range(len(shape))))
    assert same_bits(read_by_zarr(three), values)
    back = carried(three, 2, "back")
    assert metadata(back).order == "F"
    assert same_bits(read_by_zarr(back), values)


def test_an_order_that_format_2_has_not_is_refused() -> None:
    source = make(MemoryStore(), (4, 6, 5), (2, 3, 5), "i4", path="a", filters=[TransposeCodec(order=(0, 2, 1))])
    with pytest.raises(PlanError, match=r"TransposeCodec.*'filters': 'auto'.*zarr_format=3"):
        carried(source, 2)
    made = design(open_array(source, read_only=True), 2, filters="auto")
    assert made.like.metadata.zarr_format == 2


def test_filters_of_format_2_are_refused_by_format_3() -> None:
    for fill in (0, None):  # a null fill hid the filters, which were dropped without a word
        source = make(
            MemoryStore(), (5,), (2,), "i4", path="a", zarr_format=2, fill_value=fill, filters=[numcodecs.Delta("i4")]
        )
        stored = open_array(source, read_only=True)
        with pytest.raises(PlanError, match=r"Delta.*'filters': 'auto'.*zarr_format=2"):
            design(stored, 3)
        assert design(stored, 3, filters="auto").like.codec is not None
        assert metadata(carried(source, 2)).filters == (numcodecs.Delta("i4"),)


def test_compressors_without_a_counterpart_are_refused() -> None:
    two = make(MemoryStore(), (5,), (2,), "i4", path="a", zarr_format=2, compressors=numcodecs.CRC32())
    with pytest.raises(PlanError, match=r"CRC32.*'compressors': 'auto'.*zarr_format=2"):
        carried(two, 3)
    three = make(MemoryStore(), (5,), (2,), "i4", path="a", compressors=[Crc32cCodec()])
    with pytest.raises(PlanError, match=r"crc32c.*'compressor': 'auto'.*zarr_format=3"):
        carried(three, 2)


def sharding(*codecs: Any, chunk_shape: tuple[int, int] = (2, 3)) -> ShardingCodec:
    return ShardingCodec(chunk_shape=chunk_shape, codecs=codecs)


@pytest.mark.filterwarnings("ignore:Combining a `sharding_indexed` codec")
def test_shards_at_any_depth_are_dropped(tmp_path: Path) -> None:
    # Codecs of a shard inside other codecs were carried whole, with its inner chunk.
    values = position_values((8, 12), "i4")
    inner = sharding(TransposeCodec(order=(1, 0)), BytesCodec(), ZstdCodec(level=1))
    nested = sharding(inner, chunk_shape=(4, 6))
    outer: dict[str, Any] = {
        "filters": [TransposeCodec(order=(0, 1))],
        "serializer": inner,
        "compressors": [BloscCodec()],
    }
    cases: dict[str, dict[str, Any]] = {"nested": {"serializer": nested, "compressors": None}, "outer": outer}
    for name, options in cases.items():
        source = make(tmp_path / name, (8, 12), (4, 6), "i4", values=values, **options)
        assert open_reader(source).way != "direct"
        target = array_ref(tmp_path / f"{name}-target")
        create(design(open_array(source, read_only=True), 3), target)
        names = [codec.to_dict()["name"] for codec in metadata(target).codecs]
        assert [one for one in names if one != "transpose"] == ["bytes", "zstd", "blosc"][
            : 2 if name == "nested" else 3
        ]
        assert open_array(target, read_only=True).codec is not None
        write_by_us(target, read_by_us(source))
        assert same_bits(read_by_zarr(target), values)
        create(design_intermediate(open_array(source, read_only=True), (3, 5)), array_ref(tmp_path / f"{name}-temp"))


class OtherBytes(BytesCodec):
    """A codec from elements to bytes that is in neither format."""

    def to_dict(self) -> Any:
        return {"name": "rechunk_exec-test-bytes"}

    @classmethod
    def from_dict(cls, data: Any) -> OtherBytes:
        return cls()


def test_another_serializer_is_refused_by_format_2_and_not_used_between(tmp_path: Path) -> None:
    # It was dropped without a word.
    register_codec("rechunk_exec-test-bytes", OtherBytes)
    values = position_values((5, 7), "i4")
    source = make(tmp_path / "a", (5, 7), (2, 3), "i4", values=values, serializer=OtherBytes())
    stored = open_array(source, read_only=True)
    assert open_reader(source).way == "zarr"
    assert same_bits(read_by_us(source), values)
    with pytest.raises(PlanError, match=r"OtherBytes.*'serializer': 'auto'.*zarr_format=3"):
        design(stored, 2)
    assert design(stored, 2, serializer="auto").like.codec is not None
    assert design(stored, 3).like.codec is None
    assert design_intermediate(stored, (3, 5)).like.codec is not None


SOURCES: dict[str, tuple[Any, dict[str, Any]]] = {
    "v2": (">f4", {"zarr_format": 2, "order": "F"}),
    "v2 null": ("i4", {"zarr_format": 2, "fill_value": None}),
    "v2 Delta": ("i4", {"zarr_format": 2, "filters": [numcodecs.Delta("i4")], "fill_value": None}),
    "v2 text": (np.dtypes.StringDType(), {"zarr_format": 2}),
    "v3": ("f4", {"shards": (4, 6), "serializer": BytesCodec(endian="big"), "fill_value": np.nan}),
    "v3 text": (np.dtypes.StringDType(), {}),
    "v3 dates": ("M8[ns]", {}),
}


@pytest.mark.parametrize("name", SOURCES)
def test_intermediates_are_uncompressed_and_hold_the_values(name: str, tmp_path: Path) -> None:
    dtype, options = SOURCES[name]
    values: Array = position_values((5, 7), dtype)
    source = make(tmp_path / "a", (5, 7), (2, 3), dtype, values=values, **options)
    stored = open_array(source, read_only=True)
    made = design_intermediate(stored, (3, 5))
    create(made, array_ref(tmp_path / "temp"))
    temp = open_array(array_ref(tmp_path / "temp"), read_only=False)
    assert temp.metadata.zarr_format == stored.metadata.zarr_format
    assert temp.chunk == (3, 5)
    if stored.fixed_size:
        assert temp.codec is not None
        assert temp.codec.raw
        assert temp.codec.c_order
        assert temp.dtype.newbyteorder("=") == stored.dtype.newbyteorder("=")
    assert temp.fill == stored.fill
    write_by_us(array_ref(tmp_path / "temp"), read_by_us(source))
    assert same_bits(read_by_us(array_ref(tmp_path / "temp")), values)


def test_what_is_designed_is_what_is_created(tmp_path: Path) -> None:
    source = make(tmp_path / "a", (5, 7), (2, 3), ">f4", zarr_format=2, order="F", attributes={"q": 1})
    wishes = TargetWishes(chunk=(1, 2), shard=(3, 4), zarr_format=3, options={})
    made = design_target(open_array(source, read_only=True), wishes)
    create(made, array_ref(tmp_path / "b", "deep/inside"))
    found = open_array(array_ref(tmp_path / "b", "deep/inside"), read_only=True)
    assert found.metadata.to_dict() == made.like.metadata.to_dict()
    assert (found.chunk, found.shard, found.dtype, found.fill) == ((1, 2), (3, 4), made.like.dtype, made.like.fill)
    assert zarr.open_array(str(tmp_path / "b"), path="deep/inside", mode="r").attrs["q"] == 1
