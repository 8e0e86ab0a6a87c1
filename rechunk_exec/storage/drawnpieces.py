"""A shard of raw pieces that is gathered out of its region while it is sent. Layer: storage.

So an object of a task's whole region takes no memory besides: blocks of a megabyte are made when the store's client
reads them, and made again if it reads them again, for a checksum or another try.
"""

from __future__ import annotations

import mmap
import threading
from typing import Self

import numpy as np

from rechunk_exec.errors import StorageError
from rechunk_exec.storage.access import Index, Region
from rechunk_exec.storage.direct import is_filled
from rechunk_exec.storage.objectbase import Drawn
from rechunk_exec.storage.shardpieces import Flags, Run, ShardPieces, without_empty

_BLOCK_BYTES = 1 << 20


class DrawnPieces(Drawn):
    """The bytes of a shard: its pieces without the empty ones, and its index.

    A context: after it nothing more is drawn, since the region's memory is used again.
    """

    def __init__(self, pieces: ShardPieces, region: Region) -> None:
        self._pieces = pieces
        self._region: Region | None = region
        self._lock = threading.Lock()
        self._runs = list(pieces.runs(max(1, _BLOCK_BYTES // pieces.piece_bytes)))
        self._firsts = np.array([run.first for run in self._runs])
        self._empty = self._find_empty(region)
        self._kept = np.flatnonzero(~self._empty)
        """Numbers of the pieces that are stored."""
        places = (np.cumsum(~self._empty) - 1) * pieces.piece_bytes
        self._index = memoryview(pieces.encoded_index(places, self._empty))
        self._end = len(self._kept) * pieces.piece_bytes

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._region = None

    def __len__(self) -> int:
        return self._end + len(self._index)

    def block(self, place: int) -> tuple[int, memoryview]:
        """Return where the block that holds the byte ``place`` begins, and its bytes."""
        if place >= self._end:
            return self._end, self._index
        kept, within = divmod(place, self._pieces.piece_bytes)
        with self._lock:  # until it is made, the region stays
            if self._region is None:
                raise StorageError(f"the write of {self._pieces.key} was given up", permanent=True)
            if self._pieces.piece_bytes > _BLOCK_BYTES:
                begins, block = self._part_of(int(self._kept[kept]), within, self._region)
                return place - within + begins, block
            return self._whole_pieces(int(self._kept[kept]), self._region)

    def _find_empty(self, region: Region) -> Flags:
        """Return which pieces are all fill value. Only those that begin with it are looked at."""
        pieces, fill = self._pieces, self._pieces.stored.fill
        empty = np.zeros(pieces.count, np.bool_)
        if fill is None:
            return empty
        low = tuple(span.start * size for span, size in zip(pieces.spans, pieces.chunk, strict=True))
        high = tuple(span.stop * size for span, size in zip(pieces.spans, pieces.chunk, strict=True))
        firsts = region.part(low, high)[tuple(slice(None, None, size) for size in pieces.chunk)]
        rows = np.ascontiguousarray(firsts, pieces.dtype).reshape(-1, 1).view(np.uint8)
        begun = (rows == np.frombuffer(fill, np.uint8)).all(axis=1)
        for run in self._runs:
            those = slice(run.first, run.first + run.length)
            if not begun[those].any():
                continue
            if pieces.piece_bytes > _BLOCK_BYTES:
                empty[run.first] = self._is_filled(run.first, region, fill)
            else:
                empty[those] = pieces.empty(self._gathered(run, region))
        return empty

    def _is_filled(self, number: int, region: Region, fill: bytes) -> bool:
        """Whether a large piece is all fill value."""
        place = 0
        while place < self._pieces.piece_bytes:
            begins, block = self._part_of(number, place, region)
            if not is_filled(block, fill):
                return False
            place = begins + len(block)
        return True

    def _gathered(self, run: Run, region: Region) -> memoryview:
        block = _mapped(run.length * self._pieces.piece_bytes)
        self._pieces.gather(run, region, block)
        return block

    def _whole_pieces(self, number: int, region: Region) -> tuple[int, memoryview]:
        """Return the block of the run that holds a piece."""
        run = self._runs[int(np.searchsorted(self._firsts, number, side="right")) - 1]
        block = self._gathered(run, region)
        size = without_empty(block, self._pieces.piece_bytes, self._empty[run.first : run.first + run.length])
        before = int(np.searchsorted(self._kept, run.first))
        return before * self._pieces.piece_bytes, block[:size]

    def _part_of(self, number: int, within: int, region: Region) -> tuple[int, memoryview]:
        """Return the block of a large piece that holds its byte ``within``, and where it begins in the piece."""
        pieces = self._pieces
        chunk, inner, axis = pieces.chunk, pieces.piece_bytes, -1
        while inner > _BLOCK_BYTES:  # until what is behind the axis is small
            axis += 1
            inner //= chunk[axis]
        step = _BLOCK_BYTES // inner
        lead, rest = divmod(within, inner * chunk[axis])
        first = rest // inner // step * step
        last = min(first + step, chunk[axis])
        outer = [*map(int, np.unravel_index(lead, chunk[:axis]))] if axis else []
        corner = [span[a] * size for span, a, size in zip(pieces.spans, self._place(number), chunk, strict=True)]
        inside = [*outer, first, *[0] * (len(chunk) - axis - 1)]
        until = [*[a + 1 for a in outer], last, *chunk[axis + 1 :]]
        low, high = tuple(map(int.__add__, corner, inside)), tuple(map(int.__add__, corner, until))
        block = _mapped((last - first) * inner)
        pieces.gather_part(low, high, region, block)
        return (lead * chunk[axis] + first) * inner, block

    def _place(self, number: int) -> Index:
        return tuple(map(int, np.unravel_index(number, self._pieces.grid_shape)))


def _mapped(size: int) -> memoryview:
    """Return memory that goes back to the system once it is let go.

    Clients read on many threads, and each one's arena would keep a block.
    """
    return memoryview(mmap.mmap(-1, size))
