"""Jobs that are killed: nothing is lost, and what was done is not done again. More kills: ``--long``."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import rechunk_exec as rx
from rechunk_exec.storage import removal
from tests.conftest import Needs
from tests.faults.driver import tasks_begun
from tests.faults.kills import AIMS, CHUNKS, EXECUTORS, MAX_MEM, PATIENCE_S, Figures, Killing, Scene, run_jobs
from tests.jobs import make_array, tasks_run
from tests.values import position_values, same_bits


@dataclass(frozen=True)
class Few:
    """The kills that are enough of an executor, and of which of the jobs that take turns."""

    aims: tuple[str, ...]
    first: int
    workers: int = 2


FEW = {
    "threads": Few(("SIGINT", "driver"), first=2),  # of three stages
    "processes": Few(("group", "worker", "driver"), first=1),  # intermediates in pieces, over another array
    "dask": Few(("group", "worker"), first=0, workers=1),
}
"""A loop has no worker to kill; one of three stages that is killed in threads is much the same."""


@pytest.mark.parametrize(
    "executor", [pytest.param(name, marks=[] if name in FEW else pytest.mark.long) for name in EXECUTORS]
)
def test_killed_at_random_moments_and_resumed(executor: str, tmp_path: Path, long: bool, needs: Needs) -> None:
    if executor == "dask":
        needs("distributed")
    figures = Figures()
    if long:
        run_jobs(tmp_path, (executor,), random.Random(11).choices(AIMS, k=35), 11, figures)
    else:
        few = FEW[executor]
        run_jobs(tmp_path, (executor,), few.aims, 11, figures, first=few.first, workers=few.workers)
        assert figures.kills == Counter(few.aims)
    print(figures)
    assert figures.rerun_although_done == 0


@pytest.mark.long
@pytest.mark.parametrize("executor", EXECUTORS)
def test_killed_in_three_stages_and_resumed(executor: str, tmp_path: Path, needs: Needs) -> None:
    if executor == "dask":
        needs("distributed")
    figures, chance = Figures(), random.Random(17)
    Killing(Scene(tmp_path, executor, form="three stages"), chance, figures).run(chance.choices(AIMS, k=12))
    assert figures.rerun_although_done == 0


@pytest.mark.parametrize("aim", ["SIGTERM", "SIGINT"])
def test_an_end_on_request_loses_no_task_that_was_done_and_tells_how_to_go_on(aim: str, tmp_path: Path) -> None:
    scene = Scene(tmp_path, "processes", seconds=0.4)
    scene.order = replace(scene.order, write_s=1000.0)  # what is in the journal was flushed at the end
    driver = scene.start()
    while len(tasks_begun(scene.log)) < 8:
        assert driver.poll() is None, driver.communicate()
        time.sleep(0.005)
    os.killpg(driver.pid, signal.Signals[aim])
    _, errors = driver.communicate(timeout=PATIENCE_S)
    assert driver.returncode in {128 + signal.SIGTERM, 1, 130, -signal.SIGINT}
    assert "the same call with mode='resume' goes on from here" in errors
    begun, known = set(tasks_begun(scene.log)), scene.journalled()
    assert known <= begun
    assert len(begun - known) <= 2, "only what was running is to be run again"
    assert run_here(scene) == scene.tasks - len(known)
    scene.check_finished()


def run_here(scene: Scene) -> int:
    """Run a job, or the rest of it, in this process; return how many tasks that took."""
    words = scene.order.exact_options() | {"executor": "serial", "mode": "resume", "progress": False}
    job = rx.rechunk(scene.source, CHUNKS, MAX_MEM, scene.target, temp_store=scene.temp, **words)
    job.execute()
    return tasks_run(job)


def test_a_finished_job_is_not_begun_again(tmp_path: Path) -> None:
    scene = Scene(tmp_path, "serial", seconds=0.0)
    assert run_here(scene) == scene.tasks
    scene.check_finished()
    output, errors = scene.start().communicate(timeout=PATIENCE_S)
    assert json.loads(output.splitlines()[-1])["tasks"] == 0, errors
    scene.check_finished()


def await_begun(scene: Scene, count: int, alive: Callable[[], bool]) -> None:
    while len(tasks_begun(scene.log)) < count:
        assert alive()
        time.sleep(0.005)


def test_workers_that_outlive_their_driver_write_nothing_to_the_array_that_replaces_theirs(tmp_path: Path) -> None:
    # The driver is killed alone, and another job takes its place at once, with chunks that have the same keys.
    scene = Scene(tmp_path, "processes", seconds=0.2)
    scene.order = replace(scene.order, max_mem=200_000, chunks=(12, 24, 20))
    driver = scene.start()
    await_begun(scene, 2, lambda: driver.poll() is None)
    driver.kill()
    driver.wait()
    values = position_values((24, 24, 20), "f4", seed=9)
    other = make_array(tmp_path / "other", (24, 24, 20), (1, 24, 20), values=values)
    job = rx.rechunk(other, (12, 24, 20), 200_000, scene.target, mode="overwrite", executor="serial", progress=False)
    target = job.execute()
    time.sleep(1.0)  # the workers' tasks would have ended
    assert same_bits(np.asarray(zarr.open_array(scene.target, mode="r")[...]), values)
    assert target.chunks == (12, 24, 20)
    assert not list(scene.target.rglob("*.partial"))
    driver.communicate()


def test_what_a_killed_overwrite_had_moved_aside_is_removed_by_the_next(tmp_path: Path) -> None:
    source = make_array(tmp_path / "source", (24, 24, 20), (1, 24, 20))
    left = tmp_path / ".target.0123456789ab.removed"
    foreign = [tmp_path / ".target.mine.removed", tmp_path / ".other.0123456789ab.removed"]
    for folder in (left, *foreign):
        (folder / "c").mkdir(parents=True)
    job = rx.rechunk(source, CHUNKS, MAX_MEM, tmp_path / "target", mode="resume", executor="serial", progress=False)
    job.execute()
    assert not left.exists()
    assert all(folder.exists() for folder in foreign)


@pytest.mark.parametrize("length", [233, 234, 255])
def test_a_name_of_any_length_is_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, length: int) -> None:
    values = position_values((6, 8, 4), "f4", seed=3)
    source = make_array(tmp_path / "source", values.shape, (1, 8, 4), values=values)
    target = tmp_path / ("t" * length)

    def overwrite() -> zarr.Array[Any]:
        return rx.rechunk(source, (6, 4, 4), MAX_MEM, target, mode="overwrite", progress=False).execute()

    overwrite()
    with monkeypatch.context() as patch:
        patch.setattr(removal, "_remove_folder", _interrupted)
        with pytest.raises(KeyboardInterrupt):
            overwrite()
    assert [entry.suffix for entry in tmp_path.iterdir() if entry.name.startswith(".")] == [".removed"]
    assert same_bits(np.asarray(overwrite()[...]), values)
    assert {entry.name for entry in tmp_path.iterdir()} == {"source", target.name}


def _interrupted(folder: Path) -> None:
    raise KeyboardInterrupt
