"""Digests that do not depend on chunking. Layer: the ground, beside :mod:`rechunk_exec.grid`; NumPy only.

The digest of a box is the sum, modulo 2**64, over its elements of the element's bits times a weight of its position:
the product of one odd 64-bit number for each axis index. That of an index from 4096 on is itself the product of one for
each of its digits to that base, since a product is quicker made than a random number. So the digest of an array is the
sum of the digests of any boxes that tile it, whoever computes them and however they are cut. NaN payloads and the sign
of zero are bits like others. An element counts as one or more words of up to 64 bits, a text as a 64-bit hash of its
characters. In words of 32 and 64 bits the upper half is first added to the lower one, without carry: no bits are lost
by that, and a change of signs alone does not stay in the one bit that is the same after a product with any odd number.

**What is seen.** A change of one element always is, since its weight is odd. Two or more changes go unseen if their
differences times their weights add up to zero. For changes that do not know the weights that is one chance in 2**64
where they differ among themselves, and one in 2**(63 - k) where it is the same change again and its lowest bit, after
that addition, is the k-th: 2**63 for the low bits of a number, 2**47 for signs of float32, 2**32 for signs of float64.
Equal changes at all corners of a box multiply the differences of weights, which costs three or four bits more for each
axis, and for each further digit of its indices. The same holds for elements that changed places. An array of zero bits
has the digest 0 whatever its shape, so shapes and dtypes are compared besides. It guards against accidents: who knows
the weights can make a change that is not seen.

**What a sample sees.** Where ``d`` of ``n`` boxes differ and ``k`` are looked at, one of the ``d`` is among them with a
chance of ``1 - C(n - d, k) / C(n, k)``, more than ``1 - (1 - d/n)**k``: a sample of 1 % of 10,000 boxes finds a change
in 3 % of them in 95 of 100 cases, and a change in one box in one of 100.

The weights are SplitMix64 outputs (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rechunk_exec.bytesums import ByteSums, Words

_BLOCK_BYTES = 1 << 20
"""Elements are widened to 64 bits a block at a time, so that a block stays in the cache."""
_STRIP_BYTES = 1 << 11
"""Bytes of a row whose weights are cut into limbs at once: these are 32 times as much."""
_FEWEST_ROWS, _FEWEST_BYTES = 128, 64
"""From here on products of matrices are faster than sums of 64-bit words."""
_BASE = 1 << 12
"""To which the digits of indices are. Weights of digits are kept: 32 KiB for each that an axis needs."""
_TEXTS = 4096
"""Texts that are hashed at once."""
_SHORT_TEXT = 64
"""Texts of more characters are hashed one by one."""


def work_bytes(dtype: np.dtype[Any]) -> int:
    """Return how many bytes :func:`box_digest` works in at most, whatever the size of the box; measured."""
    return (7 if dtype.kind == "V" else 4) * _BLOCK_BYTES


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
    if elements.size == 0:
        return 0
    whole = [_Cut(first, n, first + n) for first, n in zip(start, elements.shape, strict=True)]
    # A unit that reaches from index 0 to the box's end is one that the box does not cross.
    return int(_digests(elements, whole).reshape(-1)[0])


def grid_digests(elements: NDArray[Any], start: Sequence[int], unit: Sequence[int]) -> Words:
    """Return the digests of the parts into which a grid cuts a box of an array.

    Parameters
    ----------
    elements : ndarray
        The box, of any dtype.
    start : sequence of int
        Where the box's first element is in the array, on each axis.
    unit : sequence of int
        The grid: elements of one cell on each axis, counted from the array's first element.

    Returns
    -------
    ndarray of uint64
        One digest for each cell that the box touches, with as many axes as the box: the first is of cell
        ``start // unit``.

    Examples
    --------
    >>> whole = np.arange(12, dtype="f4").reshape(3, 4)
    >>> cells = grid_digests(whole[:, 1:], (0, 1), (3, 2))
    >>> cells.shape, int(cells[0, 1]) == box_digest(whole[:, 2:], (0, 2))
    ((1, 2), True)
    """
    return _digests(elements, [_Cut(*axis) for axis in zip(start, elements.shape, unit, strict=True)])


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
    weights = _mixed(state) | np.uint64(1)
    if digit:
        weights[0] = 1
    weights.flags.writeable = False
    return weights


def _mixed(state: Words) -> Words:
    """Return SplitMix64's outputs for some states, which are overwritten."""
    state ^= state >> np.uint64(30)
    state *= np.uint64(0xBF58476D1CE4E5B9)
    state ^= state >> np.uint64(27)
    state *= np.uint64(0x94D049BB133111EB)
    state ^= state >> np.uint64(31)
    return state


