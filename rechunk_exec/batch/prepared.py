"""The job that lines belong to, as its target's journal tells it. Layer: batch.

A line comes from a file, and may have been edited, or be of another job. So it is not believed: the task of its stage
and number is made anew from the recorded plan, and must be the same.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields

from rechunk_exec import storage
from rechunk_exec.errors import NotReadyError, ResumeError, SerializationError, StorageError
from rechunk_exec.executors.sight import differences, versions
from rechunk_exec.staging import JobPlaces, stages_of
from rechunk_exec.storage import BatchNotes, BatchRecord, JobRecord, Journal
from rechunk_exec.tasks import ArrayRef, CopyTask, Stage

logger = logging.getLogger("rechunk_exec")


@dataclass(frozen=True, slots=True)
class Prepared:
    """A job whose lines were written."""

    target: ArrayRef
    record: JobRecord | None
    """None if an executor has written the lines: its driver sees to what comes when, and to the end."""
    batch: BatchRecord
    journal: Journal
    notes: BatchNotes
    stages: tuple[Stage, ...]
    """All of the job's, whole."""

    @property
    def finished(self) -> bool:
        """Whether the job has ended."""
        return self.record is not None and storage.read_finished(self.target) is not None

    def refuse_early(self, stage: int) -> None:
        """Raise :class:`NotReadyError` if the stage before is not done. Then nothing is written."""
        if self.record is not None and stage and not self.notes.see_complete(stage - 1, self.batch):
            raise NotReadyError(
                f"a task of stage {stage} begins when all lines of stage {stage - 1} are done, and they are not all, "
                f"at {self.target}; nothing was written; run what `rechunk-exec failed` names first"
            )

    def refuse_other(self, task: CopyTask, where: str) -> None:
        """Raise :class:`SerializationError` if a line's task is not the one that the plan has at its place."""
        stage = next((stage for stage in self.stages if stage.number == task.stage), None)
        if stage is None or task.index >= stage.tasks:
            tasks = [stage.tasks for stage in self.stages]
            raise SerializationError(
                f"{where}: CopyTask.stage and CopyTask.index must be of a task of the job, whose stages have {tasks} "
                f"tasks; got {task.stage} and {task.index}; write the lines anew"
            )
        planned = stage[task.index]
        wrong = [
            f"CopyTask.{field.name} must be {_text(getattr(planned, field.name))}; got "
            f"{_text(getattr(task, field.name))}"
            for field in fields(CopyTask)
            if getattr(task, field.name) != getattr(planned, field.name)
        ]
        if wrong:
            raise SerializationError(
                f"{where}: a line must be as it was written, by the plan of its job: {'; '.join(wrong)}; write the "
                "lines anew"
            )


def prepared(task: CopyTask, where: str) -> Prepared:
    """Return the job of a line. Nothing is written.

    Raises
    ------
    ResumeError
        If another job was begun on its target since, or none is there, or its records are damaged.
    StorageError
        If the line's journal is at no place where records are, or that cannot be read now.
    """
    target = task.journal
    assert target is not None
    with _read_for(where):
        notes = BatchNotes(target, task.job)
        batch = notes.read() if task.job else None
        if batch is not None and batch.stages and batch.job == task.job:
            return Prepared(target, None, batch, Journal(target, task.job), notes, batch.stages)
        record = storage.read_job(target)
    if record is None:
        raise ResumeError(
            f"{where}: a line is run where its job was begun; no job is recorded at {target}, as seen from here; run "
            "`init`, and have this machine see the same stores under the same names"
        )
    if record.job != task.job:
        raise ResumeError(
            f"{where}: a line is run while its job is the one on its target; another one, begun at {record.begun}, is "
            f"recorded at {target}; nothing was touched; run the lines that were written last"
        )
    count = len(record.plan.stages)
    if batch is None or batch.job != record.job or not len(batch.lines) == len(batch.done) == count:
        raise ResumeError(
            f"{where}: the job at {target} was begun, and its lines were not written to the end; nothing was touched; "
            "run `init` with mode 'resume'"
        )
    other = differences(batch.versions)
    if other:
        logger.warning("the lines were written with other versions: %s", "; ".join(other.values()))
    return Prepared(
        target,
        record,
        batch,
        Journal(target, record.job),
        notes,
        stages_of(
            record.plan,
            JobPlaces(batch.source, target, batch.temp),
            job=record.job,
            journal=target,
            digest=batch.verify,
        ),
    )


@contextmanager
def _read_for(where: str) -> Iterator[None]:
    """Have errors of reading what a line's journal holds name the line, which may be what is wrong."""
    try:
        yield
    except (StorageError, ResumeError) as error:
        rule = "CopyTask.journal must be the array beside which the line's job is recorded, and that must be readable"
        error.args = (f"{where}: {rule}; {error}", *error.args[1:])
        raise


def note_lines(target: ArrayRef, stages: Sequence[Stage], *, temp: ArrayRef | None, done: Sequence[int]) -> None:
    """Note what the lines of a job have in common, before they are written.

    Parameters
    ----------
    target : ArrayRef
    stages : sequence of Stage
        With the tasks that are left.
    temp : ArrayRef or None
        The folder of the intermediates, if there are any.
    done : sequence of int
        How many tasks of each stage are done already.
    """
    record = BatchRecord(
        job=stages[0].job,
        source=stages[0].source,
        temp=temp,
        lines=tuple(map(len, stages)),
        done=tuple(done),
        verify=stages[0].digest,
        versions=versions(),
    )
    BatchNotes(target, stages[0].job).write(record)


def refuse_unnamed(stages: Sequence[Stage]) -> None:
    """Raise if a line could not name its arrays, or could not note its result.

    Raises
    ------
    StorageError
        If the target takes no documents.
    SerializationError
        If an array has no name that a document may hold.
    """
    target = stages[-1].target
    if not storage.holds_documents(target):
        raise StorageError(
            f"lines need a target that takes records of tasks; got {target}, in an icechunk repository; use executor="
            "'threads' or 'processes'"
        )
    for stage in stages:
        for ref in (stage.source, stage.target):
            if ref.by_name:
                ref.check_read()
        _ = stage.to_json()


def _text(value: object) -> str:
    return str(value) if isinstance(value, ArrayRef) else repr(value)
