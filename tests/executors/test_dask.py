from __future__ import annotations

import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any, ClassVar

import psutil
import pytest

import rechunk_exec as rx
from rechunk_exec.errors import MissingExtraError, PlanError, RechunkError, StorageError, TaskError
from rechunk_exec.executors import DaskExecutor, PoolExecutor, available_cores, executor_named, resolve, sight
from rechunk_exec.executors import worker_shape as shape_of
from rechunk_exec.executors.daskcluster import DaskCluster
from rechunk_exec.results import Event
from rechunk_exec.tasks import ArrayRef, Stage
from rechunk_exec.testing.calls import Mark, left_by
from tests.conftest import needed_module
from tests.executors.clusters import quieted, running_cluster, running_in_this_process
from tests.executors.contract import PoolContract, SurvivorContract
from tests.executors.recording import Recording, make_stage
from tests.executors.sent import (
    AtOnceInTwo,
    ask_the_cluster,
    forget,
    has_arrived,
    hide_the_package,
    length,
    limits,
)
from tests.executors.workers import (
    FOREVER_S,
    PATIENCE_S,
    await_end,
    environment,
    interrupted_when,
    started,
    wait_until,
)
from tests.jobs import ToldCopy, assert_exact, assert_kept_promises, make_array


class OnGivenCluster(PoolContract):
    workers: ClassVar[int]
    threads: ClassVar[int]
    client: ClassVar[Any] = None

    @classmethod
    def teardown_class(cls) -> None:
        super().teardown_class()
        assert cls.client.submit(abs, -1).result() == 1, "a client that was given stays open"

    def make(self) -> PoolExecutor:
        return DaskExecutor(self.client)

    def test_its_shape(self, executor: PoolExecutor) -> None:
        self.client.wait_for_workers(self.workers, 60)  # other tests have killed some
        shape = shape_of(executor)
        assert (shape.workers, shape.tasks_per_worker, shape.cores_per_worker) == (
            self.workers,
            self.threads,
            self.threads,
        )
        assert shape.elastic, "a plan may ask for fewer tasks at once in a worker"

    def test_nothing_is_left_on_the_cluster(self, executor: PoolExecutor, tmp_path: Path) -> None:
        executor.task_function = Recording(tmp_path)
        executor.staged_copy([make_stage(0, 10)])
        wait_until(lambda: self.client.run_on_scheduler(_keys) == [])


class TestClusterOfProcesses(OnGivenCluster, SurvivorContract):
    workers = 2
    threads = 1
    death = "left the cluster"

    @pytest.fixture(autouse=True)
    def _given(self, cluster: Any) -> None:
        type(self).client = cluster


class TestClusterOfThreads(OnGivenCluster):
    """One of processes that have threads has the public contract."""

    workers = 1
    threads = 2

    @pytest.fixture(autouse=True)
    def _given(self, worker_of_threads: Any) -> None:
        type(self).client = worker_of_threads


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait longer for workers than a program should: a machine with much to do may need a minute to start some."""
    quieted()
    monkeypatch.setattr("rechunk_exec.executors.daskcluster._WAIT_S", PATIENCE_S)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two worker processes of one thread each."""
    with running_cluster(2) as client:
        yield client


@pytest.fixture(scope="module")
def worker_of_threads() -> Iterator[Any]:
    """A worker that does two tasks at once."""
    with running_in_this_process(1, 2) as client:
        yield client


@pytest.fixture
def client(cluster: Any) -> Any:
    """The same, when others have taken the places of those that a test has killed."""
    cluster.wait_for_workers(2, PATIENCE_S)
    return cluster


def dask_with_its_settings() -> Any:
    """The package. What is set before ``distributed`` is imported takes all of that one's settings away at its end."""
    quieted()
    return needed_module("dask")


def children() -> set[psutil.Process]:
    """The processes that this one has started, but for the one that multiprocessing keeps while the program runs."""
    tracker = getattr(resource_tracker._resource_tracker, "_pid", None)
    return {child for child in psutil.Process().children(recursive=True) if child.pid != tracker}


