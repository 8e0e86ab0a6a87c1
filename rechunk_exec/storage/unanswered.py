"""Requests that a store does not answer, given up when a job is to end. Layer: storage.

zarr makes the requests of all threads on one event loop of the process, and a thread that waits for one cannot be
stopped. What can is the request. So those that the calls of a pool of threads wait for are known by the pool: they are
registered while they are pending, on the loop, which sees the context of the thread that asks. Requests that others
make on that loop, a user's own or another pool's, are not touched. What does not pass over that loop, such as reading
a file of a network disk that hangs, is waited for.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from typing import Any, TypeVar

from zarr.core.sync import sync as sync_by_zarr

from rechunk_exec.errors import StorageError

T = TypeVar("T")

GRACE_S = 5.0
"""How long requests may take to be answered after a job was asked to end."""


class Unanswered:
    """The requests that some calls wait for. Safe to use from several threads."""

    def __init__(self) -> None:
        self.given_up = threading.Event()
        """Is set once the requests are given up; then none is made any more."""
        self._lock = threading.Lock()
        self._pending: dict[asyncio.Task[Any], asyncio.AbstractEventLoop] = {}

    def run(self, function: Callable[..., T], *arguments: Any) -> T:
        """Make a call whose requests these are."""
        token = _OF_THIS_CALL.set(self)
        try:
            return function(*arguments)
        finally:
            _OF_THIS_CALL.reset(token)

    def give_up(self) -> None:
        """Have all of these requests fail, those to come as well."""
        with self._lock:
            self.given_up.set()
            for task, loop in self._pending.items():
                loop.call_soon_threadsafe(task.cancel)

    async def held(self, request: Coroutine[Any, Any, T]) -> T:
        """Await a request, as one of these."""
        task = asyncio.current_task()
        assert task is not None
        with self._lock:
            if self.given_up.is_set():
                request.close()
                raise _given_up()
            self._pending[task] = asyncio.get_running_loop()
        try:
            return await request
        except asyncio.CancelledError:
            if self.given_up.is_set():
                raise _given_up() from None
            raise
        finally:
            with self._lock:
                self._pending.pop(task, None)


_OF_THIS_CALL: ContextVar[Unanswered | None] = ContextVar("rechunk_exec_unanswered", default=None)


def of_this_call() -> Unanswered | None:
    """Return what the requests of the call that is running here belong to; None if nobody gives them up."""
    return _OF_THIS_CALL.get()


async def held(request: Coroutine[Any, Any, T]) -> T:
    """Await a request, as one that can be given up if it is made for such a call."""
    unanswered = _OF_THIS_CALL.get()
    return await (request if unanswered is None else unanswered.held(request))


def sync(request: Coroutine[Any, Any, T]) -> T:
    """Make a request on zarr's event loop and return its answer; it can be given up if it is made for such a call."""
    return sync_by_zarr(held(request))


def _given_up() -> StorageError:
    return StorageError("the job was to end, and the store had not answered: the request was given up")
