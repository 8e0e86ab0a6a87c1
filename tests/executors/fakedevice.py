"""A device that is none: it decodes and encodes on the CPU, counts bytes, and tells in files what it did."""

from __future__ import annotations

import os
import threading
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numcodecs

from rechunk_exec.executors import GpuExecutor
from rechunk_exec.executors.devicequeue import Piece
from rechunk_exec.executors.devices import VISIBLE, FoundDevice
from tests.executors.workers import wait_until

LOG = "FAKE_DEVICE_LOG"
"""The variable that names the folder it writes to."""
_AT_START = os.environ.get(VISIBLE)


class FakeBackend:
    """Streams as nvCOMP's, from numcodecs and zlib."""

    def __init__(self, pool_bytes: int = 0) -> None:
        self.pool_bytes = pool_bytes
        self.first_waits_for: Callable[[], bool] | None = None
        """What must have come about before the next batch is done; forgotten then."""
        self.batches: list[list[Piece]] = []
        self.most_bytes = 0
        self._alone = threading.Lock()
        self._tell("open")

    def largest_bytes(self, algorithm: str) -> int:
        return {"zstd": 1 << 24, "lz4": 1 << 18, "deflate": 1 << 24}[algorithm]

    def device_bytes(self, chunk_bytes: int) -> int:
        return 2 * chunk_bytes

    def run(self, pieces: Sequence[Piece]) -> None:
        assert self._alone.acquire(blocking=False), "one batch at a time"
        try:
            self.batches.append(list(pieces))
            self.most_bytes = max(self.most_bytes, sum(piece.device_bytes for piece in pieces))
            if self.first_waits_for is not None:
                wait_until(self.first_waits_for)
                self.first_waits_for = None
            for piece in pieces:
                if piece.out is not None:
                    piece.out[:] = _decode(piece.algorithm, bytes(piece.content), len(piece.out))
                else:
                    piece.encoded = _encode(piece.algorithm, bytes(piece.content))
            self._tell(f"{pieces[0].direction}-{pieces[0].algorithm}")
        finally:
            self._alone.release()

    def _tell(self, what: str) -> None:
        folder = os.environ.get(LOG)
        if folder:
            (Path(folder) / f"{what}-{os.getpid()}").write_text(f"{_AT_START} {self.pool_bytes}")


class LyingBackend(FakeBackend):
    """Loses a bit of what it encodes by LZ4."""

    def run(self, pieces: Sequence[Piece]) -> None:
        super().run(pieces)
        for piece in pieces:
            if piece.algorithm == "lz4" and piece.encoded:
                piece.encoded = piece.encoded[:40] + bytes([piece.encoded[40] ^ 1]) + piece.encoded[41:]


def two_devices() -> tuple[FoundDevice, ...]:
    return tuple(FoundDevice(name=f"GPU-{number}", total_bytes=100_000_000) for number in range(2))


class FakeGpuExecutor(GpuExecutor):
    """The pool on two devices that are none."""

    find_devices = staticmethod(two_devices)
    open_backend = FakeBackend
    refuse_missing = staticmethod(lambda: None)


class LyingGpuExecutor(FakeGpuExecutor):
    """The same on devices that are broken."""

    open_backend = LyingBackend


def _decode(algorithm: str, stream: bytes, size: int) -> bytes:
    if algorithm == "deflate":
        return zlib.decompress(stream, wbits=-15)
    framed = size.to_bytes(4, "little") + stream if algorithm == "lz4" else stream
    return bytes(numcodecs.get_codec({"id": algorithm}).decode(framed))


def _encode(algorithm: str, content: bytes) -> bytes:
    if algorithm == "deflate":
        return zlib.compress(content, wbits=-15)
    framed = bytes(numcodecs.get_codec({"id": algorithm}).encode(content))
    return framed[4:] if algorithm == "lz4" else framed
