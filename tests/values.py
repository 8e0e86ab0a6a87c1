"""Values that depend on position, and comparison bit for bit."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

Array = NDArray[Any]


def position_values(shape: tuple[int, ...], dtype: DTypeLike, seed: int = 0) -> Array:
    """An array whose every element is a hash of its flat index: what is misplaced or missing does not compare equal.

    Floats run over all bit patterns, NaNs of any payload and -0.0 among them; NaT may be among datetimes.
    """
    kind = np.dtype(dtype)
    count = math.prod(shape)
    if kind.hasobject or kind.kind == "T":
        texts = [f"{seed}:{number}" + "é" * (number % 5) for number in range(count)]
        return np.array(texts, dtype=kind).reshape(shape)
    if kind.kind == "U":  # not all 32-bit numbers are characters
        codes = _hash_bytes(count * kind.itemsize // 2, seed).view("u2") % 0x500 + 1
        return codes.astype(f"{kind.str[0]}u4").view(kind).reshape(shape)
    octets = _hash_bytes(count * kind.itemsize, seed)
    if kind.kind == "b":
        octets &= 1
    if kind.kind == "S":
        octets |= 1  # a trailing zero byte would be no part of the text
    return octets.view(kind).reshape(shape)


def _hash_bytes(count: int, seed: int) -> NDArray[np.uint8]:
    words = np.arange(-(-count // 8), dtype="u8") + np.uint64((seed << 40) + 0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(31))) * np.uint64(0xD6E8FEB86659FD93)
    words = (words ^ (words >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    return (words ^ (words >> np.uint64(32))).view("u1")[:count].copy()


def same_bits(a: Array, b: Array) -> bool:
    """Whether two arrays have one shape, one dtype but for the byte order, and the same bits; texts by element."""
    if a.shape != b.shape:
        return False
    if a.dtype.hasobject or a.dtype.kind == "T" or b.dtype.hasobject or b.dtype.kind == "T":
        return [str(item) for item in a.ravel()] == [str(item) for item in b.ravel()]
    if a.dtype.newbyteorder("<") != b.dtype.newbyteorder("<"):
        return False
    return a.astype(a.dtype.newbyteorder("<")).tobytes() == b.astype(b.dtype.newbyteorder("<")).tobytes()
