"""Work of one's own on boxes of arrays: read, call a function, write. Layer: above executors and report, below api.

A :class:`ChunkTask` is data: a function that can be imported, the boxes that it reads and those that it writes.
:func:`chunk_task` does one, in any process: it reads the boxes into NumPy arrays, calls the function, and replaces the
boxes it writes, whole write units, none of which is read before. So a task may run again, or twice, and nothing is
locked. What would break that is refused by :func:`check_aligned` before anything runs.

>>> box = Chunk(array=ArrayRef(store="/data/cube.zarr"), start=(0, 0), stop=(2, 4))
>>> box.shape, str(box.at("/data/mask.zarr"))
((2, 4), '/data/mask.zarr[0:2, 0:4]')
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, fields
from typing import Any, TypeAlias

import numpy as np
import zarr
from numpy.typing import NDArray

from rechunk_exec import storage, wire
from rechunk_exec.copy.buffers import ScratchBuffers
from rechunk_exec.copy.drain import drain
from rechunk_exec.errors import PlanError, RechunkError, SerializationError, StorageError
from rechunk_exec.executors import Shared
from rechunk_exec.executors.remote import why_hidden
from rechunk_exec.grid import Box, Grid
from rechunk_exec.tasks import ArrayRef, OptionValue

Array: TypeAlias = NDArray[Any]
Shape: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A box of an array: the elements ``start <= index < stop``."""

    array: ArrayRef
    start: Shape
    """First element, on each axis."""
    stop: Shape
    """One past the last element, on each axis."""

    def __post_init__(self) -> None:
        if len(self.start) != len(self.stop) or not all(
            0 <= low < high for low, high in zip(self.start, self.stop, strict=False)
        ):
            raise PlanError(f"a box must have 0 <= start < stop on each axis; got {self.start} to {self.stop}")

    @classmethod
    def of(cls, array: object, start: Iterable[int], stop: Iterable[int]) -> Chunk:
        """Return a box of an array.

        Parameters
        ----------
        array : str, os.PathLike, zarr.Array, zarr store or ArrayRef
        start, stop : iterable of int
            In elements; ``stop`` is not in the box.
        """
        return cls(array=_ref(array), start=tuple(map(int, start)), stop=tuple(map(int, stop)))

    @classmethod
    def each(cls, array: object, shape: Iterable[int] | None = None) -> Iterator[Chunk]:
        """Yield boxes that tile an array, in C order, each whole write units or up to the edge.

        Parameters
        ----------
        array : str, os.PathLike, zarr.Array, zarr store or ArrayRef
        shape : iterable of int, optional
            Elements of one box; a multiple of the write unit on each axis, or at least the axis. Default: one write
            unit, that is a shard if there are shards, else a chunk.

        Raises
        ------
        PlanError
            If ``shape`` is not whole write units.
        """
        ref = _ref(array)
        stored = storage.open_array(ref, read_only=True)
        unit = stored.write_unit
        wanted = unit if shape is None else tuple(shape)
        if len(wanted) != len(unit) or any(
            size < 1 or (size % step and size < n) for size, step, n in zip(wanted, unit, stored.shape, strict=False)
        ):
            raise PlanError(
                f"boxes to be written must be whole write units, {unit} elements of {ref}; got {wanted}; give a "
                "multiple of that on each axis, or the length of the axis"
            )
        grid = Grid(stored.shape, wanted)
        for number in range(len(grid)):
            box = grid.box(number)
            yield cls(array=ref, start=box.start, stop=box.stop)

    def at(self, array: object) -> Chunk:
        """Return the same box of another array."""
        return type(self)(array=_ref(array), start=self.start, stop=self.stop)

    @property
    def shape(self) -> Shape:
        """In elements."""
        return self.box.shape

    @property
    def box(self) -> Box:
        """The box without its array."""
        return Box(self.start, self.stop)

    def __str__(self) -> str:
        return f"{self.array}[{_span(self.box)}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkTask:
    """A call of a function on boxes of arrays.

    The function is called with an array for each box it reads, in order, and the ``options`` by name. It returns an
    array for each box it writes: the array itself where there is one, else a tuple of them. Each has the shape of its
    box and the dtype of its array.

    For worker processes the function must be one that they can import.
    """

    function: Callable[..., Any]
    reads: tuple[Chunk, ...]
    writes: tuple[Chunk, ...]
    options: Mapping[str, object] = field(default_factory=dict, hash=False)
    """Arguments by name. Where one is a handle (:meth:`put
    <rechunk_exec.executors.pool.PoolExecutor.put>`), the function gets its object."""
    threads: int = 1
    """How many units are decoded or encoded at once."""

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise TypeError(f"a task's function must be callable; got {self.function!r}")
        for name in ("reads", "writes"):
            boxes = getattr(self, name)
            if not isinstance(boxes, tuple) or not all(isinstance(box, Chunk) for box in boxes):
                raise TypeError(f"a task's {name} must be a tuple of Chunk; got {boxes!r}")
        if not self.writes:
            raise PlanError(f"a task must write something, or nobody sees what it did; got no writes for {self}")
        if self.threads < 1:
            raise PlanError(f"a task's threads must be at least 1; got {self.threads}")

    def __str__(self) -> str:
        name = getattr(self.function, "__qualname__", repr(self.function))
        return f"{name}({', '.join(map(str, self.reads))}) -> {', '.join(map(str, self.writes))}"

    def __reduce__(self) -> tuple[Callable[..., ChunkTask], tuple[object, ...]]:
        # Another process would write to a copy of such a store, and it would seem that all went well.
        for chunk in (*self.reads, *self.writes):
            problem = why_hidden(chunk.array)
            if problem:
                raise StorageError(
                    f"a task in another process needs stores that are seen there too; got {chunk.array}: {problem}; "
                    "use executor='threads', or a path or URL"
                )
        return _task, tuple(getattr(self, item.name) for item in fields(self))

    def to_json(self) -> str:
        """Return the task as one line of JSON, which names its function.

        Raises
        ------
        SerializationError
            If an option is more than a string, a number, true, false or None, or a store is a live one.
        """
        return wire.to_json(
            ChunkTaskDocument(
                function=_name(self.function),
                reads=self.reads,
                writes=self.writes,
                options=self.options,  # type: ignore[arg-type]  # looked at when it is written
                threads=self.threads,
            )
        )

    @classmethod
    def from_json(cls, text: str | bytes, functions: Iterable[Callable[..., Any]]) -> ChunkTask:
        """Return the task that ``text`` holds.

        Parameters
        ----------
        text : str or bytes
        functions : iterable of callable
            Those that it may name. Nothing is imported by name: a document may come from a stranger.

        Raises
        ------
        SerializationError
            If it holds no task, or names another function.
        """
        document = wire.from_json(ChunkTaskDocument, text)
        known = {_name(function): function for function in functions}
        named = [function for name, function in known.items() if _may_be(name, document.function)]
        if len(named) != 1:
            raise SerializationError(
                f"a task must name one of the functions given, {', '.join(sorted(known)) or 'which are none'}; got "
                f"{document.function!r}; give that function too, if you trust the document"
            )
        return cls(
            function=named[0],
            reads=document.reads,
            writes=document.writes,
            options=document.options,
            threads=document.threads,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkTaskDocument:
    """A :class:`ChunkTask` as JSON has it, under the type ``ChunkTaskDocument``."""

    function: str
    """As ``module:name``."""
    reads: tuple[Chunk, ...]
    writes: tuple[Chunk, ...]
    options: Mapping[str, OptionValue]
    threads: int

    def check_read(self) -> None:
        """Refuse stores that no document of ours names, and what is no name of a function."""
        if self.function.count(":") != 1:
            raise SerializationError(f"a function's name must be module:name; got {self.function!r}")
        for chunk in (*self.reads, *self.writes):
            chunk.array.check_read()


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
            f"be lost; got {chunk} in {task}; aligned would be [{_span(whole)}]"
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


def _task(*values: Any) -> ChunkTask:
    return ChunkTask(**dict(zip((item.name for item in fields(ChunkTask)), values, strict=True)))


def _name(function: Callable[..., Any]) -> str:
    name = f"{getattr(function, '__module__', None)}:{getattr(function, '__qualname__', None)}"
    if "<" in name or name.startswith("None:") or name.endswith(":None"):
        raise SerializationError(
            f"a function in a document must have a name; got {function!r}; define it at the top level of a module"
        )
    return name


def _may_be(one: str, other: str) -> bool:
    """Whether two names may be of one function: a script is ``__main__`` where it runs, and a module elsewhere."""
    (module, name), (other_module, other_name) = one.split(":"), other.split(":")
    return name == other_name and (module == other_module or "__main__" in (module, other_module))


def _ref(array: object) -> ArrayRef:
    if isinstance(array, ArrayRef):
        return array
    if isinstance(array, zarr.Array):
        return storage.array_ref(array.store_path)
    return storage.array_ref(os.fspath(array) if isinstance(array, os.PathLike) else array)


def _span(box: Box) -> str:
    return ", ".join(f"{low}:{high}" for low, high in zip(box.start, box.stop, strict=True))
