"""Lines of a file of jobs, run by processes of the command line, keep the contract of every executor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import ClassVar

from rechunk_exec.batch.executor import BatchExecutor
from rechunk_exec.testing import ExecutorContract
from rechunk_exec.testing.trial import Stores
from tests.conftest import needed_module


class TestBatch(ExecutorContract):
    """Each run starts processes for each stage, so that few runs show what this executor does by itself.

    Whole jobs are in test_batch_executor.py; tries of a line, lines that run twice at once, and those that are left,
    in test_batch.py. What an earlier failure leaves is read by the same code as for Beam.
    """

    long: ClassVar[tuple[str, ...]] = (
        "test_a_whole_job",
        "test_a_whole_job_of_three_stages",
        "test_running_again_after_a_failure_is_harmless",
        "test_tasks_that_run_twice_at_once_leave_the_same_bytes",
        "test_a_task_that_fails_is_tried_again_and_no_more",
        "test_the_tasks_that_are_left",
    )
    stores: ClassVar[Stores] = "named"
    exceptions: ClassVar[Mapping[str, str]] = {
        "test_retries_are_told": "they happen on the workers: events tell of them when the task is done, and not why"
    }

    def make_executor(self) -> BatchExecutor:
        needed_module("aiohttp")
        return BatchExecutor(2)

    def wrong_options(self) -> Iterable[Callable[[], object]]:
        return [lambda: BatchExecutor("2"), lambda: BatchExecutor(threads=2)]  # type: ignore[arg-type, call-arg]
