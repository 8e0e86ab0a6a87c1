"""Rewrite big chunked arrays to another chunk layout, within a stated memory.

>>> import rechunk_exec as rx
>>> plan = rx.plan_rechunk((128, 2048, 2048), 4, (1, 1024, 1024), (128, 64, 64), "2GB", target_shards=(128, 256, 256))
>>> len(plan.stages), plan.traffic
(1, 2.0)
"""

from __future__ import annotations

from rechunk_exec.alignment import check_aligned
from rechunk_exec.api import rechunk, status, verify
from rechunk_exec.batch import failed_jobs, finalize_jobs, run_job
from rechunk_exec.chunktasks import Chunk, ChunkTask
from rechunk_exec.copy import run_task
from rechunk_exec.cost import CostModel
from rechunk_exec.errors import (
    BudgetError,
    MissingExtraError,
    NotReadyError,
    PlanError,
    RechunkError,
    ResumeError,
    SerializationError,
    StorageError,
    TargetExistsError,
    TaskError,
)
from rechunk_exec.executors import staged_copy
from rechunk_exec.job import Rechunked, write_jobs
from rechunk_exec.jobstatus import JobStatus
from rechunk_exec.measuring import measure
from rechunk_exec.planning import plan_rechunk
from rechunk_exec.plans import Plan
from rechunk_exec.regionrun import run_chunk_tasks
from rechunk_exec.regions import ChunkResult, chunk_task
from rechunk_exec.results import CopyReport, TaskResult
from rechunk_exec.stageplan import StagePlan
from rechunk_exec.tasks import ArrayRef, CopyTask, Stage
from rechunk_exec.verification import VerifyReport

__all__ = [
    "ArrayRef",
    "BudgetError",
    "Chunk",
    "ChunkResult",
    "ChunkTask",
    "CopyReport",
    "CopyTask",
    "CostModel",
    "JobStatus",
    "MissingExtraError",
    "NotReadyError",
    "Plan",
    "PlanError",
    "RechunkError",
    "Rechunked",
    "ResumeError",
    "SerializationError",
    "Stage",
    "StagePlan",
    "StorageError",
    "TargetExistsError",
    "TaskError",
    "TaskResult",
    "VerifyReport",
    "check_aligned",
    "chunk_task",
    "failed_jobs",
    "finalize_jobs",
    "measure",
    "plan_rechunk",
    "rechunk",
    "run_chunk_tasks",
    "run_job",
    "run_task",
    "staged_copy",
    "status",
    "verify",
    "write_jobs",
]
