"""Blosc frames made straight in a buffer of ours, by the C function that numcodecs brings.

``numcodecs.blosc.compress`` returns new bytes: for a chunk of 2 MB, 2 MB of fresh pages for the frame at its longest,
then a copy of what it came to. Over 2 GB of such chunks the kernel handed out 185,000 pages, a tenth of the copy's
processor time. The extension module of numcodecs exports the function beneath (`blosc_compress_ctx
<https://github.com/Blosc/c-blosc/blob/main/blosc/blosc.h>`_); where it does not, as on systems that hide such names,
numcodecs' own function serves as before.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numcodecs import blosc

MOST_OVERHEAD = 16
"""Bytes by which a frame may be longer than what it holds (BLOSC_MAX_OVERHEAD)."""

_Compress: TypeAlias = Callable[..., int]


def compress_into(  # noqa: PLR0913 - the arguments of the C function
    content: memoryview, out: memoryview, *, cname: bytes, clevel: int, shuffle: int, blocksize: int, typesize: int
) -> int:
    """Write the Blosc frame of ``content`` to the beginning of ``out`` and return its length; 0 if that cannot be.

    Parameters
    ----------
    content : memoryview
        Contiguous bytes.
    out : memoryview
        At least :data:`MOST_OVERHEAD` bytes more than ``content``.
    cname, clevel, shuffle, blocksize, typesize
        As ``numcodecs.blosc.compress`` takes them; ``shuffle`` is 0, 1 or 2.
    """
    function = _function()
    if function is None or shuffle not in {blosc.NOSHUFFLE, blosc.SHUFFLE, blosc.BITSHUFFLE}:
        return 0
    length = function(
        clevel, shuffle, typesize, len(content), address(content), address(out), len(out), cname, blocksize, 1
    )
    return max(0, length)  # negative for an error, which numcodecs' function words


def can_compress_into() -> bool:
    """Whether :func:`compress_into` works on this system."""
    return _function() is not None


@functools.cache
def _function() -> _Compress | None:
    try:
        function = ctypes.CDLL(blosc.__file__).blosc_compress_ctx
    except (AttributeError, OSError, TypeError):
        return None
    size, pointer = ctypes.c_size_t, ctypes.c_void_p
    function.restype = ctypes.c_int
    function.argtypes = (
        *(ctypes.c_int, ctypes.c_int, size),  # clevel, shuffle, typesize
        *(size, pointer, pointer, size),  # nbytes, src, dest, destsize
        *(ctypes.c_char_p, size, ctypes.c_int),  # compressor, blocksize, threads
    )
    return function


def address(buffer: memoryview) -> int:
    """Return where the memory of a buffer begins."""
    if not buffer.readonly and len(buffer):
        return ctypes.addressof(ctypes.c_char.from_buffer(buffer))  # a fourth of the time
    array: Any = np.frombuffer(buffer, np.uint8)
    return int(array.ctypes.data)
