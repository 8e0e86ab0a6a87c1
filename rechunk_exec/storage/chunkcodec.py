"""The direct way: one chunk's bytes to elements and back, by the numcodecs functions that release the interpreter lock.

zarr's array layer makes a fresh buffer for each chunk and copies between layers; on a fast machine that costs more than
the codecs do. Where an array's metadata say no more than "elements in a byte order, perhaps with axes permuted, through
codecs from bytes to bytes", a chunk can be decoded straight into a buffer that is used again and again.
:func:`direct_codec` says whether that is so. What it cannot serve goes through zarr (:mod:`.viazarr`).

Formats: `zarr v3 codecs <https://zarr-specs.readthedocs.io/en/latest/v3/codecs/index.html>`_, `zarr v2 storage
specification <https://zarr-specs.readthedocs.io/en/latest/v2/v2.0.html>`_.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Protocol

import google_crc32c
import numcodecs
import numpy as np
from numcodecs import blosc
from numpy.typing import NDArray
from zarr.core.metadata.v2 import ArrayV2Metadata
from zarr.core.metadata.v3 import ArrayV3Metadata

from rechunk_exec.errors import StorageError
from rechunk_exec.storage.codecmemory import (
    ZSTD_DECODER_BYTES,
    BloscArguments,
    blosc_decoder_bytes,
    blosc_encoder_bytes,
    zstd_encoder_bytes,
)
from rechunk_exec.storage.nativeblosc import MOST_OVERHEAD, can_compress_into, compress_into
from rechunk_exec.storage.nativeplain import lz4_into, zstd_context_bytes, zstd_into
from rechunk_exec.storage.objectbase import Allocate
from rechunk_exec.storage.streamcodecs import STREAMS, StreamBytes

_BLOSC_SHUFFLE = {"noshuffle": blosc.NOSHUFFLE, "shuffle": blosc.SHUFFLE, "bitshuffle": blosc.BITSHUFFLE}
# zarr v3 names of codecs that numcodecs has under another name.
_V3_NUMCODECS = {"zstd": "zstd", "gzip": "gzip"}
_PLAIN_NUMCODECS = ("lz4", "zstd", *STREAMS)
_SUMMED_BYTES = 1 << 18


class BytesCodec(Protocol):
    """One codec from bytes to bytes."""

    into: bool
    """Whether :meth:`decode` fills a given buffer without a buffer of its own."""

    encoded_copies: int
    """How many copies of the encoded bytes :meth:`encode` holds at most."""

    def most(self, size: int) -> int:
        """Return the most bytes that ``size`` bytes are encoded to."""

    def encode_work(self, size: int) -> int:
        """Return the bytes that encoding ``size`` bytes takes besides those and what they become."""

    def decode_work(self, size: int) -> int:
        """Return the bytes that decoding to ``size`` bytes takes besides those and what they come from."""

    def encode(self, content: Any, allocate: Allocate | None = None) -> bytes | memoryview:
        """Return the encoded bytes; where they may be in a buffer of ``allocate``, they are its until the next call."""

    def decode(self, content: Any, out: Any | None = None) -> Any:
        """Return the decoded bytes: ``out`` itself, filled, where that can be, else bytes of its own."""


@dataclass(frozen=True, slots=True)
class ChunkCodec:
    """How the elements of one chunk are stored."""

    dtype: np.dtype[Any]
    """Of the stored elements, in the stored byte order."""
    axes: tuple[int, ...]
    """Order in which the axes are stored: (0, 1, ...) for C order."""
    codecs: tuple[BytesCodec, ...] = field(default=())
    """From elements' bytes to stored bytes, in the order of encoding."""

    @property
    def raw(self) -> bool:
        """Whether the stored bytes are the elements' bytes."""
        return not self.codecs

    @property
    def c_order(self) -> bool:
        """Whether the elements are stored in C order."""
        return self.axes == tuple(range(len(self.axes)))

    @property
    def decoded_between(self) -> int:
        """How many buffers as large as the chunk :meth:`decode` needs besides ``out``."""
        making = [codec for codec in self.codecs if not isinstance(codec, Crc32cBytes)]  # a checksum is cut off
        return max(0, len(making) - 1) + any(not codec.into for codec in making[:1])

    @property
    def encoded_copies(self) -> int:
        """How many copies of the encoded bytes :meth:`encode` holds at most."""
        return max((codec.encoded_copies + (number > 0) for number, codec in enumerate(self.codecs)), default=0)

    def most(self, size: int) -> int:
        """Return the most bytes that a chunk of ``size`` bytes is stored as."""
        for codec in self.codecs:
            size = codec.most(size)
        return size

    def encode_work(self, size: int) -> int:
        """Return the bytes that codecs work in to encode a chunk of ``size`` bytes."""
        return max((codec.encode_work(size) for codec in self.codecs), default=0)

    def decode_work(self, size: int) -> int:
        """Return the bytes that codecs work in to decode a chunk of ``size`` bytes."""
        return max((codec.decode_work(size) for codec in self.codecs), default=0)

    def frame(self, buffer: memoryview, shape: Sequence[int]) -> NDArray[Any]:
        """Return ``buffer`` as a chunk of ``shape`` elements whose memory order is the stored one."""
        elements = np.frombuffer(buffer[: prod(shape) * self.dtype.itemsize], dtype=self.dtype)
        if self.c_order:
            return elements.reshape(shape)
        stored_shape = tuple(shape[axis] for axis in self.axes)
        return elements.reshape(stored_shape).transpose(np.argsort(self.axes))

    def decode(self, stored: memoryview, out: memoryview) -> None:
        """Decode one chunk's stored bytes into ``out``, which has exactly the chunk's size."""
        content: Any = stored
        for number, codec in enumerate(reversed(self.codecs), start=1):
            last = number == len(self.codecs)
            content = codec.decode(content, out if last else None)
        if content is not out:
            view = memoryview(content).cast("B")
            if len(view) != len(out):
                raise StorageError(f"a chunk must decode to {len(out)} bytes; got {len(view)}", permanent=True)
            out[:] = view

    def encode(self, elements: memoryview, allocate: Allocate | None = None) -> bytes | memoryview:
        """Return the stored bytes of a chunk whose memory is ``elements``.

        They may lie in a buffer of ``allocate``, which is asked once at most.
        """
        content: bytes | memoryview = elements
        for number, codec in enumerate(self.codecs):
            content = codec.encode(content, allocate if number == 0 else None)
        return content


