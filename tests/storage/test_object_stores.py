"""Whole jobs from, over and to object stores: a real S3 server, obstore, HTTP, zip files and memory."""

from __future__ import annotations

import io
import json
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.storage import FsspecStore, MemoryStore, ZipStore

import rechunk_exec as rx
from rechunk_exec.copy.buffers import ScratchBuffers
from rechunk_exec.executors import ProcessesExecutor
from rechunk_exec.storage import finer_read_unit, open_array, open_reader
from rechunk_exec.storage.objects import objects_of
from rechunk_exec.storage.stores import open_store
from rechunk_exec.tasks import ArrayRef
from tests.conftest import needed_module
from tests.jobs import QUICK_STAGES, assert_exact, make_array
from tests.s3 import Bucket
from tests.storage.arrays import ZARR_VERSION, region_of
from tests.storage.copies import EPOCHS, SERIES, SHAPE, THIRDS, TWO_STAGES, run
from tests.values import position_values, same_bits


@pytest.fixture
def executor(request: pytest.FixtureRequest, s3: Bucket) -> Any:
    shared = {"processes": "s3_processes", "dask": "s3_dask"}.get(request.param)
    return request.param if shared is None else request.getfixturevalue(shared)


def shown_by(*default: str) -> pytest.MarkDecorator:
    """Run a test on these executors; on the others too where the long tests are wanted."""
    marks = {name: () if name in default else pytest.mark.long for name in ("serial", "threads", "processes", "dask")}
    return pytest.mark.parametrize(
        "executor", [pytest.param(name, marks=mark) for name, mark in marks.items()], indirect=True
    )


@shown_by("threads", "processes", "dask")
@pytest.mark.parametrize("stages", [pytest.param(1, marks=pytest.mark.long), 2])
def test_from_s3_to_s3(s3: Bucket, executor: Any, stages: int) -> None:
    make_array(s3.store("in/source.zarr"), SHAPE, EPOCHS, fill_value=7)
    run(s3.url("in/source.zarr"), s3.url("out/target.zarr"), stages=stages, executor=executor)
    assert {key.split("/")[1] for key in s3.listed()} == {"source.zarr", "target.zarr"}, "no intermediate is left"


@shown_by("processes")
def test_intermediates_on_disk_for_a_target_on_s3(s3: Bucket, tmp_path: Path, executor: Any) -> None:
    make_array(s3.store("source.zarr"), SHAPE, EPOCHS)
    job = run(s3.url("source.zarr"), s3.url("target.zarr"), stages=2, temp_store=tmp_path / "temp", executor=executor)
    assert str(job.stages[0].target).startswith(str(tmp_path))
    assert list((tmp_path / "temp").iterdir()) == []


@shown_by("threads")
def test_intermediates_on_s3_for_a_target_on_disk(s3: Bucket, tmp_path: Path, executor: Any) -> None:
    source = make_array(tmp_path / "source.zarr", SHAPE, EPOCHS)
    job = run(source, tmp_path / "target.zarr", stages=2, temp_store=s3.url("temp"), executor=executor)
    assert str(job.stages[0].target).startswith("s3://")
    assert s3.listed() == []


def test_intermediates_beside_a_target_on_s3_whose_url_ends_in_a_slash(s3: Bucket) -> None:
    make_array(s3.store("source.zarr"), SHAPE, EPOCHS)
    run(s3.url("source.zarr/"), s3.url("target.zarr/"), stages=2)
    assert {key.partition("/")[0] for key in s3.listed()} == {"source.zarr", "target.zarr"}


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize("purpose", ["target", "temp store"])
def test_what_is_after_two_slashes_on_s3_is_not_written_to(
    s3: Bucket, tmp_path: Path, purpose: str, live: bool
) -> None:
    # s3fs lists nothing there: another driver was not seen, and an array that was replaced not removed.
    source = make_array(tmp_path / "source", SHAPE, EPOCHS)
    place: Any = s3.store("/a.zarr") if live else s3.url("/a.zarr")
    places = {"target_store": s3.url("b.zarr"), "temp_store": place}
    if purpose == "target":
        places = {"target_store": place}
    with pytest.raises(rx.StorageError, match=f"the {purpose} must have one slash after the name of its bucket"):
        rx.rechunk(
            source, SERIES, TWO_STAGES, executor="serial", cost_model=QUICK_STAGES, progress=False, **places
        ).execute()
    assert s3.listed() == []


