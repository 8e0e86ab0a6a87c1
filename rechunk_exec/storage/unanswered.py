"""Requests that a store does not answer, given up when a job is to end. Layer: storage.

zarr makes the requests of all threads on one event loop of the process, and a thread that waits for one cannot be
stopped. What can is the request. So those that the calls of a pool of threads wait for are known by the pool: they are
registered while they are pending, on the loop, which sees the context of the thread that asks. Requests that others
make on that loop, a user's own or another pool's, are not touched. What does not pass over that loop, such as reading
a file of a network disk that hangs, is waited for.

A driver's own requests, for its journal and its claim, are known in the same way (:func:`requests_of_driver`). They are
given up once it was interrupted and its workers have stopped (:func:`interrupted`): before that they are needed.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar, copy_context
from typing import Any, TypeVar

from zarr.core.sync import sync as sync_by_zarr

from rechunk_exec.errors import StorageError

T = TypeVar("T")
U = TypeVar("U")

GRACE_S = 5.0
"""How long requests may take to be answered after a job was asked to end."""


class Unanswered:
    """The requests that some calls wait for. Safe to use from several threads."""

    def __init__(self) -> None:
        self.given_up = threading.Event()
        """Is set once the requests are given up; then none is made any more."""
        self._lock = threading.Lock()
        self._pending: dict[asyncio.Task[Any], asyncio.AbstractEventLoop] = {}
        self._parts: set[Unanswered] = set()
        self._timer: threading.Timer | None = None

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
            parts = list(self._parts)
        for part in parts:
            part.give_up()

    @contextmanager
    def with_part(self, part: Unanswered) -> Iterator[None]:
        """Have requests be some of these while the context lasts."""
        with self._lock:
            self._parts.add(part)
            if self.given_up.is_set():
                part.given_up.set()
        try:
            yield
        finally:
            with self._lock:
                self._parts.discard(part)

    def give_up_soon(self) -> None:
        """Have them fail after ``GRACE_S``, unless that is under way."""
        with self._lock:
            if self._timer is None:
                self._timer = threading.Timer(GRACE_S, self.give_up)
                self._timer.daemon = True
                self._timer.start()

    def end(self) -> None:
        """Give up what is left now, if they were to be given up soon."""
        if self._timer is not None:
            self._timer.cancel()
            self.give_up()

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


@contextmanager
def requests_apart() -> Iterator[Unanswered]:
    """Know the requests that are made in this context while it lasts, to give them up and no others.

    They stay a part of those of the call that is running here.
    """
    outer, own = _OF_THIS_CALL.get(), Unanswered()
    token = _OF_THIS_CALL.set(own)
    try:
        with nullcontext() if outer is None else outer.with_part(own):
            yield own
    finally:
        _OF_THIS_CALL.reset(token)


@contextmanager
def requests_of_driver() -> Iterator[None]:
    """Know the requests that a driver makes while the context lasts, so that :func:`interrupted` can limit them."""
    with requests_apart() as own:
        try:
            yield
        finally:
            own.end()


def each_of(request: Callable[[U], T], arguments: Iterable[U], *, threads: int) -> list[T]:
    """Make a request for each argument, several at once, and return what they return, in order.

    If one fails, or the thread that waits is interrupted, those that are not begun are not made; interrupted, it waits
    for no answer.
    """
    with requests_apart() as own, ThreadPoolExecutor(threads) as pool:
        made: list[Future[T]] = []
        try:
            made += [pool.submit(copy_context().run, request, argument) for argument in arguments]
            return [one.result() for one in made]
        except BaseException as error:
            for one in made:
                one.cancel()
            if not isinstance(error, Exception):
                own.give_up()
            raise


def interrupted(error: BaseException | None) -> None:
    """Have the requests of this driver given up soon if it was interrupted, which is no :class:`Exception`.

    Comes when no task runs any more, and what is left to write is the driver's own.
    """
    unanswered = _OF_THIS_CALL.get()
    if error is not None and not isinstance(error, Exception) and unanswered is not None:
        unanswered.give_up_soon()


def thread_of_driver(target: Callable[[], None], name: str) -> threading.Thread:
    """Return a thread, not started, whose requests are those of the driver that makes it."""
    return threading.Thread(target=copy_context().run, args=(target,), name=name, daemon=True)


async def held(request: Coroutine[Any, Any, T]) -> T:
    """Await a request, as one that can be given up if it is made for such a call."""
    unanswered = _OF_THIS_CALL.get()
    return await (request if unanswered is None else unanswered.held(request))


def sync(request: Coroutine[Any, Any, T]) -> T:
    """Make a request on zarr's event loop and return its answer; it can be given up if it is made for such a call."""
    return sync_by_zarr(held(request))


def _given_up() -> StorageError:
    return StorageError("the job was to end, and the store had not answered: the request was given up")
