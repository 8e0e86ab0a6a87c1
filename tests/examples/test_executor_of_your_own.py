"""The example of an executor: it passes the contract, and runs as a script."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from examples.executor_of_your_own import PoolExecutor
from rechunk_exec.testing import ExecutorContract
from tests.executors.workers import environment

SCRIPT = Path(__file__).parents[2] / "examples" / "executor_of_your_own.py"


class TestPoolExecutor(ExecutorContract):
    def make_executor(self) -> PoolExecutor:
        return PoolExecutor(2)

    def wrong_options(self) -> Iterable[Callable[[], object]]:
        return [lambda: PoolExecutor(workers="2"), lambda: PoolExecutor(threads=2)]  # type: ignore[arg-type, call-arg]


def test_it_runs_as_a_script(tmp_path: Path) -> None:
    command: list[str | Path] = [sys.executable, "-W", "error", SCRIPT, tmp_path]
    run = subprocess.run(
        command, check=False, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, run.stderr
    assert "the same to the last bit" in run.stdout
    assert "(multiprocessing)" in run.stdout
