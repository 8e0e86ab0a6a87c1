"""What cannot work is refused while planning, by one of our errors: the rule, what was given, the remedy.

Nothing is created and nothing is touched by a refusal: folders are compared, with contents and times.
"""

from __future__ import annotations

import itertools
import os
import re
import secrets
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.codecs import GzipCodec, TransposeCodec, ZstdCodec
from zarr.storage import LocalStore, MemoryStore, StorePath, ZipStore

import rechunk_exec as rx
from rechunk_exec.executors import SerialExecutor, ThreadsExecutor
from tests.jobs import ZarrArray, assert_exact, elements, make_array, snapshot, stored_objects
from tests.values import position_values

SHAPE = (8, 6, 4)
NAMES = ("time", "y", "x")


@pytest.fixture
def source(tmp_path: Path) -> ZarrArray:
    return make_array(tmp_path / "source", SHAPE, (1, 6, 4), dimension_names=NAMES)


def refusal(tmp_path: Path, expected: type[rx.RechunkError], *arguments: Any, **options: Any) -> str:
    """The message that a request is refused with; nothing may have changed in the folder or the working folder."""
    before, here = snapshot(tmp_path), sorted(Path().iterdir())
    with pytest.raises(expected) as error:
        rx.rechunk(*arguments, **options)
    assert snapshot(tmp_path) == before
    assert sorted(Path().iterdir()) == here
    assert type(error.value) is expected
    return str(error.value)


# Sizes.


@pytest.mark.parametrize(
    "max_mem",
    [
        0,
        -1,
        "0",
        "-5MB",
        "",
        "lots",
        "1 XB",
        "1,000",
        "\uff11MB",
        b"1MB",
        None,
        True,
        1.5,
        float("nan"),
        float("inf"),
        [1],
        {},
        1j,
    ],
)
def test_memory_that_is_no_size(tmp_path: Path, source: ZarrArray, max_mem: Any) -> None:
    message = refusal(tmp_path, rx.PlanError, source, (8, 2, 2), max_mem, tmp_path / "target")
    assert message.startswith("max_mem must be ")
    assert f"got {max_mem!r}" in message
    assert "'8GB'" in message


@pytest.mark.parametrize(
    "max_mem", [10**6, "1MB", "1e6", "0.001 GB", " 1 mb ", np.int64(10**6), np.float64(1e6), 2**63 - 1]
)
def test_memory_that_is_a_size(tmp_path: Path, source: ZarrArray, max_mem: Any) -> None:
    assert rx.rechunk(source, (8, 2, 2), max_mem, tmp_path / "target").plan.max_mem in {10**6, 2**63 - 1}


@pytest.mark.parametrize("target_bytes", [0, -1, "many", 1.5, True, [1]])
def test_target_bytes_that_are_no_size(tmp_path: Path, source: ZarrArray, target_bytes: Any) -> None:
    message = refusal(tmp_path, rx.PlanError, source, "auto", "1MB", tmp_path / "target", target_bytes=target_bytes)
    assert message.startswith("target_bytes must be ")
    assert f"got {target_bytes!r}" in message


@pytest.mark.parametrize(
    "chunks, wanted",
    [
        ((0, 1, 1), ["'time'", "got 0", "-1 for the whole axis"]),
        ((-2, 1, 1), ["'time'", "got -2", "at least 1"]),
        ((1, 1.0, 1), ["'y'", "got 1.0"]),
        ((1, True, 1), ["'y'", "got True"]),
        ((1, "2", 1), ["'y'", "got '2'"]),
        ((1, (2, 4), 1), ["'y'", "got (2, 4)"]),
        (0, ["'time'", "got 0"]),
        (1.5, ["got 1.5"]),
        ("whole", ["got 'whole'"]),
        ("-1", ["got '-1'"]),
        (object, ["got <class 'object'>"]),
        ({1}, ["got {1}"]),
        ((8, 2), ["got 2", "(8, 2)", "3 axes"]),
        ((8, 2, 2, 1), ["got 4", "(8, 2, 2, 1)", "3 axes"]),
        ([], ["got 0", "3 axes"]),
        ({"z": 2}, ["'z'", "'time', 'y', 'x'", "numbered 0 to 2"]),
        ({3: 2}, ["got 3", "numbered 0 to 2"]),
        ({-1: 2}, ["got -1", "numbered 0 to 2"]),
        ({True: 2}, ["got True"]),
        ({None: 2}, ["got None"]),
        ({"x": 0}, ["'x'", "got 0"]),
        ({"x": "wide"}, ["'x'", "got 'wide'"]),
        ({"x": 2, 2: 3}, ["two", "'x'"]),
        ({"height": (8, 2, 2)}, ["single array", "'height'"]),
        ({"height": {"x": 2}}, ["single array", "'height'"]),
    ],
)
def test_chunks_that_are_none(tmp_path: Path, source: ZarrArray, chunks: Any, wanted: list[str]) -> None:
    message = refusal(tmp_path, rx.PlanError, source, chunks, "1MB", tmp_path / "target")
    for text in wanted:
        assert text in message


