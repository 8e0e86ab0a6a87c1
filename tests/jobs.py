"""Whole jobs to test with: arrays whose values depend on position, what lies in a folder, tasks that are told of.

Workers import this module, so it does not import pytest.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import zarr

import rechunk_exec as rx
from rechunk_exec.results import Event, TaskResult
from rechunk_exec.tasks import CopyTask, Stage
from tests.values import Array, position_values, same_bits

Shape: TypeAlias = tuple[int, ...]
ZarrArray: TypeAlias = "zarr.Array[Any]"
QUICK_STAGES = replace(rx.CostModel.local(), stage_s=0.0)
"""A machine on which a stage takes no time to start, so that small arrays are worth a second one."""


def make_array(
    store: Any, shape: Shape, chunks: Shape, dtype: Any = "f4", *, values: Array | None = None, **options: Any
) -> ZarrArray:
    """A stored array with values that depend on position, or with ``values``."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zarr warns of what its specification does not have
        array = zarr.create_array(store, shape=shape, chunks=chunks, dtype=dtype, **options)
        array[...] = position_values(shape, dtype) if values is None else values
    return array


def elements(array: ZarrArray) -> Array:
    """All elements of a stored array, read by zarr."""
    return np.asarray(array[...], dtype=array.dtype)


def assert_exact(target: ZarrArray, source: ZarrArray) -> None:
    """Fail unless a target, opened anew by zarr, has the source's shape, dtype and bits."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        again = zarr.open_array(target.store_path, mode="r")
    assert same_bits(elements(again), elements(source))


def snapshot(folder: Path) -> dict[str, tuple[int, bytes]]:
    """All that is in a folder, by name: time of the last change, and contents."""
    return {
        str(path.relative_to(folder)): (path.lstat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in sorted(folder.rglob("*"))
    }


def die_with_a_claim(target: Path) -> None:
    """Have a driver of a target be killed, which leaves a lock and a claim."""
    program = (
        "import os, sys; from rechunk_exec.storage import array_ref, sole_writer\n"
        "with sole_writer(array_ref(sys.argv[1])): os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", program, target], check=False).returncode == -9


def stored_objects(folder: Path) -> list[str]:
    """The names of an array's chunks or shards."""
    names = {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}
    metadata = {"zarr.json", ".zarray", ".zattrs"}
    return sorted(str(name) for name in names if str(name) not in metadata and name.parts[0] != ".rechunk_exec")


def assert_whole_units(stage: Stage) -> None:
    """Fail if two tasks of a stage touch one write unit, or an element is not in exactly one task."""
    written = np.zeros(stage.shape, np.int8)
    owners: dict[Shape, int] = {}
    for task in stage:
        written[tuple(map(slice, task.start, task.stop))] += 1
        spans = [
            range(a // unit, -(-b // unit)) for a, b, unit in zip(task.start, task.stop, stage.write_unit, strict=True)
        ]
        for place in np.ndindex(*map(len, spans)):
            unit = tuple(span[number] for span, number in zip(spans, place, strict=True))
            assert owners.setdefault(unit, task.index) == task.index, f"two tasks write unit {unit}"
    assert (written == 1).all()


def assert_kept_promises(job: rx.Rechunked) -> None:
    """Fail if a job that was executed broke one of the rules that hold for every job."""
    assert job.report is not None
    assert job.report.tasks == sum(len(stage) for stage in job.stages) == job.plan.tasks
    assert job.plan.peak_bytes <= job.plan.max_mem
    for stage in job.stages:
        assert_whole_units(stage)
        results = [result for result in job.report.results if result.stage == stage.number]
        assert [result.index for result in results] == list(range(len(stage)))
        read, planned = sum(result.bytes_read for result in results), stage.plan.elements_read * stage.plan.itemsize
        assert read == planned if stage.plan.restart is None else read <= planned
        assert sum(result.bytes_written for result in results) == stage.plan.nbytes
        assert {result.predicted_bytes for result in results} <= {stage.plan.task_bytes}


def run_tasks(job: rx.Rechunked, skip: Mapping[int, set[int]] | None = None) -> None:
    """Run a job's tasks in this process, all but those to ``skip``, by stage."""
    for stage in job.stages:
        for task in stage:
            if task.index not in (skip or {}).get(stage.number, set()):
                rx.run_task(task)


class InjectedError(Exception):
    """A fault on purpose."""


@dataclass(frozen=True)
class ToldCopy:
    """A task function, for any executor: runs the task and writes when to ``folder``; the first tries may fail."""

    folder: Path
    fails: Mapping[tuple[int, int], int] | None = None
    """By stage and index: how many of the first tries fail."""
    seconds: float = 0.0
    """To wait before the copy."""

    def __call__(self, task: CopyTask) -> TaskResult:
        began = time.monotonic()
        key = task.stage, task.index
        with (self.folder / f"{task.stage}-{task.index}.tries").open("ab") as tries:
            tries.write(b"x")
            tries.flush()
            tried = tries.tell()
        if tried <= (self.fails or {}).get(key, 0):
            raise InjectedError(f"injected into task {task.index} of stage {task.stage}")
        time.sleep(self.seconds)
        there = Path(str(task.target.store), task.target.path)
        ready = (there / "zarr.json").exists() or (there / ".zarray").exists()
        result = rx.run_task(task)
        told = {"stage": task.stage, "index": task.index, "began": began, "ended": time.monotonic(), "ready": ready}
        (self.folder / f"{task.stage}-{task.index}-{os.getpid()}-{time.monotonic_ns()}.json").write_text(
            json.dumps(told)
        )
        return result

    def told(self) -> list[dict[str, Any]]:
        """What the tasks that succeeded have written."""
        return [json.loads(path.read_text()) for path in self.folder.glob("*.json")]


class StopError(Exception):
    """An end in the middle, on purpose."""


def stop_after(tasks: int, job: rx.Rechunked) -> StopError:
    """Run a job until so many of its tasks are done; return what it raised."""
    done: list[int] = []

    def listen(event: Event) -> None:
        if event.kind == "task":
            done.append(event.index)
            if len(done) == tasks:
                raise StopError

    try:
        job.execute(on_event=listen)
    except StopError as stopped:
        return stopped
    raise AssertionError(f"the job ended before {tasks} tasks were done")


def tasks_run(job: rx.Rechunked) -> int:
    """How many tasks the last run of a job ran."""
    assert job.report is not None
    return job.report.tasks
