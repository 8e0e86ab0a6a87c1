from . import executors as executors
from .alignment import check_aligned
from .api import rechunk, status, verify
from .batch import failed_jobs, finalize_jobs, run_job
from .chunktasks import Chunk, ChunkTask
from .copy import run_task
from .cost import CostModel
from .errors import (
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
from .executors import staged_copy
from .job import Rechunked, write_jobs
from .jobstatus import JobStatus
from .measuring import measure
from .planning import plan_rechunk
from .plans import Plan
from .regionrun import run_chunk_tasks
from .regions import ChunkResult, chunk_task
from .results import CopyReport, TaskResult
from .stageplan import StagePlan
from .tasks import ArrayRef, CopyTask, Stage
from .verification import VerifyReport

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