@pytest.mark.parametrize(
    "shards, wanted",
    [
        ((8, 3, 4), ["(8, 3, 4)", "(8, 2, 2)", "'y'", "2 or 4"]),
        ((4, 1, 1), ["(4, 1, 1)", "swapped"]),
        ((0, 2, 2), ["'time'", "got 0"]),
        ((8, 2), ["got 2", "3 axes"]),
        ({"z": 2}, ["'z'", "'time', 'y', 'x'"]),
        ("auto", ["got 'auto'"]),
        (True, ["got True"]),
        (2.5, ["got 2.5"]),
    ],
)
def test_shards_that_are_none(tmp_path: Path, source: ZarrArray, shards: Any, wanted: list[str]) -> None:
    message = refusal(tmp_path, rx.PlanError, source, (8, 2, 2), "1MB", tmp_path / "target", target_shards=shards)
    for text in wanted:
        assert text in message


def test_shards_need_format_3(tmp_path: Path) -> None:
    array = make_array(tmp_path / "source", SHAPE, (1, 6, 4), zarr_format=2)
    message = refusal(tmp_path, rx.PlanError, array, (8, 2, 2), "1MB", tmp_path / "target", target_shards=(8, 4, 4))
    for text in ("(8, 4, 4)", "format 2", "zarr_format=3"):
        assert text in message


def test_a_chunk_that_no_codec_can_take(tmp_path: Path) -> None:
    array = zarr.create_array(tmp_path / "source", shape=(2**16, 2**16), chunks=(64, 64), dtype="f4")
    message = refusal(tmp_path, rx.PlanError, array, -1, "100GB", tmp_path / "target")
    for text in (str(2**31 - 1), str(2**34), "(65536, 65536)", "smaller target chunks"):
        assert text in message


@settings(max_examples=25)
@given(
    st.recursive(
        st.one_of(
            st.none(), st.integers(-3, 9), st.floats(), st.booleans(), st.text(max_size=3), st.binary(max_size=3)
        ),
        lambda inner: st.one_of(
            st.lists(inner, max_size=4),
            st.tuples(inner, inner, inner),
            st.dictionaries(
                st.one_of(st.sampled_from(NAMES), st.integers(-1, 3), st.text(max_size=2)), inner, max_size=4
            ),
        ),
        max_leaves=6,
    ),
    st.sampled_from(["chunks", "shards"]),
)
def test_no_chunk_or_shard_argument_gives_any_other_error(spec: Any, argument: str) -> None:
    array = zarr.create_array(MemoryStore(), shape=SHAPE, chunks=(1, 6, 4), dtype="f4", dimension_names=NAMES)
    target = MemoryStore()
    try:
        if argument == "chunks":
            job = rx.rechunk(array, spec, "1MB", target)
        else:
            job = rx.rechunk(array, (4, 2, 2), "1MB", target, target_shards=spec)
    except rx.PlanError as error:
        assert "; " in str(error)
    else:
        stage = job.stages[-1].plan
        assert all(size >= 1 for size in stage.chunk)
        assert all(1 <= size <= n for size, n in zip(stage.write_unit, SHAPE, strict=True))
    assert not target._store_dict


# Memory that does not suffice.


def four_threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(4)


LAYOUTS: list[Any] = [
    ((30, 40, 20), (1, 40, 20), (30, 4, 4), None, {}),
    ((30, 40, 20), (1, 40, 20), (30, 4, 4), (30, 16, 8), {}),
    ((31, 37, 23), (7, 37, 23), (31, 5, 3), (31, 10, 9), {"dtype": "i2"}),
    ((30, 40, 20), (1, 40, 20), (30, 4, 4), None, {"compressors": None}),
    ((30, 40, 20), (1, 40, 20), (30, 4, 4), None, {"zarr_format": 2, "order": "F"}),
    ((30, 40, 20), (10, 10, 10), (10, 10, 10), None, {}),
    ((500,), (500,), (7,), None, {"dtype": "S5"}),
    ((), (), (), None, {}),
]
POOLS = ["serial", "threads", "processes", SerialExecutor, ThreadsExecutor, four_threads]
SHARDED = LAYOUTS[1]


