"""An icechunk repository on an S3 server, a real one on this machine."""

from __future__ import annotations

import pickle
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zarr

import rechunk_exec as rx
from rechunk_exec.executors import ProcessesExecutor
from tests.conftest import needed_module
from tests.jobs import elements, make_array
from tests.values import position_values, same_bits

SECRET = "not-to-be-found-anywhere"
PORT_TRIES = 100


@pytest.fixture(scope="module")
def s3_url() -> Iterator[str]:
    """The address of a server with the bucket ``bucket``."""
    needed_module("moto")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            for _ in range(PORT_TRIES):
                try:
                    request = urllib.request.Request(f"{url}/bucket", method="PUT")
                    urllib.request.urlopen(request).close()
                    break
                except OSError:
                    assert server.poll() is None, "the S3 server has ended"
                    time.sleep(0.1)
            yield url
        finally:
            server.kill()


def test_source_and_target_on_s3_with_credentials_from_the_environment(
    s3_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    icechunk: Any = needed_module("icechunk")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "anyone")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    storage = icechunk.s3_storage(
        bucket="bucket",
        prefix="repository",
        region="us-east-1",
        endpoint_url=s3_url,
        allow_http=True,
        force_path_style=True,
        from_env=True,
    )
    repo = icechunk.Repository.create(storage)
    session = repo.writable_session("main")
    make_array(session.store, (6, 24, 30), (1, 24, 30), name="epochs")
    session.commit("one")
    source = zarr.open_array(repo.readonly_session("main").store, path="epochs", mode="r")
    with ProcessesExecutor(2) as executor:
        job = rx.rechunk(
            source,
            (6, 12, 15),
            40_000,
            repo.writable_session("main"),
            array_name="series",
            executor=executor,
            progress=False,
        )
        assert len(job.stages[0]) > 1
        job.execute()
    expected = position_values((6, 24, 30), "f4")
    made = zarr.open_array(repo.readonly_session("main").store, path="series", mode="r")
    assert same_bits(elements(made), expected)
    assert len(list(repo.ancestry(branch="main"))) == 3
    assert SECRET.encode() not in pickle.dumps(job.stages)
    # And from there to a disk.
    back = rx.rechunk(made, (1, 24, 30), "1MB", tmp_path / "epochs", executor="processes", progress=False)
    assert same_bits(elements(back.execute()), expected)
