"""Arrays that are removed, or replaced, while a task works on them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from zarr.storage import MemoryStore, ObjectStore

import rechunk_exec as rx
from rechunk_exec.copy.buffers import ScratchBuffers
from rechunk_exec.copy.worker import Worker
from rechunk_exec.errors import StorageError
from rechunk_exec.results import Event
from rechunk_exec.storage import array_ref, open_reader, open_writer, remove_array
from rechunk_exec.storage.objects import LocalObjects
from rechunk_exec.storage.stores import open_store
from rechunk_exec.tasks import ArrayRef, CopyTask
from tests.faults.stores import FaultyStore
from tests.jobs import make_array
from tests.s3 import Bucket
from tests.storage.arrays import make, object_names, read_by_us, region_of
from tests.values import position_values, same_bits

SHAPE, CHUNK = (6, 8), (2, 4)
VALUES = position_values(SHAPE, "i4")
FORMATS: dict[str, dict[str, Any]] = {
    "direct": {},
    "shards": {"shards": (4, 8)},
    "format 2": {"zarr_format": 2},
    "zarr": {"zarr_format": 2, "filters": ["delta"]},
}


@pytest.fixture(params=["local", "memory", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ArrayRef]:
    if request.param == "s3":
        bucket: Bucket = request.getfixturevalue("s3")
        yield ArrayRef(store=bucket.url("a.zarr"))
    else:
        yield ArrayRef(store=str(tmp_path / "a.zarr")) if request.param == "local" else ArrayRef(store=MemoryStore({}))


def store_of(place: ArrayRef) -> Any:
    return open_store(place, read_only=False) if place.by_name else place.store


def made(place: ArrayRef, layout: str) -> ArrayRef:
    import numcodecs

    options = dict(FORMATS[layout])
    if "filters" in options:
        options["filters"] = [numcodecs.Delta("i4")]
    make(store_of(place), SHAPE, CHUNK, "i4", values=VALUES, path=place.path, **options)
    return place


@pytest.mark.parametrize("layout", FORMATS)
def test_what_is_removed_while_it_is_read_is_no_fill_value(place: ArrayRef, layout: str) -> None:
    ref = made(place, layout)
    reader = open_reader(ref)
    region = region_of((0, 0), SHAPE, "i4")
    reader.read(next(reader.units(region)), region, ScratchBuffers())
    reader.refuse_vanished()
    remove_array(ref)
    units = list(reader.units(region))
    reader.read(units[-1], region, ScratchBuffers())
    with pytest.raises(StorageError, match="gone while it was read") as caught:
        reader.refuse_vanished()
    assert caught.value.permanent


@pytest.mark.parametrize("layout", FORMATS)
def test_a_task_writes_nothing_of_what_is_removed(place: ArrayRef, layout: str, tmp_path: Path) -> None:
    source, target = made(place, layout), make(tmp_path / "t", SHAPE, (6, 8), "i4")
    worker = Worker()
    tasks = [
        CopyTask(stage=0, index=index, start=(0, 0), stop=SHAPE, source=source, target=target, threads=1,
                 predicted_bytes=1, job="job")
        for index in range(2)
    ]  # fmt: skip
    worker.run(tasks[0])
    before = read_by_us(target)
    assert same_bits(before, VALUES)
    remove_array(source)
    with pytest.raises(StorageError):
        worker.run(tasks[1])
    assert same_bits(read_by_us(target), VALUES)


def test_a_sparse_array_that_is_there_is_read(place: ArrayRef, tmp_path: Path) -> None:
    make(store_of(place), SHAPE, CHUNK, "i4", fill_value=5)
    target = make(tmp_path / "t", SHAPE, (6, 8), "i4")
    task = CopyTask(
        stage=0, index=0, start=(0, 0), stop=SHAPE, source=place, target=target, threads=1, predicted_bytes=1
    )
    Worker().run(task)
    assert (read_by_us(target) == 5).all()


@pytest.mark.parametrize("layout", ["direct", "shards", "format 2"])
def test_a_late_writer_does_not_reach_the_array_that_took_the_place(layout: str, tmp_path: Path) -> None:
    ref = made(array_ref(tmp_path / "a"), layout)
    late, later = open_writer(ref), open_writer(ref)
    write_all(late)  # which opens the folder
    remove_array(ref)
    make(tmp_path / "a", SHAPE, (3, 8), "i4")
    for writer in (late, later):
        with pytest.raises(StorageError, match=r"cannot write .*/a/"):
            write_all(writer)
        assert object_names(ref) == set()


def write_all(writer: Any) -> None:
    region = region_of((0, 0), SHAPE, "i4")
    region.elements[...] = VALUES
    with writer.jobs(region) as jobs:
        for job in jobs:
            writer.write(job, region, ScratchBuffers())


def test_metadata_go_before_chunks() -> None:
    store = FaultyStore(MemoryStore({}))
    ref = make(store, SHAPE, CHUNK, "i4", values=VALUES, path="a")
    store.seen.requests.clear()
    remove_array(ref)
    removed = [key for verb, key in store.seen.requests if verb.startswith("delete")]
    assert removed[0] == "a/zarr.json"
    assert not store._store._store_dict.keys() - {"zarr.json"}  # type: ignore[attr-defined]


def test_an_open_folder_is_let_go_with_its_objects(tmp_path: Path) -> None:
    import os

    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208

    made(array_ref(tmp_path / "a"), "direct")
    before = descriptors()
    for _ in range(3):
        objects = LocalObjects(tmp_path / "a")
        objects.hold()
        assert objects.read("zarr.json") is not None
        assert descriptors() == before + 1
        del objects
        assert descriptors() == before


def test_values_of_this_file_are_not_fill() -> None:
    assert np.count_nonzero(VALUES) > VALUES.size // 2


@pytest.mark.parametrize("client", ["s3fs", "obstore"])
def test_a_bucket_that_is_removed_while_it_is_read_is_no_fill_value(client: str, s3: Bucket, tmp_path: Path) -> None:
    make_array(s3.store("a.zarr"), (12, 40, 30), (1, 40, 30))
    source: Any = s3.url("a.zarr")
    if client == "obstore":
        from obstore.store import from_url

        source = ObjectStore(from_url(source))
    job = rx.rechunk(source, (12, 10, 10), "30kB", tmp_path / "t", executor="serial", progress=False)
    seen: list[Event] = []

    def remove(event: Event) -> None:
        seen.append(event)
        if event.kind == "task" and len(seen) == 2:
            s3.remove()

    try:
        with pytest.raises(rx.TaskError, match=r"those of .*a.zarr.* have gone while it was read"):
            job.execute(on_event=remove)
    finally:
        s3.make()  # which whoever has lent it removes
