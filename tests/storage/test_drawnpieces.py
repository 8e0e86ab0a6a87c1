"""Shards of raw pieces that are gathered while they are sent: the same bytes as those that are put together first."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from zarr.storage import MemoryStore

from rechunk_exec.copy.buffers import ScratchBuffers
from rechunk_exec.errors import StorageError
from rechunk_exec.storage import Region, drawnpieces, open_reader, open_writer
from rechunk_exec.storage.bodies import Body
from rechunk_exec.storage.drawnpieces import DrawnPieces
from rechunk_exec.storage.shardpieces import ShardPieces
from rechunk_exec.tasks import ArrayRef
from tests.conftest import needed_module
from tests.s3 import Bucket
from tests.storage.arrays import Shape, box_of, boxes, read_by_us, read_by_zarr
from tests.storage.test_pieces import LAYOUTS, between, sparse, written
from tests.values import Array, position_values, same_bits


def shards(ref: ArrayRef, values: Array, unit: Shape) -> list[tuple[ShardPieces, Region]]:
    """Each shard, with the region that is written to it."""
    stored = open_writer(ref).stored
    made = []
    for start, stop in boxes(values.shape, unit):
        region = Region(start, stop, np.ascontiguousarray(box_of(values, start, stop)))
        (number,) = region.units(stored.write_unit)
        made.append((ShardPieces(stored, number), region))
    return made


@pytest.mark.parametrize("block_bytes", [16, 50, 300, 1 << 20])
@pytest.mark.parametrize("dtype", ["f4", ">i2", "u1", "c8"])
@pytest.mark.parametrize("layout", [*LAYOUTS, ((9, 5, 7), (4, 5, 3), (8, 5, 7))])
def test_the_bytes_are_those_of_an_object_in_memory(
    layout: tuple[Shape, Shape, Shape], dtype: str, block_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drawnpieces, "_BLOCK_BYTES", block_bytes)
    store = MemoryStore()
    ref = between(store, layout, dtype)
    values = sparse(layout[0], dtype)
    written(ref, values, layout[2])
    chance = np.random.default_rng(block_bytes)
    for pieces, region in shards(ref, values, layout[2]):
        expected = store._store_dict[pieces.key].to_bytes()
        with DrawnPieces(pieces, region) as drawn:
            assert len(drawn) == len(expected)
            assert Body(drawn).read() == expected
            for place in chance.integers(0, len(expected), 5).tolist():
                begins, block = drawn.block(place)
                assert begins <= place < begins + len(block)
                assert bytes(block) == expected[begins : begins + len(block)]
                assert len(block) <= max(block_bytes, region.elements.itemsize) or begins + len(block) == len(expected)
                assert Body(drawn)[place : place + 40].read() == expected[place : place + 40]


def test_nothing_is_drawn_from_a_region_that_was_left() -> None:
    layout = ((8, 600), (1, 20), (8, 600))
    ref = between(MemoryStore(), layout)
    ((pieces, region),) = shards(ref, position_values(layout[0], "f4"), layout[2])
    with DrawnPieces(pieces, region) as drawn:
        body = Body(drawn)
        body.read(10)
    with pytest.raises(StorageError, match="given up"):
        drawn.block(0)
    with pytest.raises(StorageError, match="given up"):
        Body(drawn).read()


@pytest.mark.parametrize(
    "piece, in_parts",
    [
        pytest.param((2, 20_000), False, id="runs"),
        pytest.param((2, 270_000), False, id="rows"),
        pytest.param((500, 300), True, id="parts of rows, in parts"),
        pytest.param((2, 20_000), True, id="runs, in parts", marks=pytest.mark.long),
        pytest.param((2, 270_000), True, id="rows, in parts"),
        pytest.param((500, 300), False, id="parts of rows", marks=pytest.mark.long),
    ],
)
def test_what_s3_gets(s3: Bucket, piece: Shape, in_parts: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    s3fs: Any = needed_module("s3fs")
    shape = {20_000: (6, 240_000), 270_000: (8, 270_000), 300: (1000, 1800)}[piece[1]]
    ref = between(s3.url("between"), (shape, piece, shape))
    values = position_values(shape, "f4")
    values[: piece[0], : piece[1]] = 3
    sent: list[Any] = []
    pipe = s3fs.S3FileSystem._pipe_file

    async def seen(self: Any, path: str, data: Any, **options: Any) -> None:
        sent.append(data)
        await pipe(self, path, data, **({"chunksize": 5 << 20} if in_parts else {}), **options)

    monkeypatch.setattr(s3fs.S3FileSystem, "_pipe_file", seen)
    writer = open_writer(ref)
    region = Region((0, 0), shape, values)
    with writer.jobs(region) as jobs:
        (result,) = [writer.write(job, region, ScratchBuffers()) for job in jobs]
    assert isinstance(sent[-1], Body)
    (content,) = [content for key, content in s3.contents().items() if "/c/" in key]
    assert (result.objects, result.stored) == (1, len(content))
    assert len(content) < values.nbytes, "a piece of fill value takes no room"
    assert same_bits(read_by_zarr(ref), values)
    assert same_bits(read_by_us(ref), values)
    assert open_reader(ref).stored.chunk == piece
