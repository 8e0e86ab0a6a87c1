from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import zarr

import rechunk_exec as rx
from rechunk_exec.batch import INDEX_VARIABLES, JobsFile, running
from rechunk_exec.batch.finishing import format_indices
from rechunk_exec.errors import (
    NotReadyError,
    PlanError,
    ResumeError,
    SerializationError,
    StorageError,
    TargetExistsError,
    TaskError,
)
from rechunk_exec.results import TaskResult
from rechunk_exec.storage import Journal, identity, read_job
from rechunk_exec.tasks import ArrayRef, CopyTask
from tests.jobs import InjectedError, Shape, ZarrArray, assert_exact, die_with_a_claim, make_array, snapshot
from tests.s3 import SECRET, Bucket

ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def _no_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in INDEX_VARIABLES:
        monkeypatch.delenv(name, raising=False)


@dataclass(frozen=True)
class Batch:
    """A job whose lines were written."""

    source: ZarrArray
    target: Path
    jobs: Path
    tasks: tuple[int, ...]
    """Of each stage."""

    @property
    def lines(self) -> list[str]:
        return self.jobs.read_text().splitlines()

    def edit(self, number: int, old: str, new: str) -> None:
        """Replace a text in a line, whatever that does to its length."""
        lines = self.lines
        assert old in lines[number]
        lines[number] = lines[number].replace(old, new, 1)
        self.jobs.write_text("\n".join(lines) + "\n")

    def run_all(self) -> None:
        for stage, count in enumerate(self.tasks):
            rx.run_job(self.jobs, range(count), stage=stage)

    def assert_ended(self) -> None:
        """Fail unless the target is exact and finished, and nothing else is left."""
        assert_exact(zarr.open_array(self.target, mode="r"), self.source)
        assert rx.status(self.target).state == "finished"
        assert {path.name for path in self.target.parent.iterdir()} == {"source.zarr", "target.zarr", self.jobs.name}
        partial = [path for path in self.target.rglob("*") if path.name.endswith(".partial")]
        assert not partial


def begin(folder: Path, shape: Shape, source_chunks: Shape, chunks: Shape, max_mem: int | str, **options: Any) -> Batch:
    folder.mkdir(exist_ok=True)
    source = make_array(folder / "source.zarr", shape, source_chunks, "f8")
    job = rx.rechunk(source, chunks, max_mem, folder / "target.zarr", executor="serial", progress=False, **options)
    jobs = folder / "jobs.jsonl"
    assert job.write_jobs(jobs) == job.plan.tasks == len(JobsFile(jobs))
    return Batch(source, folder / "target.zarr", jobs, tuple(stage.tasks for stage in job.plan.stages))


def begin_two_stages(folder: Path, **options: Any) -> Batch:
    batch = begin(folder, (30, 20), (1, 20), (30, 1), 1800, **options)
    assert len(batch.tasks) == 2
    assert min(batch.tasks) > 3
    return batch


def begin_one_stage(folder: Path, **options: Any) -> Batch:
    batch = begin(folder, (30, 20), (5, 4), (30, 4), 3100, **options)
    assert len(batch.tasks) == 1
    assert batch.tasks[0] > 3
    return batch


LAYOUTS: dict[str, Callable[[Path], Batch]] = {
    "one stage, ragged": lambda folder: begin(folder, (23, 17), (2, 17), (23, 3), "2500B"),
    "one stage, shards": lambda folder: begin(folder, (24, 21), (1, 21), (24, 2), "3kB", target_shards=(24, 4)),
    "two stages, ragged": lambda folder: begin(folder, (31, 19), (2, 19), (31, 1), "1500B", verify=True),
}

_WORKER = """
import sys
import rechunk_exec as rx
for jobs, number in zip(sys.argv[1::2], sys.argv[2::2]):
    rx.run_job(jobs, int(number))
"""


def in_processes(lines: Sequence[tuple[Path, int]], processes: int) -> None:
    """Run lines of files of jobs in processes of their own, as many at once, each with every so many-th line."""
    commands = [
        [sys.executable, "-c", _WORKER, *(str(word) for line in lines[first::processes] for word in line)]
        for first in range(processes)
    ]
    running_now = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT) for command in commands]
    ends = [(process.communicate(timeout=180)[1], process.returncode) for process in running_now]
    assert [code for _, code in ends] == [0] * processes, ends


