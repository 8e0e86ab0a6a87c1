"""Reading chunks out of shards: several in one request. Layer: storage.

The index of a shard is fetched once and kept (:mod:`.kept`). The chunks of one shard that a region needs are read
together: those that are neighbours in the object come in one request (:mod:`.ranges`). How many bytes that is depends
on the memory that the task has to spare; without any, chunks come one by one.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rechunk_exec.errors import StorageError
from rechunk_exec.storage.access import Index, Moved, Region, Scratch
from rechunk_exec.storage.bodies import copies_received
from rechunk_exec.storage.direct import DirectReader, Entries
from rechunk_exec.storage.objectbase import Objects
from rechunk_exec.storage.ranges import FILE_GAP_BYTES, STORE_GAP_BYTES, Joined, join
from rechunk_exec.storage.scratch import read_scratch
from rechunk_exec.storage.shards import EMPTY
from rechunk_exec.storage.stored import StoredArray

_FILE_BYTES = 1 << 20
"""The most that is read at once from a file: more saves nothing."""
_STORE_BYTES = 16 << 20
"""The same from a store: by then the bytes cost more than the request."""
_GROUPS = 8
"""A region is cut into this many groups at least, so that all threads have some."""


class Group(NamedTuple):
    """Some chunks of one shard, which lie near each other in the object."""

    touched: _Touched
    first: int
    last: int
    """The group's chunks among those touched, in the order in which they lie in the object: from and to before."""


class _Touched:
    """The chunks of one shard that a region touches."""

    def __init__(self, low: Index, grid_shape: Index) -> None:
        self.low = low
        """Numbers of the first chunk, on each axis."""
        self.grid_shape = grid_shape
        """How many they are, on each axis."""
        self._lock = threading.Lock()
        self._sorted: tuple[NDArray[np.int64], Entries] | None = None

    def sorted(self, entries: Entries) -> tuple[NDArray[np.int64], Entries]:
        """Return the chunks' numbers, a row each, and their entries in the index, in the order of the object.

        Writers need not keep to the order of the grid: zarr's follow a Morton curve.
        """
        with self._lock:
            if self._sorted is None:
                places = np.stack(np.unravel_index(np.arange(prod(self.grid_shape)), self.grid_shape), axis=1)
                chunks = places + np.array(self.low)
                found = entries[tuple((chunks % np.array(entries.shape[:-1])).T)]
                order = np.argsort(found[:, 0], kind="stable")
                self._sorted = chunks[order], found[order]
            return self._sorted


class ShardReader(DirectReader):
    """Reads the chunks of a shard that a region needs in groups."""

    def __init__(self, stored: StoredArray, objects: Objects) -> None:
        super().__init__(stored, objects)
        assert stored.index is not None
        self.index = stored.index
        self.copies = 1 if objects.streams else copies_received(stored.array.store)
        self.most_bytes = _FILE_BYTES if objects.streams else _STORE_BYTES
        self._none = stored.index.empty()
        scratch = read_scratch(stored)
        self.besides = scratch.work + scratch.kept
        self.gap_bytes = FILE_GAP_BYTES if objects.streams else STORE_GAP_BYTES

    def units(self, region: Region) -> Iterator[Any]:
        """Yield chunks, as their numbers on each axis, or groups of chunks of one shard."""
        count = min(self._request_bytes(region), region.elements.nbytes // _GROUPS) // self.chunk_bytes
        if count < 2:
            yield from super().units(region)
            return
        for shard in region.units(self.stored.write_unit):
            spans = [
                range(max(low // chunk, number * per_shard), min(-(-high // chunk), (number + 1) * per_shard))
                for low, high, chunk, number, per_shard in zip(
                    region.start, region.stop, self.stored.chunk, shard, self.index.grid_shape, strict=True
                )
            ]
            touched = _Touched(tuple(span.start for span in spans), tuple(map(len, spans)))
            total = prod(touched.grid_shape)
            for first in range(0, total, count):
                yield Group(touched, first, min(first + count, total))

    def object_of(self, unit: Any) -> str:
        """Return the key of the shard."""
        return super().object_of(unit.touched.low if isinstance(unit, Group) else unit)

    def expect(self, unit: Any, region: Region) -> None:
        if not isinstance(unit, Group):  # small chunks, that are read some at a time
            super().expect(unit, region)

    def read(self, unit: Any, region: Region, scratch: Scratch) -> Moved:
        """Copy the part of a chunk, or of some chunks of one shard, that lies in ``region`` into it."""
        if not isinstance(unit, Group):
            return super().read(unit, region, scratch)
        key = self.object_of(unit)
        entries = self.shard_entries(key)
        chunks, places = unit.touched.sorted(self._none if entries is None else entries)
        chunks, places = chunks[unit.first : unit.last], places[unit.first : unit.last]
        lows = chunks * np.array(self.stored.chunk)
        clipped = np.minimum(lows + np.array(self.stored.chunk), np.array(self.stored.shape)) - lows
        moved = int(clipped.prod(axis=1).sum()) * self.codec.dtype.itemsize
        return Moved(moved, self._read_stored(key, chunks, places, region, scratch))

    def _read_stored(
        self, key: str, chunks: NDArray[np.int64], places: Entries, region: Region, scratch: Scratch
    ) -> int:
        """Read chunks of a shard; return how many bytes came."""
        empty = (places == EMPTY).all(axis=1)
        for chunk in chunks[empty].tolist():
            region.part(*self.unit_box(tuple(chunk)))[...] = self.stored.absent
        starts, lengths = places[~empty, 0].tolist(), places[~empty, 1].tolist()
        stops = [start + length for start, length in zip(starts, lengths, strict=True)]
        lows = (chunks[~empty] * np.array(self.stored.chunk)).tolist()
        most_bytes = max(self._request_bytes(region), self.chunk_bytes)
        fetched = 0
        for joined in join(starts, stops, gap_bytes=self.gap_bytes, most_bytes=most_bytes):
            content = self._fetch_joined(key, joined, scratch)
            fetched += len(content)
            for number in range(joined.first, joined.last):
                begin = starts[number] - joined.start
                self.settle(content[begin : begin + lengths[number]], tuple(lows[number]), region, scratch)
        return fetched

    def _fetch_joined(self, key: str, joined: Joined, scratch: Scratch) -> memoryview:
        content = self.objects.read(key, scratch.stored, joined.start, joined.stop - joined.start, required=True)
        if content is None:  # what is required is an error where it is absent
            raise StorageError(f"the shard {key} must be there, and is not")
        return content

    def _request_bytes(self, region: Region) -> int:
        """Return how many stored bytes may be held at once, within what the task has to spare."""
        decoded = 0 if self.codec.raw else self.chunk_bytes * max(1, len(self.codec.codecs))
        room = (region.spare_bytes - decoded - self.besides) // self.copies
        return min(room, self.most_bytes)
