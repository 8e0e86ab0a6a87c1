"""Beam as executor, on real runners: the local one in memory and with processes, Prism as a child and as a service."""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import zarr

import rechunk_exec as rx
from rechunk_exec.errors import MissingExtraError, PlanError, RechunkError, StorageError, TaskError
from rechunk_exec.executors import BeamExecutor, available_cores, beam, beamrun, beamtransform, executor_named, resolve
from rechunk_exec.executors import worker_shape as shape_of
from rechunk_exec.executors.rangework import RangeWork
from rechunk_exec.executors.sight import Landmarks
from rechunk_exec.results import OVERRUN_BYTES, Event
from rechunk_exec.storage import Journal
from rechunk_exec.tasks import CopyTask, Stage
from tests.conftest import is_required, needed_module
from tests.executors.beamrunners import ROOT, Make, in_memory, prism_binary, runner_named
from tests.executors.recording import make_stage, most_at_once
from tests.executors.workers import PATIENCE_S, await_end, environment, interrupted_when, wait_until
from tests.jobs import InjectedError, ToldCopy, assert_exact, assert_kept_promises, elements, make_array, snapshot
from tests.values import same_bits

pytestmark = [
    # Beam's own: it leaves the output of Prism, which it stops, to the collector of garbage.
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),
]

WAYS = ["memory", "processes", "prism", "service"]
IN_THIS_PROCESS = {"memory", "prism", "service"}
"""Where the workers are threads of the driver: the two of Prism by its LOOPBACK environment."""
ONE_PROCESS = ["--direct_num_workers=1"]
"""Instead of two, each of which imports Beam."""


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    needed_module("apache_beam")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # for worker processes


@pytest.fixture(scope="module", params=WAYS)
def way(request: pytest.FixtureRequest) -> Iterator[tuple[str, Make]]:
    needed_module("apache_beam")
    with runner_named(request.param) as make:
        yield request.param, make


def plan(tmp_path: Path, executor: object, **options: Any) -> rx.Rechunked:
    """A job of two stages, of several tasks each."""
    source = tmp_path / "source.zarr"
    if not source.exists():
        make_array(source, (24, 40, 40), (1, 40, 40))
    job = rx.rechunk(source, (24, 8, 8), "25kB", tmp_path / "target.zarr", executor=executor, progress=False, **options)
    assert len(job.stages) == 2
    return job


def told_by_process(told: ToldCopy) -> dict[int, list[dict[str, Any]]]:
    by_process: dict[int, list[dict[str, Any]]] = {}
    for path in told.folder.glob("*.json"):
        by_process.setdefault(int(path.stem.split("-")[2]), []).append(json.loads(path.read_text()))
    return by_process


def tries(told: ToldCopy, stage: int, index: int) -> int:
    return (told.folder / f"{stage}-{index}.tries").stat().st_size


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "told").mkdir()
    return tmp_path / "told"


# On each runner.


def test_a_job_of_two_stages(way: tuple[str, Make], tmp_path: Path, folder: Path) -> None:
    name, make = way
    executor = make()
    told = ToldCopy(folder, fails={(0, 3): 2, (1, 2): 1}, seconds=0.02)
    executor.task_function = told
    job = plan(tmp_path, executor)
    events: list[Event] = []
    assert_exact(job.execute(on_event=events.append), make_source(tmp_path))
    assert_kept_promises(job)
    assert job.report is not None

    tasks = sorted((task.stage, task.index) for task in job.tasks())
    assert sorted((entry["stage"], entry["index"]) for entry in told.told()) == tasks, "each task runs once"
    ends = [entry["ended"] for entry in told.told() if entry["stage"] == 0]
    begins = [entry["began"] for entry in told.told() if entry["stage"] == 1]
    assert max(ends) <= min(begins), "a task of stage 1 began before the last one of stage 0 had ended"
    assert all(entry["ready"] for entry in told.told()), "metadata come before data"

    assert {key: tries(told, *key) for key in tasks} == dict.fromkeys(tasks, 1) | {(0, 3): 3, (1, 2): 2}
    assert job.report.retries == 3
    assert {(r.stage, r.index): r.attempts for r in job.report.results if r.attempts > 1} == {(0, 3): 3, (1, 2): 2}

    assert events[0] == Event(kind="start", total=len(tasks))
    told_of = {kind: sorted((e.stage, e.index) for e in events if e.kind == kind) for kind in ("task", "retry")}
    assert told_of == {"task": tasks, "retry": [(0, 3), (0, 3), (1, 2)]}
    assert {event.result for event in events if event.kind == "task"} == set(job.report.results)

    by_process = told_by_process(told)
    assert all(most_at_once(entries) == 1 for entries in by_process.values()), "max_mem is for one task at once"
    assert (os.getpid() in by_process) == (name in IN_THIS_PROCESS)
    assert len(by_process) == (1 if name in IN_THIS_PROCESS else 2)


