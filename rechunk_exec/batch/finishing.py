"""What is left of a file of jobs, and the end of its job. Layer: batch."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from rechunk_exec import storage
from rechunk_exec.batch.jobsfile import JobsFile
from rechunk_exec.batch.prepared import Prepared, prepared
from rechunk_exec.endrequests import EndRequests
from rechunk_exec.errors import NotReadyError, RechunkError, StorageError, TargetExistsError
from rechunk_exec.jobstatus import JobStatus, read_status
from rechunk_exec.preparation import tidy_ended, utc_now
from rechunk_exec.results import TaskFailure, TaskResult
from rechunk_exec.resuming import take_back, what_is_left
from rechunk_exec.staging import intermediates
from rechunk_exec.storage import FinishedRecord, JobRecord, Lease
from rechunk_exec.verification import verify_copied


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfinished:
    """Lines that are not done."""

    stage: int | None
    """Of which stage; None if all stages are done."""
    indices: tuple[int, ...]
    """Their numbers: in the file, or in the stage if that was asked for."""
    failures: tuple[TaskFailure, ...]
    """What those that failed have left."""

    def __str__(self) -> str:
        return format_indices(self.indices)


def format_indices(indices: Sequence[int]) -> str:
    """Return numbers as schedulers take them.

    Examples
    --------
    >>> format_indices([3, 7, 8, 9])
    '3,7-9'
    """
    runs: list[list[int]] = []
    for index in indices:
        if runs and runs[-1][1] == index - 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    return ",".join(f"{first}" if first == last else f"{first}-{last}" for first, last in runs)


def failed_jobs(jobs: str | os.PathLike[str], *, stage: int | None = None) -> tuple[int, ...]:
    """Return the lines to run again: those that have failed, and those of which nothing is known, such as killed ones.

    Parameters
    ----------
    jobs : str or os.PathLike
        The file of jobs.
    stage : int, optional
        Look at the lines of this stage, and count within it. None looks at the first stage that is not done, and counts
        from the beginning of the file.

    Returns
    -------
    tuple of int
        Their numbers, from 0. Lines that are running now are among them.

    Raises
    ------
    StorageError, ResumeError, SerializationError
        As for :func:`run_job`.
    """
    return unfinished_lines(jobs, stage=stage).indices


def unfinished_lines(jobs: str | os.PathLike[str], *, stage: int | None = None) -> Unfinished:
    """Return the lines that are not done, with the errors of those that failed; see :func:`failed_jobs`."""
    file = JobsFile(jobs)
    job = _job_of(file)
    if job is None or job.finished:
        return Unfinished(stage=stage, indices=(), failures=())
    done = job.journal.done()
    before = 0 if stage is None else file.first_of_stage(stage)
    after = len(file) if stage is None else file.first_of_stage(stage + 1)
    left = [(number, *key) for number, *key in file.numbers(before, after) if tuple(key) not in done]
    wanted = min((own for _, own, _ in left), default=stage)
    keys = {(own, index) for _, own, index in left if own == wanted}
    return Unfinished(
        stage=wanted,
        indices=tuple(number - before for number, own, _ in left if own == wanted),
        failures=tuple(one for one in job.journal.failures() if (one.stage, one.index) in keys),
    )


def finalize_jobs(
    jobs: str | os.PathLike[str], *, verify: bool | None = None, executor: object = "threads"
) -> JobStatus:
    """End a job whose lines are all done: remove what was only needed on the way, and say that the target is finished.

    Doing it twice is harmless, and removes what a process has left that was killed at the very end.

    Parameters
    ----------
    jobs : str or os.PathLike
        The file of jobs, or one with some of its lines.
    verify : bool, optional
        Whether to compare source and target before. None does so if the job was planned with ``verify=True``; then only
        the target is read.
    executor : str, executor or other
        What compares, as for :func:`rechunk_exec.verify`.

    Returns
    -------
    JobStatus
        Its state is ``"finished"``.

    Raises
    ------
    NotReadyError
        If a line is not done; which ones is said. Nothing was changed. Or if objects that lines have written are lost
        or cut; these lines count as not done from then on.
    RechunkError
        If source and target differ, or the file has no lines.
    TargetExistsError
        If another process ends the job now.
    """
    file = JobsFile(jobs)
    job = _job_of(file)
    if job is None:
        raise RechunkError(
            f"a job is ended by one of its lines; there are none in {file.name}; of a job that has none, nothing is "
            "left to do"
        )
    _recorded(job)
    if job.finished:
        _tidy(job)
    else:
        with EndRequests(), storage.requests_of_driver(), storage.sole_writer(job.target) as lease:
            try:
                if not job.finished:
                    _finish(file, job, lease, verify=verify, executor=executor)
            except BaseException as error:
                storage.interrupted(error)
                raise
    storage.remove_abandoned_lines(file.name)  # of an `init` that was killed
    return read_status(job.target)


def _finish(file: JobsFile, job: Prepared, lease: Lease, *, verify: bool | None, executor: object) -> None:
    job.journal.merge()
    lease.check()
    _refuse_missing(file, job)
    results = job.journal.results()
    _refuse_lost(file, job, results, lease)
    if job.batch.verify if verify is None else verify:
        _verify(job, file, results.values(), executor, lease)
    lease.await_workers()
    end_job(job, lease)


def _tidy(job: Prepared) -> None:
    """Remove what a process has left that was killed when the job had just ended, unless another one is at it."""
    with suppress(TargetExistsError, StorageError):
        if storage.has_traces_of_drivers(job.target):
            with storage.sole_writer(job.target):
                if job.finished:  # else another job has begun meanwhile
                    tidy_ended(job.target)


def end_job(job: Prepared, lease: Lease) -> None:
    """Remove what was only needed on the way, then say that the job has ended."""
    record = _recorded(job)
    lease.check()
    storage.remove_partials(job.target)  # of lines that were killed
    lease.check()
    if job.batch.temp is not None:
        storage.remove_temp(job.batch.temp, intermediates(record.plan))
    lease.check()
    storage.reveal(job.target)
    lease.check()
    job.journal.forget(others=True)
    lease.check()
    job.journal.finish(
        FinishedRecord(
            job=record.job,
            ended=utc_now(),
            tasks=tuple(stage.tasks for stage in job.stages),
            bytes_written=sum(stage.plan.nbytes for stage in job.stages),
        )
    )


def _job_of(file: JobsFile) -> Prepared | None:
    """Return the job of a file's first line; None if it has no lines."""
    if not len(file):
        return None
    task, where = file.task(0), file.where(0)
    job = prepared(task, where)
    job.refuse_other(task, where)
    return job


