"""Bands of chunks: parts of Blosc frames and of raw chunks, against the whole."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from numcodecs import blosc
from zarr.codecs import BloscCodec
from zarr.storage import MemoryStore

import rechunk_exec as rx
from rechunk_exec.copy.buffers import ScratchBuffers
from rechunk_exec.grid import Box, Grid
from rechunk_exec.storage import Region, array_ref, finer_read_unit, open_array, open_reader
from rechunk_exec.storage.bands import BandReader, _Chunk
from rechunk_exec.storage.bloscframe import BloscFrame, PartReading, decode_span, frame_head, open_frame
from rechunk_exec.storage.chunkcodec import BloscBytes
from rechunk_exec.tasks import ArrayRef
from tests.values import position_values, same_bits


def scratch(size: int) -> memoryview:
    return memoryview(bytearray(size))


def opened(frame: bytes, nbytes: int) -> BloscFrame:
    sizes = frame_head(frame[:16], nbytes)
    assert sizes is not None
    found = open_frame(frame[: sizes[1]], nbytes)
    assert found is not None
    return found


def reading(frame: bytes, codec: BloscBytes, piece_bytes: int) -> PartReading:
    def fetch(offset: int, buffer: memoryview) -> None:
        buffer[:] = frame[offset : offset + len(buffer)]

    return PartReading(fetch=fetch, decode=codec.decode, stored=scratch, decoded=scratch, piece_bytes=piece_bytes)


def content_of(kind: str, nbytes: int) -> bytes:
    source = np.random.default_rng(nbytes)
    if kind == "random":
        return source.bytes(nbytes)
    return np.cumsum(source.integers(0, 3, nbytes // 4 + 1)).astype("u4").tobytes()[:nbytes]


@pytest.mark.parametrize("cname", blosc.list_compressors())
@pytest.mark.parametrize("kind", ["smooth", "random"])
def test_any_span_of_a_frame_is_that_span_of_its_content(cname: str, kind: str) -> None:
    lengths = np.random.default_rng(7)
    for shuffle, typesize, blocksize in itertools.product((0, 1, 2), (1, 2, 4, 7, 8, 16), (0, 4096)):
        most = 312_345 if blocksize == 0 else 62_345  # blocks that Blosc chooses are large; several, the last is short
        nbytes = most // typesize * typesize
        content = content_of(kind, nbytes)
        codec = BloscBytes(cname, 5, shuffle, blocksize, typesize)
        frame = bytes(codec.encode(content))
        found = opened(frame, nbytes)
        for piece_bytes in (1, 20_000, 10**9):
            low, high = sorted(int(number) for number in lengths.integers(0, nbytes + 1, 2))
            for span in ((low, high), (0, nbytes), (nbytes - 1, nbytes)):
                out = bytearray(span[1] - span[0])
                decode_span(found, span, memoryview(out), reading(frame, codec, piece_bytes))
                assert bytes(out) == content[span[0] : span[1]], (shuffle, typesize, blocksize, piece_bytes, span)


def test_blocks_may_lie_in_any_order() -> None:
    content = content_of("smooth", 200_000)
    codec = BloscBytes("zstd", 3, 2, 16384, 4)
    frame = bytes(codec.encode(content))
    found = opened(frame, len(content))
    assert found.starts is not None
    assert found.ends is not None
    order = np.random.default_rng(0).permutation(found.blocks)
    table, blocks, place = np.empty(found.blocks, "<i4"), [], 16 + 4 * found.blocks
    for number in order:
        block = frame[found.starts[number] : found.ends[number]]
        table[number], place = place, place + len(block)
        blocks.append(block)
    shuffled = frame[:16] + table.tobytes() + b"".join(blocks)
    out = bytearray(150_000)
    decode_span(opened(shuffled, len(content)), (30_001, 180_001), memoryview(out), reading(shuffled, codec, 50_000))
    assert bytes(out) == content[30_001:180_001]


@given(st.binary(max_size=40), st.integers(0, 10**6))
def test_a_head_that_is_no_frame_is_none_and_no_error(head: bytes, nbytes: int) -> None:
    if head[:1] not in (b"\x01", b"\x02"):
        assert open_frame(head, nbytes) is None
    else:
        open_frame(head, nbytes)


COMPRESSORS: dict[str, Any] = {
    "raw": None,
    "zstd": BloscCodec(cname="zstd", clevel=3, shuffle="bitshuffle", typesize=4, blocksize=4096),
    "lz4": BloscCodec(cname="lz4", clevel=1, shuffle="shuffle", typesize=4, blocksize=4096),
}


def made(store: Any, shape: tuple[int, ...], **arguments: Any) -> tuple[ArrayRef, Any]:
    array = zarr.create_array(store, shape=shape, dtype="f4", fill_value=3, **arguments)
    return array_ref(array.store_path), array


def region_of(start: tuple[int, ...], stop: tuple[int, ...]) -> Region:
    return Region(start, stop, np.empty([b - a for a, b in zip(start, stop, strict=True)], "f4"))


@pytest.mark.parametrize("compressors", COMPRESSORS.values(), ids=COMPRESSORS)
@pytest.mark.parametrize("store", ["local", "memory"])
@pytest.mark.parametrize("shards", [None, (4, 300, 130)])
@pytest.mark.parametrize("chunk", [(1, 300, 130), (2, 300, 130), (1, 100, 130)])
@pytest.mark.parametrize("shape", [(5, 300, 130), (5, 290, 130), (3, 300, 101)])
def test_any_region_is_read_in_bands_as_it_is(
    compressors: Any,
    store: str,
    shards: tuple[int, ...] | None,
    chunk: tuple[int, ...],
    shape: tuple[int, ...],
    tmp_path: Path,
) -> None:
    values = position_values(shape, "f4")
    values[1, 100:200] = 3  # absent, where chunks are small enough
    ref, array = made(
        MemoryStore() if store == "memory" else tmp_path / "source.zarr",
        shape,
        chunks=chunk,
        shards=shards,
        compressors=compressors,
    )
    array[:] = values
    unit = (1, 10, min(chunk[2], shape[2]))
    reader = open_reader(ref, unit)
    assert isinstance(reader, BandReader)
    boxes = np.random.default_rng(5)
    for _ in range(12):
        start, stop = np.sort(boxes.integers(0, np.add(shape, 1), (2, 3)), axis=0).tolist()
        if any(a == b for a, b in zip(start, stop, strict=True)):
            continue
        region = region_of(tuple(start), tuple(stop))
        decoded = sum(reader.read(unit, region, ScratchBuffers()).decoded for unit in reader.units(region))
        inside = tuple(slice(a, b) for a, b in zip(start, stop, strict=True))
        assert same_bits(region.elements, values[inside])
        touched = Grid(shape, unit).touching(Box(tuple(start), tuple(stop)))
        assert decoded == sum(piece.box.size for piece in touched) * 4


def test_the_plan_takes_bands_where_a_region_cannot_hold_whole_chunks(tmp_path: Path) -> None:
    values = position_values((16, 1024, 512), "f4")
    source = zarr.create_array(
        tmp_path / "source.zarr", data=values, chunks=(1, 1024, 512), compressors=BloscCodec(cname="lz4", clevel=1)
    )
    job = rx.rechunk(source, (16, 64, 64), "20MB", tmp_path / "target.zarr", executor="serial", progress=False)
    (stage,) = job.plan.stages
    assert stage.read_unit[1] < 1024
    assert stage.read_amplification < 1.1
    assert same_bits(np.asarray(job.execute()[:]), values)
    assert job.report is not None
    assert job.report.bytes_read == stage.elements_read * 4
    assert not job.report.warnings


def test_a_chunk_that_is_no_frame_as_planned_is_decoded_whole_and_counted(tmp_path: Path) -> None:
    values = position_values((2, 256, 256), "f4")
    ref, array = made(tmp_path / "source.zarr", values.shape, chunks=(1, 256, 256), compressors=COMPRESSORS["zstd"])
    array[:] = values
    reader = open_reader(ref, (1, 16, 256))
    assert isinstance(reader, BandReader)
    found = reader._frame
    reader._frame = lambda place: found(place) if "/1/" in place.key else _Chunk.UNEXPECTED  # type: ignore[assignment]
    region = region_of((0, 16, 0), (2, 48, 256))
    moved = [reader.read(unit, region, ScratchBuffers()) for unit in reader.units(region)]
    assert same_bits(region.elements, values[:, 16:48])
    assert [one.unexpected for one in moved] == [1, 0]


def test_bands_do_not_straddle_chunks(tmp_path: Path) -> None:
    source = zarr.create_array(
        tmp_path / "source.zarr", shape=(2, 3 * 250, 64), chunks=(1, 250, 64), dtype="f4",
        compressors=COMPRESSORS["zstd"],
    )  # fmt: skip
    source[:] = position_values((2, 750, 64), "f4")
    unit = finer_read_unit(open_array(ArrayRef(store=str(tmp_path / "source.zarr")), read_only=True))
    assert unit == (1, 25, 64)  # a block holds 16 rows; 25 is the next that divides 250
