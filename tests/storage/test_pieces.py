"""Intermediates of one object a task: raw pieces in shards, written by us, read by us and by zarr."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from zarr.storage import MemoryStore

from rechunk_exec.copy.buffers import ScratchBuffers
from rechunk_exec.errors import PlanError, StorageError
from rechunk_exec.storage import (
    ArrayRef,
    Region,
    RetryPolicy,
    array_ref,
    create,
    design_intermediate,
    open_array,
    open_reader,
    open_writer,
    retry_policy,
    temp_form,
)
from rechunk_exec.storage.pieces import PieceWriter
from tests.storage.arrays import Shape, box_of, boxes, make, object_names, read_by_us, read_by_zarr
from tests.values import Array, position_values, same_bits

LAYOUTS: list[tuple[Shape, Shape, Shape]] = [
    ((5, 7), (2, 3), (4, 6)),
    ((5, 7), (1, 2), (5, 4)),
    ((6, 8, 5), (1, 4, 5), (3, 8, 5)),
    ((13,), (3,), (13,)),
    ((4, 6, 8), (2, 2, 2), (2, 6, 4)),
    ((7, 5), (7, 1), (7, 5)),
]
"""Shape, piece and write unit, clipped to the array."""
QUICK = RetryPolicy(tries=2, first_wait_s=0.001)


def sparse(shape: Shape, dtype: Any) -> Array:
    """Values by position, a quarter or so of them fill value."""
    values = position_values(shape, dtype)
    values[tuple(slice((n + 1) // 2) for n in shape)] = 3
    return values


def between(place: Any, layout: tuple[Shape, Shape, Shape], dtype: Any = "f4", **options: Any) -> ArrayRef:
    shape, piece, unit = layout
    source = make(MemoryStore(), shape, piece, dtype, **{"fill_value": 3, **options})
    ref = array_ref(place)
    create(design_intermediate(open_array(source, read_only=True), piece, unit), ref)
    return ref


def written(ref: ArrayRef, values: Array, unit: Shape, spare_bytes: int = 0, threads: int = 1) -> int:
    """Write all elements, a task for each write unit; return how many bytes were stored."""
    writer = open_writer(ref)
    assert isinstance(writer, PieceWriter)
    stored = 0
    for start, stop in boxes(values.shape, unit):
        elements = np.ascontiguousarray(box_of(values, start, stop)).astype(writer.stored.dtype)
        region = Region(start, stop, elements, spare_bytes)
        results: list[Any] = []
        with writer.jobs(region) as jobs:
            lock = threading.Lock()

            def work(jobs: Any = jobs, lock: Any = lock, region: Region = region, results: Any = results) -> None:
                scratch = ScratchBuffers()
                while True:
                    with lock:
                        job = next(jobs, None)
                    if job is None:
                        return
                    results.append(writer.write(job, region, scratch))

            running = [threading.Thread(target=work) for _ in range(threads)]
            for thread in running:
                thread.start()
            for thread in running:
                thread.join()
        assert sum(result.objects for result in results) == 1
        stored += sum(result.stored for result in results)
    return stored


@pytest.mark.parametrize("spare_bytes", [0, 64, 10**6])
@pytest.mark.parametrize("kind", ["local", "memory"])
@pytest.mark.parametrize("dtype", ["f4", ">i2", "u1", pytest.param("c8", marks=pytest.mark.long)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_was_written_is_read_by_zarr_and_by_us(
    layout: tuple[Shape, Shape, Shape], dtype: str, kind: str, spare_bytes: int, tmp_path: Path
) -> None:
    shape, _, unit = layout
    ref = between(MemoryStore() if kind == "memory" else tmp_path / "between", layout, dtype)
    values = sparse(shape, dtype)
    written(ref, values, unit, spare_bytes)
    assert same_bits(read_by_zarr(ref).astype(values.dtype), values)
    reader = open_reader(ref)
    chance = np.random.default_rng(len(shape))
    for _ in range(8):
        start, stop = np.sort(chance.integers(0, np.add(shape, 1), (2, len(shape))), axis=0).tolist()
        if any(a == b for a, b in zip(start, stop, strict=True)):
            continue
        size = [b - a for a, b in zip(start, stop, strict=True)]
        region = Region(tuple(start), tuple(stop), np.full(size, 77, reader.stored.dtype), spare_bytes)
        for one in reader.units(region):
            reader.read(one, region, ScratchBuffers())
        assert same_bits(region.elements.astype(values.dtype), box_of(values, tuple(start), tuple(stop)))


def test_there_is_one_object_a_task_also_where_all_is_fill_value(tmp_path: Path) -> None:
    layout = LAYOUTS[0]
    ref = between(tmp_path / "between", layout)
    values = np.full(layout[0], 3, "f4")
    values[4, 6] = 5
    stored = written(ref, values, layout[2])
    assert object_names(ref) == {"c/0/0", "c/0/1", "c/1/0", "c/1/1"}
    sizes = {name: (tmp_path / "between" / name).stat().st_size for name in object_names(ref)}
    assert stored == sum(sizes.values())
    assert same_bits(read_by_us(ref), values)


@pytest.mark.parametrize("kind", ["local", "memory"])
def test_pieces_of_fill_value_take_no_room(kind: str, tmp_path: Path) -> None:
    layout = ((16, 1024), (1, 1024), (16, 1024))
    place: Any = MemoryStore() if kind == "memory" else tmp_path / "between"
    ref = between(place, layout)
    values = position_values((16, 1024), "f4")
    values[3:12] = 3
    written(ref, values, layout[2])
    if kind == "memory":
        assert len(place._store_dict["c/0/0"]) == 7 * 4096 + 16 * 16 + 4
    else:
        assert (tmp_path / "between/c/0/0").stat().st_blocks * 512 < 10 * 4096
    assert same_bits(read_by_us(ref), values)


@pytest.mark.parametrize("kind", ["local", "memory"])
def test_two_tries_of_a_task_write_the_same_bytes(kind: str, tmp_path: Path) -> None:
    # An index that a reader got from one of them serves for the other.
    layout = ((8, 600), (1, 20), (8, 600))
    values = sparse(layout[0], "f4")
    found = set()
    for number, threads in itertools.product(range(6), (1, 4)):
        place: Any = MemoryStore() if kind == "memory" else tmp_path / f"{number}-{threads}"
        ref = between(place, layout)
        written(ref, values, layout[2], spare_bytes=200 * number, threads=threads)
        found.add(place._store_dict["c/0/0"].to_bytes() if kind == "memory" else (place / "c/0/0").read_bytes())
    assert len(found) == 1


def test_bits_decide_what_is_fill_value(tmp_path: Path) -> None:
    layout = ((4, 6), (1, 6), (4, 6))
    values = np.zeros((4, 6), "f4")
    values[1], values[2, 5] = -0.0, -0.0
    ref = between(tmp_path / "between", layout, fill_value=0)
    written(ref, values, layout[2])
    assert same_bits(read_by_us(ref), values)
    nans = np.full((4, 6), np.nan, "f4")
    nans.view("u4")[1:3] += 1
    ref = between(tmp_path / "nan", layout, fill_value=float("nan"))
    written(ref, nans, layout[2])
    assert same_bits(read_by_us(ref), nans)


def cut_short(content: bytes) -> bytes:
    return content[:-20]


def without_its_end(content: bytes) -> bytes:
    return content[: len(content) // 2]


def changed_in_the_index(content: bytes) -> bytes:
    return content[:-20] + bytes([content[-20] ^ 4]) + content[-19:]


def emptied(content: bytes) -> bytes:
    return b""


@pytest.mark.parametrize("damage", [cut_short, without_its_end, changed_in_the_index, emptied])
@pytest.mark.parametrize("spare_bytes", [0, 10**6])
def test_a_torn_shard_is_an_error(damage: Any, spare_bytes: int, tmp_path: Path) -> None:
    layout = ((8, 600), (1, 20), (8, 600))
    ref = between(tmp_path / "between", layout)
    written(ref, sparse(layout[0], "f4"), layout[2])
    path = tmp_path / "between/c/0/0"
    path.write_bytes(damage(path.read_bytes()))
    reader = open_reader(ref)
    region = Region((0, 0), (8, 600), np.empty((8, 600), "f4"), spare_bytes)
    with pytest.raises(StorageError, match="c/0/0") as caught:
        reader.read_named(next(reader.units(region)), region, ScratchBuffers())
    assert caught.value.permanent


@pytest.mark.parametrize("spare_bytes", [0, 10**6])
def test_an_absent_shard_is_an_error_and_no_fill_value(spare_bytes: int, tmp_path: Path) -> None:
    layout = ((8, 600), (1, 20), (8, 600))
    ref = between(tmp_path / "between", layout)
    written(ref, sparse(layout[0], "f4"), layout[2])
    (tmp_path / "between/c/0/0").unlink()
    with retry_policy(QUICK):
        reader = open_reader(ref)
    region = Region((0, 0), (8, 600), np.empty((8, 600), "f4"), spare_bytes)
    with pytest.raises(StorageError, match=r"c/0/0: .*written, and is not there"):
        reader.read_named(next(reader.units(region)), region, ScratchBuffers())


def test_a_task_that_fails_leaves_nothing(tmp_path: Path) -> None:
    layout = ((8, 600), (1, 20), (8, 600))
    ref = between(tmp_path / "between", layout)
    writer = open_writer(ref)
    region = Region((0, 0), (8, 600), position_values((8, 600), "f4"))
    with writer.jobs(region) as jobs:
        for job in itertools.islice(jobs, 7):
            writer.write(job, region, ScratchBuffers())
    assert object_names(ref) == set()


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("dtype", ["f4", ">f8", "M8[ns]", "S5", "?"])
def test_arrays_of_both_formats_have_such_intermediates(zarr_format: Any, dtype: str, tmp_path: Path) -> None:
    source = make(tmp_path / "source", (6, 8), (1, 8), dtype, zarr_format=zarr_format)
    stored = open_array(source, read_only=True)
    form = temp_form(stored, {}, array_ref(tmp_path))
    if stored.codec is None:
        assert form.pieces is None
        return
    assert form.pieces is not None
    assert (form.pieces.gathered, form.pieces.assembled) == (1, 0)
    ref = array_ref(tmp_path / "between")
    create(design_intermediate(stored, (2, 2), (6, 8)), ref)
    values = position_values((6, 8), dtype)
    written(ref, values, (6, 8))
    assert same_bits(read_by_us(ref).astype(values.dtype), values)


def test_text_is_not_stored_in_pieces(tmp_path: Path) -> None:
    dtype = np.dtypes.StringDType()
    source = make(tmp_path / "source", (4, 6), (1, 6), dtype, zarr_format=2)
    assert temp_form(open_array(source, read_only=True), {}, None).pieces is None


@pytest.mark.parametrize("options", [3, {"shards": (2, 2)}, {"compressor": None, "compressors": None}])
def test_options_that_no_intermediate_has(options: Any, tmp_path: Path) -> None:
    stored = open_array(make(tmp_path / "source", (4, 6), (1, 6), "f4"), read_only=True)
    with pytest.raises(PlanError, match="temp_options"):
        temp_form(stored, options, None)
