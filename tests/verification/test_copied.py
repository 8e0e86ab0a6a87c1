from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rechunk_exec as rx
from rechunk_exec.digest import box_digest
from rechunk_exec.executors import staged_copy
from rechunk_exec.grid import Box, Grid
from rechunk_exec.results import TaskResult
from rechunk_exec.tasks import Stage
from rechunk_exec.verification import verify_copied
from rechunk_exec.verification.compare import joined
from tests.jobs import ZarrArray, make_array, stored_objects
from tests.values import Array, position_values

SHAPE = (6, 40, 50)
UNIT = (6, 10, 10)


def copied(
    folder: Path, *, max_mem: int = 10**6, dtype: Any = "f4", shape: tuple[int, ...] = SHAPE
) -> tuple[tuple[Stage, ...], tuple[TaskResult, ...], ZarrArray]:
    """A job that has run with digests: its stages, its results, and its source."""
    source = make_array(folder / "source", shape, (1, *shape[1:]), dtype, fill_value=None)
    chunks = tuple(max(1, min(sizes)) for sizes in zip(UNIT, shape, strict=True))
    job = rx.rechunk(source, chunks, max_mem, folder / "target", executor="serial", progress=False, verify=True)
    job.execute()
    assert job.report is not None
    return job.stages, job.report.results, source


def test_tasks_digest_what_they_read(tmp_path: Path) -> None:
    stages, results, source = copied(tmp_path, max_mem=30_000)
    assert len(results) > 4
    values: Array = np.asarray(source[...])
    for result in results:
        task = stages[result.stage][result.index]
        wanted = box_digest(values[tuple(map(slice, task.start, task.stop))], task.start)
        assert result.digest == f"{wanted:016x}"
    for stage in stages:
        total = sum(int(result.digest, 16) for result in results if result.stage == stage.number)
        assert total % 2**64 == box_digest(values, (0, 0, 0))


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("shape", [(), (1,), (7,), (1, 40, 50), (6, 1, 50)], ids=str)
@pytest.mark.parametrize("dtype", ["f4", np.dtypes.StringDType()], ids=str)
def test_any_number_of_threads_makes_one_digest(
    dtype: Any, shape: tuple[int, ...], threads: int, tmp_path: Path
) -> None:
    values = position_values(shape, dtype)
    source = make_array(tmp_path / "source", shape, shape, dtype)
    job = rx.rechunk(source, shape, "10MB", tmp_path / "target", progress=False, verify=True)
    job.execute()
    (task,) = job.tasks()
    again = rx.run_task(dataclasses.replace(task, threads=threads))
    assert int(again.digest, 16) == box_digest(values, (0,) * len(shape))
    assert rx.run_task(dataclasses.replace(task, digest=False)).digest == ""


@pytest.mark.parametrize("max_mem", [30_000, 10**6])
def test_only_the_target_is_read_where_all_is_well(max_mem: int, tmp_path: Path) -> None:
    stages, results, source = copied(tmp_path, max_mem=max_mem)
    assert len(stages) == (2 if max_mem == 30_000 else 1)
    for name in stored_objects(tmp_path / "source"):
        (tmp_path / "source" / name).write_bytes(b"torn")  # nobody looks at it
    report = verify_copied(stages, results, "threads", max_mem)
    assert report.ok
    assert report.boxes == 20
    assert report.bytes_read == np.prod(source.shape) * 4
    assert report.way.startswith("the target was read")
    # Results of another order, and of a task that ran twice, are as good.
    assert verify_copied(stages, [*reversed(results), results[0]]).ok


@pytest.mark.parametrize("damage", ["torn", "deleted", "other"])
@pytest.mark.parametrize("max_mem", [30_000, 10**6])
def test_what_the_target_lost_is_found_in_its_write_unit(max_mem: int, damage: str, tmp_path: Path) -> None:
    stages, results, _ = copied(tmp_path, max_mem=max_mem)
    chunk = tmp_path / "target/c/0/2/3"
    if damage == "torn":
        chunk.write_bytes(chunk.read_bytes()[:-3])
    elif damage == "deleted":
        chunk.unlink()
    else:
        chunk.write_bytes((tmp_path / "target/c/0/2/2").read_bytes())
    report = verify_copied(stages, results)
    assert [(box.start, box.stop) for box in report.differing] == [((0, 20, 30), (6, 30, 40))]
    assert bool(report.differing[0].reason) == (damage == "torn")
    assert report.way.startswith("the target was read")


@pytest.mark.parametrize("lacking", ["a digest", "a result", "one of two that agree"])
def test_without_all_digests_both_sides_are_read(lacking: str, tmp_path: Path) -> None:
    stages, results, source = copied(tmp_path, max_mem=30_000)
    if lacking == "a digest":
        some = [dataclasses.replace(results[0], digest=""), *results[1:]]
    elif lacking == "a result":
        some = list(results[1:])
    else:
        some = [*results, dataclasses.replace(results[-1], digest="0" * 16)]
    report = verify_copied(stages, some)
    assert report.ok
    assert report.way == "both sides were read, since the copy left no digests of its own"
    assert report.bytes_read == 2 * np.prod(source.shape) * 4
    (tmp_path / "target/c/0/2/3").unlink()
    assert [box.start for box in verify_copied(stages, some).differing] == [(0, 20, 30)]


