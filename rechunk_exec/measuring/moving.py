"""Reading and writing a sample, timed: the phases of a task, on as many threads as a worker has. Layer: measuring.

What runs is what a task runs: the same readers and writers, threads, and memory that is used again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rechunk_exec.copy.buffers import BufferPool, ScratchBuffers
from rechunk_exec.copy.drain import drain
from rechunk_exec.grid import Box, Grid
from rechunk_exec.storage import Region, StoredArray, UnitReader, UnitWriter

_PAGE_BYTES = 4096
GOLDEN = 0.6180339887498949
"""Multiples of this, but for their whole parts, fill the line from 0 to 1 evenly, however many there are."""
_SORTED = 4096
_TICK_S = 1e-6
_LEAST_LEFT = 0.2
"""Of a phase's seconds, what its bytes take at least: operations alone are never all of it."""


@dataclass(slots=True)
class Phase:
    """Bytes of one kind of work, over all samples, and the seconds that they would take at the samples' mean pace."""

    nbytes: int = 0
    """Raw bytes, as plans count them."""
    seconds: float = 0.0
    absent: bool = True
    """Whether all that was read was absent, as far as the reader tells."""
    operations: float = 0.0
    """Reads or writes of units, as plans count them."""
    paces: list[float] = field(default_factory=list)
    """Seconds for each byte, of each sample."""

    @property
    def most_each_s(self) -> float:
        """The most seconds that an operation may have taken, if something is left for the bytes."""
        return (1 - _LEAST_LEFT) * self.seconds / self.operations

    def rate(self, each_s: float) -> float:
        """Bytes a second, besides operations that take ``each_s`` seconds."""
        return self.nbytes / max(self.seconds - self.operations * each_s, _LEAST_LEFT * self.seconds)

    def add(self, nbytes: int, seconds: float) -> None:
        """Count one sample. All weigh the same: in its time a quick one moves more than its share of bytes."""
        if nbytes:
            self.nbytes += nbytes
            self.paces.append(seconds / nbytes)
            self.seconds = self.nbytes * sum(self.paces) / len(self.paces)


class Mover:
    """Threads and buffers of a worker.

    Parameters
    ----------
    threads : int
        How many units are decoded or encoded at once.
    """

    clock: Callable[[], float] = staticmethod(time.perf_counter)
    """What phases are timed by; another one is for tests, and for benchmarks on a machine with other work."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._helpers = ThreadPoolExecutor(threads, thread_name_prefix="rechunk_exec-probe")
        self._scratches = [ScratchBuffers() for _ in range(threads)]
        self._regions = BufferPool()

    def close(self) -> None:
        """End the threads."""
        self._helpers.shutdown()

    def first_touch(self, size: int) -> float:
        """Return the bytes a second at which all threads get ``size`` bytes that this process did not have."""
        pool = BufferPool()

        def touch(part: int) -> None:
            with pool.borrow(part) as memory:
                np.frombuffer(memory, np.uint8)[::_PAGE_BYTES] = 0

        began = self.clock()
        list(self._helpers.map(touch, [size // self.threads] * self.threads))
        return size / max(self.clock() - began, _TICK_S)

    @contextmanager
    def region(self, stored: StoredArray, box: Box, spare_bytes: int) -> Iterator[Region]:
        """Lend a region, in memory that was used before: a worker's is, but for its first task."""
        if not stored.fixed_size:
            yield Region(box.start, box.stop, np.empty(box.shape, stored.dtype), spare_bytes)
            return
        with self._regions.borrow(box.size * stored.dtype.itemsize) as memory:
            elements = np.frombuffer(memory, np.uint8)
            elements[::_PAGE_BYTES] = 0
            yield Region(box.start, box.stop, elements.view(stored.dtype).reshape(box.shape), spare_bytes)

    def read(self, reader: UnitReader, region: Region, limit_s: float, phase: Phase) -> float:
        """Read units into a region, in order, until all are there or the time is over; the share that is."""
        began = self.clock()
        decoded: list[int] = []
        left = 0

        def units() -> Iterator[Any]:
            nonlocal left
            every = reader.units(region)
            for unit in every:
                if decoded and self.clock() - began > limit_s:
                    left = 1 + sum(1 for _ in every)
                    return
                yield unit

        def read(unit: Any, scratch: ScratchBuffers) -> None:
            moved = reader.read_named(unit, region, scratch)
            decoded.append(moved.decoded)
            if moved.stored or reader.stored.codec is None:
                phase.absent = False

        drain(units(), read, self._scratches, self._helpers)
        phase.add(sum(decoded), self.clock() - began)
        return len(decoded) / max(1, len(decoded) + left)

    def write(self, writer: UnitWriter, region: Region, limit_s: float, phase: Phase) -> None:
        """Write write units of a region, spread over it, until all are written or the time is over."""
        grid = Grid(region.stop, writer.stored.write_unit)
        units = [unit.box for unit in grid.touching(Box(region.start, region.stop))]
        began = self.clock()
        written = 0
        with ExitStack() as open_units:

            def jobs() -> Iterator[tuple[Any, Region]]:
                nonlocal written
                for number in spread(len(units)):
                    if written and self.clock() - began > limit_s:
                        return
                    box = units[number]
                    part = Region(box.start, box.stop, region.part(box.start, box.stop), region.spare_bytes)
                    written += part.elements.nbytes
                    for job in open_units.enter_context(writer.jobs(part)):
                        yield job, part

            def write(piece: tuple[Any, Region], scratch: ScratchBuffers) -> None:
                writer.write(piece[0], piece[1], scratch)

            drain(jobs(), write, self._scratches, self._helpers)
        phase.add(written, self.clock() - began)


def spread(count: int) -> Iterable[int]:
    """Numbers below ``count``, each once, any first few of them spread over all.

    >>> list(spread(6))
    [1, 3, 0, 5, 2, 4]
    """
    if count <= _SORTED:
        return sorted(range(count), key=lambda number: (number * GOLDEN + 0.5) % 1)
    step = next(size for size in range(int(count * GOLDEN), count) if math.gcd(size, count) == 1)
    return (turn * step % count for turn in range(1, count + 1))


def repeat_first(share: float, region: Region) -> None:
    """Repeat the first planes of a region, a share of all, along its first axis, instead of what is behind them."""
    planes = region.elements.shape[0] if region.elements.shape else 0
    known = int(share * planes)
    for first in range(known, planes if known else 0, max(1, known)):
        part = region.elements[first : first + known]
        part[...] = region.elements[: len(part)]


def fill_from(sample: np.ndarray[Any, Any], region: Region) -> None:
    """Fill a region with elements of a sample, one after the other, again and again if there are too few."""
    flat = sample.reshape(-1)
    target = region.elements.reshape(-1)
    for first in range(0, target.size, max(1, flat.size)):
        part = target[first : first + flat.size]
        part[...] = flat[: part.size]
