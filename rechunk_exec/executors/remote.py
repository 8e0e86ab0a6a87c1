"""Crossing into a worker process: calls go as bytes, and a reply always comes back. Layer: executors, below the pools.

What a call raises may not pickle, what it returns may not, and what it is may not load in the worker. None of that may
take down the worker or lose the reason: a :class:`Reply` is always a few strings and bytes.
"""

from __future__ import annotations

import dataclasses
import os
import pickle
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rechunk_exec import storage
from rechunk_exec.errors import RechunkError, SerializationError, StorageError, error_text
from rechunk_exec.executors.calls import Outcome
from rechunk_exec.executors.shared import ARRIVALS, Shared, pack
from rechunk_exec.storage.stores import explicit_secret
from rechunk_exec.tasks import ArrayRef, Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An exception that can travel, whatever it is."""

    data: bytes | None
    """Its pickle, if it survives pickling."""
    summary: str
    """Its class and message."""
    text: str
    """Its traceback, with those of its causes."""

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Return what travels of ``error``."""
        summary = error_text(error)
        text = f"In process {os.getpid()}:\n" + "".join(traceback.format_exception(error))
        try:
            data = pickle.dumps(error)
            survives = type(pickle.loads(data)) is type(error)
        except Exception:  # noqa: BLE001 - exceptions do all kinds of things when they are pickled
            survives = False
        return cls(data=data if survives else None, summary=summary, text=text)

    def error(self) -> BaseException:
        """Return the exception, or a RechunkError that tells of it; the traceback is its note."""
        error: BaseException = RechunkError(f"{self.summary} (as text: the exception itself does not pickle)")
        if self.data is not None:
            try:
                loaded = pickle.loads(self.data)
                error = loaded if isinstance(loaded, BaseException) else error
            except Exception as problem:  # noqa: BLE001 - a class that this process cannot import, say
                error.__cause__ = problem
        error.add_note(self.text)
        return error


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What a call came to: the pickle of its value, or a failure."""

    data: bytes | None = None
    failure: Failure | None = None
    seconds: float = 0.0
    """How long the call took, where that was measured."""

    def outcome(self, number: int) -> Outcome:
        """Return how call ``number``, whose reply this is, ended."""
        if self.failure is not None:
            return Outcome(number=number, error=self.failure.error())
        try:
            return Outcome(number=number, value=pickle.loads(self.data or b""))
        except Exception as error:  # noqa: BLE001 - whatever a class does when it is loaded
            wrong = SerializationError(f"what a call returns must load here; got {error_text(error)}")
            wrong.__cause__ = error
            return Outcome(number=number, error=wrong)


def pack_call(function: Shared[Callable[[Any], object]], argument: object) -> tuple[bytes, dict[str, Shared[Any]]]:
    """Return a call's pickle and the handles that the worker must have, by token."""
    packed = pack((function, argument))
    return packed.data, packed.needs()


def run_call(data: bytes) -> Reply:
    """Make a call and return its reply; nothing is raised."""
    try:
        function, argument = _load(data)
        value = function.value(argument)
    except BaseException as error:  # noqa: BLE001 - it goes back to who made the call
        return Reply(failure=Failure.of(error))
    try:
        return Reply(data=pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL))
    except Exception as error:  # noqa: BLE001 - as above
        wrong = SerializationError(f"what a call returns must pickle; got a {type(value).__name__}: {error}")
        return Reply(failure=Failure.of(wrong))


def run_set_up(token: str) -> Reply:
    """Call the shared function ``token`` with no argument, once in this process, however often this is called."""
    try:
        with _SET_UP_LOCK:
            if token not in _SET_UP:
                entry = ARRIVALS.find(token)
                function: Any = entry.load() if entry is not None else None
                function()
                _SET_UP.add(token)
    except BaseException as error:  # noqa: BLE001 - it goes back to who made the call
        return Reply(failure=Failure.of(error))
    return Reply(data=pickle.dumps(None))


def is_set_up(token: str) -> bool:
    """Return whether :func:`run_set_up` has done this one here."""
    return token in _SET_UP


@dataclass(frozen=True, slots=True, kw_only=True)
class Parcel:
    """A call for a worker process that nobody can address: it goes to whichever is free."""

    data: bytes
    tokens: tuple[str, ...]
    """Of the objects that the call needs."""
    set_ups: tuple[str, ...]
    """Of the functions that are to be called once in each worker."""
    enclosed: tuple[tuple[str, bytes], ...] = ()
    """Objects that a worker lacked, by token."""


@dataclass(frozen=True, slots=True)
class Missing:
    """What a worker lacks for a parcel: send it again, with these enclosed."""

    tokens: tuple[str, ...]


def open_parcel(parcel: Parcel) -> Reply | Missing:
    """Make the parcel's call, in a worker process, unless objects are missing here."""
    for token, data in parcel.enclosed:
        ARRIVALS.keep(token, data)
    set_ups = [token for token in parcel.set_ups if not is_set_up(token)]
    needed = [*set_ups, *parcel.tokens]
    missing = tuple(token for token in needed if ARRIVALS.find(token) is None)
    if missing:
        return Missing(missing)
    ARRIVALS.trim(len(needed) + 64)
    for token in set_ups:
        reply = run_set_up(token)
        if reply.failure is not None:
            return reply
    began = time.perf_counter()
    reply = run_call(parcel.data)
    return dataclasses.replace(reply, seconds=time.perf_counter() - began)


def refuse_live_stores(stages: Sequence[Stage], executor: str) -> None:
    """Refuse stages that other processes could not work on: those of stores in this process's memory.

    Raises
    ------
    StorageError
        Before anything has run; the message names the store.
    """
    for ref in (ref for stage in stages for ref in (stage.source, stage.target)):
        problem = why_hidden(ref)
        if problem:
            raise StorageError(
                f"executor {executor!r} needs stores that its worker processes see too; got {ref}: {problem}; "
                "use executor='threads', or a path or URL"
            )


def why_hidden(ref: ArrayRef) -> str:
    """Return why other processes could not work on an array, for people; "" if they can."""
    of_icechunk = storage.hidden_from_processes(ref)
    if of_icechunk is not None:
        return of_icechunk
    if _in_memory(ref.store):
        return "it is in this process's memory"
    if ref.by_name:
        return ""
    secret = explicit_secret(ref.store)
    if secret is not None:
        return f"it was made with credentials ({secret}), which would travel to them; leave those to the environment"
    try:
        pack(ref.store)
    except SerializationError as error:
        return f"it does not pickle: {error.__cause__}"
    return ""


def _in_memory(store: object, depth: int = 3) -> bool:
    if isinstance(store, str):
        return store.startswith("memory:")
    if any("Memory" in kind.__name__ or kind is dict for kind in type(store).__mro__):
        return True
    # A store may wrap another one, or a file system.
    inner = [getattr(store, name, None) for name in ("store", "_store", "fs")]
    return depth > 0 and any(_in_memory(one, depth - 1) for one in inner if one is not None)


def _load(data: bytes) -> tuple[Shared[Callable[[Any], object]], Any]:
    try:
        loaded: tuple[Shared[Callable[[Any], object]], Any] = pickle.loads(data)
        _ = loaded[0].value
    except Exception as error:
        raise SerializationError(
            f"a call must load in a worker process; got {error_text(error)}; "
            "define its function in a module that workers can import, not in a notebook or an interactive session"
        ) from error
    return loaded


_SET_UP: set[str] = set()
_SET_UP_LOCK = threading.Lock()
