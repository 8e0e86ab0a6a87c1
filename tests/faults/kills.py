"""Jobs that are killed at random moments and resumed until they end: ``python -m tests.faults.kills --long``.

A driver runs in a process group of its own. At a moment drawn at random (while it starts, after so many tasks, near the
end) a signal goes to the whole group, to the driver alone, or to one of its workers. Then the same call is made again.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import zarr

import rechunk_exec as rx
from rechunk_exec.storage import Journal, array_ref, read_job
from tests.faults.driver import Order, tasks_begun
from tests.jobs import make_array
from tests.values import Array, position_values, same_bits

ROOT = Path(__file__).parents[2]
SHAPE, CHUNKS, OLD_CHUNKS = (24, 24, 20), (24, 4, 4), (12, 8, 4)
MAX_MEM = 6000
DEAR = replace(rx.CostModel.object(), operation_s=5.0, deeper_s=0.0)
FORMS: dict[str, dict[str, Any]] = {
    "chunks": {"temp_options": {"compressor": {"id": "lz4"}}},
    "pieces": {"cost_model": "object"},
    "three stages": {"cost_model": asdict(DEAR), "max_temp_bytes": 2 * math.prod(SHAPE) * 4},
}
"""Options with which each chunk of the intermediate is an object; each task's region; and that of two intermediates."""
WHOLE_CHUNKS = {"chunks": [True, True], "pieces": [False, True], "three stages": [False, False, True]}
"""For each stage, whether each chunk that it writes is an object."""
EXECUTORS = ("serial", "threads", "processes", "dask")
AIMS = ("group", "group", "group", "driver", "worker", "SIGTERM", "SIGINT")
"""Who is killed, and by what if not by SIGKILL; as often as it is named."""
PATIENCE_S = 120.0
"""How long a driver may take, on a machine with much to do."""
_OURS = re.compile(r"\.rechunk_exec-[0-9a-f]{12}\.lock|\.target\.[0-9a-f]{12}\.removed")
"""What may be beside a target while its job is unfinished."""


@dataclass
class Figures:
    """What was seen over all jobs."""

    jobs: int = 0
    """Every other one replaces an array."""
    kills: Counter[str] = field(default_factory=Counter)
    found: Counter[str] = field(default_factory=Counter)
    """States of the target after a kill."""
    resumes: int = 0
    tasks: int = 0
    """That had to be run."""
    reruns: int = 0
    """Tasks run again because the kill came before the journal knew of them."""
    rerun_although_done: int = 0
    """Tasks run again that the journal knew as done: there must be none."""

    def __str__(self) -> str:
        return (
            f"{self.jobs} jobs, {sum(self.kills.values())} kills ({_counts(self.kills)}), {self.resumes} resumes; "
            f"after the kills: {_counts(self.found)}; {self.tasks} tasks, {self.reruns} run again of which the journal "
            f"did not know yet, {self.rerun_although_done} of which it did"
        )


def _counts(counter: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counter.items()))


