"""The pool of GPUs keeps the contract of every pool, on devices that are none."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import ClassVar

from rechunk_exec.testing import PoolContract
from tests.executors.fakedevice import FakeGpuExecutor


class TestGpu(PoolContract):
    """How workers are set up and replaced is what this pool has from the pool of processes, whose tests show it.

    That one which takes the place of another has its device is in test_gpu.py.
    """

    long: ClassVar[tuple[str, ...]] = (
        "test_a_killed_worker_costs_only_its_task",
        "test_a_worker_that_joins_later_is_set_up_before_its_tasks",
        "test_run_on_workers_runs_once_in_each",
        "test_run_on_workers_passes_on_failure",
        "test_a_whole_job_of_three_stages",
    )
    survives_deaths = True

    def make_executor(self) -> FakeGpuExecutor:
        return FakeGpuExecutor()

    def wrong_options(self) -> Iterable[Callable[[], object]]:
        return [lambda: FakeGpuExecutor(codecs=3), lambda: FakeGpuExecutor("2")]  # type: ignore[arg-type]
