"""The executor that the tests of a contract share, and the runs that several of them look at. Layer: testing.

An engine may take seconds to start a job. So one executor serves all tests of a class, each run is made when the first
test asks for it, and what it came to is kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, TypeVar

import pytest

from rechunk_exec.executors import Executor, resolve
from rechunk_exec.testing.record import ALWAYS, Faults
from rechunk_exec.testing.trial import Run, Stores, Trial

T = TypeVar("T")

FAILING = (0, 4)
"""The task that fails for good in the run that fails."""


class SharedRuns:
    """What a contract is told of an executor, and the runs on it. See :class:`.contract.ExecutorContract`."""

    stores: ClassVar[Stores] = "live"
    tries: ClassVar[int] = 3
    tasks_may_run_twice: ClassVar[bool] = False
    exceptions: ClassVar[Mapping[str, str]] = {}

    _kept: ClassVar[dict[str, Any]] = {}

    def make_executor(self) -> object:
        """Return what ``executor=`` takes: an executor, a name, a pool, a client or a function."""
        raise NotImplementedError("override make_executor: return an executor, or what executor= takes")

    @classmethod
    def end_executor(cls, executor: Any) -> None:
        """End what :meth:`make_executor` made. Here: call its ``close`` or ``shutdown``, if it has one."""
        end = getattr(executor, "close", None) or getattr(executor, "shutdown", None)
        if callable(end):
            end()

    def wrong_options(self) -> Iterable[Callable[[], object]]:
        """Return calls that try to make the executor with options that are wrong, each a ``TypeError``."""
        return ()

    def wire_bytes(self, executor: Any) -> int | None:
        """Return the most bytes that were sent at once for a task so far; None where that cannot be told.

        ``executor`` is what :meth:`make_executor` returned.
        """
        return None

    # What the tests share.

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls._kept = {}

    @classmethod
    def _keep(cls, name: str, make: Callable[[], T]) -> T:
        """Return what ``make`` has returned when it was first called for this name, in this class."""
        if name not in cls._kept:
            cls._kept[name] = make()
        kept: T = cls._kept[name]
        return kept

    @classmethod
    def teardown_class(cls) -> None:
        """End the executor. One that overrides this calls it too."""
        cls._end_kept()
        cls._kept.clear()

    @classmethod
    def _end_kept(cls) -> None:
        given, executor = cls._kept.pop("given", None), cls._kept.pop("executor", None)
        if executor is not None:
            if executor is not given and callable(getattr(executor, "close", None)):
                executor.close()
            cls.end_executor(given)

    @pytest.fixture(autouse=True)
    def _stated_exception(self, request: pytest.FixtureRequest) -> None:
        unknown = [name for name in self.exceptions if not callable(getattr(self, name, None))]
        assert not unknown, f"exceptions must name tests of the contract; got {unknown}"
        reason = self.exceptions.get(request.function.__name__)
        if reason is not None:
            pytest.skip(f"a stated exception: {reason}")

    @pytest.fixture
    def executor(self) -> Executor:
        """The executor, one for all tests of the class."""
        return self._keep("executor", lambda: resolve(self._keep("given", self.make_executor)))

    @pytest.fixture
    def trial(self, tmp_path_factory: pytest.TempPathFactory) -> Trial:
        """The arrays of the runs that go well in the end."""
        return self._keep("trial", lambda: Trial(tmp_path_factory.mktemp("trial"), self.stores))

    @pytest.fixture
    def first(self, executor: Executor, trial: Trial) -> Run:
        """A run in which nothing goes wrong, and some tasks take longer than others."""
        faults = Faults(slow_s={(0, 1): 0.2, (0, 11): 0.4, (1, 0): 0.2})
        return self._keep("first", lambda: trial.run(executor, "first", faults))

    @pytest.fixture
    def retried(self, executor: Executor, tmp_path_factory: pytest.TempPathFactory) -> Run:
        """A run in which two tasks fail as often as they may."""
        if self.tries == 1:
            pytest.skip("a stated exception: tries = 1, no task is tried again")

        def run() -> Run:
            trial = Trial(tmp_path_factory.mktemp("retried"), self.stores)
            return trial.run(executor, "retried", Faults(fails={(0, 2): self.tries - 1, (1, 0): 1}))

        return self._keep("retried", run)

    @pytest.fixture
    def failing(self, tmp_path_factory: pytest.TempPathFactory) -> Trial:
        """The arrays of the run that fails."""
        return self._keep("failing", lambda: Trial(tmp_path_factory.mktemp("failing"), self.stores))

    @pytest.fixture
    def failed(self, executor: Executor, failing: Trial) -> Run:
        """A run of the tasks 1 to 8 of stage 0, and of stage 1, in which a task always fails."""
        faults = Faults(fails={FAILING: ALWAYS}, slow_s={(0, index): 0.15 for index in range(12)})

        def run() -> Run:
            failed = failing.run(executor, "failed", faults, left=(((1, 9),), None))
            time.sleep(0.5)
            failed.stored_later = frozenset(failing.stored("middle"))
            return failed

        return self._keep("failed", run)
