"""What a disk is told before it is read: the bytes that are read then, and nothing that could fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.codecs import BloscCodec

import rechunk_exec as rx
from rechunk_exec.copy.buffers import ScratchBuffers
from rechunk_exec.storage import Region, array_ref, finer_read_unit, open_array, open_reader
from rechunk_exec.storage.objects import LocalObjects
from tests.values import position_values, same_bits

SHAPE = (3, 600, 500)
CODECS: dict[str, Any] = {
    "blosc": BloscCodec(cname="zstd", clevel=3, shuffle="bitshuffle", typesize=4),
    "stored raw by blosc": BloscCodec(cname="lz4", clevel=0, typesize=4),
    "none": None,
}
Spans = list[tuple[str, int, int]]


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> tuple[Spans, Spans]:
    """What was told, and what was read."""
    told: Spans = []
    read: Spans = []
    expect, fetch = LocalObjects.expect, LocalObjects._read

    def tell(self: LocalObjects, key: str, start: int, length: int | None) -> None:
        told.append((key, start, 2**40 if length is None else start + length))
        expect(self, key, start, length)

    def get(self: LocalObjects, key: str, allocate: Any, start: int, length: int | None) -> memoryview | None:
        content = fetch(self, key, allocate, start, length)
        if content is not None and start >= 0:
            read.append((key, start, start + len(content)))
        return content

    monkeypatch.setattr(LocalObjects, "expect", tell)
    monkeypatch.setattr(LocalObjects, "_read", get)
    return told, read


def made(path: Path, codec: Any, **options: Any) -> np.ndarray[Any, Any]:
    values = position_values(SHAPE, np.dtype("f4"))
    zarr.create_array(path, shape=SHAPE, dtype="f4", compressors=codec, **options)[...] = values
    return values


@pytest.mark.parametrize("rows", [(0, 600), (37, 420)])
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("finer", [False, True])
def test_all_that_is_read_of_a_chunk_was_told(
    tmp_path: Path, spans: tuple[Spans, Spans], codec: str, rows: tuple[int, int], *, finer: bool
) -> None:
    values = made(tmp_path / "a.zarr", CODECS[codec], chunks=(1, 600, 500))
    stored = open_array(array_ref(tmp_path / "a.zarr"), read_only=True)
    reader = open_reader(array_ref(tmp_path / "a.zarr"), finer_read_unit(stored) if finer else None)
    told, read = spans
    for turn in range(2):  # where the blocks of a frame are is known from the first time on
        told.clear()
        read.clear()
        region = Region((0, rows[0], 0), (3, rows[1], 500), np.empty((3, rows[1] - rows[0], 500), "f4"))
        for unit in reader.units(region):
            reader.expect(unit, region)
            reader.read(unit, region, ScratchBuffers())
        assert same_bits(region.elements, values[:, rows[0] : rows[1]])
        if turn or not finer:
            large = [span for span in read if span[2] - span[1] > 1000]
            assert large
            for key, start, stop in large:
                assert any(key == other and low <= start and stop <= high for other, low, high in told), (start, stop)
            assert len({key for key, _, _ in told}) == 3
            if finer and rows != (0, 600):
                assert max(high - low for _, low, high in told) < 0.9 * 4 * 600 * 500


def test_a_job_tells_of_each_chunk_once_before_it_is_read(tmp_path: Path, spans: tuple[Spans, Spans]) -> None:
    made(tmp_path / "a.zarr", CODECS["blosc"], chunks=(1, 300, 500))
    rx.rechunk(tmp_path / "a.zarr", (3, 300, 500), "100MB", tmp_path / "b.zarr", progress=False).execute()
    chunks = [key for key, start, stop in spans[1] if key.startswith("c/") and stop - start > 1000]
    assert len(chunks) == 6
    assert sorted(key for key, _, _ in spans[0]) == sorted(chunks)


def test_what_cannot_be_told_is_found_when_it_is_read(tmp_path: Path) -> None:
    values = made(tmp_path / "a.zarr", CODECS["blosc"], chunks=(1, 300, 250), shards=(1, 600, 500))
    shard = tmp_path / "a.zarr" / "c" / "1" / "0" / "0"
    shard.write_bytes(shard.read_bytes()[:-100])
    (tmp_path / "a.zarr" / "c" / "2" / "0" / "0").unlink()
    reader = open_reader(array_ref(tmp_path / "a.zarr"))
    region = Region((0, 0, 0), SHAPE, np.empty(SHAPE, "f4"))
    for unit in reader.units(region):
        reader.expect(unit, region)
        if unit[0] == 1:
            with pytest.raises(rx.StorageError, match="c/1/0/0"):
                reader.read_named(unit, region, ScratchBuffers())
        else:
            reader.read_named(unit, region, ScratchBuffers())
    assert same_bits(region.elements[0], values[0])
    assert not region.elements[2].any()
