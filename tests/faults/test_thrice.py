"""Tasks that run more than once, also two at a time in different processes: the result is that of one run."""

from __future__ import annotations

import json
import multiprocessing
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import rechunk_exec as rx
from tests.faults.driver import SlowCopy, tasks_begun
from tests.jobs import assert_exact, make_array

SHAPE = (24, 24, 20)
TARGETS: dict[str, dict[str, Any]] = {
    "chunks": {},
    "shards": {"target_shards": (24, 8, 4)},
    "format 2": {"zarr_format": 2},
}


def each_thrice(tasks: Iterable[rx.CopyTask], chance: random.Random) -> list[rx.CopyTask]:
    """Each task three times: twice in a row, so that two processes are at it, and once more at some time."""
    twice = [task for task in tasks for _ in range(2)]
    for task in twice[::2]:
        twice.insert(chance.randrange(len(twice) + 1), task)
    return twice


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        yield pool


@pytest.mark.parametrize("target", TARGETS)
def test_every_task_three_times_two_at_a_time(target: str, tmp_path: Path, pool: ProcessPoolExecutor) -> None:
    source = make_array(tmp_path / "source", SHAPE, (1, *SHAPE[1:]))
    log = tmp_path / "log"
    log.mkdir()
    copy = SlowCopy(str(log), 0.002)

    def staged_copy(stages: Sequence[Any]) -> None:
        for stage in stages:
            results = list(pool.map(copy, each_thrice(stage, random.Random(6))))
            assert Counter(result.index for result in results) == dict.fromkeys(range(len(stage)), 3)

    job = rx.rechunk(
        source, (24, 4, 4), 12_000, tmp_path / "target", executor=staged_copy, progress=False, **TARGETS[target]
    )
    assert len(job.stages) == 2
    assert_exact(job.execute(), source)
    assert job.report is not None
    assert job.report.tasks == job.plan.tasks
    assert set(Counter(tasks_begun(log)).values()) == {3}
    assert rx.verify(source, tmp_path / "target").ok
    assert not list(tmp_path.rglob("*.partial"))
    left = {path.name for path in (tmp_path / "target" / ".rechunk_exec").iterdir()}
    assert {"job.json", "finished.json"} < left
    assert json.loads((tmp_path / "target" / ".rechunk_exec" / "finished.json").read_text())["tasks"] == [
        stage.tasks for stage in job.plan.stages
    ]
