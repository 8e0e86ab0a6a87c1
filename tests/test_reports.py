"""Things that went wrong for users of other tools, each as a small case, and others of its kind.

A case is named by its number in the collection of reports, and by what broke. Values are compared as raw bytes.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.storage import MemoryStore, StorePath

import rechunk_exec as rx
from rechunk_exec.executors import PoolExecutor, ProcessesExecutor, SerialExecutor, ThreadsExecutor, available_cores
from rechunk_exec.results import OVERRUN_BYTES, Event
from rechunk_exec.sizes import parse_bytes
from rechunk_exec.tasks import Stage
from tests.conftest import Needs
from tests.jobs import (
    Shape,
    ToldCopy,
    ZarrArray,
    assert_exact,
    assert_kept_promises,
    elements,
    make_array,
    run_tasks,
    snapshot,
    stored_objects,
)
from tests.values import Array, position_values, same_bits

EVERY = (pytest.param("serial", marks=pytest.mark.long), "threads", "processes")
"""Executors; what the first does in this thread, the second does in others."""


@pytest.fixture(scope="module")
def processes() -> Iterator[ProcessesExecutor]:
    with ProcessesExecutor(2) as executor:
        yield executor


@pytest.fixture(params=EVERY)
def executor(request: pytest.FixtureRequest) -> object:
    return request.getfixturevalue("processes") if request.param == "processes" else request.param


def plan_within(budget: int | str, plan: Any) -> tuple[rx.Rechunked, int | str]:
    """Plan a job, within ``budget`` if that is enough, else within the least that the refusal names."""
    try:
        return plan(budget), budget
    except rx.BudgetError as refusal:
        with pytest.raises(rx.BudgetError) as again:
            plan(refusal.needed_bytes - 1)
        assert again.value.needed_bytes == refusal.needed_bytes
        return plan(refusal.needed_bytes), refusal.needed_bytes


@pytest.mark.parametrize(
    "shape, source, target, budget",
    [
        ((1753, 36, 40), (24, 36, 40), (219, 10, 10), 1_600_000),  # as it was reported, but for the size of a chunk
        pytest.param((1753, 72, 144), (24, 72, 144), (219, 10, 10), 12_000_000, marks=pytest.mark.long),
        pytest.param((400, 72, 144), (24, 72, 144), (400, 10, 10), 3_000_000, marks=pytest.mark.long),
        ((307, 31, 43), (7, 31, 43), (307, 11, 13), 400_000),  # primes all over
    ],
)
def test_i01_each_stage_obeys_max_mem(
    tmp_path: Path, executor: object, shape: Shape, source: Shape, target: Shape, budget: int
) -> None:
    array = make_array(tmp_path / "source", shape, source)

    def plan(max_mem: int) -> rx.Rechunked:
        return rx.rechunk(array, target, max_mem, tmp_path / "target", executor=executor, progress=False)

    job, max_mem = plan_within(budget, plan)
    assert_exact(job.execute(), array)
    assert_kept_promises(job)
    assert all(stage.plan.peak_bytes <= int(max_mem) for stage in job.stages)
    assert job.report is not None
    noise = OVERRUN_BYTES + 2_000_000 * available_cores()  # contexts of the codecs, for each thread
    assert all(result.peak_bytes <= int(max_mem) + noise for result in job.report.results)

    if len(job.stages) == 2:
        intermediate = zarr.create_array(
            tmp_path / "temp-1", shape=shape, chunks=job.stages[0].plan.chunk, dtype="f4", compressors=None
        )
        again = rx.rechunk(intermediate, target, max_mem, tmp_path / "again", executor=executor, progress=False)
        assert len(again.stages) == 1


def test_i03_each_task_reports_its_memory(tmp_path: Path, executor: object) -> None:
    array = make_array(tmp_path / "source", (40, 300, 200), (1, 300, 200))
    job = rx.rechunk(array, (40, 50, 50), "5MB", tmp_path / "target", executor=executor, progress=False)
    job.execute()
    assert job.report is not None
    assert job.report.results
    for result in job.report.results:
        assert result.predicted_bytes > 0
        assert result.peak_bytes >= 0
        assert result.seconds > 0
        assert result.bytes_read > 0
        assert result.bytes_written > 0
    assert f"{job.report.tasks} tasks" in str(job.report)


def test_i03_a_low_prediction_is_warned_of_and_names_the_task(tmp_path: Path) -> None:
    array = make_array(tmp_path / "source", (20, 1000, 800), (1, 1000, 800))
    job = rx.rechunk(array, (20, 100, 100), "300MB", tmp_path / "target", executor="serial", progress=False)
    job.execute()
    (stage,) = job.stages
    assert len(stage) == 1
    low = dataclasses.replace(stage, plan=dataclasses.replace(stage.plan, peak_bytes=1000))
    report = rx.staged_copy([low])
    (warning,) = report.warnings
    assert warning.startswith("task 0 of stage 0 used ")
    assert warning.endswith("where 1 kB were predicted")
    assert warning in str(report)


@pytest.mark.parametrize("executor", [pytest.param("serial", marks=pytest.mark.long), "threads"])
@pytest.mark.parametrize(
    "shape, source, target, shards, budget, bytes_named",
    [
        ((100, 100), (100, 100), (10, 10), None, 40_000, 80_000),  # as it was reported
        ((100, 100), (10, 10), (100, 100), None, 40_000, 80_000),  # the target chunk is the large one
        ((100, 100), (10, 10), (10, 10), (100, 50), 20_000, 40_000),  # the shard is
        ((97, 101), (97, 101), (7, 11), None, 40_000, 97 * 101 * 8),
    ],
)
def test_i04a_a_chunk_larger_than_the_budget_is_refused_while_planning(
    tmp_path: Path,
    executor: str,
    shape: Shape,
    source: Shape,
    target: Shape,
    shards: Shape | None,
    budget: int,
    bytes_named: int,
) -> None:
    array = make_array(tmp_path / "source", shape, source, "f8")
    before = snapshot(tmp_path)

    def plan(max_mem: int) -> rx.Rechunked:
        return rx.rechunk(
            array,
            target,
            max_mem,
            tmp_path / "target",
            temp_store=tmp_path / "temp",
            target_shards=shards,
            executor=executor,
            progress=False,
        )

    with pytest.raises(rx.BudgetError) as refusal:
        plan(budget)
    message = str(refusal.value)
    for named in (source, target, bytes_named, budget, refusal.value.needed_bytes, tmp_path / "source"):
        assert str(named) in message
    assert refusal.value.max_mem == budget
    assert snapshot(tmp_path) == before

    job, needed = plan_within(budget, plan)
    assert needed == refusal.value.needed_bytes
    assert snapshot(tmp_path) == before
    assert_exact(job.execute(), array)
    assert_kept_promises(job)


@pytest.mark.parametrize(
    "shape, source, target, shards",
    [
        ((100, 200, 200), (1, 200, 200), (100, 10, 10), None),  # as it was reported, but for fewer chunks
        pytest.param((100, 200, 200), (1, 200, 200), (100, 4, 4), None, marks=pytest.mark.long),
        ((100, 40, 40), (1, 40, 40), (1, 40, 40), None),  # the same chunks: a plain copy
        ((100, 200, 200), (1, 200, 200), (100, 20, 20), (100, 100, 100)),
    ],
)
def test_i09_what_fits_in_memory_takes_one_stage(
    tmp_path: Path, executor: object, shape: Shape, source: Shape, target: Shape, shards: Shape | None
) -> None:
    array = make_array(tmp_path / "source", shape, source)
    job = rx.rechunk(
        array,
        target,
        160_000_000,
        tmp_path / "target",
        temp_store=None,
        target_shards=shards,
        executor=executor,
        progress=False,
    )
    assert [(stage.plan.source, stage.plan.target) for stage in job.stages] == [("source", "target")]
    assert job.plan.temp_bytes == 0
    assert_exact(job.execute(), array)
    assert_kept_promises(job)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source", "target"]


@pytest.mark.parametrize(
    "shape, source, target, budget, most_tasks",
    [
        ((960, 78, 71), (24, 78, 71), (438, 5, 5), 8_000_000, 60),  # as it was reported: 720 target chunks
        pytest.param((400, 60, 60), (1, 60, 60), (400, 2, 2), 3_000_000, 60, marks=pytest.mark.long),  # 900 of them
    ],
)
def test_i10_a_task_covers_many_chunks(
    tmp_path: Path, executor: object, shape: Shape, source: Shape, target: Shape, budget: int, most_tasks: int
) -> None:
    array = make_array(tmp_path / "source", shape, source)
    job, _ = plan_within(
        budget, lambda max_mem: rx.rechunk(array, target, max_mem, tmp_path / "target", executor=executor)
    )
    assert job.stages[-1].plan.objects >= 720
    assert len(job.stages[-1]) <= most_tasks
    assert_exact(job.execute(), array)
    assert_kept_promises(job)


@st.composite
def planning_problems(draw: st.DrawFn) -> tuple[Shape, Shape, Shape, int, float]:
    ndim = draw(st.integers(1, 4))
    shape = tuple(draw(st.integers(1, 40)) for _ in range(ndim))
    source = tuple(draw(st.integers(1, n)) for n in shape)
    target = tuple(draw(st.integers(1, n)) for n in shape)
    return shape, source, target, draw(st.sampled_from([1, 2, 4, 8])), draw(st.floats(1, 50))


@settings(max_examples=40)
@given(planning_problems())
def test_i14_every_request_has_a_plan_or_one_documented_refusal(
    problem: tuple[Shape, Shape, Shape, int, float],
) -> None:
    shape, source, target, itemsize, times = problem
    larger = max(np.prod(source), np.prod(target)) * itemsize
    max_mem = int(larger * times)
    try:
        plan = rx.plan_rechunk(shape, itemsize, source, target, max_mem)
    except rx.BudgetError as refusal:
        assert times < 10
        assert refusal.needed_bytes > max_mem
        assert rx.plan_rechunk(shape, itemsize, source, target, refusal.needed_bytes).stages
        return
    assert plan.peak_bytes <= max_mem
    assert plan.stages[0].source == "source"
    assert plan.stages[-1].target == "target"
    for stage in plan.stages:
        assert all(g == n or g % b == 0 for g, b, n in zip(stage.region, stage.write_unit, shape, strict=True))
    names = [one.name for one in plan.alternatives if one.chosen]
    assert len(names) == 1  # it says what was weighed
    assert names[0] in plan.explain()


@pytest.mark.parametrize(
    "shape, budget, runs",
    [
        ((960, 28, 31), 700_000, 3),  # two stages, as in 4 MB
        ((960, 28, 31), 1_200_000, 3),  # one stage, as in 8 MB
        pytest.param((960, 78, 71), 4_000_000, 10, marks=pytest.mark.long),
        pytest.param((960, 78, 71), 8_000_000, 5, marks=pytest.mark.long),
    ],
)
def test_i15_chunks_that_cross_the_source_grid_are_all_there(
    tmp_path: Path, shape: Shape, budget: int, runs: int
) -> None:
    values = np.arange(1, np.prod(shape) + 1, dtype="f4").reshape(shape)  # none of them is the fill value
    array = make_array(tmp_path / "source", shape, (24, *shape[1:]), values=values)
    with ThreadsExecutor(16) as threads:
        for run in range(runs):
            job, _ = plan_within(
                budget,
                lambda max_mem: rx.rechunk(
                    array, (438, 5, 5), max_mem, tmp_path / "target", executor=threads, mode="overwrite", progress=False
                ),
            )
            target = job.execute()
            chunks = {name: (tmp_path / "target" / name).read_bytes() for name in stored_objects(tmp_path / "target")}
            if run == 0:
                assert_exact(target, array)
                right = chunks
            assert chunks == right
    assert_kept_promises(job)


SHARDED: tuple[tuple[Shape, Shape, Shape, Shape], ...] = (
    ((64, 64), (4, 4), (4, 4), (16, 16)),  # as it was reported
    ((61, 59), (4, 4), (4, 4), (16, 16)),  # ragged shards
    ((61, 59), (5, 59), (7, 3), (14, 9)),
    ((13, 61, 59), (1, 61, 59), (13, 4, 5), (13, 16, 15)),
)


@pytest.mark.parametrize(
    "size, shape, source, target, shards",
    [
        pytest.param(16, *SHARDED[0]),
        pytest.param(16, *SHARDED[3]),
        pytest.param(16, *SHARDED[1], marks=pytest.mark.long),
        pytest.param(16, *SHARDED[2], marks=pytest.mark.long),
        *(pytest.param(4, *layout) for layout in SHARDED),
    ],
)
def test_i16_no_two_tasks_write_into_one_shard(
    tmp_path: Path,
    processes: ProcessesExecutor,
    shape: Shape,
    source: Shape,
    target: Shape,
    shards: Shape,
    size: int,
    long: bool,
) -> None:
    array = make_array(tmp_path / "source", shape, source, "f8")
    right = elements(array)
    with ThreadsExecutor(16) as threads:
        pool = threads if size == 16 else processes
        for _ in range((20 if long else 4) if size == 16 and len(shape) == 2 else 2):
            job = rx.rechunk(
                array,
                target,
                60_000,
                tmp_path / "target",
                target_shards=shards,
                executor=pool,
                mode="overwrite",
                progress=False,
            )
            target_array = job.execute()
            assert same_bits(elements(target_array), right)
    assert target_array.shards == shards
    assert_kept_promises(job)


@pytest.mark.long  # two processes show the same above
def test_i16_four_processes_and_ragged_shards(tmp_path: Path) -> None:
    array = make_array(tmp_path / "source", (61, 59), (4, 4), "f8")
    with ProcessesExecutor(4) as four:
        for _ in range(3):
            job = rx.rechunk(
                array,
                (4, 4),
                60_000,
                tmp_path / "target",
                target_shards=(16, 16),
                executor=four,
                mode="overwrite",
                progress=False,
            )
            assert_exact(job.execute(), array)
    assert_kept_promises(job)


@pytest.mark.parametrize(
    "shape, chunks, shards, wanted",
    [
        ((10,), (3,), (4,), ["(4,)", "(3,)", "3 or 6"]),  # as it was reported
        ((4096,), (1024,), (256,), ["(256,)", "(1024,)", "1024", "swapped"]),  # as it was reported
        ((40, 60), (8, 10), (20, 60), ["(20, 60)", "(8, 10)", "axis 0", "16 or 24"]),
        ((40, 60), (20, 60), (4, 6), ["swapped", "axis 0: 20"]),
    ],
)
def test_i19_a_shard_that_cuts_chunks_is_refused_with_the_nearest_that_does_not(
    tmp_path: Path, shape: Shape, chunks: Shape, shards: Shape, wanted: Sequence[str]
) -> None:
    array = make_array(tmp_path / "source", shape, shape)
    before = snapshot(tmp_path)
    with pytest.raises(rx.PlanError) as refusal:
        rx.rechunk(array, chunks, "1MB", tmp_path / "target", target_shards=shards)
    for text in wanted:
        assert text in str(refusal.value)
    assert snapshot(tmp_path) == before


def written_by_xarray(xarray: Any, place: Path, encoding: Mapping[str, Any], zarr_format: int) -> None:
    """A Dataset of one variable ``t2m`` with missing cells, as xarray packs and writes it."""
    kelvin = np.linspace(270, 300, 12 * 10 * 8).reshape(12, 10, 8)
    kelvin[::3, 2, 1] = np.nan
    dataset = xarray.Dataset({"t2m": (("time", "y", "x"), kelvin, {"units": "K"})})
    dataset.to_zarr(
        place, encoding={"t2m": {**encoding, "chunks": (1, 10, 8)}}, zarr_format=zarr_format, consolidated=False
    )


PACKED = {"dtype": "i2", "_FillValue": np.int16(-32768), "scale_factor": 0.001, "add_offset": 298.15}
HUGE = {"dtype": "f4", "_FillValue": np.float32(1e37)}


@pytest.mark.parametrize("encoding", [PACKED, HUGE, {"dtype": "f4", "_FillValue": np.float32(np.nan)}])
@pytest.mark.parametrize("source_format, target_format", [(2, 2), (2, 3), (3, 3), (3, 2)])
def test_i24_packed_values_and_missing_cells_stay(
    tmp_path: Path, needs: Needs, encoding: Mapping[str, Any], source_format: int, target_format: Any
) -> None:
    xarray = needs("xarray")
    written_by_xarray(xarray, tmp_path / "source", encoding, source_format)
    zarr.create_group(tmp_path / "target", zarr_format=target_format)
    source = zarr.open_array(tmp_path / "source" / "t2m", mode="r")
    job = rx.rechunk(
        source,
        {"time": -1, "y": 5, "x": 4},
        "1MB",
        tmp_path / "target",
        array_name="t2m",
        target_shards={"time": -1, "y": 10, "x": 8} if target_format == 3 else None,
        zarr_format=target_format,
        progress=False,
    )
    target = job.execute()
    assert same_bits(elements(target), elements(source))
    for name in ("scale_factor", "add_offset", "units"):
        assert target.attrs.get(name) == source.attrs.get(name)
    shown = [
        xarray.open_zarr(tmp_path / name, consolidated=False, chunks=None).t2m.load() for name in ("source", "target")
    ]
    assert np.isnan(shown[0].values).any()
    assert same_bits(shown[1].values, shown[0].values)  # missing in the same cells
    assert (shown[1].dims, shown[1].attrs) == (shown[0].dims, shown[0].attrs)


FILLS: list[tuple[str, Any]] = [
    ("f8", 1.0),  # as it was reported
    ("f8", np.nan),
    ("f8", np.inf),
    ("f8", -np.inf),
    ("f8", -0.0),
    ("f4", np.float32(1e37)),
    ("i2", -32768),
    ("u8", 2**64 - 1),
    ("c8", complex(1, np.nan)),
    ("bool", True),
]


@pytest.mark.parametrize("source_format, target_format", [(2, 2), (2, 3), (3, 3), (3, 2)])
@pytest.mark.parametrize(
    "dtype, fill, write_empty_chunks",
    [
        *((*one, False) for one in FILLS),
        # A chunk that is stored is compared with the fill value as any other one is.
        *(pytest.param(*one, True, marks=[] if one in FILLS[:2] else pytest.mark.long) for one in FILLS),
    ],
)
def test_i26_the_fill_value_stays_and_chunks_of_it_are_not_stored(
    tmp_path: Path, dtype: str, fill: Any, source_format: Any, target_format: Any, write_empty_chunks: bool
) -> None:
    values = np.full((100, 100), fill, dtype)
    values[31, 47] = 3 if dtype != "bool" else False
    array = make_array(
        tmp_path / "source",
        (100, 100),
        (10, 100),
        dtype,
        values=values,
        fill_value=fill,
        zarr_format=source_format,
        config={"write_empty_chunks": write_empty_chunks},
    )
    target = rx.rechunk(
        array, (50, 25), "1MB", tmp_path / "target", zarr_format=target_format, progress=False
    ).execute()
    assert_exact(target, array)
    kept, given = (np.array(one.fill_value, dtype) for one in (target, array))
    assert kept.tobytes() == given.tobytes() == np.array(fill, dtype).tobytes()
    assert len(stored_objects(tmp_path / "target")) == 1


def test_i26_as_it_was_reported(tmp_path: Path, executor: object) -> None:
    values = np.full((1000, 1000), 1.0)
    values[123, 456] = 3
    array = make_array(tmp_path / "source", (1000, 1000), (100, 1000), "f8", values=values, fill_value=1.0)
    target = rx.rechunk(array, (50, 50), "4MB", tmp_path / "target", executor=executor, progress=False).execute()
    assert_exact(target, array)
    assert target.fill_value == 1.0
    assert len(stored_objects(tmp_path / "target")) == 1


def test_i26_a_null_fill_value_of_format_2_stays(tmp_path: Path) -> None:
    array = make_array(tmp_path / "source", (20, 20), (5, 20), "i4", zarr_format=2, fill_value=None)
    array[...] = 0
    array[3, 4] = 7
    target = rx.rechunk(array, (10, 10), "1MB", tmp_path / "target", progress=False).execute()
    assert_exact(target, array)
    assert target.metadata.fill_value is None
    assert len(stored_objects(tmp_path / "target")) == 4  # without a fill value, none stands for an absent chunk

    job = rx.rechunk(array, (10, 10), "1MB", tmp_path / "target-3", zarr_format=3, progress=False)
    assert_exact(job.execute(), array)
    assert job.report is not None
    assert any("null fill value" in warning for warning in job.report.warnings)


def test_i26_dates_and_records_keep_their_fill_values(tmp_path: Path) -> None:
    record = np.dtype([("a", "i2"), ("b", "f4")])
    fills: list[tuple[Any, Any]] = [
        ("M8[s]", np.datetime64("NaT", "s")),
        ("m8[ms]", np.timedelta64(5, "ms")),
        (record, np.array((7, np.nan), record)[()]),
    ]
    for number, (dtype, fill) in enumerate(fills):
        values = np.full((20, 20), fill, dtype)
        values[7, 7] = position_values((1,), dtype)[0]
        array = make_array(tmp_path / f"source-{number}", (20, 20), (1, 20), dtype, values=values, fill_value=fill)
        target = rx.rechunk(array, (10, 10), "1MB", tmp_path / f"target-{number}", progress=False).execute()
        assert_exact(target, array)
        assert np.array(target.fill_value, dtype).tobytes() == np.array(fill, dtype).tobytes()
        assert len(stored_objects(tmp_path / f"target-{number}")) == 1


def test_i34_a_scalar_is_copied(tmp_path: Path, executor: object) -> None:
    array = make_array(tmp_path / "crs", (), (), "i8", values=np.array(4326))
    job = rx.rechunk(array, (), "1kB", tmp_path / "target", executor=executor, progress=False)
    target = job.execute()
    assert target.shape == ()
    assert target[...] == 4326
    assert_kept_promises(job)


@pytest.mark.parametrize("shape, source", [((0, 5), (1, 5)), ((5, 0, 3), (2, 1, 3)), ((0,), (7,))])
def test_i34_axes_without_elements_give_metadata_only(
    tmp_path: Path, executor: object, shape: Shape, source: Shape
) -> None:
    array = make_array(tmp_path / "source", shape, source, attributes={"units": "m"})
    job = rx.rechunk(array, -1, "1kB", tmp_path / "target", executor=executor, progress=False)
    target = job.execute()
    assert (target.shape, dict(target.attrs)) == (shape, {"units": "m"})
    assert job.plan.tasks == 0
    assert stored_objects(tmp_path / "target") == []
    assert_kept_promises(job)


@pytest.mark.parametrize(
    "spec, chunks",
    [({"x": -1}, (2, 3)), ({"x": None}, (2, 2)), ({"x": 99}, (2, 3)), ((99, 99), (4, 3)), ((None, -1), (2, 3))],
)
def test_i34_whole_unchanged_and_too_long(tmp_path: Path, spec: Any, chunks: Shape) -> None:
    array = make_array(tmp_path / "source", (4, 3), (2, 2), dimension_names=("y", "x"))
    target = rx.rechunk(array, spec, "1MB", tmp_path / "target", progress=False).execute()
    assert target.chunks == chunks
    assert_exact(target, array)


def test_i34_zero_is_an_error(tmp_path: Path) -> None:
    array = make_array(tmp_path / "source", (4, 3), (2, 2), dimension_names=("y", "x"))
    with pytest.raises(rx.PlanError, match=r"'x'.*got 0.*-1 for the whole axis"):
        rx.rechunk(array, {"x": 0}, "1MB", tmp_path / "target")


def test_i36_dimension_names_cross_formats_and_back(tmp_path: Path, needs: Needs) -> None:
    xarray = needs("xarray")
    names = ["time", "y", "x"]
    array = make_array(
        tmp_path / "two" / "height",
        (6, 4, 4),
        (1, 4, 4),
        zarr_format=2,
        attributes={"_ARRAY_DIMENSIONS": names, "units": "m"},
    )
    for place, zarr_format in (("two", 2), ("three", 3), ("back", 2)):
        zarr.open_group(tmp_path / place, mode="a", zarr_format=zarr_format)  # type: ignore[arg-type]

    def copy(to: str, zarr_format: Any, source: ZarrArray) -> ZarrArray:
        job = rx.rechunk(source, {"time": -1, "y": 2, "x": 2}, "1MB", tmp_path / to / "height", zarr_format=zarr_format)
        return job.execute()

    three = copy("three", 3, array)
    assert three.metadata.dimension_names == tuple(names)  # type: ignore[union-attr]
    assert dict(three.attrs) == {"units": "m", "_FillValue": "AAAAAAAAAAA="}  # 0.0, which xarray took for missing
    back = copy("back", 2, three)
    assert dict(back.attrs) == {"_ARRAY_DIMENSIONS": names, "units": "m"}
    for target in (three, back):
        assert_exact(target, array)
    shown = [xarray.open_zarr(tmp_path / place, consolidated=False).height for place in ("two", "three", "back")]
    assert [one.dims for one in shown] == [("time", "y", "x")] * 3
    assert [one.attrs for one in shown] == [{"units": "m"}] * 3


def test_i36_half_named_axes_stay_half_named(tmp_path: Path) -> None:
    array = make_array(tmp_path / "source", (6, 4), (1, 4), dimension_names=("time", None))
    target = rx.rechunk(array, {"time": -1, 1: 2}, "1MB", tmp_path / "target", progress=False).execute()
    assert target.metadata.dimension_names == ("time", None)  # type: ignore[union-attr]
    assert target.chunks == (6, 2)


@pytest.mark.parametrize("dtype", ["f8", "U3"])  # by our codecs, and through zarr
@pytest.mark.parametrize(
    "shape, chunks, shards",
    [((64, 64), (8, 8), (32, 32)), ((67, 41), (8, 8), (32, 32)), ((67, 41), (67, 3), None)],
)
def test_i40_a_torn_object_does_not_break_the_retry(
    tmp_path: Path, shape: Shape, chunks: Shape, shards: Shape | None, dtype: str
) -> None:
    array = make_array(tmp_path / "source", shape, (shape[0], 5), dtype)

    def killed(stages: Sequence[Stage]) -> None:
        for task in list(stages[0])[:-1]:
            rx.run_task(task)
        raise KeyboardInterrupt

    job = rx.rechunk(array, chunks, 100_000, tmp_path / "target", target_shards=shards, executor=killed, progress=False)
    assert len(job.stages) == 1
    with pytest.raises(KeyboardInterrupt):
        job.execute()
    for name in stored_objects(tmp_path / "target"):
        if not name.startswith("."):
            torn = tmp_path / "target" / name
            torn.write_bytes(torn.read_bytes()[:10])
    run_tasks(job)
    assert_exact(zarr.open_array(tmp_path / "target"), array)


@pytest.mark.parametrize("pool", [SerialExecutor, ThreadsExecutor])
def test_i40_a_task_that_fails_twice_is_tried_a_third_time(tmp_path: Path, pool: type[PoolExecutor]) -> None:
    (tmp_path / "told").mkdir()
    array = make_array(tmp_path / "source", (40, 67, 41), (1, 67, 41))
    with pool() as executor:
        executor.task_function = ToldCopy(tmp_path / "told", fails={(0, 0): 2})
        job = rx.rechunk(array, (40, 16, 16), 250_000, tmp_path / "target", executor=executor, progress=False)
        assert_exact(job.execute(), array)
    assert job.report is not None
    assert job.report.retries == 2
    assert job.report.results[0].attempts == 3


def staged(array: ZarrArray, target_store: Any, **options: Any) -> rx.Rechunked:
    """A job that takes two stages; the array's chunks are epochs of 3.2 kB."""
    options = {"executor": "serial", "progress": False, **options}
    job = rx.rechunk(array, (40, 4, 4), 16_000, target_store, **options)
    assert len(job.stages) == 2
    return job