def _recorded(job: Prepared) -> JobRecord:
    if job.record is None:
        raise RechunkError(
            f"lines that an executor has written are ended by its driver; got those of a run at {job.target}; write "
            "lines of your own with `init`"
        )
    return job.record


def _refuse_missing(file: JobsFile, job: Prepared) -> None:
    done = job.journal.done()
    counts = Counter(stage for stage, index in done if stage < len(job.stages) and index < job.stages[stage].tasks)
    needed = [lines + before for lines, before in zip(job.batch.lines, job.batch.done, strict=True)]
    missing = sum(max(0, count - counts[number]) for number, count in enumerate(needed))
    if not missing:
        return
    here = [number for number, stage, index in file.numbers(0, len(file)) if (stage, index) not in done]
    named = f"indices {_shortened(format_indices(here))} of {file.name}" if here else ""
    elsewhere = f"{missing - len(here)} of other files" if missing > len(here) else ""
    raise NotReadyError(
        f"a job is ended when all its lines are done; at {job.target} {missing} of {sum(needed)} are not: "
        f"{' and '.join(filter(None, (named, elsewhere)))}; nothing was changed; run what `rechunk-exec failed` names, "
        "and if that is nothing, `init` with mode 'resume'"
    )


def _refuse_lost(file: JobsFile, job: Prepared, results: Mapping[tuple[int, int], TaskResult], lease: Lease) -> None:
    """Raise :class:`NotReadyError` if what a task has stored is lost or cut, and have it count as not done."""
    remainder = what_is_left(job.stages, results)
    left = ((stage.number, run) for stage in remainder.stages for run in stage.left or ())
    lost = {(stage, index) for stage, run in left for index in range(*run)}
    if not lost:
        return
    lease.check()  # else it may be another job's target that was looked at
    job.notes.forget_complete()  # before, so that a kill leaves no stage complete that is not
    job.journal.replace(remainder.done)
    job.notes.forget_complete()  # and after: a line may have noted it again
    here = [number for number, *key in file.numbers(0, len(file)) if tuple(key) in lost]
    raise NotReadyError(
        f"a job is ended when all that its tasks have stored is there; at {job.target} {len(lost)} tasks have to be "
        f"run again, for objects that are lost or cut: indices {_shortened(format_indices(here)) or 'none'} of "
        f"{file.name}; these count as not done; run what `rechunk-exec failed` names, and if that is not all, `init` "
        "with mode 'resume'"
    )


def _verify(job: Prepared, file: JobsFile, results: Collection[TaskResult], executor: object, lease: Lease) -> None:
    earlier: tuple[TaskResult, ...] = ()
    if any(job.batch.done):  # before the lines were written
        lines = {(stage, index) for _, stage, index in file.numbers(0, len(file))}
        earlier = tuple(result for result in results if (result.stage, result.index) not in lines)
    found = verify_copied(job.stages, tuple(results), executor, _recorded(job).plan.max_mem, earlier=earlier)
    lease.check()  # else it may be another job's target that was looked at
    if not found.ok:
        take_back(job.journal, job.stages[-1], results, found)
        job.notes.forget_complete()
        raise RechunkError(
            f"the target must hold the source's bits; {found}; the target is {job.target}; run `init` with mode "
            "'resume', which writes lines for what differs, then run these"
        )


def _shortened(text: str, most: int = 200) -> str:
    return text if len(text) <= most else f"{text[: text.rindex(',', 0, most)]},..."
