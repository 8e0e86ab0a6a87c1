from __future__ import annotations

import subprocess
import sys

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


def test_names_are_listed_before_anything_is_imported() -> None:
    program = (
        "import sys, rechunk_exec as rx\n"
        "assert dir(rx) == sorted(rx.__all__)\n"
        "assert 'zarr' not in sys.modules and 'numpy' not in sys.modules\n"
        "from rechunk_exec import *\n"
        "assert all(name in globals() for name in rx.__all__)\n"
        "assert callable(rx.status) and rx.executors.SerialExecutor().name == 'serial'\n"
        "assert not hasattr(rx, 'no_such_name')\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_worker_imports_what_it_needs_to_run_tasks() -> None:
    program = (
        "import sys, rechunk_exec.executors.worker\n"
        "needless = {'rechunk_exec.api', 'rechunk_exec.search', 'rechunk_exec.executors.dask', 'rich'}\n"
        "assert not needless & set(sys.modules), needless & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
