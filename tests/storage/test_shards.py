from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest
from zarr.codecs import BytesCodec, Crc32cCodec, GzipCodec, ShardingCodec

from rechunk_exec.errors import StorageError
from rechunk_exec.storage import open_array, open_reader, open_writer
from rechunk_exec.storage.chunkcodec import crc32c
from rechunk_exec.storage.shards import EMPTY, ShardIndex, shard_index
from tests.storage.arrays import make, read_by_us, read_by_zarr, write_by_us
from tests.values import position_values, same_bits


def test_crc32c_is_the_castagnoli_checksum() -> None:
    assert crc32c(b"123456789") == bytes.fromhex("839206e3")  # RFC 3720, B.4, little-endian


@pytest.mark.parametrize("checksum", [True, False])
def test_an_index_is_pairs_in_c_order(checksum: bool) -> None:
    index = ShardIndex((2, 3), at_start=False, checksum=checksum)
    entries = index.empty()
    entries[1, 0] = 7, 11
    wanted = struct.pack("<12Q", *[EMPTY] * 6, 7, 11, *[EMPTY] * 4)
    if checksum:
        wanted += struct.pack("<I", google_crc32c.value(wanted))
    assert index.nbytes == len(wanted)
    assert index.encode(entries) == wanted
    assert np.array_equal(index.decode(memoryview(wanted), "c/0"), entries)


def test_a_damaged_index_is_refused() -> None:
    index = ShardIndex((2,), at_start=False, checksum=True)
    content = index.encode(index.empty())
    for damaged in (content[:-1], content + b"\0", b"", content[:-1] + bytes([content[-1] ^ 1]), b"\0" + content[1:]):
        with pytest.raises(StorageError, match="c/9"):
            index.decode(memoryview(damaged), "c/9")


@pytest.mark.parametrize(
    "index_codecs,known",
    [
        ([BytesCodec(), Crc32cCodec()], True),
        ([BytesCodec()], True),
        ([BytesCodec(endian="big"), Crc32cCodec()], False),
        ([BytesCodec(), Crc32cCodec(), Crc32cCodec()], False),
    ],
)
def test_the_forms_of_an_index_that_are_known(index_codecs: list[Any], known: bool) -> None:
    configuration: Any = ShardingCodec(chunk_shape=(2, 3), index_codecs=index_codecs).to_dict()["configuration"]
    form = shard_index(configuration, (4, 9))
    assert isinstance(form, ShardIndex) == known
    if isinstance(form, ShardIndex):
        assert form == ShardIndex((2, 3), at_start=False, checksum=len(index_codecs) == 2)


@pytest.mark.parametrize("endian", ["big", "little"])
@pytest.mark.parametrize("dtype", ["<f4", "M8[s]"])
def test_an_index_of_another_form_goes_through_zarr(endian: Any, dtype: str, tmp_path: Path) -> None:
    values = position_values((5, 7), dtype)
    sharding = ShardingCodec(
        chunk_shape=(2, 3), codecs=[BytesCodec(endian=endian)], index_codecs=[BytesCodec(endian="big"), Crc32cCodec()]
    )
    ref = make(tmp_path, (5, 7), (4, 6), dtype, values=values, serializer=sharding, compressors=None)
    stored = open_array(ref, read_only=True)
    assert "index" in stored.reason
    assert stored.codec is None
    assert open_reader(ref).way != "direct"
    assert same_bits(read_by_us(ref), values)
    write_by_us(ref, position_values((5, 7), dtype, seed=1))
    assert same_bits(read_by_zarr(ref), position_values((5, 7), dtype, seed=1))


@pytest.mark.filterwarnings("ignore:Combining a `sharding_indexed` codec")
def test_shards_inside_other_codecs_go_through_zarr(tmp_path: Path) -> None:
    values = position_values((5, 7), "f4")
    sharding = ShardingCodec(chunk_shape=(2, 3), codecs=[BytesCodec()])
    ref = make(tmp_path, (5, 7), (4, 6), "f4", values=values, serializer=sharding, compressors=[GzipCodec(level=1)])
    reader, writer = open_reader(ref), open_writer(ref)
    assert reader.way != "direct"
    assert reader.stored.chunk == writer.stored.write_unit == (4, 6)
    assert same_bits(read_by_us(ref), values)
    write_by_us(ref, position_values((5, 7), "f4", seed=1))
    assert same_bits(read_by_zarr(ref), position_values((5, 7), "f4", seed=1))
