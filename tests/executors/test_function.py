from __future__ import annotations

import multiprocessing
import warnings
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import rechunk_exec as rx
from rechunk_exec.copy import finished_results
from rechunk_exec.errors import RechunkError
from rechunk_exec.executors import FunctionExecutor, staged_copy, worker_shape
from rechunk_exec.results import Event, TaskResult
from rechunk_exec.storage import Journal
from rechunk_exec.tasks import Stage
from tests.executors.test_remote import HiddenError

SHAPE = (16, 24, 24)
VALUES = np.arange(16 * 24 * 24, dtype="f4").reshape(SHAPE)

Plan = Callable[[object], rx.Rechunked]


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    """A job of two stages, of several tasks each."""

    def make(executor: object) -> rx.Rechunked:
        source = tmp_path / "source.zarr"
        if not source.exists():
            zarr.create_array(source, shape=SHAPE, chunks=(1, 24, 24), dtype="f4")[:] = VALUES
        job = rx.rechunk(
            source, (16, 4, 4), "20kB", tmp_path / "target.zarr", executor=executor, mode="overwrite", progress=False
        )
        assert len(job.stages) == 2
        return job

    return make


def run_all(stages: Sequence[Stage]) -> str:
    for stage in stages:
        for task in stage:
            rx.run_task(task)
    return "ignored"


def test_a_function_runs_a_job(plan: Plan, tmp_path: Path) -> None:
    given: list[tuple[Any, ...]] = []

    def mine(*arguments: Any) -> None:
        given.append(arguments)
        run_all(*arguments)

    events: list[Event] = []
    job = plan(mine)
    target = job.execute(on_event=events.append)
    assert np.array_equal(target[:], VALUES)
    ((stages,),) = given
    assert [type(stage) for stage in stages] == [Stage, Stage]
    assert job.report is not None
    total = sum(len(stage) for stage in job.stages)
    assert job.report.tasks == total
    assert job.report.executor == "mine"
    assert [(r.stage, r.index) for r in job.report.results] == [(t.stage, t.index) for t in job.tasks()]
    assert events[0] == Event(kind="start", total=total)
    assert [event.kind for event in events[1:]] == ["task"] * total
    assert job.report.bytes_written == 2 * VALUES.nbytes
    assert finished_results(job.stages) == list(job.report.results), "they are in the target's journal"


