from __future__ import annotations

from rechunk_exec.executors import ProcessesExecutor
from tests.executors.contract import PoolContract


class TestProcesses(PoolContract):
    survives_death = True

    def make(self) -> ProcessesExecutor:
        return ProcessesExecutor(3)
