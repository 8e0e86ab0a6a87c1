from __future__ import annotations

import rechunk_exec
from rechunk_exec import errors


def test_the_public_names_are_those_of_the_contract() -> None:
    assert sorted(rechunk_exec.__all__) == [
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


def test_every_public_name_is_there() -> None:
    assert [name for name in rechunk_exec.__all__ if not hasattr(rechunk_exec, name)] == []


def test_errors_are_the_same_in_both_places() -> None:
    tree = [
        value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, errors.RechunkError)
    ]
    assert [error.__name__ for error in tree if getattr(rechunk_exec, error.__name__) is not error] == []