class BloscBytes:
    """A Blosc 1 frame (`format <https://github.com/Blosc/c-blosc/blob/main/README_CHUNK_FORMAT.rst>`_)."""

    into = True
    encoded_copies = 1

    def __init__(self, cname: str, clevel: int, shuffle: int, blocksize: int, typesize: int) -> None:
        self.arguments = BloscArguments(cname.encode(), clevel, shuffle, blocksize, typesize)

    def most(self, size: int) -> int:
        return size + MOST_OVERHEAD

    def encode_work(self, size: int) -> int:
        return blosc_encoder_bytes(self.arguments, size)

    def decode_work(self, size: int) -> int:
        return blosc_decoder_bytes(self.arguments, size)

    def encode(self, content: Any, allocate: Allocate | None = None) -> bytes | memoryview:
        if allocate is not None and can_compress_into():
            view = memoryview(content).cast("B")
            out = allocate(len(view) + MOST_OVERHEAD)
            length = compress_into(view, out, **self.arguments._asdict())
            if length:
                return out[:length]
        frame: bytes = blosc.compress(content, **self.arguments._asdict())
        return frame

    def decode(self, content: Any, out: Any | None = None) -> Any:
        view = memoryview(content)
        size = blosc_size(view)
        if out is not None and size != len(out):
            raise StorageError(f"a chunk must decode to {len(out)} bytes; got a Blosc frame of {size}", permanent=True)
        try:
            decoded = blosc.decompress(view, out)
        except Exception as error:  # RuntimeError, ValueError or MemoryError
            raise StorageError(
                f"a Blosc frame cannot be decoded: {type(error).__name__}: {error}", permanent=True
            ) from error
        return decoded if out is None else out


