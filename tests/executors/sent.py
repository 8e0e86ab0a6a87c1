"""What tests have workers call, beside a :class:`~tests.executors.recording.Recording`.

Workers import this module to find it: so it must not import pytest, nor a ``test_`` module, which costs each of them as
much as to start an interpreter.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


def length(handle: Any) -> int:
    """How many bytes a shared object has."""
    return len(handle.value)


def collects_garbage(_: int) -> bool:
    """Whether the interpreter looks for garbage by itself."""
    return gc.isenabled()


def limits(number: int) -> tuple[str, int]:
    """How many threads a worker may use, of those that libraries start and of zarr's."""
    import zarr

    time.sleep(0.05)
    return os.environ["OMP_NUM_THREADS"], zarr.config.get("threading.max_workers")


def ask_the_cluster(number: int) -> int:
    """Have another task of the cluster do the sum."""
    distributed: Any = importlib.import_module("distributed")
    client = distributed.get_client()
    distributed.secede()
    future = client.submit(pow, number, 2)
    answer: int = future.result()
    return answer


def hide_the_package() -> None:
    """Have a worker be of an environment that lacks this package: what is None among the modules cannot be imported."""
    imported = [name for name in sys.modules if name.split(".")[0] == "rechunk_exec"]
    sys.modules.update(dict.fromkeys(["rechunk_exec", *imported]))  # type: ignore[arg-type]


def has_arrived(token: str) -> bool:
    """Whether a worker has a shared object."""
    from rechunk_exec.executors.shared import ARRIVALS

    return ARRIVALS.find(token) is not None


def forget(token: str) -> None:
    """Have a worker lose a shared object."""
    from rechunk_exec.executors.shared import ARRIVALS

    ARRIVALS.forget(token)


@dataclass(frozen=True)
class AtOnceInTwo:
    """A task function whose tasks end when tasks have begun in two processes."""

    folder: Path

    def __call__(self, task: Any) -> Any:
        from tests.executors.recording import make_result

        (self.folder / f"{os.getpid()}.pid").touch()
        deadline = time.monotonic() + 120
        while len(list(self.folder.glob("*.pid"))) < 2:
            assert time.monotonic() < deadline, "no other process has begun a task"
            time.sleep(0.02)
        return make_result(task)


@dataclass(frozen=True)
class DieOnce:
    """Give numbers back, but have one of them kill its process at the first try."""

    folder: Path
    number: int

    def __call__(self, number: int) -> int:
        mark = self.folder / "died"
        if number == self.number and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return number


@dataclass(frozen=True)
class Leave:
    """End the process, and leave a file that tells of it."""

    folder: Path

    def __call__(self, code: int) -> None:
        (self.folder / f"left-{time.monotonic_ns()}").touch()
        os._exit(code)


class StubbornError(Exception):
    """What cannot be packed."""

    def __reduce__(self) -> str:
        raise TypeError("no pickle")


class Trap:
    """What cannot be unpacked."""

    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return json.loads, ("{",)


def raise_stubborn(number: int) -> None:
    raise StubbornError("stubborn")


def return_lambda(number: int) -> Callable[[], int]:
    return lambda: number


def return_trap(number: int) -> Trap:
    return Trap()


def end_slowly() -> None:
    """Have a worker take longer to end than anybody waits."""
    atexit.register(time.sleep, 1000.0)


def disposition(number: int) -> Any:
    """What a worker does at a signal."""
    return signal.getsignal(number)


def fork_and_die_once(flag: Path) -> int:
    """Die at the first try, and leave a child that lives until a flag is taken away, at last by itself."""
    mark = flag.with_suffix(".died")
    if mark.exists():
        return os.getpid()
    mark.touch()
    if os.fork() == 0:
        for _ in range(600):
            if not flag.exists():
                os._exit(0)
            time.sleep(0.1)
        flag.unlink()
        os._exit(0)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError
