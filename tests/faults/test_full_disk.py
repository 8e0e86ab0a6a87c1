"""A disk that is full in the middle of a job: a clear error, and after room is made the job goes on to the end."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zarr

import rechunk_exec as rx
from rechunk_exec import keeper
from rechunk_exec.executors import ProcessesExecutor
from rechunk_exec.results import Event
from tests.jobs import ZarrArray, assert_exact, elements, make_array
from tests.values import same_bits

SHAPE, CHUNKS = (32, 64, 64), (32, 8, 8)
"""Half a megabyte that does not compress."""
MAX_MEM = 80_000
EXECUTORS: dict[str, Callable[[], Any]] = {
    "serial": lambda: "serial",
    "threads": lambda: "threads",
    "processes": lambda: ProcessesExecutor(2),
}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of two megabytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(mount, check=False, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("there is no command 'mount' here")
    if mounted.returncode:
        pytest.skip(f"no disk can be mounted here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture
def source(tmp_path: Path) -> ZarrArray:
    return make_array(tmp_path / "source", SHAPE, (1, *SHAPE[1:]))


class Filling:
    """Fills a disk when so many tasks of a stage are done."""

    def __init__(self, disk: Path, stage: int, tasks: int, left: int = 0) -> None:
        self.filler = disk / "filler"
        self.stage, self.tasks, self.left = stage, tasks, left

    def __call__(self, event: Event) -> None:
        """Listen to a run."""
        if event.kind == "task" and event.stage == self.stage:
            self.tasks -= 1
            if self.tasks == 0:
                time.sleep(0.2)  # the journal is written meanwhile
                self.fill()

    def fill(self) -> None:
        """Take all room but ``left`` bytes."""
        room = shutil.disk_usage(self.filler.parent).free
        self.filler.write_bytes(b"\1" * (room - self.left))


def plan(source: ZarrArray, tmp_path: Path, disk: Path, full: str, executor: Any, **options: Any) -> rx.Rechunked:
    places = {"target": tmp_path / "target", "temp": tmp_path / "temp"} | {full: disk / full}
    options |= {"temp_store": places["temp"], "executor": executor, "progress": False}
    job = rx.rechunk(source, CHUNKS, MAX_MEM, places["target"], **options)
    assert len(job.stages) == 2
    return job


@pytest.mark.parametrize(
    "full, executor",
    [
        ("target", "threads"),
        ("target", "processes"),
        ("temp", "serial"),
        ("temp", "processes"),
        pytest.param("target", "serial", marks=pytest.mark.long),
        pytest.param("temp", "threads", marks=pytest.mark.long),
    ],
)
def test_a_disk_that_fills_in_the_middle_is_told_and_the_job_goes_on_when_there_is_room(
    full: str, executor: str, tmp_path: Path, disk: Path, source: ZarrArray, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "WRITE_S", 0.05)
    filling = Filling(disk, stage=0 if full == "temp" else 1, tasks=2)
    job = plan(source, tmp_path, disk, full, EXECUTORS[executor]())
    with pytest.raises(rx.RechunkError, match="No space left") as caught:
        job.execute(on_event=filling)
    assert str(disk) in str(caught.value)
    assert "mode='resume' goes on from here" in str(caught.value)
    failed = caught.value.__cause__ if isinstance(caught.value, rx.TaskError) else caught.value
    assert isinstance(failed, rx.StorageError)
    assert rx.status(tmp_path / "target" if full == "temp" else disk / "target").state == "unfinished"
    assert not list(disk.rglob("*.partial"))

    again = plan(source, tmp_path, disk, full, EXECUTORS[executor](), mode="resume")
    with pytest.raises(rx.RechunkError, match=r"No space left|has \d+ left"):  # as long as it is full
        again.execute()
    filling.filler.unlink()
    last = plan(source, tmp_path, disk, full, EXECUTORS[executor](), mode="resume")
    assert_exact(last.execute(), source)
    assert last.report is not None
    assert last.report.tasks < last.plan.tasks, "what was done was not done again"
    assert not (tmp_path / "temp").exists() or not list((tmp_path / "temp").rglob("*"))


@pytest.mark.parametrize("left", [0, 4096, 8192, 12288])
def test_a_disk_that_fills_before_the_first_task_leaves_no_array_that_looks_done(
    left: int, tmp_path: Path, disk: Path, source: ZarrArray
) -> None:
    job = rx.rechunk(source, CHUNKS, "1MB", disk / "target", executor="serial", zarr_format=2, progress=False)
    filling = Filling(disk, 0, 0, left=left)
    filling.fill()
    with pytest.raises(rx.RechunkError, match=r"No space left|has \d+ left"):
        job.execute()
    filling.filler.unlink()
    if (disk / "target").exists():
        assert rx.status(disk / "target").state == "unfinished"
    again = rx.rechunk(
        source, CHUNKS, "1MB", disk / "target", executor="serial", zarr_format=2, mode="resume", progress=False
    )
    assert_exact(again.execute(), source)


def test_a_journal_that_cannot_be_written_does_not_hide_why_a_task_failed(
    tmp_path: Path, disk: Path, source: ZarrArray, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "WRITE_S", 1000.0)  # the journal is written at the end only, when there is no room
    filling = Filling(disk, stage=0, tasks=3)
    job = rx.rechunk(source, (1, 32, 32), 60_000, disk / "target", executor="serial", progress=False)
    assert len(job.stages) == 1
    with pytest.raises(rx.TaskError, match="No space left") as caught:
        job.execute(on_event=filling)
    assert f"{disk / 'target' / 'c'}" in str(caught.value)
    filling.filler.unlink()
    again = rx.rechunk(source, (1, 32, 32), 60_000, disk / "target", executor="serial", mode="resume", progress=False)
    assert_exact(again.execute(), source)


def test_a_journal_that_cannot_be_written_while_tasks_succeed_ends_the_job(
    tmp_path: Path, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The array is all fill value: its tasks need no room.
    source = zarr.create_array(tmp_path / "source", shape=SHAPE, chunks=(1, *SHAPE[1:]), dtype="f4")
    monkeypatch.setattr(keeper, "WRITE_S", 0.01)
    filling = Filling(disk, stage=0, tasks=1)

    def slowly(event: Event) -> None:
        filling(event)
        keeper.time.sleep(0.05)  # type: ignore[attr-defined]

    job = rx.rechunk(source, CHUNKS, MAX_MEM, disk / "target", temp_store=tmp_path, executor="serial", progress=False)
    with pytest.raises(rx.StorageError, match=r"cannot write .*rechunk_exec.*No space left"):
        job.execute(on_event=slowly)
    assert rx.status(disk / "target").state == "unfinished"
    filling.filler.unlink()
    again = rx.rechunk(
        source, CHUNKS, MAX_MEM, disk / "target", temp_store=tmp_path, executor="serial", mode="resume", progress=False
    )
    assert same_bits(elements(again.execute()), elements(source))


@pytest.mark.parametrize("verify", [False, True])
def test_a_finished_target_on_a_disk_that_was_made_read_only_is_given(
    verify: bool, tmp_path: Path, disk: Path, source: ZarrArray
) -> None:
    words: Any = {"executor": "serial", "progress": False}
    rx.rechunk(source, (1, 32, 32), "1MB", disk / "target", **words).execute()
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    again = rx.rechunk(source, (1, 32, 32), "1MB", disk / "target", mode="resume", verify=verify, **words)
    assert_exact(again.execute(), source)
    assert again.report is not None
    assert again.report.tasks == 0
    for mode in ("fail", "overwrite"):
        with pytest.raises((rx.StorageError, rx.TargetExistsError)):
            rx.rechunk(source, (1, 32, 32), "1MB", disk / "target", mode=mode, **words).execute()
