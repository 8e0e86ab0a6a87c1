"""Flink keeps the contract of every executor, on a real cluster, where PyFlink is (``.ci/flink``)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import ClassVar

import pytest

from rechunk_exec.executors import FlinkExecutor
from rechunk_exec.testing import ExecutorContract
from tests.executors.flink_cluster import held_gateway, running_flink


class TestFlink(ExecutorContract):
    """Of what is long here, test_flink.py shows most, on its cluster: stages one after the other with retries, a job
    that fails and goes on with the tasks that are left, one that is interrupted."""

    long: ClassVar[tuple[str, ...]] = (
        "test_a_task_that_fails_is_tried_again_and_no_more",
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
    def cluster(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
        folder = tmp_path_factory.mktemp("flink")
        # A slot in each of two task managers: what a job costs there is the start of a Python process for each slot.
        with held_gateway(), running_flink(folder, slots=1) as cluster, pytest.MonkeyPatch.context() as patch:
            for name, value in cluster.environment.items():
                patch.setenv(name, value)  # for the Java process
            cls.address = cluster.address
            yield

    def make_executor(self) -> FlinkExecutor:
        return FlinkExecutor(self.address)

    def wrong_options(self) -> Iterable[Callable[[], object]]:
        return [lambda: FlinkExecutor(3), lambda: FlinkExecutor(workers="2")]  # type: ignore[arg-type]