def make_source(tmp_path: Path) -> Any:
    return zarr.open_array(tmp_path / "source.zarr", mode="r")


# What others do with a task that fails is in test_contract_beam.py: Prism, in this program and as a service.
@pytest.mark.parametrize(
    "way",
    ["memory", *(pytest.param(name, marks=pytest.mark.long) for name in ("processes", "prism", "service"))],
    indirect=True,
)
def test_a_task_that_always_fails_and_the_job_goes_on_later(
    way: tuple[str, Make], tmp_path: Path, folder: Path
) -> None:
    name, make = way
    executor = make(*ONE_PROCESS) if name == "processes" else make()
    executor.task_function = told = ToldCopy(folder, fails={(0, 2): 1000}, seconds=0.01)
    job = plan(tmp_path, executor)
    with pytest.raises(TaskError, match=r"task 2 of stage 0.*InjectedError.*is unfinished") as caught:
        job.execute()
    assert (caught.value.stage, caught.value.index) == (0, 2)
    assert isinstance(caught.value.__cause__, InjectedError if name in IN_THIS_PROCESS else RechunkError)
    assert "injected into task 2 of stage 0" in str(caught.value.__cause__)
    assert tries(told, 0, 2) == 3
    assert not list(folder.glob("1-*")), "a task of stage 1 was begun"
    begun = {path.stem for path in folder.glob("*.tries")} - {"0-2"}
    assert {f"{entry['stage']}-{entry['index']}" for entry in told.told()} == begun, "a task was not waited for"
    status = rx.status(tmp_path / "target.zarr")
    assert [(failure.stage, failure.index) for failure in status.failed] == [(0, 2)]
    assert status.done == len(begun)

    again = plan(tmp_path, in_memory(), mode="resume")  # how it was begun does not matter
    assert_exact(again.execute(), make_source(tmp_path))
    assert again.report is not None
    assert again.report.tasks == again.plan.tasks - len(begun), "what was done is not done again"
    assert rx.status(tmp_path / "target.zarr").failed == ()


# The local runner, and the pieces.


def test_stages_without_tasks_and_stages_again(tmp_path: Path) -> None:
    job = plan(tmp_path, "serial")
    target = job.execute()
    documents = snapshot(tmp_path / "target.zarr" / ".rechunk_exec")
    last = dataclasses.replace(job.stages[1], source=job.stages[0].source, number=0)
    some, none = dataclasses.replace(last, left=((1, 3), (20, 21))), dataclasses.replace(last, number=1, left=())
    target[...] = 0
    report = in_memory().staged_copy([some, none])
    assert [(result.stage, result.index) for result in report.results] == [(0, 1), (0, 2), (0, 20)]
    source = make_source(tmp_path)
    wanted = np.zeros(source.shape, source.dtype)
    for index in (1, 2, 20):
        box = tuple(map(slice, *last.box(index)))
        wanted[box] = elements(source)[box]
    assert same_bits(elements(target), wanted), "the tasks that are left, and no others, have run"
    assert in_memory().staged_copy([last]).tasks == len(last), "those too that have run"
    assert_exact(target, source)
    assert snapshot(tmp_path / "target.zarr" / ".rechunk_exec").keys() == documents.keys(), (
        "results are gone in the end"
    )


