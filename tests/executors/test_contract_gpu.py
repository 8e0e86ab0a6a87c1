"""The pool of GPUs keeps the contract of every pool, on devices that are none."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rechunk_exec.testing import PoolContract
from tests.executors.fakedevice import FakeGpuExecutor


class TestGpu(PoolContract):
    survives_deaths = True

    def make_executor(self) -> FakeGpuExecutor:
        return FakeGpuExecutor()

    def wrong_options(self) -> Iterable[Callable[[], object]]:
        return [lambda: FakeGpuExecutor(codecs=3), lambda: FakeGpuExecutor("2")]  # type: ignore[arg-type]
