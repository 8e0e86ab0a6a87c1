"""Lines of a file of jobs as executor: each few run by a process of the command line. Layer: batch.

It does on one machine what an array of jobs does on many, and so shows that lines do what tasks do. A process is
started for each few lines, which takes a second: for tests, and for jobs of few tasks.
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from rechunk_exec.batch.jobsfile import open_lines, write_lines
from rechunk_exec.batch.prepared import refuse_unnamed
from rechunk_exec.errors import RechunkError
from rechunk_exec.executors.base import WorkerShape, check_count
from rechunk_exec.executors.copyrun import TRIES, nobody
from rechunk_exec.executors.machine import available_cores, thread_limits
from rechunk_exec.executors.missing import missing_runs
from rechunk_exec.executors.records import Records, records_kept
from rechunk_exec.executors.sight import versions
from rechunk_exec.results import CopyReport, OnEvent
from rechunk_exec.storage import BatchNotes, BatchRecord
from rechunk_exec.tasks import Stage

_LINES_A_PROCESS = 32
_POLL_S = 0.05
_PATIENCE_S = 10.0
"""How long a process may take to end when it is asked to."""


class BatchExecutor:
    """Writes tasks to a file of jobs and runs ``rechunk-exec run-task`` for its lines, some processes at once.

    Parameters
    ----------
    workers : int, optional
        How many processes run at once. Default: the available cores.

    Examples
    --------
    >>> BatchExecutor(workers=2).name
    'batch'
    """

    name = "batch"
    needs_records = True
    """Tasks leave their results beside the target."""
    tasks_per_worker = 1

    def __init__(self, workers: int | None = None) -> None:
        self._workers = available_cores() if workers is None else check_count("workers", workers)
        self._cores = max(1, available_cores() // self._workers)

    @property
    def worker_shape(self) -> WorkerShape:
        """The processes that run at once."""
        return WorkerShape(workers=self._workers, tasks_per_worker=1, cores_per_worker=self._cores, elastic=False)

    def check_stages(self, stages: Sequence[Stage]) -> None:
        """Refuse arrays that a line could not name, and targets that no record can lie beside.

        Raises
        ------
        SerializationError, StorageError
        """
        if stages:
            refuse_unnamed(stages)

    def staged_copy(self, stages: Sequence[Stage], *, on_event: OnEvent | None = None) -> CopyReport:
        """Run the tasks of ``stages``; see :meth:`rechunk_exec.executors.base.Executor.staged_copy`.

        Events of tasks come in batches: results are read about each second.

        Raises
        ------
        TaskError
            If a task failed for good. Lines that other processes were at were run to their end.
        RechunkError
            If processes ended without a result for some lines, three times.
        """
        self.check_stages(stages)
        with records_kept(stages) as kept, TemporaryDirectory(prefix="rechunk_exec-batch-") as folder:
            records = Records(kept, "", on_event or nobody)
            records.begin()
            if any(map(len, kept)):
                lines = _Lines(Path(folder), self._workers, thread_limits(self._cores), records)
                with _noted(kept):
                    first = 0
                    with open_lines(str(lines.file), replace_it=False) as writer:
                        write_lines(writer, kept)
                    for stage in kept:
                        lines.run_stage(stage, first)
                        first += len(stage)
        return records.report(self.name)


@contextmanager
def _noted(stages: Sequence[Stage]) -> Iterator[None]:
    """Note beside their journals what the lines are of, while the context lasts."""
    journals = {(stage.journal.key, stage.job): (stage.journal, stage.job) for stage in stages if stage.journal}
    notes = [BatchNotes(journal, job) for journal, job in journals.values()]
    for note, (key, job) in zip(notes, journals, strict=True):
        own = [stage for stage in stages if stage.journal and (stage.journal.key, stage.job) == (key, job)]
        whole = tuple(dataclasses.replace(stage, left=None) for stage in own)
        record = BatchRecord(
            job=job,
            source=own[0].source,
            temp=None,
            lines=(),
            done=(),
            verify=own[0].digest,
            versions=versions(),
            stages=whole,
        )
        note.write(record)
    try:
        yield
    finally:
        for note in notes:
            with suppress(RechunkError):
                note.remove()


class _Lines:
    """The lines of a run, and the processes that are at some of them."""

    def __init__(self, folder: Path, workers: int, environment: dict[str, str], records: Records) -> None:
        self.file = folder / "jobs.jsonl"
        self._folder = folder
        self._workers = workers
        self._environment = {**os.environ, **environment}
        self._records = records
        self._said = ""

    def run_stage(self, stage: Stage, first: int) -> None:
        """Run the lines of a stage, which begin with number ``first``; those that a dead process has left, again."""
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
