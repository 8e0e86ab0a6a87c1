"""A disk that is full in the middle of a job: what is half written goes, and it is told."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numcodecs
import pytest
import zarr

import rechunk_exec as rx
from rechunk_exec.executors import ProcessesExecutor
from rechunk_exec.storage.objects import PARTIAL_NAME
from tests.jobs import assert_exact, make_array

SHAPE = (16, 128, 256)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of a megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip(f"no disk can be mounted here: {mounted.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


LAYOUTS: dict[str, dict[str, Any]] = {
    "direct": {},
    "shards": {"target_shards": (16, 64, 128)},
    "zarr": {"zarr_format": 2, "target_options": {"filters": [numcodecs.Delta("i4")], "compressors": None}},
}


@pytest.fixture(scope="module")
def two_processes() -> Iterator[ProcessesExecutor]:
    with ProcessesExecutor(2) as pool:
        yield pool


@pytest.fixture(params=["serial", "threads", "processes"])
def executor(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue("two_processes") if request.param == "processes" else request.param


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_full_disk_ends_a_job_at_once(executor: Any, layout: str, small_disk: Path, tmp_path: Path) -> None:
    source = make_array(tmp_path / "source.zarr", SHAPE, (1, 128, 256), "i4")
    target = small_disk / "target.zarr"

    def job(mode: Any) -> rx.Rechunked:
        return rx.rechunk(
            source, (16, 32, 64), "1MB", target, executor=executor, mode=mode, progress=False,
            temp_store=tmp_path / "temp", **LAYOUTS[layout],
        )  # fmt: skip

    events: list[str] = []
    with pytest.raises(rx.TaskError, match=r"No space left.*disk is full.*mode='resume'") as caught:
        job("fail").execute(on_event=lambda event: events.append(event.kind))
    assert "retry" not in events
    assert str(target) in str(caught.value)
    assert isinstance(caught.value.__cause__, rx.StorageError)
    assert caught.value.__cause__.permanent
    assert not [path for path in target.rglob("*") if PARTIAL_NAME.fullmatch(path.name) or "partial" in path.name]
    subprocess.run(["mount", "-o", "remount,size=8m", str(small_disk)], check=True)
    assert_exact(job("overwrite").execute(), source)


def test_a_disk_that_is_full_from_the_start_is_refused(small_disk: Path, tmp_path: Path) -> None:
    source = make_array(tmp_path / "source.zarr", SHAPE, (1, 128, 256))
    (small_disk / "filler").write_bytes(bytes((1 << 20) - 4096))
    with pytest.raises(rx.StorageError):
        rx.rechunk(source, (16, 32, 64), "1MB", small_disk / "target.zarr", progress=False).execute()
    assert [path.name for path in small_disk.iterdir()] == ["filler"]


def test_an_intermediate_that_fills_its_disk_is_named(small_disk: Path, tmp_path: Path) -> None:
    source = zarr.create_array(tmp_path / "source.zarr", shape=SHAPE, chunks=(1, 128, 256), dtype="f4")
    source[:] = 1
    job = rx.rechunk(
        source, (16, 8, 8), "350kB", tmp_path / "target.zarr", temp_store=tmp_path / "temp", progress=False
    )
    assert len(job.stages) == 2
    with pytest.raises(rx.StorageError, match="temp store needs"):
        rx.rechunk(source, (16, 8, 8), "350kB", tmp_path / "target.zarr", temp_store=small_disk, progress=False)
