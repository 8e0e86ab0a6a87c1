"""Jobs of three stages, from the plan to the last byte: copied, interrupted, resumed, verified."""

import itertools
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zarr

import rechunk_exec as rx
from rechunk_exec.results import Event
from tests.jobs import ZarrArray, assert_exact, assert_kept_promises, make_array, stop_after, tasks_run

DEAR = replace(rx.CostModel.object(), operation_s=5.0)
"""Operations so slow that a third stage saves more of them than it costs."""
NAMES = ["temp-1", "temp-2", "target"]
SHAPE = (36, 32)
ROOM = 2 * 36 * 32 * 4
"""For two intermediates, and no third."""


@pytest.fixture
def source(tmp_path: Path) -> ZarrArray:
    return make_array(tmp_path / "source", SHAPE, (1, 32), attributes={"units": "m"})


def begin(source: ZarrArray, folder: Path, max_mem: int = 1_000, **options: Any) -> rx.Rechunked:
    """A job from rows to columns, of several tasks in each of three stages."""
    options = {
        "executor": "serial",
        "temp_store": folder / "temp",
        "max_temp_bytes": ROOM,
        "progress": False,
        **options,
    }
    job = rx.rechunk(source, (36, 1), max_mem, folder / "target", cost_model=DEAR, **options)
    assert [stage.target for stage in job.plan.stages] == NAMES
    assert min(stage.tasks for stage in job.plan.stages) > 10
    return job


def totals(job: rx.Rechunked) -> list[int]:
    return [stage.tasks for stage in job.plan.stages]


@pytest.mark.parametrize(
    "executor, verify",
    [
        ("serial", False),
        ("threads", True),
        ("processes", True),
        pytest.param("serial", True, marks=pytest.mark.long),
        pytest.param("threads", False, marks=pytest.mark.long),
        pytest.param("processes", False, marks=pytest.mark.long),
    ],
)
def test_every_byte_is_copied_and_no_intermediate_stays(
    source: ZarrArray, tmp_path: Path, executor: str, verify: bool
) -> None:
    job = begin(source, tmp_path, executor=executor, verify=verify)
    assert_exact(job.execute(), source)
    assert_kept_promises(job)
    assert not (tmp_path / "temp").exists() or not list((tmp_path / "temp").iterdir())
    assert tasks_run(job) == sum(totals(job))
    assert [(stage.done, stage.total) for stage in rx.status(tmp_path / "target").stages] == [
        (total, total) for total in totals(job)
    ]
    assert rx.verify(source, tmp_path / "target").ok


@pytest.mark.parametrize(
    "stage, verify",
    [
        (0, False),
        (1, True),
        (2, False),
        pytest.param(0, True, marks=pytest.mark.long),
        pytest.param(1, False, marks=pytest.mark.long),
        pytest.param(2, True, marks=pytest.mark.long),
    ],
)
def test_a_job_goes_on_from_the_middle_of_any_stage(
    source: ZarrArray, tmp_path: Path, stage: int, verify: bool
) -> None:
    job = begin(source, tmp_path, verify=verify)
    before = sum(totals(job)[:stage]) + 5
    stop_after(before, job)
    assert rx.status(tmp_path / "target").done >= before
    again = begin(source, tmp_path, mode="resume", verify=verify)
    assert_exact(again.execute(), source)
    assert tasks_run(again) <= sum(totals(job)) - before
    assert not list((tmp_path / "temp").iterdir())


def test_a_job_that_passes_limits_which_are_set_later_does_not_go_on(source: ZarrArray, tmp_path: Path) -> None:
    job = begin(source, tmp_path)
    stop_after(5, job)
    plan = job.plan
    least = min(math.prod(stage.write_unit) * 4 for stage in plan.stages[:2])
    kept = {"max_objects": plan.objects, "min_object_bytes": least, "max_temp_bytes": plan.temp_bytes}
    passed = {"max_objects": plan.objects - 1, "min_object_bytes": least + 1, "max_temp_bytes": plan.temp_bytes - 1}
    for name, value in passed.items():
        with pytest.raises(rx.ResumeError, match=f"{name} is {value}"):
            begin(source, tmp_path, mode="resume", **{name: value})
    again = begin(source, tmp_path, mode="resume", **kept)
    assert_exact(again.execute(), source)
    assert tasks_run(again) == plan.tasks - 5


def test_of_two_intermediates_that_were_lost_both_are_made_again(source: ZarrArray, tmp_path: Path) -> None:
    job = begin(source, tmp_path)
    first, second, last = totals(job)
    stop_after(first + second + 5, job)
    (place,) = (tmp_path / "temp").iterdir()
    for name in NAMES[:2]:
        shutil.rmtree(place / name / "c")
    again = begin(source, tmp_path, mode="resume")
    assert_exact(again.execute(), source)
    assert last - 5 < tasks_run(again) <= first + second + last - 5


def test_the_first_intermediate_is_not_made_again_where_only_the_second_is_read(
    source: ZarrArray, tmp_path: Path
) -> None:
    job = begin(source, tmp_path)
    first, second, last = totals(job)
    stop_after(first + second + 5, job)
    (place,) = (tmp_path / "temp").iterdir()
    shutil.rmtree(place / "temp-1" / "c")
    again = begin(source, tmp_path, mode="resume")
    assert_exact(again.execute(), source)
    assert tasks_run(again) <= last - 5


