"""In an array between two stages every object is stored: what is absent there is lost, and never fill value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import rechunk_exec as rx
from rechunk_exec.copy.buffers import ScratchBuffers
from rechunk_exec.errors import StorageError
from rechunk_exec.storage import (
    ArrayRef,
    RetryPolicy,
    array_ref,
    create,
    design_intermediate,
    open_array,
    open_reader,
    retry_policy,
)
from rechunk_exec.storage.direct import ALL_FILL
from rechunk_exec.storage.stored import INTERMEDIATE
from tests.jobs import make_array
from tests.storage.arrays import make, read_by_us, region_of, write_by_us
from tests.values import position_values, same_bits

SHAPE, CHUNK = (4, 64), (2, 32)
QUICK = RetryPolicy(tries=2, first_wait_s=0.001)


def sparse(dtype: str = "f4") -> Any:
    values = position_values(SHAPE, dtype)
    values[:2] = values[:, 32:] = 3
    return values


def between(folder: Path, chunk: tuple[int, ...] = CHUNK, dtype: str = "f4") -> ArrayRef:
    source = make(folder / "source", SHAPE, CHUNK, dtype, fill_value=3)
    ref = array_ref(folder / "between")
    create(design_intermediate(open_array(source, read_only=True), chunk), ref)
    return ref


def test_a_chunk_of_fill_value_is_a_mark(tmp_path: Path) -> None:
    ref = between(tmp_path)
    write_by_us(ref, sparse())
    sizes = {path.name: path.stat().st_size for path in (tmp_path / "between/c").rglob("*") if path.is_file()}
    chunks = sorted(path.read_bytes() == ALL_FILL for path in (tmp_path / "between/c").rglob("*") if path.is_file())
    assert chunks == [False, True, True, True]
    assert sizes
    assert same_bits(read_by_us(ref), sparse())


@pytest.mark.parametrize("missing", ["c/0/0", "c/1/0"])
def test_an_absent_object_is_an_error(missing: str, tmp_path: Path) -> None:
    ref = between(tmp_path)
    write_by_us(ref, sparse())
    (tmp_path / "between" / missing).unlink()
    with (
        retry_policy(QUICK),
        pytest.raises(StorageError, match=rf"{missing}: .*written, and is not there.*2 times"),
    ):
        read_by_us(ref)


def test_one_that_was_removed_is_not_waited_for(tmp_path: Path) -> None:
    ref = between(tmp_path)
    write_by_us(ref, sparse())
    reader = open_reader(ref)
    (tmp_path / "between/c/0/0").unlink()
    (tmp_path / "between/zarr.json").unlink()
    region = region_of((0, 0), SHAPE, "f4")
    with pytest.raises(StorageError, match="it has been removed") as caught:
        reader.read_named((0, 0), region, ScratchBuffers())
    assert caught.value.permanent


def test_a_chunk_smaller_than_the_mark_is_stored_as_it_is(tmp_path: Path) -> None:
    ref = between(tmp_path, (1, 8))
    values = sparse()
    write_by_us(ref, values)
    paths = [path for path in (tmp_path / "between/c").rglob("*") if path.is_file()]
    assert len(paths) == 4 * 8
    assert {path.stat().st_size for path in paths} == {32}
    assert same_bits(read_by_us(ref), values)


def test_a_chunk_of_the_marks_size(tmp_path: Path) -> None:
    # Its bytes may be those of the mark, and are then elements.
    size = len(ALL_FILL)
    source = make(tmp_path / "source", (2 * size,), (size,), "u1", fill_value=3)
    ref = array_ref(tmp_path / "between")
    create(design_intermediate(open_array(source, read_only=True), (size,)), ref)
    values = np.concatenate([np.frombuffer(ALL_FILL, "u1"), np.full(size, 3, "u1")])
    write_by_us(ref, values)
    assert same_bits(read_by_us(ref), values)


def test_bands_of_marks_and_of_what_begins_like_one(tmp_path: Path) -> None:
    source = make(tmp_path / "source", (4, 4096), (1, 4096), "u1", fill_value=3)
    ref = array_ref(tmp_path / "between")
    create(design_intermediate(open_array(source, read_only=True), (2, 4096)), ref)
    values = np.full((4, 4096), 3, "u1")
    values[2, : len(ALL_FILL)] = np.frombuffer(ALL_FILL, "u1")
    write_by_us(ref, values)
    reader = open_reader(ref, (1, 512))
    for column in (0, 512):
        region = region_of((0, column), (4, column + 512), "u1")
        for unit in reader.units(region):
            reader.read(unit, region, ScratchBuffers())
        assert same_bits(region.elements, values[:, column : column + 512])
    (tmp_path / "between/c/0/0").unlink()
    with retry_policy(QUICK):
        again = open_reader(ref, (1, 512))
    with pytest.raises(StorageError, match="not there"):
        again.read((0, 0), region_of((0, 0), (4, 512), "u1"), ScratchBuffers())


def test_shards_of_fill_value_are_stored_empty(tmp_path: Path) -> None:
    name, value = INTERMEDIATE
    ref = make(tmp_path / "a", SHAPE, CHUNK, "f4", shards=(2, 64), fill_value=3, attributes={name: value})
    values = sparse()
    values[2:] = position_values((2, 64), "f4")
    write_by_us(ref, values)
    assert same_bits(read_by_us(ref), values)
    assert same_bits(np.asarray(zarr.open_array(tmp_path / "a", mode="r")[:]), values)
    assert (tmp_path / "a/c/0/0").stat().st_size == 2 * 16 + 4
    (tmp_path / "a/c/0/0").unlink()
    with retry_policy(QUICK), pytest.raises(StorageError, match=r"c/0/0: .*it was written"):
        read_by_us(ref)


def test_the_mark_of_an_intermediate_is_not_carried_over(tmp_path: Path) -> None:
    name, value = INTERMEDIATE
    source = make_array(tmp_path / "a", (4, 6), (1, 6), attributes={name: value, "title": "x"})
    target = rx.rechunk(source, (4, 3), "1MB", tmp_path / "b", progress=False).execute()
    assert dict(target.attrs) == {"title": "x"}
