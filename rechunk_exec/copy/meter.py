"""Resident memory, measured: how far a task pushed it over what the process held before the job."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

import psutil

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")


def resident_bytes() -> int:
    """Return the resident memory of this process, in bytes."""
    return int(psutil.Process().memory_info().rss)


@dataclass(slots=True)
class _Running:
    highest: int = 0
    together: int = 1


class MemoryMeter:
    """Measures peaks of tasks that may run side by side in one process.

    On Linux the kernel's own high-water mark is read, and reset when a task starts alone; elsewhere the memory is
    looked at when a task ends, which misses what was freed before.
    """

    def __init__(self) -> None:
        self.idle_bytes: int | None = None
        self.held_bytes = 0
        """Resident memory when the last task was stopped."""
        self._lock = threading.Lock()
        self._running: dict[int, _Running] = {}

    def start(self) -> int:
        """Begin to measure a task; return what :meth:`stop` wants to know it by."""
        with self._lock:
            if not self._running:
                self._reset()
                if self.idle_bytes is None:
                    self.idle_bytes = resident_bytes()
            task = _Running()
            self._running[id(task)] = task
            for other in self._running.values():
                other.together = max(other.together, len(self._running))
            return id(task)

    def stop(self, key: int) -> int:
        """Return the task's share of the peak over the idle memory, in bytes."""
        with self._lock:
            task = self._running.pop(key)
            highest, self.held_bytes = self._highest_and_held()
            return max(0, highest - (self.idle_bytes or 0)) // task.together

    def rebase(self) -> None:
        """Take the idle memory anew when the next task starts: what came between two jobs is not theirs."""
        with self._lock:
            if not self._running:
                self.idle_bytes = None

    @staticmethod
    def _reset() -> None:
        try:
            _CLEAR_REFS.write_text("5")
        except OSError:
            return

    @staticmethod
    def _highest_and_held() -> tuple[int, int]:
        try:
            lines = (line.split() for line in _STATUS.read_text().splitlines())
            kilobytes = {line[0]: int(line[1]) for line in lines if line and line[0] in ("VmHWM:", "VmRSS:")}
            return kilobytes["VmHWM:"] * 1024, kilobytes["VmRSS:"] * 1024
        except (OSError, KeyError):
            held = resident_bytes()
            return held, held