def test_nothing_to_do_starts_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(BeamExecutor, "_run", lambda *_: pytest.fail("a pipeline was made"))
    events: list[Event] = []
    job = plan(tmp_path, "serial")
    empty = dataclasses.replace(job.stages[0], left=())
    assert in_memory().staged_copy([], on_event=events.append).results == ()
    assert in_memory().staged_copy([empty], on_event=events.append).results == ()
    assert events == [Event(kind="start", total=0)] * 2


def test_what_cannot_get_better_is_not_tried_again(tmp_path: Path, folder: Path) -> None:
    executor = in_memory()
    executor.task_function = Full(folder)
    with pytest.raises(TaskError, match="is not tried again: StorageError: no room") as caught:
        plan(tmp_path, executor).execute()
    assert isinstance(caught.value.__cause__, StorageError)
    assert len(list(folder.iterdir())) == 1


@dataclasses.dataclass(frozen=True)
class Full:
    folder: Path

    def __call__(self, task: CopyTask) -> Any:
        (self.folder / f"{time.monotonic_ns()}").touch()
        raise StorageError("no room", permanent=True)


def test_a_failure_of_the_runner_itself(tmp_path: Path) -> None:
    executor = BeamExecutor("PortableRunner", ["--job_endpoint=localhost:9", "--job_server_timeout=1"])
    with pytest.raises(RechunkError, match=r"PortableRunner failed with .*of stage 0: 0 to") as caught:
        plan(tmp_path, executor).execute()
    assert not isinstance(caught.value, TaskError)
    assert caught.value.__cause__ is not None


def test_a_failure_stops_other_ranges_and_no_new_run(tmp_path: Path, folder: Path) -> None:
    executor = in_memory()
    executor.task_function = ToldCopy(folder, fails={(0, 0): 3})
    job = plan(tmp_path, executor)
    with pytest.raises(TaskError):
        job.execute()
    (tmp_path / "elsewhere").mkdir()
    told = ToldCopy(tmp_path / "elsewhere")
    work = RangeWork(stage=job.stages[0], run="another process", landmarks=Landmarks.of([]), function=told)
    ran = work(0, len(job.stages[0]))
    assert ran.failed
    assert ran.results == ()
    assert told.told() == []
    assert executor.staged_copy(job.stages).tasks == job.plan.tasks


def test_a_stage_of_14_million_tasks_sends_little() -> None:
    apache_beam: Any = needed_module("apache_beam")
    pickler: Any = needed_module("apache_beam.internal.pickler")
    stage = make_stage(0, 14_000_000)
    ranges = list(beamtransform._Split(len(stage), counted=False).ranges(0))
    assert len(ranges) <= 4096
    assert [first for first, _ in ranges[1:]] == [stop for _, stop in ranges[:-1]]
    assert (ranges[0][0], ranges[-1][1]) == (0, 14_000_000)
    coder = apache_beam.coders.registry.get_coder(beamtransform.Range)
    assert max(len(coder.encode(numbers)) for numbers in ranges) < 64
    few = beamtransform._Copy(RangeWork(stage=make_stage(0, 1), run="run", landmarks=Landmarks.of([])))
    many = beamtransform._Copy(RangeWork(stage=stage, run="run", landmarks=Landmarks.of([])))
    assert abs(len(pickler.dumps(many)) - len(pickler.dumps(few))) < 100
    assert len(pickler.dumps(many)) < 8000


