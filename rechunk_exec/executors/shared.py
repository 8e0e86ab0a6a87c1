"""One read-only object for all tasks: sent once a worker process, not once a task. Layer: executors, below the pools.

:meth:`PoolExecutor.put <rechunk_exec.executors.pool.PoolExecutor.put>` returns a :class:`Shared`. In the process that
made it, it holds the object. When it is pickled, only its token travels; the pool sees to it that the object's own
pickle is in the worker before the call that needs it.
"""

from __future__ import annotations

import io
import pickle
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Self, TypeVar, cast

from rechunk_exec.errors import RechunkError, SerializationError

T = TypeVar("T")


class Shared(Generic[T]):
    """A handle of one object, to be put into tasks. It must be kept for as long as tasks that use it are to be run.

    Examples
    --------
    >>> handle = Shared([1, 2, 3])
    >>> handle.value
    [1, 2, 3]
    """

    __slots__ = ("__weakref__", "_entry", "_packed", "token")

    def __init__(self, value: T) -> None:
        self.token = uuid.uuid4().hex
        self._entry: _Entry | None = _Entry(value=value)
        self._packed: Packed | None = None

    @property
    def value(self) -> T:
        """The object: the one given in this process, a copy in another one. Not to be changed."""
        if self._entry is None:
            raise RechunkError(
                "a shared object can be used in the calls of the executor that it travelled with; "
                f"got handle {self.token} in a process that was not sent the object; pass the handle as part of a task"
            )
        return cast(T, self._entry.load())

    def pack(self) -> Packed:
        """Return the object's pickle; made once.

        Raises
        ------
        SerializationError
            If the object does not pickle.
        """
        if self._packed is None:
            self._packed = pack(self.value)
        return self._packed

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce__(self) -> tuple[Callable[[str], Shared[Any]], tuple[str]]:
        return _arrived, (self.token,)

    def __repr__(self) -> str:
        return f"<Shared {self.token[:8]}>"


@dataclass(frozen=True, slots=True)
class Packed:
    """A pickle and the handles met in it, which the process that loads it must have been sent before."""

    data: bytes
    handles: tuple[Shared[Any], ...]

    def needs(self) -> dict[str, Shared[Any]]:
        """Return all handles needed to use what is packed, by token, those needed by others first."""
        found: dict[str, Shared[Any]] = {}
        for handle in self.handles:
            found |= handle.pack().needs()
            found[handle.token] = handle
        return found


def pack(value: object) -> Packed:
    """Return the pickle of ``value``.

    Raises
    ------
    SerializationError
        If it does not pickle; the cause says why.
    """
    stream = io.BytesIO()
    pickler = _Pickler(stream)
    try:
        pickler.dump(value)
    except Exception as error:
        raise SerializationError(
            "what goes to a worker process must pickle: plain values, records, and functions and classes that can be "
            f"imported; got a {type(value).__name__} that does not: {error}; define functions at a module's top level"
        ) from error
    return Packed(stream.getvalue(), tuple(pickler.handles))


class Arrivals:
    """The objects that this process was sent, by token. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[str, _Entry] = {}

    def keep(self, token: str, data: bytes) -> None:
        """Keep the object with this pickle; it is loaded when it is first used."""
        with self._lock:
            self._entries.setdefault(token, _Entry(data=data))

    def forget(self, token: str) -> None:
        """Let go of an object."""
        with self._lock:
            self._entries.pop(token, None)

    def trim(self, limit: int) -> None:
        """Let go of all but ``limit`` objects, the least recently used first."""
        with self._lock:
            for token in list(self._entries)[: max(0, len(self._entries) - limit)]:
                del self._entries[token]

    def find(self, token: str) -> _Entry | None:
        """Return what :meth:`keep` got under this token, or None."""
        with self._lock:
            entry = self._entries.pop(token, None)
            if entry is not None:
                self._entries[token] = entry  # the most recently used are last
            return entry


ARRIVALS = Arrivals()
"""Those of this process: a handle is nothing but a name for what its process has."""


class _Entry:
    """An object, or the pickle that it is loaded from when it is first used."""

    __slots__ = ("_data", "_lock", "_value")

    def __init__(self, *, value: object = None, data: bytes | None = None) -> None:
        self._value = value
        self._data = data
        self._lock = threading.Lock()

    def load(self) -> object:
        with self._lock:
            if self._data is not None:
                self._value = pickle.loads(self._data)
                self._data = None
            return self._value


class _Pickler(pickle.Pickler):
    """Notes the handles that it meets."""

    def __init__(self, stream: io.BytesIO) -> None:
        super().__init__(stream, protocol=pickle.HIGHEST_PROTOCOL)
        self.handles: list[Shared[Any]] = []

    def reducer_override(self, obj: object) -> Any:
        if isinstance(obj, Shared):
            self.handles.append(obj)
        return NotImplemented


def _arrived(token: str) -> Shared[Any]:
    handle: Shared[Any] = Shared.__new__(Shared)
    handle.token = token
    handle._packed = None  # noqa: SLF001
    handle._entry = ARRIVALS.find(token)  # noqa: SLF001
    return handle
