"""Names of documents of results, which tell of which tasks where these follow each other. Layer: storage.

======================  ================================================
``0-1-7``               task 7 of stage 1, as it was written
``0-1-7-9``             tasks 7 and 8 of stage 1, likewise
``2-1-0-4096``          tasks 0 to 4095 of stage 1, merged twice
``0-5f3a2b...``         tasks that only its content tells
======================  ================================================
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable
from typing import NamedTuple

_LONGEST = 1 << 20
"""A name tells of no more tasks: a document that claims to hold more has to show them."""


class TaskRun(NamedTuple):
    """Tasks of one stage, one after the other."""

    stage: int
    first: int
    stop: int


def name_of(tasks: Collection[tuple[int, int]], level: int) -> str:
    """Return the name for the results of tasks, by stage and number, that were merged ``level`` times.

    Examples
    --------
    >>> name_of([(1, 8), (1, 7)], 0), name_of([(1, 7)], 1)
    ('0-1-7-9', '1-1-7')
    """
    stages, numbers = {stage for stage, _ in tasks}, {number for _, number in tasks}
    if len(stages) != 1 or len(numbers) > _LONGEST or max(numbers) - min(numbers) + 1 != len(numbers):
        return f"{level}-{secrets.token_hex(8)}"
    name = f"{level}-{stages.pop()}-{min(numbers)}"
    return name if len(numbers) == 1 else f"{name}-{max(numbers) + 1}"


def tasks_of(name: str) -> TaskRun | None:
    """Return the tasks whose results are in a document; None if its name does not tell.

    Examples
    --------
    >>> tasks_of("0-1-7"), tasks_of("0-5f3a2b")
    (TaskRun(stage=1, first=7, stop=8), None)
    """
    parts = name.split("-")
    if len(parts) not in (3, 4) or not all(part.isdecimal() for part in parts):
        return None
    _, stage, first, *stop = map(int, parts)
    run = TaskRun(stage, first, stop[0] if stop else first + 1)
    return run if 0 < run.stop - run.first <= _LONGEST else None


def level_of(name: str) -> int:
    """Return how often the results in a document were merged."""
    level = name.partition("-")[0]
    return int(level) if level.isdecimal() else 0


def count_tasks(runs: Iterable[TaskRun]) -> int:
    """Return how many tasks there are in runs of one stage, some of them perhaps in several.

    Examples
    --------
    >>> count_tasks([TaskRun(0, 5, 9), TaskRun(0, 0, 2), TaskRun(0, 7, 10)])
    7
    """
    count, end = 0, 0
    for run in sorted(runs):
        count += max(0, run.stop - max(run.first, end))
        end = max(end, run.stop)
    return count
