"""Requests to end a job, by Ctrl-C or SIGTERM, of which none is lost. Layer: with the job.

Python raises for a signal wherever the main thread happens to be. In the callback of a weak reference, or a
``__del__``, it can only print what was raised ("Exception ignored in"), and the program goes on. In Python's own code
for imports a lock may stay held for good, on which other threads wait then. So a request is noted as well as raised,
and in that code only noted; the job looks for such a note at each event, and at its end.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Self

_OF_IMPORTS = "<frozen importlib"
"""With what the names of Python's own files for imports begin."""

_Handler = Callable[[int, FrameType | None], object] | int | None


class Terminated(SystemExit):
    """The end that SIGTERM asks for, which a program's own ``SystemExit`` is not taken for."""


class EndRequests:
    """Takes requests to end while its context lasts, in the main thread, where nobody else has given them a meaning.

    Ctrl-C is a ``KeyboardInterrupt``, as ever. SIGTERM, which ends a program at once if nobody handles it, is a
    ``SystemExit``. The handlers that were there before are put back at the end.

    Examples
    --------
    >>> with EndRequests() as requests:
    ...     requests.heed()  # nobody has asked
    """

    def __init__(self) -> None:
        self._before: dict[int, _Handler] = {}
        self._taken: int | None = None

    def __enter__(self) -> Self:
        if threading.current_thread() is not threading.main_thread():
            return self
        try:
            for number in (signal.SIGTERM, signal.SIGINT):
                before = signal.getsignal(number)
                if before is signal.default_int_handler or (number, before) == (signal.SIGTERM, signal.SIG_DFL):
                    self._before[number] = before
                    signal.signal(number, self._take)
        except BaseException:
            self._put_back()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._put_back()
        if kind is None and self._taken is not None:
            late = self._end(self._taken)
            late.add_note("the job was done before this was seen")
            raise late

    def heed(self) -> None:
        """Raise what was asked for, if anything was and it has not come through."""
        # An executor may tell of events in a thread of its own, where raising would end nothing.
        if self._taken is not None and threading.current_thread() is threading.main_thread():
            raise self._end(self._taken)

    def _take(self, number: int, frame: FrameType | None) -> None:
        first, self._taken = self._taken is None, number
        if first and frame is not None and frame.f_code.co_filename.startswith(_OF_IMPORTS):
            return  # it is over in no time, unless it waits for ever: then the next request is raised
        raise self._end(number)

    def _end(self, number: int) -> BaseException:
        return Terminated(128 + number) if self._before[number] == signal.SIG_DFL else KeyboardInterrupt()

    def _put_back(self) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
