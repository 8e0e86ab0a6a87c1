"""The example of an executor: it passes the contract, and tells what it did."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from examples import executor_of_your_own
from examples.executor_of_your_own import PoolExecutor
from rechunk_exec.testing import ExecutorContract


class TestPoolExecutor(ExecutorContract):
    def make_executor(self) -> PoolExecutor:
        return PoolExecutor(2)

    def wrong_options(self) -> Iterable[Callable[[], object]]:
        return [lambda: PoolExecutor(workers="2"), lambda: PoolExecutor(threads=2)]  # type: ignore[arg-type, call-arg]


def test_what_it_tells(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor_of_your_own, "PoolExecutor", lambda workers: PoolExecutor(1))
    executor_of_your_own.main(tmp_path)
    printed = capsys.readouterr().out
    assert "the same to the last bit" in printed
    assert "(multiprocessing)" in printed
