"""Running a benchmark's contender as a fresh process, and measuring it and all processes that it starts, from outside.

A contender is a :mod:`tests.benchmarks.contender`: it says when it is ready, with all imported and its pools started,
and when it is done. The clock runs in between.

A peak is the kernel's own high-water mark of the resident set of a process, reset when the clock starts, over what the
process held then; a process that is started later has held nothing. The sum over all processes is that of what they
held at the same time, looked at every 20 ms; pages that processes share count in each of them.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

_LOOK_S = 0.02
_START_LIMIT_S = 120.0


class ContenderError(Exception):
    """A contender failed, or was stopped at its time limit; the message says which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a contender took."""

    seconds: float
    """From ``go`` to ``done``."""
    cpu_seconds: float
    """Processor time of all its processes, in user and system mode."""
    largest_bytes: int
    """The highest peak of one process over its idle resident set."""
    together_bytes: int
    """The highest sum over all processes at one time, over the sum of their idle resident sets."""
    first_bytes: int
    """The peak of the first process, which commands the others."""
    first_resident_bytes: int
    """What the first process held at the most, its interpreter and libraries included."""
    note: str


def watch(command: Sequence[str], *, limit_s: float, environment: Mapping[str, str] | None = None) -> Measured:
    """Run a contender and measure it; its processes are ended in any case.

    Raises
    ------
    ContenderError
        If it ends before it is done, or is not done ``limit_s`` after it was told to go.
    """
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, bufsize=1,
            env=None if environment is None else {**os.environ, **environment}, start_new_session=True,
        )  # fmt: skip
        tree, lines = _Tree(psutil.Process(process.pid)), _lines(process)
        try:
            _await_line(lines, "ready", _START_LIMIT_S, tree)
            tree.settle()
            assert process.stdin is not None
            began = time.perf_counter()
            process.stdin.write("go\n")
            note = _await_line(lines, "done", limit_s, tree)
            seconds = time.perf_counter() - began
            tree.look()
            measured = tree.measured(seconds, note)
            process.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)
        except ContenderError as error:
            errors.seek(0)
            said = [line for line in errors.read().splitlines() if line.strip()]
            raise ContenderError(": ".join([str(error), *said[-1:]])) from None
        finally:
            tree.end()
            process.wait()
        return measured


@dataclass(slots=True)
class _Tree:
    """The processes of a contender: the first, and what it and they have started."""

    first: psutil.Process
    idle: dict[int, int] = field(default_factory=dict)
    highest: dict[int, int] = field(default_factory=dict)
    known: dict[int, psutil.Process] = field(default_factory=dict)
    together: int = 0
    idle_together: int = 0
    idle_cpu: float = 0.0

    def processes(self) -> list[psutil.Process]:
        with suppress(psutil.NoSuchProcess):
            for process in [self.first, *self.first.children(recursive=True)]:
                self.known.setdefault(process.pid, process)
        return list(self.known.values())

    def settle(self) -> None:
        """Take the present state as the idle one."""
        for process in self.processes():
            with suppress(OSError, psutil.Error):
                Path(f"/proc/{process.pid}/clear_refs").write_text("5")  # resets the high-water mark
                self.idle[process.pid] = process.memory_info().rss
        self.idle_together = sum(self.idle.values())
        self.idle_cpu = self.cpu_seconds()

    def look(self) -> None:
        """Note what each process holds, and has held at most."""
        held = 0
        for process in self.processes():
            with suppress(OSError, psutil.Error, ValueError, IndexError):
                status = Path(f"/proc/{process.pid}/status").read_text()
                held += int(status.split("VmRSS:")[1].split()[0]) * 1024
                self.highest[process.pid] = int(status.split("VmHWM:")[1].split()[0]) * 1024
        self.together = max(self.together, held)

    def cpu_seconds(self) -> float:
        total = 0.0
        for process in self.processes():
            with suppress(psutil.Error):
                times = process.cpu_times()  # those of children are of the ones that have ended and been waited for
                total += times.user + times.system + times.children_user + times.children_system
        return total

    def measured(self, seconds: float, note: str) -> Measured:
        peaks = {pid: peak - self.idle.get(pid, 0) for pid, peak in self.highest.items()}
        return Measured(
            seconds=seconds,
            cpu_seconds=self.cpu_seconds() - self.idle_cpu,
            largest_bytes=max(peaks.values()),
            together_bytes=max(self.together - self.idle_together, *peaks.values()),
            first_bytes=peaks[self.first.pid],
            first_resident_bytes=self.highest[self.first.pid],
            note=note,
        )

    def end(self) -> None:
        """Kill all that is left; they are in the first one's session, and known by their start time too."""
        for process in self.processes():
            with suppress(psutil.Error):
                process.send_signal(signal.SIGKILL)


def _lines(process: subprocess.Popen[str]) -> queue.Queue[str | None]:
    """What a process prints, line by line, and None at its end."""
    lines: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    return lines


def _await_line(lines: queue.Queue[str | None], wanted: str, limit_s: float, tree: _Tree) -> str:
    """Wait for a line that starts with ``wanted``; return the rest of it. Others are what libraries print."""
    began = time.perf_counter()
    while time.perf_counter() - began < limit_s:
        tree.look()
        with suppress(queue.Empty):
            line = lines.get(timeout=_LOOK_S)
            if line is None:
                raise ContenderError(f"ended before it was {wanted}")
            word, _, rest = line.strip().partition(" ")
            if word == wanted:
                return rest
    raise ContenderError(f"over {limit_s / 60:g} min")
