"""Targets of every kind that hold a journal, and results to put in one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from zarr.storage import MemoryStore, ObjectStore

from rechunk_exec.plans import Plan
from rechunk_exec.results import TaskResult
from rechunk_exec.stageplan import StagePlan
from rechunk_exec.storage import Fingerprint, JobRecord
from rechunk_exec.tasks import ArrayRef
from tests.conftest import needed_module

KINDS = ("local", "inside", "memory", "memory inside", "objects")
"""A folder, an array in a group, a mapping, an array of a group in one, and a store that knows no folders."""


def target_of(kind: str, folder: Path) -> ArrayRef:
    """A place for an array of this kind; nothing is there."""
    if kind == "local":
        return ArrayRef(store=str(folder / "target"))
    if kind == "inside":
        return ArrayRef(store=str(folder / "target"), path="g/a")
    if kind == "objects":
        needed_module("obstore")
        from obstore.store import MemoryStore as ObjectMemory

        return ArrayRef(store=ObjectStore(ObjectMemory()), path="bucket/a")
    return ArrayRef(store=MemoryStore(), path="g/a" if kind == "memory inside" else "")


@pytest.fixture(params=KINDS)
def target(request: pytest.FixtureRequest, tmp_path: Path) -> ArrayRef:
    return target_of(request.param, tmp_path)


def result_of(index: int, stage: int = 0, **fields: Any) -> TaskResult:
    """A result whose every number depends on the task."""
    number = 1000 * stage + index
    values: dict[str, Any] = {
        "seconds": number / 7,
        "bytes_read": number * 11,
        "bytes_written": number * 13,
        "stored_bytes_read": number * 3,
        "stored_bytes_written": number * 5,
        "predicted_bytes": number * 17,
        "peak_bytes": number * 19,
        "reader": ("direct", "zarrs", "zarr")[number % 3],
        "writer": ("direct", "zarr")[number % 2],
        "objects_written": number % 4,
        "digest": f"{number:016x}",
        "attempts": 1 + number % 3,
    }
    return TaskResult(stage=stage, index=index, **{**values, **fields})


def stage_plan(**fields: Any) -> StagePlan:
    values: dict[str, Any] = {
        "shape": (10, 8),
        "itemsize": 4,
        "source": "source",
        "target": "target",
        "read_unit": (1, 8),
        "write_unit": (10, 2),
        "chunk": (10, 2),
        "region": (10, 2),
        "threads": 1,
        "tasks_per_worker": 1,
        "peak_bytes": 400,
        "predicted_s": 0.5,
    }
    return StagePlan(**{**values, **fields})


def job_record(job: str = "job", **fields: Any) -> JobRecord:
    values: dict[str, Any] = {
        "fingerprint": Fingerprint(
            source="/data/frame",
            source_metadata={"shape": "[10,8]"},
            source_chunks=(),
            target_metadata={"shape": "[10,8]"},
            max_mem=1000,
            temp="/data/temp",
        ),
        "plan": Plan(stages=(stage_plan(),), max_mem=1000),
        "begun": "2024-02-29T12:00:00+00:00",
        "package": "0.1.0",
    }
    return JobRecord(job=job, **{**values, **fields})
