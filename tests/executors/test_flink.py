"""On a real cluster of Flink, in the environment that has PyFlink (``.ci/flink``)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

import rechunk_exec as rx
from rechunk_exec.errors import MissingExtraError, PlanError, RechunkError, TaskError
from rechunk_exec.executors import FlinkExecutor, executor_named, resolve, worker_shape
from rechunk_exec.executors.sight import Landmarks
from rechunk_exec.results import Event
from tests.conftest import Needs
from tests.executors.flink_cluster import Cluster
from tests.executors.recording import ALWAYS, most_at_once
from tests.executors.workers import is_alive, wait_until
from tests.jobs import ToldCopy, assert_exact, assert_kept_promises, make_array

SHAPE = (32, 48, 24)
JOB_S = 300.0


@pytest.fixture
def cluster(flink: Cluster) -> Cluster:
    """Two task managers of two slots each."""
    return flink


@pytest.fixture
def source(tmp_path: Path) -> Any:
    return make_array(tmp_path / "source.zarr", SHAPE, (1, 48, 24))


@pytest.fixture
def told(tmp_path: Path) -> Path:
    folder = tmp_path / "told"
    folder.mkdir()
    return folder


Plan = Callable[..., rx.Rechunked]


@pytest.fixture
def plan(tmp_path: Path, source: Any) -> Plan:
    def plan(executor: object, **options: Any) -> rx.Rechunked:
        job = rx.rechunk(
            tmp_path / "source.zarr",
            (32, 4, 4),
            "20kB",
            tmp_path / "t.zarr",
            executor=executor,
            progress=False,
            **options,
        )
        assert len(job.stages) == 2
        assert min(map(len, job.stages)) >= 8 or options.get("mode") == "resume"
        return job

    return plan


def test_a_job_of_two_stages(cluster: Cluster, plan: Plan, source: Any, told: Path) -> None:
    executor = FlinkExecutor(cluster.address)
    shape = worker_shape(executor)
    assert (shape.workers, shape.tasks_per_worker, executor.tasks_per_worker, shape.elastic) == (4, 1, 1, False)
    executor = FlinkExecutor(cluster.address, workers=2)  # each job starts a Python process for each, of some seconds
    executor.task_function = copy = ToldCopy(told, fails={(0, 1): 2})
    job = plan(executor, verify=True)
    events: list[Event] = []
    threads: set[int] = set()

    def listen(event: Event) -> None:
        events.append(event)
        threads.add(threading.get_ident())

    target = job.execute(on_event=listen)
    assert_exact(target, source)
    assert threads == {threading.get_ident()}
    assert_kept_promises(job)
    assert job.report is not None
    total = sum(map(len, job.stages))
    assert (job.report.executor, job.report.tasks, job.report.retries) == ("flink", total, 2)
    assert {r.index for r in job.report.results if r.attempts == 3} == {1}
    assert [(r.stage, r.index) for r in job.report.results] == [(t.stage, t.index) for t in job.tasks()]
    assert events[0] == Event(kind="start", total=total)
    assert sorted((e.stage, e.index) for e in events if e.kind == "task") == [(t.stage, t.index) for t in job.tasks()]
    assert [(e.stage, e.index) for e in events if e.kind == "retry"] == [(0, 1), (0, 1)]
    entries = copy.told()
    assert len(entries) == total
    assert all(entry["ready"] for entry in entries), "metadata is there before data"
    first, second = ([entry for entry in entries if entry["stage"] == stage] for stage in (0, 1))
    assert max(entry["ended"] for entry in first) <= min(entry["began"] for entry in second)
    workers: dict[str, list[Any]] = {}
    for path, entry in zip(told.glob("*.json"), entries, strict=True):
        workers.setdefault(path.name.split("-")[2], []).append(entry)
    assert str(os.getpid()) not in workers
    assert 2 <= len(workers) <= 4, "a process a slot and job"
    assert {most_at_once(mine) for mine in workers.values()} == {1}


def test_a_task_that_always_fails_and_resuming(cluster: Cluster, plan: Plan, source: Any, told: Path) -> None:
    executor = executor_named(f"flink:{cluster.address}", 2)
    assert isinstance(executor, FlinkExecutor)
    executor.task_function = ToldCopy(told, fails={(1, 2): ALWAYS}, seconds=0.2)
    with pytest.raises(TaskError, match=r"task 2 of stage 1.*source|task 2 of stage 1.*temp") as caught:
        plan(executor).execute()
    assert (caught.value.stage, caught.value.index) == (1, 2)
    assert "InjectedError: injected into task 2 of stage 1" in str(caught.value.__cause__)
    assert (told / "1-2.tries").stat().st_size == 3, "neither we nor Flink try again"
    begun = {path.stem for path in told.glob("*.tries")}
    ended = {f"{entry['stage']}-{entry['index']}" for entry in ToldCopy(told).told()}
    assert begun - ended == {"1-2"}, "what ran has run to its end"
    (told / "resumed").mkdir()
    executor.task_function = again = ToldCopy(told / "resumed")
    job = plan(executor, mode="resume")
    assert_exact(job.execute(), source)
    assert job.report is not None
    rerun = {f"{entry['stage']}-{entry['index']}" for entry in again.told()}
    assert "1-2" in rerun
    assert not rerun & ended, "what was done is not run again"


def test_a_task_manager_that_is_killed(cluster: Cluster, plan: Plan, source: Any, told: Path) -> None:
    executor = FlinkExecutor(cluster.address, workers=2)
    executor.task_function = ToldCopy(told, seconds=0.5)
    killed: list[psutil.Process] = []
    orphans: list[psutil.Process] = []

    def kill_one(event: Event) -> None:
        if event.kind == "task" and event.stage == 0 and not killed:
            children = {one: one.children(recursive=True) for one in cluster.task_managers()}
            killed.append(max(children, key=lambda one: len(children[one])))  # both workers may be in one of them
            orphans.extend(children[killed[0]])
            killed[0].kill()

    job = plan(executor)
    try:
        assert_exact(job.execute(on_event=kill_one), source)
        assert killed
        assert job.report is not None
        assert job.report.retries, "it is told that tasks were begun again"
        assert_kept_promises(job)
        assert not list(Path(str(job.stages[1].target.store)).rglob("*.partial"))
        assert orphans, "its Python processes do not outlive it"
        wait_until(lambda: not any(map(is_alive, orphans)))
    finally:
        cluster.script("taskmanager.sh", "start")
        cluster.wait_for_slots(4)


@pytest.mark.long  # that a worker refuses is in test_flinkworker.py
def test_workers_that_do_not_see_the_arrays(
    cluster: Cluster, plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = Landmarks(paths=(str(tmp_path / "not-mounted"),), arrays=())
    monkeypatch.setattr(Landmarks, "of", lambda stages: elsewhere)
    with pytest.raises(RechunkError, match=r"StorageError: workers must see the arrays.*not-mounted"):
        plan(FlinkExecutor(cluster.address, workers=1)).execute()


def test_flink_run(cluster: Cluster, tmp_path: Path, source: Any) -> None:
    script = tmp_path / "job.py"
    script.write_text(
        textwrap.dedent(f"""
        import rechunk_exec as rx

        if __name__ == "__main__":
            job = rx.rechunk("{tmp_path}/source.zarr", (32, 4, 4), "20kB", "{tmp_path}/t.zarr", executor="flink")
            job.execute()
            shape = rx.executors.worker_shape(rx.executors.FlinkExecutor())
            print("RAN", job.report.tasks, len(job.stages), shape.workers, shape.tasks_per_worker)
        """)
    )
    run = subprocess.run(
        [cluster.home / "bin" / "flink", "run", "-p", "2", "-py", script],
        env=cluster.environment,
        capture_output=True,
        text=True,
        timeout=JOB_S,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    ran = next(line.split() for line in run.stdout.splitlines() if line.startswith("RAN"))
    assert ran[2:] == ["2", "2", "1"]
    import zarr

    assert_exact(zarr.open_array(tmp_path / "t.zarr"), source)
    done = [job["name"] for job in cluster.ask("jobs/overview")["jobs"] if str(tmp_path) in job["name"]]
    assert len(done) == 2, "it ran on this cluster, a job a stage"


_INTERRUPTED = """
import pathlib, sys
import rechunk_exec as rx
from rechunk_exec.executors import FlinkExecutor
from tests.jobs import ToldCopy

