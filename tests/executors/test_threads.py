from __future__ import annotations

from rechunk_exec.executors import ThreadsExecutor
from tests.executors.contract import PoolContract


class TestThreads(PoolContract):
    def make(self) -> ThreadsExecutor:
        return ThreadsExecutor()
