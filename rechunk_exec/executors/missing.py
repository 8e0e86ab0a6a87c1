"""Which tasks have no result, for people. Layer: executors."""

from __future__ import annotations

from collections.abc import Sequence

from rechunk_exec.results import TaskResult
from rechunk_exec.tasks import Stage

_NAMED = 5
"""How many runs of missing tasks a message names."""


def missing_tasks(stages: Sequence[Stage], results: Sequence[TaskResult]) -> str:
    """Say how many and which tasks have no result, as runs of numbers; "" if all have."""
    total = sum(len(stage) for stage in stages)
    missing = total - len(results)
    if not missing:
        return ""
    done = {(result.stage, result.index) for result in results}
    named = [(stage.number, runs) for stage in stages if (runs := missing_runs(stage, done))]
    return f"{missing} of {total} tasks missing: " + "; ".join(f"of stage {number}: {runs}" for number, runs in named)


def missing_runs(stage: Stage, done: set[tuple[int, int]]) -> str:
    """Name the tasks that are missing, as runs of numbers; "" if none are."""
    runs: list[list[int]] = []
    for index in map(stage.task_number, range(len(stage))):
        if (stage.number, index) in done:
            continue
        if runs and runs[-1][1] == index - 1:
            runs[-1][1] = index
        elif len(runs) == _NAMED:
            return ", ".join(map(_run, runs)) + ", ..."
        else:
            runs.append([index, index])
    return ", ".join(map(_run, runs))


def _run(run: Sequence[int]) -> str:
    first, last = run
    return str(first) if first == last else f"{first} to {last}"