@pytest.fixture
def epochs(tmp_path: Path) -> ZarrArray:
    return make_array(tmp_path / "source", (40, 40, 20), (1, 40, 20))


def test_i44_an_empty_store_is_a_store(tmp_path: Path, epochs: ZarrArray) -> None:
    temp = MemoryStore()
    assert not temp._store_dict  # it is empty
    job = staged(epochs, tmp_path / "target", temp_store=temp)
    assert "MemoryStore" in str(job.stages[0].target)
    assert_exact(job.execute(), epochs)
    held: dict[str, Any] = {}
    job = staged(epochs, tmp_path / "again", temp_store=held)
    assert not job.stages[0].target.by_name
    assert_exact(job.execute(), epochs)


def test_i44_the_intermediate_lies_beside_the_target_and_its_bytes_are_told(tmp_path: Path, epochs: ZarrArray) -> None:
    before = snapshot(tmp_path)
    job = staged(epochs, tmp_path / "sub" / "target", temp_store=None)
    assert snapshot(tmp_path) == before
    place = Path(str(job.stages[0].target.store), job.stages[0].target.path)
    assert place.parent.parent == tmp_path / "sub"
    assert job.plan.temp_bytes == 40 * 40 * 20 * 4
    assert "128000 bytes" in repr(job)
    assert str(place.parent) in repr(job)


