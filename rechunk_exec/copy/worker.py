"""What one process keeps while it runs tasks, and how it runs one."""

from __future__ import annotations

import functools
import os
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from rechunk_exec.copy.buffers import BufferPool, ScratchBuffers, ScratchPool, elements_on
from rechunk_exec.copy.drain import drain
from rechunk_exec.copy.heap import bound_heap, trim_heap
from rechunk_exec.copy.meter import MemoryMeter, resident_bytes
from rechunk_exec.copy.noting import note
from rechunk_exec.digest import box_digest
from rechunk_exec.errors import SerializationError, StorageError
from rechunk_exec.results import TaskResult
from rechunk_exec.storage import (
    Index,
    Moved,
    Region,
    UnitReader,
    UnitWriter,
    Written,
    open_reader,
    open_writer,
    run_with_changes,
    take_retries,
)
from rechunk_exec.tasks import ArrayRef, CopyTask

_OPEN_PAIRS_KEPT = 8
_SLABS = 4
"""Parts of a region, for each thread, whose digests are computed apart: none waits long for another."""
_UNITS_EXPECTED, _BYTES_EXPECTED = 4, 1 << 26
"""How much a disk is told of ahead for each thread: of small units the first bound, of large ones the second."""
_SMALL_BYTES = 1 << 20
"""A region that takes less time to copy than threads take to begin: about a millisecond."""
_TRIMMED_FROM = 4_000_000
"""Freed memory is given back when a task ends after tasks of so many bytes; it takes a millisecond or less."""
_LOOSE_BYTES = 1 << 19
"""And when one ends with so much more than there was when memory was given back last. Where tasks hold little, most of
it is what codecs worked in, between whose pieces other small ones stay, so that the next task finds no room there."""
_HELPER_THREADS = 256  # started one by one, as they are needed


def run_task(task: CopyTask) -> TaskResult:
    """Copy one region, in this process.

    Reads the units that the region touches, then replaces whole write units of the target. May run again, or twice at
    once, with the same result. The arrays must exist (see :meth:`rechunk_exec.Rechunked.execute`).

    Parameters
    ----------
    task : CopyTask

    Returns
    -------
    TaskResult
        Seconds, bytes, and the predicted and measured peak of memory.

    Raises
    ------
    StorageError
        If an array cannot be opened, a unit cannot be read or decoded, or an object cannot be written.
    """
    return run_with_changes(_worker().run, task)


def release_memory() -> None:
    """Give back what this process keeps between tasks: opened arrays, buffers, and freed memory of the C allocator."""
    _worker().release()


def configure_worker(cores: int) -> None:
    """Bound the threads of a worker process that is ours alone to ``cores``.

    Codecs run on as many threads as a task says; this bounds the pools that libraries keep besides. It changes
    process-wide settings, so it is for processes that an executor started, never for a user's own.
    """
    import threadpoolctl
    import zarr
    from numcodecs import blosc

    os.environ["RAYON_NUM_THREADS"] = str(cores)  # read when zarrs first decodes
    threadpoolctl.threadpool_limits(cores)
    bound_heap()
    blosc.set_nthreads(1)
    zarr.config.set({"threading.max_workers": cores, "async.concurrency": cores})


@dataclass(frozen=True, slots=True)
class _Pair:
    """The two opened arrays of a stage."""

    reader: UnitReader
    writer: UnitWriter
    refs: tuple[ArrayRef, ArrayRef]
    """What was opened. A live store is known by its identity, which another one could take if this were gone."""