@dataclass(frozen=True, slots=True)
class _Cut:
    """How a grid cuts a run of indices of one axis."""

    first: int
    count: int
    unit: int
    """Indices of one cell, counted from 0."""

    @property
    def cells(self) -> int:
        """Cells touched."""
        return -(-(self.first + self.count) // self.unit) - self.first // self.unit if self.count else 0

    def part(self, low: int, high: int) -> _Cut:
        """Return the cut of the run's indices ``low`` to ``high``, counted from its first."""
        return _Cut(self.first + low, high - low, self.unit)

    def place(self, part: _Cut) -> slice:
        """Return where the cells of a part are among the cells of this run."""
        low = part.first // self.unit - self.first // self.unit
        return slice(low, low + part.cells)

    def strips(self, limit: int) -> Iterator[_Cut]:
        """Cut the run into some of at most ``limit`` indices: each of cells of one size, or a part of one cell."""
        for low, cells, size in self.runs():
            high = low + cells * size
            whole = max(1, limit // size) * size
            for start in range(low, high, whole):
                stop = min(start + whole, high)
                for first in range(start, stop, limit):
                    yield self.part(first, min(first + limit, stop))

    def runs(self) -> Iterator[tuple[int, int, int]]:
        """Yield runs of cells of one size: the first index in the run, the number of cells, the indices of each."""
        head = min(self.count, -self.first % self.unit)
        whole = (self.count - head) // self.unit
        tail = self.count - head - whole * self.unit
        yield from ((low, n, size) for low, n, size in ((0, 1, head), (head, whole, self.unit)) if n * size)
        if tail:
            yield self.count - tail, 1, tail


class _BoxWeights:
    """The weights of a box's indices. Made anew for each part they would be most of the work, so they are kept."""

    def __init__(self, cuts: Sequence[_Cut]) -> None:
        self._cuts = cuts
        # But for an axis too long to keep.
        self._kept = [
            axis_weights(axis, cut.first, cut.count) if cut.count * 8 <= _BLOCK_BYTES else None
            for axis, cut in enumerate(cuts)
        ]

    def parts(self, parts: Sequence[_Cut]) -> list[Words]:
        """Return the weights of a part of the box, axis by axis."""
        return [
            axis_weights(axis, part.first, part.count)
            if kept is None
            else kept[part.first - cut.first : part.first - cut.first + part.count]
            for axis, (kept, cut, part) in enumerate(zip(self._kept, self._cuts, parts, strict=True))
        ]


def _digests(elements: NDArray[Any], cuts: Sequence[_Cut]) -> Words:
    """Return the digests of the cells into which ``cuts`` cut the elements."""
    if elements.size and _are_rows_of_bytes(elements, cuts):
        return _digests_of_rows(elements, cuts)
    out = np.zeros([cut.cells for cut in cuts], np.uint64)
    if elements.size == 0:
        return out
    weights_of = _BoxWeights(cuts)
    width = max(8, elements.dtype.itemsize)
    for low, high in _blocks(elements.shape, max(1, _BLOCK_BYTES // width)):
        parts = [cut.part(a, b) for cut, a, b in zip(cuts, low, high, strict=True)]
        index: Any = (*map(slice, low, high), ...)
        block = elements[index]
        out[tuple(cut.place(part) for cut, part in zip(cuts, parts, strict=True))] += _block_digests(
            block, parts, weights_of.parts(parts)
        )
    return out


def _are_rows_of_bytes(elements: NDArray[Any], cuts: Sequence[_Cut]) -> bool:
    """Whether elements are of one byte, in long cells of many rows."""
    if elements.dtype.kind not in "biu" or elements.dtype.itemsize != 1 or not cuts:
        return False
    return min(cuts[-1].unit, cuts[-1].count) >= _FEWEST_BYTES and elements.size >= _FEWEST_ROWS * cuts[-1].count


def _digests_of_rows(elements: NDArray[Any], cuts: Sequence[_Cut]) -> Words:
    """Return the same as :func:`_digests`, for elements of one byte: the last axis is added up first, in strips."""
    out = np.zeros([cut.cells for cut in cuts], np.uint64)
    *leading, last = cuts
    weights_of = _BoxWeights(leading)
    for strip in last.strips(_STRIP_BYTES):
        weights = axis_weights(len(leading), strip.first, strip.count) * axis_weights(-1, 0, 1)
        byte_sums = ByteSums(weights.reshape(strip.cells, -1), elements.size // last.count)
        columns = slice(strip.first - last.first, strip.first - last.first + strip.count)
        for low, high in _blocks(elements.shape[:-1], max(1, _BLOCK_BYTES // strip.count)):
            parts = [cut.part(a, b) for cut, a, b in zip(leading, low, high, strict=True)]
            block = elements[(*map(slice, low, high), columns)]
            sums = byte_sums.of(block.view(np.uint8).reshape(-1, strip.count))
            sums = sums.reshape(*block.shape[:-1], strip.cells)
            for axis, (part, weights) in enumerate(zip(parts, weights_of.parts(parts), strict=True)):
                sums = _added_up(sums, axis, part, weights)
            out[(*(cut.place(part) for cut, part in zip(leading, parts, strict=True)), last.place(strip))] += sums
    return out


def _blocks(shape: tuple[int, ...], limit: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Cut a box into boxes of at most ``limit`` elements, each one run of its memory."""
    steps = [1] * len(shape)
    for axis in reversed(range(len(shape))):
        steps[axis] = max(1, min(shape[axis], limit // prod(steps[axis + 1 :])))
        if steps[axis] < shape[axis]:
            break
    for low in product(*(range(0, n, step) for n, step in zip(shape, steps, strict=True))):
        yield low, tuple(min(a + step, n) for a, step, n in zip(low, steps, shape, strict=True))


def _block_digests(block: NDArray[Any], cuts: Sequence[_Cut], weights: Sequence[Words]) -> Words:
    """Return the digests of a block's cells: its axes are added up one after the other."""
    sums = _words(block)
    words = sums.shape[-1]
    # The words of an element are an axis like others, but numbered the same whatever the dimensions of the array.
    cuts, weights = [*cuts, _Cut(0, words, words)], [*weights, axis_weights(-1, 0, words)]
    # The axis that leaves least to add up comes first.
    for axis in sorted(range(len(cuts)), key=lambda axis: cuts[axis].cells / cuts[axis].count):
        sums = _added_up(sums, axis, cuts[axis], weights[axis])
    return sums.reshape(sums.shape[:-1])


def _added_up(words: Words, axis: int, cut: _Cut, weights: Words) -> Words:
    """Return the sums, over the cells of one axis, of words times weights."""
    shape = words.shape
    if cut.count == 1:
        scaled: Words = words * weights[0]
        return scaled
    words = words.reshape(prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :]))
    sums = np.empty((words.shape[0], cut.cells, words.shape[2]), np.uint64)
    cell = 0
    for low, cells, size in cut.runs():
        high = low + cells * size
        run = words[:, low:high].reshape(words.shape[0], cells, size, words.shape[2])
        weight = weights[low:high].reshape(cells, size)
        np.einsum("pcsq,cs->pcq", run, weight, out=sums[:, cell : cell + cells])
        cell += cells
    return sums.reshape(*shape[:axis], cut.cells, *shape[axis + 1 :])


def _words(elements: NDArray[Any]) -> Words:
    """Return the bits of elements as 64-bit words along one more axis; the lower halves of wide ones mixed."""
    if elements.dtype.hasobject or elements.dtype.kind == "T":
        return _text_hashes(elements.reshape(-1)).reshape(*elements.shape, 1)
    dtype = elements.dtype
    if dtype.kind in "biufmM" and dtype.itemsize in (1, 2, 4, 8):  # one word, in any order of bytes and any layout
        order = ">" if dtype.newbyteorder("<") != dtype else "<"
        bits = elements.view(f"{order}u{dtype.itemsize}")[..., None]
    else:
        little = dtype.newbyteorder("<")
        contiguous = np.ascontiguousarray(elements, dtype=little).reshape(elements.shape)
        width = next((width for width in (8, 4, 2, 1) if little.itemsize % width == 0 and little.itemsize), 1)
        if not little.itemsize:
            return np.zeros((*elements.shape, 1), np.uint64)
        bits = contiguous.reshape(*elements.shape, 1).view(f"<u{width}")
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
    return _mixed(sums)


def _text_weights() -> Words:
    """Return the weights of lengths, from 0 to that of the longest short text, then those of places in a text."""
    return axis_weights(-2, 0, 2 * _SHORT_TEXT + 1)


def _long_hash(text: str | bytes) -> int:
    content = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")
