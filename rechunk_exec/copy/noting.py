"""Where the result of a task is noted that has a journal: with the driver, where it is in this process. Layer: copy.

A document a task costs up to a millisecond, most of it spent in making a file. So a driver offers its notebook to the
tasks of its own process (:func:`noted_by`), which hand their results over in memory, and writes what came each second.
Tasks of other processes find no notebook, and add their results to the journal by themselves.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from rechunk_exec.results import TaskResult, in_order
from rechunk_exec.storage import Journal
from rechunk_exec.tasks import CopyTask, Stage


class Notebook(Protocol):
    """What a driver takes the results of its process's tasks with. Called from any thread."""

    def take(self, result: TaskResult) -> None:
        """Keep a result, to write it to the journal soon. Raises why earlier ones could not be written."""
        ...

    def flush(self) -> None:
        """Return when all results taken before are in the journal."""
        ...


_open: dict[str, tuple[int, Notebook]] = {}
"""By the name of the job: the notebook of its driver, and the process that it is in. A fork has a copy of no use."""

_last: tuple[Hashable, Journal] | None = None
"""The journal that a task of this process has written to last, and what tells it from others."""


@contextmanager
def noted_by(job: str, notebook: Notebook) -> Iterator[None]:
    """Have the tasks of a job that run in this process hand their results to ``notebook``."""
    _open[job] = os.getpid(), notebook
    try:
        yield
    finally:
        del _open[job]


def note(task: CopyTask, result: TaskResult) -> None:
    """Note the result of a task, if there is a journal for it."""
    if task.journal is None:
        return
    notebook = _notebook(task.job)
    if notebook is None:
        _journal(task).add_one(result)
    else:
        notebook.take(result)


def _journal(task: CopyTask) -> Journal:
    """Return the journal of a task's job: a process runs many tasks of one, and opening it takes as long as writing."""
    global _last  # noqa: PLW0603 - of this process, replaced whole
    assert task.journal is not None
    key = task.journal.key, task.job, os.getpid()
    known = _last  # looked at once: a thread at another job may replace it meanwhile
    if known is None or known[0] != key:
        _last = known = key, Journal(task.journal, task.job)
    return known[1]


def finished_results(stages: Sequence[Stage]) -> list[TaskResult]:
    """Return the results that tasks left of ``stages`` noted in their journals, by stage and index."""
    journals = {(stage.journal.key, stage.job): (stage.journal, stage.job) for stage in stages if stage.journal}
    by_number = {stage.number: stage for stage in stages}
    for _, job in journals.values():
        flush_results(job)
    return list(
        in_order(
            [
                result
                for journal, job in journals.values()
                for result in Journal(journal, job, read_only=True).results().values()
                if result.stage in by_number and by_number[result.stage].has_task(result.index)
            ]
        )
    )


def flush_results(job: str) -> None:
    """Have the journal hold what tasks of a job have handed over in this process."""
    notebook = _notebook(job)
    if notebook is not None:
        notebook.flush()


def _notebook(job: str) -> Notebook | None:
    process, notebook = _open.get(job, (0, None))
    return notebook if process == os.getpid() else None
