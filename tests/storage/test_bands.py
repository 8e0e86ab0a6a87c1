"""Bands of chunks: parts of Blosc frames and of raw chunks, against the whole."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import zarr
from numcodecs import blosc
from zarr.codecs import BloscCodec
from zarr.storage import MemoryStore

import rechunk_exec as rx
from rechunk_exec.copy.buffers import ScratchBuffers
from rechunk_exec.grid import Box, Grid
from rechunk_exec.storage import Region, array_ref, finer_read_unit, open_array, open_reader
from rechunk_exec.storage.bands import PIECE_BYTES, BandReader, _Chunk
from rechunk_exec.storage.bloscframe import BloscFrame
from rechunk_exec.storage.chunkcodec import BloscBytes
from rechunk_exec.tasks import ArrayRef
from tests.jobs import assert_kept_promises
from tests.values import position_values, same_bits

COMPRESSORS: dict[str, Any] = {
    "raw": None,
    "zstd": BloscCodec(cname="zstd", clevel=3, shuffle="bitshuffle", typesize=4, blocksize=4096),
    "lz4": BloscCodec(cname="lz4", clevel=1, shuffle="shuffle", typesize=4, blocksize=4096),  # it makes them 64 kB
}


def made(store: Any, shape: tuple[int, ...], **arguments: Any) -> tuple[ArrayRef, Any]:
    array = zarr.create_array(store, shape=shape, dtype="f4", fill_value=3, **arguments)
    return array_ref(array.store_path), array


def region_of(start: tuple[int, ...], stop: tuple[int, ...]) -> Region:
    return Region(start, stop, np.empty([b - a for a, b in zip(start, stop, strict=True)], "f4"))


@pytest.mark.parametrize("compressors", COMPRESSORS.values(), ids=COMPRESSORS)
@pytest.mark.parametrize("shards", [None, (4, 300, 130)])
@pytest.mark.parametrize("chunk", [(1, 300, 130), (2, 300, 130), (1, 100, 130)])
@pytest.mark.parametrize(
    "shape,store",
    [
        pytest.param((5, 300, 130), "local", marks=pytest.mark.long),  # nothing is cut off at an edge
        pytest.param((5, 300, 130), "memory", marks=pytest.mark.long),
        ((5, 290, 130), "local"),
        pytest.param((5, 290, 130), "memory", marks=pytest.mark.long),
        pytest.param((3, 300, 101), "local", marks=pytest.mark.long),
        ((3, 300, 101), "memory"),
    ],
)
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
        moved = [reader.read(unit, region, ScratchBuffers()) for unit in reader.units(region)]
        inside = tuple(slice(a, b) for a, b in zip(start, stop, strict=True))
        assert same_bits(region.elements, values[inside])
        touched = Grid(shape, unit).touching(Box(tuple(start), tuple(stop)))
        decoded, planned = sum(one.decoded for one in moved), sum(piece.box.size for piece in touched) * 4
        assert decoded > planned if any(one.unexpected for one in moved) else decoded >= planned
        assert decoded == planned + sum(one.beyond_plan for one in moved)
        assert all(one.beyond_plan > 0 for one in moved if one.unexpected)


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
    assert [one.decoded for one in moved] == [256 * 256 * 4, 32 * 256 * 4]


def test_bands_do_not_straddle_chunks(tmp_path: Path) -> None:
    source = zarr.create_array(
        tmp_path / "source.zarr", shape=(2, 3 * 250, 64), chunks=(1, 250, 64), dtype="f4",
        compressors=COMPRESSORS["zstd"],
    )  # fmt: skip
    source[:] = position_values((2, 750, 64), "f4")
    unit = finer_read_unit(open_array(ArrayRef(store=str(tmp_path / "source.zarr")), read_only=True))
    assert unit == (1, 25, 64)  # a block holds 16 rows; 25 is the next that divides 250


class Decoded:
    """Counts what Blosc decodes, and on how many threads at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.nbytes = self.now = self.most = 0
        self._lock = threading.Lock()
        decode = BloscBytes.decode

        def counted(codec: BloscBytes, content: Any, out: Any | None = None) -> Any:
            with self._lock:
                self.nbytes += len(out)  # type: ignore[arg-type]
                self.now += 1
                self.most = max(self.most, self.now)
            time.sleep(0.002)
            try:
                return decode(codec, content, out)
            finally:
                with self._lock:
                    self.now -= 1

        monkeypatch.setattr(BloscBytes, "decode", counted)


