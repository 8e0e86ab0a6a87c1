"""Whole jobs from, over and to Google Cloud Storage and Azure Blob Storage, by emulators of both."""

from __future__ import annotations

import logging
import pickle
from pathlib import Path
from typing import Any

import pytest
import zarr
from zarr.storage import FsspecStore, StorePath

import rechunk_exec as rx
from rechunk_exec.executors import ProcessesExecutor
from rechunk_exec.results import Event
from rechunk_exec.storage.objects import Objects, objects_of
from rechunk_exec.storage.stores import open_store
from rechunk_exec.tasks import ArrayRef
from tests.clouds import Cloud
from tests.conftest import needed_module
from tests.jobs import (
    QUICK_STAGES,
    assert_exact,
    assert_kept_promises,
    elements,
    make_array,
    stop_after,
    tasks_run,
)
from tests.values import position_values, same_bits

SHAPE, EPOCHS, SERIES, THIRDS = (12, 20, 30), (1, 20, 30), (12, 10, 10), (4, 20, 30)
TWO_STAGES = "25kB"
"""A budget that takes an intermediate."""
SECRET_VARIABLES = (
    *("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT"),
    *("AZURE_STORAGE_CONNECTION_STRING", "AZURE_STORAGE_ACCOUNT_KEY"),
)
CLIENTS = pytest.mark.parametrize("by", ["url", "obstore"])


def place(cloud: Cloud, by: str, path: str) -> Any:
    """A place in a bucket, as a user names it."""
    return cloud.url(path) if by == "url" else StorePath(cloud.obstore(), path)


def put(cloud: Cloud, by: str, path: str, *arguments: Any, **options: Any) -> zarr.Array[Any]:
    """A stored array; written by the client that is to read it, or by fsspec."""
    if by == "url":
        return make_array(cloud.store(path), *arguments, **options)
    return make_array(cloud.obstore(), *arguments, name=path, **options)


def top(cloud: Cloud) -> set[str]:
    """What lies at the top of a bucket, without what zarr writes there for a path in a store."""
    return {key.split("/")[0] for key in cloud.contents()} - {"zarr.json"}


@CLIENTS
def test_source_intermediates_and_target(cloud: Cloud, by: str, clouds_processes: ProcessesExecutor) -> None:
    source = put(cloud, by, "source.zarr", SHAPE, EPOCHS, fill_value=7)
    job = rx.rechunk(
        place(cloud, by, "source.zarr"), SERIES, TWO_STAGES, place(cloud, by, "target.zarr"),
        temp_store=place(cloud, by, "temp"), executor=clouds_processes, cost_model=QUICK_STAGES, verify=True,
        progress=False,
    )  # fmt: skip
    assert len(job.stages) == 2
    assert_exact(job.execute(), source)
    assert_kept_promises(job)
    assert rx.verify(place(cloud, by, "source.zarr"), place(cloud, by, "target.zarr")).ok
    assert rx.status(place(cloud, by, "target.zarr")).state == "finished"
    assert top(cloud) == {"source.zarr", "target.zarr"}, "no intermediate is left"


@CLIENTS
def test_a_source_is_not_replaced_by_another_name(cloud: Cloud, by: str) -> None:
    put(cloud, by, "source.zarr", SHAPE, EPOCHS)
    before = cloud.contents()
    for other in ("url", "obstore"):
        for path, mode in (("source.zarr", "overwrite"), ("source.zarr/new", "fail")):
            with pytest.raises(rx.PlanError, match="same or inside"):
                rx.rechunk(place(cloud, by, "source.zarr"), SERIES, "1MB", place(cloud, other, path), mode=mode)  # type: ignore[arg-type]
    assert cloud.contents() == before