@pytest.mark.parametrize(
    "make, shape, chunks, target, shards, options",
    [
        # Any layout with the usual executor, and any executor with shards.
        pytest.param(make, *layout, marks=[] if make == "threads" or layout is SHARDED else pytest.mark.long)
        for make, layout in itertools.product(POOLS, LAYOUTS)
    ],
)
def test_the_needed_bytes_are_exact(
    tmp_path: Path, make: Any, shape: Any, chunks: Any, target: Any, shards: Any, options: Mapping[str, Any]
) -> None:
    array = make_array(tmp_path / "source", shape, chunks, **options)
    pool = make if isinstance(make, str) else make()

    def plan(max_mem: int) -> rx.Rechunked:
        return rx.rechunk(
            array, target, max_mem, tmp_path / "target", target_shards=shards, executor=pool, progress=False
        )

    try:
        before = snapshot(tmp_path)
        needed = set()
        for max_mem in (1, 2, 3):
            with pytest.raises(rx.BudgetError) as error:
                plan(max_mem)
            assert error.value.max_mem == max_mem
            needed.add(error.value.needed_bytes)
        (least,) = needed
        for wanted in (f"max_mem={3} ", str(least), str(tmp_path / "source")):
            assert wanted in str(error.value)
        with pytest.raises(rx.BudgetError) as error:
            plan(least - 1)
        assert error.value.needed_bytes == least
        assert snapshot(tmp_path) == before

        job = plan(least)
        assert job.plan.peak_bytes <= least
        if make != "processes":  # which takes a while to start
            assert_exact(job.execute(), array)
            assert job.report is not None
            assert max(result.predicted_bytes for result in job.report.results) <= least
    finally:
        if not isinstance(pool, str):
            (pool.shutdown if isinstance(pool, Executor) else pool.close)()


# Sources.


@pytest.mark.parametrize(
    "place, wanted",
    [
        ("nowhere", "nothing is at"),
        ("file", "no zarr array"),
        ("folder", "no zarr array"),
        ("group", "a group"),
        ("group-2", "a group"),
        ("source/c", "no zarr array"),
        ("file/inside", "nothing is at"),
        ("damaged", ""),
        ("nowhere\0", "nothing is at"),
    ],
)
@pytest.mark.parametrize("kind", [str, Path, LocalStore])
def test_a_source_that_is_no_array(
    tmp_path: Path, source: ZarrArray, place: str, wanted: str, kind: Callable[[str], object]
) -> None:
    (tmp_path / "file").write_text("no array")
    (tmp_path / "folder").mkdir()
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "zarr.json").write_text('{"zarr_format": 3, "node_type": "array"')
    zarr.create_group(tmp_path / "group").create_array("a", shape=(4,), chunks=(2,), dtype="i4")
    zarr.create_group(tmp_path / "group-2", zarr_format=2)
    message = refusal(tmp_path, rx.StorageError, kind(f"{tmp_path}/{place}"), (2,), "1MB", tmp_path / "target")
    assert wanted in message
    assert f"{tmp_path}/{place}" in message


@pytest.mark.parametrize("thing", [3, None, b"path", [], [1, 2], object(), np.zeros(3), range(3), print, rx])
def test_a_source_that_is_nothing_of_the_kind(tmp_path: Path, thing: Any) -> None:
    message = refusal(tmp_path, rx.PlanError, thing, (2,), "1MB", tmp_path / "target")
    assert "the source must be a path, a URL, a zarr array or a zarr store" in message
    assert type(thing).__name__ in message


def test_a_group_is_told_that_it_has_several_arrays(tmp_path: Path) -> None:
    group = zarr.create_group(tmp_path / "group")
    message = refusal(tmp_path, rx.PlanError, group, {"a": (2,)}, "1MB", tmp_path / "target")
    assert "give one of them" in message


def test_a_store_without_an_array(tmp_path: Path) -> None:
    for store in (MemoryStore(), {}, StorePath(MemoryStore(), "a"), {"zarr.json": "not what belongs there"}):
        refusal(tmp_path, rx.StorageError, store, (2,), "1MB", tmp_path / "target")


