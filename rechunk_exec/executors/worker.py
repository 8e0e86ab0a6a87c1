"""One worker process, both ends of its pipe: :class:`WorkerProcess` here, :func:`serve` there. Layer: executors.

A worker is a fresh interpreter, started by :mod:`subprocess` rather than :mod:`multiprocessing`: so its environment can
bound threads before any library starts them, and no third process stays behind. It does one thing at a time and answers
each request with one :class:`~rechunk_exec.executors.remote.Reply`. It ends when its pipe does, or its parent.

An interpreter takes a quarter of a second to end: it frees all that it holds, piece by piece. A worker that has copied
and compared, and nothing else, is told to leave that to the system. One that has run functions of others ends in order:
C libraries may have something to write yet, such as what is in a netCDF file that was not closed.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import multiprocessing.spawn
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from multiprocessing.connection import Connection
from typing import Any, NoReturn

from rechunk_exec.copy import configure_worker
from rechunk_exec.executors.main_module import MainModule
from rechunk_exec.executors.remote import Failure, Reply, run_call, run_set_up
from rechunk_exec.executors.shared import ARRIVALS, Shared

_KILLED_S = 10.0
"""How long a process that was killed is waited for."""

# The paths come first: rechunk_exec itself may be found by one of them only. Imports leave nothing to collect, and what
# they make stays: a tenth of the time to start went into looking it through.
_PROGRAM = """
import gc, signal, sys
gc.disable()
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
from multiprocessing.connection import Connection
pipe = Connection(int(sys.argv[1]))
try:
    sys.path[:] = pipe.recv()
except (EOFError, OSError):
    sys.exit()
from rechunk_exec.executors.worker import serve
gc.freeze()
gc.enable()
serve(pipe)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """What a worker process is told at first."""

    main: MainModule
    parent_pid: int
    cores: int
    """How many cores it may use."""


@dataclass(frozen=True, slots=True)
class _Keep:
    token: str
    data: bytes


@dataclass(frozen=True, slots=True)
class _Forget:
    token: str


@dataclass(frozen=True, slots=True)
class _SetUp:
    token: str


@dataclass(frozen=True, slots=True)
class _Work:
    data: bytes


@dataclass(frozen=True, slots=True)
class _Leave:
    pass


class Doing(Enum):
    """What a worker process is at."""

    STARTING = auto()
    SETTING_UP = auto()
    NOTHING = auto()
    CALL = auto()


class WorkerProcess:
    """A worker process, seen from its parent. Starting it does not wait for it.

    Parameters
    ----------
    slot : int
        Its place in the pool, from 0; one that replaces another has the other's.
    preparation : Preparation
    environment : mapping
        Its environment variables.
    """

    def __init__(self, slot: int, preparation: Preparation, environment: Mapping[str, str]) -> None:
        self.slot = slot
        self.doing = Doing.STARTING
        self.call = -1
        """Number of the call it is at."""
        self.set_ups = 0
        """How many of the pool's functions for new workers it has called."""
        self._kept: dict[str, weakref.ref[Shared[Any]]] = {}
        self.pipe, theirs = multiprocessing.Pipe()
        with theirs, _interrupts_held():
            self._process = subprocess.Popen(
                [*_interpreter(), "-c", _PROGRAM, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                env=dict(environment),
                pass_fds=[theirs.fileno()],
            )
        self.pid = self._process.pid
        with contextlib.suppress(OSError):  # it has died already, which shows when it is heard
            self._send(list(sys.path), preparation)

    def begin_call(self, number: int, data: bytes, needs: Mapping[str, Shared[Any]]) -> None:
        """Have it make a call; its reply follows. An OSError if it has died."""
        self._share(needs)
        self._send(_Work(data))
        self.doing, self.call = Doing.CALL, number

    def begin_set_up(self, function: Shared[Any]) -> None:
        """Have it call a function once; its reply follows. An OSError if it has died."""
        self._share(function.pack().needs() | {function.token: function})
        self._send(_SetUp(function.token))
        self.doing = Doing.SETTING_UP

    def begin_leave(self) -> None:
        """Have it end when it has made its call, if any, and leave its memory to the system."""
        with contextlib.suppress(OSError):  # it has ended already
            self._send(_Leave())

    def receive(self) -> Reply | None:
        """Return its reply, or None if it has died."""
        try:
            reply = self.pipe.recv()
        except Exception:  # noqa: BLE001 - the pipe's end, or half a message, or something that is none
            return None
        return reply if isinstance(reply, Reply) else None

    @property
    def vanished(self) -> bool:
        """Whether the process has ended without its pipe, because children of it that live on hold that too."""
        return self._process.poll() is not None and not self.pipe.poll()

    def bury(self, timeout_s: float) -> int:
        """Let the process end, or end it if it does not in time; return its exit code, negative for a signal."""
        self.pipe.close()
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # the kernel may hold it; that must not hold us
            self._process.wait(_KILLED_S)
        return -signal.SIGKILL

    def kill(self) -> None:
        """End the process at once."""
        self.pipe.close()
        self._process.kill()

    def _share(self, needs: Mapping[str, Shared[Any]]) -> None:
        """Send the objects it lacks, and tell it to forget those that nobody has a handle of any more."""
        for token in [token for token, handle in self._kept.items() if handle() is None]:
            self._send(_Forget(token))
            del self._kept[token]
        for token, handle in needs.items():
            if token not in self._kept:
                self._send(_Keep(token, handle.pack().data))
                self._kept[token] = weakref.ref(handle)

    def _send(self, *messages: object) -> None:
        for message in messages:
            self.pipe.send(message)


def serve(pipe: Connection) -> None:
    """Be a worker process until the pipe ends."""
    with contextlib.suppress(EOFError, OSError):
        preparation: Preparation = pipe.recv()
        threading.Thread(target=_leave_with_parent, args=[preparation.parent_pid], daemon=True).start()
        ready = _prepare(preparation)
        pipe.send(ready)
        while ready.failure is None:
            match pipe.recv():
                case _Keep(token, data):
                    ARRIVALS.keep(token, data)
                case _Forget(token):
                    ARRIVALS.forget(token)
                case _SetUp(token):
                    pipe.send(run_set_up(token))
                case _Work(data):
                    pipe.send(run_call(data))
                case _Leave():
                    _leave()


def _leave() -> NoReturn:
    """End this process without freeing its memory and without what C libraries do at the end.

    Threads that are no daemons are waited for, and functions registered with :mod:`atexit` are called: the main script,
    which each worker imports, may have some.
    """
    # What the interpreter itself calls first, and multiprocessing at the end of its processes. Nothing public ends the
    # threads of pools, or calls what is registered.
    threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001
    atexit._run_exitfuncs()  # noqa: SLF001
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # there is none, or nobody reads it any more
            stream.flush()
    os._exit(0)


def _prepare(preparation: Preparation) -> Reply:
    try:
        preparation.main.load()
        configure_worker(preparation.cores)
    except BaseException as error:  # noqa: BLE001 - a script may end by SystemExit
        return Reply(failure=Failure.of(error))
    return Reply()


def _leave_with_parent(parent_pid: int) -> None:
    # The end of the pipe alone would not do: a worker looks at it between two tasks only.
    while os.getppid() == parent_pid:
        time.sleep(0.5)
    os._exit(1)


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """Hold interrupts of this thread back; a process started meanwhile holds them too, until it ignores them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _interpreter() -> list[str]:
    """The interpreter and its options, such as ``-W``."""
    executable, *rest = multiprocessing.spawn.get_command_line()
    return [executable, *rest[: rest.index("-c")]]
