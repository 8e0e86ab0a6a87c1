"""Emulators of Google Cloud Storage and Azure Blob Storage behind a way that fails, with clients that people use."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from zarr.storage import StorePath

import rechunk_exec as rx
from rechunk_exec.results import Event
from rechunk_exec.storage import open_array
from rechunk_exec.tasks import ArrayRef
from tests.clouds import Cloud
from tests.faults.busy import copy_before_a_busy_server
from tests.faults.proxy import Proxy, running_proxy
from tests.faults.test_s3 import chain
from tests.faults.test_two_drivers import run_rounds
from tests.jobs import assert_exact, make_array

SHAPE, EPOCHS, SERIES = (12, 40, 30), (1, 40, 30), (12, 10, 10)
KINDS = ("SlowDown", "ServerBusy", "InternalError", "hang up")


@pytest.fixture
def proxy(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """A way to the bucket on which nothing goes wrong yet; clients that wait before they try again do not wait."""

    async def at_once(*_: object) -> None:
        return

    if cloud.scheme == "gs":
        from gcsfs import retry

        monkeypatch.setattr(retry, "asyncio", SimpleNamespace(sleep=at_once))
    else:
        from azure.storage.blob._shared.policies_async import AsyncStorageRetryPolicy

        monkeypatch.setattr(AsyncStorageRetryPolicy, "sleep", at_once)
    with running_proxy(cloud.server) as way:
        way.signs_uploads = cloud.scheme == "gs"
        for name, value in cloud.moved_to(way.address).items():
            monkeypatch.setenv(name, value)
        yield way


def test_a_server_that_is_busy_longer_than_the_client_tries(cloud: Cloud, proxy: Proxy, tmp_path: Path) -> None:
    source = make_array(tmp_path / "source.zarr", SHAPE, EPOCHS)
    # In a row of so many faults each client gives up, and we do not.
    proxy.kinds, proxy.burst = KINDS, range(25, 60)
    job = rx.rechunk(source, SERIES, "1MB", cloud.url("target.zarr"), executor="serial", progress=False)
    job.execute()
    again = rx.rechunk(cloud.url("target.zarr"), EPOCHS, "1MB", tmp_path / "back.zarr", progress=False).execute()
    proxy.kinds = ()
    assert_exact(again, source)
    assert set(proxy.done) == set(KINDS)
    assert job.report is not None
    assert job.report.store_retries > 0
    assert job.report.retries == 0


def test_obstore_before_a_server_that_is_busy(cloud: Cloud, proxy: Proxy) -> None:
    store = cloud.obstore(retry_config={"max_retries": 0})
    copy_before_a_busy_server(store, proxy, KINDS, shape=SHAPE, source_chunks=EPOCHS, chunks=SERIES)


@pytest.mark.parametrize("by", ["url", "obstore"])
def test_a_job_of_which_a_task_failed_goes_on(cloud: Cloud, by: str, tmp_path: Path) -> None:
    source = make_array(tmp_path / "source.zarr", SHAPE, EPOCHS)
    target: Any = cloud.url("target.zarr") if by == "url" else StorePath(cloud.obstore(), "target.zarr")
    words: Mapping[str, Any] = {"executor": "serial", "progress": False}
    chunk = tmp_path / "source.zarr/c/11/0/0"
    content, times = chunk.read_bytes(), (chunk.stat().st_atime_ns, chunk.stat().st_mtime_ns)

    def damage(_: Event) -> None:
        chunk.write_bytes(content[: len(content) // 2])

    with pytest.raises(rx.TaskError, match="is not tried again"):
        rx.rechunk(source, (4, 40, 30), "110kB", target, **words).execute(on_event=damage)
    found = rx.status(target)
    assert (found.state, found.done, len(found.failed)) == ("unfinished", 2, 1)
    with pytest.raises(rx.TargetExistsError):
        rx.rechunk(source, (4, 40, 30), "110kB", target, **words).execute()
    chunk.write_bytes(content)
    os.utime(chunk, ns=times)
    job = rx.rechunk(source, (4, 40, 30), "110kB", target, mode="resume", verify=True, **words)
    assert_exact(job.execute(), source)
    assert job.report is not None
    assert job.report.tasks == 1
    assert rx.status(target).state == "finished"
    assert sorted({key.split("/")[1] for key in cloud.contents() if key.startswith("target.zarr/")}) == [
        ".rechunk_exec",
        "c",
        "zarr.json",
    ]


def test_denied_access_is_told_at_once_and_without_credentials(cloud: Cloud, proxy: Proxy) -> None:
    make_array(cloud.store("source.zarr"), SHAPE, EPOCHS)
    proxy.kinds, proxy.rate = ("AccessDenied",), 1.0
    with pytest.raises(rx.StorageError, match=r"source\.zarr") as caught:
        open_array(ArrayRef(store=cloud.url("source.zarr")), read_only=True)
    assert caught.value.permanent
    assert_no_secret(cloud, caught.value)


def assert_no_secret(cloud: Cloud, error: BaseException) -> None:
    for link in chain(error):
        text = f"{link!r} {link} {getattr(link, '__notes__', '')}"
        assert not any(secret in text for secret in cloud.addresses.secrets)


def test_of_two_drivers_one_writes_or_none(cloud: Cloud, tmp_path: Path, long: bool) -> None:
    source = make_array(tmp_path / "source", (24, 24, 20), (1, 24, 20))
    layouts = ((24, 12, 10), (12, 24, 10))
    counts = run_rounds(source, lambda number: cloud.url(f"target-{number}"), 100 if long else 3, 4, layouts)
    print(cloud.scheme, counts)
    assert counts["one"] + counts["both"] > 0
