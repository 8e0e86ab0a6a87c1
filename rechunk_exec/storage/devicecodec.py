"""Codecs that CPU and GPU share: zarr's framing here, the compressed stream from a device. Layer: storage.

What zarr stores is the same whoever made it: a Zstandard frame; LZ4 as numcodecs has it, four bytes of size and a
block; zlib and gzip, a header, a Deflate stream and a checksum. A device decodes and encodes the streams in the middle.
The framing and the checksums stay on the host, and so do shards, so that any CPU reads what was written and the other
way.

A worker process that an executor started for a device says so once, by :func:`use_device`.

Formats: `RFC 1950 <https://www.rfc-editor.org/rfc/rfc1950>`_ (zlib), `RFC 1952
<https://www.rfc-editor.org/rfc/rfc1952>`_ (gzip), `RFC 8878 <https://www.rfc-editor.org/rfc/rfc8878>`_ (Zstandard).
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np

from rechunk_exec.errors import StorageError
from rechunk_exec.storage.chunkcodec import ChunkCodec, NumcodecsBytes, plain_codec
from rechunk_exec.storage.objectbase import Allocate
from rechunk_exec.storage.streamcodecs import StreamBytes

ALGORITHMS = ("zstd", "lz4", "deflate")
"""Compressed streams that CPU and GPU share."""
_ALGORITHM_OF = {"zstd": "zstd", "lz4": "lz4", "zlib": "deflate", "gzip": "deflate"}
"""By numcodecs' names of codecs."""

_GZIP_HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"  # no flags, no time, unknown system
_ZLIB_HEADER = b"\x78\x9c"
_TRIAL_BYTES = 200_000


class Device(Protocol):
    """What decodes and encodes streams. Safe to use from several threads."""

    def takes(self, algorithm: str, chunk_bytes: int) -> bool:
        """Whether it decodes and encodes chunks of so many bytes by an algorithm, within its budget."""

    def decode(self, algorithm: str, stream: memoryview, out: memoryview) -> None:
        """Decode a stream into ``out``, which it fills exactly.

        Raises
        ------
        StorageError
            If it does not.
        """

    def encode(self, algorithm: str, content: memoryview) -> bytes:
        """Return the stream of some bytes."""


class _InUse:
    """The device of this process, if any."""

    device: Device | None = None


def use_device(device: Device | None) -> None:
    """Have arrays that are opened in this process from now on decoded and encoded by a device where that can be.

    It changes process-wide state, so it is for processes that an executor started, never for a user's own.
    """
    _InUse.device = device


def on_device(codec: ChunkCodec, chunk_bytes: int) -> ChunkCodec:
    """Return a chunk's codec with its compressor on the device, if there is one that takes it; else as it is."""
    first = codec.codecs[0] if codec.codecs else None
    if _InUse.device is None or not isinstance(first, NumcodecsBytes | StreamBytes):
        return codec
    algorithm = _ALGORITHM_OF.get(first.name)
    if algorithm is None or not _InUse.device.takes(algorithm, chunk_bytes):
        return codec
    return dataclasses.replace(codec, codecs=(DeviceBytes(first.name, _InUse.device), *codec.codecs[1:]))


