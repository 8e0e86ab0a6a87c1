"""Zstandard and LZ4 made straight in a buffer of ours, by the C functions that numcodecs brings.

As :mod:`.nativeblosc` does for Blosc, and for the same reason: what numcodecs returns is fresh memory of a chunk's
size, which the C allocator then keeps for the thread that made it. The functions are of the stable interfaces of the
two libraries (`zstd.h <https://facebook.github.io/zstd/doc/api_manual_latest.html>`_, `lz4.h
<https://github.com/lz4/lz4/blob/dev/lib/lz4.h>`_). Where the extension modules of numcodecs do not export them,
numcodecs' own functions serve as before.
"""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass
from typing import Any

from numcodecs import lz4, zstd

from rechunk_exec.storage.nativeblosc import address

_LEVEL, _CONTENT_SIZE, _CHECKSUM = 100, 200, 201  # ZSTD_cParameter
_ALIGNMENT = 64
_LZ4_HEADER = 4
"""numcodecs puts the decoded size before an LZ4 block."""


class _Parameters(ctypes.Structure):
    """ZSTD_compressionParameters: logarithms of the window, of tables, and so on, and the strategy."""

    _fields_ = [(f"size_{number}", ctypes.c_uint) for number in range(6)] + [("strategy", ctypes.c_int)]


@dataclass(frozen=True, slots=True)
class _Zstd:
    create: Any
    set_parameter: Any
    compress: Any
    is_error: Any
    parameters: Any
    estimate: Any


def zstd_into(content: memoryview, out: memoryview, work: memoryview, *, level: int, checksum: bool) -> int:
    """Write the Zstandard frame of ``content`` to the beginning of ``out``; return its length, 0 if that cannot be.

    Parameters
    ----------
    content, out : memoryview
        Contiguous bytes.
    work : memoryview
        At least :func:`zstd_context_bytes` to work in. Contexts that Zstandard takes itself come from arenas of the C
        allocator, which keep them for the thread: 11 MB of level 9, for each thread.
    level, checksum
        As ``numcodecs.Zstd`` takes them.
    """
    functions = _zstd()
    if functions is None:
        return 0
    start = -address(work) % _ALIGNMENT
    context = functions.create(address(work) + start, len(work) - start)
    if not context:
        return 0
    # A context in memory of ours begins with all parameters zero.
    for parameter, value in ((_LEVEL, level), (_CONTENT_SIZE, 1), (_CHECKSUM, int(checksum))):
        if functions.is_error(functions.set_parameter(context, parameter, value)):
            return 0
    length: int = functions.compress(context, address(out), len(out), address(content), len(content))
    return 0 if functions.is_error(length) else length


def zstd_context_bytes(level: int, size: int) -> int:
    """Return how many bytes Zstandard needs to compress ``size`` bytes in one call; 0 if it cannot be asked."""
    functions = _zstd()
    if functions is None:
        return 0
    estimated: int = functions.estimate(functions.parameters(level, size, 0))
    return 0 if functions.is_error(estimated) else estimated + _ALIGNMENT


def lz4_into(content: memoryview, out: memoryview, *, acceleration: int) -> int:
    """Write ``content`` to ``out`` as numcodecs stores LZ4; return the length, 0 if that cannot be."""
    function = _lz4()
    if function is None or not content:
        return 0
    out[:_LZ4_HEADER] = len(content).to_bytes(_LZ4_HEADER, "little")
    block = out[_LZ4_HEADER:]
    length: int = function(address(content), address(block), len(content), len(block), acceleration)
    return length + _LZ4_HEADER if length > 0 else 0


@functools.cache
def _zstd() -> _Zstd | None:
    size, pointer = ctypes.c_size_t, ctypes.c_void_p
    try:
        library = ctypes.CDLL(zstd.__file__)
        return _Zstd(
            create=_typed(library.ZSTD_initStaticCCtx, pointer, pointer, size),
            set_parameter=_typed(library.ZSTD_CCtx_setParameter, size, pointer, ctypes.c_int, ctypes.c_int),
            compress=_typed(library.ZSTD_compress2, size, pointer, pointer, size, pointer, size),
            is_error=_typed(library.ZSTD_isError, ctypes.c_uint, size),
            parameters=_typed(library.ZSTD_getCParams, _Parameters, ctypes.c_int, ctypes.c_ulonglong, size),
            estimate=_typed(library.ZSTD_estimateCCtxSize_usingCParams, size, _Parameters),
        )
    except (AttributeError, OSError, TypeError):
        return None


@functools.cache
def _lz4() -> Any | None:
    number, pointer = ctypes.c_int, ctypes.c_void_p
    try:
        function = ctypes.CDLL(lz4.__file__).LZ4_compress_fast
    except (AttributeError, OSError, TypeError):
        return None
    return _typed(function, number, pointer, pointer, number, number, number)


def _typed(function: Any, result: Any, *arguments: Any) -> Any:
    function.restype, function.argtypes = result, arguments
    return function
