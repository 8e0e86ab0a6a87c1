from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr
from zarr.codecs import BytesCodec, GzipCodec, ShardingCodec, ZstdCodec
from zarr.storage import MemoryStore

import rechunk_exec as rx
from rechunk_exec.errors import StorageError
from rechunk_exec.storage import array_ref, members_of, open_array, read_scratch, write_scratch
from rechunk_exec.storage.chunkcodec import direct_codec
from rechunk_exec.storage.consolidated import conceal
from rechunk_exec.tasks import ArrayRef
from tests.storage.arrays import make
from tests.storage.codecs import V3_COMPRESSORS


def test_what_an_array_is() -> None:
    ref = make(MemoryStore(), (5, 7), (2, 3), ">f4", shards=(4, 6), serializer=BytesCodec(endian="big"), fill_value=1.5)
    stored = open_array(ref, read_only=True)
    assert (stored.shape, stored.chunk, stored.shard, stored.write_unit) == ((5, 7), (2, 3), (4, 6), (4, 6))
    assert stored.dtype == np.dtype(">f4")
    assert stored.absent == 1.5
    assert stored.fill == np.array(1.5, ">f4").tobytes()
    assert stored.chunk_bytes == 24
    assert stored.reason == ""
    assert stored.fixed_size
    plain = open_array(make(MemoryStore(), (5, 7), (20, 3), "f4"), read_only=True)
    assert plain.write_unit == plain.chunk == (20, 3), "as it is stored, not clipped"


