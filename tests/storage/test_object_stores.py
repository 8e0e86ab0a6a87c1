"""Whole jobs from, over and to object stores: a real S3 server, obstore, HTTP, zip files and memory."""

from __future__ import annotations

import http.server
import io
import json
import logging
import pickle
import threading
import traceback
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.storage import FsspecStore, MemoryStore, ObjectStore, ZipStore

import rechunk_exec as rx
from rechunk_exec.copy.buffers import ScratchBuffers
from rechunk_exec.executors import ProcessesExecutor
from rechunk_exec.storage import array_ref, finer_read_unit, open_array, open_reader
from rechunk_exec.storage.objects import objects_of
from rechunk_exec.storage.stores import open_store
from rechunk_exec.tasks import ArrayRef
from tests.conftest import needed_module
from tests.jobs import QUICK_STAGES, assert_exact, assert_kept_promises, make_array
from tests.s3 import KEY, SECRET, Bucket
from tests.storage.arrays import ZARR_VERSION, region_of
from tests.values import position_values, same_bits
from tests.webserver import served

SHAPE = (12, 20, 30)
EPOCHS = (1, 20, 30)
SERIES = (12, 10, 10)
THIRDS = (4, 20, 30)
TWO_STAGES = "18kB"
"""A budget that takes an intermediate."""


def run(source: Any, target: Any, *, stages: int = 1, **options: Any) -> rx.Rechunked:
    """Rechunk epochs to series, and check what came of it."""
    there = array_ref(source.store_path if isinstance(source, zarr.Array) else source)
    chunks = SERIES if stages == 2 else THIRDS
    if stages == 2:
        options = {"cost_model": QUICK_STAGES, **options}
    job = rx.rechunk(source, chunks, TWO_STAGES if stages == 2 else "10MB", target, progress=False, **options)
    assert len(job.stages) == stages
    made = job.execute()
    assert_exact(made, open_array(there, read_only=True).array)
    assert_kept_promises(job)
    return job


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


def obstore_at(s3: Bucket, **config: Any) -> ObjectStore[Any]:
    stores = needed_module("obstore.store")
    return ObjectStore(stores.S3Store(s3.name, client_options={"allow_http": True}, endpoint=s3.address, **config))


def test_obstore_as_source_intermediate_and_target(s3: Bucket) -> None:
    store = obstore_at(s3)
    source = make_array(store, SHAPE, EPOCHS, name="source")
    target = zarr.storage.StorePath(store, "target")
    temp = zarr.storage.StorePath(store, "temp")
    run(source, target, stages=2, temp_store=temp, executor="threads")
    assert {key.split("/")[0] for key in s3.listed()} == {"source", "target", "zarr.json"}


def test_obstore_in_processes_takes_credentials_from_the_environment(
    s3: Bucket, s3_processes: ProcessesExecutor
) -> None:
    store = obstore_at(s3)
    source = make_array(store, SHAPE, EPOCHS, name="source")
    run(source, zarr.storage.StorePath(store, "target"), executor=s3_processes)


def live_stores_with_secrets(s3: Bucket) -> Iterator[Any]:
    yield obstore_at(s3, access_key_id=KEY, secret_access_key=SECRET)
    options = {"endpoint_url": s3.address, "asynchronous": True}
    yield FsspecStore.from_url(s3.url(""), storage_options={**options, "key": KEY, "secret": SECRET})
    client = {"aws_access_key_id": KEY, "aws_secret_access_key": SECRET}
    yield FsspecStore.from_url(s3.url(""), storage_options={**options, "client_kwargs": client})


