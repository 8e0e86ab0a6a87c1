"""How an array is read for its sums: piece by piece, within a stated memory.

A piece is a whole chunk; or, where that is large, a band of rows of it that can be read on its own; or, where memory is
short and there are no bands, a part of a chunk, which is then decoded once for each of its pieces. What a thread holds
is bounded by

    piece + stored bytes + decoded bytes that are not yet in their place

counted as in :mod:`rechunk_exec.memory`, the largest of each over the arrays that are compared. Besides, there are the
sums, 8 bytes for each box, and up to 4 MB for each thread in which elements are widened. Of strings only the references
are counted, not the texts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import ceil, isqrt, prod

from rechunk_exec import storage
from rechunk_exec.errors import BudgetError
from rechunk_exec.grid import Grid
from rechunk_exec.storage import StoredArray
from rechunk_exec.tasks import ArrayRef

_WHOLE_BYTES = 64 << 20
"""Chunks up to this size are read whole where memory allows."""
_BAND_BYTES = 16 << 20
"""Size of the bands of larger ones."""

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """An array, and the boxes in which it is read."""

    ref: ArrayRef
    shape: Shape
    piece: Shape
    """Elements read at once. Pieces are counted from the array's first element and lie in one chunk each."""
    read_unit: Shape | None
    """What the array's reader is told to decode, in elements; None: whole chunks."""
    piece_bytes: int
    stored_bytes: int
    """Held for the stored bytes of a piece."""
    decoded_bytes: int
    """Held for decoded bytes that are not yet in their place."""
    forgiving: bool = False
    """Whether what cannot be read is a finding; else it is an error."""

    @property
    def grid(self) -> Grid:
        """All pieces."""
        return Grid(self.shape, self.piece)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How arrays are read to be compared."""

    arrays: tuple[Pieces, ...]
    at_once: int
    """Pieces that one worker process may hold at once."""

    @property
    def held_bytes(self) -> int:
        """The most that one worker process holds."""
        return self.at_once * _held_bytes(self.arrays)


def plan_reading(
    arrays: Sequence[tuple[ArrayRef, StoredArray]], *, at_once: int, max_mem: int | None = None
) -> Reading:
    """Return how to read some arrays, the last of which is forgiven what cannot be read.

    Parameters
    ----------
    arrays : sequence of (ArrayRef, StoredArray)
    at_once : int
        Pieces that one worker process could work on at once.
    max_mem : int, optional
        Bytes that one worker process may hold; no bound if not given.

    Raises
    ------
    BudgetError
        If not even one small piece at a time fits.
    """
    last = len(arrays) - 1
    choices = [list(_choices(ref, stored, forgiving=number == last)) for number, (ref, stored) in enumerate(arrays)]
    # The fastest first: of two ways that differ in one array only, the one that comes first among its choices.
    numbers = sorted(product(*(range(len(ways)) for ways in choices)), key=sum)
    together = [[ways[number] for ways, number in zip(choices, chosen, strict=True)] for chosen in numbers]
    for count in range(at_once, 0, -1):
        for pieces in together:
            if max_mem is None or count * _held_bytes(pieces) <= max_mem:
                forgiven = replace(pieces[-1], forgiving=True)
                return Reading(arrays=(*pieces[:-1], forgiven), at_once=count)
    least = min(map(_held_bytes, together))
    raise BudgetError(
        f"to compare arrays, a worker must hold a decoded chunk and its stored bytes; got max_mem={max_mem} bytes for "
        f"chunks of {', '.join(str(stored.chunk_bytes) for _, stored in arrays)} bytes; give max_mem of at least "
        f"{least} bytes",
        needed_bytes=least,
        max_mem=max_mem or 0,
    )


def _held_bytes(arrays: Sequence[Pieces]) -> int:
    """Return what one thread holds at most: its buffers grow to the largest of each."""
    return (
        max(pieces.piece_bytes for pieces in arrays)
        + max(pieces.stored_bytes for pieces in arrays)
        + max(pieces.decoded_bytes for pieces in arrays)
    )


def _choices(ref: ArrayRef, stored: StoredArray, *, forgiving: bool) -> Iterator[Pieces]:
    """Yield ways to read an array, the fastest first."""
    bands = list(_bands(ref, stored, forgiving=forgiving))
    whole = tuple(map(min, stored.chunk, stored.shape))
    straight = all(n % size == 0 for n, size in zip(stored.shape, stored.chunk, strict=True))
    scratch = storage.read_scratch(stored)

    def parts(piece: Shape) -> Pieces:
        in_place = scratch.in_place and straight and piece == whole
        return Pieces(
            ref=ref,
            shape=stored.shape,
            piece=piece,
            read_unit=None,
            piece_bytes=prod(piece) * stored.dtype.itemsize,
            stored_bytes=ceil(scratch.stored * stored.chunk_bytes),
            decoded_bytes=0 if in_place else ceil(scratch.decoded * stored.chunk_bytes),
        )

    if stored.chunk_bytes <= _WHOLE_BYTES or not bands:
        yield parts(whole)
    yield from bands
    if not bands and parts(whole).decoded_bytes:  # else a part would be decoded beside its place, and need more
        for elements in (prod(whole) // 4, prod(whole) // 64):
            yield parts(_part_of(stored, (1,) * len(whole), elements))


def _bands(ref: ArrayRef, stored: StoredArray, *, forgiving: bool) -> Iterator[Pieces]:
    """Yield ways to read an array in bands of its chunks, if it has some that can be counted from the array's start."""
    finer = storage.finer_read(stored, forgiving=forgiving)
    if finer is None:
        return
    unit, scratch = finer
    if any(chunk < n and chunk % size for n, chunk, size in zip(stored.shape, stored.chunk, unit, strict=True)):
        return
    unit_bytes = prod(unit) * stored.dtype.itemsize
    for size in (_BAND_BYTES, _BAND_BYTES // 16, unit_bytes):
        piece = _part_of(stored, unit, size // max(1, stored.dtype.itemsize))
        yield Pieces(
            ref=ref,
            shape=stored.shape,
            piece=piece,
            read_unit=unit,
            piece_bytes=prod(piece) * stored.dtype.itemsize,
            stored_bytes=ceil(scratch.stored * unit_bytes),
            decoded_bytes=ceil(scratch.decoded * unit_bytes),
        )


def _part_of(stored: StoredArray, unit: Shape, elements: int) -> Shape:
    """Return a box of whole units, about as large as said, that tiles a chunk in runs of its memory."""
    part = list(unit)
    for axis in reversed(range(len(unit))):
        whole = min(stored.chunk[axis], stored.shape[axis])
        room = max(1, elements // max(1, prod(part[:axis]) * prod(part[axis + 1 :])))
        if room >= whole:
            part[axis] = whole
            continue
        # Pieces must not straddle chunks, unless there is only one on the axis.
        count = max(1, room // unit[axis])
        if stored.chunk[axis] < stored.shape[axis]:
            count = _largest_divisor(whole // unit[axis], count)
        part[axis] = count * unit[axis]
        break
    return tuple(part)


def _largest_divisor(number: int, limit: int) -> int:
    """Return the largest divisor of a number that is no more than ``limit``."""
    small = [divisor for divisor in range(1, isqrt(number) + 1) if number % divisor == 0]
    return max(divisor for one in small for divisor in (one, number // one) if divisor <= limit)
