from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from zarr.storage import MemoryStore

from rechunk_exec.copy.worker import Worker
from rechunk_exec.errors import ResumeError
from rechunk_exec.executors.base import WorkerShape
from rechunk_exec.plans import Plan
from rechunk_exec.results import TaskResult
from rechunk_exec.resuming import refuse_other_job, refuse_other_plan, what_is_left
from rechunk_exec.storage import ArrayRef, StoredArray, open_array
from rechunk_exec.tasks import Stage
from tests.storage.arrays import make, read_by_zarr
from tests.storage.journalled import job_record, result_of, stage_plan
from tests.values import Array, position_values, same_bits

Shape: TypeAlias = tuple[int, ...]
Key: TypeAlias = tuple[int, int]

WORKER = Worker()


def values_of(shape: Shape) -> Array:
    """By position, with a corner of fill value: units of which nothing is stored."""
    values = position_values(shape, "i4")
    values[tuple(slice(n // 2) for n in shape)] = 0
    return values


def make_stages(place: Any, shape: Shape, units: Sequence[Shape], regions: Sequence[Shape]) -> tuple[Stage, ...]:
    """Arrays with the chunks ``units``, the first of them filled, and the stages between them."""
    names = ["source", *(f"temp-{number}" for number in range(1, len(units) - 1)), "target"]
    refs = [
        make(place, shape, unit, "i4", path=name, values=values_of(shape) if name == "source" else None)
        for name, unit in zip(names, units, strict=True)
    ]
    return tuple(
        Stage(
            number=number,
            plan=stage_plan(
                shape=shape,
                source=names[number],
                target=names[number + 1],
                read_unit=clipped(units[number], shape),
                write_unit=clipped(units[number + 1], shape),
                chunk=units[number + 1],
                region=clipped(region, shape),
            ),
            source=refs[number],
            target=refs[number + 1],
        )
        for number, region in enumerate(regions)
    )


def clipped(unit: Shape, shape: Shape) -> Shape:
    return tuple(min(u, n) for u, n in zip(unit, shape, strict=True))


def run(stages: Sequence[Stage]) -> dict[Key, TaskResult]:
    results = [WORKER.run(task) for stage in stages for task in stage]
    return {(result.stage, result.index): result for result in results}


def object_paths(stage: Stage, index: int) -> list[Path]:
    """The files that a task has stored."""
    start, stop = stage.box(index)
    metadata = open_array(stage.target, read_only=True).metadata
    spans = [
        range(low // unit, -(-high // unit)) for low, high, unit in zip(start, stop, stage.write_unit, strict=True)
    ]
    folder = Path(str(stage.target.store), stage.target.path)
    keys = [
        metadata.encode_chunk_key(tuple(span[place] for span, place in zip(spans, at, strict=True)))
        for at in np.ndindex(*map(len, spans))
    ]
    return [folder / key for key in keys if (folder / key).exists()]


def left_by_oracle(stages: Sequence[Stage], whole: set[Key]) -> list[set[int]]:
    """Tasks to run, by marking elements: those of the target that are not there, and what has to be read for them."""
    wanted = np.ones(stages[0].shape, bool)
    left: list[set[int]] = []
    for stage in reversed(stages):
        boxes = [tuple(map(slice, *stage.box(index))) for index in range(stage.tasks)]
        numbers = {index for index, box in enumerate(boxes) if (stage.number, index) not in whole and wanted[box].any()}
        wanted = np.zeros(stage.shape, bool)
        for index in numbers:
            wanted[boxes[index]] = True
        left.insert(0, numbers)
    return left


def numbers_left(stage: Stage) -> set[int]:
    return {task.index for task in stage}


axes = st.tuples(
    st.integers(1, 9),  # elements
    st.lists(st.integers(1, 5), min_size=4, max_size=4),  # chunks of source, intermediates, target
    st.lists(st.integers(1, 3), min_size=3, max_size=3),  # chunks in a region
)


@settings(max_examples=25)
@given(st.lists(axes, min_size=1, max_size=2), st.integers(1, 3), st.data())
@example([(9, [2, 2, 3, 5], [2, 1, 1]), (9, [3, 2, 1, 4], [1, 2, 1])], 3, None)
def test_what_is_left_makes_the_target_whole_and_is_no_more_than_that(
    axes: list[tuple[int, list[int], list[int]]], count: int, data: st.DataObject | None
) -> None:
    shape = tuple(n for n, _, _ in axes)
    units = [tuple(chunks[number] for _, chunks, _ in axes) for number in range(count + 1)]
    regions = [tuple(chunks[number + 1] * times[number] for _, chunks, times in axes) for number in range(count)]
    folder = Path(tempfile.mkdtemp())
    try:
        stages = make_stages(folder, shape, units, regions)
        results = run(stages)
        keys = sorted(results)
        chosen = st.sets(st.sampled_from(keys))
        unknown = set(keys[::3]) if data is None else data.draw(chosen)
        lost = set(keys[1::4]) if data is None else data.draw(chosen)
        torn = set(keys[2::5]) if data is None else data.draw(chosen)
        damaged = set(unknown)
        for key in unknown:  # as if it had never run
            del results[key]
            for path in object_paths(stages[key[0]], key[1]):
                path.unlink()
        for key in lost | torn:
            for path in object_paths(stages[key[0]], key[1])[:1]:
                damaged.add(key)
                if key in lost:
                    path.unlink()
                else:
                    path.write_bytes(path.read_bytes()[:-1])
        whole = set(keys) - damaged
        remainder = what_is_left(stages, results)
        assert [numbers_left(stage) for stage in remainder.stages] == left_by_oracle(stages, whole)
        again = {(stage.number, task.index) for stage in remainder.stages for task in stage}
        assert {(result.stage, result.index) for result in remainder.done} == set(results) - again
        more = run(remainder.stages)
        assert set(more) == again
        assert same_bits(read_by_zarr(stages[-1].target), values_of(shape))
        known = {**{(result.stage, result.index): result for result in remainder.done}, **more}
        assert [len(stage) for stage in what_is_left(stages, known).stages[-1:]] == [0]
    finally:
        shutil.rmtree(folder)


def two_stages(place: Any) -> tuple[Stage, ...]:
    """Rows to 4 x 4 blocks to columns: each task of the second stage reads two of the first's four."""
    return make_stages(place, (8, 8), [(1, 8), (4, 4), (8, 2)], [(4, 4), (8, 2)])


def test_nothing_known_is_all_left(tmp_path: Path) -> None:
    stages = two_stages(tmp_path)
    remainder = what_is_left(stages, {})
    assert [stage.left for stage in remainder.stages] == [((0, 4),), ((0, 4),)]
    assert remainder.done == ()
    assert [replace(stage, left=None) for stage in remainder.stages] == list(stages)


def test_all_done_is_nothing_left(tmp_path: Path) -> None:
    stages = two_stages(tmp_path)
    remainder = what_is_left(stages, run(stages))
    assert [stage.left for stage in remainder.stages] == [(), ()]
    assert len(remainder.done) == 8


@pytest.mark.parametrize("store", ["local", "memory"])
def test_of_an_intermediate_that_was_removed_only_what_is_still_read_is_made_again(tmp_path: Path, store: str) -> None:
    place: Any = tmp_path if store == "local" else MemoryStore()
    stages = two_stages(place)
    results = run(stages)
    if store == "local":
        shutil.rmtree(tmp_path / "temp-1")
    else:
        for name in [name for name in place._store_dict if name.startswith("temp-1/")]:
            del place._store_dict[name]
    assert [len(stage) for stage in what_is_left(stages, results).stages] == [0, 0]
    del results[1, 3]
    left = what_is_left(stages, results)
    assert [stage.left for stage in left.stages] == [((1, 2), (3, 4)), ((3, 4),)]
    assert {(result.stage, result.index) for result in left.done} == {(0, 0), (0, 2), (1, 0), (1, 1), (1, 2)}


def test_an_object_that_a_store_lost_from_an_intermediate_is_made_again() -> None:
    store = MemoryStore()
    stages = two_stages(store)
    results = run(stages)
    del results[1, 0]
    del store._store_dict["temp-1/c/1/0"]
    left = what_is_left(stages, results)
    assert [stage.left for stage in left.stages] == [((2, 3),), ((0, 1),)]
    run(left.stages)
    assert same_bits(read_by_zarr(stages[1].target), values_of((8, 8)))


def test_results_of_tasks_that_there_are_not_are_passed_over(tmp_path: Path) -> None:
    stages = two_stages(tmp_path)
    odd = {(stage, index): result_of(index, stage) for stage, index in [(0, 4), (1, 10**9), (2, 0), (0, -1)]}
    remainder = what_is_left(stages, odd)
    assert [len(stage) for stage in remainder.stages] == [4, 4]
    assert remainder.done == ()


@pytest.mark.parametrize("shape", [(), (0, 5)])
def test_arrays_of_one_element_and_of_none(tmp_path: Path, shape: Shape) -> None:
    stages = make_stages(tmp_path, shape, [shape and (1, 5), shape and (1, 2)], [shape and (1, 4)])
    assert len(what_is_left(stages, {}).stages[0]) == (0 if shape else 1)
    assert [len(stage) for stage in what_is_left(stages, run(stages)).stages] == [0]


# What is refused.

WORKERS = WorkerShape(workers=2, tasks_per_worker=1, cores_per_worker=1, elastic=False)


def arrays(shape: Shape = (10, 8), chunk: Shape = (10, 2), dtype: str = "f4") -> ArrayRef:
    return make(MemoryStore(), shape, chunk, dtype)


def stored_arrays(chunk: Shape = (1, 8)) -> tuple[StoredArray, StoredArray]:
    """A source with this chunk, and what is like the target."""
    return open_array(arrays(chunk=chunk), read_only=True), open_array(arrays(), read_only=True)


def test_the_same_job_is_not_refused() -> None:
    record = job_record()
    refuse_other_job(record, record.fingerprint, WORKERS, ArrayRef(store="/t"))
    refuse_other_plan(record, *stored_arrays(), ArrayRef(store="/t"))


def test_another_job_is_refused_by_all_that_differs() -> None:
    record = job_record()
    wanted = replace(record.fingerprint, max_mem=2000, source="/elsewhere")
    with pytest.raises(ResumeError, match=r"source: .*; max_mem: 1000 then, 2000 now; nothing was touched") as error:
        refuse_other_job(record, wanted, WORKERS, ArrayRef(store="/t"))
    assert record.begun in str(error.value)


def test_more_tasks_at_once_than_were_planned_are_refused() -> None:
    record = job_record(plan=Plan(stages=(stage_plan(tasks_per_worker=2),), max_mem=1000))
    with pytest.raises(ResumeError, match="planned for 2 tasks at once in a worker; got an executor that runs 3"):
        refuse_other_job(record, record.fingerprint, replace(WORKERS, tasks_per_worker=3), ArrayRef(store="/t"))
    refuse_other_job(record, record.fingerprint, replace(WORKERS, tasks_per_worker=2), ArrayRef(store="/t"))
    elastic = replace(WORKERS, tasks_per_worker=3, elastic=True)
    refuse_other_job(record, record.fingerprint, elastic, ArrayRef(store="/t"))


@pytest.mark.parametrize(
    "fields,named",
    [
        ({"shape": (10, 6), "read_unit": (1, 6)}, r"its shape is \(10, 6\), not \(10, 8\)"),
        ({"itemsize": 1}, "its itemsize is 1, not 4"),
        ({"write_unit": (5, 2), "region": (5, 2)}, r"its write unit is \(5, 2\), not \(10, 2\)"),
    ],
    ids=str,
)
def test_a_plan_that_is_not_for_the_arrays_is_refused(fields: Mapping[str, Any], named: str) -> None:
    # A plan of a smaller array copied that much, and the job seemed finished.
    record = job_record(plan=Plan(stages=(stage_plan(**fields),), max_mem=1000))
    with pytest.raises(ResumeError, match=named):
        refuse_other_plan(record, *stored_arrays(), ArrayRef(store="/t"))


CHUNKS_READ: dict[Shape, tuple[list[Shape], list[Shape]]] = {
    (1, 8): ([(1, 8), (1, 3)], [(2, 8), (10, 8), (2, 4)]),
    (4, 4): ([(4, 4), (3, 4), (1, 2)], [(5, 4), (2, 2), (4, 3), (1, 8), (10, 1)]),
    (20, 20): ([(10, 8), (7, 8), (1, 1)], [(10, 4)]),
}
"""What is read of which chunks, and what is not."""


@pytest.mark.parametrize("chunk", CHUNKS_READ)
def test_a_plan_reads_whole_chunks_of_the_source_or_bands_of_their_rows(chunk: Shape) -> None:
    read, refused = CHUNKS_READ[chunk]
    for unit in (*read, *refused):
        record = job_record(plan=Plan(stages=(stage_plan(read_unit=unit),), max_mem=1000))
        if unit in read:
            refuse_other_plan(record, *stored_arrays(chunk), ArrayRef(store="/t"))
            continue
        with pytest.raises(ResumeError, match=re.escape(f"its stage 0 reads units of {unit}, which are neither")):
            refuse_other_plan(record, *stored_arrays(chunk), ArrayRef(store="/t"))


def test_a_plan_reads_no_more_than_a_chunk_of_an_intermediate() -> None:
    first = stage_plan(target="temp-1", write_unit=(5, 8), chunk=(5, 8), region=(5, 8))
    for unit in ((5, 8), (2, 4), (10, 8), (6, 1)):
        plan = Plan(stages=(first, stage_plan(source="temp-1", read_unit=unit)), max_mem=1000)
        if unit[0] <= 5:
            refuse_other_plan(job_record(plan=plan), *stored_arrays(), ArrayRef(store="/t"))
            continue
        with pytest.raises(ResumeError, match=re.escape(f"its stage 1 reads units of {unit}")):
            refuse_other_plan(job_record(plan=plan), *stored_arrays(), ArrayRef(store="/t"))


def test_a_plan_for_other_memory_is_refused() -> None:
    record = job_record(plan=Plan(stages=(stage_plan(),), max_mem=10**12))
    with pytest.raises(ResumeError, match="its max_mem is 1000000000000, not 1000"):
        refuse_other_plan(record, *stored_arrays(), ArrayRef(store="/t"))
