"""How much memory codecs work in, besides what they are given and what they make. Layer: storage.

Bounds from the documentation and sources of the libraries, checked by measuring.

Sources: `zstd's compression parameters <https://github.com/facebook/zstd/blob/dev/lib/compress/clevels.h>`_, `c-blosc
<https://github.com/Blosc/c-blosc/blob/main/blosc/blosc.c>`_, the manual pages of zlib, bzip2 and xz.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from numcodecs import blosc

from rechunk_exec.storage.nativeplain import zstd_context_bytes

_ZSTD_LOGS = (
    *((15, 14), (15, 14), (16, 15), (17, 16), (18, 18), (19, 18), (19, 18), (20, 19), (20, 19), (21, 20), (22, 21)),
    *((22, 21), (23, 22), (22, 22), (23, 22), (23, 23), (22, 22), (22, 23), (22, 23), (22, 24), (23, 25), (24, 26)),
    (25, 27),
)
"""By level: binary logarithms of the entries of the hash table and of the chain table, at most."""
_ZSTD_ROWS = range(5, 13)
"""Levels that keep a byte, or two, of tag for each entry of the hash table."""
_ZSTD_OPTIMAL = 12
"""The first level that looks for the best parse of some sizes, with a third table and prices."""
_PAGES_BYTES = 1 << 14
DEFLATE_BYTES, INFLATE_BYTES = 350_000, 60_000
"""What zlib works in to encode, and to decode."""
_BLOSC_ENCODERS = {"lz4": 20_000, "lz4hc": 280_000, "blosclz": 70_000, "snappy": 70_000, "zlib": DEFLATE_BYTES}
_BLOSC_MOST_BLOCK = 4 << 20
"""The longest blocks that Blosc makes of its own accord, or whose elements it splits."""
_XZ_ENCODERS = (3, 9, 17, 32, 48, 94, 94, 186, 370, 674)
"""MiB by preset, from ``xz --help``'s manual page."""
_XZ_DECODERS = (1, 2, 3, 5, 5, 9, 9, 17, 33, 65)


class BloscArguments(NamedTuple):
    """What ``numcodecs.blosc.compress`` is given."""

    cname: bytes
    clevel: int
    shuffle: int
    blocksize: int
    """0: chosen by Blosc."""
    typesize: int


def zstd_encoder_bytes(level: int, size: int) -> int:
    """Bytes that Zstandard works in to compress ``size`` bytes in one call, as it says itself where it can be asked.

    >>> 1_200_000 < zstd_encoder_bytes(3, 64_000_000) < 2_000_000
    True
    """
    stated = zstd_context_bytes(level, max(size, 1))
    return stated + _PAGES_BYTES if stated else zstd_bound(level, size)


def zstd_bound(level: int, size: int) -> int:
    """:func:`zstd_encoder_bytes`, by the sizes of its tables, as many as any size of content has."""
    level = 3 if level == 0 else min(max(level, 1), len(_ZSTD_LOGS) - 1)
    window = max(10, (max(size, 1) - 1).bit_length())
    hashed, chained = (1 << min(log, window + 1) for log in _ZSTD_LOGS[level])
    tables = 4 * (hashed + chained) + 2 * hashed * (level in _ZSTD_ROWS)
    if level >= _ZSTD_OPTIMAL:
        tables += 4 * (1 << min(17, window)) + 400_000
    block = min(size, 1 << 17)  # its sequences, at most one in three bytes of 11, and its literals
    return _with_loss(tables + 14 * block // 3 + 40_800)


ZSTD_DECODER_BYTES = 200_000
"""What Zstandard works in to decompress in one call."""


def blosc_encoder_bytes(codec: BloscArguments, size: int) -> int:
    """Bytes that Blosc works in to compress ``size`` bytes on one thread."""
    block = blosc_block_bytes(codec, size)
    if codec.cname == b"zstd":
        level = 22 if codec.clevel == 9 else 20 if codec.clevel == 8 else 2 * codec.clevel - 1
        return _with_loss(4 * block + zstd_encoder_bytes(level, block))
    return _with_loss(10 * block + _BLOSC_ENCODERS.get(codec.cname.decode(), DEFLATE_BYTES))


def blosc_decoder_bytes(codec: BloscArguments, size: int) -> int:
    """Bytes that Blosc works in to decompress to ``size`` bytes on one thread."""
    return 3 * blosc_block_bytes(codec, size) + ZSTD_DECODER_BYTES


def blosc_block_bytes(codec: BloscArguments, size: int) -> int:
    """Return the size of the blocks that Blosc cuts ``size`` bytes into."""
    return min(size, _largest_block(codec)) if size else 0


@functools.lru_cache(maxsize=256)
def _largest_block(codec: BloscArguments) -> int:
    """Ask Blosc itself, by the header of a frame of nothing."""
    # Blocks that are longer on demand are as long as demanded: that may be anything, where metadata are wrong.
    asked = codec._replace(blocksize=min(codec.blocksize, _BLOSC_MOST_BLOCK))
    frame: Any = blosc.compress(bytes(_BLOSC_MOST_BLOCK), **asked._asdict())
    made = int.from_bytes(frame[8:12], "little")
    return max(made, codec.blocksize) if made > _BLOSC_MOST_BLOCK - codec.typesize else made


def bzip2_bytes(level: int) -> tuple[int, int]:
    """Bytes that bzip2 works in to encode, and to decode; a block of output comes at once."""
    return _with_loss(400_000 + 900_000 * level), _with_loss(100_000 + 400_000 * level)


def xz_bytes(preset: int) -> tuple[int, int]:
    """Bytes that LZMA works in to encode and to decode, whatever the size."""
    preset = min(max(preset & 31, 0), len(_XZ_ENCODERS) - 1)
    return _XZ_ENCODERS[preset] << 20, (_XZ_DECODERS[preset] << 20) + 65536


def _with_loss(work: int) -> int:
    return work + work // 4  # allocators lose some between pieces
