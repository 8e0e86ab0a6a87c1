"""Running lines of a file of jobs. Layer: batch."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Hashable
from contextlib import suppress

from rechunk_exec import storage
from rechunk_exec.batch.jobsfile import JobsFile
from rechunk_exec.batch.prepared import Prepared, prepared
from rechunk_exec.copy import release_memory, run_task
from rechunk_exec.endrequests import EndRequests
from rechunk_exec.errors import RechunkError, TaskError, error_text
from rechunk_exec.executors.copyrun import TRIES, is_permanent, task_error
from rechunk_exec.results import CopyReport, TaskFailure, TaskResult, in_order
from rechunk_exec.tasks import CopyTask

INDEX_VARIABLES = ("AWS_BATCH_JOB_ARRAY_INDEX", "SLURM_ARRAY_TASK_ID")
"""Environment variables by which schedulers tell a job of an array its number."""

HOLD_S = 1.0
"""How long a result is held, to be written with others."""


def run_job(jobs: str | os.PathLike[str], index: int | range | None = None, *, stage: int | None = None) -> CopyReport:
    """Run one line of a file of jobs, or several, in this process.

    Lines may run in any order, several times, and at the same time elsewhere. Those of a later stage wait for nobody:
    they are refused until all lines of the stage before are done. Each leaves its result in the journal beside the
    target, or its error after three tries; results of lines that take no second are written together, a second later at
    most. Of a job that has ended nothing is run.

    Parameters
    ----------
    jobs : str or os.PathLike
        The file that :meth:`Rechunked.write_jobs` wrote: a path or URL.
    index : int or range, optional
        The line's number, from 0; or those of several, of which what is beyond the last line is left out. None takes it
        from the variable AWS_BATCH_JOB_ARRAY_INDEX or SLURM_ARRAY_TASK_ID.
    stage : int, optional
        Count the lines of this stage only.

    Returns
    -------
    CopyReport
        With a result for each line that was run.

    Raises
    ------
    NotReadyError
        If the stage before is not done. Nothing was written for the line.
    SerializationError
        If a line was edited, or is none of ours: named by its number and what is wrong. No line was run.
    ResumeError
        If the target's job is another one.
    TaskError
        If a line failed for good; the other ones were run.
    IndexError
        If there is no such line, or ``index`` is not given and no variable tells it.
    """
    begun = time.perf_counter()
    file = JobsFile(jobs)
    numbers = _numbers(file, index, stage)
    run = _Run(file)
    with EndRequests() as requests, storage.requests_of_driver():
        try:
            if len(numbers) > 1:
                for number, task in file.tasks(numbers):  # all are looked at before the first is run
                    run.check(number, task, stage)
            for number, task in file.tasks(numbers):
                requests.heed()
                run.check(number, task, stage)
                run.line(task)
            run.note()
        except BaseException as error:
            storage.interrupted(error)
            with suppress(RechunkError):  # what goes wrong here must not hide what went wrong before
                run.note()
            raise
        finally:
            release_memory()
    if run.failures:
        raise run.failure(len(numbers))
    return CopyReport(
        executor="batch", results=in_order(run.results), seconds=time.perf_counter() - begun, retries=run.retries
    )


class _Run:
    """Lines that run one after the other.

    A document for each line would be very many where lines are quick. So results are held until the next line, if it
    takes as long as the last one, would end more than a second later: a run that is killed loses no more work than that
    besides the line that it was at, and nobody waits longer to see what is done.
    """

    def __init__(self, file: JobsFile) -> None:
        self._file = file
        self._jobs: dict[Hashable, Prepared] = {}
        self._ready: set[tuple[str, int]] = set()
        self._held: list[tuple[CopyTask, TaskResult]] = []
        """Of one job and stage, one after the other."""
        self._held_since = 0.0
        self.results: list[TaskResult] = []
        self.failures: list[TaskError] = []
        self.retries = 0

    def check(self, number: int, task: CopyTask, stage: int | None) -> None:
        """Refuse a line that is not as it was written, or is of another stage than it was asked for."""
        where = self._file.where(number)
        if stage is not None and task.stage != stage:
            raise IndexError(
                f"a line of stage {stage} must be asked for by its number in that stage; got {where}, of "
                f"stage {task.stage}"
            )
        self._job(task, where).refuse_other(task, where)

    def line(self, task: CopyTask) -> None:
        """Run the task of a line, with what it leaves in the journal."""
        job = self._job(task, "")
        if job.finished:
            return
        if (task.job, task.stage) not in self._ready:
            self.note()
            job.refuse_early(task.stage)
            self._ready.add((task.job, task.stage))
        for tried in range(TRIES):
            began = time.monotonic()
            try:
                # Noted here, with how often it was tried.
                result = dataclasses.replace(run_task(dataclasses.replace(task, journal=None)), attempts=1 + tried)
            except Exception as error:  # noqa: BLE001 - whatever it is, the line has failed
                if job.finished:  # and removed what it read: another run of this line was counted
                    return
                if tried < TRIES - 1 and not is_permanent(error):
                    self.retries += 1
                    continue
                self.note()
                self._failed(job, task, error)
                return
            self._hold(task, result, time.monotonic() - began)
            return

    def note(self) -> None:
        """Write the results that are held."""
        held = self._held
        if not held:
            return
        job = self._job(held[0][0], "")
        results = [result for _, result in held]
        try:
            job.journal.add(results)  # if this is interrupted they are still held
            self._held = []
        except Exception as error:  # noqa: BLE001 - a line whose result is nowhere has failed
            self._held = []
            if not job.finished:
                for task, _ in held:
                    self._failed(job, task, error)
            return
        self.results += results
        for result in results:
            job.journal.forget_failure(result.stage, result.index)

    def _hold(self, task: CopyTask, result: TaskResult, took_s: float) -> None:
        """Take a result, to be written with those of the lines after it, or at once if they are slow."""
        if self._held and not _follows(task, self._held[-1][0]):
            self.note()
        if not self._held:
            self._held_since = time.monotonic()
        self._held.append((task, result))
        if time.monotonic() - self._held_since + took_s > HOLD_S:
            self.note()

    def failure(self, total: int) -> TaskError:
        """Return the error for the lines that have failed."""
        error = self.failures[0]
        if total > 1:
            error.args = (f"{error.args[0]}; {len(self.failures)} of {total} lines failed",)
        return error

    def _job(self, task: CopyTask, where: str) -> Prepared:
        assert task.journal is not None
        key = (task.journal.key, task.job)
        if key not in self._jobs:
            self._jobs[key] = prepared(task, where)
        return self._jobs[key]

    def _failed(self, job: Prepared, task: CopyTask, error: Exception) -> None:
        with suppress(RechunkError):  # such as a full disk, which is what the error may be about
            job.journal.add_failure(TaskFailure(stage=task.stage, index=task.index, message=error_text(error)))
        self.failures.append(task_error(task, error))


def _follows(task: CopyTask, before: CopyTask) -> bool:
    """Whether a task is the next one of the same stage: then one document's name tells of both."""
    return (task.journal, task.job, task.stage, task.index) == (
        before.journal,
        before.job,
        before.stage,
        before.index + 1,
    )


def _numbers(file: JobsFile, index: int | range | None, stage: int | None) -> range:
    """Return the numbers, in the file, of the lines that are asked for."""
    if index is None:
        index = _index_told()
    if isinstance(index, int):
        index = range(index, index + 1)
        clipped = False
    else:
        clipped = True
    if index.start < 0 or index.step != 1:
        raise IndexError(f"lines are numbered from 0, one after the other; got {index.start}")
    before, total = 0, len(file)
    if stage is not None:
        before, total = file.first_of_stage(stage), file.first_of_stage(stage + 1)
    first, stop = before + index.start, before + index.stop
    if first >= total or (stop > total and not clipped):
        of = "" if stage is None else f" of stage {stage}"
        raise IndexError(f"{file.name} has {total - before} lines{of}, numbered from 0; got number {index.start}")
    return range(first, min(stop, total))


def _index_told() -> int:
    """Return the number that a scheduler has told this process."""
    for name in INDEX_VARIABLES:
        text = os.environ.get(name, "")
        if text.isdecimal():
            return int(text)
        if text:
            raise IndexError(f"the variable {name} must be a line's number, from 0; got {text!r}")
    raise IndexError(f"a line's number is given, or told by the variable {' or '.join(INDEX_VARIABLES)}; got none")
