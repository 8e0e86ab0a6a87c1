from __future__ import annotations

import mmap
import threading
from pathlib import Path

import pytest

from rechunk_exec.copy.meter import MemoryMeter, resident_bytes

MEGABYTE = 1_000_000
linux = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the kernel keeps no high-water mark")


def touch(nbytes: int) -> None:
    """Take fresh memory and give it back."""
    with mmap.mmap(-1, nbytes) as mapping:
        for place in range(0, nbytes, mmap.PAGESIZE):
            mapping[place] = 1


@linux
def test_memory_that_was_given_back_counts() -> None:
    meter = MemoryMeter()
    task = meter.start()
    touch(64 * MEGABYTE)
    peak = meter.stop(task)
    assert 60 * MEGABYTE < peak < 80 * MEGABYTE


@linux
def test_what_was_before_the_first_task_does_not_count() -> None:
    touch(128 * MEGABYTE)
    meter = MemoryMeter()
    task = meter.start()
    touch(32 * MEGABYTE)
    assert 28 * MEGABYTE < meter.stop(task) < 48 * MEGABYTE


@linux
def test_each_task_alone_has_a_peak_of_its_own() -> None:
    meter = MemoryMeter()
    first = meter.start()
    touch(64 * MEGABYTE)
    meter.stop(first)
    second = meter.start()
    touch(8 * MEGABYTE)
    assert meter.stop(second) < 24 * MEGABYTE


@linux
def test_tasks_side_by_side_share_the_peak() -> None:
    meter = MemoryMeter()
    first, second = meter.start(), meter.start()
    touch(64 * MEGABYTE)
    shares = [meter.stop(first), meter.stop(second)]
    assert all(30 * MEGABYTE < share < 40 * MEGABYTE for share in shares)


def test_the_idle_memory_is_taken_once_and_anew_after_a_job() -> None:
    meter = MemoryMeter()
    assert meter.idle_bytes is None
    task = meter.start()
    idle = meter.idle_bytes
    assert idle is not None
    assert abs(idle - resident_bytes()) < 50 * MEGABYTE
    meter.rebase()
    assert meter.idle_bytes == idle, "not while a task runs"
    meter.stop(task)
    meter.rebase()
    assert meter.idle_bytes is None


def test_a_peak_is_never_negative() -> None:
    meter = MemoryMeter()
    task = meter.start()
    meter.idle_bytes = 10**15
    assert meter.stop(task) == 0


def test_tasks_of_many_threads_are_told_apart() -> None:
    meter = MemoryMeter()
    barrier = threading.Barrier(4)
    peaks: list[int] = []

    def run() -> None:
        barrier.wait()
        peaks.extend(meter.stop(meter.start()) for _ in range(20))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(peaks) == 80
    assert meter._running == {}


def test_without_the_kernels_mark_the_resident_memory_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rechunk_exec.copy.meter._STATUS", tmp_path / "none")
    monkeypatch.setattr("rechunk_exec.copy.meter._CLEAR_REFS", tmp_path / "none" / "none")
    meter = MemoryMeter()
    task = meter.start()
    with mmap.mmap(-1, 40 * MEGABYTE) as mapping:
        mapping[:] = b"x" * len(mapping)
        assert meter.stop(task) > 30 * MEGABYTE
