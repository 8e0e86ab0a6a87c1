"""Work of one's own on boxes of arrays, as data. Layer: above executors and report, below regions.

A :class:`ChunkTask` is a function that can be imported, the boxes that it reads and those that it writes. It pickles,
and it has a line of JSON. What does one is :func:`rechunk_exec.regions.chunk_task`.

>>> box = Chunk(array=ArrayRef(store="/data/cube.zarr"), start=(0, 0), stop=(2, 4))
>>> box.shape, str(box.at("/data/mask.zarr"))
((2, 4), '/data/mask.zarr[0:2, 0:4]')
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeAlias

import zarr

from rechunk_exec import storage, wire
from rechunk_exec.errors import PlanError, SerializationError, StorageError
from rechunk_exec.executors.remote import why_hidden
from rechunk_exec.grid import Box, Grid
from rechunk_exec.tasks import ArrayRef, OptionValue

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
        return f"{self.array}[{span(self.box)}]"


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


def span(box: Box) -> str:
    """Return a box as it is written in an index."""
    return ", ".join(f"{low}:{high}" for low, high in zip(box.start, box.stop, strict=True))
