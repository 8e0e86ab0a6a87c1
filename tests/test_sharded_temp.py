"""Jobs whose intermediate is one object a task: planned so by themselves, copied, interrupted, resumed, verified."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numcodecs
import pytest
import zarr
from zarr.codecs import BloscCodec
from zarr.storage import ObjectStore, StorePath

import rechunk_exec as rx
from rechunk_exec.results import Event
from rechunk_exec.storage import array_ref, open_array
from tests.conftest import needed_module
from tests.jobs import ZarrArray, assert_exact, assert_kept_promises, make_array, stop_after, tasks_run
from tests.s3 import Bucket
from tests.values import position_values

SHAPE, EPOCHS, SERIES = (19, 29, 20), (1, 29, 20), (19, 6, 5)
MAX_MEM = 14_000


def values() -> Any:
    """By position, with corners of fill value: whole pieces and whole objects."""
    made = position_values(SHAPE, "f4")
    made[:7, :17] = 3
    made[12:14] = 3
    return made


@pytest.fixture
def source(tmp_path: Path) -> ZarrArray:
    return make_array(tmp_path / "source", SHAPE, EPOCHS, values=values(), fill_value=3)


def begin(source: Any, target: Any, **options: Any) -> rx.Rechunked:
    """A job from epochs to series, by way of objects of many pieces, as slow requests want it."""
    options = {"executor": "serial", "progress": False, "cost_model": "object", **options}
    job = rx.rechunk(source, SERIES, MAX_MEM, target, **options)
    first, last = job.plan.stages
    assert first.write_unit == first.region
    assert first.objects == first.tasks < 70
    assert last.read_unit == first.chunk
    assert last.read_units > 5 * first.objects
    return job


def run(source: Any, target: Any, **options: Any) -> rx.Rechunked:
    job = begin(source, target, **options)
    exact = source if isinstance(source, zarr.Array) else open_array(array_ref(source), read_only=True).array
    assert_exact(job.execute(), exact)
    assert_kept_promises(job)
    return job


@pytest.fixture
def executor(request: pytest.FixtureRequest, s3: Bucket) -> Any:
    shared = {"processes": "s3_processes", "dask": "s3_dask"}.get(request.param)
    return request.param if shared is None else request.getfixturevalue(shared)


LONG = pytest.mark.long


@pytest.mark.parametrize(
    "executor, verify",
    [
        ("serial", True),
        ("threads", False),
        ("processes", True),
        pytest.param("serial", False, marks=LONG),
        pytest.param("threads", True, marks=LONG),
        pytest.param("processes", False, marks=LONG),
        pytest.param("dask", False, marks=LONG),
        pytest.param("dask", True, marks=LONG),
    ],
    indirect=["executor"],
)
def test_on_a_disk(source: ZarrArray, tmp_path: Path, executor: Any, verify: bool) -> None:
    job = run(source, tmp_path / "target", temp_store=tmp_path / "temp", executor=executor, verify=verify)
    assert not list((tmp_path / "temp").iterdir())
    assert job.report is not None
    written = [result for result in job.report.results if result.stage == 0]
    assert {(result.writer, result.objects_written) for result in written} == {("direct", 1)}


@pytest.mark.parametrize(
    "executor",
    [
        "processes",
        pytest.param("serial", marks=LONG),  # so do the tests of requests and of going on
        pytest.param("threads", marks=LONG),  # so does the one by obstore
        pytest.param("dask", marks=LONG),
    ],
    indirect=True,
)
def test_on_s3(s3: Bucket, executor: Any) -> None:
    make_array(s3.store("in/source.zarr"), SHAPE, EPOCHS, values=values(), fill_value=3)
    run(s3.url("in/source.zarr"), s3.url("out/target.zarr"), executor=executor, verify=True)
    assert {key.split("/")[1] for key in s3.contents()} == {"source.zarr", "target.zarr"}, "no intermediate is left"


def test_by_obstore(s3: Bucket) -> None:
    stores = needed_module("obstore.store")
    store: Any = ObjectStore(stores.S3Store(s3.name, client_options={"allow_http": True}, endpoint=s3.address))
    source = make_array(store, SHAPE, EPOCHS, values=values(), fill_value=3, name="source")
    run(source, StorePath(store, "target"), temp_store=StorePath(store, "temp"), executor="threads")
    assert {key.split("/")[0] for key in s3.contents()} == {"source", "target", "zarr.json"}


def test_few_requests_a_task(s3: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    make_array(s3.store("source.zarr"), SHAPE, EPOCHS, values=values(), fill_value=3)
    s3fs: Any = needed_module("s3fs")
    made: list[tuple[str, str]] = []
    call = s3fs.S3FileSystem._call_s3

    async def seen(self: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        made.append((method, str(kwargs.get("Key", ""))))
        return await call(self, method, *args, **kwargs)

    monkeypatch.setattr(s3fs.S3FileSystem, "_call_s3", seen)
    job = begin(s3.url("source.zarr"), s3.url("target.zarr"))
    made.clear()
    job.execute()
    first, last = job.plan.stages
    chunks = [method for method, key in made if "/temp-1/c/" in key]
    assert chunks.count("put_object") == first.objects
    # Each index once, and one request for each piece that a task reads of an object; empty ones take none.
    indices, pieces = first.objects, last.read_units
    assert 0.5 * pieces < chunks.count("get_object") - indices < pieces


@pytest.mark.parametrize(
    "place, stage",
    [
        ("disk", 0),
        ("s3", 1),
        pytest.param("disk", 1, marks=LONG),
        pytest.param("s3", 0, marks=LONG),
    ],
)
def test_a_job_goes_on_from_the_middle(s3: Bucket, tmp_path: Path, place: str, stage: int) -> None:
    there: Any = s3.store("source") if place == "s3" else tmp_path / "source"
    source = make_array(there, SHAPE, EPOCHS, values=values(), fill_value=3)
    name = s3.url("source") if place == "s3" else source
    target: Any = s3.url("target") if place == "s3" else tmp_path / "target"
    job = begin(name, target, verify=True)
    totals = [one.tasks for one in job.plan.stages]
    before = sum(totals[:stage]) + 5
    stop_after(before, job)
    again = begin(name, target, mode="resume", verify=True)
    assert_exact(again.execute(), source)
    assert tasks_run(again) <= sum(totals) - before


def lost(path: Path) -> None:
    path.unlink()


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def zeroed(path: Path) -> None:
    """As a power cut may leave it: of the right size, and nothing was written."""
    path.write_bytes(bytes(path.stat().st_size))


@pytest.mark.parametrize("damage", [lost, cut_short, emptied, zeroed])
def test_an_object_that_was_lost_or_torn_is_made_again(
    source: ZarrArray, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    job = begin(source, tmp_path / "target", temp_store=tmp_path / "temp")
    first, last = (stage.tasks for stage in job.plan.stages)
    stop_after(first + 3, job)
    objects = sorted((tmp_path / "temp").glob("*/temp-1/c/*/*/*"))
    assert len(objects) == first
    for path in objects[4:6]:
        damage(path)
    again = begin(source, tmp_path / "target", temp_store=tmp_path / "temp", mode="resume")
    assert_exact(again.execute(), source)
    assert 2 <= tasks_run(again) <= 2 + last - 3


def test_a_torn_object_fails_the_tasks_that_read_it_and_no_other_value_is_written(
    source: ZarrArray, tmp_path: Path
) -> None:
    job = begin(source, tmp_path / "target", temp_store=tmp_path / "temp")
    first = job.plan.stages[0].tasks
    done: list[int] = []

    def tear(event: Event) -> None:
        done.extend([event.index] if event.kind == "task" else [])
        if len(done) == first and event.kind == "task":
            cut_short(next(path for path in sorted((tmp_path / "temp").glob("*/temp-1/c/*/*/*"))))

    with pytest.raises(rx.TaskError, match="torn"):
        job.execute(on_event=tear)
    again = begin(source, tmp_path / "target", temp_store=tmp_path / "temp", mode="resume")
    assert_exact(again.execute(), source)


def test_lines_of_jobs(source: ZarrArray, tmp_path: Path) -> None:
    job = begin(source, tmp_path / "target")
    lines = tmp_path / "jobs.jsonl"
    job.write_jobs(lines)
    for number, stage in enumerate(job.plan.stages):
        rx.run_job(lines, range(stage.tasks), stage=number)
    rx.finalize_jobs(lines, verify=True)
    assert_exact(zarr.open_array(tmp_path / "target", mode="r"), source)


@pytest.mark.parametrize("options", [{"zarr_format": 2}, {"dtype": ">i2"}, {"shards": (2, 29, 20)}])
def test_from_arrays_of_other_kinds(tmp_path: Path, options: Any) -> None:
    dtype = options.pop("dtype", "f4")
    source = make_array(tmp_path / "source", SHAPE, EPOCHS, dtype, **options)
    budget = MAX_MEM if dtype == "f4" else MAX_MEM // 2
    job = rx.rechunk(
        source, SERIES, budget * 2, tmp_path / "target", cost_model="object", executor="serial", progress=False
    )
    assert job.plan.stages[0].chunk != job.plan.stages[0].write_unit
    assert_exact(job.execute(), source)


COMPRESSORS = {
    "none": None,
    "lz4 of numcodecs": numcodecs.Blosc("lz4", clevel=1),
    "of zarr": BloscCodec(cname="lz4", clevel=1, shuffle="shuffle", typesize=4),
    "a dict": {"id": "zstd", "level": 1},
}


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("name", COMPRESSORS)
def test_options_of_intermediates(tmp_path: Path, name: str, zarr_format: Any) -> None:
    if zarr_format == 2 and name == "of zarr":
        pytest.skip("format 2 has codecs of numcodecs")
    source = make_array(tmp_path / "source", SHAPE, EPOCHS, values=values(), zarr_format=zarr_format, fill_value=3)
    for cost_model in ("local", "object"):
        job = rx.rechunk(
            source, SERIES, MAX_MEM, tmp_path / "target", temp_store=tmp_path / "temp", executor="serial",
            temp_options={"compressor": COMPRESSORS[name]}, cost_model=cost_model, mode="overwrite", progress=False,
        )  # fmt: skip
        assert len(job.plan.stages) == 2
        found: list[Any] = []

        def look(event: Event, found: list[Any] = found) -> None:
            if event.kind == "task" and not found:
                (place,) = (tmp_path / "temp").glob("*/temp-1")
                found.append(zarr.open_array(place, mode="r"))

        assert_exact(job.execute(on_event=look), source)
        compressors = found[0].compressors
        assert bool(compressors) == (name != "none")
        assert found[0].chunks == job.plan.stages[0].chunk
        if name != "none":
            assert found[0].shards is None
            assert ("zstd" if name == "a dict" else "lz4") in str(compressors).lower()
        assert_kept_promises(job)


def test_other_options_on_resume_are_refused(source: ZarrArray, tmp_path: Path) -> None:
    def job(**options: Any) -> rx.Rechunked:
        return rx.rechunk(
            source, SERIES, MAX_MEM, tmp_path / "target", executor="serial", progress=False, **options
        )  # fmt: skip

    stop_after(4, job(temp_options={"compressor": numcodecs.LZ4()}))
    for options in ({}, {"temp_options": {"compressor": numcodecs.Zstd(level=1)}}):
        with pytest.raises(rx.ResumeError, match="temp_options"):
            job(mode="resume", **options)
    again = job(mode="resume", temp_options={"compressor": numcodecs.LZ4()})
    assert_exact(again.execute(), source)


def test_an_intermediate_that_compresses_needs_its_codecs_memory(source: ZarrArray, tmp_path: Path) -> None:
    def least(**options: Any) -> int:
        with pytest.raises(rx.BudgetError) as refused:
            rx.rechunk(source, SERIES, 1000, tmp_path / "target", executor="serial", progress=False, **options)
        return refused.value.needed_bytes

    assert 0 < least() <= least(temp_options={"compressor": numcodecs.LZ4()})


def test_on_a_slow_store_intermediates_are_compressed(source: ZarrArray, tmp_path: Path) -> None:
    def job(bps: float | None, **options: Any) -> rx.Rechunked:
        model = replace(rx.CostModel.local(), temp_bps=bps)
        options = {"temp_store": tmp_path / "temp", "mode": "overwrite", "progress": False, **options}
        return rx.rechunk(
            source, SERIES, MAX_MEM, tmp_path / "target", executor="serial", cost_model=model, **options
        )  # fmt: skip

    found: list[bool] = []

    def look(event: Event) -> None:
        (place,) = (tmp_path / "temp").glob("*/temp-1")
        found.append("lz4" in str(zarr.open_array(place, mode="r").compressors))

    for bps, compressed in ((None, False), (1e10, False), (1e8, True)):
        found.clear()
        made = job(bps)
        assert len(made.plan.stages) == 2
        assert_exact(made.execute(on_event=look), source)
        assert set(found) == {compressed}
    stop_after(4, job(1e8))
    again = job(None, mode="resume")  # goes on with what was begun
    found.clear()
    assert_exact(again.execute(on_event=look), source)
    assert set(found) == {True}
    raw = job(1e8, temp_options={"compressor": None})
    found.clear()
    raw.execute(on_event=look)
    assert set(found) == {False}
