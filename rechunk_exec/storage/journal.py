"""The journal of a job: what it is, and which of its tasks are done. Layer: storage.

It is a few documents (:mod:`.documents`) in the target's own folder, on every kind of store::

    .rechunk_exec/job.json                 the job: its fingerprint and its plan
    .rechunk_exec/drivers/<driver>.json    who runs it now (see :mod:`.lease`)
    .rechunk_exec/<job>/done/*.json        results of tasks, some or many in one document
    .rechunk_exec/<job>/done/*.lines       results that a process added one by one (see :mod:`.resultlines`)
    .rechunk_exec/<job>/failed/*.json      tasks that have failed for good
    .rechunk_exec/<job>/batch.json         what lines of a file of jobs need to know (see :mod:`.batch`)
    .rechunk_exec/finished.json            the job has ended; written last of all

Any number of processes and machines may add results at the same time, because each document has a name of its own and
is written once, and a file of lines is of one process. Where a document's results are of tasks one after the other, its
name tells which (:mod:`.resultnames`); two of one name hold results of the same tasks, and either will do. The driver
merges documents and lines while the job runs, so there are never many. A target with ``job.json`` and without
``finished.json`` is unfinished, whatever else is there.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from rechunk_exec import wire
from rechunk_exec.errors import ResumeError, SerializationError, StorageError
from rechunk_exec.plans import Plan
from rechunk_exec.results import TaskFailure, TaskResult
from rechunk_exec.storage.documents import Documents
from rechunk_exec.storage.identity import Fingerprint
from rechunk_exec.storage.resultlines import ResultLines, moved_lines, read_lines, remove_lines
from rechunk_exec.storage.resultnames import TaskRun, count_tasks, level_of, name_of, tasks_of
from rechunk_exec.tasks import ArrayRef, refuse_job_name

MERGED_AT_ONCE = 64
"""How many documents of results there are before they become one."""

_LARGE_DOCUMENT = 4096
"""Results in a document that needs no more merging."""
_LEVELS = 3
"""How often a result is written again, at most."""

_JOB_NAME = re.compile(r"[0-9a-f]{32}")

_FIRST = TaskRun(-1, 0, 0)
"""Before all runs of tasks."""

_FIELDS = tuple(wire.to_columns(TaskResult, []))
_values_of = operator.attrgetter(*_FIELDS)

Record = TypeVar("Record")

_JOB, _FINISHED, _RESULTS = "job", "finished", "Results"
_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
"""Made once: each of many tasks writes a document."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """A job that was begun on a target."""

    job: str
    """Its name, under which its results are."""
    fingerprint: Fingerprint
    plan: Plan
    begun: str
    """When, in UTC."""
    package: str
    """Version of this package."""
    temp_name: str = ""
    """Of the folder of its intermediates; "" if an earlier version has begun the job."""
    replaces: bool = False
    """Whether something that was at the target before is still to be removed, all of it or what is left of it."""

    def __post_init__(self) -> None:
        refuse_job_name(self.job)
        refuse_job_name(self.temp_name)


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRecord:
    """The end of a job."""

    job: str
    ended: str
    """When, in UTC."""
    tasks: tuple[int, ...]
    """Tasks of each stage."""
    bytes_written: int
    """Bytes of all stages, before encoding."""


def read_job(target: ArrayRef) -> JobRecord | None:
    """Return the job that was begun on a target, or None if there is none.

    Raises
    ------
    ResumeError
        If what is there is damaged, or of another version.
    """
    return _read(Documents(target, read_only=True), _JOB, JobRecord)


def read_finished(target: ArrayRef) -> FinishedRecord | None:
    """Return the end of the job that was begun on a target, or None if it has not ended."""
    documents = Documents(target, read_only=True)
    finished = _read(documents, _FINISHED, FinishedRecord)
    if finished is None:
        return None
    record = _read(documents, _JOB, JobRecord)
    return finished if record is not None and record.job == finished.job else None


def _read(documents: Documents, name: str, kind: type[Record]) -> Record | None:
    text = documents.read(name)
    if not text:  # a power cut leaves empty files
        return None
    try:
        return wire.from_json(kind, text)
    except SerializationError as error:
        raise _damaged(name, error) from error


class Journal:
    """The results of one job. Safe to use from many processes at once; see the module for the layout.

    Parameters
    ----------
    target : ArrayRef
        The array that the job writes in the end, whichever stage a result is of.
    job : str
        The job's name.
    """

    def __init__(self, target: ArrayRef, job: str, *, read_only: bool = False) -> None:
        refuse_job_name(job)
        self.job = job
        self._documents = Documents(target, read_only=read_only)
        self._folder = self._documents.local_folder(self._done)
        self._lines = None if self._folder is None else ResultLines(self._folder, self._text(list(_FIELDS)))
        self._added_one = False

    @property
    def _done(self) -> str:
        """The folder of results."""
        return f"{self.job}/done"

    def begin(self, record: JobRecord) -> None:
        """Say what the job is. From now on the target counts as unfinished."""
        self._documents.delete(_FINISHED)
        self._documents.write(_JOB, wire.to_json(record), durable=True)

    def finish(self, record: FinishedRecord) -> None:
        """Say that all is done."""
        self._documents.write(_FINISHED, wire.to_json(record))

    def add(self, results: Iterable[TaskResult], *, level: int = 0, durable: bool = False) -> None:
        """Add results of tasks, as one document."""
        held = list(results)
        text = self._text(wire.to_columns(TaskResult, held))
        name = name_of([(result.stage, result.index) for result in held], level)
        self._documents.write(f"{self._done}/{name}", text, durable=durable)

    def add_one(self, result: TaskResult) -> None:
        """Add the result of a task, of a process that may have many of them, one by one.

        The first is a document, whose name tells of its task: a process may run but one. On a local disk the others
        are lines of one file.
        """
        lines = self._lines
        if lines is not None and self._added_one:
            try:
                lines.add(_ENCODER.encode(_values_of(result)))
            except (OSError, TypeError, ValueError):
                # A full disk, say, which a document will tell of; or no plain numbers: a document holds others.
                self._lines = None
            else:
                return
        self._added_one = True
        self.add([result])

    def replace(self, results: Iterable[TaskResult]) -> None:
        """Hold these results instead of those so far. For the one driver of the job only."""
        held = list(results)
        if self._folder is not None:
            with self._told("removed"):
                remove_lines(self._folder)
        # Those so far go first: a task of which nothing is known is run again, which is harmless.
        self._documents.delete_several(self._done, self._documents.names(self._done))
        if held:
            self.add(held, level=1)

    def withdraw(self) -> None:
        """Say that no job was begun: nothing was created."""
        self._documents.delete(_JOB)
        self._documents.tidy()

    def results(self) -> dict[tuple[int, int], TaskResult]:
        """Return the result of each task that is done, by stage and number.

        Raises
        ------
        ResumeError
            If a document is damaged.
        """
        results = self._read_lines()  # before the documents: there they go
        results += self._results(dict(sorted(self._documents.read_all(self._done).items())))
        return {(result.stage, result.index): result for result in results}

    def done(self) -> set[tuple[int, int]]:
        """Return the tasks that are done, by stage and number.

        Cheaper than :meth:`results` where there are many documents: one whose name tells of which tasks it is, is not
        read.
        """
        return {(run.stage, index) for run in self._done_runs() for index in range(run.first, run.stop)}

    def count_done(self, stage: int) -> int:
        """Return how many tasks of a stage are done; reads no more than :meth:`done`."""
        return count_tasks(run for run in self._done_runs() if run.stage == stage)

    def _done_runs(self) -> list[TaskRun]:
        """Return runs of tasks that are done, in any order, some of them perhaps in several."""
        lines = self._read_lines()  # before the documents: there they go
        while True:
            names = self._documents.names(self._done, filled=True)
            tasks = {name: tasks_of(name) for name in names}
            texts = self._documents.read_several(self._done, [name for name, run in tasks.items() if run is None])
            if all(text is not None for text in texts.values()):  # else a driver has just merged some
                break
        read = [TaskRun(one.stage, one.index, one.index + 1) for one in (*lines, *self._results(texts))]
        return [*(run for run in tasks.values() if run is not None), *read]

    def merge(self) -> None:
        """Make fewer documents of many, where there are many. For the one driver of the job only.

        Few more results are held at once than make a large document, three times as many at most: a driver that keeps
        a hundred thousand of them should not hold them twice.
        """
        if self._folder is not None:
            with self._told("moved"):
                for name, lines in moved_lines(self._folder):
                    results = self._results_in_file(name, lines)
                    if results:
                        self.add(results, level=1)
        names = self._documents.names(self._done)
        for level in sorted({level_of(name) for name in names}):
            small: Sequence[str] = [name for name in names if level_of(name) == level]
            if level < _LEVELS and len(small) >= MERGED_AT_ONCE:
                small = sorted(small, key=lambda name: tasks_of(name) or _FIRST)  # so that more of them are neighbours
                while small:
                    small = self._merge_some(small, level)

    def _merge_some(self, names: Sequence[str], level: int) -> Sequence[str]:
        """Make one document of the first few of these; return the others."""
        results: list[TaskResult] = []
        taken = 0
        while taken < len(names) and len(results) < _LARGE_DOCUMENT:
            some = _read_at_once(names[taken:], _LARGE_DOCUMENT - len(results))
            results += self._results(self._documents.read_several(self._done, some))
            taken += len(some)
        if len(results) > 1:
            self.add(results, level=level + 1)
            self._documents.delete_several(self._done, names[:taken])
        return names[taken:]

    def add_failure(self, failure: TaskFailure) -> None:
        """Note a task that has failed for good."""
        self._documents.write(f"{self.job}/failed/{failure.stage}-{failure.index}", wire.to_json(failure))

    def forget_failure(self, stage: int, index: int) -> None:
        """Forget that a task has failed: it is done."""
        self._documents.delete(f"{self.job}/failed/{stage}-{index}")

    def failures(self) -> tuple[TaskFailure, ...]:
        """Return the tasks that have failed for good, by stage and number."""
        texts = self._documents.read_all(f"{self.job}/failed")
        failures = []
        for name, text in texts.items():
            try:
                failures.append(wire.from_json(TaskFailure, text))
            except SerializationError as error:
                raise _damaged(name, error) from error
        return tuple(sorted(failures, key=lambda failure: (failure.stage, failure.index)))

    def forget_failures(self) -> None:
        """Remove the notes of failed tasks: they are tried anew. For the one driver of the job only."""
        self._documents.delete_folder(f"{self.job}/failed")

    def forget(self, *, others: bool = False) -> None:
        """Remove the results of this job, or of all ``others`` on the same target; nothing that is of no job."""
        for name in self._documents.folders():
            if (name != self.job and _JOB_NAME.fullmatch(name)) if others else name == self.job:
                self._documents.delete_folder(name)

    def _text(self, columns: object) -> str:
        """Return the document of some results, or the head of lines of them, as one line."""
        return _ENCODER.encode({"rechunk_exec": wire.VERSION, "type": _RESULTS, "job": self.job, "columns": columns})

    def _read_lines(self) -> list[TaskResult]:
        """Return the results in files of lines."""
        if self._folder is None:
            return []
        with self._told("read"):
            files = read_lines(self._folder)
        return [result for name, lines in files.items() for result in self._results_in_file(name, lines)]

    @contextmanager
    def _told(self, what: str) -> Iterator[None]:
        """Raise what the file system says of files of lines as :class:`StorageError`."""
        try:
            yield
        except OSError as error:
            raise StorageError(f"lines of results in {self._folder} cannot be {what}: {error}") from error

    def _results_in_file(self, name: str, lines: Sequence[str]) -> list[TaskResult]:
        head, *rows = lines or [""]
        if not rows:
            return []
        try:
            fields = self._columns(head)
            table = json.loads(f"[{','.join(rows)}]")
            return _from_columns(dict(zip(fields, map(list, zip(*table, strict=True)), strict=True)))
        except (SerializationError, ValueError, TypeError, RecursionError) as error:
            raise _damaged(name, error) from error

    def _results(self, texts: Mapping[str, str | None]) -> list[TaskResult]:
        """Return the results in many documents, in order. They are checked as one, which takes a third of the time."""
        held = {name: text for name, text in texts.items() if text}
        try:
            return _from_columns(_joined([self._columns(text) for text in held.values()]))
        except SerializationError:
            return [result for name, text in held.items() for result in self._results_of(name, text)]

    def _results_of(self, name: str, text: str) -> list[TaskResult]:
        try:
            return _from_columns(self._columns(text))
        except SerializationError as error:
            raise _damaged(name, error) from error

    def _columns(self, text: str) -> Any:
        document = wire.parse_document(_RESULTS, text)
        if set(document) != {"job", "columns"} or document["job"] != self.job:
            raise SerializationError(
                f"results have the members 'job', which is {self.job!r}, and 'columns'; got "
                f"{', '.join(sorted(document))} of job {document.get('job')!r}"
            )
        return document["columns"]


def _from_columns(columns: Any) -> list[TaskResult]:
    results = wire.from_columns(TaskResult, columns)
    if any(min(columns[name], default=0) < 0 for name in ("stage", "index", "bytes_written")):
        raise SerializationError("numbers of stages, tasks and bytes are at least 0; got a negative one")
    return results


def _joined(tables: Sequence[Any]) -> dict[str, list[Any]]:
    """Return tables of the same columns as one; each must be one by itself."""
    joined: dict[str, list[Any]] = {name: [] for name in wire.to_columns(TaskResult, [])}
    for table in tables:
        if not isinstance(table, dict) or table.keys() != joined.keys():
            raise SerializationError("tables of other columns are read one by one")
        columns = table.values()
        if not all(isinstance(column, list) for column in columns) or len(set(map(len, columns))) != 1:
            raise SerializationError("columns must be lists, and as long as each other")
        for name, column in table.items():
            joined[name] += column
    return joined


def _read_at_once(names: Sequence[str], wanted: int) -> Sequence[str]:
    """Return the first names, of documents that hold so many results, as their names tell; or the first that does not.

    Those that are read together are checked together, which is quicker.
    """
    held, count = 0, 0
    for run in map(tasks_of, names):
        if run is None or held >= wanted:
            break
        held += run.stop - run.first
        count += 1
    return names[: max(count, 1)]


def _damaged(name: str, error: Exception) -> ResumeError:
    return ResumeError(
        f"the journal beside a target must be as this version of rechunk_exec writes it; its document {name!r} is "
        f"not: {error}; give mode='overwrite' to begin anew"
    )
