"""Rewrite big chunked arrays to another chunk layout, within a stated memory.

>>> import rechunk_exec as rx
>>> plan = rx.plan_rechunk((128, 2048, 2048), 4, (1, 1024, 1024), (128, 64, 64), "2GB", target_shards=(128, 256, 256))
>>> len(plan.stages), plan.traffic
(1, 2.0)
"""

from __future__ import annotations

import lazy_loader

# For what importing them does: each worker process needs them as well, and they import zarr, whose modules must not be
# imported first by several threads.
from rechunk_exec import copy, storage  # noqa: F401

# The rest is imported when it is used: workers start sooner without it. Type checkers read ``__init__.pyi``.
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    ["executors"],
    {
        "alignment": ["check_aligned"],
        "api": ["rechunk", "status", "verify"],
        "batch": ["failed_jobs", "finalize_jobs", "run_job"],
        "chunktasks": ["Chunk", "ChunkTask"],
        "copy": ["run_task"],
        "cost": ["CostModel"],
        "errors": [
            "BudgetError",
            "MissingExtraError",
            "NotReadyError",
            "PlanError",
            "RechunkError",
            "ResumeError",
            "SerializationError",
            "StorageError",
            "TargetExistsError",
            "TaskError",
        ],
        "executors": ["staged_copy"],
        "job": ["Rechunked", "write_jobs"],
        "jobstatus": ["JobStatus"],
        "measuring": ["measure"],
        "planning": ["plan_rechunk"],
        "plans": ["Plan"],
        "regionrun": ["run_chunk_tasks"],
        "regions": ["ChunkResult", "chunk_task"],
        "results": ["CopyReport", "TaskResult"],
        "stageplan": ["StagePlan"],
        "tasks": ["ArrayRef", "CopyTask", "Stage"],
        "verification": ["VerifyReport"],
    },
)
__all__.remove("executors")  # which is there as a module, and is no name of the contract
