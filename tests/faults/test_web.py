"""Sources on web servers that do not tell, in one way or another, whether there is a journal of ours."""

from __future__ import annotations

import http.server
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import rechunk_exec as rx
from rechunk_exec.storage.documents import Documents
from rechunk_exec.storage.retry import RetryPolicy, retry_policy
from rechunk_exec.tasks import ArrayRef
from tests.conftest import needed_module
from tests.jobs import ZarrArray, assert_exact, make_array, stop_after
from tests.webserver import served

SHAPE, CHUNKS = (6, 12, 10), (1, 12, 10)
JOURNAL = "/.rechunk_exec/"


class Server(http.server.SimpleHTTPRequestHandler):
    """Serves files, but for what has ``refused`` in its path: to that it answers ``status``. It lists nothing."""

    def __init__(
        self, *args: Any, refused: str = JOURNAL, status: int = 404, sent_on: bool = False, **options: Any
    ) -> None:
        self.refused, self.status, self.sent_on = refused, status, sent_on
        super().__init__(*args, **options)

    def send_head(self) -> Any:
        if self.refused not in self.path:
            return super().send_head()
        if self.sent_on and "?" not in self.path:
            self.send_response(302)
            self.send_header("Location", f"{self.path}?X-Amz-Signature=5f3a")
            self.send_header("Content-Length", "0")
            self.end_headers()
        else:
            self.send_error(self.status)
        return None

    def list_directory(self, path: Any) -> None:
        self.send_error(403)

    def log_message(self, *args: object) -> None:
        return


@pytest.fixture
def source(tmp_path: Path) -> ZarrArray:
    needed_module("aiohttp")
    return make_array(tmp_path / "www/a.zarr", SHAPE, CHUNKS)


def copy(address: str, target: Path) -> rx.Rechunked:
    return rx.rechunk(f"{address}/a.zarr", (6, 4, 5), "1MB", target, executor="serial", progress=False)


def copy_of(source: ZarrArray, target: Path) -> rx.Rechunked:
    return rx.rechunk(source, (6, 4, 5), "20kB", target, executor="serial", progress=False)


@pytest.mark.parametrize("status", [401, 403, 404, 410, 416])
def test_a_server_that_refuses_what_it_does_not_know_serves_a_source(
    status: int, tmp_path: Path, source: ZarrArray
) -> None:
    with served(partial(Server, directory=str(tmp_path / "www"), status=status)) as address:
        assert_exact(copy(address, tmp_path / "t").execute(), source)
        assert rx.verify(f"{address}/a.zarr", tmp_path / "t").ok


@pytest.mark.parametrize("sent_on", [False, True])
def test_a_busy_server_does_not_make_an_unfinished_source_whole(
    sent_on: bool, tmp_path: Path, source: ZarrArray
) -> None:
    # It was copied, and the copy looked done.
    stop_after(1, copy_of(source, tmp_path / "www/half.zarr"))
    with (
        served(partial(Server, directory=str(tmp_path / "www"), status=503, sent_on=sent_on)) as address,
        retry_policy(RetryPolicy(tries=2, first_wait_s=0.001)),
    ):
        for attempt in (
            lambda: rx.rechunk(f"{address}/half.zarr", (6, 4, 5), "1MB", tmp_path / "t"),
            lambda: rx.verify(f"{address}/half.zarr", source),
        ):
            with pytest.raises(rx.StorageError, match=r"cannot read .*job.json.* it was tried 2 times"):
                attempt()
    assert not (tmp_path / "t").exists()


def test_an_unfinished_source_whose_journal_cannot_be_listed_is_refused(tmp_path: Path, source: ZarrArray) -> None:
    # The failure to list it was taken for there being none.
    stop_after(1, copy_of(source, tmp_path / "www/half.zarr"))
    with served(partial(Server, directory=str(tmp_path / "www"), refused="nothing")) as address:
        with pytest.raises(rx.StorageError, match=r"a source must be whole; .*half.zarr is unfinished"):
            rx.rechunk(f"{address}/half.zarr", (6, 4, 5), "1MB", tmp_path / "t")
        assert "half.zarr is unfinished" in rx.verify(f"{address}/half.zarr", source).unfinished


@pytest.mark.parametrize("status,found", [(404, True), (410, True), (416, True), (400, False), (403, False)])
def test_a_document_that_is_gone_or_holds_nothing_is_none(status: int, found: bool, tmp_path: Path) -> None:
    needed_module("aiohttp")
    with served(partial(Server, directory=str(tmp_path), status=status)) as address:
        documents = Documents(ArrayRef(store=address, path="a"), read_only=True)
        if found:
            assert documents.read("job") is None
        else:
            with pytest.raises(rx.StorageError, match=str(status)):
                documents.read("job")
