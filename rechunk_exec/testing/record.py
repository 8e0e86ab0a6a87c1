"""What was asked of a trial's arrays, and what goes wrong with them on purpose. Layer: testing, the ground.

Tasks of a trial cannot be told what to do, since any executor may run them with nothing but
:func:`rechunk_exec.run_task`. So faults come with the chunks that they read: each task begins with a chunk whose reads
are counted, delayed or refused, or kill who reads. Counts and times are kept in files, which survive the processes that
tasks run in.
"""

from __future__ import annotations

import json
import os
import signal
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

TaskKey: TypeAlias = tuple[int, int]
"""The stage and the index of a task."""
ALWAYS = 1_000_000
"""As many tries as nobody makes."""


class InjectedFault(Exception):  # noqa: N818 - it is no error of ours
    """A fault on purpose."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """What goes wrong in a trial, by the stage and index of tasks."""

    fails: Mapping[TaskKey, int] = field(default_factory=dict)
    """How many of a task's first tries fail."""
    dies: Mapping[TaskKey, int] = field(default_factory=dict)
    """How many of a task's first tries kill their process."""
    slow_s: Mapping[TaskKey, float] = field(default_factory=dict)
    """How much longer each try of a task takes, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreRequest:
    """One read or write of a chunk."""

    array: str
    """``source``, ``middle`` or ``target``."""
    key: str
    verb: Literal["read", "write"]
    began_ns: int
    """When, in nanoseconds since the epoch."""
    ended_ns: int | None = None
    """None while it runs, and if its process died."""
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Record:
    """What was asked of the arrays in one run, in files of ``folder``; any process may add to it."""

    folder: Path

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)

    def begin(self, array: str, verb: str, key: str) -> str:
        """Note that a request begins; return its name."""
        name = uuid.uuid4().hex
        self._append({"name": name, "array": array, "verb": verb, "key": key, "began_ns": time.time_ns()})
        return name

    def end(self, name: str, *, failed: bool = False) -> None:
        """Note that a request has ended."""
        self._append({"name": name, "ended_ns": time.time_ns(), "failed": failed})

    def count_try(self, task: TaskKey) -> int:
        """Note that a task has begun; return how often it has by now."""
        with (self.folder / f"{task[0]}-{task[1]}.tries").open("ab") as tries:
            tries.write(b"x")
            tries.flush()
            return tries.tell()

    def tries(self) -> dict[TaskKey, int]:
        """How often each task has begun."""
        counted = {}
        for path in self.folder.glob("*.tries"):
            stage, index = path.stem.split("-")
            counted[int(stage), int(index)] = path.stat().st_size
        return counted

    def requests(self) -> list[StoreRequest]:
        """All requests so far, in the order of their beginnings."""
        found: dict[str, dict[str, Any]] = {}
        if self._path.exists():
            for line in self._path.read_text().splitlines():
                entry = json.loads(line)
                found.setdefault(entry.pop("name"), {}).update(entry)
        return sorted((StoreRequest(**entry) for entry in found.values()), key=lambda request: request.began_ns)

    @property
    def _path(self) -> Path:
        return self.folder / "requests.jsonl"

    def _append(self, entry: Mapping[str, object]) -> None:
        # One write to a file that is open for appending is never mixed with another.
        with self._path.open("ab", buffering=0) as stream:
            stream.write(json.dumps(entry).encode() + b"\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """The faults and the record of one array's requests."""

    array: str
    faults: Faults
    record: Record

    def begin(self, verb: str, key: str) -> tuple[str, float]:
        """Note that a request begins; return its name, and how long it is to wait, in seconds.

        Raises
        ------
        InjectedFault
            If it is to fail.
        """
        name = self.record.begin(self.array, verb, key)
        task = first_reader(self.array, key) if verb == "read" else None
        if task is None:
            return name, 0.0
        tried = self.record.count_try(task)
        if tried <= self.faults.dies.get(task, 0):
            os.kill(os.getpid(), signal.SIGKILL)
        if tried <= self.faults.fails.get(task, 0):
            self.record.end(name, failed=True)
            raise InjectedFault(f"injected into task {task[1]} of stage {task[0]}, by its chunk {key}")
        return name, self.faults.slow_s.get(task, 0.0)


def first_reader(array: str, key: str) -> TaskKey | None:
    """Return the task of a trial that begins with reading this chunk, if one does.

    Examples
    --------
    >>> first_reader("source", "c/3/0"), first_reader("middle", "c/0/2"), first_reader("middle", "c/1/2")
    ((0, 3), (1, 2), None)
    """
    place = chunk_place(key)
    if place is not None and array == "source":
        return 0, place[0]
    if place is not None and array == "middle" and place[0] == 0:
        return 1, place[1]
    return None


def chunk_place(key: str) -> tuple[int, int] | None:
    """Return the place of a chunk in its grid, or None for a document.

    Examples
    --------
    >>> chunk_place("c/3/1"), chunk_place("zarr.json")
    ((3, 1), None)
    """
    parts = key.split("/")
    if len(parts) != 3 or parts[0] != "c":
        return None
    return int(parts[1]), int(parts[2])
