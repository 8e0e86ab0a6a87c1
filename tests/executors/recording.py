"""Tasks that move no bytes: they write what they do to files, which survive the processes that they run in, and fail or
die where they are told to."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rechunk_exec.results import TaskResult
from rechunk_exec.stageplan import StagePlan
from rechunk_exec.tasks import ArrayRef, CopyTask, Stage

ALWAYS = 1000


def make_stage(number: int, tasks: int, *, tasks_per_worker: int = 1) -> Stage:
    """A stage of so many tasks, of arrays that do not exist."""
    sizes = (min(tasks, 1),)
    plan = StagePlan(
        shape=(tasks,),
        itemsize=1,
        source="source",
        target="target",
        read_unit=sizes,
        write_unit=sizes,
        chunk=(1,),
        region=sizes,
        threads=1,
        tasks_per_worker=tasks_per_worker,
        peak_bytes=tasks_per_worker,
        predicted_s=0.0,
    )
    return Stage(number=number, plan=plan, source=ArrayRef(store="/nowhere/a"), target=ArrayRef(store="/nowhere/b"))


class InjectedError(Exception):
    """A fault on purpose. Like many real exceptions, it does not survive pickling as it is."""

    def __init__(self, stage: int, index: int) -> None:
        super().__init__(f"injected into task {index} of stage {stage}")


class TravellingError(Exception):
    """A fault on purpose that survives pickling."""


@dataclass(frozen=True)
class Recording:
    """A task function that writes to ``folder`` what it does, and fails as told."""

    folder: Path
    fails: Mapping[tuple[int, int], int] = field(default_factory=dict)
    """By stage and index: how many of the first tries fail."""
    dies: Mapping[tuple[int, int], int] = field(default_factory=dict)
    """By stage and index: how many of the first tries kill their process."""
    seconds: float = 0.0
    error: type[Exception] = TravellingError

    def __call__(self, task: CopyTask) -> TaskResult:
        key = task.stage, task.index
        began = time.monotonic()
        with (self.folder / f"{task.stage}-{task.index}.tries").open("ab") as tries:
            tries.write(b"x")
            tries.flush()
            tried = tries.tell()
        time.sleep(self.seconds)
        if tried <= self.dies.get(key, 0):
            os.kill(os.getpid(), signal.SIGKILL)
        if tried <= self.fails.get(key, 0):
            raise self.error(*key)
        ended = time.monotonic()
        entry = {"stage": task.stage, "index": task.index, "began": began, "ended": ended, "pid": os.getpid()}
        name = f"{task.stage}-{task.index}-{os.getpid()}-{time.monotonic_ns()}.json"
        (self.folder / name).write_text(json.dumps(entry))
        return make_result(task)

    def entries(self) -> list[dict[str, Any]]:
        """What the tasks that ended well have written."""
        return [json.loads(path.read_text()) for path in self.folder.glob("*.json")]

    def tries(self) -> dict[tuple[int, int], int]:
        """How often each task was started."""
        tried = {}
        for path in self.folder.glob("*.tries"):
            stage, index = path.stem.split("-")
            tried[int(stage), int(index)] = path.stat().st_size
        return tried


def make_result(task: CopyTask) -> TaskResult:
    return TaskResult(
        stage=task.stage,
        index=task.index,
        seconds=0.0,
        bytes_read=1,
        bytes_written=1,
        stored_bytes_read=1,
        stored_bytes_written=1,
        predicted_bytes=1,
        peak_bytes=1,
        reader="none",
        writer="none",
    )


def most_at_once(entries: Sequence[Mapping[str, Any]]) -> int:
    """How many of the recorded tasks ran at the same time, at most."""
    steps = sorted([(entry["ended"], -1) for entry in entries] + [(entry["began"], 1) for entry in entries])
    running = [sum(step for _, step in steps[: number + 1]) for number in range(len(steps))]
    return max(running)
