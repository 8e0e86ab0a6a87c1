"""Jobs that die at a given change of the store, and what the same call makes of it. Each change: ``--long``."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rechunk_exec.storage import lease
from tests.faults.crashes import (
    CASES,
    ROOT,
    Figures,
    Scene,
    quiet,
    run_case,
    run_torn,
)
from tests.faults.dyingplaces import BucketPlace, MemoryPlace
from tests.s3 import Bucket


@pytest.fixture(autouse=True)
def _no_workers_to_wait_for(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(lease, "WORKERS_LEAVE_S", 0.0)
    with quiet():
        yield


@pytest.mark.parametrize("name", CASES)
def test_a_job_that_dies_at_a_change_of_a_store_goes_on(name: str, tmp_path: Path, long: bool) -> None:
    figures = Figures()
    seed = 3 + list(CASES).index(name)
    run_case(Scene(CASES[name], MemoryPlace(), tmp_path), figures, every=1 if long else 9, seed=seed)
    print(figures)


@pytest.mark.parametrize("name", ["over ours, shards", "going on"])
def test_half_an_object_is_not_believed(name: str, tmp_path: Path, long: bool) -> None:
    figures = Figures()
    run_torn(Scene(CASES[name], MemoryPlace(), tmp_path), figures, every=1 if long else 7, seed=3)
    print(figures)
    assert figures.deaths


def test_a_job_that_dies_at_a_change_of_a_bucket_goes_on(s3: Bucket, tmp_path: Path, long: bool) -> None:
    figures = Figures()
    for name in ["over ours, shards", "over the same, two stages"][: None if long else 1]:
        scene = Scene(CASES[name], BucketPlace(s3), tmp_path / name)
        run_case(scene, figures, every=4 if long else 19, seed=3)
    print(figures)


def test_a_job_that_dies_at_an_operation_on_a_local_file_goes_on(long: bool) -> None:
    # A process of its own, which has no threads when it forks.
    some = ["--case", "over ours of format 2, in pieces", "--case", "going on"]
    words = ["--place", "disk", *(["--long"] if long else ["--every", "23", *some])]
    command = [sys.executable, "-m", "tests.faults.crashes", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    print(done.stdout)
    assert done.returncode == 0, done.stderr