def workers_of(client: Any) -> list[psutil.Process]:
    return [psutil.Process(pid) for pid in client.run(os.getpid).values()]


# What it is made from.


@pytest.mark.parametrize(
    "arguments, options, error, message",
    [
        ((3,), {}, TypeError, "client must be"),
        ((["tcp://here"],), {}, TypeError, "client must be"),
        (("tcp://127.0.0.1:9",), {"workers": 2}, TypeError, "workers is for a cluster that is started here"),
        ((), {"workers": 0}, ValueError, "workers"),
        ((), {"workers": "2"}, TypeError, "workers"),
        ((), {"workers": True}, TypeError, "workers"),
        ((), {"threads": 2}, TypeError, "threads"),
    ],
)
def test_wrong_options(
    arguments: tuple[Any, ...], options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        DaskExecutor(*arguments, **options)


def test_names_and_clients(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(resolve("dask"), DaskExecutor)
    assert isinstance(executor_named("dask", 3), DaskExecutor)
    assert shape_of(executor_named("dask", 3)).workers == 3
    assert isinstance(resolve(client), DaskExecutor)
    address = client.scheduler.address
    executor = resolve(f"dask:{address}")
    assert isinstance(executor, DaskExecutor)
    assert list(executor.map(abs, [-1])) == [1]
    executor.close()
    with pytest.raises(PlanError, match="its workers already"):
        executor_named(f"dask:{address}", 2)
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(MissingExtraError, match=re.escape("rechunk_exec[dask]")):
        resolve("dask")


def test_an_address_that_nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    dask = dask_with_its_settings()
    with (
        dask.config.set({"distributed.comm.timeouts.connect": "500ms"}),
        pytest.raises(RechunkError, match="must answer"),
    ):
        DaskExecutor("tcp://127.0.0.1:9")


def test_an_asynchronous_client_is_refused(client: Any) -> None:
    async def make() -> None:
        with pytest.raises(TypeError, match="asynchronous"):
            DaskExecutor(client)

    client.sync(make)


# A cluster of our own.


def test_nothing_is_started_before_it_is_needed_and_nothing_is_left(tmp_path: Path) -> None:
    before = children()
    with DaskExecutor(workers=2) as executor:
        shape = shape_of(executor)
        assert (shape.workers, shape.tasks_per_worker, shape.elastic) == (2, 1, False)
        assert shape.cores_per_worker == max(1, available_cores() // 2)
        executor.check_stages([make_stage(0, 3)])
        executor.staged_copy([])
        assert children() == before
        executor.run_on_workers(Mark(tmp_path, "ready"))
        pids = left_by(tmp_path, "ready")
        assert len(pids) == len(set(pids) - {os.getpid()}) == 2, "they are started to be set up"
        executor.task_function = recording = Recording(tmp_path, seconds=0.05)
        assert executor.staged_copy([make_stage(0, 8)]).notes == ()
        assert len({entry["pid"] for entry in recording.entries()} - {os.getpid()}) == 2
        found = set(executor.map(limits, range(4)))
        assert found == {(str(shape.cores_per_worker), shape.cores_per_worker)}
    assert children() == before


def test_workers_that_the_cluster_gave_up_are_started_again(tmp_path: Path) -> None:
    dask = dask_with_its_settings()
    with dask.config.set({"distributed.deploy.lost-worker-timeout": "10ms"}), DaskExecutor(workers=1) as executor:
        executor.run_on_workers(int)
        executor.task_function = Recording(tmp_path, dies={(0, 0): 1})
        report = executor.staged_copy([make_stage(0, 5)])
        assert report.tasks == 5
        # In 10 ms a worker may be back already, have been given its task again, and be given up all the same.
        assert 1 <= report.retries <= 2


def test_an_interrupt_ends_the_processes_that_it_started(tmp_path: Path) -> None:
    before = children()
    with DaskExecutor(workers=1) as executor:
        assert list(executor.map(abs, [-1])) == [1]
        executor.task_function = recording = Recording(tmp_path, seconds=FOREVER_S)
        with interrupted_when(lambda: len(recording.tries()) == 1):
            executor.staged_copy([make_stage(0, 10)])
        assert children() == before
        assert recording.entries() == []
        executor.task_function = Recording(tmp_path)
        assert executor.staged_copy([make_stage(1, 3)]).tasks == 3, "it starts others when it is used again"


def test_an_interrupt_waits_for_what_runs_on_a_cluster_that_was_given(client: Any, tmp_path: Path) -> None:
    executor = DaskExecutor(client)
    executor.task_function = recording = Recording(tmp_path, seconds=0.5)
    with interrupted_when(lambda: len(recording.tries()) >= 2):
        executor.staged_copy([make_stage(0, 200)])
    tried = recording.tries()
    assert {(entry["stage"], entry["index"]) for entry in recording.entries()} == tried.keys(), "one still runs"
    time.sleep(0.8)
    assert recording.tries() == tried, "a task was started after the interrupt"
    executor.task_function = Recording(tmp_path)
    assert executor.staged_copy([make_stage(1, 3)]).tasks == 3


def test_an_interrupt_at_the_terminal_leaves_no_process(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(_INTERRUPTED)
    with started(sys.executable, script, tmp_path, stderr=subprocess.PIPE) as run:
        wait_until(lambda: list(tmp_path.glob("*.tries")))
        family = [psutil.Process(run.pid), *psutil.Process(run.pid).children(recursive=True)]
        os.killpg(run.pid, signal.SIGINT)
        _, errors = run.communicate(timeout=PATIENCE_S)
    assert run.returncode != 0
    assert "KeyboardInterrupt" in errors
    await_end(family)


_INTERRUPTED = f"""
import pathlib, sys
from rechunk_exec.executors import DaskExecutor
from tests.executors.recording import Recording, make_stage

if __name__ == "__main__":
    with DaskExecutor(workers=1) as executor:
        executor.task_function = Recording(pathlib.Path(sys.argv[1]), seconds={FOREVER_S})
        executor.staged_copy([make_stage(0, 10)])
"""


def test_a_killed_program_leaves_no_process(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(_INTERRUPTED)
    with started(sys.executable, script, tmp_path, stderr=subprocess.DEVNULL) as run:
        wait_until(lambda: list(tmp_path.glob("*.tries")))
        family = psutil.Process(run.pid).children(recursive=True)
        run.kill()
    await_end(family)


@pytest.mark.long  # multiprocessing tells it, here as there: test_main_module.py
def test_a_script_without_guard_is_told(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(
        "from rechunk_exec.executors import DaskExecutor\nprint(list(DaskExecutor(workers=1).map(abs, [-1])))\n"
    )
    run = subprocess.run(
        [sys.executable, script], env=environment(), check=False, capture_output=True, text=True, timeout=120
    )
    assert run.returncode != 0
    assert 'if __name__ == "__main__":' in run.stderr.splitlines()[-1] + run.stderr


# Whole jobs.


def test_one_stage_and_two(client: Any, tmp_path: Path) -> None:
    source = make_array(tmp_path / "source.zarr", (37, 41, 29), (2, 41, 29), "u4")
    for stages, chunks, max_mem in ((1, (4, 41, 29), "10MB"), (2, (37, 5, 6), "60kB")):
        executor = DaskExecutor(client)
        (tmp_path / f"told-{stages}").mkdir()
        executor.task_function = told = ToldCopy(tmp_path / f"told-{stages}", fails={(0, 1): 1}, seconds=0.01)
        job = rx.rechunk(source, chunks, max_mem, tmp_path / f"{stages}.zarr", executor=executor, progress=False)
        assert len(job.stages) == stages
        assert_exact(job.execute(), source)
        assert_kept_promises(job)
        assert job.report is not None
        assert (job.report.retries, job.report.executor) == (1, "dask")
        assert all(entry["ready"] for entry in told.told()), "metadata is there before the first task"
        for stage in range(stages - 1):
            ends = [entry["ended"] for entry in told.told() if entry["stage"] == stage]
            begins = [entry["began"] for entry in told.told() if entry["stage"] == stage + 1]
            assert max(ends) <= min(begins)


def test_a_job_by_name_and_by_client(client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rechunk_exec.executors.dask.available_cores", lambda: 1)  # as many workers does the name start
    before = children()
    source = make_array(tmp_path / "source.zarr", (8, 12, 12), (1, 12, 12))
    for number, executor in enumerate(("dask", client, f"dask:{client.scheduler.address}")):
        job = rx.rechunk(source, (8, 3, 3), "1MB", tmp_path / f"{number}.zarr", executor=executor, progress=False)
        assert_exact(job.execute(), source)
    assert children() == before


def test_a_cluster_in_this_process(tmp_path: Path) -> None:
    source = make_array(tmp_path / "source.zarr", (8, 12, 12), (1, 12, 12))
    with running_cluster(1, 2, processes=False) as client:
        job = rx.rechunk(source, (8, 3, 3), "1MB", tmp_path / "target.zarr", executor=client, progress=False)
        assert_exact(job.execute(), source)


def test_a_plan_may_take_fewer_tasks_at_once(tmp_path: Path) -> None:
    source = make_array(tmp_path / "source.zarr", (8, 64, 64), (1, 64, 64), "f8")
    with running_in_this_process(1, 4) as client:
        narrow = rx.rechunk(source, (8, 64, 64), "1.2MB", tmp_path / "target.zarr", executor=client, progress=False)
        assert {stage.plan.tasks_per_worker for stage in narrow.stages} == {1}, "4 at once would not fit"
        assert_exact(narrow.execute(), source)


# What crosses the wire, and what the scheduler sees.


def test_keys_tell_stage_and_task_and_little_is_sent(
    client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted: list[tuple[str, int]] = []
    submit = client.submit

    def counting(function: Any, *arguments: Any, key: str, **options: Any) -> Any:
        submitted.append((key, len(pickle.dumps((function, arguments)))))
        assert options["pure"] is False
        return submit(function, *arguments, key=key, **options)

    monkeypatch.setattr(client, "submit", counting)
    executor = DaskExecutor(client)
    executor.task_function = Recording(tmp_path, fails={(1, 3): 1})
    executor.staged_copy([make_stage(0, 5), make_stage(1, 5)])
    keys = [key for key, _ in submitted]
    assert len(set(keys)) == len(keys) == 11
    assert sorted(key.rsplit("-", 1)[0] for key in keys) == sorted(
        [f"rechunk_stage_{stage}-{index}" for stage in range(2) for index in range(5)] + ["rechunk_stage_1-3"]
    )
    assert max(size for _, size in submitted) < 2000
    list(executor.map(length, [executor.put(bytes(3_000_000))] * 4))
    assert max(size for _, size in submitted) < 2000


def test_get_client_works_inside_a_task(client: Any) -> None:
    assert list(DaskExecutor(client).map(ask_the_cluster, [3, 4])) == [9, 16]


# Workers that die, leave, join.


def test_a_worker_that_is_killed_in_the_middle(client: Any, tmp_path: Path) -> None:
    executor = DaskExecutor(client)
    executor.task_function = recording = Recording(tmp_path, seconds=2.0)
    executor.run_on_workers(int)  # both are ready, and begin their first tasks together
    victim = workers_of(client)[0]

    def kill_one() -> None:
        wait_until(lambda: len(recording.tries()) >= 2)
        victim.kill()

    killer = threading.Thread(target=kill_one)
    killer.start()
    events: list[Event] = []
    report = executor.staged_copy([make_stage(0, 4)], on_event=events.append)
    killer.join()
    assert (report.tasks, report.retries) == (4, 1)
    assert ["left the cluster" in event.message for event in events if event.kind == "retry"] == [True]
    assert sorted(recording.tries().values()) == [1, 1, 1, 2]
    assert victim.pid not in {entry["pid"] for entry in recording.entries()}


def test_a_worker_that_dies_while_idle_costs_no_try(client: Any, tmp_path: Path) -> None:
    executor = DaskExecutor(client)
    executor.task_function = recording = Recording(tmp_path, seconds=0.02)
    executor.staged_copy([make_stage(0, 8)])
    before = set(client.nthreads())
    workers_of(client)[0].kill()
    wait_until(lambda: before - client.nthreads().keys())
    report = executor.staged_copy([make_stage(1, 8)])
    assert (report.tasks, report.retries) == (8, 0)
    assert set(recording.tries().values()) == {1}


def test_a_worker_that_joins_gets_tasks_and_one_that_is_retired_gets_none(tmp_path: Path) -> None:
    with running_cluster(1) as client:
        executor = DaskExecutor(client)
        assert shape_of(executor).workers == 1
        executor.task_function = AtOnceInTwo(tmp_path)
        client.cluster.scale(2)
        executor.staged_copy([make_stage(0, 6)])
        assert len(list(tmp_path.glob("*.pid"))) == 2
        executor.task_function = Recording(tmp_path)
        assert shape_of(executor).workers == 2
        client.cluster.scale(1)
        wait_until(lambda: len(client.nthreads()) == 1)
        assert executor.staged_copy([make_stage(1, 5)]).retries == 0


def test_a_cluster_that_goes_away_ends_the_job(tmp_path: Path) -> None:
    with running_in_this_process(2) as client:
        executor = DaskExecutor(client)
        executor.task_function = recording = Recording(tmp_path, seconds=0.5)

        def close() -> None:
            wait_until(lambda: len(recording.tries()) >= 2)
            client.cluster.close()

        closer = threading.Thread(target=close)
        closer.start()
        with pytest.raises(RechunkError, match="cluster") as caught:
            executor.staged_copy([make_stage(0, 100)])
        closer.join()
        assert not isinstance(caught.value, TaskError)


def test_a_cluster_without_workers_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rechunk_exec.executors.daskcluster._WAIT_S", 0.3)
    with running_cluster(0) as client, pytest.raises(RechunkError, match="must have workers"):
        DaskExecutor(client)


# Workers that will not do.


def stage_of(source: Path, target: Path, peak_bytes: int = 1) -> Stage:
    plan = make_stage(0, 2).plan
    return Stage(
        number=0, plan=_with(plan, peak_bytes), source=ArrayRef(store=str(source)), target=ArrayRef(store=str(target))
    )


def _with(plan: Any, peak_bytes: int) -> Any:
    import dataclasses

    return dataclasses.replace(plan, peak_bytes=peak_bytes)


def test_other_versions_of_zarr_are_told(client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = sight.versions()
    monkeypatch.setattr(sight, "versions", _Versions(ours, zarr="3.9.9"))
    executor = DaskExecutor(client)
    executor.task_function = Recording(tmp_path)
    notes = executor.staged_copy([make_stage(0, 1)]).notes
    assert len(notes) == 2
    assert all(f"zarr {ours['zarr']} there and 3.9.9 here" in note for note in notes)


def test_another_version_of_this_package_is_refused(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sight, "versions", _Versions(sight.versions(), rechunk_exec="9.9"))
    with pytest.raises(RechunkError, match=r"rechunk_exec .* there and 9\.9 here on worker tcp://.*install it"):
        DaskExecutor(client)


def test_workers_without_this_package_are_refused(tmp_path: Path) -> None:
    """Those of a scheduler and a worker started in an environment where it cannot be imported."""
    with running_cluster(1) as client:
        client.run(hide_the_package)
        with pytest.raises(RechunkError, match=r"ModuleNotFoundError|No module named|rechunk_exec"):
            DaskExecutor(client)


def test_paths_that_workers_do_not_see(client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executor = DaskExecutor(client)
    source = make_array(tmp_path / "source.zarr", (8, 12, 12), (1, 12, 12))
    job = rx.rechunk(source, (8, 3, 3), "1MB", tmp_path / "new" / "t.zarr", executor=executor, progress=False)
    executor.check_stages(job.stages)
    hidden = sight.Landmarks(paths=("/not/on/workers",), arrays=(ArrayRef(store="/not/there/either"),))
    monkeypatch.setattr(sight.Landmarks, "of", lambda stages: hidden)
    with pytest.raises(StorageError, match=r"worker tcp://.* does not see /not/on/workers") as caught:
        job.execute()
    assert "/not/there/either" in str(caught.value)
    assert not (tmp_path / "new").exists(), "nothing was written"


def test_landmarks_are_what_exists_here(tmp_path: Path) -> None:
    make_array(tmp_path / "source.zarr", (8, 12), (1, 12))
    landmarks = sight.Landmarks.of([stage_of(tmp_path / "source.zarr", tmp_path / "a" / "b" / "target.zarr")])
    assert landmarks == sight.Landmarks(paths=(str(tmp_path / "source.zarr"), str(tmp_path)), arrays=())
    assert sight.unseen(landmarks) == ()
    gone = sight.Landmarks(paths=(str(tmp_path / "gone"),), arrays=(ArrayRef(store=f"file://{tmp_path}/gone"),))
    assert len(sight.unseen(gone)) == 2


def test_stores_in_memory_are_refused(client: Any) -> None:
    import zarr

    plan = make_stage(0, 2).plan
    memory = ArrayRef(store=zarr.storage.MemoryStore())
    stage = Stage(number=0, plan=plan, source=ArrayRef(store="/nowhere"), target=memory)
    for executor in (DaskExecutor(client), DaskExecutor(workers=1)):
        with pytest.raises(StorageError, match="'dask' needs stores that its worker processes see too"):
            executor.check_stages([stage])


def test_the_memory_limit_of_workers_is_checked(tmp_path: Path) -> None:
    with running_in_this_process(memory_limit="1GB") as client:
        executor = DaskExecutor(client)
        executor.check_stages([stage_of(tmp_path, tmp_path, 100_000_000)])
        with pytest.raises(PlanError, match=r"\(2000000000 bytes\).*\(1000000000 bytes\) on worker tcp"):
            executor.check_stages([stage_of(tmp_path, tmp_path, 2_000_000_000)])
        with pytest.raises(PlanError, match=r"\(795000000 bytes\).*80% where dask pauses it"):
            executor.check_stages([stage_of(tmp_path, tmp_path, 795_000_000)])
    with running_in_this_process(memory_limit=None) as client:
        DaskExecutor(client).check_stages([stage_of(tmp_path, tmp_path, 10**15)])


def test_what_it_was_sent_is_forgotten_with_its_handle(client: Any) -> None:
    executor = DaskExecutor(client)
    handle = executor.put(bytes(1000))
    token = handle.token
    assert list(executor.map(length, [handle] * 6)) == [1000] * 6
    assert any(client.run(has_arrived, token).values())
    del handle
    assert list(executor.map(abs, range(-20, 0))) == list(range(20, 0, -1))
    assert not any(client.run(has_arrived, token).values())


def test_an_object_is_sent_again_to_a_worker_that_lost_it(client: Any) -> None:
    executor = DaskExecutor(client)
    handle = executor.put(bytes(1000))
    assert list(executor.map(length, [handle] * 6)) == [1000] * 6
    client.run(forget, handle.token)
    assert list(executor.map(length, [handle] * 6)) == [1000] * 6


def test_a_cluster_is_looked_at_now_and_then_only(client: Any) -> None:
    cluster = DaskCluster(client, size=1, cores=1)
    assert len(cluster.members) == 2
    cluster.members.clear()
    assert cluster.look(every_s=60) == []
    assert not cluster.members
    cluster.look()
    assert len(cluster.members) == 2


class _Versions:
    """Stands for :func:`sight.versions` here; workers, which unpickle it as the real one, give the real ones."""

    def __init__(self, real: dict[str, str], **changed: str) -> None:
        self.here = {**real, **changed}

    def __call__(self) -> dict[str, str]:
        return self.here

    def __reduce__(self) -> Any:
        return getattr, (sight, "versions")


def _keys(dask_scheduler: Any) -> list[str]:
    return list(dask_scheduler.tasks)
