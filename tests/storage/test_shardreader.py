"""How many requests it takes to read out of shards, and of chunks in bands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from zarr.abc.store import ByteRequest, RangeByteRequest, Store, SuffixByteRequest
from zarr.codecs import BloscCodec, BytesCodec, ShardingCodec, ZstdCodec
from zarr.core.buffer import Buffer, BufferPrototype, default_buffer_prototype
from zarr.storage import MemoryStore, WrapperStore

from rechunk_exec.copy.buffers import ScratchBuffers
from rechunk_exec.errors import StorageError
from rechunk_exec.storage import (
    ArrayRef,
    Region,
    RetryPolicy,
    UnitReader,
    finer_read_unit,
    open_array,
    open_reader,
    retry_policy,
)
from rechunk_exec.storage.direct import DirectReader
from rechunk_exec.storage.shardreader import ShardReader
from tests.storage.arrays import Shape, box_of, make
from tests.values import Array, position_values, same_bits


class Asked(WrapperStore[Store]):
    """A store that remembers which parts of chunks it was asked for."""

    _supports_sync_io = False

    def __init__(self, store: Store, ranges: list[ByteRequest | None] | None = None) -> None:
        super().__init__(store)
        self.ranges = [] if ranges is None else ranges

    def with_read_only(self, read_only: bool = False) -> Asked:
        return Asked(self._store.with_read_only(read_only), self.ranges)

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        if key.startswith("c/"):
            self.ranges.append(byte_range)
        return await super().get(key, prototype, byte_range)

    def take(self) -> list[ByteRequest | None]:
        """What was asked since it was last asked for."""
        ranges = self.ranges.copy()
        self.ranges.clear()
        return ranges


SHAPE = (4, 128, 128)
SHARDED = {"chunks": (1, 16, 16), "shards": (4, 128, 128)}
SPARE = 64 << 20


def asked_store(values: Array, **options: Any) -> tuple[ArrayRef, Asked]:
    memory = MemoryStore()
    make(memory, values.shape, options.pop("chunks"), values.dtype, values=values, **options)
    store = Asked(memory)
    return ArrayRef(store=store), store


def read(reader: UnitReader, start: Shape, stop: Shape, spare_bytes: int) -> tuple[Array, int]:
    """The elements of a box, and how many stored bytes came."""
    size = [b - a for a, b in zip(start, stop, strict=True)]
    region = Region(start, stop, np.full(size, 99, reader.stored.dtype), spare_bytes)
    fetched = sum(reader.read_named(unit, region, ScratchBuffers()).stored for unit in reader.units(region))
    return region.elements, fetched


CODECS = {"raw": None, "zstd": [ZstdCodec(level=1)], "blosc": [BloscCodec(cname="lz4")]}


@pytest.mark.parametrize("codec", CODECS)
def test_neighbours_in_a_shard_come_in_few_requests(codec: str) -> None:
    values = position_values(SHAPE, "f4")
    ref, store = asked_store(values, **SHARDED, compressors=CODECS[codec])
    reader = open_reader(ref)
    assert isinstance(reader, ShardReader)
    store.take()
    counts = {}
    for spare_bytes in (0, SPARE):
        for start, stop in (((0, 0, 0), SHAPE), ((1, 30, 0), (3, 90, 128))):
            elements, _ = read(reader, start, stop, spare_bytes)
            assert same_bits(elements, box_of(values, start, stop))
            counts[spare_bytes, start] = len([one for one in store.take() if isinstance(one, RangeByteRequest)])
    # One by one without memory to spare; else a region in eight parts, which may begin and end within a shard's row.
    assert counts[0, (0, 0, 0)] == 4 * 8 * 8
    assert counts[0, (1, 30, 0)] == 2 * 5 * 8
    assert counts[SPARE, (0, 0, 0)] == 8
    assert counts[SPARE, (1, 30, 0)] <= 12


def test_the_index_of_a_shard_is_fetched_once() -> None:
    values = position_values((8, 64, 64), "f4")
    ref, store = asked_store(values, chunks=(1, 16, 16), shards=(1, 64, 64))
    reader = open_reader(ref)
    store.take()
    for corner in range(0, 64, 16):  # tasks that each touch all shards
        read(reader, (0, corner, 0), (8, corner + 16, 64), SPARE)
    assert len([one for one in store.take() if isinstance(one, SuffixByteRequest)]) == 8


def test_the_bytes_that_come_are_little_more_than_those_wanted() -> None:
    values = position_values(SHAPE, "f4")
    ref, _ = asked_store(values, chunks=(1, 16, 128), shards=(4, 128, 128), compressors=None)
    elements, fetched = read(open_reader(ref), (0, 0, 0), (4, 16, 128), SPARE)  # a hundredth in four places
    assert same_bits(elements, values[:, :16])
    assert fetched < 3.2 * SHAPE[1] * SHAPE[2] * 4  # gaps of 57 kB cost less than three more requests
    large = position_values((4, 1024, 256), "f4")
    ref, _ = asked_store(large, chunks=(1, 16, 256), shards=(4, 1024, 256), compressors=None)
    elements, fetched = read(open_reader(ref), (0, 0, 0), (4, 16, 256), SPARE)
    assert same_bits(elements, large[:, :16])
    assert fetched == elements.nbytes  # gaps of a megabyte cost more


def test_what_is_held_at_once_stays_within_what_there_is_to_spare(monkeypatch: pytest.MonkeyPatch) -> None:
    values = position_values(SHAPE, "f4")
    ref, store = asked_store(values, **SHARDED, compressors=None)
    reader = open_reader(ref)
    store.take()
    for spare_bytes in (1000, 3000, 10_000, 50_000):
        elements, _ = read(reader, (0, 0, 0), SHAPE, spare_bytes)
        assert same_bits(elements, values)
        ranges = [one for one in store.take() if isinstance(one, RangeByteRequest)]
        assert all(one.end - one.start <= max(1024, spare_bytes) for one in ranges)
        assert len(ranges) >= values.nbytes // max(1024, spare_bytes)


@pytest.mark.parametrize("codec", CODECS)
def test_shards_and_chunks_that_are_not_there_are_fill_value(codec: str, tmp_path: Path) -> None:
    values = position_values((4, 64, 64), "f4")
    values[:2] = 0
    values[2, :32, :32] = 0
    for place in (MemoryStore(), tmp_path / "a"):
        ref = make(place, values.shape, (1, 16, 16), "f4", shards=(2, 64, 64), values=values, compressors=CODECS[codec])
        reader = open_reader(ref)
        for spare_bytes in (0, SPARE):
            assert same_bits(read(reader, (0, 0, 0), (4, 64, 64), spare_bytes)[0], values)


def test_a_source_that_lost_its_metadata_is_seen_where_a_whole_group_is_absent() -> None:
    memory = MemoryStore()
    ref = make(memory, (2, 64, 64), (1, 16, 16), "f4", shards=(2, 64, 64))
    reader = open_reader(ref)
    region = Region((0, 0, 0), (2, 64, 64), np.empty((2, 64, 64), "f4"), SPARE)
    assert not any(reader.read(unit, region, ScratchBuffers()).stored for unit in reader.units(region))


ABSENT = 2**64 - 1


@pytest.mark.parametrize("place", ["memory", "disk"])
@pytest.mark.parametrize(
    "entry", [(0, 2**40), (2**63, 1024), (2**64 - 2, 1024), (0, ABSENT), (ABSENT, 1024), (0, 1023), (0, 1025), (0, 0)]
)
def test_a_damaged_entry_of_an_index_is_an_error_among_others_too(
    place: str, entry: tuple[int, int], tmp_path: Path
) -> None:
    index = ShardingCodec(chunk_shape=(1, 16, 16), codecs=[BytesCodec()], index_codecs=[BytesCodec()])
    ref = make(tmp_path, SHAPE, SHAPE, "f4", values=position_values(SHAPE, "f4"), serializer=index, compressors=None)
    path = tmp_path / "c/0/0/0"
    content = bytearray(path.read_bytes())
    at = len(content) - 16 * 100
    content[at : at + 16] = np.array(entry, "<u8").tobytes()
    path.write_bytes(content)
    if place == "memory":
        memory = MemoryStore()
        for name in ("zarr.json", "c/0/0/0"):
            held = default_buffer_prototype().buffer.from_bytes((tmp_path / name).read_bytes())
            memory._store_dict[name] = held
        ref = ArrayRef(store=memory)
    for spare_bytes in (0, SPARE):
        with retry_policy(RetryPolicy(tries=2, first_wait_s=0.001)), pytest.raises(StorageError):
            read(open_reader(ref), (0, 0, 0), SHAPE, spare_bytes)


@pytest.mark.parametrize("shuffled", [False, True])
def test_a_band_that_cuts_blocks_is_one_request(shuffled: bool) -> None:
    values = (np.arange(2 * 256 * 512, dtype="i4") // 5).reshape(2, 256, 512)
    codec = BloscCodec(cname="zstd", clevel=1, blocksize=1 << 14, typesize=4)
    memory = MemoryStore()
    make(memory, values.shape, (1, 256, 512), "i4", values=values, compressors=codec)
    if shuffled:
        for key in ("c/0/0/0", "c/1/0/0"):
            memory._store_dict[key] = type(memory._store_dict[key]).from_bytes(
                in_another_order(memory._store_dict[key].to_bytes())
            )
    store = Asked(memory)
    ref = ArrayRef(store=store)
    unit = finer_read_unit(open_array(ref, read_only=True))
    assert unit is not None
    reader = open_reader(ref, unit)
    store.take()
    rows = 64 + 3, 128 + 3  # bands begin and end within blocks
    for _ in range(2):
        elements, _ = read(reader, (0, rows[0], 0), (2, rows[1], 512), 0)
        assert same_bits(elements, values[:, rows[0] : rows[1]])
    # Heads: of the first chunk in two requests, of the second in one. Then one a chunk and band.
    assert len(store.take()) == 3 + 2 * 2


def in_another_order(frame: bytes) -> bytes:
    """A Blosc frame whose blocks lie in another order, near where they were, as compressors with threads leave them."""
    starts = np.frombuffer(frame, "<i4", int(np.frombuffer(frame, "<u4", 1, 16)[0] - 16) // 4, 16)
    ends = [*starts[1:].tolist(), len(frame)]
    order = [number ^ 1 for number in range(len(starts))]
    table, place = np.empty(len(starts), "<i4"), 16 + 4 * len(starts)
    blocks = []
    for number in order:
        table[number] = place
        blocks.append(frame[starts[number] : ends[number]])
        place += len(blocks[-1])
    return frame[:16] + table.tobytes() + b"".join(blocks)


def test_arrays_without_shards_are_read_chunk_by_chunk() -> None:
    ref, store = asked_store(position_values(SHAPE, "f4"), chunks=(1, 64, 64))
    reader = open_reader(ref)
    assert type(reader) is DirectReader
    store.take()
    read(reader, (0, 0, 0), SHAPE, SPARE)
    assert len(store.take()) == 4 * 2 * 2
