"""Beam keeps the contract of every executor: on its local runner, on Prism, and, with ``--long``, in processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any, ClassVar

import pytest

from rechunk_exec.executors import BeamExecutor
from rechunk_exec.testing import ExecutorContract
from tests.conftest import needed_module
from tests.executors.beamrunners import ROOT, runner_named

Options = Iterable[Callable[[], object]]

pytestmark = [
    # Beam's own: it leaves the output of Prism, which it stops, to the collector of garbage.
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),
]


class OnBeam(ExecutorContract):
    runner: ClassVar[str]
    """By its name in :func:`tests.executors.beamrunners.runner_named`."""
    exceptions: ClassVar[Mapping[str, str]] = {
        "test_retries_are_told": "they happen on the workers: events tell of them when the task is done, and not why"
    }
    make: ClassVar[Callable[..., BeamExecutor]]

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def running(cls) -> Iterator[None]:
        needed_module("apache_beam")
        with ExitStack() as stack:
            patch = stack.enter_context(pytest.MonkeyPatch.context())
            patch.setenv("PYTHONPATH", str(ROOT))  # for worker processes
            cls.make = staticmethod(stack.enter_context(runner_named(cls.runner)))
            yield

    def make_executor(self) -> Any:
        return self.make()

    def wrong_options(self) -> Options:
        return [lambda: BeamExecutor(3), lambda: BeamExecutor(options=3)]


class TestInMemory(OnBeam):
    """A job of two stages is in test_beam.py."""

    long: ClassVar[tuple[str, ...]] = ("test_a_whole_job",)
    runner = "memory"


@pytest.mark.long
class TestInProcesses(OnBeam):
    """Each run starts processes that import Beam. A job with retries and an interrupt on processes are in test_beam.py;
    the rest is what the runner in memory does."""

    runner = "processes"


class TestPrism(OnBeam):
    """A job with retries and a listener that raises are in test_beam.py; the rest, in memory or by the service."""

    long: ClassVar[tuple[str, ...]] = (
        "test_a_task_that_fails_is_tried_again_and_no_more",
        "test_a_listener_that_raises_stops_the_run",
        "test_running_again_after_a_failure_is_harmless",
        "test_the_tasks_that_are_left",
        "test_tasks_that_run_twice_at_once_leave_the_same_bytes",
        "test_a_whole_job",
        "test_a_whole_job_of_three_stages",
    )
    runner = "prism"


class TestPrismService(OnBeam):
    """A job service in a process of its own, which gets the pipeline as a Flink job server does.

    Retries are shown by the job of two stages in test_beam.py; the rest, in memory or by Prism.
    """

    long: ClassVar[tuple[str, ...]] = (
        "test_a_task_that_fails_is_tried_again_and_no_more",
        "test_a_listener_that_raises_stops_the_run",
        "test_the_tasks_that_are_left",
        "test_tasks_that_run_twice_at_once_leave_the_same_bytes",
        "test_a_whole_job",
        "test_a_whole_job_of_three_stages",
    )
    runner = "service"
