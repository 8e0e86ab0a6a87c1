"""Parts of a Blosc frame: some of its blocks, fetched by range and decoded on their own.

A frame is a header of 16 bytes, a table of where each block begins, and blocks that decode on their own. Some blocks,
joined under a header and a table that say so, are a frame themselves. So a band of rows of a chunk costs the blocks
that hold it, not the whole chunk.

Blocks may lie in any order in the frame, as compressors with several threads leave them; the end of one is the
beginning of the next in the file. A frame whose content did not compress is stored raw (flag 0x2) and has no table.

Format: `Blosc 1 chunk format <https://github.com/Blosc/c-blosc/blob/main/README_CHUNK_FORMAT.rst>`_.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rechunk_exec.errors import StorageError

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
    starts: NDArray[np.int64] | None
    """Where each block begins in the frame, in the order of the blocks; None if the frame is stored raw."""
    ends: NDArray[np.int64] | None

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return -(-self.nbytes // self.block_bytes)

    def span(self, first: int, last: int) -> tuple[int, int]:
        """Return the decoded bytes, from and to, that blocks ``first`` up to ``last`` hold."""
        return first * self.block_bytes, min(last * self.block_bytes, self.nbytes)

    def part_bytes(self, first: int, last: int) -> int:
        """Return the size of the frame that :meth:`part` makes."""
        low, high = self.span(first, last)
        if self.starts is None or self.ends is None:
            return HEADER_BYTES + high - low
        stored = int((self.ends[first:last] - self.starts[first:last]).sum())
        return HEADER_BYTES + 4 * (last - first) + stored

    def part(self, first: int, last: int, fetch: Fetch, buffer: memoryview) -> memoryview:
        """Return a frame of blocks ``first`` up to ``last``, made in ``buffer`` from bytes that ``fetch`` gets."""
        size = self.part_bytes(first, last)
        low, high = self.span(first, last)
        frame = buffer[:size]
        frame[:4] = self.header[:4]
        frame[4:16] = np.array([high - low, min(self.block_bytes, high - low), size], "<u4").tobytes()
        if high - low < self.block_bytes:  # the short last block alone: it is never split, and no longer looks short
            frame[2] |= _NOT_SPLIT
        if self.starts is None or self.ends is None:
            fetch(HEADER_BYTES + low, frame[HEADER_BYTES:])
            return frame
        starts, ends = self.starts[first:last], self.ends[first:last]
        places = np.empty(last - first + 1, np.int64)
        places[0] = HEADER_BYTES + 4 * (last - first)
        np.cumsum(ends - starts, out=places[1:])
        places[1:] += places[0]
        frame[HEADER_BYTES : int(places[0])] = places[:-1].astype("<i4").tobytes()
        for begin, end in _runs(starts, ends):
            fetch(int(starts[begin]), frame[int(places[begin]) : int(places[end])])
        return frame


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
    if stated != nbytes or block_bytes == 0 or stored <= HEADER_BYTES:
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
        return BloscFrame(header, nbytes, block_bytes, stored, None, None) if stored == HEADER_BYTES + nbytes else None
    starts = np.frombuffer(head[HEADER_BYTES:table_end], "<i4").astype(np.int64)
    order = np.argsort(starts)
    ends = np.empty_like(starts)
    ends[order] = np.append(starts[order][1:], stored)
    if starts.min() < table_end or (ends <= starts).any():
        return None
    return BloscFrame(header, nbytes, block_bytes, stored, starts, ends)


def decode_span(frame: BloscFrame, span: tuple[int, int], out: memoryview, reading: PartReading) -> int:
    """Decode bytes ``span`` of a frame into ``out``, a few blocks at a time; return how many stored bytes were fetched.

    Blocks that lie whole in the span are decoded where they belong; those that it cuts go through scratch memory.
    """
    low, high = span
    if len(out) != high - low or not 0 <= low <= high <= frame.nbytes:
        raise StorageError(f"a span must lie in the frame of {frame.nbytes} bytes; got {low} to {high}")
    step = max(1, reading.piece_bytes // frame.block_bytes)
    fetched = 0
    first, end = low // frame.block_bytes, -(-high // frame.block_bytes)
    while first < end:
        last = min(first + step, end)
        cut_at_start, cut_at_end = first * frame.block_bytes < low, frame.span(first, last)[1] > high
        if cut_at_start:  # the block that the span cuts goes alone, the others straight
            last = first + 1
        elif cut_at_end and last - first > 1:
            last -= 1
        begin, stop = frame.span(first, last)
        part = frame.part(first, last, reading.fetch, reading.stored(frame.part_bytes(first, last)))
        fetched += len(part)
        if begin >= low and stop <= high:
            reading.decode(part, out[begin - low : stop - low])
        else:
            whole = reading.decoded(stop - begin)[: stop - begin]
            reading.decode(part, whole)
            inner = max(begin, low), min(stop, high)
            out[inner[0] - low : inner[1] - low] = whole[inner[0] - begin : inner[1] - begin]
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


def _runs(starts: NDArray[np.int64], ends: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Yield runs of blocks that follow each other in the file, as positions from and to."""
    breaks = [0, *(np.flatnonzero(starts[1:] != ends[:-1]) + 1).tolist(), len(starts)]
    yield from itertools.pairwise(breaks)