def test_intermediates_elsewhere(cloud: Cloud, clouds_processes: ProcessesExecutor, tmp_path: Path) -> None:
    source = make_array(tmp_path / "source.zarr", SHAPE, EPOCHS)
    common: dict[str, Any] = {"executor": clouds_processes, "cost_model": QUICK_STAGES, "progress": False}
    job = rx.rechunk(source, SERIES, "18kB", tmp_path / "target.zarr", temp_store=cloud.url("temp"), **common)
    assert len(job.stages) == 2
    assert_exact(job.execute(), source)
    assert cloud.contents() == {}
    job = rx.rechunk(source, SERIES, TWO_STAGES, cloud.url("target.zarr"), temp_store=tmp_path / "temp", **common)
    assert len(job.stages) == 2
    assert_exact(job.execute(), source)
    assert list((tmp_path / "temp").iterdir()) == []


@CLIENTS
def test_shards_are_read_by_range_and_written(cloud: Cloud, by: str) -> None:
    put(cloud, by, "source.zarr", SHAPE, (1, 10, 15), shards=THIRDS)
    job = rx.rechunk(
        place(cloud, by, "source.zarr"), SERIES, "1MB", place(cloud, by, "target.zarr"), target_shards=(12, 10, 30),
        verify=True, progress=False,
    )  # fmt: skip
    made = job.execute()
    assert made.shards == (12, 10, 30)
    assert same_bits(elements(made), position_values(SHAPE, "f4")), "zarr finds the index of each shard too"
    assert_kept_promises(job)
    assert sum(key.startswith("target.zarr/c/") for key in cloud.contents()) == 2


@CLIENTS
def test_objects_are_read_whole_in_part_and_known_torn(cloud: Cloud, by: str) -> None:
    store = place(cloud, by, "a")
    ref = ArrayRef(store=store) if isinstance(store, str) else ArrayRef(store=store.store, path=store.path)
    objects = objects_of(open_store(ref, read_only=False), f"{ref.path}/b".lstrip("/"))
    contents = {"empty": b"", "small": b"x", "large": bytes(range(256)) * 300}
    for key, content in contents.items():
        writer = objects.create(key)
        writer.append(content)
        assert writer.commit() == len(content)
    for key, content in contents.items():
        assert read(objects, key) == content
    assert objects.read("none") is None
    assert objects.read("none", start=-7, length=7) is None
    assert objects.read("none", start=3, length=7) is None
    for start, length in ((-7, 7), (9, 300), (0, 1)):
        assert read(objects, "large", start, length) == contents["large"][start:][:length]
    torn = [("large", 76_795, 6), ("large", 100_000, 5), ("large", -80_000, 80_000), ("empty", -7, 7), ("empty", 0, 1)]
    for key, start, length in torn:
        with pytest.raises(rx.StorageError, match="torn") as caught:
            objects.read(key, start=start, length=length)
        assert caught.value.permanent
    for key in (*contents, "none"):
        objects.delete(key)
        objects.delete(key)
    assert cloud.contents() == {}


def read(objects: Objects, key: str, start: int = 0, length: int | None = None) -> bytes:
    found = objects.read(key, start=start, length=length)
    assert found is not None
    return bytes(found)


def test_an_overwritten_array_leaves_nothing_of_the_old_grid(cloud: Cloud) -> None:
    source = make_array(cloud.store("source.zarr"), SHAPE, EPOCHS)
    make_array(cloud.store("target.zarr"), (20, 50), (5, 50))
    make_array(cloud.store("target.zarr-2"), (4,), (2,))
    before = {key: value for key, value in cloud.contents().items() if not key.startswith("target.zarr/")}
    target = cloud.url("target.zarr")
    with pytest.raises(rx.TargetExistsError):
        rx.rechunk(cloud.url("source.zarr"), THIRDS, "1MB", target, progress=False).execute()
    job = rx.rechunk(cloud.url("source.zarr"), THIRDS, "1MB", target, mode="overwrite", progress=False)
    assert_exact(job.execute(), source)
    after = cloud.contents()
    assert len([key for key in after if key.startswith("target.zarr/c/")]) == 3
    assert {key: value for key, value in after.items() if not key.startswith("target.zarr/")} == before