def blosc_size(frame: memoryview) -> int:
    """Return how many bytes a Blosc frame holds; the C code reads on past the end of one that is torn."""
    if len(frame) < 16 or int.from_bytes(frame[12:16], "little") != len(frame):
        raise StorageError(
            f"a Blosc frame must be as long as it says; got {len(frame)} bytes: it is torn", permanent=True
        )
    return int.from_bytes(frame[4:8], "little")


class NumcodecsBytes:
    """A codec of numcodecs that maps bytes to bytes: Zstandard or LZ4."""

    into = True
    encoded_copies = 1

    def __init__(self, configuration: Mapping[str, Any]) -> None:
        self.name = str(configuration["id"])
        self.codec = numcodecs.get_codec(dict(configuration))
        self.decoded_size = {"zstd": _zstd_size, "lz4": _lz4_size}[self.name]

    def most(self, size: int) -> int:
        return size + size // 255 + 64

    def encode_work(self, size: int) -> int:
        return zstd_encoder_bytes(self.codec.level, size) if self.name == "zstd" else 0

    def decode_work(self, size: int) -> int:
        return ZSTD_DECODER_BYTES if self.name == "zstd" else 0

    def encode(self, content: Any, allocate: Allocate | None = None) -> bytes | memoryview:
        if allocate is not None:
            view = memoryview(content).cast("B")
            most = self.most(len(view))
            if self.name == "zstd":
                level, checksum = self.codec.level, self.codec.checksum
                out = allocate(most + zstd_context_bytes(level, len(view)))
                length = zstd_into(view, out[:most], out[most:], level=level, checksum=checksum)
            else:
                out = allocate(most)
                length = lz4_into(view, out, acceleration=self.codec.acceleration)
            if length:
                return out[:length]
        encoded: bytes | memoryview = self.codec.encode(content)
        return encoded

    def decode(self, content: Any, out: Any | None = None) -> Any:
        # numcodecs leaves the rest of a buffer as it was if the content is shorter.
        fits = out is not None and self.decoded_size(memoryview(content)) == len(out)
        try:
            decoded = self.codec.decode(content, out if fits else None)
            return out if fits else decoded
        except Exception as error:  # codecs raise many kinds
            raise StorageError(
                f"a chunk cannot be decoded by {self.codec}: {type(error).__name__}: {error}", permanent=True
            ) from error


def _lz4_size(content: memoryview) -> int:
    return int.from_bytes(content[:4], "little")


def _zstd_size(content: memoryview) -> int:
    """Return the content size that a frame states (RFC 8878, 3.1.1.1), or -1."""
    if len(content) < 18 or bytes(content[:4]) != b"\x28\xb5\x2f\xfd":
        return -1
    descriptor = content[4]
    single_segment = descriptor >> 5 & 1
    start = 5 + (1 - single_segment) + (0, 1, 2, 4)[descriptor & 3]
    width = (single_segment, 2, 4, 8)[descriptor >> 6]
    if width == 0:
        return -1
    return int.from_bytes(content[start : start + width], "little") + (256 if width == 2 else 0)


def plain_codec(configuration: Mapping[str, Any]) -> NumcodecsBytes | StreamBytes:
    """Return the codec that has this configuration in numcodecs."""
    return StreamBytes(configuration) if configuration["id"] in STREAMS else NumcodecsBytes(configuration)


def crc32c(content: bytes | memoryview) -> bytes:
    """Return the CRC-32C of some bytes as zarr stores it: four bytes, little-endian."""
    checksum = 0
    for start in range(0, len(content), _SUMMED_BYTES):  # the library takes nothing but bytes
        checksum = google_crc32c.extend(checksum, bytes(content[start : start + _SUMMED_BYTES]))
    return checksum.to_bytes(4, "little")


