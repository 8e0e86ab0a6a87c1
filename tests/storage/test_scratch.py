"""What is counted for reading and writing: by the store, and by the codecs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr
from zarr.codecs import BloscCodec
from zarr.storage import MemoryStore, WrapperStore

from rechunk_exec.copy.buffers import ScratchBuffers
from rechunk_exec.storage import Region, finer_read, open_reader
from rechunk_exec.storage.bands import BandReader
from rechunk_exec.storage.scratch import FILES, form_at, form_of, read_scratch, write_scratch
from rechunk_exec.storage.stored import open_array
from rechunk_exec.storage.stores import array_ref, open_store
from rechunk_exec.tasks import ArrayRef
from tests.s3 import Bucket

CHUNK = (400, 250)  # of 400,000 bytes as float32


def scratches(place: Path, **options: Any) -> tuple[Any, Any]:
    zarr.create_array(place, shape=(800, 1000), dtype="f4", chunks=CHUNK, **options)
    ref = array_ref(place)
    stored = open_array(ref, read_only=True)
    return read_scratch(stored), write_scratch(stored, ref)


def test_what_objects_take_depends_on_the_store(tmp_path: Path, s3: Bucket) -> None:
    memory = MemoryStore()
    assert form_at(None) == form_at(array_ref(tmp_path)) == FILES
    assert FILES.streams
    assert (form_of(memory).sent, form_of(memory).client_bytes) == (1.15, 0), "it keeps what it is given"
    assert form_of(WrapperStore(memory)).sent == 3, "who knows"
    far = form_of(open_store(ArrayRef(store=s3.url("a")), read_only=True))
    assert not far.streams
    assert (far.received, far.sent) == (2, 1.2)
    assert far.client_bytes > 0
    assert form_at(ArrayRef(store="s3://nowhere-to-be-found/a")).sent >= 1


@pytest.mark.parametrize(
    "compressor",
    [numcodecs.Zstd(3), numcodecs.LZ4(), numcodecs.GZip(1), numcodecs.Zlib(1), numcodecs.BZ2(1), numcodecs.LZMA()],
    ids=lambda codec: codec.codec_id,
)
def test_encoded_bytes_count_once(tmp_path: Path, compressor: Any) -> None:
    read, write = scratches(tmp_path / "a", zarr_format=2, compressors=compressor)
    assert 1 < read.stored < 1.03
    assert 1 < write.stored < 1.03


def test_codecs_work_in_more_on_high_levels(tmp_path: Path) -> None:
    works = [scratches(tmp_path / f"{level}", compressors=BloscCodec(clevel=level))[1].work for level in (1, 5, 9)]
    assert works == sorted(works)
    assert works[-1] > 2 * works[0]
    assert scratches(tmp_path / "raw", compressors=None)[1].work < 200_000


def test_tables_of_shards_count(tmp_path: Path) -> None:
    read, write = scratches(tmp_path / "shards", shards=(800, 1000))
    index = 8 * 16 + 4
    assert (read.kept, write.table) == (3 * index, 3 * index)
    assert scratches(tmp_path / "chunks")[0].kept == 0


@pytest.mark.parametrize("compressors", [None, BloscCodec(cname="zstd", blocksize=4096)], ids=["raw", "blosc"])
def test_tables_of_blocks_count_as_they_are_kept(tmp_path: Path, compressors: Any) -> None:
    array = zarr.create_array(tmp_path, shape=(6, 700, 250), dtype="f4", chunks=(1, 700, 250), compressors=compressors)
    array[:] = np.arange(6 * 700 * 250, dtype="f4").reshape(array.shape)
    ref = array_ref(tmp_path)
    found = finer_read(open_array(ref, read_only=True))
    assert found is not None
    unit, scratch = found
    reader = open_reader(ref, unit)
    assert isinstance(reader, BandReader)
    region = Region((0, 0, 0), (6, 8, 250), np.empty((6, 8, 250), "f4"))
    for chunk in reader.units(region):
        reader.read(chunk, region, ScratchBuffers())
    assert reader._frame.held_bytes == scratch.kept
    table = 0 if compressors is None else 4 * -(-700 * 250 * 4 // 4096)
    assert scratch.kept == 6 * (table + 512)
