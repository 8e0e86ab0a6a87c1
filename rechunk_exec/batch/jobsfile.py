"""A file of jobs: each line is a :class:`~rechunk_exec.CopyTask`, in order of stages. Layer: batch."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from rechunk_exec.errors import PlanError, SerializationError
from rechunk_exec.storage import LinesFile, LinesWriter, array_ref, location
from rechunk_exec.tasks import ArrayRef, CopyTask, Stage

_NUMBERS = re.compile(r'\{"rechunk_exec":\d+,"type":"CopyTask","stage":(\d+),"index":(\d+),')
"""How a line begins that was written by us: its numbers are found without reading all of it."""


class JobsFile:
    """A file of jobs, whose lines are numbered from 0.

    Parameters
    ----------
    name : str or os.PathLike
        A path, or the URL of an object.

    Raises
    ------
    StorageError
        If it cannot be read.
    """

    def __init__(self, name: str | os.PathLike[str]) -> None:
        self.name = os.fspath(name)
        self._lines = LinesFile(self.name)

    def __len__(self) -> int:
        return len(self._lines)

    def task(self, number: int) -> CopyTask:
        """Return the task of a line.

        Raises
        ------
        SerializationError
            If it is none; the message names the line, and what is wrong in it.
        IndexError
            If there is no such line.
        """
        return self._parsed(number, self._lines[number])

    def tasks(self, numbers: range) -> Iterator[tuple[int, CopyTask]]:
        """Yield the tasks of some lines, each after the line's number."""
        for number, line in enumerate(self._lines.between(numbers.start, numbers.stop), numbers.start):
            yield number, self._parsed(number, line)

    def numbers(self, first: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Yield number, stage and index of the lines from ``first`` to before ``stop``, without parsing all of them."""
        for number, line in enumerate(self._lines.between(first, stop), first):
            yield (number, *self._key(number, line))

    def first_of_stage(self, stage: int) -> int:
        """Return the number of a stage's first line, or of where it would be. Looks at few lines."""
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            if self._key(middle, self._lines[middle])[0] < stage:
                low = middle + 1
            else:
                high = middle
        return low

    def copy(self, numbers: Sequence[int], name: str) -> None:
        """Write some of the lines to a file of their own, in place of a file of jobs that is there.

        Raises
        ------
        PlanError
            If it would be this file, or lie in one of the job's arrays.
        StorageError
            If what is there is no file of jobs, or the file cannot be written.
        """
        if location(array_ref(name)).overlaps(location(array_ref(self.name))):
            raise PlanError(f"some lines of a file of jobs go to another file; got {name} for both; give another name")
        if len(self):
            ends = self.task(0), self.task(len(self) - 1)
            refuse_inside(name, [place for task in ends for place in (task.source, task.target, task.journal) if place])
        lines = [self._lines[number].rstrip() for number in numbers]
        width = max((len(line.encode()) for line in lines), default=0)
        with open_lines(name, replace_it=True) as writer:
            for line in lines:
                writer.write(line, width)

    def where(self, number: int) -> str:
        """Return what messages call a line: people and editors count from 1."""
        return f"line {number + 1} of {self.name} (index {number})"

    def _parsed(self, number: int, line: str) -> CopyTask:
        try:
            task = CopyTask.from_json(line)
        except SerializationError as error:
            raise SerializationError(f"{self.where(number)}: {error}") from error
        if task.journal is None:
            raise SerializationError(
                f"{self.where(number)}: CopyTask.journal must be the array beside which the task notes its result; got "
                "null; write the lines with `init`"
            )
        return task

    def _key(self, number: int, line: str) -> tuple[int, int]:
        found = _NUMBERS.match(line)
        if found is not None:
            return int(found[1]), int(found[2])
        task = self._parsed(number, line)
        return task.stage, task.index


def _begins_a_jobs_file(beginning: str) -> bool:
    return _NUMBERS.match(beginning) is not None


@contextmanager
def open_lines(name: str, *, replace_it: bool) -> Iterator[LinesWriter]:
    """Write a file of lines, which is there, whole, after the context; nothing is left if that fails."""
    writer = LinesWriter(name, replace=_begins_a_jobs_file if replace_it else None)
    try:
        yield writer
        writer.commit()
    except BaseException:
        writer.abort()
        raise


def write_lines(writer: LinesWriter, stages: Sequence[Stage]) -> int:
    """Write a line for each task that is left of the stages, and return how many."""
    width = line_width(stages)
    for stage in stages:
        for task in stage:
            writer.write(task.to_json(), width)
    return sum(map(len, stages))


def line_width(stages: Sequence[Stage]) -> int:
    """Return how many bytes the longest line takes, without its end.

    Raises
    ------
    SerializationError
        If an array has no name in JSON.
    """
    return max((len(_longest(stage).to_json()) for stage in stages if stage.tasks), default=0)


def _longest(stage: Stage) -> CopyTask:
    """Return a task of a stage, or none of it, that no other one is longer than as JSON."""
    task = replace(stage, left=None)[0]
    return replace(task, index=stage.tasks - 1, start=tuple(n - 1 for n in stage.shape), stop=stage.shape)


def refuse_inside(name: str, places: Sequence[ArrayRef]) -> None:
    """Raise :class:`PlanError` if a file of jobs is to lie in one of the job's arrays."""
    where = location(array_ref(name))
    for place in places:
        if where.overlaps(location(place)):
            raise PlanError(
                f"a file of jobs must lie outside the arrays of its job; got {name} in {place}; give another name"
            )