def test_i44_a_target_with_no_place_beside_it_needs_a_temp_store(tmp_path: Path, epochs: ZarrArray) -> None:
    def plan(target_store: Any, max_mem: int, temp_store: Any = None) -> rx.Rechunked:
        return rx.rechunk(
            epochs, (40, 2, 2), max_mem, target_store, temp_store=temp_store, executor="serial", progress=False
        )

    store = MemoryStore()
    with pytest.raises(rx.BudgetError) as refusal:
        plan(store, 1, tmp_path / "temp")
    needed = refusal.value.needed_bytes  # which suffices for two stages only
    with pytest.raises(rx.PlanError, match=r"give temp_store") as error:
        plan(store, needed)
    assert str(epochs.nbytes) in str(error.value)
    assert not store._store_dict
    job = plan(store, needed, tmp_path / "temp")
    assert len(job.stages) == 2
    assert_exact(job.execute(), epochs)
    job = plan(MemoryStore(), 16_000)  # one stage will do
    assert len(job.stages) == 1
    assert_exact(job.execute(), epochs)


@pytest.mark.parametrize("kind", ["folder", "beside"])
def test_i46_intermediates_are_gone_after_success_and_foreign_files_are_not(
    tmp_path: Path, epochs: ZarrArray, executor: object, kind: str
) -> None:
    (tmp_path / "temp").mkdir()
    (tmp_path / "temp" / "mine.txt").write_text("a")
    (tmp_path / "mine.txt").write_text("b")
    temp_store = tmp_path / "temp" if kind == "folder" else None
    job = staged(epochs, tmp_path / "target", temp_store=temp_store, executor=executor)
    assert_exact(job.execute(), epochs)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.txt", "source", "target", "temp"]
    assert [path.name for path in (tmp_path / "temp").iterdir()] == ["mine.txt"]
    assert (tmp_path / "mine.txt").read_text() == "b"


