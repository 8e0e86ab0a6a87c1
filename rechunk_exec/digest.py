"""Digests that do not depend on chunking. Layer: the ground, beside :mod:`rechunk_exec.grid`; NumPy only.

The digest of a box is the sum, modulo 2**64, over its elements of the element's bits times a weight of its position:
the product of one odd 64-bit number for each axis index. So the digest of an array is the sum of the digests of any
boxes that tile it, whoever computes them and however they are cut. NaN payloads and the sign of zero are bits like
others.

Weights are odd, so that a change of a single element always changes the sum. Two changes cancel only if their
differences times their weights do, and moved elements go unseen only if their weights agree in the bits that count: for
changes that do not know the weights, one in 2**64 where the lowest bits change, and one in 2**(64 - k) where only bits
from the k-th up do. The weights are SplitMix64 outputs (Steele, Lea and Flood, "Fast splittable pseudorandom number
generators", 2014).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

_BLOCK_BYTES = 1 << 18
"""Elements are widened to 64 bits a piece at a time, so that the pieces stay in the cache."""


def box_digest(elements: NDArray[Any], start: Sequence[int]) -> int:
    """Return the digest of a box of an array.

    Parameters
    ----------
    elements : ndarray
        The box, of any dtype; strings and objects count by a hash of each element's text.
    start : sequence of int
        Where the box's first element is in the array, on each axis.

    Examples
    --------
    >>> whole = np.arange(12, dtype="f4").reshape(3, 4)
    >>> parts = box_digest(whole[:, :1], (0, 0)) + box_digest(whole[:, 1:], (0, 1))
    >>> box_digest(whole, (0, 0)) == parts % 2**64
    True
    """
    words = _words(elements)
    axes = [*zip(start, elements.shape, strict=True), (0, words.shape[-1])]
    weights = [axis_weights(axis, first, count) for axis, (first, count) in enumerate(axes)]
    # The words of an element are an axis like others, but numbered the same whatever the dimensions of the array.
    weights[-1] = axis_weights(-1, 0, words.shape[-1])
    if words.size == 0:
        return 0
    flat = words.reshape(-1, words.shape[-2], words.shape[-1]) if words.ndim > 1 else words.reshape(1, 1, -1)
    inner = (weights[-2][:, None] * weights[-1]).reshape(-1) if len(weights) > 1 else weights[-1]
    rows = flat.reshape(flat.shape[0], -1)
    sums = np.empty(rows.shape[0], np.uint64)
    step = max(1, _BLOCK_BYTES // (rows.shape[1] * 8))
    for low in range(0, rows.shape[0], step):
        sums[low : low + step] = rows[low : low + step].astype(np.uint64) @ inner
    for axis in reversed(range(len(weights) - 2)):
        sums = sums.reshape(-1, weights[axis].size) @ weights[axis]
    return int(sums.reshape(-1)[0])


def axis_weights(axis: int, first: int, count: int) -> NDArray[np.uint64]:
    """Return the weights of indices ``first`` to ``first + count`` of an axis: odd 64-bit numbers."""
    state = np.arange(first, first + count, dtype=np.uint64) + np.uint64((axis + 2) << 40)
    state = (state + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (state ^ (state >> np.uint64(31))) | np.uint64(1)


def _words(elements: NDArray[Any]) -> NDArray[Any]:
    """Return the bits of elements as unsigned words along one more axis, in little-endian order."""
    if elements.dtype.hasobject or elements.dtype.kind == "T":
        hashes = [_text_hash(element) for element in elements.reshape(-1)]
        return np.array(hashes, dtype=np.uint64).reshape(*elements.shape, 1)
    little = elements.dtype.newbyteorder("<")
    contiguous = np.ascontiguousarray(elements, dtype=little).reshape(elements.shape)
    size = little.itemsize
    width = next((width for width in (8, 4, 2, 1) if size % width == 0 and size), 1)
    return contiguous.reshape(*elements.shape, 1).view(f"<u{width}") if size else np.zeros((*elements.shape, 1), "u1")


def _text_hash(element: object) -> int:
    content = element if isinstance(element, bytes) else str(element).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")