# Targets.


@pytest.mark.parametrize("mode", ["fail", "overwrite"])
@pytest.mark.parametrize("place", ["source", "source/inside", "source/c/0", ".", "link", "link/inside", "up/source"])
def test_a_target_that_is_the_source_or_lies_inside_it_or_around_it(
    tmp_path: Path, source: ZarrArray, place: str, mode: Any
) -> None:
    (tmp_path / "link").symlink_to("source")
    (tmp_path / "up").symlink_to(".")
    message = refusal(tmp_path, rx.PlanError, source, (8, 2, 2), "1MB", tmp_path / place, mode=mode)
    assert "source and target must not be the same or inside each other" in message
    assert str(tmp_path / "source") in message
    assert str(tmp_path / place) in message
    assert "another target_store" in message


@pytest.mark.parametrize("path, target", [("", ""), ("a", "a"), ("a", ""), ("a", "a/b"), ("a/b", "a")])
def test_a_target_that_is_the_source_in_memory(path: str, target: str) -> None:
    store = MemoryStore()
    make_array(store, SHAPE, (1, 6, 4), name=path or None)
    before = dict(store._store_dict)
    with pytest.raises(rx.PlanError, match="must not be the same or inside each other"):
        rx.rechunk(StorePath(store, path), (8, 2, 2), "1MB", StorePath(store, target), mode="overwrite")
    assert store._store_dict == before


@pytest.mark.parametrize("mode", ["fail", "overwrite"])
@pytest.mark.parametrize(
    "place, what", [("file", "a file"), ("folder", "no zarr array"), ("group", "a group"), ("broken", "broken")]
)
def test_foreign_things_in_the_way_are_never_replaced(
    tmp_path: Path, source: ZarrArray, place: str, what: str, mode: Any
) -> None:
    (tmp_path / "file").write_text("precious")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "notes.txt").write_text("precious")
    zarr.create_group(tmp_path / "group").create_array("a", shape=(4,), chunks=(2,), dtype="i4")
    (tmp_path / "broken").symlink_to("nowhere")
    message = refusal(tmp_path, rx.TargetExistsError, source, (8, 2, 2), "1MB", tmp_path / place, mode=mode)
    for text in (what, str(tmp_path / "source"), str(tmp_path / place), "nothing was touched", "another target_store"):
        assert text in message


def test_an_existing_array_is_replaced_only_if_that_is_asked_for(tmp_path: Path, source: ZarrArray) -> None:
    make_array(tmp_path / "target", (3, 3), (1, 3))
    message = refusal(tmp_path, rx.TargetExistsError, source, (8, 2, 2), "1MB", tmp_path / "target")
    for text in (str(tmp_path / "source"), str(tmp_path / "target"), "nothing was touched", "mode='overwrite'"):
        assert text in message
    before = snapshot(tmp_path)
    job = rx.rechunk(source, (8, 2, 2), "1MB", tmp_path / "target", mode="overwrite", progress=False)
    assert snapshot(tmp_path) == before
    assert_exact(job.execute(), source)


def test_what_comes_into_the_way_after_planning_is_not_touched(tmp_path: Path, source: ZarrArray) -> None:
    job = rx.rechunk(source, (8, 2, 2), "1MB", tmp_path / "target", progress=False)
    make_array(tmp_path / "target", (3, 3), (1, 3))
    before = snapshot(tmp_path)
    with pytest.raises(rx.TargetExistsError):
        job.execute()
    assert snapshot(tmp_path) == before


def test_a_target_in_a_file_cannot_be(tmp_path: Path, source: ZarrArray) -> None:
    (tmp_path / "file").write_text("precious")
    message = refusal(tmp_path, rx.StorageError, source, (8, 2, 2), "1MB", tmp_path / "file" / "target")
    assert f"{tmp_path}/file is a file" in message


@pytest.mark.parametrize("thing", [3, b"path", [], object(), print])
@pytest.mark.parametrize("argument", ["target_store", "temp_store"])
def test_a_store_that_is_none(tmp_path: Path, source: ZarrArray, thing: Any, argument: str) -> None:
    stores = {"target_store": tmp_path / "target", argument: thing}
    message = refusal(tmp_path, rx.StorageError, source, (8, 2, 2), "1MB", **stores)
    assert "a store must be a path, a URL, a mapping, an fsspec map or a zarr store" in message
    assert type(thing).__name__ in message