if __name__ == "__main__":
    folder = pathlib.Path(sys.argv[1])
    executor = FlinkExecutor(sys.argv[2], workers=2)
    executor.task_function = ToldCopy(folder / "told", seconds=600)
    job = rx.rechunk(folder / "source.zarr", (32, 4, 4), "20kB", folder / "t.zarr", executor=executor, progress=False)
    job.execute()
"""


def test_an_interrupt_ends_the_job_and_its_workers(cluster: Cluster, tmp_path: Path, source: Any, told: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(_INTERRUPTED)
    before = {process.pid for process in cluster.processes()}
    run = subprocess.Popen(
        [sys.executable, script, tmp_path, cluster.address],
        env=cluster.environment,
        start_new_session=True,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until(lambda: bool(list(told.glob("*.tries"))), timeout_s=JOB_S)
    os.killpg(run.pid, signal.SIGINT)
    _, errors = run.communicate(timeout=JOB_S)
    assert "KeyboardInterrupt" in errors
    assert "is unfinished" in errors
    wait_until(lambda: {process.pid for process in cluster.processes()} <= before)
    cluster.wait_for_slots(4)
    assert not list(told.glob("*.json"))


def test_a_cluster_on_this_machine(cluster: Cluster, plan: Plan, source: Any, told: Path) -> None:
    executor = FlinkExecutor(workers=2)
    assert (worker_shape(executor).workers, worker_shape(executor).tasks_per_worker) == (2, 1)
    executor.task_function = ToldCopy(told)
    assert_exact(plan(executor).execute(), source)
    pids = {path.name.split("-")[2] for path in told.glob("*.json")}
    assert str(os.getpid()) not in pids
    assert len(pids) >= 2


_GIVEN = """
import pathlib, sys
from pyflink.common import Configuration
from pyflink.datastream import StreamExecutionEnvironment
import rechunk_exec as rx
from rechunk_exec.executors import FlinkExecutor, worker_shape
from tests.jobs import ToldCopy

