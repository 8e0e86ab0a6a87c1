"""What the pool contract has workers call. Layer: testing. They import this without pytest."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rechunk_exec.executors import Shared


class Witness:
    """An object that writes down when it is packed and unpacked."""

    def __init__(self, folder: Path, number: int) -> None:
        self.folder = folder
        self.number = number

    def __getstate__(self) -> dict[str, Any]:
        leave(self.folder, "packed")
        return self.__dict__

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)
        leave(self.folder, "loaded")


@dataclass(frozen=True)
class Mark:
    """A set-up function that leaves a file."""

    folder: Path
    name: str

    def __call__(self) -> None:
        leave(self.folder, self.name)


def leave(folder: Path, name: str) -> None:
    """Leave a file that tells of this process."""
    (folder / f"{name}-{os.getpid()}-{time.monotonic_ns()}").touch()


def left_by(folder: Path, name: str) -> list[int]:
    """Return the processes that have left a file of this name, once for each file."""
    return [int(path.name.split("-")[1]) for path in folder.glob(f"{name}-*")]


def slow_square(number: int) -> int:
    """Take a time that depends on the number."""
    time.sleep(0.01 if number % 3 else 0.03)
    return number**2


def slow_pid(_: int) -> int:
    """Return the process that this runs in."""
    time.sleep(0.02)
    return os.getpid()


def refuse_three(number: int) -> int:
    """Return the number, unless it is 3."""
    if number == 3:
        raise ValueError("three")
    return number


def refuse() -> None:
    """Fail, as a set-up function."""
    raise ValueError("set-up")


def leave_python(number: int) -> None:
    """Raise what is no Exception."""
    raise SystemExit(number)


def use(task: tuple[Shared[Witness], int]) -> tuple[int, int]:
    """Return a sum with a shared number, and the process that this runs in."""
    time.sleep(0.005)
    handle, number = task
    return handle.value.number + number, os.getpid()


def use_nested(outer: Shared[Mapping[str, Shared[Witness]]]) -> int:
    """Return the number of an object that is shared inside another one."""
    return outer.value["inner"].value.number
