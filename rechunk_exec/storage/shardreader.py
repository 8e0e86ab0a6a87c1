"""Reading chunks out of shards: several in one request. Layer: storage.

The index of a shard is fetched once and kept (:mod:`.kept`). The chunks of one shard that a region needs are read
together: those that are neighbours in the object come in one request (:mod:`.ranges`). How many bytes that is depends
on the memory that the task has to spare; without any, chunks come one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any, NamedTuple

import numpy as np

from rechunk_exec.errors import StorageError
from rechunk_exec.storage.access import Index, Moved, Region, Scratch
from rechunk_exec.storage.direct import DirectReader, Entries
from rechunk_exec.storage.objectbase import Objects
from rechunk_exec.storage.ranges import FILE_GAP_BYTES, STORE_GAP_BYTES, Joined, join
from rechunk_exec.storage.shards import EMPTY
from rechunk_exec.storage.stored import StoredArray

_FILE_BYTES = 1 << 20
"""The most that is read at once from a file: more saves nothing."""
_STORE_BYTES = 16 << 20
"""The same from a store: by then the bytes cost more than the request."""
_GROUPS = 8
"""A region is cut into this many groups at least, so that all threads have some."""


class Group(NamedTuple):
    """Some chunks of one shard."""

    low: Index
    """Numbers of the first chunk of the shard that the region touches, on each axis."""
    grid_shape: Index
    """How many chunks of the shard the region touches, on each axis."""
    first: int
    last: int
    """The group's chunks among these, in C order: from and to before."""


class ShardReader(DirectReader):
    """Reads the chunks of a shard that a region needs in groups."""

    def __init__(self, stored: StoredArray, objects: Objects) -> None:
        super().__init__(stored, objects)
        assert stored.index is not None
        self.index = stored.index
        # What a store hands over is copied once; a file is read to where it is decoded from.
        self.copies = 1 if objects.streams else 2
        self.most_bytes = _FILE_BYTES if objects.streams else _STORE_BYTES
        self.gap_bytes = FILE_GAP_BYTES if objects.streams else STORE_GAP_BYTES

    def units(self, region: Region) -> Iterator[Any]:
        """Yield chunks, as their numbers on each axis, or groups of chunks of one shard."""
        count = self._request_bytes(region) // self.chunk_bytes
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
            grid_shape = tuple(map(len, spans))
            total = prod(grid_shape)
            for first in range(0, total, count):
                yield Group(tuple(span.start for span in spans), grid_shape, first, min(first + count, total))

    def object_of(self, unit: Any) -> str:
        """Return the key of the shard."""
        return super().object_of(unit.low if isinstance(unit, Group) else unit)

    def read(self, unit: Any, region: Region, scratch: Scratch) -> Moved:
        """Copy the part of a chunk, or of some chunks of one shard, that lies in ``region`` into it."""
        if not isinstance(unit, Group):
            return super().read(unit, region, scratch)
        places = np.stack(np.unravel_index(np.arange(unit.first, unit.last), unit.grid_shape), axis=1)
        chunks = places + np.array(unit.low)
        key = self.object_of(unit)
        entries = self.shard_entries(key)
        moved = sum(self.bytes_in(*self.unit_box(tuple(chunk))) for chunk in chunks.tolist())
        if entries is None:
            self._fill(chunks.tolist(), region)
            return Moved(moved, 0)
        return Moved(moved, self._read_stored(key, chunks, entries, region, scratch))

    def _read_stored(self, key: str, chunks: Any, entries: Entries, region: Region, scratch: Scratch) -> int:
        """Read chunks of a shard that is there; return how many bytes came."""
        places = entries[tuple((chunks % np.array(self.index.grid_shape)).T)]
        empty = (places == EMPTY).all(axis=1)
        self._fill(chunks[empty].tolist(), region)
        there = np.flatnonzero(~empty)
        there = there[np.argsort(places[there, 0], kind="stable")]
        starts, lengths = places[there, 0].tolist(), places[there, 1].tolist()
        stops = [start + length for start, length in zip(starts, lengths, strict=True)]
        most_bytes = max(self._request_bytes(region), self.chunk_bytes)
        fetched = 0
        for joined in join(starts, stops, gap_bytes=self.gap_bytes, most_bytes=most_bytes):
            content = self._fetch_joined(key, joined, scratch)
            fetched += len(content)
            for number in range(joined.first, joined.last):
                begin = starts[number] - joined.start
                low = tuple(map(int.__mul__, chunks[there[number]].tolist(), self.stored.chunk))
                self.settle(content[begin : begin + lengths[number]], low, region, scratch)
        return fetched

    def _fetch_joined(self, key: str, joined: Joined, scratch: Scratch) -> memoryview:
        content = self.objects.read(key, scratch.stored, joined.start, joined.stop - joined.start, required=True)
        if content is None:  # what is required is an error where it is absent
            raise StorageError(f"the shard {key} must be there, and is not")
        return content

    def _fill(self, chunks: list[list[int]], region: Region) -> None:
        for chunk in chunks:
            region.part(*self.unit_box(tuple(chunk)))[...] = self.stored.absent

    def _request_bytes(self, region: Region) -> int:
        """Return how many stored bytes may be held at once, within what the task has to spare."""
        decoded = 0 if self.codec.raw else self.chunk_bytes * max(1, len(self.codec.codecs))
        room = (region.spare_bytes - decoded) // self.copies
        return min(room, self.most_bytes, region.elements.nbytes // _GROUPS)
