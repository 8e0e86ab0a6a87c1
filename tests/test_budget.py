"""``max_mem="auto"``: what it comes to, where it is refused, and how a job goes on with it."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

import rechunk_exec as rx
from rechunk_exec import budget as budgets
from rechunk_exec.budget import IDLE_BYTES, SHARE, Budget, asked_bytes, budget_for
from rechunk_exec.executors import (
    DaskExecutor,
    FunctionExecutor,
    FuturesExecutor,
    ProcessesExecutor,
    SerialExecutor,
    ThreadsExecutor,
    WorkerShape,
    worker_shape,
)
from tests.conftest import needed_module
from tests.executors.clusters import running_cluster, running_in_this_process
from tests.jobs import ZarrArray, assert_exact, make_array, snapshot

HERE = WorkerShape(workers=1, tasks_per_worker=2, cores_per_worker=2, elastic=True, here=True)
LEFT = 10 * 10**9


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Says how much memory the machine has left."""

    class Machine:
        left = LEFT

    monkeypatch.setattr(budgets, "memory_left", lambda: Machine.left)
    return Machine


@pytest.fixture
def source(tmp_path: Path) -> ZarrArray:
    return make_array(tmp_path / "source.zarr", (8, 24, 20), (1, 24, 20))


def auto(workers: WorkerShape, **options: Any) -> Budget:
    return budget_for(None, workers, executor="its name", **options)


def test_words() -> None:
    assert [asked_bytes(word) for word in ("auto", " AUTO ", "2MB", 7)] == [None, None, 2_000_000, 7]
    with pytest.raises(rx.PlanError, match="must be a number of bytes; got 'automatic'"):
        asked_bytes("automatic")


def test_a_number_is_itself_whatever_is_left(machine: Any) -> None:
    machine.left = 0
    assert budget_for(5, HERE, executor="x", begun=7) == Budget(max_mem=5)


def test_a_share_of_what_is_left_is_divided_by_the_workers_not_by_their_tasks(machine: Any) -> None:
    assert auto(HERE).max_mem == 6 * 10**9 == SHARE * LEFT
    assert auto(replace(HERE, workers=4)).max_mem == 1500 * 10**6


def test_workers_that_are_yet_to_be_started_take_their_idle_memory_first(machine: Any) -> None:
    four = replace(HERE, workers=4, tasks_per_worker=1)
    assert auto(replace(four, to_start=4)).max_mem == int(SHARE * (LEFT - 4 * IDLE_BYTES) / 4)


def test_it_is_whole_megabytes(machine: Any) -> None:
    machine.left = 123_456_789
    assert auto(HERE).max_mem == 74_000_000


def test_it_says_how_it_came_about(machine: Any) -> None:
    assert auto(replace(HERE, workers=4)).how == (
        "max_mem is 1.5 GB (1500000000 bytes): 60% of what this machine and its limits leave, for each of 4 workers"
    )


@pytest.mark.parametrize("left", [0, 1_000_000])
def test_nothing_left_is_refused(machine: Any, left: int) -> None:
    machine.left = left
    with pytest.raises(rx.PlanError, match="for each of 1 worker; free some, use fewer workers, or give a number"):
        auto(HERE)


def test_a_worker_with_a_limit_of_its_own_has_a_share_of_that(machine: Any) -> None:
    elsewhere = replace(HERE, here=False, workers=3, spare_bytes=2 * 10**9)
    assert auto(elsewhere).max_mem == 1_200_000_000
    assert "60% of what its limit leaves a worker" in auto(elsewhere).how


def test_a_job_that_goes_on_has_the_memory_it_was_begun_with(machine: Any) -> None:
    begun = auto(HERE, begun=4 * 10**9)
    assert (begun.max_mem, begun.warning) == (4 * 10**9, "")
    machine.left = 3 * 10**9
    assert auto(HERE, begun=4 * 10**9).max_mem == 4 * 10**9
    assert "begun with max_mem 4 GB, and by now each of 1 worker has 3 GB left" in auto(HERE, begun=4 * 10**9).warning
    elsewhere = replace(HERE, here=False)
    assert auto(elsewhere, begun=5) == Budget(max_mem=5, how="max_mem is 5 B, as when the job was begun")


def test_who_is_here() -> None:
    assert worker_shape(SerialExecutor()).here
    assert worker_shape(ThreadsExecutor(3)).here
    assert worker_shape(DaskExecutor(workers=2)).here
    assert worker_shape(DaskExecutor(workers=2)).to_start == 2
    with ProcessesExecutor(2) as processes:
        shape = worker_shape(processes)
        assert (shape.here, shape.to_start) == (True, 2)
        assert list(processes.map(abs, [-1])) == [1]
        assert worker_shape(processes).to_start == 0
    with ThreadPoolExecutor(1) as threads, ProcessPoolExecutor(1, get_context("spawn")) as pool:
        assert worker_shape(FuturesExecutor(threads)).here
        assert worker_shape(FuturesExecutor(pool)).here


def staged_copy(stages: Any) -> None:
    """An executor that nobody knows the place of."""
    for stage in stages:
        for task in stage:
            rx.run_task(task)


