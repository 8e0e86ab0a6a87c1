"""What does not depend on size: the latency of a store, and the start of a worker process. Layer: measuring."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count

from rechunk_exec.measuring.place import ProbePlace
from rechunk_exec.storage.objectbase import ARRAY_DOCUMENTS, Objects
from rechunk_exec.storage.objects import put_object

MOST_IN_FLIGHT = 64
_HELPS = 1.25
"""Twice as many operations in flight help where so many times as many are done."""
_TINY = b"rechunk_exec: sixteen".ljust(32)
_MOST_TINY = 4096
_START = """
import sys
from rechunk_exec.executors import worker
worker.configure_worker(1)
sys.stdout.write("ready")
sys.stdout.flush()
sys.stdin.read()
"""


def read_seconds(objects: Objects, threads: int, limit_s: float) -> float:
    """Return the seconds that pass for each read of a small document, with ``threads`` of them side by side."""
    name = next((name for name in ARRAY_DOCUMENTS if objects.read(name) is not None), ARRAY_DOCUMENTS[0])
    return _seconds_each(lambda _: objects.read(name), threads, limit_s)


def write_seconds(place: ProbePlace, threads: int, limit_s: float) -> float:
    """Return the seconds that pass for each write of a small object, with ``threads`` of them side by side."""
    with place.tiny_objects(_MOST_TINY if place.objects().streams else threads * 8) as (objects, keys):
        return _seconds_each(lambda turn: put_object(objects, keys[turn % len(keys)], _TINY), threads, limit_s)


def helpful_in_flight(objects: Objects, limit_s: float) -> int:
    """Return how many reads side by side a store still does faster than half as many."""
    before, threads = read_seconds(objects, 1, limit_s), 1
    while threads < MOST_IN_FLIGHT:
        seconds = read_seconds(objects, 2 * threads, limit_s)
        if seconds * _HELPS > before:
            break
        before, threads = seconds, 2 * threads
    return threads


def start_seconds(workers: int) -> float:
    """Return the seconds until ``workers`` fresh worker processes, started at once, are ready; 0 if they fail."""
    environment = dict(os.environ) | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    began = time.perf_counter()
    started = [
        subprocess.Popen(
            [sys.executable, "-c", _START],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
        )
        for _ in range(workers)
    ]
    try:
        ready = [process.stdout is not None and bool(process.stdout.read(5)) for process in started]
        return time.perf_counter() - began if all(ready) else 0.0
    finally:
        for process in started:
            process.communicate()


def _seconds_each(do: Callable[[int], object], threads: int, limit_s: float) -> float:
    turns = count()
    do(next(turns))  # the first one opens connections
    began = time.perf_counter()

    def loop(_: int) -> int:
        done = 0
        while not done or time.perf_counter() - began < limit_s:
            do(next(turns))
            done += 1
        return done

    with ThreadPoolExecutor(threads) as pool:
        done = sum(pool.map(loop, range(threads)))
    return (time.perf_counter() - began) / done
