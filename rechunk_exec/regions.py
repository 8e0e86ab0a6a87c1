"""Work of one's own on boxes of arrays: read, call a function, write. Layer: above chunktasks, below alignment.

:func:`chunk_task` does one task, in any process: it reads the boxes into NumPy arrays, calls the function, and replaces
the boxes it writes, whole write units, none of which is read before. So a task may run again, or twice, and nothing is
locked. What would break that is refused by :func:`~rechunk_exec.alignment.check_aligned` before anything runs.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rechunk_exec import storage
from rechunk_exec.chunktasks import Chunk, ChunkTask, span
from rechunk_exec.copy.buffers import ScratchBuffers
from rechunk_exec.copy.drain import drain
from rechunk_exec.errors import PlanError, RechunkError
from rechunk_exec.executors import Shared
from rechunk_exec.grid import Box

Array: TypeAlias = NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkResult:
    """What one task did."""

    seconds: float
    """Wall-clock seconds, the function's included."""
    function_seconds: float
    """Of those, the function's."""
    bytes_read: int
    """Decoded bytes: of every read unit touched. Divided by the bytes of the boxes read: read amplification."""
    bytes_written: int
    """Bytes of the boxes written, before encoding."""
    objects_written: int
    """Objects stored: write units that are not all fill value."""


def chunk_task(task: ChunkTask) -> ChunkResult:
    """Do one task, in this process: read its boxes, call its function, replace the boxes it writes.

    To be given to an executor's ``map``. All results are there before the first is written. It may run again, or twice
    at once, with the same result, if its function gives the same for the same.

    Raises
    ------
    PlanError
        If a box does not lie in its array, or one to be written is not whole write units.
    StorageError
        If an array cannot be opened, read or written.
    RechunkError
        If the function did not return what it should.
    Exception
        What the function raised.
    """
    began = time.perf_counter()
    with ExitStack() as stack:
        helpers = stack.enter_context(ThreadPoolExecutor(task.threads)) if task.threads > 1 else None
        scratches = [ScratchBuffers() for _ in range(task.threads)]
        writers = [storage.open_writer(chunk.array) for chunk in task.writes]
        for chunk, writer in zip(task.writes, writers, strict=True):
            refuse_outside(chunk, writer.stored, str(task))
            refuse_parts(chunk, writer.stored, str(task))
        arrays, bytes_read = [], 0
        for chunk in task.reads:
            elements, decoded = _read(chunk, str(task), scratches, helpers)
            arrays.append(elements)
            bytes_read += decoded
        options = {name: value.value if isinstance(value, Shared) else value for name, value in task.options.items()}
        called = time.perf_counter()
        returned = task.function(*arrays, **options)
        function_seconds = time.perf_counter() - called
        results = _results(task, returned, [writer.stored for writer in writers])
        objects = sum(
            _write(chunk, writer, elements, scratches, helpers)
            for chunk, writer, elements in zip(task.writes, writers, results, strict=True)
        )
    return ChunkResult(
        seconds=time.perf_counter() - began,
        function_seconds=function_seconds,
        bytes_read=bytes_read,
        bytes_written=sum(elements.nbytes for elements in results),
        objects_written=objects,
    )


def refuse_outside(chunk: Chunk, stored: storage.StoredArray, task: str) -> None:
    """Raise :class:`PlanError` unless a box lies in its array."""
    if len(chunk.stop) != len(stored.shape) or any(map(int.__gt__, chunk.stop, stored.shape)):
        raise PlanError(f"a box must lie in its array, of shape {stored.shape}; got {chunk} in {task}")


def refuse_parts(chunk: Chunk, stored: storage.StoredArray, task: str) -> None:
    """Raise :class:`PlanError` unless a box is whole write units of its array, or reaches to its edge."""
    whole = rounded(chunk.box, stored)
    if whole != chunk.box:
        raise PlanError(
            f"a box to be written must be whole write units, {stored.write_unit} elements, or what is not in it would "
            f"be lost; got {chunk} in {task}; aligned would be [{span(whole)}]"
        )


def rounded(box: Box, stored: storage.StoredArray) -> Box:
    """Return the smallest box of whole write units, clipped to the array, that holds ``box``."""
    unit = stored.write_unit
    return Box(
        tuple(low // size * size for low, size in zip(box.start, unit, strict=True)),
        tuple(min(-(-high // size) * size, n) for high, size, n in zip(box.stop, unit, stored.shape, strict=True)),
    )


def _read(
    chunk: Chunk, task: str, scratches: list[ScratchBuffers], helpers: ThreadPoolExecutor | None
) -> tuple[Array, int]:
    """Return a box's elements, and how many bytes were decoded for them."""
    reader = storage.open_reader(chunk.array)
    finer = storage.finer_read_unit(reader.stored)
    if finer is not None:  # such as some rows of an epoch: a box needs few of them
        reader = storage.open_reader(chunk.array, finer)
    refuse_outside(chunk, reader.stored, task)
    region = storage.Region(chunk.start, chunk.stop, np.empty(chunk.shape, reader.stored.dtype))
    moves: list[storage.Moved] = []  # appended to by several threads, which is safe
    drain(
        reader.units(region),
        lambda unit, scratch: moves.append(reader.read_named(unit, region, scratch)),
        scratches,
        helpers,
    )
    if not all(moved.stored for moved in moves):
        reader.refuse_vanished()
    return region.elements, sum(moved.decoded for moved in moves)


def _write(
    chunk: Chunk,
    writer: storage.UnitWriter,
    elements: Array,
    scratches: list[ScratchBuffers],
    helpers: ThreadPoolExecutor | None,
) -> int:
    """Replace a box's elements; return how many objects were stored."""
    region = storage.Region(chunk.start, chunk.stop, elements)
    writes: list[storage.Written] = []
    with writer.jobs(region) as jobs:
        drain(jobs, lambda job, scratch: writes.append(writer.write(job, region, scratch)), scratches, helpers)
    return sum(written.objects for written in writes)


def _results(task: ChunkTask, returned: object, targets: list[storage.StoredArray]) -> list[Array]:
    """Return what a function gave as arrays to be written, in the stored byte order; refuse what does not fit."""
    several = returned if isinstance(returned, tuple) else (returned,)
    if len(several) != len(targets):
        raise RechunkError(
            f"a task's function must return an array for each box it writes, {len(targets)}, in a tuple if there are "
            f"several; got {len(several)} from {task}"
        )
    results = []
    for chunk, value, stored in zip(task.writes, several, targets, strict=True):
        elements = np.asarray(value)
        text = not stored.fixed_size and elements.dtype.kind in {"O", "T", "U"}
        if elements.shape != chunk.shape or not (text or _same_kind(elements.dtype, stored.dtype)):
            raise RechunkError(
                f"a task's function must return arrays of the shape of their boxes and the dtype of their arrays, "
                f"{chunk.shape} of {stored.dtype} for {chunk}; got {elements.shape} of {elements.dtype} from {task}; "
                "convert it in the function (.astype), so that what is lost is your choice"
            )
        results.append(np.asarray(elements, stored.dtype, order="C"))
    return results


def _same_kind(one: np.dtype[Any], other: np.dtype[Any]) -> bool:
    return one.newbyteorder("=") == other.newbyteorder("=")