def test_no_element_is_large_in_a_pipeline_that_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that passes between transforms, as the runner's own coders write it."""
    execution = needed_module("apache_beam.runners.portability.fn_api_runner.execution")
    sizes: dict[str, list[int]] = {"ListBuffer": [], "GroupingBuffer": []}

    def measured(buffer: str) -> Callable[[Any, bytes], None]:
        append = getattr(execution, buffer).append

        def measure(self: Any, elements: bytes) -> None:
            sizes[buffer].append(len(elements))
            append(self, elements)

        return measure

    for buffer in sizes:
        monkeypatch.setattr(getattr(execution, buffer), "append", measured(buffer))
    job = plan(tmp_path, in_memory())
    job.execute()
    assert all(sizes.values()), "nothing was measured"
    assert max(map(sum, sizes.values())) < 100 * job.plan.tasks, "all elements together are a few bytes a task"


def test_labels_are_the_same_each_time() -> None:
    assert labels() == labels()
    assert "Rechunk/Copy stage 1" in labels()


def labels() -> list[str]:
    apache_beam: Any = needed_module("apache_beam")
    pipeline = apache_beam.Pipeline(options=apache_beam.options.pipeline_options.PipelineOptions([]))
    _ = pipeline | "Rechunk" >> beam.StagedCopy([make_stage(0, 5), make_stage(1, 3)])
    return sorted(node.unique_name for node in pipeline.to_runner_api().components.transforms.values())


def test_in_a_pipeline_of_ones_own(tmp_path: Path) -> None:
    apache_beam: Any = needed_module("apache_beam")
    options: Any = needed_module("apache_beam.options.pipeline_options")
    seen = tmp_path / "seen"
    metrics: list[Any] = []

    def in_my_pipeline(stages: Sequence[Stage]) -> None:
        pipeline = apache_beam.Pipeline(runner=beamrun._LOCAL_RUNNER, options=options.PipelineOptions([]))
        before = pipeline | apache_beam.Create([1, 2]) | apache_beam.Map(Witness(seen, "before").see)
        copied = before | "copy" >> beam.StagedCopy(stages)
        _ = copied | "after" >> apache_beam.Map(Witness(seen, "after").see)
        result = pipeline.run()
        result.wait_until_finish()
        metrics.append(result.metrics().query())

    seen.mkdir()
    job = plan(tmp_path, in_my_pipeline)
    assert_exact(job.execute(), make_source(tmp_path))
    times = {path.name.rpartition("-")[0]: int(path.name.rpartition("-")[2]) for path in seen.iterdir()}
    assert times.keys() == {"before-1", "before-2", f"after-{job.plan.tasks}"}
    first = min(path.stat().st_mtime_ns for path in (tmp_path / "target.zarr" / "c").rglob("*"))
    last = max(path.stat().st_mtime_ns for path in (tmp_path / "target.zarr" / "c").rglob("*"))
    assert max(times["before-1"], times["before-2"]) < first
    assert last < times[f"after-{job.plan.tasks}"]
    counters: Counter[str] = Counter()  # Beam has one for each stage
    for counter in metrics[0]["counters"]:
        counters[counter.key.metric.name] += counter.committed
    assert job.report is not None
    assert counters["tasks"] == job.plan.tasks
    assert counters["bytes_written"] == job.report.bytes_written
    assert counters["bytes_read"] == job.report.bytes_read
    spread = [(one.key.metric.name, one.committed) for one in metrics[0]["distributions"]]
    assert sum(one.sum for name, one in spread if name == "task_bytes") == job.report.bytes_written
    assert sum(one.count for name, one in spread if name == "task_ms") == job.plan.tasks


@dataclasses.dataclass(frozen=True)
class Witness:
    folder: Path
    name: str

    def see(self, element: int) -> int:
        (self.folder / f"{self.name}-{element}-{time.time_ns()}").touch()
        return element


def test_a_failed_task_fails_a_pipeline_of_ones_own(tmp_path: Path, folder: Path) -> None:
    apache_beam: Any = needed_module("apache_beam")

    def in_my_pipeline(stages: Sequence[Stage]) -> None:
        options = apache_beam.options.pipeline_options.PipelineOptions([])
        with apache_beam.Pipeline(runner=beamrun._LOCAL_RUNNER, options=options) as pipeline:
            _ = pipeline | beam.StagedCopy(stages, task_function=ToldCopy(folder, fails={(0, 1): 99}))

    with pytest.raises(RechunkError, match="all tasks must be done; one failed") as caught:
        plan(tmp_path, in_my_pipeline).execute()
    assert not isinstance(caught.value, TaskError)


