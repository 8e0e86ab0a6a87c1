"""How far the job on a target is. Layer: with the job; reads its journal, and writes nothing."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from rechunk_exec import storage
from rechunk_exec.copy import flush_results
from rechunk_exec.errors import ResumeError, StorageError
from rechunk_exec.report.tally import format_seconds
from rechunk_exec.results import TaskFailure
from rechunk_exec.sizes import format_bytes
from rechunk_exec.storage import Claim, JobRecord, Journal
from rechunk_exec.tasks import ArrayRef


@dataclass(frozen=True, slots=True, kw_only=True)
class StageStatus:
    """How far one stage is."""

    number: int
    """From 0."""
    source: str
    """``"source"`` or an intermediate's name."""
    target: str
    """``"target"`` or an intermediate's name."""
    done: int
    """Tasks done."""
    total: int
    """Tasks in all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """How far a job is."""

    target: str
    """Path or URL of the target."""
    state: Literal["running", "unfinished", "finished"]
    """``unfinished`` where no driver runs it now; it can be resumed."""
    begun: str
    """When, in UTC."""
    stages: tuple[StageStatus, ...]
    failed: tuple[TaskFailure, ...]
    """Tasks that have failed for good and were not done since."""
    bytes_written: int
    """By the tasks done, before encoding."""
    bytes_per_second: float | None = None
    """Written by the driver that runs now; None if none does, or before it tells."""
    seconds_left: float | None = None
    """At this pace."""
    driver: str = ""
    """The process that runs it now, and its machine."""

    @property
    def done(self) -> int:
        """Tasks done, over all stages."""
        return sum(stage.done for stage in self.stages)

    @property
    def total(self) -> int:
        """Tasks of all stages."""
        return sum(stage.total for stage in self.stages)

    def __str__(self) -> str:
        percent = 100 * self.done // self.total if self.total else 100
        pace = "" if self.bytes_per_second is None else f", {format_bytes(round(self.bytes_per_second))}/s"
        left = "" if self.seconds_left is None else f", {format_seconds(self.seconds_left)} left"
        by = f" by {self.driver}" if self.driver else ""
        tasks = f"{self.done} of {self.total} tasks are done ({percent} %)"
        lines = [
            f"{self.target}: {self.state}{by}, begun at {self.begun}",
            f"{tasks}, {format_bytes(self.bytes_written)} written{pace}{left}",
            *(
                f"  stage {stage.number}, {stage.source} -> {stage.target}: {stage.done} of {stage.total}"
                for stage in self.stages
            ),
            *(f"  failed: task {one.index} of stage {one.stage}: {one.message}" for one in self.failed),
        ]
        return "\n".join(lines)


def read_status(target: ArrayRef) -> JobStatus:
    """Return how far the job on a target is; see :func:`rechunk_exec.status`."""
    status = find_status(target)
    if status is None:
        raise StorageError(f"a job's status is beside its target; no job of rechunk_exec is recorded at {target}")
    return status


def find_status(target: ArrayRef) -> JobStatus | None:
    """Return how far the job on a target is, or None if no job of ours was begun there."""
    record = storage.read_job(target) if storage.holds_documents(target) else None
    while record is not None:
        status = _status_of(record, target)
        again = storage.read_job(target)
        # Meanwhile it may have been resumed, and its results gone elsewhere; or ended, and its driver gone.
        ended = status.state == "unfinished" and storage.read_finished(target) is not None
        if again is None or (again.job == record.job and not ended):
            return status
        record = again
    return None


def _status_of(record: JobRecord, target: ArrayRef) -> JobStatus:
    flush_results(record.job)
    journal = Journal(target, record.job, read_only=True)
    finished = storage.read_finished(target)
    planned = record.plan.stages
    # What the names of documents tell is enough: there may be one for each task, on a store where each costs a request.
    known = set() if finished is not None else journal.done()
    tasks = [stage.tasks for stage in planned]
    done = {(stage, index) for stage, index in known if stage < len(tasks) and index < tasks[stage]}
    indices = [[index for own, index in done if own == stage] for stage in range(len(planned))]
    stages = tuple(
        StageStatus(
            number=number,
            source=stage.source,
            target=stage.target,
            done=stage.tasks if finished is not None else len(indices[number]),
            total=stage.tasks,
        )
        for number, stage in enumerate(planned)
    )
    if finished is not None:
        return JobStatus(
            target=str(target),
            state="finished",
            begun=record.begun,
            stages=stages,
            failed=(),
            bytes_written=finished.bytes_written,
        )
    driver = storage.running_driver(target)
    pace = _pace(driver)
    return JobStatus(
        target=str(target),
        state="unfinished" if driver is None else "running",
        begun=record.begun,
        stages=stages,
        failed=tuple(one for one in journal.failures() if (one.stage, one.index) not in done),
        bytes_written=sum(stage.written_by(own) for stage, own in zip(planned, indices, strict=True)),
        bytes_per_second=None if pace is None or driver is None else driver.bytes_written * pace,
        seconds_left=None if pace is None or driver is None else (driver.left - driver.done) / (driver.done * pace),
        driver="" if driver is None else f"process {driver.pid} on {driver.host}",
    )


def unfinished_text(source: ArrayRef, target: ArrayRef) -> str:
    """Return what to say of two arrays, or groups of arrays, whose jobs have not all ended; empty if they have.

    Raises
    ------
    ResumeError
        If a journal of the target is damaged. One of the source need not be readable.
    StorageError
        If it cannot be seen whether there is one, for a reason that may pass.
    """
    told = [*map(_unfinished_source, _arrays_of(source)), *map(_unfinished, _arrays_of(target))]
    return "; ".join(dict.fromkeys(filter(None, told)))  # both may be one array


def refuse_unfinished_source(source: ArrayRef) -> None:
    """Raise if a job of ours was begun on an array that is to be read, and has not ended.

    A copy of it would look done, and be wrong.

    Raises
    ------
    StorageError
    """
    text = _unfinished_source(source)
    if text:
        raise StorageError(
            f"a source must be whole; {text}; go on with that job first (mode='resume'), or remove the folder "
            ".rechunk_exec in it to take the array as it is"
        )


def _arrays_of(node: ArrayRef) -> list[ArrayRef]:
    try:
        found = storage.members_of(node)
    except StorageError as error:
        if storage.has_outlasted(error):
            raise
        found = None  # a job may have begun that has not made its array yet
    return [node] if found is None else [storage.child(node, path) for path in sorted({*found.arrays, *found.damaged})]


def _unfinished_source(source: ArrayRef) -> str:
    """:func:`_unfinished`, of an array that may be anybody's: no more is asked than whether a job was begun on it."""
    try:
        if not storage.holds_documents(source) or storage.read_job(source) is None:
            return ""
        if storage.read_finished(source) is not None:
            return ""
    except ResumeError:  # a journal need not be readable
        return ""
    except StorageError as error:
        if storage.has_outlasted(error):
            raise  # it may be that of an unfinished array
        return ""  # a server refuses what it does not know
    with suppress(StorageError, ResumeError):  # nor need it be listable
        return _unfinished(source)
    return f"{source} is unfinished"


def _unfinished(target: ArrayRef) -> str:
    status = find_status(target)
    if status is None or status.state == "finished":
        return ""
    return f"{target} is unfinished: {status.done} of {status.total} tasks of its job are done"


def _pace(driver: Claim | None) -> float | None:
    """One over the seconds that a driver has been at work, or None if it has not told of any task yet."""
    if driver is None or not driver.done or driver.beat <= driver.began:
        return None
    return 1 / (driver.beat - driver.began)
