"""The example of an executor: it passes the contract, and runs as a script."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from examples.executor_of_your_own import PoolExecutor
from rechunk_exec.testing import ExecutorContract
from tests.examples.scripts import told_by


class TestPoolExecutor(ExecutorContract):
    def make_executor(self) -> PoolExecutor:
        return PoolExecutor(2)

    def wrong_options(self) -> Iterable[Callable[[], object]]:
        return [lambda: PoolExecutor(workers="2"), lambda: PoolExecutor(threads=2)]  # type: ignore[arg-type, call-arg]


def test_it_runs_as_a_script(tmp_path: Path) -> None:
    told = told_by("executor_of_your_own.py", tmp_path, "-W", "error")
    assert "the same to the last bit" in told
    assert "(multiprocessing)" in told
