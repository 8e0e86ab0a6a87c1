from __future__ import annotations

from rechunk_exec.executors import SerialExecutor
from tests.executors.contract import PoolContract


class TestSerial(PoolContract):
    def make(self) -> SerialExecutor:
        return SerialExecutor()