class Worker:
    """Runs tasks, several at once if asked to, and keeps what the next one can use."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pairs: OrderedDict[tuple[str, Hashable, Hashable], _Pair] = OrderedDict()
        self._regions = BufferPool()
        self._scratches = ScratchPool()
        self._helpers = ThreadPoolExecutor(_HELPER_THREADS, thread_name_prefix="rechunk_exec-codec")
        self._meter = MemoryMeter()
        self._job, self._stage = "", 0
        self._running = 0
        self._untrimmed = self._trimmed_to = 0

    def run(self, task: CopyTask) -> TaskResult:
        """Copy one region; see :func:`run_task`."""
        began = time.perf_counter()
        with self._lock:
            idle = not self._running
            another_job, another_stage = (idle and task.job != self._job), (idle and task.stage != self._stage)
            self._job, self._stage = task.job, task.stage
            self._running += 1
        if another_job:  # what was kept of another job is no part of this one's budget
            self.release()
        elif another_stage:  # regions of another size would stand beside those of this one
            self._regions.clear()
        try:
            pair = self._open(task)  # what opening takes is the worker's idle footprint, not the task's
            measured = self._meter.start()
            try:
                moved = self._copy(task, pair)
            finally:
                peak_bytes = self._meter.stop(measured)
        finally:
            with self._lock:
                self._untrimmed += task.predicted_bytes
                loose = self._meter.held_bytes > self._trimmed_to + _LOOSE_BYTES
                trimming = loose or self._untrimmed >= _TRIMMED_FROM
                self._untrimmed = 0 if trimming else self._untrimmed
            if trimming:
                trim_heap()  # what codecs worked in, of which each thread's arena keeps what it had at most
                self._trimmed_to = resident_bytes()
            with self._lock:
                self._running -= 1
        result = TaskResult(
            stage=task.stage,
            index=task.index,
            seconds=time.perf_counter() - began,
            bytes_read=moved.decoded,
            bytes_written=moved.written,
            stored_bytes_read=moved.stored_read,
            stored_bytes_written=moved.stored_written,
            objects_written=moved.objects,
            store_retries=moved.retries,
            digest=moved.digest,
            unexpected_chunks=moved.unexpected,
            bytes_beyond_plan=moved.beyond_plan,
            predicted_bytes=task.predicted_bytes,
            peak_bytes=peak_bytes,
            reader=pair.reader.way,
            writer=pair.writer.way,
        )
        note(task, result)
        return result

    def release(self) -> None:
        """Give back what is kept between tasks."""
        with self._lock:
            self._pairs.clear()
        self._scratches.clear()
        self._regions.clear()
        trim_heap()
        self._meter.rebase()

    def _open(self, task: CopyTask) -> _Pair:
        # The job is part of the key: an array that was made anew under the same name is another array. Without a name
        # it cannot be told from the one before.
        if not task.job:
            return _open_pair(task)
        key = (task.job, task.source.key, task.target.key)
        with self._lock:
            pair = self._pairs.get(key)
            if pair is None:
                # Tasks may have targets of their own, copies of a session, and still share what is known of the source.
                known = next((pair.reader for other, pair in self._pairs.items() if other[:2] == key[:2]), None)
                pair = self._pairs[key] = _open_pair(task, known)
                if len(self._pairs) > _OPEN_PAIRS_KEPT:
                    self._pairs.popitem(last=False)
            return pair

    def _copy(self, task: CopyTask, pair: _Pair) -> _Tally:
        tally = _Tally()

        def read(unit: Index, scratch: ScratchBuffers) -> None:
            tally.add_read(pair.reader.read_named(unit, region, scratch))

        def write(job: Any, scratch: ScratchBuffers) -> None:
            tally.add_written(pair.writer.write(job, region, scratch))

        with self._region(task, pair) as region, self._scratches.borrow(task.threads) as scratches:
            helpers = None if _is_alone(task, region) else self._helpers
            drain(_expected(pair.reader, region, len(scratches)), read, scratches, helpers)
            if tally.absent:
                pair.reader.refuse_vanished()
            for scratch in scratches:
                scratch.shrink()
            if not pair.reader.objects.streams and tally.stored_read > _LOOSE_BYTES:
                trim_heap()  # clients join answers out of parts, and writing works in other threads' arenas
            if task.digest:
                tally.digest = f"{_digest(region, scratches, helpers):016x}"
            with pair.writer.jobs(region) as jobs:
                drain(jobs, write, scratches, helpers)
            for scratch in scratches:
                scratch.shrink()
            tally.written = region.elements.nbytes
        return tally

    @contextmanager
    def _region(self, task: CopyTask, pair: _Pair) -> Iterator[Region]:
        stored = pair.reader.stored
        if len(task.start) != len(stored.shape) or any(map(int.__gt__, task.stop, stored.shape)):
            raise SerializationError(
                f"a task's box must lie in the array; got {task.start} to {task.stop} "
                f"of {task.source}, which has shape {stored.shape}"
            )
        unit = pair.writer.stored.write_unit
        if any(
            low % size or (high % size and high < n)
            for low, high, n, size in zip(task.start, task.stop, stored.shape, unit, strict=True)
        ):
            raise SerializationError(
                f"a task's box must be whole write units, or what is not in it would be lost; got {task.start} to "
                f"{task.stop} of {task.target}, which has write units of {unit} and shape {stored.shape}"
            )
        shape = tuple(high - low for low, high in zip(task.start, task.stop, strict=True))
        if not stored.fixed_size:
            yield Region(task.start, task.stop, np.empty(shape, stored.dtype))
            return
        nbytes = prod(shape) * stored.dtype.itemsize
        spare_bytes = max(0, task.predicted_bytes - nbytes) // task.threads
        with self._regions.borrow(nbytes) as memory:
            yield Region(task.start, task.stop, elements_on(memory, shape, stored.dtype), spare_bytes)


def _expected(reader: UnitReader, region: Region, threads: int) -> Iterator[Any]:
    """Yield a region's units, and say of each some time before that it will be read: meanwhile others are decoded."""
    ahead = max(1, min(_UNITS_EXPECTED, _BYTES_EXPECTED // max(1, reader.stored.chunk_bytes)))
    told: deque[Any] = deque()
    for unit in reader.units(region):
        reader.expect(unit, region)
        told.append(unit)
        if len(told) > threads * ahead:
            yield told.popleft()
    yield from told


def _is_alone(task: CopyTask, region: Region) -> bool:
    """Whether the calling thread does all of a task: handing it over would take longer, or gain nothing."""
    if region.elements.nbytes <= _SMALL_BYTES:
        return True
    # numcodecs holds the interpreter lock when it is called from the main thread.
    return task.threads == 1 and threading.current_thread() is not threading.main_thread()


def _digest(region: Region, scratches: list[ScratchBuffers], helpers: ThreadPoolExecutor | None) -> int:
    """Return the digest of a region, computed by as many threads as there are scratches."""
    elements, first = region.elements, region.start
    axis = next((axis for axis, n in enumerate(elements.shape) if n > 1), None)
    if axis is None:
        return box_digest(elements, first)
    step = -(-elements.shape[axis] // (_SLABS * len(scratches)))
    sums: list[int] = []

    def add(low: int, _: ScratchBuffers) -> None:
        slab = elements[(slice(None),) * axis + (slice(low, low + step),)]
        sums.append(box_digest(slab, (*first[:axis], first[axis] + low, *first[axis + 1 :])))

    drain(range(0, elements.shape[axis], step), add, scratches, helpers)
    return sum(sums) % 2**64


def _open_pair(task: CopyTask, reader: UnitReader | None = None) -> _Pair:
    reader = reader or open_reader(task.source, task.read_unit)
    pair = _Pair(reader, open_writer(task.target), (task.source, task.target))
    one, other = pair.reader.stored, pair.writer.stored
    if one.shape != other.shape or one.kind != other.kind:
        raise StorageError(
            f"a task copies between arrays of one shape and dtype; got {one.shape} of {one.dtype} at {task.source} "
            f"and {other.shape} of {other.dtype} at {task.target}"
        )
    return pair


@dataclass(slots=True)
class _Tally:
    """What the threads of one task have moved, in bytes, and how."""

    decoded: int = 0
    written: int = 0
    stored_read: int = 0
    stored_written: int = 0
    objects: int = 0
    unexpected: int = 0
    beyond_plan: int = 0
    retries: int = 0
    absent: bool = False
    """Whether a chunk was absent, or may have been."""
    digest: str = ""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add_read(self, moved: Moved) -> None:
        """Count what this thread has just read."""
        with self._lock:
            self.decoded += moved.decoded
            self.stored_read += moved.stored
            self.absent |= not moved.stored
            self.unexpected += moved.unexpected
            self.beyond_plan += moved.beyond_plan
            self.retries += take_retries()

    def add_written(self, written: Written) -> None:
        """Count what this thread has just written."""
        with self._lock:
            self.stored_written += written.stored
            self.objects += written.objects
            self.retries += take_retries()


@functools.cache
def _worker() -> Worker:
    """Return the worker of this process: one, because memory is a promise of the process."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_worker.cache_clear)  # a fork has none of its threads
    return Worker()
