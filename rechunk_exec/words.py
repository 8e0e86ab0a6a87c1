"""What elements count as in a digest: words of 64 bits. Layer: the ground, below the digest, which says more."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rechunk_exec.weights import Words, axis_weights, mixed

WORD_BYTES = 8
"""Narrow elements are taken so many bytes at a time."""
_UPPER = np.uint64(0x9E3779B9)
"""By which the upper half of such a word is multiplied, when it is added to the whole."""
_SHORT_ROW = 24
"""Rows of fewer elements are copied element by element, many rows at once."""
_TEXTS = 4096
"""Texts that are hashed at once."""
_SHORT_TEXT = 64
"""Texts of more characters are hashed one by one."""


def is_narrow(dtype: np.dtype[Any]) -> bool:
    """Whether several elements make a word."""
    return dtype.itemsize in (1, 2) and not dtype.hasobject


def packed_words(elements: NDArray[Any], before: int, each: int) -> Words:
    """Return narrow elements as words, along the last axis, with ``before`` zeros before the first one."""
    little = elements.dtype.newbyteorder("<")
    bits = elements.astype(little, copy=False).view(f"<u{little.itemsize}")
    count = bits.shape[-1]
    if not before and count % each == 0 and bits.strides[-1] == bits.itemsize:
        return bits.view("<u8")
    words = np.zeros((*bits.shape[:-1], -(-(before + count) // each)), "<u8")
    among = words.view(bits.dtype)[..., before : before + count]
    if count < _SHORT_ROW:
        for number in range(count):
            among[..., number] = bits[..., number]
    else:
        among[...] = bits
    return words


def mixed_halves(words: Words) -> Words:
    """Return words with the upper half of each, times an odd number, added to the whole."""
    halves = words >> np.uint64(32)
    halves *= _UPPER
    halves += words
    return halves


def element_words(elements: NDArray[Any]) -> Words:
    """Return the bits of elements as 64-bit words along one more axis; the lower halves of wide ones mixed."""
    if elements.dtype.hasobject or elements.dtype.kind == "T":
        return _text_hashes(elements.reshape(-1)).reshape(*elements.shape, 1)
    dtype = elements.dtype
    if not dtype.itemsize:
        return np.zeros((*elements.shape, 1), np.uint64)
    if dtype.kind in "biufmM" and dtype.itemsize in (1, 2, 4, 8):  # one word, in any order of bytes and any layout
        order = ">" if dtype.newbyteorder("<") != dtype else "<"
        bits = elements.view(f"{order}u{dtype.itemsize}")[..., None]
    else:
        little = dtype.newbyteorder("<")
        octets = np.ascontiguousarray(elements, dtype=little).reshape(*elements.shape, 1).view(np.uint8)
        if dtype.itemsize % 4:
            bits = packed_words(octets, 0, WORD_BYTES)
        else:
            bits = octets.view("<u8" if dtype.itemsize % 8 == 0 else "<u4")
    if bits.dtype.itemsize >= 4:
        upper = bits >> bits.dtype.type(4 * bits.dtype.itemsize)
        bits = np.bitwise_xor(bits, upper, out=upper)
    return bits.astype(np.uint64, copy=False)


def _text_hashes(elements: NDArray[Any]) -> Words:
    """Return a 64-bit hash of each text, bytes or other object (by its text)."""
    hashes = np.empty(elements.size, np.uint64)
    for low in range(0, elements.size, _TEXTS):
        texts, lengths = _measured(elements[low : low + _TEXTS])
        found = hashes[low : low + _TEXTS]
        short = lengths <= _SHORT_TEXT
        if short.all():
            found[:] = _short_hashes(texts, lengths)
        else:
            found[short] = _short_hashes(texts[short], lengths[short])
            found[~short] = [_long_hash(text) for text in texts[~short].tolist()]
    return hashes


def _measured(elements: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.intp]]:
    """Return texts and their lengths in characters; bytes count as long ones."""
    if elements.dtype.kind == "T" and not hasattr(elements.dtype, "na_object"):
        # NumPy before 2.5 leaves out zeros at a text's end: so none is to end in one.
        return elements, np.strings.str_len(np.strings.add(elements, "x")) - 1
    texts = elements.astype(object)
    if set(map(type, texts.tolist())) != {str}:
        texts[:] = [text if isinstance(text, bytes) else str(text) for text in texts.tolist()]
    lengths = [_SHORT_TEXT + 1 if isinstance(text, bytes) else len(text) for text in texts.tolist()]
    return texts, np.array(lengths, np.intp)


def _short_hashes(texts: NDArray[Any], lengths: NDArray[np.intp]) -> Words:
    """Return the hashes of short texts: the sum of characters times weights of their place in the text, mixed.

    The sum starts from the length's own weight, so that characters of code 0 count too.
    """
    width = max(1, int(lengths.max(initial=0)))
    codes = texts.astype(f"<U{width}").view("<u4").reshape(texts.size, width).astype(np.uint64)
    weights = _text_weights()
    sums = np.einsum("tc,c->t", codes, weights[_SHORT_TEXT + 1 :][:width])
    sums += weights[lengths]
    return mixed(sums)


def _text_weights() -> Words:
    """Return the weights of lengths, from 0 to that of the longest short text, then those of places in a text."""
    return axis_weights(-2, 0, 2 * _SHORT_TEXT + 1)


def _long_hash(text: str | bytes) -> int:
    content = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")
