"""gzip, zlib, bzip2 and LZMA, a piece at a time. Layer: storage.

The functions that take and return whole byte strings hold what they make twice, and copies of what they are given. Here
a stream is encoded and decoded in pieces, from and to buffers of their final size, and nothing as large besides.
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from rechunk_exec.errors import StorageError
from rechunk_exec.storage.codecmemory import DEFLATE_BYTES, INFLATE_BYTES, bzip2_bytes, xz_bytes
from rechunk_exec.storage.objectbase import Allocate

STREAMS = ("gzip", "zlib", "bz2", "lzma")
"""Their names in numcodecs."""
PIECE_BYTES = 1 << 17
"""What goes in and comes out at once; what comes is made by doubling, and then copied."""
_GZIP, _ZLIB = 31, 15  # window bits, as zlib takes them


class StreamBytes:
    """A compressor of streams, configured as numcodecs has it."""

    into = True
    encoded_copies = 1

    def __init__(self, configuration: Mapping[str, Any]) -> None:
        self.name = str(configuration["id"])
        self.configuration = {**_DEFAULTS[self.name], **configuration}

    def most(self, size: int) -> int:
        """Most bytes that ``size`` bytes are encoded to."""
        return size + size // 50 + 700 if self.name in {"bz2", "lzma"} else size + size // 1000 + 64

    def encode_work(self, size: int) -> int:
        return self._work()[0] + 4 * min(size, PIECE_BYTES)

    def decode_work(self, size: int) -> int:
        return self._work()[1] + 4 * min(size, PIECE_BYTES)

    def _work(self) -> tuple[int, int]:
        if self.name == "bz2":
            return bzip2_bytes(self.configuration["level"])
        if self.name == "lzma":
            preset = self.configuration["preset"]
            return xz_bytes(lzma.PRESET_DEFAULT if preset is None else preset)
        return DEFLATE_BYTES, INFLATE_BYTES

    def encode(self, content: Any, allocate: Allocate | None = None) -> memoryview:
        view = memoryview(content).cast("B")
        most = self.most(len(view))
        out = np.empty(most, np.uint8).data if allocate is None else allocate(most)
        size = 0
        for part in _encoded(self._encoder(), view):
            if size + len(part) > len(out):
                raise StorageError(
                    f"{self.name} must encode {len(view)} bytes to at most {most}; got more", permanent=True
                )
            out[size : size + len(part)] = part
            size += len(part)
        return out[:size]

    def _encoder(self) -> Any:
        options = self.configuration
        if self.name == "gzip":
            return zlib.compressobj(options["level"], zlib.DEFLATED, _GZIP)
        if self.name == "zlib":
            return zlib.compressobj(options["level"], zlib.DEFLATED, _ZLIB)
        if self.name == "bz2":
            return bz2.BZ2Compressor(options["level"])
        return lzma.LZMACompressor(options["format"], options["check"], options["preset"], options["filters"])

    def decode(self, content: Any, out: Any | None = None) -> Any:
        view = memoryview(content).cast("B")
        if out is None:
            return b"".join(self._decoded(view))
        target = memoryview(out).cast("B")
        size = 0
        for part in self._decoded(view):
            if size + len(part) > len(target):
                raise StorageError(f"a chunk must decode to {len(target)} bytes; got more", permanent=True)
            target[size : size + len(part)] = part
            size += len(part)
        if size != len(target):
            raise StorageError(f"a chunk must decode to {len(target)} bytes; got {size}", permanent=True)
        return out

    def _decoded(self, view: memoryview) -> Iterator[bytes]:
        deflated = self.name in {"gzip", "zlib"}
        try:
            yield from _inflated(view, gzip=self.name == "gzip") if deflated else _opened(view, self._decoder)
        except (zlib.error, OSError, EOFError, ValueError, lzma.LZMAError) as error:
            raise StorageError(
                f"a chunk cannot be decoded by {self.name}: {type(error).__name__}: {error}", permanent=True
            ) from error

    def _decoder(self) -> Any:
        if self.name == "bz2":
            return bz2.BZ2Decompressor()
        options = self.configuration
        raw = options["format"] == lzma.FORMAT_RAW
        return lzma.LZMADecompressor(options["format"], filters=options["filters"] if raw else None)


_DEFAULTS: dict[str, dict[str, Any]] = {
    "gzip": {"level": 1},
    "zlib": {"level": 1},
    "bz2": {"level": 1},
    "lzma": {"format": lzma.FORMAT_XZ, "check": -1, "preset": None, "filters": None},
}


def _encoded(encoder: Any, view: memoryview) -> Iterator[bytes]:
    for start in range(0, len(view), PIECE_BYTES):
        yield encoder.compress(view[start : start + PIECE_BYTES])
    yield encoder.flush()


def _inflated(view: memoryview, *, gzip: bool) -> Iterator[bytes]:
    """Yield what a zlib stream holds, or all members of a gzip file, which zeros may follow."""
    decoder: Any = zlib.decompressobj(_GZIP if gzip else _ZLIB)
    for start in range(0, len(view), PIECE_BYTES):
        rest: bytes | memoryview = view[start : start + PIECE_BYTES]
        while rest:
            if decoder.eof:
                if not gzip:
                    return
                rest = bytes(rest).lstrip(b"\0")
                if not rest:
                    break
                decoder = zlib.decompressobj(_GZIP)
            yield decoder.decompress(rest, PIECE_BYTES)
            rest = decoder.unused_data if decoder.eof else decoder.unconsumed_tail
    while not decoder.eof:
        part = decoder.decompress(b"", PIECE_BYTES)  # what it has taken in and not yet given out
        if not part:
            raise EOFError("it ends before its stream does")
        yield part


def _opened(view: memoryview, decoder_of: Callable[[], Any]) -> Iterator[bytes]:
    """Yield what streams of bzip2 or LZMA hold, one after the other; what follows them and is none is passed over."""
    decoder = decoder_of()
    streams = fresh = 0  # streams that have ended, bytes of the one that has begun
    for start in range(0, len(view), PIECE_BYTES):
        rest: bytes | memoryview = view[start : start + PIECE_BYTES]
        while rest or not (decoder.eof or decoder.needs_input):
            if decoder.eof:
                decoder, fresh = decoder_of(), 0
            try:
                part = decoder.decompress(rest, PIECE_BYTES)
            except (OSError, lzma.LZMAError):
                if streams and not fresh:
                    return
                raise
            fresh += len(part)
            streams += decoder.eof
            yield part
            rest = decoder.unused_data if decoder.eof else b""
    if not decoder.eof and not (streams and not fresh):
        raise EOFError("it ends before its stream does")
