"""The pieces of one shard of an intermediate: raw chunks, in C order, gathered out of a region. Layer: storage."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rechunk_exec.storage.access import Index, Region
from rechunk_exec.storage.direct import is_filled
from rechunk_exec.storage.shards import EMPTY, ShardIndex
from rechunk_exec.storage.stored import StoredArray

Flags = NDArray[np.bool_]


class Run(NamedTuple):
    """Some pieces: one after the other along an axis, and all that there are on the axes behind it."""

    low: Index
    """Numbers of the first piece, on each axis, in the array."""
    high: Index
    first: int
    """The number of the first piece among those of the shard."""

    @property
    def length(self) -> int:
        """How many pieces these are."""
        return prod(map(int.__sub__, self.high, self.low))


class ShardPieces:
    """Pieces of the shard ``number`` of an array, up to the array's edges.

    Attributes
    ----------
    key : str
        Of the object.
    grid_shape : tuple of int
        Pieces along each axis.
    count : int
        How many there are.
    piece_bytes : int
        Bytes of each.
    """

    def __init__(self, stored: StoredArray, number: Index) -> None:
        assert stored.codec is not None
        assert stored.index is not None
        self.stored, self.chunk = stored, stored.chunk
        self.dtype: np.dtype[Any] = stored.codec.dtype
        self.index: ShardIndex = stored.index
        self.piece_bytes = stored.chunk_bytes
        self.key = stored.metadata.encode_chunk_key(number)
        self.spans = [
            range(place * count, min((place + 1) * count, -(-stop // chunk)))
            for place, count, chunk, stop in zip(number, self.index.grid_shape, stored.chunk, stored.shape, strict=True)
        ]
        self.grid_shape = tuple(map(len, self.spans))
        self.count = prod(self.grid_shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the object with all pieces and the index."""
        return self.count * self.piece_bytes + self.index.nbytes

    def runs(self, most: int) -> Iterator[Run]:
        """Yield runs of up to so many pieces that are all of them, in C order."""
        axis, behind = len(self.spans), 1
        while axis and behind * len(self.spans[axis - 1]) <= most:
            axis -= 1
            behind *= len(self.spans[axis])
        inner_low = tuple(span.start for span in self.spans[axis:])
        inner_high = tuple(span.stop for span in self.spans[axis:])
        if not axis:
            yield Run(inner_low, inner_high, 0)
            return
        along = self.spans[axis - 1]
        step = max(1, most // behind)
        first = 0
        for outer in np.ndindex(self.grid_shape[: axis - 1]):
            lead = tuple(span[place] for span, place in zip(self.spans, outer, strict=False))
            for begin in range(along.start, along.stop, step):
                end = min(begin + step, along.stop)
                ends = tuple(number + 1 for number in lead)
                yield Run((*lead, begin, *inner_low), (*ends, end, *inner_high), first)
                first += (end - begin) * behind

    def gather(self, run: Run, region: Region, pieces: memoryview) -> None:
        """Copy a run of pieces out of the region, one after the other."""
        chunk = self.chunk
        counts = tuple(map(int.__sub__, run.high, run.low))
        part = region.part(tuple(map(int.__mul__, run.low, chunk)), tuple(map(int.__mul__, run.high, chunk)))
        frame = np.frombuffer(pieces, self.dtype).reshape(*counts, *chunk)
        if part.shape == tuple(map(int.__mul__, counts, chunk)):
            # Each axis becomes two: the number of the piece, and the place in it.
            split = part.reshape([size for pair in zip(counts, chunk, strict=True) for size in pair])
            frame[...] = split.transpose(*range(0, split.ndim, 2), *range(1, split.ndim, 2))
            return
        for place in np.ndindex(counts):  # at the array's edge
            start = tuple(a * size for a, size in zip(place, chunk, strict=True))
            inner = part[tuple(slice(a, a + size) for a, size in zip(start, chunk, strict=True))]
            if inner.shape != chunk:
                frame[place] = self.stored.absent
            frame[(*place, *map(slice, inner.shape))] = inner

    def gather_part(self, low: Index, high: Index, region: Region, content: memoryview) -> None:
        """Copy the elements of the box ``[low, high)``, which lies in one piece."""
        part = region.part(low, high)
        box = np.frombuffer(content, self.dtype).reshape(tuple(map(int.__sub__, high, low)))
        if part.shape != box.shape:  # at the array's edge
            box[...] = self.stored.absent
        box[tuple(map(slice, part.shape))] = part

    def empty(self, pieces: memoryview) -> Flags:
        """Return which of some gathered pieces are all fill value."""
        count = len(pieces) // self.piece_bytes
        fill = self.stored.fill
        if fill is None:
            return np.zeros(count, np.bool_)
        rows = np.frombuffer(pieces, np.uint8).reshape(count, self.piece_bytes)
        empty: Flags = (rows[:, : len(fill)] == np.frombuffer(fill, np.uint8)).all(axis=1)
        for number in np.flatnonzero(empty).tolist():
            begin = number * self.piece_bytes
            empty[number] = is_filled(pieces[begin : begin + self.piece_bytes], fill)
        return empty

    def encoded_index(self, places: NDArray[np.intp], empty: Flags) -> bytes:
        """Return the index of a shard whose pieces begin at these bytes, but for the empty ones, which are nowhere."""
        entries = self.index.empty()
        held = np.stack([places, np.full(self.count, self.piece_bytes)], axis=1).astype("<u8")
        held[empty] = EMPTY
        entries[tuple(map(slice, self.grid_shape))] = held.reshape(*self.grid_shape, 2)
        return self.index.encode(entries)


def without_empty(pieces: memoryview, piece_bytes: int, empty: Flags) -> int:
    """Move pieces up over the empty ones before them; return where they end."""
    end = 0
    for first, last in runs_of_false(empty):
        begin, stop = first * piece_bytes, last * piece_bytes
        if begin != end:
            pieces[end : end + stop - begin] = pieces[begin:stop]
        end += stop - begin
    return end


def runs_of_false(flags: Flags) -> Iterator[tuple[int, int]]:
    """Yield runs of flags that are not set, from and to before.

    >>> list(runs_of_false(np.array([False, False, True, False])))
    [(0, 2), (3, 4)]
    """
    edges = np.flatnonzero(np.diff(np.concatenate([[True], flags, [True]]).astype(np.int8)))
    yield from zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
