"""An NVIDIA device: memory from rmm's pool, codecs from nvCOMP, arrays of cupy. Layer: executors, below the gpu pool.

The only module that imports cupy, rmm or nvCOMP, in a worker process that is pinned to one device. All work is on one
CUDA stream, and so is the memory: what a batch gives back can be had by the next one without waiting.

nvCOMP's own Python package is used. kvikio had codecs built on it, and has dropped them.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any

import numpy as np

from rechunk_exec.errors import MissingExtraError, StorageError
from rechunk_exec.executors.devicequeue import Piece

PACKAGES = {"cupy": "cupy", "rmm": "rmm", "nvidia.nvcomp": "nvidia-nvcomp-cu12"}
"""What is imported, and the package that it is from."""

_NAMES = {"zstd": "Zstd", "lz4": "LZ4", "deflate": "Deflate"}
# The least of nvCOMP's limits on encoding and decoding (nvcomp/zstd.h, lz4.h, deflate.h of version 6).
_LARGEST = {"zstd": 2**31 - 1, "lz4": 2**24, "deflate": 2**31 - 1}
# A piece's content, its result at worst, and nvCOMP's scratch: a guess, which rmm's pool bounds.
_COPIES = 5
_SMALL = 1 << 20


def refuse_missing() -> None:
    """Raise :class:`MissingExtraError` if a package is missing. Imports none of them."""
    for module, package in PACKAGES.items():
        try:
            found = importlib.util.find_spec(module)
        except ImportError:  # a parent of it
            found = None
        if found is None:
            raise MissingExtraError(package, "gpu")


class NvcompBackend:
    """The device that this process is pinned to.

    Parameters
    ----------
    pool_bytes : int
        Size of the pool of device memory, made at once; nothing here takes memory besides.
    """

    def __init__(self, pool_bytes: int) -> None:
        import cupy
        import rmm
        from nvidia import nvcomp
        from rmm.allocators.cupy import rmm_cupy_allocator
        from rmm.pylibrmm.stream import Stream

        size = pool_bytes // 256 * 256  # as rmm wants it
        rmm.reinitialize(pool_allocator=True, initial_pool_size=size, maximum_pool_size=size)
        cupy.cuda.set_allocator(rmm_cupy_allocator)
        self._cupy, self._nvcomp = cupy, nvcomp
        self._stream = cupy.cuda.Stream(non_blocking=True)
        on_stream = Stream(obj=self._stream)
        nvcomp.set_device_allocator(lambda nbytes, _: rmm.DeviceBuffer(size=nbytes, stream=on_stream))
        self._codecs: dict[tuple[str, int], Any] = {}

    def largest_bytes(self, algorithm: str) -> int:
        """Return nvCOMP's limit."""
        return _LARGEST.get(algorithm, 0)

    def device_bytes(self, chunk_bytes: int) -> int:
        """Return a piece's part of the pool."""
        return _COPIES * chunk_bytes + _SMALL

    def run(self, pieces: Sequence[Piece]) -> None:
        """Decode or encode a batch."""
        with self._stream:
            if pieces[0].direction == "decode":
                self._decode(pieces)
            else:
                self._encode(pieces)

    def _decode(self, pieces: Sequence[Piece]) -> None:
        sizes = [0 if piece.out is None else len(piece.out) for piece in pieces]
        decoded = self._codec(pieces[0].algorithm, max(sizes)).decode(self._arrays(pieces))
        for number, (piece, size) in enumerate(zip(pieces, sizes, strict=True)):
            array = self._cupy.asarray(decoded[number]).view(np.uint8).reshape(-1)
            if array.size != size or piece.out is None:
                raise StorageError(f"a chunk must decode to {size} bytes; got {array.size}", permanent=True)
            array.get(stream=self._stream, out=np.frombuffer(piece.out, np.uint8))

    def _encode(self, pieces: Sequence[Piece]) -> None:
        encoded = self._codec(pieces[0].algorithm, max(len(piece.content) for piece in pieces)).encode(
            self._arrays(pieces)
        )
        for number, piece in enumerate(pieces):
            piece.encoded = self._cupy.asarray(encoded[number]).view(np.uint8).get(stream=self._stream).tobytes()

    def _arrays(self, pieces: Sequence[Piece]) -> Any:
        on_device = [self._cupy.asarray(np.frombuffer(piece.content, np.uint8)) for piece in pieces]
        return self._nvcomp.as_arrays(on_device, self._stream.ptr)

    def _codec(self, algorithm: str, largest: int) -> Any:
        """Return a codec for streams without nvCOMP's own headers, for chunks of up to ``largest`` bytes."""
        size = 1 << max(16, (largest - 1).bit_length())
        size = min(size, _LARGEST[algorithm])
        if (algorithm, size) not in self._codecs:
            self._codecs[algorithm, size] = self._nvcomp.Codec(
                algorithm=_NAMES[algorithm],
                bitstream_kind=self._nvcomp.BitstreamKind.RAW,
                uncomp_chunk_size=size,
                cuda_stream=self._stream.ptr,
            )
        return self._codecs[algorithm, size]