def test_the_endpoint_may_be_an_option(s3: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    options = {"endpoint_url": s3.address}
    source = make_array(s3.store("a.zarr"), SHAPE, EPOCHS)
    with ProcessesExecutor(1) as pool:
        job = rx.rechunk(
            s3.url("a.zarr"), SERIES, "1MB", s3.url("b.zarr"), executor=pool, storage_options=options, progress=False
        )
        assert_exact(job.execute(), source)


def test_shards_are_read_and_written_on_s3(s3: Bucket) -> None:
    make_array(s3.store("source.zarr"), SHAPE, (1, 10, 15), shards=THIRDS)
    job = rx.rechunk(
        s3.url("source.zarr"), SERIES, "1MB", s3.url("target.zarr"), target_shards=(12, 10, 30), progress=False
    )
    assert_exact(job.execute(), zarr.open_array(s3.store("source.zarr"), mode="r"))
    assert sum(key.startswith("target.zarr/c/") for key in s3.listed()) == 2


@pytest.mark.parametrize("compressor", ["blosc", None])
def test_bands_of_chunks_are_read_by_range_from_s3(
    s3: Bucket, compressor: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = (2, 256, 512)
    codec = None if compressor is None else zarr.codecs.BloscCodec(cname="zstd", clevel=1, blocksize=1 << 14)
    values = (np.arange(np.prod(shape), dtype="i4") // 5).reshape(shape)
    make_array(s3.store("source.zarr"), shape, (1, 256, 512), "i4", values=values, compressors=codec)
    ref = ArrayRef(store=s3.url("source.zarr"))
    unit = finer_read_unit(open_array(ref, read_only=True))
    assert unit is not None
    assert unit[1] < 64
    reader = open_reader(ref, unit)
    asked: list[object] = []
    get = FsspecStore.get

    async def seen(self: FsspecStore, key: str, prototype: Any, byte_range: Any = None) -> Any:
        asked.append(byte_range)
        return await get(self, key, prototype, byte_range)

    monkeypatch.setattr(FsspecStore, "get", seen)
    for rows in (slice(64, 128), slice(128, 192)):
        region = region_of((0, rows.start, 0), (2, rows.stop, 512), "i4")
        fetched = sum(reader.read(number, region, ScratchBuffers()).stored for number in reader.units(region))
        assert same_bits(region.elements, values[:, rows])
        assert fetched < 1.1 * region.elements.nbytes
    # Once a chunk the header and the table together (of the first chunk, whose table has an unknown size, one after the
    # other), or a probe; then one request for a band, whose blocks lie side by side.
    assert len(asked) == 2 + (codec is not None) + 2 * 2
    assert all(part is not None for part in asked)


def test_an_overwritten_array_on_s3_leaves_nothing_of_the_old_grid(s3: Bucket) -> None:
    make_array(s3.store("source.zarr"), SHAPE, EPOCHS)
    make_array(s3.store("target.zarr"), (20, 50), (2, 50))
    make_array(s3.store("target.zarr-2"), (4,), (2,))
    before = {key: value for key, value in s3.contents().items() if not key.startswith("target.zarr/")}
    with pytest.raises(rx.TargetExistsError):
        run(s3.url("source.zarr"), s3.url("target.zarr"))
    run(s3.url("source.zarr"), s3.url("target.zarr"), mode="overwrite")
    after = s3.contents()
    assert len([key for key in after if key.startswith("target.zarr/c/")]) == 3
    assert {key: value for key, value in after.items() if not key.startswith("target.zarr/")} == before


def test_an_object_is_read_by_one_request(s3: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    objects = objects_of(open_store(ArrayRef(store=s3.url("a")), read_only=False), "b")
    contents = {"empty": b"", "small": b"x", "large": bytes(range(256)) * 300}
    for key, content in contents.items():
        writer = objects.create(key)
        writer.append(content)
        assert writer.commit() == len(content)
    s3fs = needed_module("s3fs")
    made: list[str] = []
    call = s3fs.S3FileSystem._call_s3

    async def seen(self: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        made.append(method)
        return await call(self, method, *args, **kwargs)

    monkeypatch.setattr(s3fs.S3FileSystem, "_call_s3", seen)
    for key, content in contents.items():
        found = objects.read(key)
        assert found is not None
        assert bytes(found) == content
    assert objects.read("none") is None
    assert made == ["get_object"] * 4
    for start, length in ((-7, 7), (9, 300)):
        part = objects.read("large", start=start, length=length)
        assert part is not None
        assert bytes(part) == contents["large"][start:][:length]
    for start, length in ((76_795, 6), (100_000, 5), (-80_000, 80_000)):
        with pytest.raises(rx.StorageError, match="torn") as caught:
            objects.read("large", start=start, length=length)
        assert caught.value.permanent


def test_a_bucket_that_is_not_there(s3: Bucket, tmp_path: Path) -> None:
    source = make_array(tmp_path / "source.zarr", SHAPE, EPOCHS)
    with pytest.raises(rx.StorageError, match=r"no array could be opened at: .*s3://no-such-bucket/a"):
        rx.rechunk("s3://no-such-bucket/a", SERIES, "1MB", tmp_path / "t.zarr")
    with pytest.raises(rx.StorageError, match="no-such-bucket"):
        rx.rechunk(source, SERIES, "1MB", "s3://no-such-bucket/a", progress=False).execute()


def test_a_bucket_that_goes_fails_a_task_once(s3: Bucket, tmp_path: Path) -> None:
    source = make_array(tmp_path / "source.zarr", SHAPE, EPOCHS)
    job = rx.rechunk(source, THIRDS, "50kB", s3.url("a.zarr"), executor="serial", progress=False)
    assert len(job.stages[0]) > 1
    events: list[Any] = []

    def hear(event: Any) -> None:
        events.append(event.kind)
        if len(events) == 2:  # the first task is done
            s3.remove()

    with pytest.raises(rx.TaskError, match="is not tried again") as caught:
        job.execute(on_event=hear)
    assert events == ["start", "task"]
    assert s3.name in str(caught.value)


def test_obstore_as_source_intermediate_and_target(s3: Bucket) -> None:
    store = s3.obstore()
    source = make_array(store, SHAPE, EPOCHS, name="source")
    target = zarr.storage.StorePath(store, "target")
    temp = zarr.storage.StorePath(store, "temp")
    run(source, target, stages=2, temp_store=temp, executor="threads")
    assert {key.split("/")[0] for key in s3.listed()} == {"source", "target", "zarr.json"}


def test_obstore_in_processes_takes_credentials_from_the_environment(
    s3: Bucket, s3_processes: ProcessesExecutor
) -> None:
    store = s3.obstore()
    source = make_array(store, SHAPE, EPOCHS, name="source")
    run(source, zarr.storage.StorePath(store, "target"), executor=s3_processes)


@pytest.mark.parametrize("executor", ["threads", "processes"], indirect=True)
def test_a_zip_file_is_a_source(tmp_path: Path, executor: Any) -> None:
    with ZipStore(tmp_path / "a.zip", mode="w") as store:
        make_array(store, SHAPE, EPOCHS)
    with ZipStore(tmp_path / "a.zip", mode="r") as store:
        source = zarr.open_array(store, mode="r")
        run(source, tmp_path / "t.zarr", stages=2, executor=executor)


@pytest.mark.parametrize("executor", ["threads", "processes"], indirect=True)
def test_a_zip_file_of_another_name_is_a_source(tmp_path: Path, executor: Any) -> None:
    with ZipStore(tmp_path / "a.archive", mode="w") as store:
        make_array(store, SHAPE, EPOCHS)
    with ZipStore(tmp_path / "a.archive", mode="r") as store:
        run(zarr.open_array(store, mode="r"), tmp_path / "t.zarr", stages=2, executor=executor)


@pytest.mark.skipif(ZARR_VERSION < (3, 4), reason="zarr 3.1 takes paths alone")
def test_an_open_zip_file_is_a_source(tmp_path: Path) -> None:
    packed = io.BytesIO()
    with ZipStore(packed, mode="w") as store:  # type: ignore[arg-type,unused-ignore]
        make_array(store, SHAPE, EPOCHS)
    with ZipStore(packed, mode="r") as store:  # type: ignore[arg-type,unused-ignore]
        source = zarr.open_array(store, mode="r")
        run(source, tmp_path / "t.zarr", stages=2, executor="threads")
        with pytest.raises(rx.RechunkError):
            rx.rechunk(source, SERIES, TWO_STAGES, tmp_path / "u.zarr", executor="processes", progress=False).execute()


@pytest.mark.parametrize("executor", ["threads", "processes"], indirect=True)
def test_a_contiguous_dataset_of_hdf5_is_read_in_part_by_reference(tmp_path: Path, executor: Any) -> None:
    h5py = needed_module("h5py")
    shape = (16, 512, 512)
    values = position_values(shape, "f4")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = values
    with h5py.File(tmp_path / "a.h5") as file:
        place = [str(tmp_path / "a.h5"), file["x"].id.get_offset(), file["x"].id.get_storage_size()]
    metadata = {"zarr_format": 2, "shape": shape, "chunks": shape, "dtype": "<f4", "order": "C", "fill_value": 0}
    document = json.dumps({**metadata, "compressor": None, "filters": None})
    (tmp_path / "refs.json").write_text(json.dumps({"version": 1, "refs": {"x/.zarray": document, "x/0.0.0": place}}))
    options = {"fo": str(tmp_path / "refs.json"), "remote_protocol": "file"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the file system is no asynchronous one, of which zarr makes one
        store = FsspecStore.from_url("reference://", storage_options=options, read_only=True)
    source = zarr.open_array(store, path="x", mode="r")
    job = rx.rechunk(source, (16, 64, 64), "36MB", tmp_path / "t.zarr", executor=executor, progress=False)
    assert same_bits(np.asarray(job.execute()[...]), values)
    assert job.report is not None
    assert len(job.stages) == 1
    assert job.report.tasks > 1
    assert {result.reader for result in job.report.results} == {"direct"}
    assert sum(result.stored_bytes_read for result in job.report.results) == values.nbytes


def test_memory_as_source_intermediate_and_target() -> None:
    stores = [MemoryStore({}) for _ in range(3)]
    source = make_array(stores[0], SHAPE, EPOCHS)
    for executor in ("serial", "threads"):
        run(source, stores[1], stages=2, temp_store=stores[2], executor=executor, mode="overwrite")
        assert stores[2]._store_dict == {}


def test_one_client_serves_all_threads(s3: Bucket) -> None:
    make_array(s3.store("a.zarr"), SHAPE, EPOCHS)
    ref = ArrayRef(store=s3.url("a.zarr"))
    found: list[Any] = []

    def note() -> None:
        found.append(open_array(ref, read_only=True).array.store)

    threads = [threading.Thread(target=note) for _ in range(3)]
    for thread in threads:
        thread.start()
        thread.join()
    assert len({id(store.fs) for store in found}) == 1
