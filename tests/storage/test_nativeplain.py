"""What is made in a buffer of ours is what numcodecs makes, byte for byte."""

from __future__ import annotations

from functools import partial
from typing import Any

import numcodecs
import numpy as np
import pytest

from rechunk_exec.storage import nativeplain
from rechunk_exec.storage.chunkcodec import plain_codec

SMOOTH = np.sin(np.arange(150_001) / 700).astype("<f4").tobytes()
NOISE = np.random.default_rng(5).bytes(100_003)
CONFIGURATIONS: list[dict[str, Any]] = [
    *({"id": "zstd", "level": level, "checksum": checksum} for level in (-5, 0, 3, 19, 99) for checksum in (0, 1)),
    *({"id": "lz4", "acceleration": acceleration} for acceleration in (0, 1, 50)),
]


def first_of(buffer: memoryview, size: int) -> memoryview:
    return buffer[:size]


@pytest.mark.parametrize("configuration", CONFIGURATIONS, ids=lambda one: "-".join(map(str, one.values())))
def test_the_same_bytes(configuration: dict[str, Any]) -> None:
    codec = plain_codec(configuration)
    buffer = memoryview(bytearray(b"\xaa") * 30_000_000)[3:]
    for content in (SMOOTH, NOISE, b"x", NOISE):  # what is left there of one does not show in the next
        encoded = codec.encode(content, partial(first_of, buffer))
        assert isinstance(encoded, memoryview)
        assert encoded.obj is buffer.obj
        assert bytes(encoded) == numcodecs.get_codec(dict(configuration)).encode(content)
        assert bytes(codec.decode(encoded)) == content


@pytest.mark.parametrize("name", ["zstd", "lz4"])
def test_numcodecs_serves_where_the_functions_are_hidden(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(nativeplain, f"_{name}", lambda: None)
    codec = plain_codec({"id": name})
    encoded = codec.encode(NOISE, lambda size: memoryview(bytearray(size)))
    assert isinstance(encoded, bytes)
    assert encoded == numcodecs.get_codec({"id": name}).encode(NOISE)


def test_a_buffer_that_is_too_small_is_not_written_past() -> None:
    buffer = bytearray(len(NOISE))
    out = memoryview(buffer)[: len(NOISE) // 2]
    for length in (
        nativeplain.zstd_into(memoryview(NOISE), out, memoryview(bytearray(3_000_000)), level=3, checksum=False),
        nativeplain.zstd_into(memoryview(b"a"), out, memoryview(bytearray(1000)), level=3, checksum=False),
        nativeplain.lz4_into(memoryview(NOISE), out, acceleration=1),
    ):
        assert length == 0
    assert not any(buffer[len(out) :])