def test_any_order_some_twice_two_at_once_in_processes_of_their_own(tmp_path: Path) -> None:
    batches = {layout: begin_it(tmp_path / layout) for layout, begin_it in LAYOUTS.items()}
    for stage in range(2):
        lines: list[tuple[Path, int]] = []
        for layout, batch in batches.items():
            chance = random.Random(f"{layout} {stage}")
            before = sum(batch.tasks[:stage])
            numbers = list(range(before, sum(batch.tasks[: stage + 1])))
            chance.shuffle(numbers)
            # Some twice in a row, so that both processes run the same line at the same time; some once more at the end.
            twice = set(chance.sample(numbers, -(-len(numbers) // 10)))
            order = [number for one in numbers for number in ([one, one] if one in twice else [one])]
            order += chance.sample(numbers, -(-len(numbers) // 10))
            lines += [(batch.jobs, number) for number in order]
        in_processes(lines, 2)
    for layout, batch in batches.items():
        assert rx.failed_jobs(batch.jobs) == (), layout
        status, tasks = rx.status(batch.target), sum(batch.tasks)
        assert (status.state, status.done, status.total) == ("unfinished", tasks, tasks), layout
        assert rx.finalize_jobs(batch.jobs).state == "finished"
        batch.assert_ended()


def test_two_at_once_of_each_line(tmp_path: Path) -> None:
    batch = begin_two_stages(tmp_path)
    with ThreadPoolExecutor(2) as pool:
        for stage, count in enumerate(batch.tasks):
            twice = [number for number in range(count) for _ in range(2)]
            list(pool.map(lambda number, stage=stage: rx.run_job(batch.jobs, number, stage=stage), twice))
    rx.finalize_jobs(batch.jobs)
    batch.assert_ended()


def test_a_line_is_a_task_that_stands_alone(tmp_path: Path) -> None:
    batch = begin_two_stages(tmp_path)
    lines = batch.lines
    assert len({len(line) for line in lines}) == 1
    tasks = [CopyTask.from_json(line) for line in lines]
    assert [(task.stage, task.index) for task in tasks] == [
        (stage, index) for stage, count in enumerate(batch.tasks) for index in range(count)
    ]
    assert {str(task.journal) for task in tasks} == {str(batch.target)}
    assert str(tasks[0].source) == str(tmp_path / "source.zarr")
    assert str(tasks[-1].target) == str(batch.target)


def test_a_later_stage_is_refused_and_nothing_is_written_until_the_one_before_is_done(tmp_path: Path) -> None:
    batch = begin_two_stages(tmp_path)
    first, second = batch.tasks
    for missing in (0, 1, first - 1):  # the first and last, which are looked at, and one that is not
        numbers = [number for number in range(first) if number != missing]
        for number in numbers:
            rx.run_job(batch.jobs, number)
        before = snapshot(tmp_path)
        for number in (first, first + second - 1):
            with pytest.raises(NotReadyError, match="stage 1 begins when all lines of stage 0 are done"):
                rx.run_job(batch.jobs, number)
        assert snapshot(tmp_path) == before
        for path in (batch.target / ".rechunk_exec").glob("*/done/*"):
            path.unlink()
    rx.run_job(batch.jobs, range(first))
    rx.run_job(batch.jobs, 0, stage=1)


def test_an_empty_result_of_a_power_cut_counts_for_nothing(tmp_path: Path) -> None:
    batch = begin_two_stages(tmp_path)
    for number in range(batch.tasks[0]):
        rx.run_job(batch.jobs, number)
    (path,) = (batch.target / ".rechunk_exec").glob("*/done/0-0-1.json")
    path.write_bytes(b"")
    with pytest.raises(NotReadyError):
        rx.run_job(batch.jobs, 0, stage=1)
    assert rx.failed_jobs(batch.jobs) == (1,)


def results_of(batch: Batch) -> list[str]:
    """The names of the documents of results."""
    return sorted(path.stem for path in (batch.target / ".rechunk_exec").glob("*/done/*"))


def hold(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Have results held so long: for ever, or, below 0, not at all, as versions before wrote one document a line."""
    monkeypatch.setattr(running, "HOLD_S", seconds)


def test_results_of_quick_lines_are_written_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A million lines left a million documents.
    hold(monkeypatch, 1000)
    batch = begin_two_stages(tmp_path)
    first, second = batch.tasks
    rx.run_job(batch.jobs, range(10_000))
    assert results_of(batch) == [f"0-0-0-{first}", f"0-1-0-{second}"]
    assert rx.failed_jobs(batch.jobs) == ()
    assert rx.status(batch.target).done == first + second
    rx.finalize_jobs(batch.jobs)
    batch.assert_ended()


def test_results_of_slow_lines_are_written_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hold(monkeypatch, -1)
    batch = begin_one_stage(tmp_path)
    seen = []
    run = rx.run_task

    def looking(task: CopyTask) -> TaskResult:
        seen.append(len(results_of(batch)))
        return run(task)

    monkeypatch.setattr(running, "run_task", looking)
    rx.run_job(batch.jobs, range(4))
    assert seen == [0, 1, 2, 3]
    assert results_of(batch) == [f"0-0-{index}" for index in range(4)]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(143), InjectedError("no")])
def test_what_is_held_is_written_when_a_run_ends_early(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold(monkeypatch, 1000)
    batch = begin_one_stage(tmp_path)
    run = rx.run_task

    def failing(task: CopyTask) -> TaskResult:
        if task.index == 2:
            raise error
        return run(task)

    monkeypatch.setattr(running, "run_task", failing)
    with pytest.raises((type(error), TaskError)):
        rx.run_job(batch.jobs, range(4))
    ran_on = isinstance(error, Exception)
    assert results_of(batch) == (["0-0-0-2", "0-0-3"] if ran_on else ["0-0-0-2"])
    assert rx.failed_jobs(batch.jobs)[:1] == (2,)


def test_results_are_not_lost_to_an_interrupt_while_they_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold(monkeypatch, 1000)
    batch = begin_one_stage(tmp_path)
    add, interrupts = Journal.add, [KeyboardInterrupt()]

    def interrupted(self: Journal, *words: Any, **options: Any) -> None:
        if interrupts:
            raise interrupts.pop()
        add(self, *words, **options)

    monkeypatch.setattr(Journal, "add", interrupted)
    with pytest.raises(KeyboardInterrupt):
        rx.run_job(batch.jobs, range(3))
    assert results_of(batch) == ["0-0-0-3"]


def test_lines_whose_results_cannot_be_written_have_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hold(monkeypatch, 1000)
    batch = begin_one_stage(tmp_path)

    def full(*words: Any, **options: Any) -> None:
        raise StorageError("No space left")

    with monkeypatch.context() as patches:
        patches.setattr(Journal, "add", full)
        with pytest.raises(TaskError, match=r"No space left.*2 of 2 lines failed"):
            rx.run_job(batch.jobs, range(2))
    assert [(one.index, one.message) for one in rx.status(batch.target).failed] == [
        (0, "StorageError: No space left"),
        (1, "StorageError: No space left"),
    ]
    rx.run_job(batch.jobs, range(2))
    assert rx.status(batch.target).failed == ()


@pytest.mark.parametrize("way", ["alone", "together", "overlapping", "merged", "resumed"])
def test_a_stage_is_done_when_all_its_lines_are_however_their_results_are_stored(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold(monkeypatch, -1 if way in ("alone", "merged") else 1000)
    batch = begin_two_stages(tmp_path)
    first, _ = batch.tasks
    rx.run_job(batch.jobs, range(first - 1))
    if way == "overlapping":
        rx.run_job(batch.jobs, range(1, first - 1))
        rx.run_job(batch.jobs, range(first - 2))
    if way == "merged":  # by an end that came too early
        monkeypatch.setattr("rechunk_exec.storage.journal.MERGED_AT_ONCE", 2)
        with pytest.raises(NotReadyError):
            rx.finalize_jobs(batch.jobs)
        assert results_of(batch) == [f"1-0-0-{first - 1}"]
    if way == "resumed":
        assert resumed(batch).write_jobs(batch.jobs) == sum(batch.tasks) - (first - 1)
    with pytest.raises(NotReadyError):
        rx.run_job(batch.jobs, 0, stage=1)
    rx.run_job(batch.jobs, 0 if way == "resumed" else first - 1)
    rx.run_job(batch.jobs, range(10_000), stage=1)
    rx.finalize_jobs(batch.jobs)
    batch.assert_ended()


def test_the_end_merges_what_lines_have_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hold(monkeypatch, -1)
    monkeypatch.setattr("rechunk_exec.storage.journal.MERGED_AT_ONCE", 4)
    batch = begin_two_stages(tmp_path, verify=True)
    batch.run_all()
    assert len(results_of(batch)) == sum(batch.tasks)
    rx.finalize_jobs(batch.jobs)
    assert len(results_of(batch)) == 1
    batch.assert_ended()


def test_that_a_stage_is_done_is_found_once_and_then_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = begin_two_stages(tmp_path)
    rx.run_job(batch.jobs, range(batch.tasks[0]))
    rx.run_job(batch.jobs, 0, stage=1)
    listed: list[str] = []
    monkeypatch.setattr(
        "rechunk_exec.storage.documents.Documents.names",
        lambda documents, folder="", **options: listed.append(folder),
    )
    rx.run_job(batch.jobs, 1, stage=1)
    assert listed == []


def test_a_range_runs_both_stages_in_order_and_ends_with_the_last_line(tmp_path: Path) -> None:
    batch = begin_two_stages(tmp_path)
    report = rx.run_job(batch.jobs, range(10_000))
    assert [(one.stage, one.index) for one in report.results] == [
        (stage, index) for stage, count in enumerate(batch.tasks) for index in range(count)
    ]
    rx.finalize_jobs(batch.jobs)
    batch.assert_ended()


@pytest.mark.parametrize("name", INDEX_VARIABLES)
def test_the_index_comes_from_the_scheduler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    batch = begin_two_stages(tmp_path)
    monkeypatch.setenv(name, "2")
    assert [one.index for one in rx.run_job(batch.jobs).results] == [2]
    monkeypatch.setenv(name, "two")
    with pytest.raises(IndexError, match=name):
        rx.run_job(batch.jobs)


@pytest.mark.parametrize(
    "index,stage", [(None, None), (9_999, None), (-1, None), (9_999, 0), (0, 2), (range(99, 100), 1)]
)
def test_a_line_that_there_is_not_is_told(tmp_path: Path, index: int | range | None, stage: int | None) -> None:
    batch = begin_two_stages(tmp_path)
    before = snapshot(tmp_path)
    with pytest.raises(IndexError, match=r"numbered from 0|told by the variable"):
        rx.run_job(batch.jobs, index, stage=stage)
    assert snapshot(tmp_path) == before


class Failing:
    """Instead of ``run_task``: the first tries of some tasks fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fails: dict[tuple[int, int], int]) -> None:
        self.tries: dict[tuple[int, int], int] = {}
        self._fails = fails
        self._run = rx.run_task
        monkeypatch.setattr(running, "run_task", self)

    def __call__(self, task: CopyTask) -> TaskResult:
        key = task.stage, task.index
        self.tries[key] = self.tries.get(key, 0) + 1
        if self.tries[key] <= self._fails.get(key, 0):
            raise InjectedError(f"try {self.tries[key]} of {key}")
        return self._run(task)


def test_a_line_is_tried_three_times_and_its_error_kept_until_it_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = begin_two_stages(tmp_path)
    failing = Failing(monkeypatch, {(0, 1): 2, (0, 2): 3})
    with pytest.raises(TaskError, match=r"tried 3 times.*try 3 of \(0, 2\).*1 of \d+ lines failed") as caught:
        rx.run_job(batch.jobs, range(batch.tasks[0]))
    assert (caught.value.stage, caught.value.index) == (0, 2)
    assert (failing.tries[0, 0], failing.tries[0, 1], failing.tries[0, 2]) == (1, 3, 3)
    assert rx.failed_jobs(batch.jobs) == (2,)
    target = ArrayRef(store=str(batch.target))
    record = read_job(target)
    assert record is not None
    noted = Journal(target, record.job).results()
    assert {index: result.attempts for (_, index), result in noted.items()} == {
        index: 1 if index != 1 else 3 for index in range(batch.tasks[0]) if index != 2
    }
    (failure,) = rx.status(batch.target).failed
    assert (failure.stage, failure.index, failure.message) == (0, 2, "InjectedError: try 3 of (0, 2)")
    (result,) = rx.run_job(batch.jobs, 2).results
    assert result.attempts == 1
    assert rx.failed_jobs(batch.jobs, stage=0) == ()
    assert rx.status(batch.target).failed == ()
    assert not list((batch.target / ".rechunk_exec").glob("*/failed/*.json"))
    rx.run_job(batch.jobs, range(batch.tasks[1]), stage=1)
    rx.finalize_jobs(batch.jobs)
    batch.assert_ended()


def test_what_cannot_get_better_is_tried_once(tmp_path: Path) -> None:
    batch = begin_one_stage(tmp_path)
    damaged = tmp_path / "source.zarr/c/0/0"
    damaged.write_bytes(b"torn")
    with pytest.raises(TaskError, match="is not tried again"):
        rx.run_job(batch.jobs, 0)
    (failure,) = rx.status(batch.target).failed
    assert f"c/0/0 of file://{tmp_path}/source.zarr" in failure.message


def test_failed_names_the_first_stage_that_is_not_done_or_the_one_asked_for(tmp_path: Path) -> None:
    batch = begin_two_stages(tmp_path)
    first, second = batch.tasks
    rx.run_job(batch.jobs, range(1, 3))
    assert rx.failed_jobs(batch.jobs) == (0, *range(3, first))
    assert rx.failed_jobs(batch.jobs, stage=1) == tuple(range(second))
    rx.run_job(batch.jobs, range(first))
    rx.run_job(batch.jobs, 1, stage=1)
    assert rx.failed_jobs(batch.jobs, stage=0) == ()
    assert rx.failed_jobs(batch.jobs) == (first, *range(first + 2, first + second))
    assert rx.failed_jobs(batch.jobs, stage=1) == (0, *range(2, second))


def test_numbers_are_written_as_schedulers_take_them() -> None:
    assert format_indices([]) == ""
    assert format_indices([0, 1, 2, 5, 7, 8]) == "0-2,5,7-8"


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(path.read_bytes()[:-1])])
@pytest.mark.parametrize("stages", [1, 2])
def test_finalize_does_not_end_a_job_of_which_objects_are_lost_or_cut(
    tmp_path: Path, stages: int, damage: Callable[[Path], object]
) -> None:
    batch = begin_one_stage(tmp_path) if stages == 1 else begin_two_stages(tmp_path)
    batch.run_all()
    chunks = sorted(path for path in (batch.target / "c").rglob("*") if path.is_file())
    for path in (chunks[1], chunks[-1]):
        damage(path)
    with pytest.raises(
        NotReadyError, match=r"2 tasks have to be run again, .* lost or cut: indices \d+,\d+ of .*jobs\.jsonl"
    ):
        rx.finalize_jobs(batch.jobs)
    again = rx.failed_jobs(batch.jobs)
    assert len(again) == 2
    assert min(again) >= sum(batch.tasks[:-1]), "of the last stage"
    for number in again:
        rx.run_job(batch.jobs, number)
    rx.finalize_jobs(batch.jobs)
    batch.assert_ended()


def test_finalize_makes_lost_intermediates_again_that_lost_objects_are_made_of(tmp_path: Path) -> None:
    batch = begin_two_stages(tmp_path)
    batch.run_all()
    for path in (batch.target / "c").rglob("*"):
        if path.is_file():
            path.unlink()
    (temp,) = (path for path in tmp_path.iterdir() if "temp" in path.name)
    lost = next(path for path in sorted(temp.rglob("c/*")) if path.is_dir())
    shutil.rmtree(lost)
    with pytest.raises(NotReadyError, match="that are lost or cut"):
        rx.finalize_jobs(batch.jobs)
    assert 0 < len(rx.failed_jobs(batch.jobs, stage=0)) < batch.tasks[0]
    for stage in range(2):
        for number in rx.failed_jobs(batch.jobs, stage=stage):
            rx.run_job(batch.jobs, number, stage=stage)
    rx.finalize_jobs(batch.jobs)
    batch.assert_ended()


def test_finalize_tells_a_result_that_is_torn(tmp_path: Path) -> None:
    batch = begin_one_stage(tmp_path)
    batch.run_all()
    results = next(path for path in (batch.target / ".rechunk_exec").rglob("done/*.json"))
    results.write_text('{"half')
    before = snapshot(tmp_path)
    with pytest.raises(ResumeError, match="journal"):
        rx.finalize_jobs(batch.jobs)
    assert snapshot(batch.target / "c") == {
        name.removeprefix("target.zarr/c/"): held for name, held in before.items() if name.startswith("target.zarr/c/")
    }
    assert rx.status(batch.target).state == "unfinished"


def test_what_a_finalize_has_left_that_was_killed_at_its_very_end_is_gone_after_another(tmp_path: Path) -> None:
    batch = begin_one_stage(tmp_path)
    batch.run_all()
    rx.finalize_jobs(batch.jobs)
    before = {name: content for name, (_, content) in snapshot(tmp_path).items()}
    for moment in ("before its claim goes", "before its lock goes"):
        die_with_a_claim(batch.target)
        if moment == "before its lock goes":
            shutil.rmtree(batch.target / ".rechunk_exec" / "drivers")
        left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")} - before.keys()
        assert len(left) == (3 if moment == "before its claim goes" else 1), moment
        assert rx.finalize_jobs(batch.jobs).state == "finished"
        assert {name: content for name, (_, content) in snapshot(tmp_path).items()} == before, moment


DYING = """
import os, signal, sys
import rechunk_exec as rx
from rechunk_exec import batch, job

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

if sys.argv[1] == "before it begins":
    job.begin = die
else:
    batch.write_lines = lambda lines, _: [lines.write("x", 2**20), die()]
source, target, jobs, mode = sys.argv[2:]
rx.rechunk(source, (30, 1), 1800, target, executor="serial", progress=False, mode=mode).write_jobs(jobs)
"""


def die_while_lines_are_written(batch: Batch, moment: str, mode: str) -> None:
    """Have an `init` be killed, and see that it leaves a half-written file."""
    words = [moment, str(batch.source.store_path), str(batch.target), str(batch.jobs), mode]
    process = subprocess.run([sys.executable, "-c", DYING, *words], cwd=ROOT, capture_output=True, check=False)
    assert process.returncode == -signal.SIGKILL, process.stderr
    assert list(batch.jobs.parent.glob(f".{batch.jobs.name}.*.partial"))


@pytest.mark.parametrize("moment", ["before it begins", "while it writes"])
def test_a_file_that_a_killed_init_has_half_written_is_gone_when_the_job_has_ended(moment: str, tmp_path: Path) -> None:
    batch = begin_two_stages(tmp_path)
    for mode in ("overwrite", "resume"):
        die_while_lines_are_written(batch, moment, mode)
        resumed(batch).write_jobs(batch.jobs)
        assert not list(tmp_path.glob(".*.partial"))
    batch.run_all()
    die_while_lines_are_written(batch, "before it begins", "resume")
    rx.finalize_jobs(batch.jobs)
    batch.assert_ended()
    die_while_lines_are_written(batch, "before it begins", "overwrite")
    assert rx.finalize_jobs(batch.jobs).state == "finished"
    batch.assert_ended()


def test_finalize_names_what_is_missing_and_changes_nothing(tmp_path: Path) -> None:
    batch = begin_two_stages(tmp_path)
    first, second = batch.tasks
    rx.run_job(batch.jobs, range(first))
    rx.run_job(batch.jobs, range(first + 1, first + second - 1))
    before = snapshot(tmp_path)
    with pytest.raises(NotReadyError, match=f"2 of {first + second} are not: indices {first},{first + second - 1} of "):
        rx.finalize_jobs(batch.jobs)
    assert {name: content for name, (_, content) in snapshot(tmp_path).items()} == {
        name: content for name, (_, content) in before.items()
    }
    rx.run_job(batch.jobs, first)
    rx.run_job(batch.jobs, first + second - 1)
    rx.finalize_jobs(batch.jobs)
    batch.assert_ended()


def test_a_finished_job_is_not_touched_again(tmp_path: Path) -> None:
    batch = begin_two_stages(tmp_path)
    batch.run_all()
    rx.finalize_jobs(batch.jobs)
    before = snapshot(tmp_path)
    assert rx.run_job(batch.jobs, range(sum(batch.tasks))).results == ()
    assert rx.failed_jobs(batch.jobs) == ()
    assert rx.finalize_jobs(batch.jobs, verify=True).state == "finished"
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("told", [True, False])
def test_finalize_compares_and_what_differs_is_written_anew(tmp_path: Path, told: bool) -> None:
    batch = begin_two_stages(tmp_path, verify=told)
    batch.run_all()
    zarr.open_array(batch.target, mode="r+")[3, 5] = 1.5
    with pytest.raises(rx.RechunkError, match="must hold the source's bits"):
        rx.finalize_jobs(batch.jobs, verify=None if told else True)
    assert rx.status(batch.target).state == "unfinished"
    job = resumed(batch, verify=told)
    assert 0 < job.write_jobs(batch.jobs) < sum(batch.tasks)
    rx.run_job(batch.jobs, range(9_999))
    rx.finalize_jobs(batch.jobs, verify=True)
    batch.assert_ended()


def test_finalize_compares_what_lines_of_before_have_read_with_the_source_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity, "FILES_LOOKED_AT", 2)
    batch = begin_two_stages(tmp_path, verify=True)
    rx.run_job(batch.jobs, range(2))
    batch.source[1] = 0.5  # one of the chunks that nobody looks at
    resumed(batch, verify=True).write_jobs(batch.jobs)
    rx.run_job(batch.jobs, range(9_999))
    with pytest.raises(rx.RechunkError, match="must hold the source's bits"):
        rx.finalize_jobs(batch.jobs)
    resumed(batch, verify=True).write_jobs(batch.jobs)
    rx.run_job(batch.jobs, range(9_999))
    rx.finalize_jobs(batch.jobs)
    batch.assert_ended()


def resumed(batch: Batch, *, max_mem: int = 1800, **options: Any) -> rx.Rechunked:
    chunks = zarr.open_array(batch.target, mode="r").chunks
    return rx.rechunk(
        batch.source, chunks, max_mem, batch.target, executor="serial", mode="resume", progress=False, **options
    )


def test_resume_writes_lines_for_what_is_left(tmp_path: Path) -> None:
    batch = begin_two_stages(tmp_path)
    first, second = batch.tasks
    old = batch.jobs.rename(tmp_path / "old.jsonl")
    rx.run_job(old, range(first - 2))
    assert resumed(batch).write_jobs(batch.jobs) == second + 2
    with pytest.raises(ResumeError, match="another one, begun at"):
        rx.run_job(old, 0)
    with pytest.raises(NotReadyError):
        rx.run_job(batch.jobs, 0, stage=1)
    assert rx.status(batch.target).done == first - 2
    assert [one.index for one in rx.run_job(batch.jobs, range(2)).results] == [first - 2, first - 1]
    rx.run_job(batch.jobs, range(3), stage=1)
    assert resumed(batch).write_jobs(batch.jobs) == second - 3
    assert rx.failed_jobs(batch.jobs) == tuple(range(second - 3))
    with pytest.raises(NotReadyError, match=f"{second - 3} of {first + second} are not: indices 0-{second - 4} of"):
        rx.finalize_jobs(batch.jobs)
    rx.run_job(batch.jobs, range(second - 3), stage=1)
    old.unlink()
    rx.finalize_jobs(batch.jobs)
    batch.assert_ended()


def test_a_job_that_another_one_has_replaced_since_it_was_planned_is_not_taken_for_ended(tmp_path: Path) -> None:
    batch = begin_two_stages(tmp_path)
    late = resumed(batch)
    options: Any = {"executor": "serial", "mode": "overwrite", "progress": False}
    rx.rechunk(batch.source, -1, "1MB", batch.target, **options).execute()
    with pytest.raises(ResumeError, match="since then another one was begun"):
        late.write_jobs(tmp_path / "late.jsonl")
    assert_exact(zarr.open_array(batch.target), batch.source)


def test_resume_of_what_is_done_ends_the_job(tmp_path: Path) -> None:
    batch = begin_two_stages(tmp_path)
    batch.run_all()
    assert resumed(batch).write_jobs(batch.jobs) == 0
    batch.assert_ended()
    assert resumed(batch).write_jobs(batch.jobs) == 0
    assert rx.failed_jobs(batch.jobs) == ()
    with pytest.raises(rx.RechunkError, match="there are none"):
        rx.finalize_jobs(batch.jobs)
    with pytest.raises(IndexError, match="has 0 lines"):
        rx.run_job(batch.jobs, 0)


def test_an_executor_goes_on_where_lines_stopped(tmp_path: Path) -> None:
    batch = begin_two_stages(tmp_path)
    rx.run_job(batch.jobs, range(batch.tasks[0] + 1))
    job = resumed(batch)
    job.execute()
    assert job.report is not None
    assert job.report.tasks == batch.tasks[1] - 1
    assert rx.status(batch.target).state == "finished"
    with pytest.raises(ResumeError):
        rx.run_job(batch.jobs, 0)
    batch.assert_ended()


def test_a_target_or_file_that_is_there_is_not_replaced_unasked(tmp_path: Path) -> None:
    batch = begin_two_stages(tmp_path)
    before = snapshot(tmp_path)
    with pytest.raises(TargetExistsError):
        rx.rechunk(batch.source, (30, 1), 1800, batch.target, progress=False)
    with pytest.raises(StorageError, match="not replaced unasked"):
        rx.rechunk(batch.source, (30, 1), 1800, tmp_path / "other.zarr", progress=False).write_jobs(batch.jobs)
    assert snapshot(tmp_path) == before
    job = rx.rechunk(batch.source, (30, 1), 1800, batch.target, mode="overwrite", progress=False)
    assert rx.write_jobs(job, batch.jobs) == job.plan.tasks
    batch.run_all()
    rx.finalize_jobs(batch.jobs)
    batch.assert_ended()


def test_a_file_of_jobs_lies_outside_the_arrays(tmp_path: Path) -> None:
    source = make_array(tmp_path / "source.zarr", (30, 20), (1, 20), "f8")
    for name in ("source.zarr/jobs", "target.zarr", "target.zarr/a/jobs"):
        job = rx.rechunk(source, (30, 1), 1800, tmp_path / "target.zarr", progress=False)
        with pytest.raises(PlanError, match="outside the arrays"):
            job.write_jobs(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["source.zarr"]


def test_a_file_that_cannot_be_written_is_told_before_anything_is_made(tmp_path: Path) -> None:
    source = make_array(tmp_path / "source.zarr", (30, 20), (1, 20), "f8")
    (tmp_path / "file").write_text("")
    job = rx.rechunk(source, (30, 1), 1800, tmp_path / "target.zarr", progress=False)
    with pytest.raises(StorageError, match="file/jobs"):
        job.write_jobs(tmp_path / "file" / "jobs")
    assert {path.name for path in tmp_path.iterdir()} == {"source.zarr", "file"}


def test_arrays_without_a_name_have_no_lines(tmp_path: Path) -> None:
    source = make_array({}, (30, 20), (1, 20), "f8")
    job = rx.rechunk(source, (30, 2), "1MB", tmp_path / "target.zarr", progress=False)
    with pytest.raises(SerializationError, match="must be something that JSON can name"):
        job.write_jobs(tmp_path / "jobs.jsonl")
    assert list(tmp_path.iterdir()) == []


def test_an_array_without_elements_has_no_lines_and_is_finished(tmp_path: Path) -> None:
    source = zarr.create_array(tmp_path / "source.zarr", shape=(0, 4), chunks=(1, 4), dtype="f4")
    job = rx.rechunk(source, (1, 1), "1MB", tmp_path / "target.zarr", progress=False)
    assert job.write_jobs(tmp_path / "jobs.jsonl") == 0
    assert rx.status(tmp_path / "target.zarr").state == "finished"
    assert zarr.open_array(tmp_path / "target.zarr", mode="r").shape == (0, 4)


def edits(batch: Batch) -> Iterator[tuple[str, str, str]]:
    """What is wrong in a line: the text that is there, what it becomes, and what the message says."""
    target = str(batch.target)
    yield '"rechunk_exec":1', '"rechunk_exec":2', "'rechunk_exec': 1 (its version); got 2"
    yield '"type":"CopyTask"', '"type":"Stage"', "must be of type 'CopyTask'"
    yield '"threads"', '"threats"', "CopyTask.threats is unknown; CopyTask.threads is missing"
    yield '"stage":0', '"stage":"0"', "CopyTask.stage must be an integer"
    yield '"stage":0', '"stage":7', "CopyTask.stage and CopyTask.index must be of a task of the job"
    yield '"index":1', '"index":2', "CopyTask.start must be"
    yield '"stop":[', '"stop":[1', "CopyTask.stop must be"
    yield "source.zarr", "../source.zarr", "without '.' and '..'"
    yield "source.zarr", "secret.zarr", "CopyTask.source must be"
    yield "temp-1", "temp-2", "CopyTask.target must be"
    yield (
        f'"journal":{{"store":"{target}","path":"","storage_options":{{}}}}',
        '"journal":null',
        "CopyTask.journal must",
    )
    yield f'"journal":{{"store":"{target}', '"journal":{"store":"/nowhere.zarr', "no job is recorded at /nowhere.zarr"
    foreign = str(Path(str(batch.source.store_path).removeprefix("file://")) / "zarr.json")
    yield f'"journal":{{"store":"{target}', f'"journal":{{"store":"{foreign}', "CopyTask.journal must be the array"
    yield '"predicted_bytes"', '"predicted_bytes', "must be JSON"
    yield '"path":""', '"path":"","password":"x"', "password is unknown"


def test_a_line_that_was_edited_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    batch = begin_two_stages(tmp_path)
    lines = batch.jobs.read_text()
    for old, new, message in edits(batch):
        batch.jobs.write_text(lines)
        batch.edit(1, old, new)
        before = snapshot(tmp_path)
        for numbers in (1, range(9_999)):
            with pytest.raises((SerializationError, ResumeError, StorageError)) as caught:
                rx.run_job(batch.jobs, numbers)
            assert f"line 2 of {batch.jobs} (index 1): " in str(caught.value), new
            assert message in str(caught.value)
        assert snapshot(tmp_path) == before
    batch.jobs.write_text(lines)
    batch.run_all()
    rx.finalize_jobs(batch.jobs)
    batch.assert_ended()


def test_a_journal_that_cannot_be_read_is_told_with_the_line(tmp_path: Path) -> None:
    batch = begin_two_stages(tmp_path)
    (batch.target / ".rechunk_exec" / "job.json").write_text("{")
    for numbers in (3, range(3, 5)):
        with pytest.raises(ResumeError, match=r"line 4 of .*index 3\): CopyTask.journal must .*document 'job' is not"):
            rx.run_job(batch.jobs, numbers)
    with pytest.raises(ResumeError, match=r"line 1 of .*index 0\): CopyTask.journal must"):
        rx.finalize_jobs(batch.jobs)


def test_lines_of_other_lengths_are_found_by_counting(tmp_path: Path) -> None:
    batch = begin_two_stages(tmp_path)
    text = "\n".join(
        json.dumps(json.loads(line), indent=None) + " " * (7 * n % 5) for n, line in enumerate(batch.lines)
    )
    batch.jobs.write_text(text)  # and no end of the last line
    assert len(JobsFile(batch.jobs)) == sum(batch.tasks)
    assert [one.index for one in rx.run_job(batch.jobs, 3).results] == [3]
    rx.run_job(batch.jobs, range(batch.tasks[0]))
    assert [one.index for one in rx.run_job(batch.jobs, batch.tasks[1] - 1, stage=1).results] == [batch.tasks[1] - 1]
    rx.run_job(batch.jobs, range(9_999))
    rx.finalize_jobs(batch.jobs)
    batch.assert_ended()


def test_one_line_of_many_is_read_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = begin_one_stage(tmp_path).lines[0]
    head, tail = line.rstrip().split('"index":0', 1)
    many, count = tmp_path / "many.jsonl", 100_000
    width = len(line) + 5
    many.write_text("".join(f'{head}"index":{number}{tail}'.ljust(width) + "\n" for number in range(count)))
    from rechunk_exec.storage.files import LocalObjects

    asked: list[int] = []
    read = LocalObjects.read

    def counting(objects: LocalObjects, key: str, *words: Any, **options: Any) -> memoryview | None:
        asked.append(options["length"])
        return read(objects, key, *words, **options)

    monkeypatch.setattr(LocalObjects, "read", counting)
    file = JobsFile(many)
    assert [file.task(number).index for number in (0, 54_321, count - 1)] == [0, 54_321, count - 1]
    assert file.first_of_stage(1) == count
    assert sum(asked) < 100 * width
    with pytest.raises(IndexError):
        file.task(count)


def test_a_folder_or_nothing_in_the_place_of_a_file_is_told(tmp_path: Path) -> None:
    for name in ("missing.jsonl", ".", "missing/jobs.jsonl"):
        for call in (lambda path: rx.run_job(path, 0), rx.failed_jobs, rx.finalize_jobs):
            with pytest.raises(StorageError, match="file of jobs must"):
                call(tmp_path / name)


def test_a_job_that_was_begun_and_has_no_lines_is_told(tmp_path: Path) -> None:
    batch = begin_two_stages(tmp_path)
    (note,) = (batch.target / ".rechunk_exec").glob("*/batch.json")
    text = note.read_text()
    note.unlink()
    with pytest.raises(ResumeError, match="not written to the end"):
        rx.run_job(batch.jobs, 0)
    note.write_text(text.replace('"lines":', '"liens":'))
    with pytest.raises(ResumeError, match="liens is unknown"):
        rx.run_job(batch.jobs, 0)
    assert resumed(batch).write_jobs(batch.jobs) == sum(batch.tasks)
    batch.run_all()
    rx.finalize_jobs(batch.jobs)
    batch.assert_ended()


def test_other_versions_than_those_of_the_lines_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    batch = begin_one_stage(tmp_path)
    monkeypatch.setattr("rechunk_exec.executors.sight._version", lambda name: "0.0.1")
    rx.run_job(batch.jobs, 0)
    assert "the lines were written with other versions: " in caplog.text
    assert "0.0.1 here" in caplog.text


def test_a_process_that_is_ended_within_a_line_leaves_it_to_be_run_again(tmp_path: Path) -> None:
    batch = begin_two_stages(tmp_path)
    waiting = (
        "import os, sys, time\nimport rechunk_exec as rx\nfrom rechunk_exec.storage.direct import DirectWriter\n"
        "from rechunk_exec.storage.pieces import PieceWriter\n"
        "def slowed(write):\n"
        "    def slow(*words):\n        os.write(1, b'writing\\n')\n"
        "        time.sleep(1000)\n        return write(*words)\n"
        "    return slow\n"
        "for writer in (DirectWriter, PieceWriter):\n    writer.write = slowed(writer.write)\n"
        f"sys.argv = ['rechunk-exec', 'run-task', {str(batch.jobs)!r}, '--index', '1']\n"
        "from rechunk_exec.cli import main\nsys.exit(main())\n"
    )
    for number, code in ((signal.SIGTERM, 130), (signal.SIGINT, 130), (signal.SIGKILL, -9)):
        process = subprocess.Popen([sys.executable, "-c", waiting], stdout=subprocess.PIPE, text=True, cwd=ROOT)
        assert process.stdout is not None
        assert process.stdout.readline() == "writing\n"
        process.send_signal(number)
        process.communicate(timeout=150)
        assert process.returncode == code
        assert 1 in rx.failed_jobs(batch.jobs)
        assert rx.status(batch.target).failed == ()
    batch.run_all()
    rx.finalize_jobs(batch.jobs)
    batch.assert_ended()


def test_lines_of_a_job_on_an_object_store(s3: Bucket, tmp_path: Path) -> None:
    source = make_array(s3.store("source.zarr"), (12, 8), (1, 8), "f8")
    url, jobs = s3.url("target.zarr"), s3.url("lists/jobs.jsonl")
    job = rx.rechunk(s3.url("source.zarr"), (12, 1), 720, url, executor="serial", progress=False)
    first, second = (stage.tasks for stage in job.plan.stages)
    assert job.write_jobs(jobs) == first + second
    assert SECRET.encode() not in s3.contents()["lists/jobs.jsonl"]
    rx.run_job(jobs, range(1, first))
    before = s3.contents()
    with pytest.raises(NotReadyError):
        rx.run_job(jobs, 0, stage=1)
    assert s3.contents() == before
    assert rx.failed_jobs(jobs) == (0,)
    rx.run_job(jobs, 0)
    for index in reversed(range(1, second)):
        rx.run_job(jobs, index, stage=1)
    with pytest.raises(NotReadyError, match=rf"1 of {first + second} are not: indices {first} of"):
        rx.finalize_jobs(jobs)
    assert (rx.status(url).state, rx.status(url).done) == ("unfinished", first + second - 1)
    rx.run_job(jobs, range(first, first + 1))
    assert rx.finalize_jobs(jobs, verify=True).state == "finished"
    assert_exact(zarr.open_array(s3.store("target.zarr"), mode="r"), source)
    folders = {key.partition("/")[0] for key in s3.contents()}
    assert folders == {"source.zarr", "target.zarr", "lists"}


def test_xargs_runs_the_lines(tmp_path: Path) -> None:
    batch = begin_two_stages(tmp_path)
    first, second = batch.tasks
    rx.run_job(batch.jobs, range(first))
    half = second // 2
    command = [sys.executable, "-m", "rechunk_exec", "run-task", str(batch.jobs), "--stage", "1", "--range", "{}"]
    run = subprocess.run(
        ["xargs", "-P2", "-I{}", *command],
        input=f"{half}:{second}\n0:{half + 1}",  # a line is in both
        text=True,
        capture_output=True,
        check=False,
        timeout=300,
        cwd=ROOT,
    )
    assert run.returncode == 0, run.stderr
    rx.finalize_jobs(batch.jobs)
    batch.assert_ended()