def smooth(shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Values that compress, of which no two rows are alike."""
    return np.cumsum(np.random.default_rng(1).integers(0, 3, shape), axis=-1).astype("f4")


@pytest.mark.parametrize("length, n", [(499, 998), (499, 1000), (1018, 1100), (1733, 1800)])
@pytest.mark.parametrize("kind", ["raw", "zstd"])
def test_chunks_of_any_length_are_read_in_bands(
    length: int, n: int, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = smooth((8, n, 256))
    path = tmp_path / "source.zarr"
    array = zarr.create_array(path, data=values, chunks=(1, length, 256), compressors=COMPRESSORS[kind])
    unit = finer_read_unit(open_array(array_ref(path), read_only=True))
    # A block holds 4 rows. Of uncompressed rows any number is read exactly, and 64 are worth a request.
    assert unit == ((1, 4, 256) if kind == "zstd" else (1, 1 if length % 2 else 2, 256))
    decoded = Decoded(monkeypatch)
    job = rx.rechunk(
        array, (8, 50, 128), "4MB", tmp_path / "target.zarr", max_temp_bytes=0, executor="serial", progress=False
    )
    (stage,) = job.plan.stages
    assert stage.read_unit == unit
    assert stage.region[1] < length
    assert stage.traffic < 2.1
    assert same_bits(np.asarray(job.execute()[:]), values)
    assert_kept_promises(job)
    assert job.report is not None
    assert decoded.nbytes <= stage.elements_read * 4
    assert not job.report.warnings
    assert rx.Plan.from_json(job.plan.to_json()) == job.plan


def test_whole_rows_are_fetched_in_larger_pieces_within_the_same_memory(tmp_path: Path) -> None:
    values = np.random.default_rng(5).integers(0, 1 << 24, (2, 1200, 1024), "u4")  # a quarter of it compresses
    compressor = BloscCodec(cname="zstd", clevel=3, shuffle="bitshuffle", typesize=4, blocksize=1 << 16)
    path = tmp_path / "source.zarr"
    zarr.create_array(path, data=values, chunks=(1, 1200, 1024), compressors=compressor)
    reader = open_reader(array_ref(path), (1, 16, 1024))
    assert isinstance(reader, BandReader)

    class Sized:
        """Scratch memory that knows the most it was asked for."""

        def __init__(self) -> None:
            self.most: dict[str, int] = {"stored": 0, "decoded": 0}

        def stored(self, size: int) -> memoryview:
            self.most["stored"] = max(self.most["stored"], size)
            return memoryview(bytearray(size))

        def decoded(self, size: int) -> memoryview:
            self.most["decoded"] = max(self.most["decoded"], size)
            return memoryview(bytearray(size))

    def read(columns: int) -> tuple[int, Sized]:
        """Read the second epoch's rows 8 to 1000; return the requests for blocks, and the memory used."""
        region = Region((1, 8, 0), (2, 1000, columns), np.empty((1, 992, columns), "u4"))
        memory, fetched = Sized(), []
        fetch = reader._fetch_range

        def seen(place: Any, offset: int, buffer: memoryview) -> None:
            fetched.append(len(buffer))
            fetch(place, offset, buffer)

        with mock.patch.object(reader, "_fetch_range", seen):
            reader.read((1, 0, 0), region, memory)
        assert same_bits(region.elements, values[1:, 8:1000, :columns])
        return len(fetched), memory

    straight, memory = read(1024)
    waiting, other = read(1000)
    assert straight <= waiting / 2 + 1
    assert PIECE_BYTES < memory.most["stored"] <= 2 * PIECE_BYTES
    assert other.most["stored"] <= PIECE_BYTES + (2 << 16)


def test_bands_of_any_length_are_read_as_they_are_and_counted_from_each_chunk(tmp_path: Path) -> None:
    draws = np.random.default_rng(11)
    for number in range(12):
        length, n = int(draws.integers(40, 300)), int(draws.integers(300, 700))
        values = position_values((2, n, 64), "f4")
        ref, array = made(
            tmp_path / f"{number}.zarr", values.shape, chunks=(1, length, 64), compressors=COMPRESSORS["zstd"]
        )
        array[:] = values
        unit = finer_read_unit(open_array(ref, read_only=True))
        assert unit is not None
        assert 16 <= unit[1] <= 32, "a block holds 16 rows, and a divisor up to twice that is taken"
        reader = open_reader(ref, unit)
        bands = np.arange(n) // length * 1000 + np.arange(n) % length // unit[1]
        for _ in range(6):
            start, stop = sorted(draws.choice(n + 1, 2, replace=False).tolist())
            region = region_of((0, start, 0), (2, stop, 64))
            moved = [reader.read(chunk, region, ScratchBuffers()) for chunk in reader.units(region)]
            assert same_bits(region.elements, values[:, start:stop])
            chunks = np.unique(np.arange(start, stop) // length)
            touched = np.isin(bands, bands[start:stop]) & np.isin(np.arange(n) // length, chunks)
            assert sum(one.decoded - one.beyond_plan for one in moved) == 2 * touched.sum() * 64 * 4


def test_chunks_with_several_indices_before_the_rows_keep_bands_that_divide_them(tmp_path: Path) -> None:
    ref, array = made(tmp_path / "a.zarr", (4, 1018, 256), chunks=(2, 509, 256), compressors=COMPRESSORS["lz4"])
    array[:] = 1
    assert finer_read_unit(open_array(ref, read_only=True)) is None


def test_a_frame_of_bytes_that_do_not_compress_is_met_as_such(tmp_path: Path) -> None:
    noise = np.random.default_rng(3).integers(0, 2**32, (2, 256, 256), "u4").view("f4")
    values = np.stack([noise[0], smooth((256, 256))])
    ref, array = made(tmp_path / "source.zarr", values.shape, chunks=(1, 256, 256), compressors=COMPRESSORS["zstd"])
    array[:] = values
    reader = open_reader(ref, (1, 16, 256))
    assert isinstance(reader, BandReader)
    frames = [reader._frame(place) for place in map(reader.locate, [(0, 0, 0), (1, 0, 0)]) if place is not None]
    assert [isinstance(frame, BloscFrame) and frame.table is None for frame in frames] == [True, False]
    region = region_of((0, 17, 3), (2, 49, 256))
    moved = [reader.read(unit, region, ScratchBuffers()) for unit in reader.units(region)]
    assert same_bits(region.elements, values[:, 17:49, 3:])
    assert [one.unexpected for one in moved] == [0, 0]
    assert moved[0].stored == 32 * 256 * 4, "just these rows"


EPOCHS = 24
SAMPLED = {EPOCHS * (2 * sample + 1) // 16 for sample in range(8)}


def stack(path: Path, blocks: dict[int, int]) -> tuple[Any, np.ndarray[Any, Any]]:
    """A stack of epochs in blocks of 16 kB, those of some epochs of another size."""
    values = smooth((EPOCHS, 512, 256))
    compressor = BloscCodec(cname="zstd", clevel=1, shuffle="shuffle", typesize=4, blocksize=16384)
    array = zarr.create_array(path, data=values, chunks=(1, 512, 256), compressors=compressor)
    for epoch, block in blocks.items():
        (path / f"c/{epoch}/0/0").write_bytes(blosc.compress(values[epoch].tobytes(), b"zstd", 1, 1, block, 4))
    return array, values


def transposed(array: Any, target: Path) -> tuple[rx.Rechunked, rx.StagePlan]:
    """A job of one stage that reads epochs in bands."""
    chunk = (EPOCHS, 32, 256)
    job = rx.rechunk(array, chunk, "6MB", target, max_temp_bytes=0, executor="serial", progress=False)
    (stage,) = job.plan.stages
    return job, stage


def test_blocks_larger_than_planned_are_counted_and_smaller_ones_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    not_sampled = [epoch for epoch in range(EPOCHS) if epoch not in SAMPLED]
    large, small = not_sampled[:4], not_sampled[4:8]
    array, values = stack(tmp_path / "a.zarr", dict.fromkeys(large, 1 << 17) | dict.fromkeys(small, 1 << 12))
    job, stage = transposed(array, tmp_path / "b.zarr")
    assert stage.read_unit == (1, 16, 256)
    decoded = Decoded(monkeypatch)
    assert same_bits(np.asarray(job.execute()[:]), values)
    report = job.report
    assert report is not None
    assert report.bytes_read == decoded.nbytes > stage.elements_read * 4
    (warning,) = report.warnings
    unexpected = sum(result.unexpected_chunks for result in report.results)
    assert unexpected == len(large) * stage.tasks
    assert f"{unexpected} times more of a chunk had to be decoded than planned" in warning


def test_sampled_blocks_of_any_size_are_planned_for(tmp_path: Path) -> None:
    array, values = stack(tmp_path / "a.zarr", {min(SAMPLED): 1 << 16, max(SAMPLED): 1 << 12})
    job, stage = transposed(array, tmp_path / "b.zarr")
    assert stage.read_unit == (1, 64, 256), "the largest one"
    assert same_bits(np.asarray(job.execute()[:]), values)
    assert job.report is not None
    assert not job.report.warnings


def test_large_blocks_are_decoded_on_one_thread_at_a_time_beside_the_scratch_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    array, values = stack(tmp_path / "a.zarr", dict.fromkeys(range(4), 1 << 17))
    reader = open_reader(array_ref(array.store_path), (1, 16, 256))
    decoded = Decoded(monkeypatch)
    region, scratches = region_of((0, 40, 0), (4, 60, 256)), [ScratchBuffers() for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        moved = list(pool.map(reader.read, reader.units(region), [region] * 4, scratches))
    assert same_bits(region.elements, values[:4, 40:60])
    assert decoded.most == 1
    assert [(one.decoded, one.unexpected) for one in moved] == [(1 << 17, 1)] * 4
    assert [(len(scratch.stored(0)), len(scratch.decoded(0))) for scratch in scratches] == [(0, 0)] * 4


def test_a_frame_that_cannot_be_cut_is_decoded_whole_and_named(tmp_path: Path) -> None:
    array, values = stack(tmp_path / "a.zarr", {})
    values[2] = 0
    frame = bytearray(blosc.compress(values[2].tobytes(), b"zstd", 1, 1, 16384, 4))
    frame[20:24] = frame[16:20]  # two blocks at one place: no decoder minds
    (tmp_path / "a.zarr/c/2/0/0").write_bytes(frame)
    assert 2 not in SAMPLED
    job, stage = transposed(array, tmp_path / "b.zarr")
    assert same_bits(np.asarray(job.execute()[:]), values)
    report = job.report
    assert report is not None
    assert sum(result.unexpected_chunks for result in report.results) == stage.tasks
    more = stage.tasks * values[0].nbytes - values[0].nbytes
    assert report.bytes_read == stage.elements_read * 4 + more
    assert any("more of a chunk had to be decoded than planned" in warning for warning in report.warnings)