def test_workers_that_cannot_work_here(tmp_path: Path) -> None:
    job = plan(tmp_path, print)  # a function: its stages have a journal
    work = RangeWork(stage=job.stages[0], run="blind", landmarks=Landmarks(paths=("/nowhere/else",), arrays=()))
    with pytest.raises(StorageError, match="/nowhere/else: it does not exist there"):
        work(0, 1)
    with pytest.raises(RechunkError, match="same version of rechunk_exec"):
        dataclasses.replace(work, run="old", versions=work.versions | {"rechunk_exec": "0.0.1"})(0, 1)
    assert pickle.loads(pickle.dumps(work)) == work


def test_a_failure_that_cannot_be_noted_is_raised(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = plan(tmp_path, print)
    work = RangeWork(
        stage=job.stages[0], run="r", landmarks=Landmarks.of([]), function=ToldCopy(folder, fails={(0, 0): 99})
    )

    def full(*_: object) -> None:
        raise StorageError("no room", permanent=True)

    monkeypatch.setattr(Journal, "add_failure", full)
    with pytest.raises(TaskError, match="injected into task 0 of stage 0"):
        work(0, 1)


# What it is made from.


@pytest.mark.parametrize(
    "arguments, options, error, message",
    [
        ((3,), {}, TypeError, "runner must be"),
        ((BeamExecutor,), {}, TypeError, "runner must be"),
        ((), {"options": "--streaming"}, TypeError, "options must be"),
        ((), {"options": [1]}, TypeError, "options must be"),
        ((), {"options": 3}, TypeError, "options must be"),
        ((), {"workers": 2}, TypeError, "workers"),
        ((), {"tasks_per_worker": 0}, ValueError, "tasks_per_worker"),
        ((), {"cores_per_worker": "2"}, TypeError, "cores_per_worker"),
    ],
)
def test_wrong_options(
    arguments: tuple[Any, ...], options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        BeamExecutor(*arguments, **options)


def test_shapes_and_options(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = shape_of(in_memory())
    assert (shape.workers, shape.tasks_per_worker, shape.cores_per_worker) == (1, 1, available_cores())
    assert shape.elastic
    processes = {"direct_running_mode": "multi_processing", "direct_num_workers": 2}
    for options in (processes, [f"--{name}={value}" for name, value in processes.items()]):
        shape = shape_of(BeamExecutor(options=options))
        assert (shape.workers, shape.cores_per_worker) == (2, max(1, available_cores() // 2))
    shape = shape_of(BeamExecutor("PrismRunner", tasks_per_worker=3, cores_per_worker=5))
    assert (shape.tasks_per_worker, shape.cores_per_worker) == (3, 5)
    options_of: Any = needed_module("apache_beam.options.pipeline_options")
    monkeypatch.setattr(sys, "argv", ["program", "--runner=PrismRunner"])  # of the program, not of Beam
    assert BeamExecutor()._runner.runner == beamrun._LOCAL_RUNNER
    assert BeamExecutor(options=options_of.PipelineOptions(["--runner=PrismRunner"]))._runner.runner == "PrismRunner"
    assert BeamExecutor("DirectRunner")._runner.runner == beamrun._LOCAL_RUNNER


def test_names(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(resolve("beam"), BeamExecutor)
    with pytest.raises(PlanError, match="direct_num_workers"):
        executor_named("beam", 2)
    with pytest.raises(AttributeError, match="no attribute"):
        _ = beam.Nothing
    monkeypatch.setitem(sys.modules, "apache_beam", None)
    with pytest.raises(MissingExtraError, match=re.escape("rechunk_exec[beam]")):
        resolve("beam")


def test_stores_that_workers_do_not_see_are_refused(tmp_path: Path) -> None:
    source = zarr.create_array(zarr.storage.MemoryStore(), shape=(4,), chunks=(1,), dtype="f4")
    with pytest.raises(StorageError, match="in this process's memory"):
        rx.rechunk(source, (4,), "1MB", tmp_path / "target.zarr", executor=in_memory(), progress=False)
    with pytest.raises(TypeError, match="sequence of Stage"):
        beam.StagedCopy([3])


# Memory, time and what is left.


@pytest.mark.memory
def test_no_array_passes_through_the_runner(tmp_path: Path) -> None:
    """Beam's local runner holds in memory all that passes through it."""
    run = subprocess.run(
        [sys.executable, __file__, "memory", tmp_path], env=environment(), check=False, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    measured = json.loads(run.stdout.splitlines()[-1])
    assert measured["stages"] == 2
    assert measured["nbytes"] == 102_400_000
    assert measured["grown"] < measured["max_mem"] + OVERRUN_BYTES


def run_in_memory(folder: Path) -> dict[str, int]:
    """Run a job in this process, a fresh one, and measure by how much it grows."""
    executor = in_memory()
    make_array(folder / "tiny.zarr", (8, 8), (1, 8))
    rx.rechunk(folder / "tiny.zarr", (8, 1), "1MB", folder / "tiny-target.zarr", executor=executor).execute()
    source = make_array(folder / "source.zarr", (1600, 200, 40), (10, 200, 40), "f8")
    job = rx.rechunk(source, (1600, 10, 10), 12_000_000, folder / "target.zarr", executor=executor, progress=False)
    idle = memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    target = job.execute()
    grown = memory("VmHWM") - idle
    assert_exact(target, source)
    return {"grown": grown, "nbytes": source.nbytes, "stages": len(job.stages), "max_mem": job.plan.max_mem}


def memory(name: str) -> int:
    """A figure of this process's memory, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def test_a_job_that_outlasts_the_job_servers_time_limit(tmp_path: Path, folder: Path) -> None:
    with runner_named("service") as make:
        executor = make("--job_server_timeout=2")
        executor.task_function = ToldCopy(folder, seconds=0.1)
        job = plan(tmp_path, executor)
        assert job.plan.tasks * 0.1 > 3, "it lasts longer than the limit"
        assert_exact(job.execute(), make_source(tmp_path))


def flink_master(where: str) -> str:
    """What ``--flink_master`` takes: a cluster inside the job server, or one that somebody has started."""
    if where == "embedded":
        return "[local]"
    address = os.environ.get("RECHUNK_EXEC_FLINK_MASTER")
    if not address:
        if is_required("flink_master"):
            pytest.fail("RECHUNK_EXEC_REQUIRE asks for flink_master; RECHUNK_EXEC_FLINK_MASTER must be its HOST:PORT")
        pytest.skip("RECHUNK_EXEC_FLINK_MASTER does not name a cluster of Flink")
    return address


def flink_job_server() -> list[str]:
    """The option that names Beam's job server; none where Beam is to fetch it."""
    jar = os.environ.get("RECHUNK_EXEC_FLINK_JAR")
    if not jar:
        if is_required("flink_jar"):
            pytest.fail("RECHUNK_EXEC_REQUIRE asks for flink_jar; RECHUNK_EXEC_FLINK_JAR must name Beam's job server")
        pytest.skip("RECHUNK_EXEC_FLINK_JAR does not name Beam's job server for Flink, nor has it fetched")
    return [] if jar == "fetch" else [f"--flink_job_server_jar={jar}"]


@pytest.mark.parametrize("where", ["embedded", "cluster"])
def test_flink(where: str, tmp_path: Path) -> None:
    """Beam's own FlinkRunner. It needs a file that is on no package index, and Beam fetches where it may."""
    options = [*flink_job_server(), f"--flink_master={flink_master(where)}"]
    executor = BeamExecutor("FlinkRunner", [*options, "--environment_type=LOOPBACK", "--parallelism=2"])
    job = plan(tmp_path, executor)
    assert_exact(job.execute(), make_source(tmp_path))
    assert_kept_promises(job)


# Beam stops the Prism that it started on an interrupt, at which its own threads die with a traceback each.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_interrupt_of_a_program_that_goes_on(tmp_path: Path, folder: Path) -> None:
    with runner_named("prism") as make:
        executor = make()
        executor.task_function = told = ToldCopy(folder, seconds=0.3)
        job = plan(tmp_path, executor)
        handler = signal.getsignal(signal.SIGINT)
        with interrupted_when(lambda: len(list(folder.glob("*.json"))) >= 2):
            job.execute()
        begun = sorted(path.stem for path in folder.glob("*.tries"))
        assert sorted(f"{entry['stage']}-{entry['index']}" for entry in told.told()) == begun, "one still runs"
        time.sleep(1)
        assert sorted(path.stem for path in folder.glob("*.tries")) == begun, "one was begun after the interrupt"
        assert signal.getsignal(signal.SIGINT) is handler
        again = plan(tmp_path, make(), mode="resume")
        assert_exact(again.execute(), make_source(tmp_path))
        assert again.report is not None
        assert again.report.tasks < again.plan.tasks


def test_a_listener_that_raises_ends_the_pipeline(tmp_path: Path, folder: Path) -> None:
    def listen(event: Event) -> None:
        if event.kind == "task":
            raise LookupError("listener")

    with runner_named("prism") as make:
        executor = make()
        executor.task_function = ToldCopy(folder, seconds=0.2)
        job = plan(tmp_path, executor)
        with pytest.raises(LookupError, match="listener"):
            job.execute(on_event=listen)
        assert len(list(folder.glob("*.tries"))) < job.plan.tasks


# The runner in memory has no processes, and its threads are as those of Prism, to which this program is the worker.
@pytest.mark.parametrize("name", [pytest.param("memory", marks=pytest.mark.long), "processes", "prism"])
def test_an_interrupt_at_the_terminal_leaves_no_process(tmp_path: Path, folder: Path, name: str) -> None:
    if name == "prism":
        prism_binary()
    plan(tmp_path, "serial")  # which makes the source
    with (tmp_path / "log").open("w") as log:
        run = subprocess.Popen(
            [sys.executable, __file__, name, tmp_path], env=environment(), start_new_session=True, stderr=log
        )
        try:
            wait_until(lambda: len(list(folder.glob("*.json"))) >= 2)
            wait_until(lambda: noted(tmp_path) >= 2)  # which is later than that they are done
            family = [psutil.Process(run.pid), *psutil.Process(run.pid).children(recursive=True)]
            assert len(family) >= {"memory": 1, "processes": 2, "prism": 2}[name]
            os.killpg(run.pid, signal.SIGINT)
            assert run.wait(PATIENCE_S) != 0
            await_end(family)
        finally:
            for child in psutil.Process(run.pid).children(recursive=True) if run.poll() is None else ():
                child.kill()
            run.kill()
            run.wait()
    assert "KeyboardInterrupt" in (tmp_path / "log").read_text()
    status = rx.status(tmp_path / "target.zarr")
    assert status.state == "unfinished"
    assert 2 <= status.done < status.total


def noted(tmp_path: Path) -> int:
    """How many tasks are on record as done."""
    try:
        return rx.status(tmp_path / "target.zarr").done
    except StorageError:  # the job has not begun
        return 0


def run_slowly(name: str, folder: Path) -> None:
    with runner_named(name) as make:
        executor = make(*ONE_PROCESS) if name == "processes" else make()
        executor.task_function = ToldCopy(folder / "told", seconds=0.3)
        plan(folder, executor).execute()


if __name__ == "__main__":
    if sys.argv[1] == "memory" and not (Path(sys.argv[2]) / "told").exists():
        print(json.dumps(run_in_memory(Path(sys.argv[2]))))
    else:
        run_slowly(sys.argv[1], Path(sys.argv[2]))