class Scene:
    """A source, a place for a target and intermediates, and things of other people that must survive."""

    def __init__(
        self, folder: Path, executor: str, seconds: float = 0.02, *, replaces: bool = False, form: str = "chunks"
    ) -> None:
        self.folder = folder
        self.source = folder / "source"
        self.target = folder / "target"
        self.temp = folder / "temp"
        self.log = folder / "log"
        self.values: Array = position_values(SHAPE, "f4")
        make_array(self.source, SHAPE, (1, *SHAPE[1:]), values=self.values)
        self.foreign = [folder / ".target.mine", self.temp / "mine", folder / "target-mine" / "c" / "0"]
        for path in [*self.foreign, self.log / "x"]:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(path.name.encode())
        self.order = Order(
            source=str(self.source),
            target=str(self.target),
            temp=str(self.temp),
            log=str(self.log),
            chunks=CHUNKS,
            max_mem=MAX_MEM,
            executor=executor,
            seconds=seconds,
            options=FORMS[form],
        )
        stages = rx.rechunk(
            self.source,
            CHUNKS,
            MAX_MEM,
            self.target,
            temp_store=self.temp,
            executor="serial",
            progress=False,
            **self.order.exact_options(),
        ).plan.stages
        assert [stage.chunk == stage.write_unit for stage in stages] == WHOLE_CHUNKS[form]
        self.tasks = sum(stage.tasks for stage in stages)
        if replaces:  # an array of the same values is there already, whose chunks have some of the same keys
            rx.rechunk(self.source, OLD_CHUNKS, MAX_MEM * 2, self.target, executor="serial", progress=False).execute()

    def start(self) -> subprocess.Popen[str]:
        """Start a driver in a process group of its own. It goes on with the job if one was begun."""
        mode = "overwrite" if self.state() == "old" else "resume"
        return subprocess.Popen(
            replace(self.order, mode=mode).command(),
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def journalled(self) -> set[tuple[int, int]]:
        """The tasks that the journal knows as done."""
        ref = array_ref(self.target)
        record = read_job(ref)
        if record is None or record.plan.stages[-1].chunk != CHUNKS:
            return set()
        return set(Journal(ref, record.job, read_only=True).results())

    def state(self) -> str:
        """What ``status`` says of the target; ``none`` if no job is recorded there, ``old`` if it is another's end."""
        try:
            state = rx.status(self.target).state
        except rx.StorageError:
            return "none"
        record = read_job(array_ref(self.target))
        assert record is not None
        if record.plan.stages[-1].chunk == CHUNKS:
            return state
        assert state == "finished"
        return "old"

    def check_killed(self) -> str:
        """Look at what a kill has left; return the state."""
        state = self.state()
        assert state in {"none", "old", "unfinished", "finished"}
        if state == "none":  # killed before the job was begun: no array may be there
            assert not (self.target / "zarr.json").exists()
        elif state == "old":
            assert zarr.open_array(self.target, mode="r").chunks == OLD_CHUNKS
            assert self.holds_the_answer()
        elif state == "unfinished":
            status = rx.status(self.target)
            assert (status.total, status.done) == (self.tasks, len(self.journalled()))
            if (self.target / "zarr.json").exists():
                report = rx.verify(self.source, self.target)
                assert report.unfinished
                assert not report.ok
                assert (report.differing == ()) == self.holds_the_answer()
        else:
            assert self.holds_the_answer()
        self.check_others()
        return state

    def holds_the_answer(self) -> bool:
        """Whether zarr reads from the target what numpy says it must hold."""
        return same_bits(np.asarray(zarr.open_array(self.target, mode="r")[...]), self.values)

    def check_others(self) -> None:
        """Fail if anything was made or lost that is not of this package."""
        for path in self.foreign:
            assert path.read_bytes() == path.name.encode()
        known = {"source", "target", "temp", "log", "target-mine", ".target.mine"}
        strange = {path.name for path in self.folder.iterdir()} - known
        assert all(_OURS.fullmatch(name) for name in strange), strange
        assert same_bits(np.asarray(zarr.open_array(self.source, mode="r")[...]), self.values)

    def check_finished(self) -> None:
        """Fail unless the target is exact and nothing of the work is left."""
        assert self.state() == "finished"
        array = zarr.open_array(self.target, mode="r")
        assert (array.chunks, self.holds_the_answer()) == (CHUNKS, True)
        assert rx.verify(self.source, self.target).ok
        self.check_others()
        assert [path.name for path in self.temp.iterdir()] == ["mine"]
        left = [path.relative_to(self.folder) for path in self.folder.rglob("*") if path.name.endswith(".partial")]
        assert left == []
        assert not (self.target / ".rechunk_exec" / "drivers").exists()
        assert not [path for path in self.folder.iterdir() if _OURS.fullmatch(path.name)]


class Killing:
    """Kills one job again and again, and resumes it to the end."""

    def __init__(self, scene: Scene, chance: random.Random, figures: Figures) -> None:
        self.scene = scene
        self.chance = chance
        self.figures = figures

    def run(self, aims: Sequence[str]) -> int:
        """Kill the job at one aim after the other, if it lives that long, and see it to its end; return the kills."""
        self.figures.jobs += 1
        kills = 0
        for aim in aims:
            self._attempt(aim)
            kills += 1
            if self.scene.state() == "finished":
                break
        self._attempt(None)
        self.scene.check_finished()
        begun = Counter(tasks_begun(self.scene.log))
        tasks = self.scene.tasks
        assert len(begun) == tasks
        self.figures.tasks += tasks
        self.figures.reruns += sum(begun.values()) - tasks
        return kills

    def _attempt(self, aim: str | None) -> None:
        scene = self.scene
        known, state = scene.journalled(), scene.state()
        ran_before = Counter(tasks_begun(scene.log))
        driver = scene.start()
        try:
            if aim is not None:
                self._wait_for_a_moment(driver, scene.tasks - len(known), sum(ran_before.values()))
                self._kill(driver, aim)
            output, errors = driver.communicate(timeout=PATIENCE_S)
        finally:
            _end_group(driver)
        ran = Counter(tasks_begun(scene.log))
        ran.subtract(ran_before)
        again = {task for task in known if ran[task]}
        self.figures.rerun_although_done += len(again)
        assert again == set(), f"the journal knew {again} as done"
        if aim is None or (aim == "worker" and driver.returncode == 0):
            assert driver.returncode == 0, errors
            told = json.loads(output.splitlines()[-1])["tasks"]
            assert told == (0 if state == "finished" else scene.tasks - len(known))
            scene.check_finished()
        else:
            self.figures.found[scene.check_killed()] += 1
        self.figures.resumes += state in {"unfinished", "finished"}

    def _wait_for_a_moment(self, driver: subprocess.Popen[str], left: int, before: int) -> None:
        """Wait until a moment drawn at random: while the driver starts, in the midst of the tasks, or near the end."""
        kind = self.chance.choices(["start", "tasks", "end"], [2, 5, 2])[0]
        if kind == "start":
            assert driver.stdout is not None
            driver.stdout.readline()  # its modules are imported
            time.sleep(self.chance.uniform(0, 0.4))
            return
        wanted = before + (left if kind == "end" else self.chance.randint(0, left))
        while driver.poll() is None and len(tasks_begun(self.scene.log)) < wanted:
            time.sleep(0.002)
        time.sleep(self.chance.uniform(0, 0.15))

    def _kill(self, driver: subprocess.Popen[str], aim: str) -> None:
        self.figures.kills[aim] += 1
        if aim == "driver":
            driver.kill()
        elif aim == "worker":
            workers = _children(driver.pid)
            if workers:
                _signal(self.chance.choice(workers), signal.SIGKILL)
            else:  # it has none now
                driver.kill()
        else:
            number = signal.Signals[aim] if aim.startswith("SIG") else signal.SIGKILL
            if driver.poll() is None:
                os.killpg(driver.pid, number)


def _children(pid: int) -> list[int]:
    """The processes that a driver has started, but for the one that multiprocessing keeps while a program runs."""
    try:
        children = psutil.Process(pid).children()
        return [child.pid for child in children if "resource_tracker" not in " ".join(child.cmdline())]
    except psutil.NoSuchProcess:
        return []


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _end_group(driver: subprocess.Popen[str]) -> None:
    """Leave no process behind if a test fails; those of a driver that was killed alone end by themselves."""
    if driver.poll() is None:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    for pipe in (driver.stdout, driver.stderr):
        if pipe is not None:
            pipe.close()


def run_jobs(
    folder: Path,
    executors: tuple[str, ...],
    aims: Sequence[str],
    seed: int,
    figures: Figures,
    *,
    first: int = 0,
    workers: int = 2,
) -> None:
    """Run jobs, each killed up to four times, until all aims were met; executors and forms take turns."""
    chance = random.Random(seed)
    number = first
    while aims:
        place = folder / f"job-{number}"
        place.mkdir()
        turn = number // len(executors)
        form = list(FORMS)[turn % len(FORMS)]
        scene = Scene(place, executors[number % len(executors)], replaces=turn % 2 == 1, form=form)
        scene.order = replace(scene.order, workers=workers)
        kills = Killing(scene, chance, figures).run(aims[: chance.randint(2, 4)])
        aims = aims[kills:]
        shutil.rmtree(place)
        number += 1


def main(arguments: Any = None) -> None:
    """Run the kills from the command line and print the figures."""
    parser = argparse.ArgumentParser(description="Kill jobs at random moments and resume them.")
    parser.add_argument("--long", action="store_true", help="100 kills instead of 15")
    parser.add_argument("--executor", action="append", choices=EXECUTORS)
    parser.add_argument("--seed", type=int, default=5)
    options = parser.parse_args(arguments)
    figures = Figures()
    folder = Path(tempfile.mkdtemp(prefix="kills-"))
    try:
        aims = random.Random(options.seed).choices(AIMS, k=100 if options.long else 15)
        run_jobs(folder, tuple(options.executor or EXECUTORS), aims, options.seed, figures)
    finally:
        print(figures)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main(sys.argv[1:])