class Documents:
    """Counts the documents of results that are written in this process, while a test lasts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.of_one = self.of_many = 0
        plain = Journal.add

        def add(journal: Journal, results: Iterable[TaskResult], **options: Any) -> None:
            held = list(results)
            self.of_one += len(held) == 1
            self.of_many += len(held) > 1
            plain(journal, held, **options)

        monkeypatch.setattr(Journal, "add", add)


def run_in_threads(stages: Sequence[Stage]) -> None:
    with ThreadPoolExecutor(3) as pool:
        for stage in stages:
            list(pool.map(rx.run_task, stage))


def run_in_forks(stages: Sequence[Stage]) -> None:
    # Forks have a copy of all that the driver's process holds, its notebook too.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # that a process of several threads is forked
        for stage in stages:
            for task in stage:
                process = multiprocessing.get_context("fork").Process(target=rx.run_task, args=(task,))
                process.start()
                process.join(60)
                assert process.exitcode == 0


@pytest.mark.parametrize("function", [run_all, run_in_threads])
def test_tasks_of_the_drivers_process_write_no_document_each(
    function: Callable[[Sequence[Stage]], object], plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rechunk_exec.keeper.WRITE_S", 1000.0)
    job = plan(function)
    written = Documents(monkeypatch)
    assert np.array_equal(job.execute()[:], VALUES)
    assert (written.of_one, written.of_many) == (0, 1)
    assert finished_results(job.stages) == list(job.report.results)  # type: ignore[union-attr]


def test_tasks_of_forks_write_their_own(tmp_path: Path) -> None:
    # The driver has a process of its own: other tests leave threads of libraries here that survive no fork.
    driver = multiprocessing.get_context("spawn").Process(target=copy_in_forks, args=(tmp_path,))
    driver.start()
    driver.join(120)
    assert driver.exitcode == 0


def copy_in_forks(folder: Path) -> None:
    source = folder / "source.zarr"
    zarr.create_array(source, shape=SHAPE, chunks=(1, 24, 24), dtype="f4")[:] = VALUES
    job = rx.rechunk(source, (16, 12, 12), "1MB", folder / "target.zarr", executor=run_in_forks, progress=False)
    with pytest.MonkeyPatch.context() as patch:
        written = Documents(patch)
        assert np.array_equal(job.execute()[:], VALUES)
    assert (written.of_one, written.of_many) == (0, 0), "in this process"


def test_what_was_done_before_a_failure_is_not_done_again(plan: Plan, tmp_path: Path) -> None:
    def failing(stages: Sequence[Stage]) -> None:
        for task in list(stages[0])[:3]:
            rx.run_task(task)
        raise LookupError("mine")

    with pytest.raises(RechunkError, match="3 of"):
        plan(failing).execute()
    job = rx.rechunk(
        tmp_path / "source.zarr",
        (16, 4, 4),
        "20kB",
        tmp_path / "target.zarr",
        executor=run_all,
        mode="resume",
        progress=False,
    )
    assert np.array_equal(job.execute()[:], VALUES)
    assert job.report is not None
    assert job.report.tasks == job.plan.tasks - 3


def test_tasks_may_run_twice(plan: Plan) -> None:
    job = plan(lambda stages: (run_all(stages[:1]), run_all(stages[:1]), run_all(stages[1:])))
    assert np.array_equal(job.execute()[:], VALUES)
    assert job.report is not None
    assert job.report.tasks == sum(len(stage) for stage in job.stages)


def test_a_function_that_returns_early(plan: Plan) -> None:
    def early(stages: Sequence[Stage]) -> None:
        for task in stages[0]:
            if task.index not in {1, 2, 3}:
                rx.run_task(task)

    job = plan(early)
    missing = 3 + len(job.stages[1])
    with pytest.raises(RechunkError, match=f"{missing} of ") as caught:
        job.execute()
    assert "'early'" in str(caught.value)
    assert "of stage 0: 1 to 3" in str(caught.value)
    assert f"of stage 1: 0 to {len(job.stages[1]) - 1}" in str(caught.value)
    assert job.report is None


def test_a_function_that_does_nothing(plan: Plan) -> None:
    with pytest.raises(RechunkError, match="missing"):
        plan(print).execute()


def test_what_it_raises_need_have_no_message_that_can_be_shown(plan: Plan) -> None:
    def failing(stages: Sequence[Stage]) -> None:
        raise HiddenError

    with pytest.raises(RechunkError, match=r"'failing' failed with HiddenError: \(its message cannot be shown"):
        plan(failing).execute()


def test_what_it_raises_is_the_cause(plan: Plan) -> None:
    def failing(stages: Sequence[Stage]) -> None:
        raise LookupError("mine")

    with pytest.raises(RechunkError, match=r"'failing' failed with LookupError: .*mine") as caught:
        plan(failing).execute()
    assert isinstance(caught.value.__cause__, LookupError)


def test_an_interrupt_is_not_wrapped(plan: Plan) -> None:
    def interrupted(stages: Sequence[Stage]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        plan(interrupted).execute()


def test_stages_that_one_holds(plan: Plan, tmp_path: Path) -> None:
    job = plan("serial")
    job.execute()
    stages = tuple(replace(stage, source=job.stages[0].source) for stage in job.stages[-1:])
    target = zarr.open_array(tmp_path / "target.zarr", mode="r+")
    target[:] = 0
    report = staged_copy(stages, run_all)
    assert report.tasks == len(stages[0])
    assert np.array_equal(target[:], VALUES)
    with pytest.raises(RechunkError, match="missing"):
        staged_copy(stages, print)  # what an earlier run did does not count


def test_how_many_tasks_it_runs_at_once() -> None:
    def wide(stages: Sequence[Stage]) -> None: ...

    wide.tasks_per_worker = 4  # type: ignore[attr-defined]
    assert worker_shape(FunctionExecutor(wide)).tasks_per_worker == 4
    wide.tasks_per_worker = 0  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="tasks_per_worker"):
        FunctionExecutor(wide)
    with pytest.raises(TypeError, match="function"):
        FunctionExecutor(3)  # type: ignore[arg-type]


def test_names() -> None:
    class Runner:
        def __call__(self, stages: Sequence[Stage]) -> None: ...

    assert FunctionExecutor(run_all).name == "run_all"
    assert FunctionExecutor(Runner()).name == "Runner"
