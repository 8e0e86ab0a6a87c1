"""Reading bands of rows of chunks, where a chunk need not be decoded whole.

An uncompressed chunk gives any run of its bytes. A chunk whose only compressor is Blosc gives the blocks of its frame
(:mod:`.bloscframe`). A band is some rows along one axis: one index on all axes before it, everything on the axes after
it, so that it is one run of the chunk's bytes.
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from enum import Enum
from functools import partial
from itertools import product
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rechunk_exec.errors import StorageError
from rechunk_exec.storage.access import Index, Moved, Region, Scratch, Slices, bytes_of
from rechunk_exec.storage.bloscframe import (
    HEADER_BYTES,
    BloscFrame,
    Fetch,
    PartReading,
    decode_span,
    frame_head,
    open_frame,
)
from rechunk_exec.storage.chunkcodec import BloscBytes
from rechunk_exec.storage.direct import ALL_FILL, EXPECTED_FROM, DirectReader, Located, marks_fill
from rechunk_exec.storage.kept import Kept
from rechunk_exec.storage.objectbase import Objects, fresh
from rechunk_exec.storage.ranges import FILE_GAP_BYTES, STORE_GAP_BYTES
from rechunk_exec.storage.stored import StoredArray

PIECE_BYTES = 1 << 20
"""About how many decoded bytes are fetched and decoded at once: fewer cost more calls, more cost more memory."""
_RAW_UNIT_BYTES = 1 << 16
_SAMPLES = 8
_ALIGNMENT = 64


class Bands(NamedTuple):
    """How an array can be read in parts of its chunks."""

    unit: Index
    """The smallest box worth reading on its own, in elements. Counted anew from each chunk, whose last one is then
    shorter, where a chunk is no whole number of them."""
    block_bytes: int
    """Decoded bytes of the smallest of Blosc's blocks that were met; 0 where any run of bytes can be read."""


def find_bands(stored: StoredArray, objects: Objects, *, forgiving: bool = False) -> Bands | None:
    """Return how an array can be read in parts of its chunks, or None if it cannot, or is not worth while.

    The size of Blosc's blocks comes from the first bytes of a few chunks; the largest counts. Those that cannot be read
    are an error, or passed over if ``forgiving``.
    """
    codec = stored.codec
    if codec is None or not codec.c_order or not stored.shape or 0 in stored.shape:
        return None
    blocks = [_RAW_UNIT_BYTES]
    if not codec.raw:
        if len(codec.codecs) != 1 or not isinstance(codec.codecs[0], BloscBytes):
            return None
        heads = _heads(stored, objects, forgiving=forgiving)
        sizes = (frame_head(bytes(head), stored.chunk_bytes) for head in heads)
        blocks = [size[0] for size in sizes if size is not None]
    elif not objects.streams:  # a local file gives any range, a store says when it is asked
        next(_heads(stored, objects, forgiving=forgiving), None)
    if not blocks or objects.ignores_ranges:
        return None
    unit = _rows_of(stored, max(blocks), raw=codec.raw)
    return None if unit is None else Bands(unit, 0 if codec.raw else min(blocks))


