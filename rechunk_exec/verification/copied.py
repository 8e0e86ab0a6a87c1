"""Checking a copy by the digests that its tasks computed of what they read: only the target is read again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rechunk_exec.digest import Words
from rechunk_exec.errors import BudgetError
from rechunk_exec.grid import Box, Grid
from rechunk_exec.results import TaskResult
from rechunk_exec.tasks import Stage
from rechunk_exec.verification.compare import Pair, VerifyOptions, compared, differing_cells, differing_units
from rechunk_exec.verification.crew import Crew, crew_of
from rechunk_exec.verification.pieces import plan_reading
from rechunk_exec.verification.report import DifferingBox, VerifyReport
from rechunk_exec.verification.sums import ArraySums, Asked, sums_of


def verify_copied(
    stages: Sequence[Stage],
    results: Sequence[TaskResult],
    executor: object = "threads",
    max_mem: int | None = None,
    *,
    unfinished: str = "",
) -> VerifyReport:
    """Compare the target of a finished copy with its source, by the digests of its tasks where they are all there.

    Every stage read the whole array, so the digests of each stage's tasks must add up to the same sum: what a later
    stage read is what the first one read from the source. Then the target is read, and its digests compared with those
    of the last stage's tasks, region by region. In regions that differ, source and target are both read to find the
    write units. If a digest is missing, or the sums of two stages differ, source and target are both read whole.

    Parameters
    ----------
    stages : sequence of Stage
        All stages of the job, in order.
    results : sequence of TaskResult
        Of all tasks of all stages, in any order; those of an earlier run of the same job too.
    executor : str, Executor or other
        As for :func:`rechunk_exec.verify`.
    max_mem : int, optional
        Bytes that one worker process may use; those of the copy do.
    unfinished : str
        What is known of the job that has not ended, for the report.

    Returns
    -------
    VerifyReport
        ``way`` says what was read.

    Raises
    ------
    StorageError
        If the target cannot be opened, or the source cannot be read where that is needed.
    """
    source, target = stages[0].source, stages[-1].target
    pair = Pair.opened(source, target)
    digests = _digests(stages, results)
    with crew_of(executor, (source, target)) as crew:
        max_mem = _enough(pair, crew, max_mem)
        options = VerifyOptions(executor=executor, max_mem=max_mem)
        if digests is None:
            found = compared(pair, options, crew)
            return replace(found, unfinished=unfinished, way=f"{found.way}, since the copy left no digests of its own")
        if len({int(sums.sum(dtype=np.uint64)) for sums in digests}) > 1:
            found = compared(pair, options, crew)
            return replace(found, unfinished=unfinished, way=f"{found.way}, since stages of the copy read other bits")
        regions = Grid(stages[-1].shape, stages[-1].region)
        read = ArraySums((digests[-1].reshape(regions.grid_shape),), ())
        differing: list[tuple[Box, str]] = []
        bytes_read = 0
        if len(regions):
            whole = Box((0,) * len(regions.shape), regions.shape)
            reading = plan_reading([(target, pair.stored[1])], at_once=crew.at_once, max_mem=max_mem)
            found_there = sums_of(reading, Asked(regions=(whole,), cell=regions.chunk), crew)
            bytes_read = found_there.bytes_read
            differing = differing_cells(read, found_there.arrays[0], regions)
        if differing:
            boxes = [box for box, _ in differing]
            differing, again = differing_units(pair, boxes, pair.reading(crew, max_mem), crew)
            bytes_read += again
        return VerifyReport(
            differing=tuple(DifferingBox(start=box.start, stop=box.stop, reason=reason) for box, reason in differing),
            boxes=len(pair.units),
            bytes_read=bytes_read,
            unfinished=unfinished,
            executor=crew.pool.name,
            way="the target was read, and compared with what the copy read",
        )


def _enough(pair: Pair, crew: Crew, max_mem: int | None) -> int | None:
    """Return ``max_mem``, or what reading both arrays takes if that is more.

    A copy that fitted has held a chunk as stored and decoded, and a region. Where its region was smaller than the
    smallest piece that is read here, this is more by that piece: no reason to fail when all is copied.
    """
    try:
        pair.reading(crew, max_mem)
    except BudgetError as error:
        return error.needed_bytes
    return max_mem


def _digests(stages: Sequence[Stage], results: Sequence[TaskResult]) -> list[Words] | None:
    """Return the digests of each stage's tasks, by number; None if one is missing, or two of a task differ."""
    known: dict[tuple[int, int], str] = {}
    for result in results:
        if known.setdefault((result.stage, result.index), result.digest) != result.digest:
            return None
    found = []
    for stage in stages:
        texts = [known.get((stage.number, index), "") for index in range(stage.tasks)]
        if not all(texts):
            return None
        found.append(np.array([int(text, 16) for text in texts], np.uint64))
    return found
