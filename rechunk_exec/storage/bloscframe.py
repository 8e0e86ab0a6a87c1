"""Parts of a Blosc frame: some of its blocks, fetched by range and decoded on their own.

A frame is a header of 16 bytes, a table of where each block begins, and blocks that decode on their own. Some blocks,
behind a header and a table that say so, are a frame themselves. So a band of rows of a chunk costs the blocks that hold
it, not the whole chunk.

Blocks may lie in any order in the frame, as compressors with several threads leave them; the end of one is the
beginning of the next in the file. A frame whose content did not compress is stored raw (flag 0x2) and has no table.

Format: `Blosc 1 chunk format <https://github.com/Blosc/c-blosc/blob/main/README_CHUNK_FORMAT.rst>`_.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rechunk_exec.errors import StorageError
from rechunk_exec.storage.ranges import Joined, join

HEADER_BYTES = 16
_STORED_RAW = 0x2
_NOT_SPLIT = 0x10
_VERSIONS = (1, 2)

Fetch: TypeAlias = Callable[[int, memoryview], None]
"""Fills a buffer with the frame's bytes from an offset on."""


@dataclass(frozen=True, slots=True)
class BloscFrame:
    """What the head of a frame says of its blocks."""

    header: bytes
    nbytes: int
    """Decoded bytes of the frame."""
    block_bytes: int
    """Decoded bytes of a block; the last one may be shorter."""
    stored_bytes: int
    table: bytes | None
    """Where each block begins in the frame, in the order of the blocks, as the frame has it: 32-bit integers; None if
    the frame is stored raw. Bytes, since thousands of frames are kept: see :class:`~.direct.DirectReader`."""
    in_order: bool = False
    """Whether the blocks are known to lie one after the other."""

    def places(self, first: int, last: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return where blocks ``first`` up to ``last`` of a frame that is not stored raw begin in it, and end."""
        assert self.table is not None
        starts = np.frombuffer(self.table, "<i4")
        if self.in_order and last < len(starts):
            edges = starts[first : last + 1].astype(np.int64)
            return edges[:-1], edges[1:]
        some = starts[first:last].astype(np.int64)
        edges = np.append(np.sort(starts).astype(np.int64), self.stored_bytes)
        return some, edges[np.searchsorted(edges, some, side="right")]

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return -(-self.nbytes // self.block_bytes)

    def span(self, first: int, last: int) -> tuple[int, int]:
        """Return the decoded bytes, from and to, that blocks ``first`` up to ``last`` hold."""
        return first * self.block_bytes, min(last * self.block_bytes, self.nbytes)

    def stored_span(self, span: tuple[int, int]) -> tuple[int, int]:
        """Return stored bytes, from and to, among which all are that decoded bytes ``span``, at least one, need."""
        if self.table is None:
            return span[0] + HEADER_BYTES, span[1] + HEADER_BYTES
        first, last = self.touched(span)
        if self.in_order:
            return self._start(first), self._start(last)
        starts, ends = self.places(first, last)
        return int(starts.min()), int(ends.max())

    def _start(self, block: int) -> int:
        """Return where a block begins, of a frame whose blocks are in order; the one after the last, at the end."""
        assert self.table is not None
        begin = self.table[4 * block : 4 * block + 4]
        return int.from_bytes(begin, "little") if begin else self.stored_bytes

    def touched(self, span: tuple[int, int]) -> tuple[int, int]:
        """Return the blocks, from and to before, that hold decoded bytes ``span``."""
        return span[0] // self.block_bytes, -(-span[1] // self.block_bytes)

    def decoded_bytes(self, span: tuple[int, int]) -> int:
        """Return how many bytes are decoded for decoded bytes ``span``: all of the blocks that hold them."""
        if self.table is None:
            return span[1] - span[0]
        low, high = self.span(*self.touched(span))
        return high - low


def frame_head(header: bytes, nbytes: int) -> tuple[int, int] | None:
    """Return the block size and the size of header and table, or None if the frame is not one that can be cut.

    Parameters
    ----------
    header : bytes
        The first 16 bytes of the frame.
    nbytes : int
        Decoded bytes that the frame must hold.
    """
    if len(header) != HEADER_BYTES or header[0] not in _VERSIONS:
        return None
    stated, block_bytes, stored = (int(number) for number in np.frombuffer(header, "<u4", 3, 4))
    if stated != nbytes or not 0 < block_bytes <= nbytes or stored <= HEADER_BYTES:
        return None
    blocks = 0 if header[2] & _STORED_RAW else -(-nbytes // block_bytes)
    return block_bytes, HEADER_BYTES + 4 * blocks


def open_frame(head: bytes | memoryview, nbytes: int) -> BloscFrame | None:
    """Return the frame whose header and table are ``head``, or None if they are not as expected."""
    header = bytes(head[:HEADER_BYTES])
    sizes = frame_head(header, nbytes)
    if sizes is None or len(head) < sizes[1]:
        return None
    block_bytes, table_end = sizes
    stored = int.from_bytes(header[12:16], "little")
    if table_end == HEADER_BYTES:
        return BloscFrame(header, nbytes, block_bytes, stored, None) if stored == HEADER_BYTES + nbytes else None
    table = bytes(head[HEADER_BYTES:table_end])
    starts = np.frombuffer(table, "<i4")
    edges = np.append(np.sort(starts).astype(np.int64), stored)
    if edges[0] < table_end or (edges[1:] <= edges[:-1]).any():
        return None
    return BloscFrame(header, nbytes, block_bytes, stored, table, in_order=bool((starts == edges[:-1]).all()))


def decode_span(frame: BloscFrame, span: tuple[int, int], out: memoryview, reading: PartReading) -> int:
    """Decode bytes ``span`` of a frame into ``out``, some blocks at a time; return how many stored bytes were fetched.

    Blocks that lie whole in the span are decoded where they belong; those that it cuts go through scratch memory.
    """
    low, high = span
    if len(out) != high - low or not 0 <= low <= high <= frame.nbytes:
        raise StorageError(f"a span must lie in the frame of {frame.nbytes} bytes; got {low} to {high}")
    if frame.table is None:
        return _copy_span(span, out, reading)
    step = max(1, reading.piece_bytes // frame.block_bytes)
    fetched = 0
    first, end = frame.touched(span)
    while first < end:
        last = min(first + step, end)
        some = _FetchedBlocks(frame, first, last, reading)
        fetched += some.fetched
        for begin, stop in _cut(frame, (first, last), span):
            some.decode(begin, stop, span, out)
        first = last
    return fetched


@dataclass(frozen=True, slots=True)
class PartReading:
    """How :func:`decode_span` gets and decodes bytes, and the memory it works in."""

    fetch: Fetch
    decode: Callable[[Any, Any], object]
    """Decodes a frame into a buffer of its decoded size."""
    stored: Callable[[int], memoryview]
    """Gives a buffer for stored bytes."""
    decoded: Callable[[int], memoryview]
    """Gives a buffer for a block that the span cuts."""
    piece_bytes: int
    """About how many decoded bytes are fetched and decoded at once; one block at least."""
    gap_bytes: int = 0
    """The longest run of blocks that nobody asked for which is fetched along, for the sake of one request less."""


class _FetchedBlocks:
    """Some blocks of a frame in memory, after room for a head: any run of them is made a frame by a head that says so.

    A head's table may point anywhere behind it. So the head is written anew for each run, and no block is moved.
    """

    def __init__(self, frame: BloscFrame, first: int, last: int, reading: PartReading) -> None:
        self.frame, self.first, self.reading = frame, first, reading
        place = HEADER_BYTES + 4 * (last - first)
        starts, ends = frame.places(first, last)
        low, high = frame.span(first, last)
        self.fetched = int(ends[-1] - starts[0])
        if frame.in_order and self.fetched <= high - low:  # as nearly always
            self.memory = reading.stored(place + self.fetched)
            reading.fetch(int(starts[0]), self.memory[place : place + self.fetched])
            moved = place - starts[0]
            self.places, self.ends = starts + moved, ends + moved
            return
        order = np.argsort(starts, kind="stable")
        runs = self._runs(starts[order].tolist(), ends[order].tolist(), high - low)
        self.fetched = sum(run.stop - run.start for run in runs)
        self.memory = reading.stored(place + self.fetched)
        self.places = np.empty(last - first, np.int64)
        for run in runs:
            size = run.stop - run.start
            reading.fetch(run.start, self.memory[place : place + size])
            among = order[run.first : run.last]
            self.places[among] = starts[among] - run.start + place
            place += size
        self.ends = self.places + (ends - starts)

    def _runs(self, starts: list[int], ends: list[int], most_bytes: int) -> list[Joined]:
        """Return what is fetched at once: with gaps, as long as that is no more than the plan counts."""
        runs = list(join(starts, ends, gap_bytes=self.reading.gap_bytes, most_bytes=most_bytes))
        if sum(run.stop - run.start for run in runs) > most_bytes:
            runs = list(join(starts, ends, gap_bytes=0, most_bytes=most_bytes))
        return runs

    def decode(self, begin: int, stop: int, span: tuple[int, int], out: memoryview) -> None:
        """Decode blocks ``begin`` up to ``stop``, as far as they lie in the span, into ``out``, which is the span's."""
        low, high = self.frame.span(begin, stop)
        part = self._framed(begin, stop)
        if low >= span[0] and high <= span[1]:
            self.reading.decode(part, out[low - span[0] : high - span[0]])
            return
        whole = self.reading.decoded(high - low)[: high - low]
        self.reading.decode(part, whole)
        inner = max(low, span[0]), min(high, span[1])
        out[inner[0] - span[0] : inner[1] - span[0]] = whole[inner[0] - low : inner[1] - low]

    def _framed(self, begin: int, stop: int) -> memoryview:
        """Return a frame of these blocks."""
        low, high = self.frame.span(begin, stop)
        block_bytes = self.frame.block_bytes
        places = self.places[begin - self.first : stop - self.first]
        ends = self.ends[begin - self.first : stop - self.first]
        size = int(ends[-1] if self.frame.in_order else ends.max())
        head = self.memory[:HEADER_BYTES]
        head[:4] = self.frame.header[:4]
        struct.pack_into("<3I", head, 4, high - low, min(block_bytes, high - low), size)
        if high - low < block_bytes:  # the short last block alone: it is never split, and no longer looks short
            head[2] |= _NOT_SPLIT
        self.memory[HEADER_BYTES : HEADER_BYTES + 4 * len(places)] = places.astype("<i4").tobytes()
        return self.memory[:size]


def _cut(frame: BloscFrame, blocks: tuple[int, int], span: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """Yield runs of blocks: those that the span cuts alone, the others together."""
    first, last = blocks
    if frame.span(first, first + 1)[0] < span[0]:
        yield first, first + 1
        first += 1
    cut_at_end = last > first and frame.span(last - 1, last)[1] > span[1]
    if last - cut_at_end > first:
        yield first, last - cut_at_end
    if cut_at_end:
        yield last - 1, last


def _copy_span(span: tuple[int, int], out: memoryview, reading: PartReading) -> int:
    """Copy a part of the content of a frame that is stored raw."""
    for begin in range(0, len(out), reading.piece_bytes):
        part = out[begin : begin + reading.piece_bytes]
        reading.fetch(HEADER_BYTES + span[0] + begin, part)
    return len(out)
