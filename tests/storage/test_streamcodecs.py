"""Streams encoded and decoded by pieces are those of Python's own modules."""

from __future__ import annotations

import bz2
import gzip
import lzma
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any

import numcodecs
import numpy as np
import pytest

from rechunk_exec.errors import StorageError
from rechunk_exec.storage.streamcodecs import PIECE_BYTES, STREAMS, StreamBytes

SMOOTH = np.sin(np.arange(80_001) / 700).astype("<f4").tobytes()
NOISE = np.random.default_rng(5).bytes(PIECE_BYTES + 17)
CONTENTS = (SMOOTH, NOISE, b"x", bytes(9 * PIECE_BYTES))
CONFIGURATIONS: list[dict[str, Any]] = [
    *({"id": name, "level": level} for name in ("gzip", "zlib", "bz2") for level in (1, 9)),
    *({"id": name, "level": 0} for name in ("gzip", "zlib")),
    {"id": "lzma", "preset": 1, "format": lzma.FORMAT_XZ, "check": lzma.CHECK_CRC32, "filters": None},
    {"id": "lzma", "preset": 0, "format": lzma.FORMAT_ALONE, "check": -1, "filters": None},
    {"id": "lzma", "preset": None, "format": lzma.FORMAT_RAW, "check": -1, "filters": [{"id": lzma.FILTER_LZMA2}]},
]
WHOLE: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "zlib": zlib.compress,
    "bz2": bz2.compress,
    "lzma": lzma.compress,
}


def first_of(buffer: memoryview, size: int) -> memoryview:
    return buffer[:size]


def decoded(codec: StreamBytes, content: bytes, size: int) -> bytes:
    out = bytearray(size)
    assert codec.decode(content, memoryview(out)) is not None
    return bytes(out)


@pytest.mark.parametrize("configuration", CONFIGURATIONS, ids=lambda one: "-".join(map(str, list(one.values())[:3])))
def test_numcodecs_decodes_what_is_encoded_and_the_other_way(configuration: dict[str, Any]) -> None:
    codec, other = StreamBytes(configuration), numcodecs.get_codec(dict(configuration))
    for content in CONTENTS:
        buffer = memoryview(bytearray(codec.most(len(content))))
        encoded = codec.encode(content, partial(first_of, buffer))
        assert encoded.obj is buffer.obj
        assert bytes(other.decode(bytes(encoded))) == content
        assert decoded(codec, other.encode(content), len(content)) == content
        assert bytes(codec.decode(codec.encode(content))) == content


@pytest.mark.parametrize("name", STREAMS)
def test_what_is_torn_or_of_another_size_is_refused(name: str) -> None:
    codec = StreamBytes({"id": name})
    for content in CONTENTS:
        stream = WHOLE[name](content)
        for damaged in (stream[:-1], stream[: len(stream) // 2], b"", b"\x01" + stream[1:]):
            with pytest.raises(StorageError):
                decoded(codec, damaged, len(content))
        for size in (len(content) - 1, len(content) + 1):
            with pytest.raises(StorageError, match="must decode to"):
                decoded(codec, stream, size)


@pytest.mark.parametrize("name", ["gzip", "bz2", "lzma"])
def test_several_streams_one_after_the_other(name: str) -> None:
    codec = StreamBytes({"id": name})
    stream = b"".join(map(WHOLE[name], CONTENTS))
    content = b"".join(CONTENTS)
    assert decoded(codec, stream, len(content)) == content


def test_zeros_may_follow_gzip_and_anything_the_others() -> None:
    assert decoded(StreamBytes({"id": "gzip"}), gzip.compress(NOISE) + bytes(PIECE_BYTES), len(NOISE)) == NOISE
    with pytest.raises(StorageError, match="gzip"):
        decoded(StreamBytes({"id": "gzip"}), gzip.compress(NOISE) + b"rest", len(NOISE))
    for name in ("zlib", "bz2", "lzma"):
        assert decoded(StreamBytes({"id": name}), WHOLE[name](NOISE) + b"rest", len(NOISE)) == NOISE
