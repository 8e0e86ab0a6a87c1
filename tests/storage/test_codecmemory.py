"""What codecs are counted to work in is no less than what they say, and the blocks are those that Blosc makes."""

from __future__ import annotations

import ctypes
import itertools

import numpy as np
import pytest
from numcodecs import blosc, zstd

from rechunk_exec.storage.codecmemory import (
    BloscArguments,
    _largest_block,
    blosc_block_bytes,
    blosc_encoder_bytes,
    zstd_bound,
    zstd_encoder_bytes,
)
from rechunk_exec.storage.nativeplain import zstd_context_bytes

NOISE = np.random.default_rng(3).integers(0, 64, 3_000_000, "u1").tobytes()
SIZES = (1, 1000, 15_000, 100_000, 200_000, 1_000_000, 3_000_000)


def context_bytes(level: int, size: int) -> int:
    """Bytes of Zstandard's context after it has compressed so many bytes, as it says itself."""
    library = ctypes.CDLL(zstd.__file__)
    library.ZSTD_createCCtx.restype = ctypes.c_void_p
    library.ZSTD_sizeof_CCtx.restype = library.ZSTD_compressCCtx.restype = ctypes.c_size_t
    library.ZSTD_sizeof_CCtx.argtypes = library.ZSTD_freeCCtx.argtypes = (ctypes.c_void_p,)
    pointer, number = ctypes.c_void_p, ctypes.c_size_t
    library.ZSTD_compressCCtx.argtypes = (pointer, ctypes.c_char_p, number, ctypes.c_char_p, number, ctypes.c_int)
    context = library.ZSTD_createCCtx()
    try:
        out = ctypes.create_string_buffer(size + size // 100 + 1000)
        assert library.ZSTD_compressCCtx(context, out, len(out), NOISE, size, level) < len(out)
        held: int = library.ZSTD_sizeof_CCtx(context)
    finally:
        library.ZSTD_freeCCtx(context)
    return held


@pytest.mark.parametrize("level", [1, 2, 3, 4, 5, 7, 9, 12, 15, 16, 19])
def test_zstandard_works_in_no_more_than_is_counted(level: int) -> None:
    if not zstd_context_bytes(level, 1):
        pytest.skip("numcodecs hides the functions of Zstandard here")
    for size in SIZES if level < 15 else SIZES[:-2]:
        held = context_bytes(level, size)
        assert held <= zstd_encoder_bytes(level, size) <= 1.3 * held + 20_000, size
        assert held <= zstd_bound(level, size), size


@pytest.mark.parametrize("cname", ["zstd", "lz4", "lz4hc", "blosclz", "zlib"])
@pytest.mark.parametrize("clevel", [1, 5, 9])
def test_blosc_cuts_into_the_blocks_that_are_counted(cname: str, clevel: int) -> None:
    for shuffle in (blosc.NOSHUFFLE, blosc.SHUFFLE, blosc.BITSHUFFLE):
        for typesize in (1, 4, 8):
            for blocksize in (0, 1 << 16):
                codec = BloscArguments(cname.encode(), clevel, shuffle, blocksize, typesize)
                content = NOISE[: 1_000_000 if clevel < 9 and typesize == 4 else 300_000]
                frame = bytes(blosc.compress(content, **codec._asdict()))
                made = int.from_bytes(frame[8:12], "little")
                assert made <= blosc_block_bytes(codec, len(content)) <= len(content)
                assert blosc_encoder_bytes(codec, len(content)) > 4 * made


def test_blocks_of_any_stated_size_are_counted_as_blosc_makes_them_and_take_no_memory_to_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compress, asked = blosc.compress, []

    def seen(content: bytes, *arguments: object, **more: object) -> bytes:
        asked.append(len(content))
        return bytes(compress(content, *arguments, **more))

    _largest_block.cache_clear()
    monkeypatch.setattr(blosc, "compress", seen)
    zeros = bytes(40_000_000)
    for cname, typesize in itertools.product((b"zstd", b"lz4"), (1, 3, 8)):
        for blocksize in (5_000_001, 1 << 23, 2**31 - 1):
            codec = BloscArguments(cname, 1, blosc.SHUFFLE, blocksize, typesize)
            frame = compress(zeros, **codec._asdict())
            made = int.from_bytes(frame[8:12], "little")
            assert made <= blosc_block_bytes(codec, len(zeros)) < made + typesize
            assert blosc_block_bytes(codec, 1000) == 1000
    assert max(asked) <= 4 << 20
