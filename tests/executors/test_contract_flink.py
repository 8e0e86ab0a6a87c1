"""Flink keeps the contract of every executor, on a real cluster, where PyFlink is (``.ci/flink``)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import ClassVar

import pytest

from rechunk_exec.executors import FlinkExecutor
from rechunk_exec.testing import ExecutorContract
from tests.executors.flink_cluster import Cluster


class TestFlink(ExecutorContract):
    """Of what is long here, test_flink.py shows most: stages one after the other with retries, what is told of them, a
    job that fails and goes on with the tasks that are left, one that is interrupted."""

    long: ClassVar[tuple[str, ...]] = (
        "test_values_are_exact",
        "test_the_tasks_of_the_stages_are_run_and_no_others",
        "test_no_task_starts_before_the_stage_before_has_ended",
        "test_results_are_in_order",
        "test_events_tell_the_total_once_and_each_task_once",
        "test_little_crosses_the_wire",
        "test_a_task_that_fails_is_tried_again_and_no_more",
        "test_a_task_that_always_fails_ends_the_run",
        "test_the_error_has_the_stage_and_index_of_the_task",
        "test_the_tasks_that_run_beside_a_failing_one_are_waited_for",
        "test_running_again_after_a_failure_is_harmless",
        "test_tasks_that_run_twice_at_once_leave_the_same_bytes",
        "test_a_whole_job",
        "test_a_whole_job_of_three_stages",
        "test_the_tasks_that_are_left",
    )
    exceptions: ClassVar[Mapping[str, str]] = {
        "test_retries_are_told": "they happen on the workers: events tell of them when the task is done, and not why"
    }
    address: ClassVar[str]

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def cluster(cls, flink: Cluster) -> None:
        cls.address = flink.address

    def make_executor(self) -> FlinkExecutor:
        return FlinkExecutor(self.address, workers=2)  # what a job costs is the start of a Python process for each

    def wrong_options(self) -> Iterable[Callable[[], object]]:
        return [lambda: FlinkExecutor(3), lambda: FlinkExecutor(workers="2")]  # type: ignore[arg-type]
