"""Rows of bands that a region cuts: each block is decoded once, and what is decoded beyond the plan is reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from numcodecs import blosc
from zarr.codecs import BloscCodec

import rechunk_exec as rx
from rechunk_exec.copy.buffers import ScratchBuffers
from rechunk_exec.storage import array_ref, finer_read_unit, open_array, open_reader
from rechunk_exec.storage.bands import PIECE_BYTES
from rechunk_exec.storage.bloscframe import frame_head
from tests.storage.test_bands import Decoded, made, region_of, smooth
from tests.values import position_values, same_bits


def stacked(path: Path, values: np.ndarray[Any, Any], block: int, cname: Any = "zstd") -> None:
    """Each epoch one Blosc chunk of such blocks."""
    itemsize = values.dtype.itemsize
    compressor = BloscCodec(cname=cname, clevel=1, shuffle="shuffle", typesize=itemsize, blocksize=block)
    zarr.create_array(path, data=values, chunks=(1, *values.shape[1:]), compressors=compressor)


@pytest.mark.parametrize("block", [100_000, 1 << 18, 1 << 19])
def test_bands_of_half_the_width_decode_each_of_their_blocks_once(
    block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values, rows = smooth((1, 1200, 1500)), 400
    assert rows * 1500 * 4 > 2 * PIECE_BYTES, "several pieces"
    stacked(tmp_path / "a.zarr", values, block)
    ref = array_ref(tmp_path / "a.zarr")
    unit = finer_read_unit(open_array(ref, read_only=True))
    assert unit is not None
    reader, decoded = open_reader(ref, unit), Decoded(monkeypatch)
    for top, left in ((0, 0), (400, 750), (800, 7)):
        region, decoded.nbytes = region_of((0, top, left), (1, top + rows, left + 750)), 0
        moved = reader.read((0, 0, 0), region, ScratchBuffers())
        assert same_bits(region.elements, values[:, top : top + rows, left : left + 750])
        low, high = top * 1500 * 4, (top + rows) * 1500 * 4
        blocks = min(-(-high // block) * block, values.nbytes) - low // block * block
        bands = (min(-(-(top + rows) // unit[1]) * unit[1], 1200) - top // unit[1] * unit[1]) * 1500 * 4
        assert decoded.nbytes == blocks
        assert (moved.decoded, moved.beyond_plan, moved.unexpected) == (max(blocks, bands), max(0, blocks - bands), 0)


def test_rows_longer_than_a_piece_and_than_blocks_are_joined(tmp_path: Path) -> None:
    values = position_values((1, 9, PIECE_BYTES // 4 + 4321), "f4")
    for number, block in enumerate((1 << 16, 1 << 20)):
        stacked(tmp_path / f"{number}.zarr", values, block, "lz4")
        reader = open_reader(array_ref(tmp_path / f"{number}.zarr"), (1, 2, values.shape[2]))
        region = region_of((0, 1, 5), (1, 8, values.shape[2] - 3))
        reader.read((0, 0, 0), region, ScratchBuffers())
        assert same_bits(region.elements, values[:, 1:8, 5:-3])


def test_what_chunks_hold_beyond_the_array_is_not_beyond_the_plan(tmp_path: Path) -> None:
    ref, array = made(
        tmp_path / "a.zarr", (2, 256, 200), chunks=(1, 256, 256), compressors=BloscCodec(cname="zstd", blocksize=4096)
    )
    array[:] = smooth((2, 256, 200))
    region = region_of((0, 16, 0), (2, 48, 200))
    reader = open_reader(ref, (1, 16, 200))
    moved = [reader.read(unit, region, ScratchBuffers()) for unit in reader.units(region)]
    assert [(one.decoded, one.beyond_plan) for one in moved] == [(32 * 200 * 4, 0)] * 2


def test_reports_tell_what_was_decoded_beyond_the_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = smooth((8, 1024, 250))
    stacked(tmp_path / "a.zarr", values, 16384)  # 16.384 rows
    job = rx.rechunk(
        tmp_path / "a.zarr", (8, 40, 125), "3MB", tmp_path / "b.zarr", max_temp_bytes=0, executor="serial",
        progress=False,
    )  # fmt: skip
    (stage,) = job.plan.stages
    assert stage.read_unit[1] < 40
    assert stage.region[1] % stage.read_unit[1] or stage.region[1] * 1000 % 16384
    decoded = Decoded(monkeypatch)
    assert same_bits(np.asarray(job.execute()[:]), values)
    report, planned = job.report, stage.elements_read * 4
    assert report is not None
    assert report.bytes_read == planned + report.bytes_beyond_plan >= decoded.nbytes
    assert report.bytes_beyond_plan == sum(result.bytes_beyond_plan for result in report.results) > 0
    assert "more than planned)" in str(report)
    assert not report.warnings


def test_a_frame_whose_block_is_longer_than_its_chunk_is_none() -> None:
    frame = bytearray(blosc.compress(smooth((100, 100)).tobytes(), b"zstd", 1, 1, 4096, 4))
    assert frame_head(bytes(frame[:16]), 40_000) is not None
    # what would be decoded of it is as long as a block
    frame[8:12] = (1 << 31).to_bytes(4, "little")
    assert frame_head(bytes(frame[:16]), 40_000) is None