@pytest.mark.parametrize(
    "options,reason",
    [
        ({"zarr_format": 2, "filters": [numcodecs.Delta("i4")]}, "filters"),
        ({"zarr_format": 2, "compressors": numcodecs.CRC32()}, "compressor 'crc32'"),
        ({"dtype": np.dtypes.StringDType()}, "no fixed size"),
        ({"serializer": ShardingCodec(chunk_shape=(1, 3)), "shards": (4, 6), "compressors": None}, "sharding_indexed"),
        (
            {"serializer": ShardingCodec(chunk_shape=(1, 3)), "compressors": [GzipCodec()]},
            "sharding_indexed",
        ),
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:Combining a `sharding_indexed` codec")
def test_why_zarr_has_to_decode(options: dict[str, Any], reason: str) -> None:
    stored = open_array(make(MemoryStore(), (5, 7), (2, 3), **{"dtype": "i4", **options}), read_only=True)
    assert reason in stored.reason
    assert reason in str(direct_codec(stored.metadata))
    assert stored.codec is None
    assert stored.index is None


@pytest.mark.parametrize("shape, chunk", [((2**40, 2**40), (1, 1)), ((0, 2**70), (1, 2**69)), ((2**61,), (3,))])
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_an_array_that_no_store_holds_is_refused(
    zarr_format: Any, shape: tuple[int, ...], chunk: tuple[int, ...]
) -> None:
    store = MemoryStore()
    zarr.create_array(store, shape=shape, chunks=chunk, dtype="i4", zarr_format=zarr_format)
    with pytest.raises(StorageError, match=r"an array has less than 2\*\*63 bytes"):
        open_array(array_ref(store), read_only=True)


def with_chunk_of_zero(place: Path, shape: tuple[int, ...], zarr_format: Any) -> ArrayRef:
    ref = make(place, shape, (2, 3), "i4", zarr_format=zarr_format)
    document = place / ("zarr.json" if zarr_format == 3 else ".zarray")
    document.write_text(re.sub(r'("chunks": \[\s*|"chunk_shape": \[\s*)2', r"\g<1>0", document.read_text()))
    return ref


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_chunks_without_elements_of_an_axis_that_has_some_are_refused(zarr_format: Any, tmp_path: Path) -> None:
    # It was a ZeroDivisionError, or an error over the first chunk.
    ref = with_chunk_of_zero(tmp_path / "a", (4, 6), zarr_format)
    for attempt in (
        lambda: open_array(ref, read_only=True),
        lambda: rx.rechunk(tmp_path / "a", (4, 1), "1MB", tmp_path / "t"),
        lambda: rx.verify(tmp_path / "a", tmp_path / "a"),
    ):
        with pytest.raises(StorageError, match=r"a chunk must hold elements; .*a has \(4, 6\) .* chunks of \(0, 3\)"):
            attempt()


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_chunks_without_elements_of_an_axis_without_any_are_those_of_an_empty_array(
    zarr_format: Any, tmp_path: Path
) -> None:
    with_chunk_of_zero(tmp_path / "a", (0, 6), zarr_format)
    for chunks in ((1, 2), {1: 2}, None):
        job = rx.rechunk(tmp_path / "a", chunks, "1MB", tmp_path / "t", mode="overwrite", progress=False)
        assert job.execute().shape == (0, 6)
        assert rx.verify(tmp_path / "a", tmp_path / "t").ok


def test_documents_nested_too_deep_for_python_are_told(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/zarr.json").write_text("[" * 100_000)
    with pytest.raises(StorageError, match=r"cannot open .*deep"):
        open_array(array_ref(tmp_path / "deep"), read_only=True)
    with pytest.raises(StorageError, match="must have metadata that can be read"):
        conceal(array_ref(tmp_path / "deep/target"))


def test_a_grid_that_is_not_regular_is_refused(tmp_path: Path) -> None:
    try:
        with zarr.config.set({"array.rectilinear_chunks": True}):
            chunks: Any = [[1, 2, 3]]
            zarr.create_array(tmp_path, shape=(6,), chunks=chunks, dtype="i4")
            with pytest.raises(StorageError, match="regular chunk grid"):
                open_array(array_ref(tmp_path), read_only=True)
    except (TypeError, ValueError):
        pytest.skip("this zarr has regular grids only")


CHUNK = 400, 250  # of 400,000 bytes, beside which what is added to each stored chunk is little


def scratch_of(store: Any, **options: Any) -> Any:
    ref = make(store, (5, 7), CHUNK, "f4", **options)
    stored = open_array(ref, read_only=True)
    return read_scratch(stored), write_scratch(stored, ref)


def test_the_memory_of_a_unit(tmp_path: Path) -> None:
    # In units of a chunk's raw bytes: what comes from the store, and what is decoded beside the region.
    read, write = scratch_of(tmp_path / "raw", compressors=None)
    assert (read.stored, read.decoded, read.in_place) == (0, 1, True)
    assert (write.gathered, write.stored, write.assembled) == (1, 0, 0)
    read, write = scratch_of(MemoryStore(), compressors=None)
    assert read.stored == 1
    assert write.assembled == 1.15
    read, write = scratch_of(tmp_path / "zstd", compressors=V3_COMPRESSORS["zstd"])
    little = 1 / 50
    assert 1 < read.stored < 1 + little
    assert read.in_place
    assert 1 < write.stored < 1 + little
    assert write.assembled == 0
    assert 1 < scratch_of(tmp_path / "gzip", compressors=V3_COMPRESSORS["gzip"])[0].stored < 1 + little
    read, write = scratch_of(tmp_path / "chain", compressors=V3_COMPRESSORS["zstd-crc32c"])
    assert 1 < read.stored < 1 + little, "a checksum is cut off where it stands"
    assert 2 < write.stored < 2 + little, "and added to a copy"
    both = [GzipCodec(level=1), ZstdCodec(level=1)]
    assert 2 < scratch_of(tmp_path / "both", compressors=both)[0].stored < 2 + little
    assert not scratch_of(tmp_path / "F", zarr_format=2, order="F")[0].in_place
    read, write = scratch_of(tmp_path / "zarr", compressors=V3_COMPRESSORS["zlib"], shards=(800, 500))
    assert read.in_place
    read, write = scratch_of(tmp_path / "Delta", zarr_format=2, filters=[numcodecs.Delta("f4")])
    assert not read.in_place
    assert not write.in_place


def test_an_array_that_one_may_not_look_at_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ref = make(tmp_path / "a", (5,), (2,), "f4")
    denied = tmp_path / "a"
    look = os.stat

    def deny(path: Any, *arguments: Any, **options: Any) -> Any:
        if not isinstance(path, int) and str(path).startswith(str(denied)):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return look(path, *arguments, **options)

    monkeypatch.setattr(os, "stat", deny)
    for attempt in (lambda: open_array(ref, read_only=True), lambda: members_of(ref)):
        with pytest.raises(StorageError, match="Permission denied") as caught:
            attempt()
        assert caught.value.permanent