def _rows_of(stored: StoredArray, block_bytes: int, *, raw: bool) -> Index | None:
    """Return the band that holds a block: the innermost axis of which a block does not hold all."""
    row_bytes = stored.dtype.itemsize
    for axis in reversed(range(len(stored.chunk))):
        length = stored.chunk[axis]
        rows = -(-block_bytes // row_bytes)
        if rows < length:
            band = rows
            if length < stored.shape[axis]:
                band = _part_of(length, rows, raw=raw, alone=prod(stored.chunk[:axis]) == 1)
            if 2 * max(band, rows) > min(length, stored.shape[axis]):
                return None
            inner = tuple(map(min, stored.chunk[axis + 1 :], stored.shape[axis + 1 :]))
            return (*(1,) * axis, band, *inner)
        row_bytes *= length
    return None


def _part_of(length: int, rows: int, *, raw: bool, alone: bool) -> int:
    """Return how many rows of chunks of ``length`` rows are a band, of which there are several on the axis.

    Best is the next divisor from ``rows`` on: bands are counted from the array's start, and none straddles chunks.
    Where that is far off, any run of rows is read exactly if the chunk is raw. Blocks are counted from each chunk.
    A chunk that has several indices on an axis before has several runs of rows, whose ends cut blocks too: such a chunk
    keeps the divisor.

    >>> _part_of(250, 16, raw=False, alone=True), _part_of(3449, 16, raw=False, alone=True)
    (25, 16)
    >>> _part_of(3466, 16, raw=True, alone=True), _part_of(3466, 16, raw=False, alone=False)
    (2, 1733)
    """
    divisor = next((count for count in range(rows, length // 2 + 1) if length % count == 0), length)
    if divisor <= 2 * rows:
        return divisor
    if raw:
        return next(count for count in range(rows, 0, -1) if length % count == 0)
    return rows if alone else divisor


def _heads(stored: StoredArray, objects: Objects, *, forgiving: bool) -> Iterator[memoryview]:
    """Yield the first bytes of a few chunks."""
    reader = DirectReader(stored, objects)
    grid = [-(-n // size) for n, size in zip(stored.shape, stored.chunk, strict=True)]
    for sample in range(_SAMPLES):
        unit = tuple(min(count - 1, count * (2 * sample + 1) // (2 * _SAMPLES)) for count in grid)
        try:
            place = reader.locate(unit)
            size = min(HEADER_BYTES, stored.chunk_bytes)
            head = None if place is None else objects.read(place.key, fresh, place.start, size)
        except StorageError:
            if not forgiving:
                raise
            continue
        if head is not None:
            yield head


class _Chunk(Enum):
    """What a chunk turned out to be, where it is no frame that can be cut."""

    ABSENT = "absent"
    RAW = "raw"
    UNEXPECTED = "unexpected"


class BandReader(DirectReader):
    """Reads only the bands of chunks that a region needs."""

    def __init__(self, stored: StoredArray, objects: Objects, read_unit: Index) -> None:
        super().__init__(stored, objects)
        self.read_unit = read_unit
        whole = tuple(map(min, stored.chunk, stored.shape))
        self.axis = max(axis for axis, size in enumerate(read_unit) if size < whole[axis])
        self.row_bytes = prod(stored.chunk[self.axis + 1 :]) * self.codec.dtype.itemsize
        # Blocks are fetched and decoded some at a time; local files in small pieces, others in few requests.
        self.piece_bytes = PIECE_BYTES if objects.streams else 8 * PIECE_BYTES
        self.gap_bytes = FILE_GAP_BYTES if objects.streams else STORE_GAP_BYTES
        self.piece_rows = max(1, self.piece_bytes // self.row_bytes)
        self.rows_bytes = -(-self.piece_rows * self.row_bytes // _ALIGNMENT) * _ALIGNMENT
        self.band_bytes = read_unit[self.axis] * self.row_bytes
        self._one_at_a_time = threading.Lock()
        self._frame: Kept[Located, BloscFrame | _Chunk] = Kept(_Frames(stored, objects), _size_of)

    def expect(self, unit: Any, region: Region) -> None:
        within = region.overlap(*self.unit_box(unit))[1]
        rows = within[self.axis]
        if not self.objects.streams or (rows.stop - rows.start) * self.row_bytes < EXPECTED_FROM:
            return
        with suppress(StorageError):  # reading tells, and names the chunk
            self._expect_rows(unit, within)

    def _expect_rows(self, unit: Index, within: Slices) -> None:
        place, rows = self.locate(unit), within[self.axis]
        # Which bytes are needed is known once the frame's table has been read.
        frame = None if place is None else self._frame.known(place)
        if place is None or not (frame is _Chunk.RAW or isinstance(frame, BloscFrame)):
            return
        for lead in product(*(range(part.start, part.stop) for part in within[: self.axis])):
            first = self._row(lead)
            span = (first + rows.start) * self.row_bytes, (first + rows.stop) * self.row_bytes
            low, high = frame.stored_span(span) if isinstance(frame, BloscFrame) else span
            self.objects.expect(place.key, place.start + low, high - low)

    def read(self, unit: Any, region: Region, scratch: Scratch) -> Moved:
        """Copy the part of chunk ``unit`` that lies in ``region`` into it."""
        low, high = self.unit_box(unit)
        inside, within = region.overlap(low, high)
        target = region.view(inside)
        planned = self._touched(within, low, high)
        place = self.locate(unit)
        frame = _Chunk.ABSENT if place is None else self._frame(place)
        if place is None or frame is _Chunk.ABSENT:
            target[...] = self.stored.absent
            return Moved(planned, 0)
        # What the plan has no room for is read by one thread at a time, in memory that goes when it is done.
        if frame is _Chunk.UNEXPECTED:
            with self._one_at_a_time:
                moved = super().read(unit, region, _OwnScratch())
            return moved._replace(unexpected=1, beyond_plan=moved.decoded - planned)
        large = isinstance(frame, BloscFrame) and self._has_large_blocks(frame)
        with self._one_at_a_time if large else nullcontext():
            spans = self._spans(place, frame, _OwnScratch() if large else scratch)
            self._read_bands(target, within, spans)
        # Blocks hold whole rows of the chunk, of which the plan counts what is in the array.
        inner_bytes = prod(map(int.__sub__, high[self.axis + 1 :], low[self.axis + 1 :])) * self.codec.dtype.itemsize
        beyond = max(0, spans.decoded - planned // inner_bytes * self.row_bytes)
        return Moved(planned + beyond, spans.fetched, int(large and beyond > 0), beyond)

    def _has_large_blocks(self, frame: BloscFrame) -> bool:
        """Whether a block of the frame is more than the plan counts for a band."""
        return frame.table is not None and frame.block_bytes > self.band_bytes

    def _read_bands(self, target: NDArray[Any], within: Slices, spans: _Spans) -> None:
        """Copy elements ``within`` of a chunk into ``target``."""
        for lead in product(*(range(part.start, part.stop) for part in within[: self.axis])):
            rows = target[tuple(i - part.start for i, part in zip(lead, within, strict=False))]
            self._read_rows(rows, self._row(lead) + within[self.axis].start, within[self.axis + 1 :], spans)

    def _read_rows(self, rows: NDArray[Any], first: int, inner: Slices, spans: _Spans) -> None:
        """Fill ``rows`` from row ``first`` of the chunk on."""
        shape, row_bytes = self.stored.chunk[self.axis + 1 :], self.row_bytes
        low, high = first * row_bytes, (first + len(rows)) * row_bytes
        if rows.shape[1:] == shape and rows.flags.c_contiguous:
            spans.fill((low, high), bytes_of(rows))
            return
        # Whole rows wait here. What has been decoded of the row after them goes to the front, before what comes next,
        # so that no block is decoded again for it.
        memory, held, done = spans.waiting(), 0, 0
        position = low // spans.unit_bytes * spans.unit_bytes
        while done < len(rows):
            stop = spans.piece_end(position, high, held)
            filled = held + stop - position
            spans.fill((position, stop), memory[held:filled])
            begin = max(0, low - position) if not done and not held else 0  # a block may begin before the rows
            count = min((filled - begin) // row_bytes, len(rows) - done)
            end = begin + count * row_bytes
            rows[done : done + count] = np.frombuffer(memory[begin:end], self.codec.dtype).reshape(count, *shape)[
                :, *inner
            ]
            position, held, done = stop, filled - end, done + count
            memory[:held] = memory[end:filled]

    def _spans(self, place: Located, frame: BloscFrame | _Chunk, scratch: Scratch) -> _Spans:
        return _Spans(
            self, partial(self._fetch_range, place), frame if isinstance(frame, BloscFrame) else None, scratch
        )

    def _fetch_range(self, place: Located, offset: int, buffer: memoryview) -> None:
        content = self.objects.read(place.key, lambda _: buffer, place.start + offset, len(buffer), required=True)
        if content is not None and content.obj is not buffer.obj:
            buffer[:] = content

    def _row(self, lead: Index) -> int:
        """Return the number of the first row of the chunk at ``lead``, counted over the axes up to the band's."""
        row = 0
        for index, size in zip(lead, self.stored.chunk, strict=False):
            row = row * size + index
        return row * self.stored.chunk[self.axis]

    def _touched(self, within: Slices, low: Index, high: Index) -> int:
        """Return the bytes of the read units of a chunk ``[low, high)`` that hold elements ``within`` of it."""
        touched = self.codec.dtype.itemsize
        for part, size, n in zip(within, self.read_unit, map(int.__sub__, high, low), strict=True):
            touched *= min(-(-part.stop // size) * size, n) - part.start // size * size
        return touched


class _Spans:
    """Spans of the decoded bytes of one chunk, and what was fetched and decoded for them."""

    def __init__(self, reader: BandReader, fetch: Fetch, frame: BloscFrame | None, scratch: Scratch) -> None:
        self.reader, self.fetch, self.frame, self.scratch = reader, fetch, frame, scratch
        self.block_bytes = frame.block_bytes if frame is not None and frame.table is not None else 0
        self.unit_bytes = self.block_bytes or reader.row_bytes
        """What is decoded at once: a block, or a row."""
        self.fetched = self.decoded = 0

    def waiting(self) -> memoryview:
        """Return the memory in which rows wait; a block that a span cuts is decoded behind them."""
        return self.scratch.decoded(self.reader.rows_bytes + self.block_bytes)

    def piece_end(self, start: int, stop: int, held: int) -> int:
        """Return the end of the piece from ``start`` on that is decoded behind ``held`` bytes that wait already."""
        room = min(self.reader.piece_bytes, self.reader.rows_bytes + self.block_bytes - held)
        most = max(1, room // self.unit_bytes)
        end = min(start + most * self.unit_bytes, -(-stop // self.unit_bytes) * self.unit_bytes)
        return end if self.frame is None else min(end, self.frame.nbytes)

    def fill(self, span: tuple[int, int], out: memoryview) -> None:
        """Fill memory with a span of the chunk's decoded bytes."""
        if self.frame is None:
            self.fetch(span[0], out)
            self.fetched += len(out)
            self.decoded += len(out)
            return
        # Rows that go straight to the region leave the memory in which they would wait to what is fetched: calls are
        # half as many, in which threads get in each other's way.
        rows_bytes = self.reader.rows_bytes
        straight = self.reader.objects.streams and len(out) > rows_bytes + self.block_bytes
        reading = PartReading(
            fetch=self.fetch,
            decode=self.reader.codec.codecs[0].decode,
            stored=self.scratch.stored,
            decoded=lambda _: self.waiting()[rows_bytes:],
            piece_bytes=self.reader.piece_bytes * (1 + straight),
            gap_bytes=self.reader.gap_bytes,
        )
        self.fetched += decode_span(self.frame, span, out, reading)
        self.decoded += self.frame.decoded_bytes(span)


class _OwnScratch:
    """Scratch memory of one read, gone with it."""

    def __init__(self) -> None:
        self._stored = self._decoded = fresh(0)

    def stored(self, size: int) -> memoryview:
        """Return a buffer of at least ``size`` bytes for what comes from a store."""
        if len(self._stored) < size:
            self._stored = memoryview(mmap.mmap(-1, size))
        return self._stored

    def decoded(self, size: int) -> memoryview:
        """Return another buffer of at least ``size`` bytes, for elements."""
        if len(self._decoded) < size:
            self._decoded = memoryview(mmap.mmap(-1, size))
        return self._decoded


class _Frames:
    """Finds where the blocks of chunks are, or what else a chunk is."""

    def __init__(self, stored: StoredArray, objects: Objects) -> None:
        self.stored, self.objects = stored, objects
        # Chunks of one array have tables of one size, so after the first one header and table come together.
        self.head_bytes = HEADER_BYTES

    def __call__(self, place: Located) -> BloscFrame | _Chunk:
        stored = self.stored
        if stored.codec is not None and stored.codec.raw:
            # A range of a missing object is missing; one of a short object is an error.
            size = min(len(ALL_FILL), stored.chunk_bytes) if stored.intermediate else 1
            probe = self.objects.read(place.key, fresh, place.start, size, required=stored.intermediate)
            absent = probe is None or _is_all_fill(stored, self.objects, place, probe)
            return _Chunk.ABSENT if absent else _Chunk.RAW
        head = self._head(place)
        if head is None:
            return _Chunk.ABSENT
        sizes = frame_head(bytes(head[:HEADER_BYTES]), stored.chunk_bytes)
        if sizes is None:
            return _Chunk.UNEXPECTED
        if len(head) < sizes[1]:
            head = self._first_bytes(place, sizes[1])
        self.head_bytes = sizes[1]
        frame = None if head is None else open_frame(head, stored.chunk_bytes)
        return _Chunk.UNEXPECTED if frame is None else frame

    def _head(self, place: Located) -> memoryview | None:
        try:
            return self._first_bytes(place, self.head_bytes)
        except StorageError:  # there may be fewer bytes
            if self.head_bytes == HEADER_BYTES:
                raise
            return self._first_bytes(place, HEADER_BYTES)

    def _first_bytes(self, place: Located, size: int) -> memoryview | None:
        within = size if place.length is None else max(HEADER_BYTES, min(size, place.length))
        return self.objects.read(place.key, fresh, place.start, within, required=self.stored.intermediate)


def _size_of(frame: BloscFrame | _Chunk) -> int:
    return 0 if isinstance(frame, _Chunk) or frame.table is None else len(frame.table)


def _is_all_fill(stored: StoredArray, objects: Objects, place: Located, head: memoryview) -> bool:
    """Whether an object that begins with ``head`` is the mark of a chunk that is all fill value, and no more."""
    if not marks_fill(stored, head):
        return False
    whole = objects.read(place.key)
    return whole is not None and marks_fill(stored, whole)
