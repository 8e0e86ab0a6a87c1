"""Doing one piece of work after another on a few threads, without an object a piece."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from contextvars import copy_context
from typing import TypeVar

from rechunk_exec.copy.buffers import ScratchBuffers
from rechunk_exec.storage.unanswered import GRACE_S, requests_apart

Work = TypeVar("Work")


def drain(
    work: Iterable[Work],
    do: Callable[[Work, ScratchBuffers], None],
    scratches: list[ScratchBuffers],
    helpers: ThreadPoolExecutor | None,
) -> None:
    """Call ``do`` for each piece of ``work``, on as many threads as there are scratches.

    Returns when all pieces are done. The first failure stops the others from taking more work and is raised.
    """
    pieces = iter(work)
    lock = threading.Lock()
    failures: list[BaseException] = []

    def loop(scratch: ScratchBuffers) -> None:
        try:
            while not failures:
                with lock:
                    piece = next(pieces, _END)
                if piece is _END:
                    return
                do(piece, scratch)  # type: ignore[arg-type]  # the sentinel is no piece
        except BaseException as error:  # noqa: BLE001 - raised below, in the caller's thread
            failures.append(error)

    if helpers is None:
        loop(scratches[0])
    else:
        with requests_apart() as requests:
            running = [helpers.submit(copy_context().run, loop, scratch) for scratch in scratches]
            try:
                wait(running)
            except BaseException as error:  # noqa: BLE001 - raised below. Ctrl-C: let no thread write on after the task has ended
                failures.append(error)
                if wait(running, timeout=GRACE_S).not_done:
                    requests.give_up()
                wait(running)
    if failures:
        raise failures[0]


_END = object()
