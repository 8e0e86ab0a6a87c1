"""Reading and writing chunks without zarr's array layer. See :mod:`.chunkcodec` for when that can be."""

from __future__ import annotations

import operator
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import product
from math import prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rechunk_exec.errors import StorageError
from rechunk_exec.storage.access import (
    NOTHING_WRITTEN,
    Index,
    Moved,
    Region,
    Scratch,
    UnitReader,
    UnitWriter,
    Written,
    box_of,
    bytes_of,
)
from rechunk_exec.storage.chunkcodec import ChunkCodec
from rechunk_exec.storage.devicecodec import DeviceBytes
from rechunk_exec.storage.kept import Kept
from rechunk_exec.storage.objectbase import Allocate, Objects, ObjectWriter, Use, fresh
from rechunk_exec.storage.shards import EMPTY
from rechunk_exec.storage.stored import StoredArray

Entries: TypeAlias = NDArray[np.uint64]
"""The index of a shard, of shape ``(*grid_shape, 2)``: an offset and a length for each chunk."""
EXPECTED_FROM = 1 << 18
"""Raw bytes of a read below which the disk is as quick to read as to be told."""
COMPARED_BYTES = 1 << 16
"""What is compared with the fill value at once."""

ALL_FILL = b"rechunk_exec: every element of this chunk is the fill value\n"
"""What stands, in an intermediate, for a chunk that is all fill value. There an absent object is an error, so that one
that was lost, or does not show yet, is never taken for fill value."""


class Located(NamedTuple):
    """Where the bytes of a chunk are."""

    key: str
    """The object, relative to the array."""
    start: int
    length: int | None
    """None: all of the object, which may be missing."""