def test_i46_a_store_in_memory_is_empty_again_after_success(epochs: ZarrArray) -> None:
    temp = MemoryStore()
    job = staged(epochs, MemoryStore(), temp_store=StorePath(temp, "scratch"))
    assert_exact(job.execute(), epochs)
    assert list(temp._store_dict) == []


def test_i46_a_foreign_file_among_the_intermediates_survives(tmp_path: Path, epochs: ZarrArray) -> None:
    job = staged(epochs, tmp_path / "target")
    place = Path(str(job.stages[0].target.store), job.stages[0].target.path).parent

    def drops_a_file(stages: Sequence[Stage]) -> None:
        run_tasks(job)
        (place / "mine.txt").write_text("a")

    job = staged(epochs, tmp_path / "target", executor=drops_a_file)
    job.execute()
    assert [path.name for path in place.iterdir()] == ["mine.txt"]


def test_i46_intermediates_are_kept_and_named_after_failure(tmp_path: Path, epochs: ZarrArray) -> None:
    def fails(stages: Sequence[Stage]) -> None:
        for task in stages[0]:
            rx.run_task(task)
        raise OSError("the second stage cannot be")

    job = staged(epochs, tmp_path / "target", executor=fails)
    place = Path(str(job.stages[0].target.store), job.stages[0].target.path)
    with pytest.raises(rx.RechunkError, match="kept: the intermediates temp-1") as failure:
        job.execute()
    assert str(place.parent) in str(failure.value)
    assert isinstance(failure.value.__cause__, OSError)
    assert_exact(zarr.open_array(place, mode="r"), epochs)

    job = staged(epochs, tmp_path / "target", mode="overwrite")  # and the next try is not in its own way
    assert_exact(job.execute(), epochs)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source", "target"]


