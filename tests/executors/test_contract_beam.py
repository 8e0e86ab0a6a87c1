"""Beam keeps the contract of every executor, on its local runner and on Prism."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import ClassVar

from rechunk_exec.executors import BeamExecutor
from rechunk_exec.testing import ExecutorContract
from tests.conftest import needed_module
from tests.executors.beamrunners import prism_binary

Options = Iterable[Callable[[], object]]


class OnBeam(ExecutorContract):
    runner: ClassVar[str | None] = None
    exceptions: ClassVar[Mapping[str, str]] = {
        "test_retries_are_told": "they happen on the workers: events tell of them when the task is done, and not why"
    }

    def flags(self) -> list[str]:
        return []

    def make_executor(self) -> BeamExecutor:
        needed_module("apache_beam")
        return BeamExecutor(self.runner, self.flags())

    def wrong_options(self) -> Options:
        return [lambda: BeamExecutor(3), lambda: BeamExecutor(options=3)]


class TestInMemory(OnBeam):
    pass


class TestPrism(OnBeam):
    runner = "PrismRunner"

    def flags(self) -> list[str]:
        return [f"--prism_location={prism_binary()}"]
