"""Looking at worker processes, waiting for them, and interrupting those who do."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from rechunk_exec.executors import ProcessesExecutor

PATIENCE_S = 120.0
"""How long something may take that must come about, on a machine with much to do."""
FOREVER_S = 1000.0
"""How long a task takes that is not meant to end by itself: much longer than anybody waits."""


def workers_of(executor: ProcessesExecutor) -> list[psutil.Process]:
    return [psutil.Process(worker.pid) for worker in executor._workers]


def wait_until(condition: Callable[[], object], timeout_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.02)


@contextmanager
def interrupted_when(condition: Callable[[], bool]) -> Iterator[None]:
    """Interrupt what the main thread does meanwhile, once something has come about; fail if that has no effect."""
    over = threading.Event()

    def interrupt() -> None:
        wait_until(lambda: condition() or over.is_set())
        if not over.is_set():  # else it would end the program of the tests
            os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            yield
    finally:
        over.set()
        thread.join()


@contextmanager
def started(*command: object, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A program in a process group of its own, which is ended with the block if it has not ended by then."""
    with subprocess.Popen(
        list(map(str, command)), env=environment(), start_new_session=True, text=True, **options
    ) as program:
        try:
            yield program
        finally:
            if program.poll() is None:
                os.killpg(program.pid, signal.SIGKILL)


def is_alive(process: psutil.Process) -> bool:
    """Whether a process has not ended, though nobody may have asked for its exit status."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def await_end(processes: Iterable[psutil.Process]) -> None:
    """Wait until all of these have ended."""
    watched = list(processes)
    wait_until(lambda: not any(map(is_alive, watched)))


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
