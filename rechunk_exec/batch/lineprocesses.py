"""Processes of the command line that run lines of a file of jobs, some at once. Layer: batch, below its executor."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from rechunk_exec.errors import RechunkError
from rechunk_exec.executors.copyrun import TRIES
from rechunk_exec.executors.missing import missing_runs
from rechunk_exec.executors.records import Records
from rechunk_exec.tasks import Stage

_LINES_A_PROCESS = 32
_POLL_S = 0.05
_PATIENCE_S = 10.0
"""How long a process may take to end when it is asked to."""


class LineProcesses:
    """The lines of a run, and the processes that are at some of them.

    Parameters
    ----------
    folder : Path
        Where the file of jobs is, and what processes print goes.
    workers : int
        How many processes run at once.
    environment : mapping
        Variables for them, besides this process's.
    records : Records
        What is seen of their results.
    """

    def __init__(self, folder: Path, workers: int, environment: Mapping[str, str], records: Records) -> None:
        self.file = folder / "jobs.jsonl"
        self._folder = folder
        self._workers = workers
        self._environment = {**os.environ, **environment}
        self._records = records
        self._said = ""

    def run_stage(self, stage: Stage, first: int) -> None:
        """Run the lines of a stage, which begin with number ``first``; those that a dead process has left, again.

        Raises
        ------
        TaskError
            If a task failed for good.
        RechunkError
            If lines have no result after three rounds.
        """
        for _ in range(TRIES):
            done = {result.index for result in self._records.results if result.stage == stage.number}
            left = [first + place for place in range(len(stage)) if stage.task_number(place) not in done]
            if not left:
                return
            with self._processes(deque(_ranges(left, self._workers))) as processes:
                for _ in processes:
                    self._records.look()
            self._records.look(last=True)
            failure = self._records.failure()
            if failure is not None:
                raise failure
        missing = missing_runs(stage, {(result.stage, result.index) for result in self._records.results})
        if missing:
            raise RechunkError(
                f"each line must leave its result beside the target; those of stage {stage.number}, tasks {missing}, "
                f"did not in {TRIES} rounds; the last process that failed said: {self._said or 'nothing'}"
            )

    @contextmanager
    def _processes(self, ranges: deque[range]) -> Iterator[Iterator[None]]:
        """Give what runs the ranges of lines and yields now and then; in the end no process is left."""
        running: list[subprocess.Popen[bytes]] = []

        def run() -> Iterator[None]:
            while ranges or running:
                while ranges and len(running) < self._workers:
                    running.append(self._start(ranges.popleft()))
                time.sleep(_POLL_S)
                for process in [process for process in running if process.poll() is not None]:
                    running.remove(process)
                    if process.returncode:
                        self._said = self._log(process.args).read_text(errors="replace").strip()
                        ranges.clear()  # what is left is for the next round, if no task has failed for good
                yield

        try:
            yield run()
        finally:
            for process in running:
                process.terminate()
            for process in running:
                try:
                    process.wait(_PATIENCE_S)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()

    def _start(self, numbers: range) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "rechunk_exec", "run-task", str(self.file)]
        command += ["--range", f"{numbers.start}:{numbers.stop}"]
        with self._log(command).open("wb") as log:
            return subprocess.Popen(
                command, env=self._environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log
            )

    def _log(self, command: object) -> Path:
        numbers = command[-1] if isinstance(command, list) else command
        return self._folder / f"{numbers}.log"


def _ranges(numbers: Sequence[int], workers: int) -> Iterator[range]:
    """Yield runs of the numbers, which go up: enough for all workers, and none too long.

    Examples
    --------
    >>> list(_ranges([0, 1, 2, 5, 6], 2))
    [range(0, 3), range(5, 7)]
    """
    longest = min(_LINES_A_PROCESS, -(-len(numbers) // workers))
    first = 0
    for place in range(1, len(numbers) + 1):
        ends = place == len(numbers) or numbers[place] != numbers[place - 1] + 1
        if ends or place - first == longest:
            yield range(numbers[first], numbers[place - 1] + 1)
            first = place