if __name__ == "__main__":
    folder = pathlib.Path(sys.argv[1])
    ports = Configuration.from_dict({"rest.port": "0", "rest.bind-port": "0", "parallelism.default": "2"})
    executor = FlinkExecutor(env=StreamExecutionEnvironment.get_execution_environment(ports))
    shape = worker_shape(executor)
    assert (shape.workers, shape.tasks_per_worker, executor.tasks_per_worker) == (1, 2, 2), "threads of this program"
    executor.task_function = ToldCopy(folder / "told")
    job = rx.rechunk(folder / "source.zarr", (32, 4, 4), "20kB", folder / "t.zarr", executor=executor, progress=False)
    job.execute()
"""


def test_a_session_that_is_given(cluster: Cluster, tmp_path: Path, source: Any, told: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(_GIVEN)  # apart: PyFlink's workers change what is of the whole process
    run = subprocess.Popen(
        [sys.executable, script, tmp_path], env=cluster.environment, stderr=subprocess.PIPE, text=True
    )
    _, errors = run.communicate(timeout=JOB_S)
    assert run.returncode == 0, errors
    import zarr

    assert_exact(zarr.open_array(tmp_path / "t.zarr"), source)
    assert {path.name.split("-")[2] for path in told.glob("*.json")} == {str(run.pid)}
    assert most_at_once(ToldCopy(told).told()) <= 2


def test_wrong_options_on_a_cluster(cluster: Cluster) -> None:
    with pytest.raises(PlanError, match="at most the slots of the cluster, 4"):
        FlinkExecutor(cluster.address, workers=5)
    assert worker_shape(executor_named(f"flink:{cluster.address}", 3)).workers == 3


@pytest.mark.parametrize(
    "options, error, message",
    [
        ({"address": 8081}, TypeError, "host:port"),
        ({"address": "http://127.0.0.1:8081"}, ValueError, "host:port"),
        ({"address": "localhost"}, ValueError, "host:port"),
        ({"address": "localhost:8081", "env": object()}, TypeError, "not both"),
        ({"env": 3}, TypeError, "StreamExecutionEnvironment"),
        ({"workers": 0}, ValueError, "workers"),
        ({"workers": "2"}, TypeError, "workers"),
        ({"slots": 2}, TypeError, "slots"),
    ],
)
def test_wrong_options(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        FlinkExecutor(**options)


def test_a_cluster_that_nobody_started(needs: Needs) -> None:
    needs("pyflink")
    with pytest.raises(RechunkError, match=r"must answer at its REST address; 127\.0\.0\.1:9 did not"):
        FlinkExecutor("127.0.0.1:9")


def test_without_pyflink(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "pyflink"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyflink", None)
    with pytest.raises(MissingExtraError, match=r"rechunk_exec\[flink\]"):
        resolve("flink")


def test_a_store_in_memory_is_refused(needs: Needs) -> None:
    needs("pyflink")
    import zarr

    store = zarr.storage.MemoryStore()
    make_array(store, (4, 4), (1, 4))
    with pytest.raises(RechunkError, match="'flink' needs stores that its worker processes see"):
        rx.rechunk(store, (4, 1), "1MB", zarr.storage.MemoryStore(), executor="flink", progress=False)
