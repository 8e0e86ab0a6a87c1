"""Sums of bytes times 64-bit weights, by products of matrices. Layer: the ground, below the digest; NumPy only.

Processors multiply many float32 at once, and 64-bit integers slowly. So each weight is cut into eight limbs of 8 bits.
A byte times a limb is below 2**16, and 256 such products add up to less than 2**24: in float32 they are exact, in
whatever order they are added up. The sums for the eight limbs then make one of 64 bits.

A matrix of 64 rows of 256 bytes times one of 256 weights is so small that OpenBLAS, with which NumPy's wheels come,
does it in the thread that asks: tasks have threads of their own.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]

_LIMBS = np.arange(0, 64, 8, dtype=np.uint64)
"""Where each limb of a weight starts, in bits."""
_EXACT = 256
"""Bytes whose products with limbs float32 adds up exactly: 256 * 255 * 255 < 2**24."""
_ROWS = 64
"""Rows of one product."""
_BYTES_AT_ONCE = 1 << 17
"""Bytes that are widened to float32 at once, so that they stay in the cache."""


class ByteSums:
    """Adds up runs of bytes times weights, for many rows.

    Parameters
    ----------
    weights : ndarray of uint64, shape (runs, n)
        The weight of each byte of a row: a row is that many runs of ``n`` bytes, each with a sum of its own.
    rows : int
        How many rows there will be; any number is right.
    """

    def __init__(self, weights: Words, rows: int) -> None:
        runs, self._run_bytes = weights.shape
        parts = -(-self._run_bytes // _EXACT)
        width = -(-self._run_bytes // parts)
        padded = np.zeros((runs, parts * width), np.uint64)
        padded[:, : self._run_bytes] = weights
        limbs = padded.reshape(runs, parts, 1, width) >> _LIMBS[:, None] & np.uint64(0xFF)
        self._limbs = limbs.astype(np.float32)  # runs, parts, limbs, bytes of a part
        groups = max(1, min(-(-rows // _ROWS), _BYTES_AT_ONCE // (_ROWS * padded.size)))
        self._widened = np.zeros((groups * _ROWS, *padded.shape), np.float32)
        # A part's bytes stand in columns, one for each row.
        self._columns = self._widened.reshape(groups, _ROWS, runs, parts, width).transpose(0, 2, 3, 4, 1)

    def of(self, rows: NDArray[np.uint8]) -> Words:
        """Return the sums of rows, modulo 2**64.

        Parameters
        ----------
        rows : ndarray of uint8, shape (rows, runs * n)

        Returns
        -------
        ndarray of uint64, shape (rows, runs)
        """
        runs = len(self._limbs)
        sums = np.empty((len(rows), runs), np.uint64)
        at_once = len(self._widened)
        for low in range(0, len(rows), at_once):
            some = rows[low : low + at_once]
            self._widened[: len(some), :, : self._run_bytes] = some.reshape(len(some), runs, self._run_bytes)
            groups = -(-len(some) // _ROWS)
            products = np.matmul(self._limbs, self._columns[:groups]).astype(np.uint64)
            added = np.einsum("grplc,l->gcr", products, np.uint64(1) << _LIMBS)
            sums[low : low + at_once] = added.reshape(-1, runs)[: len(some)]
        return sums