def test_stores_with_explicit_secrets_stay_in_their_process(s3: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    for number, store in enumerate(live_stores_with_secrets(s3)):
        source = make_array(store, SHAPE, EPOCHS, name=f"source-{number}")
        target = zarr.storage.StorePath(store, f"target-{number}")
        with pytest.raises(rx.StorageError, match=r"made with credentials \(\w+\)") as caught:
            rx.rechunk(source, SERIES, "1MB", target, executor="processes", progress=False)
        assert SECRET not in str(caught.value)
        assert KEY not in str(caught.value)
        job = rx.rechunk(source, SERIES, "1MB", target, executor="threads", progress=False)
        assert_exact(job.execute(), source)


def test_a_secret_is_nowhere_but_in_the_environment(
    s3: Bucket, caplog: pytest.LogCaptureFixture, tmp_path: Path, s3_processes: ProcessesExecutor
) -> None:
    caplog.set_level(logging.DEBUG, "rechunk_exec")
    make_array(s3.store("source.zarr"), SHAPE, EPOCHS)
    job = rx.rechunk(
        s3.url("source.zarr"), SERIES, TWO_STAGES, s3.url("target.zarr"), executor=s3_processes, verify=True
    )
    texts = [task.to_json().encode() for task in job.tasks()]
    texts += [stage.to_json().encode() for stage in job.stages]
    texts += [pickle.dumps(stage) for stage in job.stages]
    texts += [repr(job).encode()]
    job.execute()
    texts += [str(job.report).encode(), caplog.text.encode()]
    again = rx.rechunk(
        s3.url("source.zarr"), SERIES, TWO_STAGES, s3.url("target.zarr"), executor="serial", mode="overwrite"
    )
    assert again.write_jobs(tmp_path / "jobs.jsonl") == again.plan.tasks
    for key, content in s3.contents().items():
        texts += [key.encode(), content]
    texts += [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    for text in texts:
        assert SECRET.encode() not in text
        assert KEY.encode() not in text


def test_a_secret_is_in_no_error(s3: Bucket, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    source = make_array(tmp_path / "source.zarr", SHAPE, EPOCHS)
    wrong = [
        s3.url("there-is-none.zarr"),
        "s3://no-such-bucket/a.zarr",
    ]
    for url in wrong:
        for attempt in (
            lambda url=url: rx.rechunk(url, SERIES, "1MB", tmp_path / "t.zarr"),
            lambda url=url: rx.rechunk(source, SERIES, "1MB", url.replace("there", "s3://"), progress=False).execute(),
        ):
            try:
                attempt()
            except rx.RechunkError as error:
                for link in chain(error):
                    assert SECRET not in f"{link!r} {link} {getattr(link, '__notes__', '')}"


def chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        return


class Ranged(Quiet):
    """A handler that serves ranges, as real servers do."""

    def send_head(self) -> Any:
        asked = self.headers.get("Range")
        path = Path(self.translate_path(self.path))
        if asked is None or not path.is_file():
            return super().send_head()
        content = path.read_bytes()
        first, last = asked.removeprefix("bytes=").split("-")
        part = content[-int(last) :] if not first else content[int(first) : int(last) + 1 if last else None]
        self.send_response(206)
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        self.wfile.write(part)
        return None


@pytest.fixture(params=["whole files only", "ranges"])
def web(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    needed_module("aiohttp")
    handler = partial(Ranged if request.param == "ranges" else Quiet, directory=str(tmp_path / "www"))
    with served(handler) as address:
        yield address


TEXTS = position_values(SHAPE, object)


@pytest.mark.parametrize("layout", ["zstd", "blosc", "raw", "shards", "format 2", "texts in shards"])
def test_http_is_a_source(web: str, layout: str, tmp_path: Path, s3_processes: ProcessesExecutor) -> None:
    options: dict[str, dict[str, Any]] = {
        "zstd": {},
        "blosc": {"compressors": zarr.codecs.BloscCodec(cname="lz4")},
        "raw": {"compressors": None},
        "shards": {"shards": SHAPE},
        "format 2": {"zarr_format": 2},
        "texts in shards": {"shards": SHAPE, "dtype": zarr.dtype.VariableLengthUTF8(), "values": TEXTS},
    }
    source = make_array(tmp_path / "www/a.zarr", SHAPE, EPOCHS, **options[layout])
    for number, executor in enumerate(("threads", s3_processes) if layout in ("zstd", "shards") else ("threads",)):
        job = rx.rechunk(
            f"{web}/a.zarr", SERIES, "1MB", tmp_path / f"t{number}.zarr", executor=executor, progress=False
        )
        assert_exact(job.execute(), source)


def test_absent_chunks_of_http_are_fill_value(web: str, tmp_path: Path) -> None:
    source = zarr.create_array(tmp_path / "www/a.zarr", shape=SHAPE, chunks=EPOCHS, dtype="f4", fill_value=3)
    source[5] = position_values(SHAPE[1:], "f4")
    assert_exact(rx.rechunk(f"{web}/a.zarr", SERIES, "1MB", tmp_path / "t.zarr", progress=False).execute(), source)


class SentOn(Quiet):
    """A server that sends clients on to a signed URL for chunks, which is denied there."""

    def send_head(self) -> Any:
        path, _, query = self.path.partition("?")
        if query:
            self.send_error(403)
        elif "/c/" in path:
            self.send_response(302)
            self.send_header("Location", f"{path}?X-Amz-Signature={SECRET}")
            self.send_header("Content-Length", "0")
            self.end_headers()
        else:
            return super().send_head()
        return None


@pytest.mark.parametrize("layout", ["direct", "zarr"])
def test_the_signature_of_a_url_that_a_server_sends_on_to_is_in_no_error(layout: str, tmp_path: Path) -> None:
    needed_module("aiohttp")
    dtype = "f4" if layout == "direct" else zarr.dtype.VariableLengthUTF8()
    values = position_values(SHAPE, "f4" if layout == "direct" else object)
    source = make_array(tmp_path / "www/a.zarr", SHAPE, EPOCHS, dtype, values=values)
    with served(partial(SentOn, directory=str(tmp_path / "www"))) as address:
        for attempt in (
            lambda: rx.rechunk(f"{address}/a.zarr", SERIES, "2MB", tmp_path / "t", progress=False).execute(),
            lambda: rx.verify(f"{address}/a.zarr", source),
        ):
            with pytest.raises(rx.RechunkError, match=r"403.*a.zarr/c/\d+/0/0\?\.\.\.") as caught:
                attempt()
            assert all(SECRET not in f"{link!r} {link}" for link in chain(caught.value))
            assert SECRET not in "".join(traceback.format_exception(caught.value))
    assert not any(SECRET.encode() in path.read_bytes() for path in (tmp_path / "t").rglob("*") if path.is_file())


def test_http_is_no_target(web: str, tmp_path: Path) -> None:
    source = make_array(tmp_path / "www/a.zarr", SHAPE, EPOCHS)
    for places in ({"target_store": f"{web}/b.zarr"}, {"target_store": tmp_path / "t", "temp_store": f"{web}/tmp"}):
        with pytest.raises(rx.StorageError, match="read only"):
            rx.rechunk(source, SERIES, "25kB", **places, progress=False)


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
