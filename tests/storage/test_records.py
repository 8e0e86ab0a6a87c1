from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import zarr
from zarr.storage import MemoryStore

from rechunk_exec.storage import array_ref, read_records, remove_records, write_record
from rechunk_exec.tasks import ArrayRef
from tests.storage.arrays import Place, make, read_by_zarr


@pytest.fixture(params=["local", "memory", "inside"])
def ref(request: pytest.FixtureRequest, tmp_path: Path) -> ArrayRef:
    store: Place = MemoryStore() if request.param == "memory" else tmp_path
    path = "g/a" if request.param == "inside" else ""
    return make(store, (5, 7), (2, 3), "i4", path=path, values=np.arange(35, dtype="i4").reshape(5, 7))


def test_records_are_read_back_by_job(ref: ArrayRef) -> None:
    assert read_records(ref, "one") == []
    for number in range(3):
        write_record(ref, "one", f"0-{number}", f'{{"é": {number}}}')
    write_record(ref, "two", "0-0", "other")
    write_record(ref, "one", "0-1", '{"é": 1}')  # a task that runs again says the same again
    assert sorted(read_records(ref, "one")) == ['{"é": 0}', '{"é": 1}', '{"é": 2}']
    assert read_records(ref, "two") == ["other"]
    assert read_records(ref, "on") == []


def test_removing_records_leaves_the_array(ref: ArrayRef) -> None:
    before = read_by_zarr(ref)
    remove_records(ref, "one")
    write_record(ref, "one", "0-0", "x")
    write_record(ref, "two", "0-0", "x")
    remove_records(ref, "one")
    assert read_records(ref, "one") == []
    assert read_records(ref, "two") == ["x"]
    remove_records(ref, "two")
    assert (read_by_zarr(ref) == before).all()


def test_zarr_passes_records_over(tmp_path: Path) -> None:
    group = zarr.create_group(tmp_path)
    make(tmp_path, (4,), (2,), "i4", path="a")
    write_record(array_ref(tmp_path, "a"), "job", "0-0", "x")
    assert sorted(group.array_keys()) == ["a"]
    assert len(list(group.members(max_depth=None))) == 1


def test_what_is_half_written_is_no_record(tmp_path: Path) -> None:
    ref = make(tmp_path, (4,), (2,), "i4")
    write_record(ref, "job", "0-0", "whole")
    (tmp_path / ".rechunk_exec/job/.0-1.json.abc.partial").write_text("ha")
    assert read_records(ref, "job") == ["whole"]