@pytest.fixture(params=[SerialExecutor, ThreadsExecutor, ProcessesExecutor])
def pool(request: pytest.FixtureRequest) -> Iterator[PoolExecutor]:
    if request.param is ProcessesExecutor:
        yield request.getfixturevalue("processes")
    else:
        with request.param() as own:
            yield own


def test_i50_no_task_of_a_stage_starts_before_the_stage_before_has_ended(
    tmp_path: Path, epochs: ZarrArray, pool: PoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "told").mkdir()
    told = ToldCopy(tmp_path / "told", seconds=0.005)
    monkeypatch.setattr(pool, "task_function", told)
    # A mere 8 kB: several tasks a stage.
    job = rx.rechunk(epochs, (40, 4, 4), 16_000, tmp_path / "target", executor=pool, progress=False)
    assert len(job.stages) == 2
    assert_exact(job.execute(), epochs)
    stages = [[entry for entry in told.told() if entry["stage"] == number] for number in range(2)]
    assert [len(entries) for entries in stages] == [len(stage) for stage in job.stages]
    assert max(entry["ended"] for entry in stages[0]) <= min(entry["began"] for entry in stages[1])
    assert all(entry["ready"] for entries in stages for entry in entries)  # metadata come before data


@pytest.mark.parametrize("budget", [20_000, 1_000_000])  # two stages, one stage
def test_i58_the_plan_says_what_then_happens(tmp_path: Path, executor: object, budget: int) -> None:
    array = make_array(tmp_path / "source", (40, 40, 20), (1, 40, 20))
    job = rx.rechunk(
        array,
        (40, 4, 4),
        budget,
        tmp_path / "target",
        target_shards=(40, 8, 8),
        executor=executor,
        progress=False,
    )
    text = repr(job)
    shown = {int(number) for number in re.findall(r"\d+", text)}
    for stage in job.stages:
        figures = [len(stage), stage.plan.objects, stage.plan.operations, stage.plan.peak_bytes, stage.plan.nbytes]
        assert set(figures) <= shown
        for shape in (stage.region, stage.read_unit, stage.write_unit):
            assert str(shape) in text
        assert f"{stage.plan.read_amplification:.4g} times" in text
    assert {
        job.plan.tasks,
        job.plan.operations,
        job.plan.objects,
        job.plan.peak_bytes,
        job.plan.temp_bytes,
    } <= shown | {0}
    assert f"traffic {job.plan.traffic:.4g}" in text
    assert rx.Plan.from_json(job.plan.to_json()) == job.plan

    objects: dict[int, int] = {}

    def count(event: Event) -> None:
        for stage in job.stages[:-1]:  # which are gone in the end
            folder = Path(str(stage.target.store), stage.target.path)
            objects[stage.number] = max(objects.get(stage.number, 0), len(stored_objects(folder)))

    assert_exact(job.execute(on_event=count), array)
    objects[len(job.stages) - 1] = len(stored_objects(tmp_path / "target"))
    assert objects == {stage.number: stage.plan.objects for stage in job.stages}
    assert_kept_promises(job)
    assert job.report is not None
    read = job.report.bytes_read + job.report.bytes_written
    assert read / (40 * 40 * 20 * 4) == pytest.approx(job.plan.traffic)


