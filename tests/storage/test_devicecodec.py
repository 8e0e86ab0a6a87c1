"""Codecs with a device in the middle: the same bytes as the CPU's, both ways, and nothing is taken on trust."""

from __future__ import annotations

import gzip
import io
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr

from rechunk_exec.errors import StorageError
from rechunk_exec.executors.devicequeue import DeviceQueue
from rechunk_exec.storage import DEVICE_ALGORITHMS, open_reader, open_writer, try_device, use_device
from rechunk_exec.storage.devicecodec import DeviceBytes
from tests.executors.fakedevice import FakeBackend, LyingBackend
from tests.storage.arrays import make, read_by_us, read_by_zarr, write_by_us
from tests.values import position_values, same_bits

NAMES = ("zstd", "lz4", "zlib", "gzip")
CONTENT = position_values((5000,), "u2").tobytes() + bytes(9000)


@pytest.fixture
def queue() -> Iterator[DeviceQueue]:
    device = DeviceQueue(FakeBackend(), 10**6, DEVICE_ALGORITHMS)
    use_device(device)
    yield device
    use_device(None)


def decoded(name: str, stored: bytes, device: DeviceQueue, size: int = len(CONTENT)) -> bytes:
    out = bytearray(size)
    DeviceBytes(name, device).decode(stored, memoryview(out))
    return bytes(out)


@pytest.mark.parametrize("name", NAMES)
def test_both_ways(name: str, queue: DeviceQueue) -> None:
    codec = numcodecs.get_codec({"id": name})
    assert bytes(codec.decode(DeviceBytes(name, queue).encode(CONTENT))) == CONTENT
    assert decoded(name, bytes(codec.encode(CONTENT)), queue) == CONTENT
    try_device(queue, DEVICE_ALGORITHMS)


def test_gzip_headers_of_all_kinds(queue: DeviceQueue) -> None:
    named = io.BytesIO()
    with gzip.GzipFile("a name", "wb", fileobj=named) as file:
        file.write(CONTENT)
    assert decoded("gzip", named.getvalue(), queue) == CONTENT
    plain = gzip.compress(CONTENT)
    extra = plain[:3] + b"\x1e" + plain[4:10] + b"\x03\x00abc" + b"name\0" + b"comment\0" + b"\x12\x34" + plain[10:]
    assert decoded("gzip", extra, queue) == CONTENT


@pytest.mark.parametrize(
    "name, damage",
    # Without a checksum, what a flipped bit does is up to the decoder, here as on the CPU.
    [*product(NAMES, ["cut", "empty", "head"]), ("zlib", "flip"), ("gzip", "flip")],
)
def test_damage_is_an_error(name: str, damage: str, queue: DeviceQueue) -> None:
    stored = bytes(numcodecs.get_codec({"id": name}).encode(CONTENT))
    broken = {
        "cut": stored[:-9],
        "flip": stored[:60] + bytes([stored[60] ^ 4]) + stored[61:],
        "empty": b"",
        "head": b"\xff\xff\xff\xff" + stored[4:],
    }[damage]
    with pytest.raises(StorageError):
        decoded(name, broken, queue)


def test_a_device_that_lies_is_found_out() -> None:
    queue = DeviceQueue(LyingBackend(), 10**6, DEVICE_ALGORITHMS)
    with pytest.raises(StorageError, match=r"encodes as lz4 .*leave 'lz4' out"):
        try_device(queue, DEVICE_ALGORITHMS)
    try_device(DeviceQueue(LyingBackend(), 10**6, ["zstd", "deflate"]), ["zstd", "deflate"])


@pytest.mark.parametrize(
    "options",
    [
        {"compressors": zarr.codecs.ZstdCodec()},
        {"compressors": [zarr.codecs.GzipCodec(), zarr.codecs.Crc32cCodec()], "shards": (8, 6)},
        {"zarr_format": 2, "compressors": numcodecs.LZ4()},
        {"zarr_format": 2, "compressors": numcodecs.Zlib(), "order": "F"},
    ],
)
def test_arrays(tmp_path: Path, queue: DeviceQueue, options: dict[str, Any]) -> None:
    values = position_values((13, 7), "f4")
    by_zarr = make(tmp_path / "zarr", (13, 7), (4, 3), "f4", values=values, **options)
    assert open_reader(by_zarr).way == open_writer(by_zarr).way == "gpu"
    assert same_bits(read_by_us(by_zarr), values)
    by_us = make(tmp_path / "us", (13, 7), (4, 3), "f4", **options)
    write_by_us(by_us, values)
    assert same_bits(read_by_zarr(by_us), values)
    use_device(None)
    assert open_reader(by_us).way == "direct"
    assert same_bits(read_by_us(by_us), values)


def test_what_a_device_does_not_take_is_done_here(tmp_path: Path, queue: DeviceQueue) -> None:
    blosc = make(tmp_path / "blosc", (8, 8), (4, 4), "f4", compressors=zarr.codecs.BloscCodec())
    raw = make(tmp_path / "raw", (8, 8), (4, 4), "f4", compressors=None)
    large = make(tmp_path / "large", (400, 400), (400, 400), "f4", compressors=zarr.codecs.ZstdCodec())
    assert [open_reader(ref).way for ref in (blosc, raw, large)] == ["direct"] * 3
    assert queue.takes("zstd", 400 * 400)
    assert not queue.takes("zstd", 400 * 400 * np.dtype("f4").itemsize)
