"""An icechunk repository on an S3 server, a real one on this machine."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import zarr

import rechunk_exec as rx
from rechunk_exec.executors import ProcessesExecutor
from tests.conftest import needed_module
from tests.jobs import elements, make_array
from tests.s3 import SECRET, Bucket
from tests.values import position_values, same_bits


def test_source_and_target_on_s3_with_credentials_from_the_environment(s3: Bucket, tmp_path: Path) -> None:
    icechunk: Any = needed_module("icechunk")
    storage = icechunk.s3_storage(
        bucket=s3.name,
        prefix="repository",
        region="us-east-1",
        endpoint_url=s3.address,
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
        # And from there to a disk.
        made = zarr.open_array(repo.readonly_session("main").store, path="series", mode="r")
        back = rx.rechunk(made, (1, 24, 30), "1MB", tmp_path / "epochs", executor=executor, progress=False).execute()
    expected = position_values((6, 24, 30), "f4")
    assert same_bits(elements(made), expected)
    assert len(list(repo.ancestry(branch="main"))) == 3
    assert SECRET.encode() not in pickle.dumps(job.stages)
    assert same_bits(elements(back), expected)
