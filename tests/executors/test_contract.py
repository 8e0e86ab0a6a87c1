"""The public contract, for each executor of ours and for what they are made from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent import futures
from typing import Any, ClassVar

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
from rechunk_exec.testing import ExecutorContract, PoolContract
from rechunk_exec.testing.trial import Stores
from tests.conftest import needed_module
from tests.executors.clusters import end_cluster, start_cluster
from tests.executors.test_futures import ForeignPool, SameThreadPool, spawning_pool
from tests.executors.test_futures_loky import loky_pool

Options = Iterable[Callable[[], object]]


class TestSerial(PoolContract):
    exceptions: ClassVar[Mapping[str, str]] = {
        "test_map_survives_what_is_no_exception": "a plain loop passes on a SystemExit, as loops do"
    }

    def make_executor(self) -> str:
        return "serial"

    def wrong_options(self) -> Options:
        return [lambda: SerialExecutor(2)]  # type: ignore[call-arg]


class TestThreads(PoolContract):
    def make_executor(self) -> ThreadsExecutor:
        return ThreadsExecutor(3)

    def wrong_options(self) -> Options:
        return [lambda: ThreadsExecutor("2"), lambda: ThreadsExecutor(threads=2)]  # type: ignore[arg-type, call-arg]


class TestProcesses(PoolContract):
    survives_deaths = True

    def make_executor(self) -> ProcessesExecutor:
        return ProcessesExecutor(3)

    def wrong_options(self) -> Options:
        return [lambda: ProcessesExecutor(2.0), lambda: ProcessesExecutor(threads=2)]  # type: ignore[arg-type, call-arg]


class TestProcessesByName(ExecutorContract):
    """Stages that hold nothing but names, which JSON can say too."""

    stores: ClassVar[Stores] = "named"

    def make_executor(self) -> ProcessesExecutor:
        needed_module("aiohttp")
        return ProcessesExecutor(2)

    def wrong_options(self) -> Options:
        return [lambda: ProcessesExecutor(True)]


class OnGivenPool(PoolContract):
    def wrong_options(self) -> Options:
        return [
            lambda: FuturesExecutor("threads"),  # type: ignore[arg-type]
            lambda: FuturesExecutor(futures.ThreadPoolExecutor(1), workers="2"),  # type: ignore[arg-type]
        ]


class TestThreadPool(OnGivenPool):
    def make_executor(self) -> futures.Executor:
        return futures.ThreadPoolExecutor(4)


class TestProcessPool(OnGivenPool):
    def make_executor(self) -> futures.Executor:
        return spawning_pool(2)


class TestForeignPool(OnGivenPool):
    def make_executor(self) -> futures.Executor:
        return ForeignPool()

    def wire_bytes(self, executor: Any) -> int:
        sent_bytes: list[int] = executor.sent_bytes
        return max(sent_bytes)


class TestSameThreadPool(OnGivenPool):
    def make_executor(self) -> futures.Executor:
        return SameThreadPool()


class TestLoky(OnGivenPool):
    def make_executor(self) -> futures.Executor:
        return loky_pool(2)


class OnGivenCluster(PoolContract):
    threads: ClassVar[int]

    def make_executor(self) -> Any:
        return start_cluster(2, self.threads)

    @classmethod
    def end_executor(cls, executor: Any) -> None:
        assert executor.submit(abs, -1).result() == 1, "a client that was given stays open"
        end_cluster(executor)

    def wrong_options(self) -> Options:
        needed_module("distributed")
        return [lambda: DaskExecutor(3), lambda: DaskExecutor(workers="2")]  # type: ignore[arg-type]


class TestClusterOfProcesses(OnGivenCluster):
    threads = 1
    survives_deaths = True


class TestClusterOfThreads(OnGivenCluster):
    threads = 2


def run_all(stages: Sequence[Stage]) -> None:
    for stage in stages:
        for task in stage:
            rx.run_task(task)


class TestFunction(ExecutorContract):
    tries = 1
    exceptions: ClassVar[Mapping[str, str]] = {
        "test_the_error_has_the_stage_and_index_of_the_task": "a function says only what it raises, which is the cause"
    }

    def make_executor(self) -> Callable[[Sequence[Stage]], None]:
        return run_all

    def wrong_options(self) -> Options:
        return [lambda: FunctionExecutor(3)]  # type: ignore[arg-type]
