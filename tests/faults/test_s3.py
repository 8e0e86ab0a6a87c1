"""A real S3 server behind a way that fails, with the clients that people use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zarr
from zarr.storage import ObjectStore

import rechunk_exec as rx
from rechunk_exec.executors import ProcessesExecutor
from rechunk_exec.storage import open_array
from rechunk_exec.storage.retry import RetryPolicy
from rechunk_exec.tasks import ArrayRef
from tests.conftest import needed_module
from tests.faults.busy import copy_before_a_busy_server
from tests.faults.proxy import Proxy, running_proxy
from tests.jobs import assert_exact, make_array
from tests.s3 import KEY, SECRET, Bucket

SHAPE, EPOCHS, SERIES = (12, 40, 30), (1, 40, 30), (12, 10, 10)
KINDS = ("SlowDown", "InternalError", "ServiceUnavailable", "cut", "hang up")


@pytest.fixture
def proxy(s3: Bucket, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """A way to the bucket on which nothing goes wrong yet; clients are asked not to try again themselves."""
    with running_proxy(s3.address) as way:
        monkeypatch.setenv("AWS_ENDPOINT_URL", way.address)
        monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
        yield way


@pytest.mark.parametrize("executor", ["threads", pytest.param("processes", marks=pytest.mark.long)])
def test_an_s3_server_that_is_busy(s3: Bucket, proxy: Proxy, executor: str) -> None:
    source = make_array(s3.store("source.zarr"), SHAPE, EPOCHS)
    proxy.kinds, proxy.rate = KINDS, 0.1
    with ProcessesExecutor(1) as pool:
        job = rx.rechunk(
            s3.url("source.zarr"), SERIES, "30kB", s3.url("target.zarr"),
            executor=pool if executor == "processes" else executor, progress=False,
        )  # fmt: skip
        job.execute()
    proxy.rate = 0.0
    assert_exact(zarr.open_array(s3.store("target.zarr"), mode="r"), source)
    assert {key.split("/")[0] for key in s3.contents()} == {"source.zarr", "target.zarr"}
    assert len(proxy.done) > 2
    assert job.report is not None
    assert job.report.store_retries > 0
    assert job.report.retries == 0


def test_obstore_before_a_server_that_is_busy(s3: Bucket, proxy: Proxy) -> None:
    stores = needed_module("obstore.store")
    store: ObjectStore[Any] = ObjectStore(
        stores.S3Store(
            s3.name, endpoint=proxy.address, client_options={"allow_http": True}, retry_config={"max_retries": 0}
        )
    )
    copy_before_a_busy_server(store, proxy, KINDS, shape=SHAPE, source_chunks=EPOCHS, chunks=SERIES)


def test_denied_access_is_told_at_once_and_without_credentials(s3: Bucket, proxy: Proxy, tmp_path: Path) -> None:
    make_array(s3.store("source.zarr"), SHAPE, EPOCHS)
    events: list[str] = []

    def deny(event: Any) -> None:
        events.append(event.kind)
        proxy.kinds, proxy.rate = ("AccessDenied",), 1.0

    with ProcessesExecutor(1) as pool:
        job = rx.rechunk(s3.url("source.zarr"), SERIES, "200kB", tmp_path / "t.zarr", executor=pool, progress=False)
        with pytest.raises(rx.TaskError, match="is not tried again") as task:
            job.execute(on_event=deny)
    assert "retry" not in events
    with pytest.raises(rx.StorageError, match="PermissionError") as planning:
        open_array(ArrayRef(store=s3.url("source.zarr")), read_only=True)
    assert planning.value.permanent
    assert any(KEY in sent for sent in proxy.authorizations), "requests were signed"
    for error in (task.value, planning.value):
        for link in chain(error):
            text = f"{link!r} {link} {getattr(link, '__notes__', '')}"
            assert SECRET not in text
            assert KEY not in text


def test_a_wrong_secret_is_in_no_error(s3: Bucket, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET + "wrong")
    proxy.kinds, proxy.rate = ("AccessDenied",), 1.0
    with pytest.raises(rx.StorageError, match="PermissionError") as caught:
        rx.rechunk(s3.url("source.zarr"), SERIES, "1MB", s3.url("target.zarr"))
    assert len(proxy.authorizations) < RetryPolicy().tries, "it was asked again"
    for link in chain(caught.value):
        assert SECRET not in f"{link!r} {link} {getattr(link, '__notes__', '')}"


def chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