class Crc32cBytes:
    """The content and its CRC-32C, four bytes, little-endian."""

    into = True
    encoded_copies = 1

    def most(self, size: int) -> int:
        return size + 4

    def encode_work(self, size: int) -> int:
        return min(size, _SUMMED_BYTES)

    def decode_work(self, size: int) -> int:
        return min(size, _SUMMED_BYTES)

    def encode(self, content: Any, _: Allocate | None = None) -> bytes:
        view = memoryview(content).cast("B")
        return b"".join((view, crc32c(view)))

    def decode(self, content: Any, out: Any | None = None) -> Any:
        view = memoryview(content).cast("B")
        body = view[:-4]
        if len(view) < 4 or crc32c(body) != bytes(view[-4:]):
            raise StorageError("a chunk's CRC-32C does not match its bytes", permanent=True)
        return body


def direct_codec(metadata: ArrayV2Metadata | ArrayV3Metadata) -> ChunkCodec | str:
    """Return how an array's chunks are stored, or why they cannot be read directly.

    For a sharded array the answer is about its inner chunks; see :func:`~.shards.shard_layout`.
    """
    if isinstance(metadata, ArrayV2Metadata):
        return _v2_codec(metadata)
    codecs: list[Any] = [codec.to_dict() for codec in metadata.codecs]
    if len(codecs) == 1 and codecs[0]["name"] == "sharding_indexed":
        codecs = list(codecs[0]["configuration"]["codecs"])
    return _v3_codec(codecs, np.dtype(metadata.data_type.to_native_dtype()), len(metadata.shape))


def _v2_codec(metadata: ArrayV2Metadata) -> ChunkCodec | str:
    dtype = np.dtype(metadata.dtype.to_native_dtype())
    if dtype.hasobject or dtype.kind == "T":
        return f"elements of {dtype} have no fixed size"
    if metadata.filters:
        return "it has filters"
    axes = range(len(metadata.shape))
    codec: tuple[BytesCodec, ...] = ()
    if metadata.compressor is not None:
        configuration = metadata.compressor.get_config()
        name = configuration["id"]
        if name == "blosc":
            codec = (
                BloscBytes(
                    configuration["cname"],
                    configuration["clevel"],
                    configuration["shuffle"],
                    configuration.get("blocksize") or 0,
                    configuration.get("typesize") or dtype.itemsize,
                ),
            )
        elif name in _PLAIN_NUMCODECS:
            codec = (plain_codec(configuration),)
        else:
            return f"its compressor {name!r} is not among those known"
    return ChunkCodec(dtype, tuple(reversed(axes)) if metadata.order == "F" else tuple(axes), codec)


def _v3_codec(codecs: Sequence[Any], dtype: np.dtype[Any], ndim: int) -> ChunkCodec | str:
    if dtype.hasobject or dtype.kind == "T":
        return f"elements of {dtype} have no fixed size"
    axes = tuple(range(ndim))
    chain: list[BytesCodec] = []
    serialized = False
    for codec in codecs:
        name, configuration = codec["name"], codec.get("configuration") or {}
        if name == "bytes" and not serialized:
            serialized = True
            endian = configuration.get("endian")
            dtype = dtype if endian is None else dtype.newbyteorder("<" if endian == "little" else ">")
        elif not serialized:
            order = configuration.get("order")
            if name != "transpose" or not isinstance(order, (list, tuple)):
                return f"its codec {name!r} is not among those known"
            axes = tuple(axes[axis] for axis in order)
        elif name == "blosc":
            shuffle = _BLOSC_SHUFFLE.get(configuration["shuffle"])
            if shuffle is None:
                return f"its Blosc shuffle {configuration['shuffle']!r} is not among those known"
            typesize = configuration.get("typesize") or dtype.itemsize
            chain.append(
                BloscBytes(
                    configuration["cname"], configuration["clevel"], shuffle, configuration["blocksize"], typesize
                )
            )
        elif name == "crc32c":
            chain.append(Crc32cBytes())
        elif name in _V3_NUMCODECS:
            chain.append(plain_codec({"id": _V3_NUMCODECS[name], **configuration}))
        elif name.removeprefix("numcodecs.") in _PLAIN_NUMCODECS and name.startswith("numcodecs."):
            chain.append(plain_codec({"id": name.removeprefix("numcodecs."), **configuration}))
        else:
            return f"its codec {name!r} is not among those known"
    return ChunkCodec(dtype, axes, tuple(chain)) if serialized else "its elements are not stored as plain bytes"