@pytest.mark.parametrize("budget", [16_000, 1_000_000])
def test_i59_listeners_hear_the_total_once_and_each_task_once(
    tmp_path: Path, epochs: ZarrArray, executor: object, budget: int
) -> None:
    job, _ = plan_within(
        budget,
        lambda max_mem: rx.rechunk(epochs, (40, 4, 4), max_mem, tmp_path / "target", executor=executor, progress=False),
    )
    events: list[Event] = []
    job.execute(on_event=events.append)
    assert [event.kind for event in events] == ["start"] + ["task"] * job.plan.tasks
    assert events[0].total == job.plan.tasks
    heard = [(event.stage, event.index) for event in events[1:]]
    assert sorted(heard) == [(stage.number, index) for stage in job.stages for index in range(len(stage))]
    assert [stage for stage, _ in heard] == sorted(stage for stage, _ in heard)
    assert all(event.result is not None and event.result.index == event.index for event in events[1:])


def test_i60_an_axis_that_is_not_named_keeps_its_chunk(tmp_path: Path) -> None:
    array = make_array(tmp_path / "source", (20, 10), (2, 5), dimension_names=("y", "x"))
    target = rx.rechunk(array, {"x": 5}, "1MB", tmp_path / "target", progress=False).execute()
    assert target.chunks == (2, 5)
    target = rx.rechunk(array, {"x": 2}, "1MB", tmp_path / "target-2", progress=False).execute()
    assert target.chunks == (2, 2)