def test_arrays_and_groups_are_no_target_stores(tmp_path: Path, source: ZarrArray) -> None:
    for thing in (source, zarr.create_group(tmp_path / "group")):
        refusal(tmp_path, rx.StorageError, source, (8, 2, 2), "1MB", thing)


def test_a_source_in_memory_has_nothing_beside_it() -> None:
    store = MemoryStore()
    make_array(store, SHAPE, (1, 6, 4))
    with pytest.raises(rx.PlanError, match=r"no place beside it.*give target_store"):
        rx.rechunk(store, (8, 2, 2), "1MB")


@pytest.mark.parametrize(
    "name",
    ["", "/", ".", "..", "a/../b", "a//b", "./a", "...", "a\0b", "__a", "zarr.json", "a/.zgroup", 3, b"a", ["a"]],
)
def test_names_that_no_array_can_have(tmp_path: Path, source: ZarrArray, name: Any) -> None:
    message = refusal(tmp_path, rx.PlanError, source, (8, 2, 2), "1MB", tmp_path / "target", array_name=name)
    assert "array_name must be a path inside target_store" in message
    assert f"got {name!r}" in message


def test_intermediates_lie_outside_source_and_target(tmp_path: Path, source: ZarrArray) -> None:
    for place, name in (("source", "source"), ("target", "target"), ("target/inside", "target")):
        message = refusal(
            tmp_path,
            rx.PlanError,
            source,
            (8, 6, 1),
            1300,
            tmp_path / "target",
            temp_store=tmp_path / place,
            executor="serial",
        )
        assert f"intermediates must lie outside the {name}" in message
        assert "another temp_store" in message


def test_a_foreign_thing_in_the_place_of_intermediates_keeps_the_target_as_it_is(
    tmp_path: Path, source: ZarrArray
) -> None:
    make_array(tmp_path / "target", (3, 3), (1, 3))
    job = rx.rechunk(source, (8, 6, 1), 1300, tmp_path / "target", mode="overwrite", executor="serial", progress=False)
    place = Path(str(job.stages[0].target.store), job.stages[0].target.path).parent
    place.mkdir()
    (place / "notes.txt").write_text("precious")
    before = snapshot(tmp_path)
    with pytest.raises(rx.TargetExistsError, match="must be free or ours"):
        job.execute()
    assert snapshot(tmp_path) == before


# Disks.


def test_a_read_only_disk_is_found_while_planning(
    tmp_path: Path, source: ZarrArray, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.statvfs
    monkeypatch.setattr(
        os, "statvfs", lambda path: SimpleNamespace(f_flag=real(path).f_flag | os.ST_RDONLY, f_bavail=10**9, f_frsize=1)
    )
    message = refusal(tmp_path, rx.StorageError, source, (8, 2, 2), "1MB", tmp_path / "new" / "target")
    assert "the target must be writable" in message
    assert str(tmp_path / "new" / "target") in message
    assert "another place" in message


def test_a_full_disk_is_found_while_planning(
    tmp_path: Path, source: ZarrArray, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=0, total=1, used=1))
    message = refusal(tmp_path, rx.StorageError, source, (8, 2, 2), "1MB", tmp_path / "target")
    for text in ("the target needs 4096 bytes", "has 0 left", "make room"):
        assert text in message


def test_a_disk_too_small_for_the_intermediates_is_found_while_planning(
    tmp_path: Path, source: ZarrArray, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = make_array(tmp_path / "larger", (40, 40, 20), (1, 40, 20))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=100_000, total=1, used=1))
    message = refusal(tmp_path, rx.StorageError, array, (40, 4, 4), 16_000, tmp_path / "target", executor="serial")
    for text in ("the temp store needs 128000 bytes", "has 100000 left"):
        assert text in message