class DeviceBytes:
    """A codec from bytes to bytes whose stream a device decodes and encodes; ``name`` as numcodecs has it."""

    into = True
    encoded_copies = 2
    """The stream, and the stream in its framing."""

    def __init__(self, name: str, device: Device) -> None:
        self.name = name
        self.algorithm = _ALGORITHM_OF[name]
        self.device = device

    def most(self, size: int) -> int:
        return size + size // 64 + 64

    def encode_work(self, size: int) -> int:
        return 0  # on the device

    def decode_work(self, size: int) -> int:
        return 0

    def encode(self, content: Any, _: Allocate | None = None) -> bytes:
        view = memoryview(content).cast("B")
        stream = self.device.encode(self.algorithm, view)
        size = len(view).to_bytes(4, "little") if len(view) < 2**32 else b""
        if self.name == "lz4":
            return size + stream
        if self.name == "zlib":
            return _ZLIB_HEADER + stream + zlib.adler32(view).to_bytes(4, "big")
        if self.name == "gzip":
            return _GZIP_HEADER + stream + zlib.crc32(view).to_bytes(4, "little") + size
        return stream

    def decode(self, content: Any, out: Any | None = None) -> Any:
        """Decode into ``out``, which must be given: the chunk's size is known, and a stream does not tell it."""
        if out is None:
            raise StorageError("a device decodes into a buffer of the chunk's size; got none")
        view, target = memoryview(content).cast("B"), memoryview(out)
        stream, checksum = self._opened(view, len(target))
        try:
            self.device.decode(self.algorithm, stream, target)
        except StorageError:
            raise
        except Exception as error:  # libraries of devices raise many kinds
            raise StorageError(f"a device could not decode {self.name}: {type(error).__name__}: {error}") from error
        actual = {"zlib": zlib.adler32, "gzip": zlib.crc32}.get(self.name)
        if actual is not None and actual(target) != checksum:
            raise StorageError(f"a chunk's {self.name} checksum does not match its bytes", permanent=True)
        return out

    def _opened(self, view: memoryview, size: int) -> tuple[memoryview, int]:
        """Return the stream inside the framing, and the checksum after it, if there is one."""
        if self.name == "lz4":
            stated = int.from_bytes(view[:4], "little")
            if len(view) < 4 or stated != size:
                raise StorageError(f"a chunk must decode to {size} bytes; got LZ4 of {stated}", permanent=True)
            return view[4:], 0
        if self.name == "zlib":
            if len(view) < 6 or view[0] & 15 != 8 or int.from_bytes(view[:2], "big") % 31 or view[1] & 32:
                raise StorageError(
                    "a zlib stream must begin with its header; it is torn or something else", permanent=True
                )
            return view[2:-4], int.from_bytes(view[-4:], "big")
        if self.name == "gzip":
            return view[_gzip_start(view) : -8], int.from_bytes(view[-8:-4], "little")
        return view, 0


def _gzip_start(view: memoryview) -> int:
    """Return where the stream of a gzip member begins (RFC 1952, 2.3)."""
    damaged = StorageError("a gzip stream must begin with its header; it is torn or something else", permanent=True)
    if len(view) < 18 or bytes(view[:3]) != _GZIP_HEADER[:3]:
        raise damaged
    flags, start = view[3], 10
    if flags & 4:
        start += 2 + int.from_bytes(view[start : start + 2], "little")
    for flag in (8, 16):
        if flags & flag:
            end = bytes(view).find(b"\0", start)
            if end < 0:
                raise damaged
            start = end + 1
    start += 2 * bool(flags & 2)
    if start > len(view) - 8:
        raise damaged
    return start


def try_device(device: Device, algorithms: Iterable[str]) -> None:
    """Decode on the CPU what a device has encoded, and the other way, before anything is trusted to it.

    Raises
    ------
    StorageError
        If what comes out differs, with the algorithm to leave out.
    """
    content = (np.arange(_TRIAL_BYTES // 4, dtype="<u4") ** 2 // 7).tobytes()
    for name, algorithm in _ALGORITHM_OF.items():
        if algorithm not in algorithms or not device.takes(algorithm, len(content)):
            continue
        there, here = DeviceBytes(name, device), plain_codec({"id": name})
        try:
            out = bytearray(len(content))
            there.decode(here.encode(content), memoryview(out))
            same = bytes(out) == content == bytes(here.decode(there.encode(content)))
        except Exception as error:
            raise _useless(algorithm, name, f"{type(error).__name__}: {error}") from error
        if not same:
            raise _useless(algorithm, name, "other bytes")


def _useless(algorithm: str, name: str, got: str) -> StorageError:
    return StorageError(
        f"what the CPU encodes as {name} must decode on the device, and the other way; got {got}; leave {algorithm!r} "
        "out of the executor's codecs",
        permanent=True,
    )
