"""The public contract, for each executor of ours and for what they are made from.

Jobs of three stages are alike for all whose stages are run one after another by the same lines: one way of each kind
shows them, and the others with ``--long``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent import futures
from typing import Any, ClassVar

import pytest

import rechunk_exec as rx
from rechunk_exec.executors import (
    DaskExecutor,
    FunctionExecutor,
    FuturesExecutor,
    ProcessesExecutor,
    SerialExecutor,
    ThreadsExecutor,
)
from rechunk_exec.tasks import Stage
from rechunk_exec.testing import ExecutorContract, Pool, PoolContract
from rechunk_exec.testing.trial import Stores
from tests.conftest import needed_module
from tests.executors.clusters import end_cluster, running_cluster, start_cluster
from tests.executors.test_futures import ForeignPool, SameThreadPool, spawning_pool
from tests.executors.test_futures_loky import loky_pool

Options = Iterable[Callable[[], object]]

THREE_STAGES = "test_a_whole_job_of_three_stages"
SET_UP = ("test_run_on_workers_runs_once_in_each", "test_run_on_workers_passes_on_failure")


class TestSerial(PoolContract):
    exceptions: ClassVar[Mapping[str, str]] = {
        "test_map_survives_what_is_no_exception": "a plain loop passes on a SystemExit, as loops do"
    }

    def make_executor(self) -> str:
        return "serial"

    def wrong_options(self) -> Options:
        return [lambda: SerialExecutor(2)]  # type: ignore[call-arg]


class TestThreads(PoolContract):
    long: ClassVar[tuple[str, ...]] = (THREE_STAGES,)

    def make_executor(self) -> ThreadsExecutor:
        return ThreadsExecutor(3)

    def wrong_options(self) -> Options:
        return [lambda: ThreadsExecutor("2"), lambda: ThreadsExecutor(threads=2)]  # type: ignore[arg-type, call-arg]


class TestProcesses(PoolContract):
    """That each worker is set up once, and again no other one, is seen too where a worker joins later."""

    long: ClassVar[tuple[str, ...]] = ("test_run_on_workers_runs_once_in_each",)
    survives_deaths = True

    def make_executor(self) -> ProcessesExecutor:
        return ProcessesExecutor(2)

    def wrong_options(self) -> Options:
        return [lambda: ProcessesExecutor(2.0), lambda: ProcessesExecutor(threads=2)]  # type: ignore[arg-type, call-arg]


@pytest.mark.long
class TestProcessesByName(ExecutorContract):
    """Stages that hold nothing but names, which JSON can say too. Those of lines of a file of jobs are such stages."""

    stores: ClassVar[Stores] = "named"

    def make_executor(self) -> ProcessesExecutor:
        needed_module("aiohttp")
        return ProcessesExecutor(1)

    def wrong_options(self) -> Options:
        return [lambda: ProcessesExecutor(True)]


class OnGivenPool(PoolContract):
    def wrong_options(self) -> Options:
        return [
            lambda: FuturesExecutor("threads"),  # type: ignore[arg-type]
            lambda: FuturesExecutor(futures.ThreadPoolExecutor(1), workers="2"),  # type: ignore[arg-type]
        ]


class TestThreadPool(OnGivenPool):
    long: ClassVar[tuple[str, ...]] = (THREE_STAGES,)

    def make_executor(self) -> futures.Executor:
        return futures.ThreadPoolExecutor(4)


class TestProcessPool(OnGivenPool):
    """Its workers are set up as those of the foreign pool are."""

    long: ClassVar[tuple[str, ...]] = (THREE_STAGES, *SET_UP)

    def make_executor(self) -> futures.Executor:
        return spawning_pool(2)


class TestForeignPool(OnGivenPool):
    long: ClassVar[tuple[str, ...]] = (THREE_STAGES,)

    def make_executor(self) -> futures.Executor:
        return ForeignPool()

    def wire_bytes(self, executor: Any) -> int:
        sent_bytes: list[int] = executor.sent_bytes
        return max(sent_bytes)


class TestSameThreadPool(OnGivenPool):
    long: ClassVar[tuple[str, ...]] = (THREE_STAGES,)

    def make_executor(self) -> futures.Executor:
        return SameThreadPool()


class TestLoky(OnGivenPool):
    """Its workers are set up as those of the foreign pool are."""

    long: ClassVar[tuple[str, ...]] = (THREE_STAGES, *SET_UP)

    def make_executor(self) -> futures.Executor:
        return loky_pool(2)


class OnGivenCluster(PoolContract):
    workers: ClassVar[int]
    threads: ClassVar[int]

    def make_executor(self) -> Any:
        return start_cluster(self.workers, self.threads)

    @classmethod
    def end_executor(cls, executor: Any) -> None:
        assert executor.submit(abs, -1).result() == 1, "a client that was given stays open"
        end_cluster(executor)

    def wrong_options(self) -> Options:
        needed_module("distributed")
        return [lambda: DaskExecutor(3), lambda: DaskExecutor(workers="2")]  # type: ignore[arg-type]


class TestClusterOfProcesses(OnGivenCluster):
    """Set-up is seen where a worker joins later, and of two workers in test_dask.py; as are deaths."""

    long: ClassVar[tuple[str, ...]] = (THREE_STAGES, *SET_UP, "test_a_killed_worker_costs_only_its_task")
    workers = 2
    threads = 1
    survives_deaths = True

    @pytest.fixture
    def fresh(self) -> Iterator[Pool]:
        """One worker, for each takes seconds to start: it is set up, dies, and another one takes its place."""
        with running_cluster(1, self.threads) as client:
            executor = DaskExecutor(client)
            yield executor
            executor.close()


class TestClusterOfThreads(OnGivenCluster):
    """One process, of two threads, which is set up as others are."""

    long: ClassVar[tuple[str, ...]] = (THREE_STAGES, *SET_UP)
    workers = 1
    threads = 2


def run_all(stages: Sequence[Stage]) -> None:
    for stage in stages:
        for task in stage:
            rx.run_task(task)


class TestFunction(ExecutorContract):
    long: ClassVar[tuple[str, ...]] = (THREE_STAGES,)
    tries = 1
    exceptions: ClassVar[Mapping[str, str]] = {
        "test_the_error_has_the_stage_and_index_of_the_task": "a function says only what it raises, which is the cause"
    }

    def make_executor(self) -> Callable[[Sequence[Stage]], None]:
        return run_all

    def wrong_options(self) -> Options:
        return [lambda: FunctionExecutor(3)]  # type: ignore[arg-type]
