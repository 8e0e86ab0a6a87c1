"""Lines of a file of jobs as executor: each few run by a process of the command line. Layer: batch.

It does on one machine what an array of jobs does on many, and so shows that lines do what tasks do. A process is
started for each few lines, which takes a second: for tests, and for jobs of few tasks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from rechunk_exec.batch.jobsfile import open_lines, write_lines
from rechunk_exec.batch.lineprocesses import LineProcesses
from rechunk_exec.batch.prepared import refuse_unnamed
from rechunk_exec.errors import RechunkError
from rechunk_exec.executors.base import WorkerShape, check_count
from rechunk_exec.executors.copyrun import nobody
from rechunk_exec.executors.machine import available_cores, thread_limits
from rechunk_exec.executors.records import Records, records_kept
from rechunk_exec.executors.sight import versions
from rechunk_exec.results import CopyReport, OnEvent
from rechunk_exec.storage import BatchNotes, BatchRecord
from rechunk_exec.tasks import Stage


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
                lines = LineProcesses(Path(folder), self._workers, thread_limits(self._cores), records)
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
