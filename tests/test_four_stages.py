"""Jobs of four stages: where a fourth is worth it, and one from the plan to the last byte, interrupted and resumed."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import rechunk_exec as rx
from rechunk_exec.cost import CostModel
from rechunk_exec.request import PlanRequest, SourceLayout, TargetLayout
from rechunk_exec.search import stages_of
from rechunk_exec.weighing import Way
from tests.jobs import ZarrArray, assert_exact, assert_kept_promises, make_array, stop_after, tasks_run

DEAR = replace(CostModel.object(), operation_s=5.0)
"""Operations so slow that even a fourth stage saves more of them than it costs."""
NAMES = ["temp-1", "temp-2", "temp-3", "target"]
SHAPE = (60, 54)
NBYTES = 60 * 54 * 4
MAX_MEM = 1_200


@pytest.fixture
def source(tmp_path: Path) -> ZarrArray:
    return make_array(tmp_path / "source", SHAPE, (1, 54))


def begin(source: ZarrArray, folder: Path, **options: Any) -> rx.Rechunked:
    """A job from rows to columns, of several tasks in each of four stages."""
    options = {"executor": "serial", "temp_store": folder / "temp", "progress": False, **options}
    job = rx.rechunk(source, (60, 1), MAX_MEM, folder / "target", cost_model=DEAR, **options)
    assert [stage.target for stage in job.plan.stages] == NAMES
    assert min(stage.tasks for stage in job.plan.stages) > 10
    return job


def totals(job: rx.Rechunked) -> list[int]:
    return [stage.tasks for stage in job.plan.stages]


@pytest.mark.parametrize("executor", [pytest.param("serial", marks=pytest.mark.long), "threads"])
def test_every_byte_is_copied_and_no_intermediate_stays(source: ZarrArray, tmp_path: Path, executor: str) -> None:
    job = begin(source, tmp_path, executor=executor, verify=True)
    assert_exact(job.execute(), source)
    assert_kept_promises(job)
    assert not (tmp_path / "temp").exists() or not list((tmp_path / "temp").iterdir())
    assert [(stage.done, stage.total) for stage in rx.status(tmp_path / "target").stages] == [
        (total, total) for total in totals(job)
    ]


@pytest.mark.parametrize("stage", [1, 3, pytest.param(2, marks=pytest.mark.long)])
def test_a_job_goes_on_from_the_middle_of_any_stage(source: ZarrArray, tmp_path: Path, stage: int) -> None:
    job = begin(source, tmp_path)
    before = sum(totals(job)[:stage]) + 5
    stop_after(before, job)
    again = begin(source, tmp_path, mode="resume")
    assert_exact(again.execute(), source)
    assert tasks_run(again) <= sum(totals(job)) - before
    assert not list((tmp_path / "temp").iterdir())


def test_of_what_was_lost_only_what_is_still_read_is_made_again(source: ZarrArray, tmp_path: Path) -> None:
    job = begin(source, tmp_path)
    first, second, third, last = totals(job)
    stop_after(first + second + third + 5, job)
    (place,) = (tmp_path / "temp").iterdir()
    # temp-3 is read by what is left, and made of temp-2; nothing reads temp-1 any more
    for name in ("temp-1", "temp-3"):
        shutil.rmtree(place / name / "c")
    again = begin(source, tmp_path, mode="resume")
    assert_exact(again.execute(), source)
    assert last - 5 < tasks_run(again) <= third + last - 5


def test_intermediates_that_were_lost_are_all_made_again(source: ZarrArray, tmp_path: Path) -> None:
    job = begin(source, tmp_path)
    stop_after(sum(totals(job)[:3]) + 5, job)
    (place,) = (tmp_path / "temp").iterdir()
    for name in NAMES[:3]:
        shutil.rmtree(place / name / "c")
    again = begin(source, tmp_path, mode="resume")
    assert_exact(again.execute(), source)
    assert tasks_run(again) > sum(totals(job)[2:]) - 5


def test_all_intermediates_count_since_they_stay_until_the_end(source: ZarrArray, tmp_path: Path) -> None:
    job = begin(source, tmp_path, max_temp_bytes=3 * NBYTES)
    assert job.plan.temp_bytes == 3 * NBYTES
    stop_after(sum(totals(job)[:3]) + 1, job)
    (place,) = (tmp_path / "temp").iterdir()
    assert all(any(path.is_file() for path in (place / name / "c").rglob("*")) for name in NAMES[:3])


def test_a_fourth_stage_keeps_the_limits_and_is_explained() -> None:
    layout: tuple[Any, ...] = (SHAPE, 4, (1, 54), (60, 1), MAX_MEM)
    free = rx.plan_rechunk(*layout, cost_model=DEAR)
    assert len(free.stages) == 4
    assert {one.name for one in free.alternatives} >= {"two stages", "three stages"}
    assert "four stages, temp-1 and temp-2 and temp-3 sharded: chosen: least predicted time" in free.explain()
    less_room = rx.plan_rechunk(*layout, cost_model=DEAR, max_temp_bytes=3 * NBYTES - 1)
    assert len(less_room.stages) == 3
    assert less_room.predicted_s > free.predicted_s + DEAR.deeper_s
    # more than a fourth stage saves
    dearer = replace(DEAR, deeper_s=less_room.predicted_s - free.predicted_s + 1)
    assert len(rx.plan_rechunk(*layout, cost_model=dearer).stages) == 3
    fewest = rx.plan_rechunk(*layout, cost_model=DEAR, max_objects=free.objects)
    assert fewest.objects <= free.objects


LARGE = [
    # rows to columns on an object store, with regions and chunks of four stages that were found by hand
    (
        (200_000, 200_000),
        4,
        20,
        [(15, 200000), (15, 7395), (405, 7395), (405, 435), (6885, 435), (6885, 15), (200000, 15)],
    ),
    (
        (200_000, 200_000),
        4,
        50,
        [(50, 200000), (50, 10800), (900, 10800), (900, 900), (10800, 900), (10800, 50), (200000, 50)],
    ),
    (
        (350_640, 1_038_240),
        4,
        100,
        [(19, 1038240), (19, 54777), (361, 54777), (361, 1767), (11191, 1767), (11191, 57), (350640, 57)],
    ),
    (
        (1_000_000, 1_000_000),
        1,
        100,
        [(80, 1000000), (80, 36720), (2160, 36720), (2160, 2160), (36720, 2160), (36720, 80), (1000000, 80)],
    ),
]


@pytest.mark.parametrize("shape, itemsize, megabytes, shapes", LARGE)
def test_large_transposes_in_little_memory_take_a_fourth_stage(
    shape: tuple[int, int], itemsize: int, megabytes: int, shapes: list[tuple[int, ...]]
) -> None:
    rows, columns = shape
    max_mem = megabytes * 10**6
    planned = rx.plan_rechunk(shape, itemsize, (1, columns), (rows, 1), max_mem, cost_model="object")
    request = PlanRequest(
        shape=shape,
        itemsize=itemsize,
        source=SourceLayout(chunk=(1, columns)),
        target=TargetLayout(chunk=(rows, 1)),
        max_mem=max_mem,
        cost=CostModel.object(),
    )
    by_hand = stages_of(request, Way((True, True, True)), shapes)
    assert by_hand is not None
    assert [stage.target for stage in planned.stages] == NAMES
    assert planned.predicted_s <= 1.02 * sum(stage.predicted_s for stage in by_hand)
