"""Every codec that the direct way knows, by a name for test ids."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numcodecs
from numcodecs import blosc
from zarr.codecs import BloscCodec, Crc32cCodec, GzipCodec, ZstdCodec
from zarr.codecs import numcodecs as outside

CNAMES = tuple(blosc.list_compressors())
SHUFFLES: Any = ("noshuffle", "shuffle", "bitshuffle")

V2_COMPRESSORS: Mapping[str, Any] = {
    "raw": None,
    **{
        f"blosc-{cname}-{shuffle}": numcodecs.Blosc(cname, clevel=3, shuffle=shuffle)
        for cname in CNAMES
        for shuffle in (-1, 0, 1, 2)
    },
    "blosc-blocksize": numcodecs.Blosc("zstd", clevel=1, shuffle=2, blocksize=256),
    "blosc-stored": numcodecs.Blosc("lz4", clevel=0),
    "zstd": numcodecs.Zstd(1),
    "zstd-checksum": numcodecs.Zstd(1, checksum=True),
    "gzip": numcodecs.GZip(1),
    "zlib": numcodecs.Zlib(1),
    "lz4": numcodecs.LZ4(),
    "bz2": numcodecs.BZ2(1),
    "lzma": numcodecs.LZMA(preset=0),
}
"""Of zarr format 2."""


def _outside(name: str, **configuration: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zarr 3.1 warns that they are outside its specification
        return getattr(outside, name)(**configuration)


V3_COMPRESSORS: Mapping[str, Sequence[Any]] = {
    "raw": (),
    **{
        f"blosc-{cname}-{shuffle}": (BloscCodec(cname=cname, clevel=3, shuffle=shuffle),)
        for cname in CNAMES
        for shuffle in SHUFFLES
    },
    **{
        f"blosc-{shuffle}-of-{typesize}": (BloscCodec(cname="lz4", shuffle=shuffle, typesize=typesize),)
        for shuffle in SHUFFLES
        for typesize in (1, 3, 8, 255)
    },
    "blosc-blocksize": (BloscCodec(cname="zstd", clevel=1, blocksize=256),),
    "blosc-stored": (BloscCodec(cname="lz4", clevel=0),),
    "zstd": (ZstdCodec(level=1),),
    "zstd-checksum": (ZstdCodec(level=1, checksum=True),),
    "gzip": (GzipCodec(level=1),),
    "crc32c": (Crc32cCodec(),),
    "zlib": (_outside("Zlib", level=1),),
    "lz4": (_outside("LZ4"),),
    "bz2": (_outside("BZ2", level=1),),
    "lzma": (_outside("LZMA", preset=0),),
    "numcodecs-zstd": (_outside("Zstd", level=1),),
    "numcodecs-gzip": (_outside("GZip", level=1),),
    "zstd-crc32c": (ZstdCodec(level=1), Crc32cCodec()),
    "crc32c-gzip": (Crc32cCodec(), GzipCodec(level=1)),
    "lz4-zstd": (_outside("LZ4"), ZstdCodec(level=1)),
    "blosc-zstd-crc32c": (BloscCodec(), ZstdCodec(level=1, checksum=True), Crc32cCodec()),
    "blosc-blosc": (BloscCodec(), BloscCodec(shuffle="noshuffle")),
}
"""Of zarr format 3: chains of codecs from bytes to bytes."""
