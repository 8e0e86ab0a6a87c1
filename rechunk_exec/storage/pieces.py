"""Writing intermediates in shards: one object a task, made of raw pieces that the next stage reads by range.

Pieces lie in the object in C order, each at a place that its number says. So an object has the same bytes whoever wrote
it, and however often: an index that was read from one of two tries of a task serves the other. Pieces that are all
fill value are empty in the index; the object itself is always stored.

A file is filled by ``pwrite`` out of scratch memory, a run of pieces at a time; empty pieces are holes. For other
stores the object is in memory, pieces are copied straight to where they belong in it, and those behind empty ones move
up before it is stored.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rechunk_exec.storage.access import NOTHING_WRITTEN, Index, Region, Scratch, UnitWriter, Written
from rechunk_exec.storage.chunkcodec import ChunkCodec
from rechunk_exec.storage.direct import is_filled, way_of
from rechunk_exec.storage.objectbase import Objects, ObjectWriter
from rechunk_exec.storage.shards import EMPTY, ShardIndex
from rechunk_exec.storage.stored import StoredArray

_RUN_BYTES = 1 << 20
"""Pieces are gathered and written this many bytes at a time, if a task has the memory to spare."""


def in_pieces(stored: StoredArray) -> bool:
    """Whether an array is written by :class:`PieceWriter`."""
    return (
        stored.intermediate
        and stored.codec is not None
        and stored.codec.raw
        and stored.codec.c_order
        and stored.index is not None
        and not stored.index.at_start
    )


class Run(NamedTuple):
    """Some pieces of one shard: one after the other along an axis, and all that there are on the axes behind it."""

    shard: _OpenShard
    low: Index
    """Numbers of the first piece, on each axis, in the array."""
    high: Index
    first: int
    """The number of the first piece among those of the shard."""


class PieceWriter(UnitWriter):
    """Writes raw pieces into shards, a run at a time."""

    def __init__(self, stored: StoredArray, objects: Objects) -> None:
        assert stored.codec is not None
        assert stored.index is not None
        super().__init__(stored, objects)
        self.codec: ChunkCodec = stored.codec
        self.index: ShardIndex = stored.index
        self.way = way_of(stored.codec)
        self.piece_bytes = stored.chunk_bytes

    @contextmanager
    def jobs(self, region: Region) -> Iterator[Iterator[Run]]:
        """Return runs of pieces, shard by shard."""
        unfinished: set[_OpenShard] = set()
        try:
            yield self._jobs(region, unfinished)
        finally:
            for shard in unfinished:
                shard.abort()

    def _jobs(self, region: Region, unfinished: set[_OpenShard]) -> Iterator[Run]:
        most_bytes = min(_RUN_BYTES, region.spare_bytes)
        for number in region.units(self.stored.write_unit):
            spans = [
                range(place * count, min((place + 1) * count, -(-stop // chunk)))
                for place, count, chunk, stop in zip(
                    number, self.index.grid_shape, self.stored.chunk, region.stop, strict=True
                )
            ]
            shard = _OpenShard(self, self.stored.metadata.encode_chunk_key(number), spans)
            unfinished.add(shard)
            shard.unfinished = unfinished
            yield from shard.runs(max(1, most_bytes // self.piece_bytes))

    def write(self, job: Any, region: Region, scratch: Scratch) -> Written:
        """Gather a run of pieces and put it in its place; return the object if this completes it."""
        shard: _OpenShard = job.shard
        count = prod(map(int.__sub__, job.high, job.low))
        size = count * self.piece_bytes
        growing = shard.begun()
        memory = shard.slots(job.first, count)
        pieces = scratch.decoded(size)[:size] if memory is None else memory
        self._gather(job, region, pieces)
        empty = self._empty(pieces, count)
        if memory is None:
            for first, last in _runs_of_false(empty):
                begin, end = first * self.piece_bytes, last * self.piece_bytes
                growing.place(pieces[begin:end], job.first * self.piece_bytes + begin)
        return shard.add(job.first, empty)

    def _gather(self, run: Run, region: Region, pieces: memoryview) -> None:
        """Copy a run of pieces out of the region, one after the other."""
        chunk = self.stored.chunk
        counts = tuple(map(int.__sub__, run.high, run.low))
        part = region.part(tuple(map(int.__mul__, run.low, chunk)), tuple(map(int.__mul__, run.high, chunk)))
        frame = np.frombuffer(pieces, self.codec.dtype).reshape(*counts, *chunk)
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

    def _empty(self, pieces: memoryview, count: int) -> NDArray[np.bool_]:
        """Return which pieces are all fill value."""
        fill = self.stored.fill
        if fill is None:
            return np.zeros(count, np.bool_)
        rows = np.frombuffer(pieces, np.uint8).reshape(count, self.piece_bytes)
        empty: NDArray[np.bool_] = (rows[:, : len(fill)] == np.frombuffer(fill, np.uint8)).all(axis=1)
        for number in np.flatnonzero(empty).tolist():
            begin = number * self.piece_bytes
            empty[number] = is_filled(pieces[begin : begin + self.piece_bytes], fill)
        return empty


class _OpenShard:
    """A shard that is being written: it is committed by whoever brings its last pieces."""

    unfinished: set[_OpenShard]

    def __init__(self, writer: PieceWriter, key: str, spans: list[range]) -> None:
        self.objects, self.key, self.index = writer.objects, key, writer.index
        self.piece_bytes = writer.piece_bytes
        self.spans = spans
        self.grid_shape = tuple(map(len, spans))
        self.count = self.missing = prod(self.grid_shape)
        self.empty = np.zeros(self.count, np.bool_)
        self.object: ObjectWriter | None = None
        self.lock = threading.Lock()

    def runs(self, most: int) -> Iterator[Run]:
        """Yield runs of up to so many pieces that are all of them, in C order."""
        axis, behind = len(self.spans), 1
        while axis and behind * len(self.spans[axis - 1]) <= most:
            axis -= 1
            behind *= len(self.spans[axis])
        inner_low = tuple(span.start for span in self.spans[axis:])
        inner_high = tuple(span.stop for span in self.spans[axis:])
        if not axis:
            yield Run(self, inner_low, inner_high, 0)
            return
        along = self.spans[axis - 1]
        step = max(1, most // behind)
        first = 0
        for outer in np.ndindex(self.grid_shape[: axis - 1]):
            lead = tuple(span[place] for span, place in zip(self.spans, outer, strict=False))
            for begin in range(along.start, along.stop, step):
                end = min(begin + step, along.stop)
                ends = tuple(number + 1 for number in lead)
                yield Run(self, (*lead, begin, *inner_low), (*ends, end, *inner_high), first)
                first += (end - begin) * behind

    def begun(self) -> ObjectWriter:
        """Return the object, with room for all pieces and the index."""
        with self.lock:
            if self.object is None:
                self.object = self.objects.create(self.key)
                self.object.reserve(self.count * self.piece_bytes + self.index.nbytes)
            return self.object

    def slots(self, first: int, count: int) -> memoryview | None:
        """Return the memory of some pieces in the object, if it is in memory."""
        memory = self.begun().memory()
        return None if memory is None else memory[first * self.piece_bytes : (first + count) * self.piece_bytes]

    def add(self, first: int, empty: NDArray[np.bool_]) -> Written:
        """Count pieces that are in their place; return the object if these were the last."""
        with self.lock:
            self.empty[first : first + len(empty)] = empty
            self.missing -= len(empty)
            if self.missing:
                return NOTHING_WRITTEN
        written = Written(1, self._finish())
        self.unfinished.discard(self)
        return written

    def abort(self) -> None:
        """Forget the object."""
        if self.object is not None:
            self.object.abort()

    def _finish(self) -> int:
        whole = self.begun()
        places = np.arange(self.count) * self.piece_bytes
        end = self.count * self.piece_bytes
        if self._move_up(whole):
            places = (np.cumsum(~self.empty) - 1) * self.piece_bytes
            end = int((~self.empty).sum()) * self.piece_bytes
        entries = self.index.empty()
        inside = tuple(slice(len(span)) for span in self.spans)
        held = np.stack([places, np.full(self.count, self.piece_bytes)], axis=1).astype("<u8")
        held[self.empty] = EMPTY
        entries[inside] = held.reshape(*self.grid_shape, 2)
        whole.place(self.index.encode(entries), end)
        whole.shorten(end + self.index.nbytes)
        return whole.commit()

    def _move_up(self, whole: ObjectWriter) -> bool:
        """Close the gaps that empty pieces leave in an object in memory; return whether it is one."""
        memory = whole.memory()
        if memory is None:
            return False
        end = 0
        for first, last in _runs_of_false(self.empty):
            begin, stop = first * self.piece_bytes, last * self.piece_bytes
            if begin != end:
                memory[end : end + stop - begin] = memory[begin:stop]
            end += stop - begin
        return True


def _runs_of_false(flags: NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """Yield runs of flags that are not set, from and to before.

    >>> list(_runs_of_false(np.array([False, False, True, False])))
    [(0, 2), (3, 4)]
    """
    edges = np.flatnonzero(np.diff(np.concatenate([[True], flags, [True]]).astype(np.int8)))
    yield from zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