def test_an_intermediate_that_changed_on_the_way_is_found(tmp_path: Path) -> None:
    # Each region of the last stage is what that stage read: only the sums of the two stages tell.
    source = make_array(tmp_path / "source", SHAPE, (1, 40, 50), "f4")
    spoiled = []

    def spoils(stages: Any) -> None:
        staged_copy(stages[:1], "serial")
        folder = Path(str(stages[0].target.store), stages[0].target.path)
        victim = folder / next(name for name in stored_objects(folder) if name.startswith("c/"))
        content = bytearray(victim.read_bytes())
        content[0] ^= 1
        victim.write_bytes(content)
        spoiled.append(victim)
        for stage in stages:
            for task in stage if stage.number else ():
                rx.run_task(task)
        for task in stages[0]:  # leaves its record, too late to mend what was read
            rx.run_task(task)

    job = rx.rechunk(source, UNIT, 30_000, tmp_path / "target", executor=spoils, verify=True, progress=False)
    assert len(job.stages) == 2
    with pytest.raises(rx.RechunkError, match="1 of 20 boxes differ"):
        job.execute()
    assert spoiled


@pytest.mark.parametrize("dtype", [">f8", "c8", np.dtypes.StringDType(), "?"], ids=str)
def test_any_dtype_is_checked(dtype: Any, tmp_path: Path) -> None:
    stages, results, _ = copied(tmp_path, dtype=dtype, shape=(4, 12, 12))
    report = verify_copied(stages, results)
    assert report.ok
    assert report.way.startswith("the target was read")
    (tmp_path / "target/c/0/1/1").write_bytes((tmp_path / "target/c/0/0/0").read_bytes())
    report = verify_copied(stages, results)
    assert [box.start for box in report.differing] == [(0, 10, 10)]


@pytest.mark.parametrize("max_mem", [30_000, 10**6])
def test_what_an_earlier_run_has_read_of_the_source_is_read_again(max_mem: int, tmp_path: Path) -> None:
    stages, results, source = copied(tmp_path, max_mem=max_mem)
    of_first = [result for result in results if result.stage == 0]
    earlier, later = of_first[: -(-len(of_first) // 2)], of_first[-(-len(of_first) // 2) :]
    report = verify_copied(stages, results, "threads", max_mem, earlier=earlier)
    assert report.ok
    assert report.bytes_read == source.nbytes + sum(result.bytes_written for result in earlier)
    assert "was read again" in report.way
    for result in [*later[-1:], earlier[-1]]:
        task = stages[0][result.index]
        place = tuple(high - 1 for high in task.stop)
        kept, source[place] = source[place], -1.5
        report = verify_copied(stages, results, "threads", max_mem, earlier=earlier)
        if result in later:
            assert report.ok, "what this run has read it has just read"
            source[place] = kept
        else:
            (box,) = report.differing
            assert all(low <= n < high for n, low, high in zip(place, box.start, box.stop, strict=True))


def test_a_source_that_an_earlier_run_has_read_and_that_cannot_be_read_now_is_an_error(tmp_path: Path) -> None:
    stages, results, _ = copied(tmp_path)
    (tmp_path / "source" / "c" / "2" / "0" / "0").write_bytes(b"torn")
    with pytest.raises(rx.StorageError, match="c/2/0/0"):
        verify_copied(stages, results, earlier=results)


def test_boxes_that_lie_side_by_side_are_joined() -> None:
    grid = Grid((7, 6, 5), (2, 3, 2))
    for numbers in (range(len(grid)), range(4, 17), [0, 1, 4, 5, 9], [3], []):
        boxes = [grid.box(number) for number in numbers]
        found = joined(boxes)
        covered = np.zeros(grid.shape, int)
        for box in found:
            covered[box.slices] += 1
        wanted = np.zeros(grid.shape, int)
        for box in boxes:
            wanted[box.slices] += 1
        assert (covered == wanted).all()
        assert len(found) <= 5
    assert joined([grid.box(number) for number in range(len(grid))]) == [Box((0, 0, 0), grid.shape)]


def test_a_budget_that_the_copy_kept_never_stops_the_check(tmp_path: Path) -> None:
    stages, results, _ = copied(tmp_path, max_mem=30_000)
    for max_mem in (1, 1000, 30_000):
        assert verify_copied(stages, results, "threads", max_mem).ok
        assert verify_copied(stages, results[1:], "threads", max_mem).ok


def test_arrays_without_elements_are_checked(tmp_path: Path) -> None:
    stages, results, _ = copied(tmp_path, shape=(0, 12, 12))
    assert results == ()
    report = verify_copied(stages, results)
    assert report.boxes == 0
    assert report.ok