@pytest.mark.parametrize(
    "executor", [staged_copy, FunctionExecutor(staged_copy), "beam", "batch"], ids=["fn", "Fn", "beam", "batch"]
)
def test_workers_that_may_be_anywhere_are_refused(source: ZarrArray, tmp_path: Path, executor: object) -> None:
    if executor == "beam":
        needed_module("apache_beam")
    before = snapshot(tmp_path)
    with pytest.raises(rx.PlanError, match="whose workers may be anywhere; give what one of them has, such as '8GB'"):
        rx.rechunk(source, (8, 6, 5), "auto", tmp_path / "target.zarr", executor=executor)
    assert snapshot(tmp_path) == before


def test_arithmetic_knows_no_machine() -> None:
    with pytest.raises(rx.PlanError, match="must be a number of bytes where a plan is made by arithmetic alone"):
        rx.plan_rechunk((4, 4), 4, (1, 4), (4, 1), "Auto")


@pytest.mark.parametrize("executor", ["serial", "threads", "processes"])
def test_a_job_with_it(source: ZarrArray, tmp_path: Path, machine: Any, executor: str) -> None:
    machine.left = 2 * 10**9
    job = rx.rechunk(source, (8, 6, 5), "auto", tmp_path / "target.zarr", executor=executor, progress=False)
    workers = worker_shape(job._parts.executor)
    assert job.plan.max_mem == auto(workers).max_mem <= SHARE * machine.left / workers.workers
    assert job.memory_text in repr(job)
    assert f"({job.plan.max_mem} bytes): 60%" in job.memory_text
    assert_exact(job.execute(), source)
    assert not job.report.warnings if job.report else False


def test_the_real_machine(source: ZarrArray, tmp_path: Path) -> None:
    plan = rx.rechunk(source, (8, 6, 5), "auto", tmp_path / "target.zarr").plan
    assert 10**6 <= plan.max_mem < rx.rechunk(source, (8, 6, 5), "1TB", tmp_path / "target.zarr").plan.max_mem


class StopError(Exception):
    """On purpose."""


def test_it_goes_on_though_another_number_is_left(source: ZarrArray, tmp_path: Path, machine: Any) -> None:
    def stop(event: Any) -> None:
        if event.kind == "task":
            raise StopError

    machine.left = 20 * 10**6
    arguments = (source, (8, 6, 5), "auto", tmp_path / "target.zarr")
    first = rx.rechunk(*arguments, executor="serial", progress=False)
    with pytest.raises(StopError):
        first.execute(on_event=stop)
    machine.left = 11 * 10**6
    job = rx.rechunk(*arguments, executor="serial", mode="resume", progress=False)
    assert job.plan == first.plan
    assert job.plan.max_mem == 12_000_000
    assert "max_mem is 12 MB (12000000 bytes), as when the job was begun" in repr(job)
    assert_exact(job.execute(), source)
    assert job.report is not None
    assert job.report.tasks == first.plan.tasks - 1
    assert any("begun with max_mem 12 MB" in warning for warning in job.report.warnings)


def test_a_job_begun_with_a_number_goes_on_with_it_and_the_other_way_round(source: ZarrArray, tmp_path: Path) -> None:
    target = tmp_path / "target.zarr"
    rx.rechunk(source, (8, 6, 5), "300kB", target, executor="serial", progress=False).execute()
    assert rx.rechunk(source, (8, 6, 5), "auto", target, mode="resume").plan.max_mem == 300_000
    with pytest.raises(rx.ResumeError, match="max_mem: 300000 then, 400000 now"):
        rx.rechunk(source, (8, 6, 5), "400kB", target, mode="resume")


def test_lines_for_anywhere_need_a_number(source: ZarrArray, tmp_path: Path) -> None:
    job = rx.rechunk(source, (8, 6, 5), "auto", tmp_path / "target.zarr", executor="serial")
    before = snapshot(tmp_path)
    with pytest.raises(rx.PlanError, match="must be a number where tasks run anywhere; got 'auto', which is"):
        job.write_jobs(tmp_path / "jobs")
    assert snapshot(tmp_path) == before


def test_a_cluster_says_what_its_workers_have(source: ZarrArray, tmp_path: Path) -> None:
    with running_cluster(1, memory_limit="2GB") as client:
        shape = worker_shape(DaskExecutor(client))
        assert not shape.here
        assert shape.spare_bytes is not None
        assert 10**9 < shape.spare_bytes < 1.6e9, "below where dask pauses it, less what it holds"
        job = rx.rechunk(source, (8, 6, 5), "auto", tmp_path / "target.zarr", executor=client, progress=False)
        assert 0.5e9 < job.plan.max_mem <= SHARE * 1.6e9
        assert_exact(job.execute(), source)
    with running_in_this_process(memory_limit=None) as client:
        assert worker_shape(DaskExecutor(client)).spare_bytes is None
        with pytest.raises(rx.PlanError, match="got executor 'dask', whose workers may be anywhere"):
            rx.rechunk(source, (8, 6, 5), "auto", tmp_path / "again.zarr", executor=client)
