"""The functions that users call: every form of every argument, and copies that are exact whatever is asked for."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.codecs import BloscCodec, GzipCodec, ZstdCodec
from zarr.storage import LocalStore, MemoryStore, StorePath, ZipStore

import rechunk_exec as rx
from rechunk_exec.executors import ProcessesExecutor, SerialExecutor, ThreadsExecutor
from tests.conftest import Needs
from tests.jobs import Shape, ZarrArray, assert_exact, assert_kept_promises, elements, make_array, stored_objects
from tests.values import position_values, same_bits

SHAPE = (8, 6, 4)
NAMES = ("time", "y", "x")


@pytest.fixture
def source(tmp_path: Path) -> ZarrArray:
    return make_array(tmp_path / "source.zarr", SHAPE, (1, 6, 4), dimension_names=NAMES, attributes={"units": "m"})


# Chunks and shards.


@pytest.mark.parametrize(
    "spec, chunks",
    [
        ((8, 3, 2), (8, 3, 2)),
        ([8, 3, 2], (8, 3, 2)),
        ((-1, None, 2), (8, 6, 2)),
        ({"time": -1}, (8, 6, 4)),
        ({"time": -1, "x": 2}, (8, 6, 2)),
        ({0: 4, 2: 2}, (4, 6, 2)),
        ({"time": 4, 1: 3}, (4, 3, 4)),
        ({}, (1, 6, 4)),
        (None, (1, 6, 4)),
        (-1, (8, 6, 4)),
        (2, (2, 2, 2)),
        (5, (5, 5, 4)),
        ((100, 100, 100), (8, 6, 4)),
        ("auto", (8, 6, 4)),
        ((-1, "auto", "auto"), (8, 6, 4)),
        (range(1, 4), (1, 2, 3)),
        ((np.int64(8), np.uint8(3), np.int32(2)), (8, 3, 2)),
    ],
)
def test_forms_of_chunks(tmp_path: Path, source: ZarrArray, spec: Any, chunks: Shape) -> None:
    target = rx.rechunk(source, spec, "1MB", tmp_path / "target", progress=False).execute()
    assert target.chunks == chunks
    assert target.shards is None
    assert_exact(target, source)


@pytest.mark.parametrize(
    "spec, shards",
    [
        ((8, 4, 4), (8, 4, 4)),
        ((-1, -1, -1), (8, 6, 4)),
        (-1, (8, 6, 4)),
        ({"y": 4}, (4, 4, 2)),
        ({"time": -1, 2: 4}, (8, 2, 4)),
        ({}, (4, 2, 2)),
        ((100, 100, 100), (8, 6, 4)),
        ((4, 2, None), (4, 2, 2)),
    ],
)
def test_forms_of_shards(tmp_path: Path, source: ZarrArray, spec: Any, shards: Shape) -> None:
    target = rx.rechunk(source, (4, 2, 2), "1MB", tmp_path / "target", target_shards=spec, progress=False).execute()
    assert (target.chunks, target.shards) == ((4, 2, 2), shards)
    assert_exact(target, source)


def test_a_shard_to_the_end_holds_whole_chunks(tmp_path: Path, source: ZarrArray) -> None:
    job = rx.rechunk(source, (3, 4, 3), "1MB", tmp_path / "target", target_shards=-1, progress=False)
    target = job.execute()
    assert target.shards == (9, 8, 6)
    assert len(stored_objects(tmp_path / "target")) == 1
    assert_exact(target, source)


def test_shards_of_the_source_are_dropped_if_none_are_asked_for(tmp_path: Path) -> None:
    array = make_array(tmp_path / "source", SHAPE, (1, 3, 2), shards=(4, 6, 4))
    target = rx.rechunk(array, None, "1MB", tmp_path / "target", progress=False).execute()
    assert (target.chunks, target.shards) == ((1, 3, 2), None)
    assert_exact(target, array)


def test_target_bytes(tmp_path: Path, source: ZarrArray) -> None:
    target = rx.rechunk(
        source, {"time": -1, "y": "auto", "x": "auto"}, "1MB", tmp_path / "target", target_bytes=200, progress=False
    ).execute()
    assert target.chunks == (8, 3, 2)
    assert_exact(target, source)


# Stores.


def packed(folder: Path) -> Path:
    """The source in a zip file, and as an array of a group in another."""
    for name, path in (("array.zip", None), ("group.zip", "layers/height")):
        with ZipStore(folder / name, mode="w") as store:
            make_array(store, SHAPE, (1, 6, 4), name=path)
    return folder


def held(path: str | None = None) -> MemoryStore:
    store = MemoryStore()
    make_array(store, SHAPE, (1, 6, 4), name=path)
    return store


def as_mapping() -> dict[str, Any]:
    content: dict[str, Any] = {}
    make_array(MemoryStore(content), SHAPE, (1, 6, 4))
    return content


SOURCES: Mapping[str, Callable[[Path], Any]] = {
    "path as text": lambda folder: str(folder / "source.zarr"),
    "path": lambda folder: folder / "source.zarr",
    "relative path": lambda folder: os.path.relpath(folder / "source.zarr"),
    "path with a slash": lambda folder: f"{folder}/source.zarr/",
    "link": lambda folder: folder / "link",
    "file URL": lambda folder: f"file://{folder}/source.zarr",
    "file URL, short": lambda folder: f"file:{folder}/source.zarr",
    "array": lambda folder: zarr.open_array(folder / "source.zarr", mode="r"),
    "local store": lambda folder: LocalStore(folder / "source.zarr"),
    "store path": lambda folder: StorePath(LocalStore(folder), "source.zarr"),
    "array of a group": lambda folder: zarr.open_group(folder / "group", mode="r")["height"],
    "memory store": lambda folder: held(),
    "array in memory": lambda folder: zarr.open_array(held(), mode="r"),
    "store path in memory": lambda folder: StorePath(held("layers/height"), "layers/height"),
    "mapping": lambda folder: as_mapping(),
    "zip file": lambda folder: packed(folder) / "array.zip",
    "zip store": lambda folder: ZipStore(packed(folder) / "array.zip", mode="r"),
    "path in a zip store": lambda folder: StorePath(ZipStore(packed(folder) / "group.zip", mode="r"), "layers/height"),
}


@pytest.mark.parametrize("executor", ["threads", pytest.param("serial", marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", SOURCES)
def test_kinds_of_sources(tmp_path: Path, source: ZarrArray, kind: str, executor: str) -> None:
    (tmp_path / "link").symlink_to("source.zarr")
    make_array(StorePath(LocalStore(tmp_path / "group"), "height"), SHAPE, (1, 6, 4))
    given_source = SOURCES[kind](tmp_path)
    job = rx.rechunk(given_source, (8, 3, 2), "1MB", tmp_path / "target", executor=executor, progress=False)
    assert_exact(job.execute(), source)
    assert_kept_promises(job)


@pytest.mark.parametrize(
    "kind", ["path", "file URL", "array", "local store", "store path", "link", "zip file", "path in a zip store"]
)
def test_sources_that_worker_processes_open_by_name(
    tmp_path: Path, source: ZarrArray, kind: str, processes: ProcessesExecutor
) -> None:
    (tmp_path / "link").symlink_to("source.zarr")
    job = rx.rechunk(SOURCES[kind](tmp_path), (8, 3, 2), "1MB", tmp_path / "target", executor=processes, progress=False)
    assert_exact(job.execute(), source)


@pytest.fixture(scope="module")
def processes() -> Iterator[ProcessesExecutor]:
    with ProcessesExecutor(1) as executor:
        yield executor


def test_the_source_is_only_ever_read(tmp_path: Path, source: ZarrArray) -> None:
    for path in [*(tmp_path / "source.zarr").rglob("*"), tmp_path / "source.zarr"]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    before = {path: path.stat() for path in (tmp_path / "source.zarr").rglob("*")}
    target = rx.rechunk(source, (8, 3, 2), "1MB", tmp_path / "target", progress=False).execute()
    assert_exact(target, source)
    after = {path: path.stat() for path in (tmp_path / "source.zarr").rglob("*")}
    assert {path: (stat.st_mtime_ns, stat.st_ino) for path, stat in after.items()} == {
        path: (stat.st_mtime_ns, stat.st_ino) for path, stat in before.items()
    }


TARGETS: Mapping[str, Callable[[Path], Any]] = {
    "path as text": lambda folder: str(folder / "target.zarr"),
    "path": lambda folder: folder / "target.zarr",
    "relative path": lambda folder: os.path.relpath(folder / "target.zarr"),
    "in folders that are not there": lambda folder: folder / "a" / "b" / "target.zarr",
    "file URL": lambda folder: f"file://{folder}/target.zarr",
    "local store": lambda folder: LocalStore(folder / "target.zarr"),
    "store path": lambda folder: StorePath(LocalStore(folder / "group"), "height"),
    "memory store": lambda folder: MemoryStore(),
    "store path in memory": lambda folder: StorePath(MemoryStore(), "layers/height"),
    "mapping": lambda folder: {},
}


IN_SHARDS = ("path", "memory store")


@pytest.mark.parametrize(
    "kind, shards",
    [
        *((kind, None) for kind in TARGETS),
        *(pytest.param(kind, SHAPE, marks=[] if kind in IN_SHARDS else pytest.mark.long) for kind in TARGETS),
    ],
)
def test_kinds_of_targets(tmp_path: Path, source: ZarrArray, kind: str, shards: Shape | None) -> None:
    store = TARGETS[kind](tmp_path)
    target = rx.rechunk(source, (8, 3, 2), "1MB", store, target_shards=shards, progress=False).execute()
    assert (target.chunks, target.shards) == ((8, 3, 2), shards)
    assert dict(target.attrs) == {"units": "m"}
    assert_exact(target, source)
    target[0, 0, 0] = 5  # the array that is returned can be written
    assert target[0, 0, 0] == 5
    with pytest.raises(rx.TargetExistsError):
        rx.rechunk(source, (8, 3, 2), "1MB", store)
    again = rx.rechunk(source, (4, 6, 4), "1MB", store, mode="overwrite", progress=False).execute()
    assert again.chunks == (4, 6, 4)
    assert_exact(again, source)


def test_an_empty_folder_is_a_free_place(tmp_path: Path, source: ZarrArray) -> None:
    (tmp_path / "target").mkdir()
    assert_exact(rx.rechunk(source, (8, 3, 2), "1MB", tmp_path / "target", progress=False).execute(), source)


def test_overwriting_leaves_nothing_of_what_was_there(tmp_path: Path, source: ZarrArray) -> None:
    make_array(tmp_path / "target", (30, 30), (1, 30), zarr_format=2)
    job = rx.rechunk(source, (8, 6, 4), "1MB", tmp_path / "target", mode="overwrite", progress=False)
    assert_exact(job.execute(), source)
    assert sorted(path.name for path in (tmp_path / "target").iterdir()) == [".rechunk_exec", "c", "zarr.json"]
    assert len(stored_objects(tmp_path / "target")) == 1


def test_without_a_target_store_the_result_is_beside_the_source(tmp_path: Path, source: ZarrArray) -> None:
    target = rx.rechunk(source, (8, 3, 2), "1MB", progress=False).execute()
    assert (tmp_path / "source-rechunked.zarr" / "zarr.json").exists()
    assert_exact(target, source)

    make_array(tmp_path / "plain", SHAPE, (1, 6, 4))
    rx.rechunk(tmp_path / "plain", (8, 3, 2), "1MB", progress=False).execute()
    assert (tmp_path / "plain-rechunked" / "zarr.json").exists()

    store = held("layers/height")
    target = rx.rechunk(StorePath(store, "layers/height"), (8, 3, 2), "1MB", progress=False).execute()
    assert target.path == "layers/height-rechunked"
    assert_exact(target, source)


@pytest.mark.parametrize("name", ["height", "/height", "layers/height", "layers/height/", r"layers\height"])
def test_array_name_is_a_path_in_the_store(tmp_path: Path, source: ZarrArray, name: str) -> None:
    target = rx.rechunk(source, (8, 3, 2), "1MB", tmp_path / "store", array_name=name, progress=False).execute()
    assert_exact(target, source)
    opened: Any = zarr.open_group(tmp_path / "store", mode="r")[name.strip("/")]
    assert_exact(opened, source)
    assert not {entry.name for entry in (tmp_path / "store").iterdir()} - {"zarr.json", "height", "layers"}
    store = MemoryStore()
    rx.rechunk(source, (8, 3, 2), "1MB", store, array_name=name, progress=False).execute()
    assert_exact(zarr.open_array(store, path=name.strip("/")), source)


def test_two_arrays_in_one_store(tmp_path: Path, source: ZarrArray) -> None:
    zarr.create_group(tmp_path / "store", attributes={"title": "two"})
    for name in ("a", "b"):
        rx.rechunk(source, (8, 3, 2), "1MB", tmp_path / "store", array_name=name, progress=False).execute()
    group = zarr.open_group(tmp_path / "store", mode="r")
    assert sorted(group.array_keys()) == ["a", "b"]
    assert dict(group.attrs) == {"title": "two"}
    for name in ("a", "b"):
        assert_exact(group[name], source)  # type: ignore[arg-type]


TEMPS: Mapping[str, Callable[[Path], Any]] = {
    "none": lambda folder: None,
    "path as text": lambda folder: str(folder / "temp"),
    "path": lambda folder: folder / "temp",
    "file URL": lambda folder: f"file://{folder}/temp",
    "local store": lambda folder: LocalStore(folder / "temp"),
    "memory store": lambda folder: MemoryStore(),
    "mapping": lambda folder: {},
    "store path in memory": lambda folder: StorePath(MemoryStore(), "scratch"),
    "the target's folder": lambda folder: folder,
}


@pytest.mark.parametrize("executor", [pytest.param("serial", marks=pytest.mark.long), "threads"])
@pytest.mark.parametrize("kind", TEMPS)
def test_kinds_of_temp_stores(tmp_path: Path, source: ZarrArray, kind: str, executor: str) -> None:
    job = rx.rechunk(
        source,
        (8, 6, 1),
        1300,
        tmp_path / "target",
        temp_store=TEMPS[kind](tmp_path),
        executor=executor,
        progress=False,
    )
    assert len(job.stages) == 2
    assert job.plan.temp_bytes == math.prod(SHAPE) * 4
    assert_exact(job.execute(), source)
    assert_kept_promises(job)


# Formats, codecs, metadata.


DTYPES = ["f4", ">f8", "i2", "bool", "c16", "S5", "U3", "M8[ns]", "V7"]
FORMATS = [(2, 2, "C"), (2, 3, "C"), (3, 2, "C"), (3, 3, "C")]
OTHER_FORMATS = [(2, None, "C"), (3, None, "C"), (2, 2, "F"), (2, 3, "F")]
FEW = [">f8", "U3"]
"""Of those that our codecs serve, and of those that zarr does."""


@pytest.mark.parametrize(
    "dtype, source_format, target_format, order",
    [
        *((dtype, *formats) for dtype in DTYPES for formats in FORMATS),
        *((dtype, *formats) for dtype in FEW for formats in OTHER_FORMATS),
        *(
            pytest.param(dtype, *formats, marks=pytest.mark.long)
            for dtype in DTYPES
            if dtype not in FEW
            for formats in OTHER_FORMATS
        ),
    ],
)
def test_formats_and_dtypes(tmp_path: Path, dtype: str, source_format: Any, target_format: Any, order: Any) -> None:
    options = {"order": order} if source_format == 2 else {}
    array = make_array(tmp_path / "source", (7, 6, 5), (1, 6, 5), dtype, zarr_format=source_format, **options)
    target = rx.rechunk(
        array, (7, 4, 2), "1MB", tmp_path / "target", zarr_format=target_format, progress=False
    ).execute()
    assert target.metadata.zarr_format == (target_format or source_format)
    assert target.dtype.newbyteorder("=") == array.dtype.newbyteorder("=")
    assert_exact(target, array)


@pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr version 3")  # zarr 3.1, on opening
@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize(
    "compressor",
    [None, numcodecs.Blosc("zstd", 3, 2), numcodecs.Zstd(1), numcodecs.GZip(1), numcodecs.LZ4(), numcodecs.BZ2(1)],
)
def test_rechunkers_compressor_works_in_both_formats(
    tmp_path: Path, source: ZarrArray, compressor: Any, zarr_format: Any
) -> None:
    target = rx.rechunk(
        source,
        (8, 3, 2),
        "1MB",
        tmp_path / "target",
        target_options={"compressor": compressor},
        zarr_format=zarr_format,
        progress=False,
    ).execute()
    assert len(target.compressors) == (0 if compressor is None else 1)
    if compressor is not None and zarr_format == 2:
        assert target.metadata.compressor == compressor  # type: ignore[union-attr]
    assert_exact(target, source)


@pytest.mark.parametrize(
    "compressors",
    [(), BloscCodec(cname="lz4"), [ZstdCodec(level=1)], [GzipCodec(level=1)], [GzipCodec(level=1), ZstdCodec(level=1)]],
)
@pytest.mark.parametrize("shards", [None, (8, 6, 4)])
def test_zarrs_own_names_of_options(tmp_path: Path, source: ZarrArray, compressors: Any, shards: Shape | None) -> None:
    options = {
        "compressors": compressors,
        "attributes": {"units": "km"},
        "dimension_names": ("t", "row", "column"),
        "chunk_key_encoding": {"name": "default", "separator": "."},
    }
    target = rx.rechunk(
        source,
        (8, 3, 2),
        "1MB",
        tmp_path / "target",
        target_shards=shards,
        target_options=options,
        progress=False,
    ).execute()
    assert dict(target.attrs) == {"units": "km"}
    assert target.metadata.dimension_names == ("t", "row", "column")  # type: ignore[union-attr]
    assert_exact(target, source)


@pytest.mark.parametrize("fill", [3.5, np.nan, -0.0])
def test_another_fill_value_changes_no_element(tmp_path: Path, fill: float) -> None:
    array = zarr.create_array(tmp_path / "source", shape=SHAPE, chunks=(1, 6, 4), dtype="f4", fill_value=1)
    array[3] = fill  # and the other chunks are absent
    target = rx.rechunk(
        array, (4, 3, 4), "1MB", tmp_path / "target", target_options={"fill_value": fill}, progress=False
    ).execute()
    assert np.array(target.fill_value, "f4").tobytes() == np.array(fill, "f4").tobytes()
    assert_exact(target, array)


def test_chunks_that_are_absent_stay_absent(tmp_path: Path) -> None:
    array = zarr.create_array(tmp_path / "source", shape=(8, 8), chunks=(2, 8), dtype="f4", fill_value=np.nan)
    job = rx.rechunk(array, (8, 2), "1MB", tmp_path / "target", progress=False)
    assert_exact(job.execute(), array)
    assert stored_objects(tmp_path / "target") == []
    assert_kept_promises(job)


# Executors.


def test_each_name_of_an_executor(tmp_path: Path, source: ZarrArray) -> None:
    for name in ("serial", "python", "threads", "processes"):
        job = rx.rechunk(source, (8, 3, 2), "1MB", tmp_path / name, executor=name, progress=False)
        assert_exact(job.execute(), source)
        assert job.report is not None
        assert job.report.executor == {"python": "serial"}.get(name, name)


def test_an_executor_of_ones_own_is_not_closed(tmp_path: Path, source: ZarrArray) -> None:
    with ThreadsExecutor(3) as executor:
        for number in range(2):
            job = rx.rechunk(source, (8, 3, 2), "1MB", tmp_path / f"{number}", executor=executor, progress=False)
            assert_exact(job.execute(), source)


@pytest.mark.parametrize("make", [lambda: ThreadPoolExecutor(3), lambda: ProcessPoolExecutor(1, get_context("spawn"))])
def test_pools_of_the_standard_library(tmp_path: Path, source: ZarrArray, make: Callable[[], Any]) -> None:
    with make() as pool:
        job = rx.rechunk(source, (8, 3, 2), 1300, tmp_path / "target", executor=pool, progress=False)
        assert_exact(job.execute(), source)
        assert list(pool.map(abs, [-1])) == [1]  # it was not shut down
    assert job.report is not None
    assert job.report.executor == type(pool).__name__
    assert_kept_promises(job)


def test_a_plain_function_runs_the_tasks(tmp_path: Path, source: ZarrArray) -> None:
    got: list[Any] = []

    def staged_copy(*arguments: Any) -> str:
        got.append(arguments)
        for stage in arguments[0]:
            for task in reversed(stage):
                rx.run_task(rx.CopyTask.from_json(task.to_json()))
                rx.run_task(task)  # twice does no harm
        return "ignored"

    job = rx.rechunk(source, (8, 6, 1), 1300, tmp_path / "target", executor=staged_copy, progress=False)
    assert len(job.stages) == 2
    assert_exact(job.execute(), source)
    assert got == [(job.stages,)]
    assert_kept_promises(job)
    assert job.report is not None
    assert job.report.executor == "staged_copy"
    assert rx.status(tmp_path / "target").state == "finished"


def test_a_foreign_executor_of_two_names_and_a_method(tmp_path: Path, source: ZarrArray) -> None:
    @dataclass
    class Foreign:
        name: str = "foreign"
        tasks_per_worker: int = 2

        def staged_copy(self, stages: Any, *, on_event: Any = None) -> rx.CopyReport:
            return rx.staged_copy(stages, "serial", on_event=on_event)

    job = rx.rechunk(source, (8, 3, 2), "1MB", tmp_path / "target", executor=Foreign(), progress=False)
    assert {stage.plan.tasks_per_worker for stage in job.stages} == {2}
    assert_exact(job.execute(), source)


# Progress.


def test_no_progress_is_silent(
    tmp_path: Path, source: ZarrArray, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "rechunk_exec")
    rx.rechunk(source, (8, 3, 2), "1MB", tmp_path / "target", progress=False).execute()
    assert tuple(capfd.readouterr()) == ("", "")
    assert caplog.records == []


def test_progress_goes_to_the_log_where_there_is_no_terminal(
    tmp_path: Path, source: ZarrArray, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "rechunk_exec")
    job = rx.rechunk(source, (1, 6, 1), "1MB", tmp_path / "target", executor="serial")
    job.execute()
    assert capfd.readouterr().out == ""
    assert caplog.records
    assert f"{job.plan.tasks} of {job.plan.tasks} tasks" in caplog.messages[-1]


# Verification.


def test_verify_compares_source_and_target(tmp_path: Path, source: ZarrArray) -> None:
    job = rx.rechunk(source, (8, 3, 2), "1MB", tmp_path / "target", verify=True, progress=False)
    target = job.execute()
    assert rx.verify(source, target).ok
    assert rx.verify(tmp_path / "source.zarr", str(tmp_path / "target")).ok

    target[7, 5, 3] = 1
    report = rx.verify(source, target)
    assert not report.ok
    assert [(box.start, box.stop) for box in report.differing] == [((0, 3, 2), (8, 6, 4))]
    assert "differ" in str(report)


def test_verify_finds_what_the_copy_spoiled(tmp_path: Path, source: ZarrArray) -> None:
    def spoils(stages: Any) -> None:
        for stage in stages:
            for task in stage:
                rx.run_task(task)
        target = zarr.open_array(tmp_path / "target", mode="r+")
        target[0, 0, 1] = -np.asarray(target[0, 0, 1])

    job = rx.rechunk(source, (8, 3, 2), "1MB", tmp_path / "target", executor=spoils, verify=True, progress=False)
    with pytest.raises(rx.RechunkError, match=r"1 of 4 boxes differ.*\(0, 0, 0\)") as error:
        job.execute()
    assert str(tmp_path / "target") in str(error.value)


def test_verify_of_what_cannot_be_compared(tmp_path: Path, source: ZarrArray) -> None:
    other = make_array(tmp_path / "other", SHAPE, (1, 6, 4), "f8")
    with pytest.raises(rx.StorageError, match="one shape and dtype"):
        rx.verify(source, other)
    with pytest.raises(rx.StorageError, match="nothing is at"):
        rx.verify(source, tmp_path / "nowhere")


# Everything at once.


@dataclass(frozen=True)
class Problem:
    """One request."""

    shape: Shape
    dtype: str
    chunks: Shape
    source_shards: Shape | None
    source_format: int
    target: Shape
    shards: Shape | None
    zarr_format: int
    budget: float
    compressed: bool
    fill: bool
    in_memory: bool
    seed: int


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    ndim = draw(st.sampled_from([0, 1, 2, 2, 3, 3, 4]))
    sides = st.one_of(st.sampled_from([0, 1, 2, 7, 11, 13]), st.integers(1, 12 if ndim > 2 else 30))
    shape = tuple(draw(sides) for _ in range(ndim))
    # Up to a third longer than the axis.
    chunks = tuple(draw(st.integers(1, max(1, n + n // 3))) for n in shape)
    target = tuple(draw(st.integers(1, max(1, n + n // 3))) for n in shape)
    formats = draw(st.sampled_from([2, 3])), draw(st.sampled_from([2, 3]))
    times = st.integers(1, 4)
    source_shards = tuple(c * draw(times) for c in chunks) if formats[0] == 3 and ndim and draw(st.booleans()) else None
    clipped = tuple(min(c, max(n, 1)) for c, n in zip(target, shape, strict=True))
    shards = tuple(c * draw(times) for c in clipped) if formats[1] == 3 and ndim and draw(st.booleans()) else None
    return Problem(
        shape=shape,
        dtype=draw(st.sampled_from(["i1", "f4", "f8", ">i2", "c16", "S3", "M8[s]"])),
        chunks=chunks,
        source_shards=source_shards,
        source_format=formats[0],
        target=target,
        shards=shards,
        zarr_format=formats[1],
        budget=draw(st.floats(1, 20)),
        compressed=draw(st.booleans()),
        fill=draw(st.booleans()),
        in_memory=draw(st.booleans()),
        seed=draw(st.integers(0, 99)),
    )


@pytest.fixture(scope="module", params=[pytest.param("serial", marks=pytest.mark.long), "threads"])
def pool(request: pytest.FixtureRequest) -> Iterator[Any]:
    with SerialExecutor() if request.param == "serial" else ThreadsExecutor(3) as executor:
        yield executor


@settings(max_examples=40)
@given(problem=problems())
def test_every_request_is_refused_with_a_number_or_copied_exactly(
    problem: Problem, pool: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("job")
    values = position_values(problem.shape, problem.dtype, problem.seed)
    if problem.fill and values.size:
        values.reshape(-1)[values.size // 3 :] = 0  # some chunks are absent
    compressors: Any = {"compressors": "auto" if problem.compressed else None}
    array = make_array(
        MemoryStore() if problem.in_memory else folder / "source",
        problem.shape,
        problem.chunks,
        problem.dtype,
        values=values,
        shards=problem.source_shards,
        zarr_format=problem.source_format,
        **compressors,
    )
    least = max(values.itemsize * math.prod(problem.shape) // 10, 1)
    budget = int(least * problem.budget)

    def plan(max_mem: int) -> rx.Rechunked:
        return rx.rechunk(
            array,
            problem.target,
            max_mem,
            StorePath(MemoryStore(), "target") if problem.in_memory else folder / "target",
            target_shards=problem.shards,
            zarr_format=problem.zarr_format,  # type: ignore[arg-type]
            executor=pool,
            progress=False,
        )

    try:
        job = plan(budget)
    except rx.BudgetError as refusal:
        needed = refusal.needed_bytes
        assert needed > budget
        with pytest.raises(rx.BudgetError) as again:
            plan(needed - 1)
        assert again.value.needed_bytes == needed
        job = plan(needed)
    target = job.execute()
    assert same_bits(elements(target), values)
    assert target.metadata.zarr_format == problem.zarr_format
    assert_kept_promises(job)


# Other libraries.


def test_strings_of_any_length(tmp_path: Path, needs: Needs) -> None:
    for number, (dtype, zarr_format) in enumerate([(str, 2), (str, 3), ("T", 3)]):
        try:
            array = make_array(tmp_path / f"source-{number}", (7, 5), (1, 5), dtype, zarr_format=zarr_format)
        except (TypeError, ValueError):
            continue  # this zarr does not have it
        target = rx.rechunk(array, (7, 2), "1MB", tmp_path / f"target-{number}", progress=False).execute()
        assert [str(text) for text in elements(target).ravel()] == [str(text) for text in elements(array).ravel()]


def test_as_many_requests_wait_side_by_side_as_an_object_store_serves(tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "a.zarr", shape=(128, 512, 512), chunks=(1, 256, 256), dtype="f4")
    asked: dict[str, Any] = {
        "target_chunks": (128, 64, 64),
        "target_shards": (128, 256, 256),
        "target_store": tmp_path / "t.zarr",
    }
    workers = ThreadsExecutor(2)
    local, far = (
        rx.rechunk(tmp_path / "a.zarr", max_mem="400MB", executor=workers, cost_model=model, **asked).plan.stages[0]
        for model in ("local", "object")
    )
    assert local.threads * local.tasks_per_worker == 2
    assert far.threads == 16


def test_limits_bound_what_a_job_stores(tmp_path: Path) -> None:
    source = make_array(tmp_path / "source", (40, 40, 20), (1, 40, 20))

    def plan(**limits: Any) -> rx.Plan:
        options = {"executor": "serial", "progress": False, **limits}
        planned = rx.rechunk(source, (40, 4, 4), 16_000, tmp_path / "target", **options).plan
        assert isinstance(planned, rx.Plan)
        return planned

    free = plan()
    assert free.temp_bytes == 128_000
    assert plan(max_temp_bytes=0).temp_bytes == 0
    assert plan(max_objects=free.objects - 1).objects < free.objects
    assert all(math.prod(s.write_unit) * 4 >= 2_560 for s in plan(min_object_bytes="2560").stages)
    with pytest.raises(rx.PlanError, match=r"target chunks \(40, 4, 4\) of 2560 bytes"):
        plan(min_object_bytes=2_561)
    for wrong in ({"max_objects": 0}, {"max_objects": 1.5}, {"min_object_bytes": -1}, {"max_temp_bytes": "lots"}):
        with pytest.raises(rx.PlanError, match=next(iter(wrong))):
            plan(**wrong)
