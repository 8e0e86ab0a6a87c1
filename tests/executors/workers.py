"""Looking at worker processes, and waiting for them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from rechunk_exec.executors import ProcessesExecutor


def workers_of(executor: ProcessesExecutor) -> list[psutil.Process]:
    return [psutil.Process(worker.pid) for worker in executor._workers]


def wait_until(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.02)


def length(handle: Any) -> int:
    return len(handle.value)


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
