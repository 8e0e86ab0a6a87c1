"""Writing intermediates in shards: one object a task, made of raw pieces that the next stage reads by range.

Pieces lie in the object in C order, each at a place that its number says. So an object has the same bytes whoever wrote
it, and however often: an index that was read from one of two tries of a task serves the other. Pieces that are all
fill value are empty in the index; the object itself is always stored.

A file is filled by ``pwrite`` out of scratch memory, a run of pieces at a time; empty pieces are holes. A store that
reads an object as it sends it gets its pieces out of the region then (:mod:`.drawnpieces`). For other stores the object
is in memory, pieces are copied straight to where they belong in it, and those behind empty ones move up before it is
stored.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from rechunk_exec.storage.access import NOTHING_WRITTEN, Region, Scratch, UnitWriter, Written
from rechunk_exec.storage.direct import way_of
from rechunk_exec.storage.drawnpieces import DrawnPieces
from rechunk_exec.storage.objectbase import Objects, ObjectWriter
from rechunk_exec.storage.objects import StoreObjects
from rechunk_exec.storage.shardpieces import Flags, Run, ShardPieces, runs_of_false, without_empty
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


class _RunOf(NamedTuple):
    shard: _OpenShard
    run: Run


class _DrawnShard(NamedTuple):
    pieces: ShardPieces
    objects: StoreObjects

    def write(self, region: Region) -> Written:
        """Store the shard, whose bytes are made while they are sent."""
        with DrawnPieces(self.pieces, region) as drawn:
            return Written(1, self.objects.put_drawn(self.pieces.key, drawn))


_Job: TypeAlias = _RunOf | _DrawnShard


class PieceWriter(UnitWriter):
    """Writes raw pieces into shards, a run at a time; or a whole shard, where the store draws it."""

    def __init__(self, stored: StoredArray, objects: Objects) -> None:
        assert stored.codec is not None
        super().__init__(stored, objects)
        self.way = way_of(stored.codec)

    @contextmanager
    def jobs(self, region: Region) -> Iterator[Iterator[_Job]]:
        """Return runs of pieces, shard by shard, or whole shards."""
        unfinished: set[_OpenShard] = set()
        try:
            yield self._jobs(region, unfinished)
        finally:
            for shard in unfinished:
                shard.abort()

    def _jobs(self, region: Region, unfinished: set[_OpenShard]) -> Iterator[_Job]:
        most_bytes = min(_RUN_BYTES, region.spare_bytes)
        for number in region.units(self.stored.write_unit):
            pieces = ShardPieces(self.stored, number)
            if isinstance(self.objects, StoreObjects) and self.objects.draws:
                yield _DrawnShard(pieces, self.objects)
                continue
            shard = _OpenShard(pieces, self.objects, unfinished)
            unfinished.add(shard)
            for run in pieces.runs(max(1, most_bytes // pieces.piece_bytes)):
                yield _RunOf(shard, run)

    def write(self, job: Any, region: Region, scratch: Scratch) -> Written:
        """Gather pieces and put them in their place; return the object if this completes it."""
        if isinstance(job, _DrawnShard):
            return job.write(region)
        shard: _OpenShard = job.shard
        return shard.write(job.run, region, scratch)


class _OpenShard:
    """A shard that is being written: it is committed by whoever brings its last pieces."""

    def __init__(self, pieces: ShardPieces, objects: Objects, unfinished: set[_OpenShard]) -> None:
        self.pieces, self.objects, self.unfinished = pieces, objects, unfinished
        self.piece_bytes, self.missing = pieces.piece_bytes, pieces.count
        self.empty = np.zeros(pieces.count, np.bool_)
        self.object: ObjectWriter | None = None
        self.lock = threading.Lock()

    def write(self, run: Run, region: Region, scratch: Scratch) -> Written:
        """Put a run of pieces in its place; return the object if these were the last."""
        size = run.length * self.piece_bytes
        whole = self._begun()
        memory = self._slots(whole, run.first, run.length)
        gathered = scratch.decoded(size)[:size] if memory is None else memory
        self.pieces.gather(run, region, gathered)
        empty = self.pieces.empty(gathered)
        if memory is None:
            for first, last in runs_of_false(empty):
                begin, end = first * self.piece_bytes, last * self.piece_bytes
                whole.place(gathered[begin:end], run.first * self.piece_bytes + begin)
        return self._add(run.first, empty)

    def abort(self) -> None:
        """Forget the object."""
        if self.object is not None:
            self.object.abort()

    def _begun(self) -> ObjectWriter:
        """Return the object, with room for all pieces and the index."""
        with self.lock:
            if self.object is None:
                self.object = self.objects.create(self.pieces.key)
                self.object.reserve(self.pieces.nbytes)
            return self.object

    def _slots(self, whole: ObjectWriter, first: int, count: int) -> memoryview | None:
        """Return the memory of some pieces in the object, if it is in memory."""
        memory = whole.memory()
        return None if memory is None else memory[first * self.piece_bytes : (first + count) * self.piece_bytes]

    def _add(self, first: int, empty: Flags) -> Written:
        """Count pieces that are in their place."""
        with self.lock:
            self.empty[first : first + len(empty)] = empty
            self.missing -= len(empty)
            if self.missing:
                return NOTHING_WRITTEN
        written = Written(1, self._finish())
        self.unfinished.discard(self)
        return written

    def _finish(self) -> int:
        whole = self._begun()
        places = np.arange(self.pieces.count) * self.piece_bytes
        end = self.pieces.count * self.piece_bytes
        memory = whole.memory()
        if memory is not None:
            places = (np.cumsum(~self.empty) - 1) * self.piece_bytes
            end = without_empty(memory[:end], self.piece_bytes, self.empty)
        index = self.pieces.encoded_index(places, self.empty)
        whole.place(index, end)
        whole.shorten(end + len(index))
        return whole.commit()
