"""Executors that each break a promise, and the contract for them: run by test_contract.py, which wants it to fail."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar, cast

import rechunk_exec as rx
from rechunk_exec.executors import ProcessesExecutor, Shared, ThreadsExecutor
from rechunk_exec.results import Event, OnEvent
from rechunk_exec.tasks import Stage
from rechunk_exec.testing import ExecutorContract, PoolContract
from rechunk_exec.testing.calls import Witness

T = TypeVar("T")


class Loop:
    """A plain loop that keeps the contract; others change a part of it."""

    name = "loop"
    tasks_per_worker = 1
    tries = 3

    def staged_copy(self, stages: Sequence[Stage], *, on_event: OnEvent | None = None) -> rx.CopyReport:
        tell = on_event or print
        tell(Event(kind="start", total=sum(map(len, stages))))
        results = [result for stage in self.stages(stages) for result in self.run_stage(stage, tell)]
        retries = sum(result.attempts - 1 for result in results)
        return rx.CopyReport(executor=self.name, results=tuple(results), seconds=0.0, retries=retries)

    def stages(self, stages: Sequence[Stage]) -> Iterable[Stage]:
        return stages

    def run_stage(self, stage: Stage, tell: OnEvent) -> Iterable[rx.TaskResult]:
        for position in range(len(stage)):
            result = self.run_task(stage, position, tell)
            tell(Event(kind="task", stage=result.stage, index=result.index, result=result))
            yield result

    def run_task(self, stage: Stage, position: int, tell: OnEvent) -> rx.TaskResult:
        task = stage[position]
        for tried in range(1, self.tries + 1):
            try:
                return replace(rx.run_task(task), attempts=tried)
            except rx.StorageError as error:
                if tried == self.tries:
                    raise self.error(stage, position, error) from error
                tell(Event(kind="retry", stage=task.stage, index=task.index, message=str(error)))
        raise AssertionError

    def error(self, stage: Stage, position: int, error: Exception) -> Exception:
        return rx.TaskError(f"failed: {error}", stage=stage.number, index=stage[position].index)


class TestLoop(ExecutorContract):
    """The one that breaks nothing. Jobs of three stages are nothing new to a loop."""

    long: ClassVar[tuple[str, ...]] = ("test_a_whole_job_of_three_stages",)

    def make_executor(self) -> object:
        return Loop()

    def wrong_options(self) -> Iterable[Callable[[], object]]:
        return [lambda: Loop(2)]  # type: ignore[call-arg]


class TestWithoutBarrier(ExecutorContract):
    def make_executor(self) -> object:
        class Impatient(Loop):
            def stages(self, stages: Sequence[Stage]) -> Iterable[Stage]:
                tasks = len(stages[0])
                yield replace(stages[0], left=((0, tasks - 1),))
                yield from stages[1:]
                yield replace(stages[0], left=((tasks - 1, tasks),))

        return Impatient()


class TestLeavesOneOut(ExecutorContract):
    def make_executor(self) -> object:
        class Forgetful(Loop):
            def stages(self, stages: Sequence[Stage]) -> Iterable[Stage]:
                return [stages[0], *(replace(stage, left=((0, len(stage) - 1),)) for stage in stages[1:])]

        return Forgetful()


class TestRunsTwice(ExecutorContract):
    def make_executor(self) -> object:
        class Doubtful(Loop):
            def run_task(self, stage: Stage, position: int, tell: OnEvent) -> rx.TaskResult:
                super().run_task(stage, position, tell)
                return super().run_task(stage, position, tell)

        return Doubtful()


class TestResultsAsTheyCome(ExecutorContract):
    def make_executor(self) -> object:
        class Backwards(Loop):
            def run_stage(self, stage: Stage, tell: OnEvent) -> Iterable[rx.TaskResult]:
                return list(super().run_stage(stage, tell))[::-1]

        return Backwards()


class TestSilent(ExecutorContract):
    def make_executor(self) -> object:
        class Silent(Loop):
            def staged_copy(self, stages: Sequence[Stage], *, on_event: OnEvent | None = None) -> rx.CopyReport:
                return super().staged_copy(stages)

        return Silent()


class TestTellsElsewhere(ExecutorContract):
    def make_executor(self) -> object:
        class Elsewhere(Loop):
            def staged_copy(self, stages: Sequence[Stage], *, on_event: OnEvent | None = None) -> rx.CopyReport:
                def tell(event: Event) -> None:
                    thread = threading.Thread(target=on_event or print, args=[event])
                    thread.start()
                    thread.join()

                return super().staged_copy(stages, on_event=tell)

        return Elsewhere()


class TestTriesOnce(ExecutorContract):
    def make_executor(self) -> object:
        class Rash(Loop):
            tries = 1

        return Rash()


class TestTriesFourTimes(ExecutorContract):
    def make_executor(self) -> object:
        class Stubborn(Loop):
            tries = 4

        return Stubborn()


class TestCountsNoRetries(ExecutorContract):
    def make_executor(self) -> object:
        class Forgetful(Loop):
            def staged_copy(self, stages: Sequence[Stage], *, on_event: OnEvent | None = None) -> rx.CopyReport:
                return replace(super().staged_copy(stages, on_event=on_event), retries=0)

        return Forgetful()


class TestHidesTheCause(ExecutorContract):
    def make_executor(self) -> object:
        class Secretive(Loop):
            def run_task(self, stage: Stage, position: int, tell: OnEvent) -> rx.TaskResult:
                try:
                    return super().run_task(stage, position, tell)
                except rx.TaskError:
                    raise rx.RechunkError("failed") from None

        return Secretive()


class TestNamesThePosition(ExecutorContract):
    def make_executor(self) -> object:
        class Confused(Loop):
            def error(self, stage: Stage, position: int, error: Exception) -> Exception:
                return rx.TaskError(f"failed: {error}", stage=stage.number, index=position)

        return Confused()


class TestLeavesOrphans(ExecutorContract):
    def make_executor(self) -> object:
        class Heartless(Loop):
            def error(self, stage: Stage, position: int, error: Exception) -> Exception:
                for task in stage[position + 1 :]:
                    threading.Thread(target=rx.run_task, args=[task]).start()
                return super().error(stage, position, error)

        return Heartless()


class TestRunsAllTasks(ExecutorContract):
    def make_executor(self) -> object:
        class Thorough(Loop):
            def stages(self, stages: Sequence[Stage]) -> Iterable[Stage]:
                return [replace(stage, left=None) for stage in stages]

        return Thorough()


class TestSendsMuch(ExecutorContract):
    def make_executor(self) -> object:
        return Loop()

    def wire_bytes(self, executor: Any) -> int:
        return 100_000


class TestTakesAnyOption(ExecutorContract):
    def make_executor(self) -> object:
        return Loop()

    def wrong_options(self) -> Iterable[Callable[[], object]]:
        return [Loop]


class TestNamesNoTest(ExecutorContract):
    exceptions = {"test_of_something_else": "a slip of the pen"}  # noqa: RUF012

    def make_executor(self) -> object:
        return Loop()


class TestSetsUpTwice(PoolContract):
    def make_executor(self) -> object:
        class Eager(ThreadsExecutor):
            def _set_up(self, fn: Callable[[], object]) -> None:
                fn()
                fn()

        return Eager(2)


@dataclass(frozen=True)
class ByValue:
    """A handle that takes its object along."""

    value: object


class SendsEachTime(ProcessesExecutor):
    def put(self, obj: T) -> Shared[T]:
        return cast(Shared[T], ByValue(obj)) if isinstance(obj, Witness) else super().put(obj)


class TestSendsEachTime(PoolContract):
    def make_executor(self) -> object:
        return SendsEachTime(1)