class DirectReader(UnitReader):
    """Decodes chunks straight into the region where they lie in one piece, else through scratch memory."""

    def __init__(self, stored: StoredArray, objects: Objects) -> None:
        assert stored.codec is not None
        super().__init__(stored, objects)
        self.codec: ChunkCodec = stored.codec
        self.way = way_of(stored.codec)
        self.chunk_bytes = prod(stored.chunk) * self.codec.dtype.itemsize
        # As bytes: an array of NumPy takes some bytes of the C allocator for its shape, and keeps a page for them, of
        # those that codecs have worked in. Of the indices of a thousand shards that is more than they hold.
        self._indices: Kept[str, bytes | None] = Kept(
            partial(_index_body, stored, objects), lambda body: 0 if body is None else len(body)
        )

    def read(self, unit: Any, region: Region, scratch: Scratch) -> Moved:
        """Copy the part of chunk ``unit`` that lies in ``region`` into it."""
        low, high = self.unit_box(unit)
        straight = self._straight(region.part(low, high)) if self.codec.raw else None
        allocate = scratch.stored if straight is None else partial(self._exactly, straight)
        content = self._fetch(unit, allocate, lambda content: self.settle(content, low, region, scratch))
        if content is None:
            region.part(low, high)[...] = self.stored.absent
            return Moved(self.bytes_in(low, high), 0)
        return Moved(self.bytes_in(low, high), len(content))

    def expect(self, unit: Any, region: Region) -> None:
        if self.objects.streams and self.chunk_bytes >= EXPECTED_FROM:
            with suppress(StorageError):  # reading tells, and names the chunk
                place = self.locate(unit)
                if place is not None:
                    self.objects.expect(place.key, place.start, place.length)

    def settle(self, content: memoryview, low: Index, region: Region, scratch: Scratch) -> None:
        """Decode the chunk that begins at ``low`` from its stored bytes, as far as it lies in the region."""
        inside, seen = region.overlap(low, tuple(map(int.__add__, low, self.stored.chunk)))
        target = region.view(inside)
        if marks_fill(self.stored, content):
            target[...] = self.stored.absent
            return
        if self.codec.raw and len(content) != self.chunk_bytes:
            raise self._wrong_size(len(content))
        straight = self._straight(target)
        if straight is not None and not self.codec.raw:
            self.codec.decode(content, straight)
        elif straight is not None:
            if content.obj is not straight.obj:  # else they were read to where they belong
                straight[:] = content
        else:
            buffer = content
            if not self.codec.raw:
                buffer = scratch.decoded(self.chunk_bytes)[: self.chunk_bytes]
                self.codec.decode(content, buffer)
            target[...] = self.codec.frame(buffer, self.stored.chunk)[seen]

    def _straight(self, target: NDArray[Any]) -> memoryview | None:
        """Return the memory of a part of a region, if a chunk's bytes lie there as they are stored."""
        whole = target.shape == self.stored.chunk and target.flags.c_contiguous and self.codec.c_order
        return bytes_of(target) if whole else None

    def bytes_in(self, low: Index, high: Index) -> int:
        """Return the size of the elements of a box."""
        return prod(stop - start for start, stop in zip(low, high, strict=True)) * self.codec.dtype.itemsize

    def _exactly(self, destination: memoryview, size: int) -> memoryview:
        if self.stored.intermediate and size == len(ALL_FILL) != self.chunk_bytes:
            return fresh(size)
        if size != self.chunk_bytes:
            raise self._wrong_size(size)
        return destination

    def _wrong_size(self, size: int) -> StorageError:
        return StorageError(
            f"a chunk of {self.stored.array.store_path} must hold {self.chunk_bytes} bytes; got {size}", permanent=True
        )

    def _fetch(self, unit: Index, allocate: Allocate, use: Use) -> memoryview | None:
        place = self.locate(unit)
        if place is None:
            return None
        required = self.stored.intermediate or place.length is not None
        return self.objects.read(place.key, allocate, place.start, place.length, use=use, required=required)

    def shard_entries(self, key: str) -> Entries | None:
        """Return the index of a shard, which is fetched once; None if there is no such shard."""
        index = self.stored.index
        assert index is not None
        body = self._indices(key)
        return None if body is None else index.entries(body)

    def locate(self, unit: Index) -> Located | None:
        """Return where a chunk's bytes are; None if it is known to be absent."""
        shard, index = self.stored.shard, self.stored.index
        if shard is None or index is None:
            return Located(self.stored.metadata.encode_chunk_key(unit), 0, None)
        key = self.stored.metadata.encode_chunk_key(
            tuple(number // count for number, count in zip(unit, index.grid_shape, strict=True))
        )
        entries = self.shard_entries(key)
        if entries is None:
            return None
        offset, length = entries[tuple(number % count for number, count in zip(unit, index.grid_shape, strict=True))]
        return None if offset == EMPTY and length == EMPTY else Located(key, int(offset), int(length))


def _index_body(stored: StoredArray, objects: Objects, key: str) -> bytes | None:
    """Return the bytes of a shard's index, or None if there is no such shard."""
    index = stored.index
    assert index is not None
    start = 0 if index.at_start else -index.nbytes
    content = objects.read(key, fresh, start, index.nbytes, required=stored.intermediate)
    return None if content is None else index.body(content, f"{key} of {stored.array.store_path}")


class DirectWriter(UnitWriter):
    """Encodes the chunks of a region and writes each object whole: a chunk, or a shard as its chunks come."""

    def __init__(self, stored: StoredArray, objects: Objects) -> None:
        assert stored.codec is not None
        super().__init__(stored, objects)
        self.codec: ChunkCodec = stored.codec
        self.way = way_of(stored.codec)
        self.chunk_bytes = prod(stored.chunk) * self.codec.dtype.itemsize

    @property
    def _may_be_left_out(self) -> bool:
        """Whether a chunk that is all fill value is not stored as its elements."""
        marked = self.stored.intermediate and self.stored.index is None
        return self.stored.fill is not None and not (marked and self.chunk_bytes <= len(ALL_FILL))

    @contextmanager
    def jobs(self, region: Region) -> Iterator[Iterator[_ChunkJob]]:
        """Return the chunks of the region's objects, object by object."""
        unfinished: set[_OpenObject] = set()
        try:
            yield self._jobs(region, unfinished)
        finally:
            for target in unfinished:
                target.abort()

    def _jobs(self, region: Region, unfinished: set[_OpenObject]) -> Iterator[_ChunkJob]:
        unit = self.stored.write_unit
        ratio = tuple(size // chunk for size, chunk in zip(unit, self.stored.chunk, strict=True))
        for number in region.units(unit):
            chunks = [
                range(position * count, min((position + 1) * count, -(-stop // chunk)))
                for position, count, chunk, stop in zip(number, ratio, self.stored.chunk, region.stop, strict=True)
            ]
            target = _OpenObject(
                self, self.stored.metadata.encode_chunk_key(number), prod(len(axis) for axis in chunks), unfinished
            )
            for index in product(*chunks):
                yield _ChunkJob(target, index, tuple(map(operator.mod, index, ratio)))

    def write(self, job: Any, region: Region, scratch: Scratch) -> Written:
        """Encode one chunk and add it to its object; return the object if this completes it."""
        part = region.part(*box_of(job.index, self.stored.chunk, self.stored.shape))
        target: _OpenObject = job.target
        elements = self._gather(part, scratch)
        if self._may_be_left_out and is_filled(elements, self.stored.fill or b""):
            return target.leave_out()
        return target.add(job.place, self.codec.encode(elements, scratch.stored))

    def _gather(self, part: NDArray[Any], scratch: Scratch) -> memoryview:
        whole = part.shape == self.stored.chunk
        if whole and part.flags.c_contiguous and self.codec.c_order and part.dtype == self.codec.dtype:
            return bytes_of(part)
        buffer = scratch.decoded(self.chunk_bytes)[: self.chunk_bytes]
        frame = self.codec.frame(buffer, self.stored.chunk)
        if not whole:
            frame[...] = self.stored.absent
        frame[tuple(slice(size) for size in part.shape)] = part
        return buffer


class _ChunkJob:
    """One chunk of a region, on its way into an object."""

    __slots__ = ("index", "place", "target")

    def __init__(self, target: _OpenObject, index: Index, place: Index) -> None:
        self.target, self.index, self.place = target, index, place


class _OpenObject:
    """An object that is being written: it is committed by whoever brings its last chunk."""

    def __init__(self, writer: DirectWriter, key: str, count: int, unfinished: set[_OpenObject]) -> None:
        self.objects, self.key = writer.objects, key
        self.always_stored = writer.stored.intermediate
        self.index = writer.stored.index
        self.entries = None if self.index is None else self.index.empty()
        self.missing = count
        self.object: ObjectWriter | None = None
        self.lock = threading.Lock()
        self.unfinished = unfinished
        unfinished.add(self)

    def add(self, place: Index, content: bytes | memoryview) -> Written:
        growing = self._begun()
        offset = growing.append(content)
        if self.entries is not None:
            self.entries[place] = offset, len(content)
        return self._one_less()

    def _begun(self) -> ObjectWriter:
        with self.lock:
            if self.object is None:
                self.object = self.objects.create(self.key)
                if self.index is not None and self.index.at_start:
                    self.object.append(bytes(self.index.nbytes))
            return self.object

    def leave_out(self) -> Written:
        return self._one_less()

    def abort(self) -> None:
        if self.object is not None:
            self.object.abort()

    def _one_less(self) -> Written:
        with self.lock:
            self.missing -= 1
            if self.missing:
                return NOTHING_WRITTEN
        written = self._finish()
        self.unfinished.discard(self)
        return written

    def _finish(self) -> Written:
        left_out = self.object is None
        if self.object is None and not self.always_stored:  # all of it is fill value
            self.objects.delete(self.key)
            return NOTHING_WRITTEN
        written = self._begun()
        if self.index is not None and self.entries is not None:
            content = self.index.encode(self.entries)
            if self.index.at_start:
                written.place(content, 0)
            else:
                written.append(content)
        elif left_out:
            written.append(ALL_FILL)
        return Written(1, written.commit())


def way_of(codec: ChunkCodec) -> str:
    """Return what reports call the way of a codec that needs no zarr."""
    return "gpu" if any(isinstance(one, DeviceBytes) for one in codec.codecs) else "direct"


def marks_fill(stored: StoredArray, content: memoryview) -> bool:
    """Whether an object of an array is the mark of a chunk that is all fill value."""
    return (
        stored.intermediate
        and stored.index is None
        and len(content) == len(ALL_FILL) < stored.chunk_bytes
        and content == ALL_FILL
    )


def is_filled(elements: memoryview, fill: bytes) -> bool:
    r"""Whether every element has exactly the bits of ``fill``.

    Examples
    --------
    >>> is_filled(memoryview(bytes(8)), bytes(4))
    True
    >>> is_filled(memoryview(b"\x00\x00\x00\x00\x00\x00\x00\x80"), bytes(4))  # 0.0 and -0.0
    False
    """
    size = len(fill)
    if elements[:size] != fill or elements[-size:] != fill:
        return False
    # A run of one element equals itself moved by one element; compared a piece at a time, so that nothing large is
    # made.
    piece = max(1, COMPARED_BYTES // size) * size
    pattern = fill * (piece // size)
    return all(
        bytes(elements[start : start + piece]) == pattern[: len(elements) - start]
        for start in range(0, len(elements), piece)
    )
