"""Objects that are torn, damaged or cannot be read: an error, never other values; and a retry replaces them unread."""

from __future__ import annotations

import shutil
import struct
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
from zarr.abc.store import ByteRequest
from zarr.codecs import BytesCodec, ShardingCodec
from zarr.codecs import numcodecs as outside
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.storage import MemoryStore

from rechunk_exec.errors import StorageError
from rechunk_exec.storage import open_reader, open_writer
from rechunk_exec.tasks import ArrayRef
from tests.storage.arrays import make, object_names, read_by_us, read_by_zarr, write_by_us
from tests.storage.codecs import V2_COMPRESSORS, V3_COMPRESSORS
from tests.values import position_values, same_bits

SHAPE = (8, 5)
VALUES = (np.arange(40, dtype="i4") // 3).reshape(SHAPE)  # compressible
NESTED = {"serializer": ShardingCodec(chunk_shape=(2, 5), codecs=[BytesCodec()]), "compressors": None}

# One shuffle of Blosc is enough: what differs is the compressor.
COMPRESSORS = {
    name: codec for name, codec in V2_COMPRESSORS.items() if not name.startswith("blosc") or name.endswith("-1")
}
COMPRESSORS = {name: codec for name, codec in COMPRESSORS.items() if not name.endswith("--1")}
LAYOUTS: dict[str, dict[str, Any]] = {
    **{f"v2 {name}": {"zarr_format": 2, "compressors": codec} for name, codec in COMPRESSORS.items()},
    **{
        f"v2 Delta {name}": {"zarr_format": 2, "compressors": codec, "filters": [numcodecs.Delta("i4")]}
        for name, codec in COMPRESSORS.items()
    },
    **{f"v3 {name}": {"compressors": V3_COMPRESSORS[name]} for name in ("raw", "zstd", "crc32c", "blosc-zstd-crc32c")},
    **{
        f"shards {name} {place}": {
            "compressors": V3_COMPRESSORS[name],
            "shards": {"shape": SHAPE, "index_location": place},
        }
        for name in ("raw", "zstd", "gzip", "lz4", "blosc-lz4-shuffle")
        for place in ("start", "end")
    },
    **{
        f"nested {place}": {**NESTED, "shards": {"shape": SHAPE, "index_location": place}} for place in ("start", "end")
    },
}


def torn_object(folder: Path, layout: str) -> tuple[ArrayRef, Path]:
    options = LAYOUTS[layout]
    ref = make(folder, SHAPE, (4, 5), "i4", values=VALUES, **options)
    return ref, folder / ("0.0" if "zarr_format" in options else "c/0/0")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_truncated_objects_are_errors(layout: str, tmp_path: Path) -> None:
    ref, path = torn_object(tmp_path, layout)
    whole = path.read_bytes()
    for size in sorted({0, 1, 10, 16, len(whole) // 2, len(whole) - 20, len(whole) - 1} & set(range(len(whole)))):
        path.write_bytes(whole[:size])
        with pytest.raises(StorageError):
            read_by_us(ref)
    path.write_bytes(whole)
    assert same_bits(read_by_us(ref), VALUES)


@pytest.mark.parametrize("rows", [3, 5])
@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name.startswith(("v2", "v3"))])
def test_whole_objects_of_another_chunk_shape_are_errors(layout: str, rows: int, tmp_path: Path) -> None:
    # Into a buffer that is used again: what a shorter one does not fill would be another chunk's elements.
    ref, path = torn_object(tmp_path / "a", layout)
    make(tmp_path / "b", (rows, 5), (rows, 5), "i4", values=np.full((rows, 5), 9, "i4"), **LAYOUTS[layout])
    path.write_bytes((tmp_path / "b" / path.relative_to(tmp_path / "a")).read_bytes())
    with pytest.raises(StorageError):
        read_by_us(ref)


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if "raw" in name or "blosc" in name or "zstd" in name])
def test_objects_that_are_too_long_are_never_other_values(layout: str, tmp_path: Path) -> None:
    ref, path = torn_object(tmp_path, layout)
    path.write_bytes(path.read_bytes() + b"\0" * 7)
    try:
        found = read_by_us(ref)
    except StorageError:
        return
    assert same_bits(found, VALUES)
    assert "start" in layout, "only a shard whose index comes first does not notice"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_flipped_bits_are_errors_of_storage_or_go_unseen(layout: str, tmp_path: Path, long: bool) -> None:
    # Codecs fail in many ways: RuntimeError, MemoryError of an absurd size, OverflowError of an absurd offset.
    ref, path = torn_object(tmp_path, layout)
    whole = path.read_bytes()
    for place in range(0, len(whole), max(1, len(whole) // (24 if long else 8))):
        damaged = bytearray(whole)
        damaged[place] ^= 0xC1
        path.write_bytes(damaged)
        try:
            read_by_us(ref)
        except StorageError:
            continue


@pytest.mark.parametrize("layout", ["v3 crc32c", "v2 zstd-checksum", "shards zstd start", "shards zstd end"])
def test_every_flipped_bit_under_a_checksum_is_an_error(layout: str, tmp_path: Path, long: bool) -> None:
    ref, path = torn_object(tmp_path, layout)
    whole = path.read_bytes()
    index_bytes = 2 * 16 + 4
    sealed = range(len(whole))
    if layout == "v2 zstd-checksum":
        sealed = range(6, len(whole))  # past the header, whose window size is only a hint
    elif "shards" in layout:
        sealed = range(index_bytes) if "start" in layout else range(len(whole) - index_bytes, len(whole))
    for place in sealed if long else sealed[::3]:
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        with pytest.raises(StorageError):
            read_by_us(ref)


NO_CHECKSUM = ShardingCodec(chunk_shape=(4, 5), codecs=[BytesCodec()], index_codecs=[BytesCodec()])


@pytest.mark.parametrize(
    "entry",
    [
        (0, 2**62),
        (2**62, 80),
        (2**63, 80),
        (2**64 - 2, 80),
        (0, 2**64 - 1),
        (2**64 - 1, 80),
        (150, 80),
        (0, 79),
        (0, 81),
    ],
)
@pytest.mark.parametrize("memory", [False, True])
def test_absurd_places_of_inner_chunks_are_errors(entry: tuple[int, int], memory: bool, tmp_path: Path) -> None:
    # An absurd size asked for that much memory; an absurd offset was an OverflowError.
    store = MemoryStore() if memory else tmp_path
    ref = make(store, SHAPE, SHAPE, "i4", values=VALUES, compressors=None, serializer=NO_CHECKSUM)
    assert open_reader(ref).way == "direct"
    if isinstance(store, MemoryStore):
        content = store._store_dict["c/0/0"].to_bytes()
        buffer = type(store._store_dict["c/0/0"])
        store._store_dict["c/0/0"] = buffer.from_bytes(content[:-32] + struct.pack("<QQ", *entry) + content[-16:])
    else:
        content = (tmp_path / "c/0/0").read_bytes()
        (tmp_path / "c/0/0").write_bytes(content[:-32] + struct.pack("<QQ", *entry) + content[-16:])
    with pytest.raises(StorageError):
        read_by_us(ref)


def test_blosc_frames_in_memory_stores_are_checked_before_numcodecs_reads_past_them() -> None:
    store = MemoryStore()
    options = LAYOUTS["v2 Delta blosc-lz4-1"]
    ref = make(store, SHAPE, (4, 5), "i4", values=VALUES, **options)
    assert open_reader(ref).way == "zarr"
    content = store._store_dict["0.0"]
    store._store_dict["0.0"] = type(content).from_bytes(content.to_bytes()[:-5])
    with pytest.raises(StorageError, match="torn"):
        read_by_us(ref)


def directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path)


def dangling(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")


def file_for_folder(path: Path) -> None:
    shutil.rmtree(path.parent)
    path.parent.write_bytes(b"")


def forbidden(path: Path) -> None:
    path.chmod(0)
    try:
        path.read_bytes()
    except PermissionError:
        return
    pytest.skip("this user may read everything")


WAYS: dict[str, dict[str, Any]] = {
    "direct": {},
    "direct shards": {"shards": (8, 5)},
    "zarrs": {**NESTED, "shards": (8, 5)},
    "zarr": {
        "zarr_format": 2,
        "filters": [numcodecs.Delta("i4")],
        "chunk_key_encoding": {"name": "v2", "separator": "/"},
    },
}


@pytest.mark.parametrize("damage", [directory, loop, dangling, file_for_folder, forbidden])
@pytest.mark.parametrize("way", WAYS)
def test_what_is_there_and_cannot_be_read_is_no_absent_chunk(
    way: str, damage: Callable[[Path], None], tmp_path: Path
) -> None:
    # zarr's local store calls a folder absent, or a file where a folder should be; both it and zarrs a dangling link.
    ref = make(tmp_path, SHAPE, (4, 5), "i4", values=VALUES, **WAYS[way])
    assert open_reader(ref).way == way.split(maxsplit=1)[0]
    damage(tmp_path / ("0/0" if way == "zarr" else "c/0/0"))
    with pytest.raises(StorageError):
        read_by_us(ref)


@pytest.mark.parametrize("values", [VALUES, np.zeros_like(VALUES)], ids=["values", "fill"])
@pytest.mark.parametrize("damage", [directory, file_for_folder])
@pytest.mark.parametrize("way", WAYS)
def test_what_cannot_be_replaced_is_an_error_and_leaves_nothing(
    way: str, damage: Callable[[Path], None], values: Any, tmp_path: Path
) -> None:
    ref = make(tmp_path, SHAPE, (4, 5), "i4", values=VALUES, **WAYS[way])
    damage(tmp_path / ("0/0" if way == "zarr" else "c/0/0"))
    with pytest.raises(StorageError):
        write_by_us(ref, values)
    assert not [name for name in object_names(ref) if "partial" in name]


class UnreadableStore(MemoryStore):
    """Chunks go in and do not come out."""

    async def get(
        self, key: str, prototype: BufferPrototype | None = None, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        if not key.endswith((".json", ".zarray", ".zattrs", ".zgroup")):
            raise AssertionError(f"{key} was read")
        return await super().get(key, prototype, byte_range)


def adler32() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return outside.Adler32()


REPLACED: dict[str, dict[str, Any]] = {
    "direct v2": {"zarr_format": 2},
    "direct v3": {},
    "direct shards": {"shards": (16, 12)},
    "zarr v2": {"zarr_format": 2, "filters": [numcodecs.Delta("i4")]},
    "zarr v3": {"compressors": "adler32"},
    "zarr nested": {
        "shards": (16, 12),
        "serializer": ShardingCodec(chunk_shape=(4, 3), codecs=[BytesCodec()]),
        "compressors": None,
    },
}


def options_of(layout: str) -> dict[str, Any]:
    options = dict(REPLACED[layout])
    if options.get("compressors") == "adler32":
        options["compressors"] = [adler32()]
    return options


@pytest.mark.parametrize("layout", REPLACED)
def test_units_are_replaced_without_being_read(layout: str) -> None:
    # Shape (19, 14) is clipped everywhere: zarr reads a clipped unit before it writes it, if it is not hindered.
    store = UnreadableStore()
    ref = make(store, (19, 14), (8, 6), "i4", **options_of(layout))
    assert open_writer(ref).way == layout.split(maxsplit=1)[0]
    values = position_values((19, 14), "i4")
    write_by_us(ref, values)
    write_by_us(ref, values)
    readable = ArrayRef(store=MemoryStore(store._store_dict))
    assert same_bits(read_by_zarr(readable), values)


@pytest.mark.parametrize("layout", REPLACED)
def test_torn_units_are_replaced_also_at_clipped_edges(layout: str, tmp_path: Path) -> None:
    values = position_values((19, 14), "i4")
    ref = make(tmp_path, (19, 14), (8, 6), "i4", values=values, **options_of(layout))
    for name in object_names(ref):
        (tmp_path / name).write_bytes(b"0123456789")
    with pytest.raises(StorageError):
        read_by_us(ref)
    assert write_by_us(ref, values).way in (layout.split(maxsplit=1)[0], "zarrs")
    assert same_bits(read_by_zarr(ref), values)
    assert not [name for name in object_names(ref) if "partial" in name]


def test_a_torn_edge_is_replaced_through_zarrs(tmp_path: Path) -> None:
    values = position_values((19, 14), "i4")
    ref = make(tmp_path, (19, 14), (8, 6), "i4", values=values, **options_of("zarr nested"))
    (tmp_path / "c/1/1").write_bytes(b"0123456789")
    assert write_by_us(ref, values).way == "zarrs"
    assert same_bits(read_by_zarr(ref), values)
