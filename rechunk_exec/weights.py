"""Weights of positions: odd 64-bit numbers, one for each index of an axis. Layer: the ground, below the digest.

They are SplitMix64 outputs (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014). That of an
index from 4096 on is the product of one for each of its digits to that base, since a product is quicker made than a
random number.
"""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]

_BASE = 1 << 12
"""To which the digits of indices are. Weights of digits are kept: 32 KiB for each that an axis needs."""


def axis_weights(axis: int, first: int, count: int, digit: int = 0) -> Words:
    """Return the weights of indices ``first`` to ``first + count`` of an axis: odd 64-bit numbers, not to be changed.

    Of indices without their lowest digits, if ``digit`` is not 0.
    """
    kept = _digit_weights(axis, digit)
    if first + count <= _BASE:
        return kept[first : first + count]
    low, high = first // _BASE, -(-(first + count) // _BASE)
    weights: Words = np.multiply.outer(axis_weights(axis, low, high - low, digit + 1), kept).reshape(-1)
    return weights[first - low * _BASE :][:count]


@functools.cache
def _digit_weights(axis: int, digit: int) -> Words:
    """Return the weights of the values of one digit; a leading zero has none, which is a weight of 1."""
    state = np.arange(_BASE, dtype=np.uint64)
    state += np.uint64(((axis + 2) << 40) + (digit << 20) + 1)
    state *= np.uint64(0x9E3779B97F4A7C15)
    weights = mixed(state) | np.uint64(1)
    if digit:
        weights[0] = 1
    weights.flags.writeable = False
    return weights


def mixed(state: Words) -> Words:
    """Return SplitMix64's outputs for some states, which are overwritten."""
    state ^= state >> np.uint64(30)
    state *= np.uint64(0xBF58476D1CE4E5B9)
    state ^= state >> np.uint64(27)
    state *= np.uint64(0x94D049BB133111EB)
    state ^= state >> np.uint64(31)
    return state