def test_a_disk_gets_no_more_intermediates_than_it_has_room_for(
    tmp_path: Path, source: ZarrArray, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = make_array(tmp_path / "larger", (80, 80, 40), (1, 80, 40))

    model = replace(rx.CostModel.local(), deeper_s=0.0)

    def plan() -> rx.Plan:
        job = rx.rechunk(
            array, (80, 4, 4), 32_000, tmp_path / "target", executor="serial", progress=False, cost_model=model
        )
        assert isinstance(job.plan, rx.Plan)
        return job.plan

    assert plan().temp_bytes == 3_072_000
    for free, held in [(2_500_000, 2_048_000), (1_500_000, 1_024_000)]:
        disk = SimpleNamespace(free=free, total=1, used=1)
        monkeypatch.setattr(shutil, "disk_usage", lambda path, disk=disk: disk)
        assert plan().temp_bytes == held


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Mount a file system at a new folder, for as long as the test lasts."""
    mounted: list[Path] = []

    def mount_it(*arguments: str) -> Path:
        place = tmp_path / f"mount-{len(mounted)}"
        place.mkdir()
        done = subprocess.run(["mount", *arguments, str(place)], check=False, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"this needs the right to mount: {done.stderr.strip()}")
        mounted.append(place)
        return place

    try:
        yield mount_it
    finally:
        for place in reversed(mounted):
            subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_a_disk_that_is_mounted_read_only(tmp_path: Path, source: ZarrArray, mount: Callable[..., Path]) -> None:
    place = mount("-t", "tmpfs", "-o", "ro,size=1M", "tmpfs")
    refusal(tmp_path, rx.StorageError, source, (8, 2, 2), "1MB", place / "target")
    refusal(
        tmp_path,
        rx.StorageError,
        source,
        (8, 6, 1),
        1300,
        tmp_path / "target",
        temp_store=place / "temp",
        executor="serial",
    )
    job = rx.rechunk(source, (8, 6, 4), "1MB", tmp_path / "target", temp_store=place, progress=False)
    assert_exact(job.execute(), source)  # one stage: the temp store is not used


def test_a_source_on_a_read_only_disk_can_be_read(
    tmp_path: Path, source: ZarrArray, mount: Callable[..., Path]
) -> None:
    place = mount("--bind", "-o", "ro", str(tmp_path / "source"))
    target = rx.rechunk(place, (8, 2, 2), "1MB", tmp_path / "target", progress=False).execute()
    assert_exact(target, source)


def test_a_disk_that_is_full(tmp_path: Path, source: ZarrArray, mount: Callable[..., Path]) -> None:
    place = mount("-t", "tmpfs", "-o", "size=64k", "tmpfs")
    (place / "ballast").write_bytes(bytes(64 * 1024))
    message = refusal(tmp_path, rx.StorageError, source, (8, 2, 2), "1MB", place / "target")
    assert "has 0 left" in message


def test_a_disk_that_becomes_full_fails_the_task_and_says_what_is_left(
    tmp_path: Path, mount: Callable[..., Path]
) -> None:
    array = make_array(tmp_path / "source", (64, 64, 64), (1, 64, 64))  # 1 MiB
    place = mount("-t", "tmpfs", "-o", "size=512k", "tmpfs")
    job = rx.rechunk(array, (1, 32, 32), "4MB", place / "target", executor="serial", progress=False)
    with pytest.raises(rx.TaskError, match=r"No space left on device.*the target .* is unfinished") as error:
        job.execute()
    assert isinstance(error.value.__cause__, rx.StorageError)
    assert not [name for name in stored_objects(place / "target") if "partial" in name]


# Formats, codecs, options.


@pytest.mark.parametrize("zarr_format", [0, 1, 4, "2", "3", True, [2]])
def test_formats_that_are_none(tmp_path: Path, source: ZarrArray, zarr_format: Any) -> None:
    message = refusal(tmp_path, rx.PlanError, source, (8, 2, 2), "1MB", tmp_path / "target", zarr_format=zarr_format)
    assert "zarr_format must be 2, 3 or None" in message
    assert f"got {zarr_format!r}" in message


@pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr version 3")  # zarr 3.1, on opening
@pytest.mark.parametrize(
    "made, zarr_format",
    [
        ({"zarr_format": 2, "filters": [numcodecs.Delta("f4")]}, 3),
        ({"zarr_format": 2, "compressors": numcodecs.LZ4(), "filters": [numcodecs.FixedScaleOffset(0, 10, "f4")]}, 3),
        ({"zarr_format": 3, "filters": [TransposeCodec(order=(1, 2, 0))]}, 2),
        ({"zarr_format": 3, "compressors": [GzipCodec(), ZstdCodec()]}, 2),
    ],
)
def test_codecs_that_the_other_format_cannot_hold(tmp_path: Path, made: Mapping[str, Any], zarr_format: Any) -> None:
    array = make_array(tmp_path / "source", SHAPE, (1, 6, 4), **made)
    message = refusal(tmp_path, rx.PlanError, array, (8, 2, 2), "1MB", tmp_path / "target", zarr_format=zarr_format)
    assert f"zarr format {zarr_format}" in message
    (offered,) = re.findall(r"target_options=(\{.*?\})", message)  # it offers the default
    option = dict([re.fullmatch(r"\{'(\w+)': '(\w+)'\}", offered).groups()])  # type: ignore[union-attr,list-item]
    job = rx.rechunk(
        array,
        (8, 2, 2),
        "1MB",
        tmp_path / "target",
        zarr_format=zarr_format,
        target_options=option,
        progress=False,
    )
    assert_exact(job.execute(), array)


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize(
    "options",
    [
        3,
        [1],
        "zstd",
        {"level": 3},
        {3: 4},
        {"chunks": (1, 1, 1)},
        {"shards": (1, 1, 1)},
        {"dtype": "f8"},
        {"overwrite": True},
        {"compressor": "zstd"},
        {"compressors": 3},
        {"compressor": None, "compressors": None},
        {"compressors": [object()]},
        {"filters": 3},
        {"filters": ["delta"]},
        {"fill_value": "none"},
        {"fill_value": [1, 2]},
        {"serializer": "bytes"},
        {"dimension_names": ["a"]},
        {"chunk_key_encoding": "v2"},
        {"order": "Q"},
        {"attributes": {"a": object()}},
        {"config": 3},
    ],
)
def test_options_that_are_none(tmp_path: Path, source: ZarrArray, options: Any, zarr_format: Any) -> None:
    message = refusal(
        tmp_path,
        rx.PlanError,
        source,
        (8, 2, 2),
        "1MB",
        tmp_path / "target",
        target_options=options,
        zarr_format=zarr_format,
    )
    assert len(message) > 40


@pytest.mark.parametrize("options", [3, "zstd", {"filters": None}, {"compressor": None, "compressors": None}])
def test_options_for_intermediates(tmp_path: Path, source: ZarrArray, options: Any) -> None:
    message = refusal(tmp_path, rx.PlanError, source, (8, 2, 2), "1MB", tmp_path / "target", temp_options=options)
    assert f"temp_options={options!r}" in message


@pytest.mark.parametrize("name", ["storage_options", "temp_storage_options"])
@pytest.mark.parametrize("options", [3, "anon", {"anon": True}])
def test_options_that_no_store_would_get(tmp_path: Path, source: ZarrArray, name: str, options: Any) -> None:
    message = refusal(tmp_path, rx.PlanError, source, (8, 2, 2), "1MB", tmp_path / "target", **{name: options})
    assert message.startswith(name)


def test_credentials_do_not_travel(tmp_path: Path, source: ZarrArray) -> None:
    for options in ({"secret": "mauve"}, {"key": "mauve"}, {"aws_secret_access_key": "mauve"}):
        message = refusal(
            tmp_path,
            rx.SerializationError,
            source,
            (8, 2, 2),
            "1MB",
            "memory://target",
            storage_options=options,
        )
        assert "mauve" not in message
        assert "environment" in message


# Executors, modes, the rest.


@pytest.mark.parametrize("executor", ["", "thread", "Threads", "ray"])
def test_executors_that_nobody_knows(tmp_path: Path, source: ZarrArray, executor: str) -> None:
    message = refusal(tmp_path, rx.PlanError, source, (8, 2, 2), "1MB", tmp_path / "target", executor=executor)
    for name in ("serial", "threads", "processes", repr(executor)):
        assert name in message


class NoneAtOnce:
    """An executor that runs no tasks at once."""

    name = "none"
    tasks_per_worker = 0

    def staged_copy(self, stages: object, *, on_event: object = None) -> None:
        raise AssertionError


@pytest.mark.parametrize("executor", [None, 3, b"threads", [], object(), SerialExecutor, NoneAtOnce()])
def test_objects_that_are_no_executors(tmp_path: Path, source: ZarrArray, executor: Any) -> None:
    refusal(tmp_path, rx.PlanError, source, (8, 2, 2), "1MB", tmp_path / "target", executor=executor)


def test_worker_processes_cannot_see_this_memory(tmp_path: Path, source: ZarrArray) -> None:
    message = refusal(tmp_path, rx.StorageError, source, None, "1MB", MemoryStore(), executor="processes")
    assert "'processes'" in message
    assert "executor='threads'" in message


@pytest.mark.parametrize("mode", ["w", "a", "Overwrite", "", None, True, 3, ["fail"]])
def test_modes_that_are_none(tmp_path: Path, source: ZarrArray, mode: Any) -> None:
    message = refusal(tmp_path, rx.PlanError, source, (8, 2, 2), "1MB", tmp_path / "target", mode=mode)
    assert "mode must be 'fail', 'overwrite' or 'resume'" in message
    assert f"got {mode!r}" in message


@pytest.mark.parametrize("cost_model", ["fast", None, 3, {}])
def test_cost_models_that_are_none(tmp_path: Path, source: ZarrArray, cost_model: Any) -> None:
    message = refusal(tmp_path, rx.PlanError, source, (8, 2, 2), "1MB", tmp_path / "target", cost_model=cost_model)
    assert f"got {cost_model!r}" in message


def test_a_zip_file_is_no_target(tmp_path: Path, source: ZarrArray) -> None:
    with ZipStore(tmp_path / "packed.zip", mode="w") as packed:
        make_array(packed, SHAPE, (1, 6, 4))
    refusal(tmp_path, rx.TargetExistsError, source, (8, 2, 2), "1MB", tmp_path / "packed.zip")


@pytest.mark.parametrize("argument", ["target_store", "temp_store"])
def test_a_read_only_store_object_is_refused_as_a_place_to_write(tmp_path: Path, argument: str) -> None:
    source = make_array(tmp_path / "source", SHAPE, (1, 6, 4))
    places: dict[str, Any] = {"target_store": tmp_path / "target", argument: LocalStore(tmp_path, read_only=True)}
    message = refusal(tmp_path, rx.StorageError, source, (8, 2, 2), "1MB", **places)
    assert argument in message
    assert "read-only" in message


def test_a_target_inside_another_array_is_refused(tmp_path: Path) -> None:
    source = make_array(tmp_path / "source", SHAPE, (1, 6, 4))
    for zarr_format in (2, 3):
        other = tmp_path / f"other{zarr_format}.zarr"
        make_array(other, (4,), (2,), zarr_format=zarr_format)
        message = refusal(tmp_path, rx.PlanError, source, (8, 2, 2), "1MB", other / "inside")
        assert "inside the array" in message
        refusal(tmp_path, rx.PlanError, source, (8, 2, 2), "1MB", other, array_name="inside")


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("kind", ["memory", "fsspec", "path"])
@pytest.mark.parametrize("at", ["", "g", "g/.a"])
def test_a_target_inside_another_array_of_a_store_is_refused(
    tmp_path: Path, zarr_format: int, kind: str, at: str
) -> None:
    # zarr looks for arrays of one format only.
    source = make_array(tmp_path / "source", SHAPE, (1, 6, 4))
    places = {"memory": MemoryStore(), "fsspec": f"memory://inside-{secrets.token_hex(6)}", "path": tmp_path / "t"}
    store: Any = places[kind]
    make_array(store, (4,), (2,), zarr_format=zarr_format, name=at or None)
    inside = f"{at}/b/c".lstrip("/")
    for mode in ("fail", "overwrite"):
        message = refusal(
            tmp_path, rx.PlanError, source, (8, 2, 2), "1MB", store, array_name=inside, mode=mode,
            zarr_format=5 - zarr_format,
        )  # fmt: skip
        assert "inside the array" in message
        if kind == "fsspec":  # all of it a URL
            refusal(tmp_path, rx.PlanError, source, (8, 2, 2), "1MB", f"{store}/{inside}", mode=mode)
    assert elements(zarr.open_array(store, path=at, mode="r")).tolist() == position_values((4,), "f4").tolist()


@pytest.mark.parametrize("place", ["nope://x", "a\0b", "n" * 300])
def test_a_place_that_cannot_be_is_an_error_of_ours(tmp_path: Path, place: str) -> None:
    source = make_array(tmp_path / "source", SHAPE, (1, 6, 4))
    target = place if "://" in place else f"{tmp_path}/{place}"
    refusal(tmp_path, rx.StorageError, source, (8, 2, 2), "1MB", target)


def test_sizes_may_be_an_array_of_numbers_but_not_bytes(tmp_path: Path) -> None:
    source = make_array(tmp_path / "source", SHAPE, (1, 6, 4))
    sizes: Any = np.array([8, 2, 2])
    assert rx.rechunk(source, sizes, "1MB", tmp_path / "target").stages[-1].write_unit == (8, 2, 2)
    assert "bytes" in refusal(tmp_path, rx.PlanError, source, b"abc", "1MB", tmp_path / "target")