IN_SHARDS = 600
"""Memory with which both intermediates have an object for each task that writes them."""


def lost(path: Path, other: Path) -> None:
    path.unlink()


def cut_short(path: Path, other: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def overwritten(path: Path, other: Path) -> None:
    path.write_bytes(bytes(7 * number % 256 for number in range(path.stat().st_size)))


def zeroed(path: Path, other: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def swapped(path: Path, other: Path) -> None:
    mine, others = path.read_bytes(), other.read_bytes()
    assert len(mine) == len(others)
    path.write_bytes(others)
    other.write_bytes(mine)


def flipped(path: Path, other: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(bytes([content[0] ^ 1]) + content[1:])


def stop_and_damage(source: ZarrArray, folder: Path, stage: int, damage: Callable[[Path, Path], None]) -> rx.Rechunked:
    """A job stopped in the middle of a stage, of which two objects that are still to be read are damaged."""
    job = begin(source, folder, IN_SHARDS, verify=True)
    assert [one.chunk == one.write_unit for one in job.plan.stages] == [False, False, True]
    stop_after(sum(totals(job)[:stage]) + 5, job)
    (place,) = (folder / "temp").iterdir()
    objects = sorted(path for path in (place / f"temp-{stage}" / "c").rglob("*") if path.is_file())
    damage(objects[-1], objects[-2])
    return job


DAMAGES = [lost, cut_short, overwritten, zeroed]
IN_TURN = [(damage, 1 + number % 2, number < 2) for number, damage in enumerate(DAMAGES)]
"""Each damage once, at either stage, and at either with and without comparing."""


@pytest.mark.parametrize(
    "damage, stage, verify",
    [
        pytest.param(*one, marks=[] if one in IN_TURN else pytest.mark.long)
        for one in itertools.product(DAMAGES, [1, 2], [False, True])
    ],
)
def test_an_object_between_two_stages_that_was_lost_or_torn_is_made_again(
    source: ZarrArray, tmp_path: Path, stage: int, damage: Callable[[Path, Path], None], verify: bool
) -> None:
    job = stop_and_damage(source, tmp_path, stage, damage)
    again = begin(source, tmp_path, IN_SHARDS, mode="resume", verify=verify)
    assert_exact(again.execute(), source)
    # One task of the stage before, and what is left; not what that task had read.
    assert tasks_run(again) <= 1 + sum(totals(job)[stage:]) - 5


@pytest.mark.parametrize("damage", [swapped, pytest.param(flipped, marks=pytest.mark.long)])
def test_raw_bytes_of_another_place_are_seen_by_who_verifies_and_made_again(
    source: ZarrArray, tmp_path: Path, damage: Callable[[Path, Path], None]
) -> None:
    stop_and_damage(source, tmp_path, 2, damage)
    with pytest.raises(rx.RechunkError, match="boxes differ"):
        begin(source, tmp_path, IN_SHARDS, mode="resume", verify=True).execute()
    assert rx.status(tmp_path / "target").state == "unfinished"
    assert_exact(begin(source, tmp_path, IN_SHARDS, mode="resume", verify=True).execute(), source)


@pytest.mark.parametrize("stage", [1, 2])
def test_an_object_that_is_damaged_while_a_job_runs_is_made_again_once_it_was_removed(
    source: ZarrArray, tmp_path: Path, stage: int
) -> None:
    job = begin(source, tmp_path, IN_SHARDS)
    before, done = sum(totals(job)[:stage]), 0

    def overwrite(event: Event) -> None:
        nonlocal done
        done += event.kind == "task"
        if done == before:
            (place,) = (tmp_path / "temp").iterdir()
            path = max(path for path in (place / f"temp-{stage}" / "c").rglob("*") if path.is_file())
            overwritten(path, path)

    with pytest.raises(rx.TaskError, match="remove it and resume") as failed:
        job.execute(on_event=overwrite)
    assert failed.value.stage == stage
    assert_exact(begin(source, tmp_path, IN_SHARDS, mode="resume").execute(), source)


def test_a_failure_in_the_middle_names_both_intermediates(source: ZarrArray, tmp_path: Path) -> None:
    job = begin(source, tmp_path)
    notes = "".join(stop_after(totals(job)[0] + 5, job).__notes__)
    assert "temp-1" in notes
    assert "temp-2" in notes


def test_lines_of_jobs_run_each_stage_in_turn(source: ZarrArray, tmp_path: Path) -> None:
    job = begin(source, tmp_path)
    lines = tmp_path / "jobs.jsonl"
    assert job.write_jobs(lines) == sum(totals(job))
    with pytest.raises(rx.NotReadyError):
        rx.run_job(lines, 0, stage=1)
    for number, total in enumerate(totals(job)):
        rx.run_job(lines, range(total), stage=number)
    rx.finalize_jobs(lines, verify=True)
    assert_exact(zarr.open_array(tmp_path / "target", mode="r"), source)
    assert not list((tmp_path / "temp").iterdir())