@pytest.mark.parametrize(
    "text, number",
    [("1 GB", 10**9), ("1GiB", 2**30), ("1 kB", 1000), ("1KiB", 1024), ("2.5MB", 2_500_000), (7e8, 7 * 10**8)],
)
def test_i60_units_of_memory(tmp_path: Path, text: str, number: int) -> None:
    array = make_array(tmp_path / "source", (4, 4), (1, 4), "i1")
    assert rx.rechunk(array, (2, 2), text, tmp_path / "target").plan.max_mem == number


def test_i60_arguments_of_a_group_for_a_single_array_say_so(tmp_path: Path) -> None:
    array = make_array(tmp_path / "source", (20, 10), (2, 5), dimension_names=("y", "x"))
    specs: list[Any] = [{"a": (5, 5)}, {"a": {"y": 5}}, {"y": (5, 5)}]
    for spec in specs:
        with pytest.raises(rx.PlanError, match=r"single array.*arrays of a group"):
            rx.rechunk(array, spec, "1MB", tmp_path / "target")


def test_i60_an_unknown_axis_is_told_the_known_ones(tmp_path: Path) -> None:
    array = make_array(tmp_path / "source", (20, 10), (2, 5), dimension_names=("y", "x"))
    with pytest.raises(rx.PlanError, match=r"got 'z'.*'y', 'x'"):
        rx.rechunk(array, {"z": 5}, "1MB", tmp_path / "target")


