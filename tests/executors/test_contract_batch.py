"""Lines of a file of jobs, run by processes of the command line, keep the contract of every executor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import ClassVar

from rechunk_exec.batch.executor import BatchExecutor
from rechunk_exec.testing import ExecutorContract
from rechunk_exec.testing.trial import Stores
from tests.conftest import needed_module


class TestBatch(ExecutorContract):
    stores: ClassVar[Stores] = "named"
    exceptions: ClassVar[Mapping[str, str]] = {
        "test_retries_are_told": "they happen on the workers: events tell of them when the task is done, and not why"
    }

    def make_executor(self) -> BatchExecutor:
        needed_module("aiohttp")
        return BatchExecutor(2)

    def wrong_options(self) -> Iterable[Callable[[], object]]:
        return [lambda: BatchExecutor("2"), lambda: BatchExecutor(threads=2)]  # type: ignore[arg-type, call-arg]
