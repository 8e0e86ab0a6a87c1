"""Digests that do not depend on chunking. Layer: the ground, beside :mod:`rechunk_exec.grid`; NumPy only.

The digest of a box is the sum, modulo 2**64, over its elements of the element's bits times a weight of its position:
the product of one odd 64-bit number for each axis index (:mod:`rechunk_exec.weights`). So the digest of an array is the
sum of the digests of any boxes that tile it, whoever computes them and however they are cut. NaN payloads and the sign
of zero are bits like others. An element counts as one or more words of up to 64 bits, a text as a 64-bit hash of its
characters. In words of 32 and 64 bits the upper half is first added to the lower one, without carry: no bits are lost
by that, and a change of signs alone does not stay in the one bit that is the same after a product with any odd number.

Elements of one or two bytes are taken eight bytes at a time, as many as stand side by side along the last axis: those
of indices ``8 * i`` to ``8 * i + 7``, or ``4 * i`` to ``4 * i + 3``, are one word, of index ``i``. What a box does not
have of a word counts as zeros. So that the parts of a word that is cut still add up, its upper half, times an odd
number, is added to it with carry.

**What is seen.** A change of one element always is: its weight is odd, or in a word of several at most 2**24 times an
odd number. Two or more changes go unseen if their differences times their weights add up to zero. For changes that do
not know the weights that is one chance in 2**64 where they differ among themselves, and one in 2**(63 - k) where it is
the same change again and its lowest bit, after that addition, is the k-th: 2**63 for the low bits of a number, 2**48
for signs of float32, 2**32 for signs of float64, 2**39 for masks in which some of every fourth values change, never
fewer than 2**32. Equal changes at all corners of a box multiply the differences of weights, which costs three or four
bits more for each axis, and for each further digit of its indices. The same holds for elements that changed places. An
array of zero bits has the digest 0 whatever its shape, so shapes and dtypes are compared besides. It guards against
accidents: who knows the weights can make a change that is not seen.

**What a sample sees.** Where ``d`` of ``n`` boxes differ and ``k`` are looked at, one of the ``d`` is among them with a
chance of ``1 - C(n - d, k) / C(n, k)``, more than ``1 - (1 - d/n)**k``: a sample of 1 % of 10,000 boxes finds a change
in 3 % of them in 95 of 100 cases, and a change in one box in one of 100.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rechunk_exec.weights import Words, axis_weights
from rechunk_exec.words import WORD_BYTES, element_words, is_narrow, mixed_halves, packed_words

_BLOCK_BYTES = 1 << 20
"""Elements are widened to 64 bits a block at a time, so that a block stays in the cache."""
_SHORT_ROW = 24
"""Adding up fewer words side by side than these takes long."""


def work_bytes(dtype: np.dtype[Any]) -> int:
    """Return how many bytes :func:`box_digest` works in at most, whatever the size of the box; measured."""
    return (6 if dtype.kind == "V" or is_narrow(dtype) else 4) * _BLOCK_BYTES


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

    def packed(self, each: int) -> _Cut:
        """Return the cut of words of so many elements. If cells would cut some of them, there is one cell."""
        first, end = self.first // each, -(-(self.first + self.count) // each)
        return _Cut(first, end - first, end if self.unit % each else self.unit // each)

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
    if elements.size and cuts and is_narrow(elements.dtype):
        return _packed_digests(elements, cuts, WORD_BYTES // elements.dtype.itemsize)
    out = np.zeros([cut.cells for cut in cuts], np.uint64)
    if elements.size == 0:
        return out
    weights_of = _BoxWeights(cuts)
    width = max(8, elements.dtype.itemsize)
    for block, parts, place in _blocks(elements, cuts, max(1, _BLOCK_BYTES // width)):
        out[place] += _block_digests(element_words(block), parts, weights_of.parts(parts))
    return out


def _packed_digests(elements: NDArray[Any], cuts: Sequence[_Cut], each: int) -> Words:
    """Return the digests of the cells into which ``cuts`` cut narrow elements, of which ``each`` make a word."""
    out = np.zeros([cut.cells for cut in cuts], np.uint64)
    weights_of = _BoxWeights([*cuts[:-1], cuts[-1].packed(each)])
    # Words that are cut are copied, and their weights too.
    block_bytes = _BLOCK_BYTES if _keeps_words_whole(cuts[-1], each) else _BLOCK_BYTES // 2
    limit = block_bytes * cuts[-1].count // (WORD_BYTES * _words_of(cuts[-1], each))
    for block, (*leading, last), place in _blocks(elements, cuts, max(1, limit)):
        sums, packed = out[place], last.packed(each)
        *weights, of_words = weights_of.parts([*leading, packed])
        before = last.first % each
        words = packed_words(block, before, each)
        if _keeps_words_whole(last, each):
            mixed = words if before + last.count <= each // 2 else mixed_halves(words)
            sums += _block_digests(mixed[..., None], [*leading, packed], [*weights, of_words])
            continue
        for cells, numbers, some in _words_of_cells(words, last, each):
            cut = _Cut(0, numbers.size, numbers.shape[-1])
            mixed = mixed_halves(some).reshape(*words.shape[:-1], -1, 1)
            last_weights = of_words.take(numbers, mode="clip").reshape(-1)
            sums[..., cells] += _block_digests(mixed, [*leading, cut], [*weights, last_weights])
    return out


def _keeps_words_whole(cut: _Cut, each: int) -> bool:
    """Whether no word has elements of two cells."""
    return cut.unit % each == 0 or cut.cells == 1


def _words_of(cut: _Cut, each: int) -> int:
    """Return in how many words the elements of cells lie, at most; a word that has some of two counts for both."""
    if _keeps_words_whole(cut, each):
        return cut.packed(each).count
    return cut.cells * _most_words(min(cut.unit, cut.count), each)


def _most_words(size: int, each: int) -> int:
    """Return in how many words so many elements may lie."""
    return -(-(each - 1 + size) // each)


def _words_of_cells(words: Words, cut: _Cut, each: int) -> Iterator[tuple[slice, NDArray[np.intp], Words]]:
    """Yield the words of cells, without what other cells have of them: of cells of one size each time.

    Yields
    ------
    slice
        Which cells.
    ndarray of intp, shape (cells, n)
        The index of each word of a cell, counted from the first in ``words``. It may be beyond the last one.
    ndarray of uint64, shape (..., cells, n)
        Their words.
    """
    # The words in which the first elements alone are left.
    kept = np.array([(1 << 64 * number // each) - 1 for number in range(each + 1)], np.uint64)
    cell = 0
    for low, cells, size in cut.runs():
        starts = cut.first + low + size * np.arange(cells)
        first = starts // each
        length = _most_words(size, each)
        numbers = np.add.outer(first - cut.first // each, np.arange(length))
        some = words.take(numbers, axis=-1, mode="clip")
        some[..., 0] &= ~kept[starts % each]
        # A cell ends in the last word or in the one before it.
        for number in range(max(0, length - 2), length):
            some[..., number] &= kept[np.clip(starts + size - (first + number) * each, 0, each)]
        yield slice(cell, cell + cells), numbers, some
        cell += cells


def _blocks(
    elements: NDArray[Any], cuts: Sequence[_Cut], limit: int
) -> Iterator[tuple[NDArray[Any], list[_Cut], tuple[slice, ...]]]:
    """Cut a box into boxes of at most ``limit`` elements, each one run of its memory.

    Yields
    ------
    ndarray
        The elements.
    list of _Cut
        How the grid cuts these, along each axis.
    tuple of slice
        Where their cells are among those of the whole box.
    """
    shape = elements.shape
    steps = [1] * len(shape)
    for axis in reversed(range(len(shape))):
        steps[axis] = max(1, min(shape[axis], limit // prod(steps[axis + 1 :])))
        if steps[axis] < shape[axis]:
            break
    for low in product(*(range(0, n, step) for n, step in zip(shape, steps, strict=True))):
        high = tuple(min(a + step, n) for a, step, n in zip(low, steps, shape, strict=True))
        parts = [cut.part(a, b) for cut, a, b in zip(cuts, low, high, strict=True)]
        place = tuple(cut.place(part) for cut, part in zip(cuts, parts, strict=True))
        index: Any = (*map(slice, low, high), ...)
        yield elements[index], parts, place


def _block_digests(block: Words, cuts: Sequence[_Cut], weights: Sequence[Words]) -> Words:
    """Return the digests of the cells of a block's words: its axes are added up one after the other."""
    sums, words = block, block.shape[-1]
    # The words of an element are an axis like others, but numbered the same whatever the dimensions of the array.
    cuts, weights = [*cuts, _Cut(0, words, words)], [*weights, axis_weights(-1, 0, words)]

    # The axis that leaves least to add up comes first, but for those where few words side by side are added up.
    def effort(axis: int) -> tuple[bool, float]:
        after = prod(block.shape[axis + 1 :])
        return (after if after > 1 else block.shape[axis]) < _SHORT_ROW, cuts[axis].cells / cuts[axis].count

    for axis in sorted(range(len(cuts)), key=effort):
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
