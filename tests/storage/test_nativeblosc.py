"""Blosc frames made in a buffer of ours are those that numcodecs makes, byte for byte."""

from __future__ import annotations

import numpy as np
import pytest
from numcodecs import blosc

from rechunk_exec.storage import nativeblosc
from rechunk_exec.storage.chunkcodec import BloscBytes
from rechunk_exec.storage.nativeblosc import MOST_OVERHEAD, compress_into

SMOOTH = np.sin(np.arange(150_001) / 700).astype("<f4").tobytes()
NOISE = np.random.default_rng(5).bytes(100_003)


@pytest.mark.parametrize("cname", ["zstd", "lz4", "lz4hc", "blosclz", "zlib"])
@pytest.mark.parametrize("shuffle", [blosc.NOSHUFFLE, blosc.SHUFFLE, blosc.BITSHUFFLE])
@pytest.mark.parametrize("typesize", [1, 4, 16])
@pytest.mark.parametrize("blocksize", [0, 4096])
def test_the_same_frame(cname: str, shuffle: int, typesize: int, blocksize: int) -> None:
    codec = BloscBytes(cname, 3, shuffle, blocksize, typesize)
    for content in (SMOOTH, NOISE, b"x"):
        frame = codec.encode(content, lambda size: memoryview(bytearray(size + 7)))
        wanted = blosc.compress(content, cname.encode(), 3, shuffle, blocksize, typesize=typesize)
        assert bytes(frame) == wanted
        assert bytes(codec.decode(frame)) == content


def test_the_frame_lies_in_the_buffer_that_was_given() -> None:
    buffer = memoryview(bytearray(len(SMOOTH) + MOST_OVERHEAD))
    frame = BloscBytes("zstd", 5, blosc.SHUFFLE, 0, 4).encode(SMOOTH, lambda size: buffer[:size])
    assert isinstance(frame, memoryview)
    assert frame.obj is buffer.obj


def test_a_compressor_that_is_not_there_is_refused_as_numcodecs_words_it() -> None:
    buffer = memoryview(bytearray(len(SMOOTH) + MOST_OVERHEAD))
    with pytest.raises(ValueError, match="nocodec"):
        BloscBytes("nocodec", 5, blosc.SHUFFLE, 0, 4).encode(SMOOTH, lambda size: buffer[:size])


def test_numcodecs_makes_the_frame_where_the_function_is_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nativeblosc, "_function", lambda: None)
    codec = BloscBytes("zstd", 5, blosc.SHUFFLE, 0, 4)
    frame = codec.encode(SMOOTH, lambda size: memoryview(bytearray(size)))
    assert frame == blosc.compress(SMOOTH, b"zstd", 5, blosc.SHUFFLE, 0, typesize=4)
    sizes = {"blocksize": 0, "typesize": 4}
    out = memoryview(bytearray(len(SMOOTH) + MOST_OVERHEAD))
    assert compress_into(memoryview(SMOOTH), out, cname=b"zstd", clevel=5, shuffle=blosc.SHUFFLE, **sizes) == 0


def test_the_automatic_shuffle_is_left_to_numcodecs() -> None:
    out = memoryview(bytearray(len(SMOOTH) + MOST_OVERHEAD))
    frame = BloscBytes("lz4", 5, blosc.AUTOSHUFFLE, 0, 4).encode(SMOOTH, lambda size: out[:size])
    assert frame == blosc.compress(SMOOTH, b"lz4", 5, blosc.AUTOSHUFFLE, 0, typesize=4)
