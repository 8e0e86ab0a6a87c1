"""Credentials stay in the environment: they are in no task, document, log or error."""

from __future__ import annotations

import logging
import pickle
import traceback
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import zarr
from zarr.storage import FsspecStore

import rechunk_exec as rx
from rechunk_exec.executors import ProcessesExecutor
from tests.conftest import needed_module
from tests.jobs import assert_exact, make_array
from tests.s3 import KEY, SECRET, Bucket
from tests.storage.copies import EPOCHS, SERIES, SHAPE, TWO_STAGES
from tests.values import position_values
from tests.webserver import Quiet, served


def live_stores_with_secrets(s3: Bucket) -> Iterator[Any]:
    yield s3.obstore(access_key_id=KEY, secret_access_key=SECRET)
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