def test_a_target_whose_url_ends_in_a_slash(cloud: Cloud) -> None:
    source = make_array(cloud.store("source.zarr"), SHAPE, EPOCHS)
    places = cloud.url("source.zarr"), SERIES, TWO_STAGES, f"{cloud.url('target.zarr')}/"
    stop_after(2, rx.rechunk(*places, executor="serial", progress=False))
    job = rx.rechunk(*places, mode="resume", progress=False)
    assert_exact(job.execute(), source)
    assert tasks_run(job) == job.plan.tasks - 2, "results are listed"
    before = {key for key in cloud.contents() if "/done/" in key}
    rx.rechunk(*places, mode="overwrite", progress=False).execute()
    after = {key for key in cloud.contents() if "/done/" in key}
    assert before, "results were there"
    assert after, "and are, of the new job"
    assert not before & after, "nothing of the job before is left"


def test_a_bucket_that_is_not_there(cloud: Cloud, tmp_path: Path) -> None:
    source = make_array(tmp_path / "source.zarr", SHAPE, EPOCHS)
    with pytest.raises(rx.StorageError, match=rf"no array could be opened at: .*{cloud.scheme}://no-such-bucket/a"):
        rx.rechunk(f"{cloud.scheme}://no-such-bucket/a", SERIES, "1MB", tmp_path / "t.zarr")
    with pytest.raises(rx.StorageError, match="no-such-bucket"):
        rx.rechunk(source, SERIES, "1MB", f"{cloud.scheme}://no-such-bucket/a", progress=False).execute()


def test_a_secret_is_nowhere_but_in_the_environment(
    cloud: Cloud, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    caplog.set_level(logging.DEBUG, "rechunk_exec")
    make_array(cloud.store("source.zarr"), SHAPE, EPOCHS)
    places = cloud.url("source.zarr"), SERIES, TWO_STAGES, cloud.url("target.zarr")
    job = rx.rechunk(*places, executor="threads", verify=True)
    texts = [task.to_json().encode() for task in job.tasks()]
    texts += [part for stage in job.stages for part in (stage.to_json().encode(), pickle.dumps(stage))]
    texts += [repr(job).encode()]
    journals: list[bytes] = []

    def look(event: Event) -> None:
        if event.kind == "start":
            journals.extend(cloud.contents().values())

    job.execute(on_event=look)
    assert journals
    texts += [str(job.report).encode(), caplog.text.encode(), *journals]
    again = rx.rechunk(*places, executor="serial", mode="overwrite")
    assert again.write_jobs(tmp_path / "jobs.jsonl") == again.plan.tasks
    for key, content in cloud.contents().items():
        texts += [key.encode(), content]
    texts.append((tmp_path / "jobs.jsonl").read_bytes())
    for text in texts:
        for secret in cloud.addresses.secrets:
            assert secret.encode() not in text


def test_credentials_are_no_options(cloud: Cloud, tmp_path: Path) -> None:
    with pytest.raises(rx.SerializationError, match="carries no credentials") as caught:
        rx.rechunk(cloud.url("a"), SERIES, "1MB", tmp_path / "t", storage_options=cloud.secret_options)
    assert not any(secret in str(caught.value) for secret in cloud.addresses.secrets)


def test_stores_with_explicit_secrets_stay_in_their_process(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SECRET_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    filesystem = needed_module("gcsfs" if cloud.scheme == "gs" else "adlfs")
    kind: Any = filesystem.GCSFileSystem if cloud.scheme == "gs" else filesystem.AzureBlobFileSystem
    client = kind(**cloud.secret_options, asynchronous=True, skip_instance_cache=True)
    stores = (cloud.obstore(**cloud.obstore_secrets), cloud.kept(FsspecStore(client, path=cloud.name)))
    for number, store in enumerate(stores):
        source = make_array(store, SHAPE, EPOCHS, name=f"source-{number}")
        target = StorePath(store, f"target-{number}")
        with pytest.raises(rx.StorageError, match=r"made with credentials \(\w+\)") as caught:
            rx.rechunk(source, SERIES, "1MB", target, executor="processes", progress=False)
        assert not any(secret in str(caught.value) for secret in cloud.addresses.secrets)
        job = rx.rechunk(source, SERIES, "1MB", target, executor="threads", progress=False)
        assert_exact(job.execute(), source)
