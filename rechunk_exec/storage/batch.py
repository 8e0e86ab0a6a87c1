"""What lines of a file of jobs need to know of their job, beside its journal. Layer: storage.

::

    .rechunk_exec/<job>/batch.json         the places of its arrays, and how many lines each stage has
    .rechunk_exec/<job>/complete/*.json    stages that were seen to be done

Lines run apart from each other, and nobody sits in the middle. A line of a later stage has to know that the stage
before is done, without reading what each of its tasks has left: who first finds it done says so in a document.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rechunk_exec import wire
from rechunk_exec.errors import ResumeError, SerializationError
from rechunk_exec.storage.documents import Documents
from rechunk_exec.storage.journal import Journal
from rechunk_exec.tasks import ArrayRef, Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRecord:
    """What the lines of a job have in common."""

    job: str
    source: ArrayRef
    temp: ArrayRef | None
    """The folder of the intermediates; None if there are none."""
    lines: tuple[int, ...]
    """How many lines each stage has: its tasks that were left when they were written."""
    done: tuple[int, ...]
    """How many tasks of each stage were done before."""
    verify: bool
    """Whether tasks compute digests, and the end compares the arrays."""
    versions: Mapping[str, str]
    """Of the packages that decide what a task does, where the lines were written."""
    stages: tuple[Stage, ...] = ()
    """The stages as they were given, whole, where an executor wrote the lines: of a run that need not be a job of ours,
    and whose driver watches over it. Else the job's record tells them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Complete:
    """A stage that is done."""

    stage: int
    tasks: int


class BatchNotes:
    """The documents of one job whose tasks are lines of a file.

    Parameters
    ----------
    target : ArrayRef
    job : str
    """

    def __init__(self, target: ArrayRef, job: str) -> None:
        self._documents = Documents(target, read_only=False)
        self._journal = Journal(target, job)
        self._folder = job

    def write(self, record: BatchRecord) -> None:
        """Write what the lines have in common."""
        self._documents.write(f"{self._folder}/batch", wire.to_json(record), durable=True)

    def read(self) -> BatchRecord | None:
        """Return what the lines have in common, or None if no lines were written.

        Raises
        ------
        ResumeError
            If it is damaged, or of another version.
        """
        text = self._documents.read(f"{self._folder}/batch")
        if not text:
            return None
        try:
            return wire.from_json(BatchRecord, text)
        except SerializationError as error:
            raise ResumeError(
                "what was noted for the lines of a job must be as this version of rechunk_exec writes it; 'batch' is "
                f"not: {error}; write the lines anew: `init` with mode 'resume'"
            ) from error

    def remove(self) -> None:
        """Remove what the lines have in common: nobody runs them any more."""
        self._documents.delete(f"{self._folder}/batch")

    def see_complete(self, stage: int, record: BatchRecord) -> bool:
        """Whether all lines of a stage are done. Who finds so for the first time notes it."""
        lines, name = record.lines[stage], f"{self._folder}/complete/{stage}"
        if not lines or self._documents.read(name):
            return True
        if self._journal.count_done(stage) < lines + record.done[stage]:
            return False
        self._documents.write(name, wire.to_json(_Complete(stage=stage, tasks=lines)))
        return True

    def forget_complete(self) -> None:
        """Have all stages looked at again."""
        for name in self._documents.names(f"{self._folder}/complete"):
            self._documents.delete(f"{self._folder}/complete/{name}")