@pytest.mark.parametrize(
    "shape, spec, goal, whole",
    [
        ((8760, 721, 1440), {"time": -1, "lat": "auto", "lon": "auto"}, 16_000_000, (0,)),  # as it was reported
        ((8760, 721, 1440), {"time": "auto", "lat": -1, "lon": -1}, "16MB", (1, 2)),
        ((8760, 721, 1440), "auto", "64MiB", ()),
    ],
)
def test_i64_chunks_are_chosen_within_the_goal(
    tmp_path: Path, shape: Shape, spec: Any, goal: int | str, whole: Sequence[int]
) -> None:
    array = zarr.create_array(
        tmp_path / "source", shape=shape, chunks=(24, 721, 1440), dtype="f4", dimension_names=("time", "lat", "lon")
    )
    target = StorePath(MemoryStore(), "target")  # a disk may have no room for tens of gigabytes
    jobs = [rx.rechunk(array, spec, "8GB", target, target_bytes=goal, executor="serial") for _ in range(2)]
    (chunk, again) = (job.stages[-1].plan.chunk for job in jobs)
    assert chunk == again
    assert 0.5 <= np.prod(chunk) * 4 / parse_bytes(goal) <= 1.0
    assert [chunk[axis] for axis in whole] == [shape[axis] for axis in whole]
    assert str(chunk) in repr(jobs[0])


def test_i64_small_arrays_are_one_chunk(tmp_path: Path) -> None:
    values: Array = position_values((7, 5), "f4")
    array = make_array(tmp_path / "source", (7, 5), (1, 5), values=values)
    target = rx.rechunk(array, "auto", "1MB", tmp_path / "target", progress=False).execute()
    assert target.chunks == (7, 5)
    assert_exact(target, array)
