"""Checking a copy by the digests that its tasks computed of what they read: only the target is read again.

And what an earlier run of the job has read of the source, since that may have changed between the runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from rechunk_exec import storage
from rechunk_exec.errors import BudgetError
from rechunk_exec.grid import Box, Grid
from rechunk_exec.results import TaskResult
from rechunk_exec.tasks import ArrayRef, Stage
from rechunk_exec.verification.compare import Pair, VerifyOptions, compared, differing_cells, differing_units, joined
from rechunk_exec.verification.crew import Crew, crew_of
from rechunk_exec.verification.pieces import plan_reading
from rechunk_exec.verification.report import DifferingBox, VerifyReport
from rechunk_exec.verification.sums import ArraySums, Asked, PassResult, numbers_touching, sums_of
from rechunk_exec.weights import Words


def verify_copied(
    stages: Sequence[Stage],
    results: Sequence[TaskResult],
    executor: object = "threads",
    max_mem: int | None = None,
    *,
    earlier: Sequence[TaskResult] = (),
) -> VerifyReport:
    """Compare the target of a finished copy with its source, by the digests of its tasks where they are all there.

    Every stage read the whole array, so the digests of each stage's tasks must add up to the same sum: what a later
    stage read is what the first one read from the source. Then the target is read, and its digests compared with those
    of the last stage's tasks, region by region. In regions that differ, source and target are both read to find the
    write units. If a digest is missing, or the sums of two stages differ, source and target are both read whole.

    What an earlier run has read of the source may have been written to since. It is read again, and counts as a region
    that differs where its digest is another one.

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
    earlier : sequence of TaskResult
        Those of the results that an earlier run of the job has left.

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
            return replace(found, way=f"{found.way}, since the copy left no digests of its own")
        if len({int(sums.sum(dtype=np.uint64)) for sums in digests}) > 1:
            found = compared(pair, options, crew)
            return replace(found, way=f"{found.way}, since stages of the copy read other bits")
        regions = Grid(stages[-1].shape, stages[-1].region)
        one_of_two = _Reader(crew, max_mem)
        changed, bytes_read = _changed_since(stages[0], digests[0], earlier, one_of_two)
        doubtful = {number for box in changed for number in numbers_touching(regions, box)}
        if len(regions):
            whole = Box((0,) * len(regions.shape), regions.shape)
            there = one_of_two.sums(target, Asked(regions=(whole,), cell=regions.chunk))
            bytes_read += there.bytes_read
            read = ArraySums((digests[-1].reshape(regions.grid_shape),), ())
            other = differing_cells(read, there.arrays[0], regions)
            doubtful |= {number for box, _ in other for number in numbers_touching(regions, box)}
        differing: list[tuple[Box, str]] = []
        if doubtful:
            boxes = joined([regions.box(number) for number in sorted(doubtful)])
            differing, again = differing_units(pair, boxes, pair.reading(crew, max_mem), crew)
            bytes_read += again
        return VerifyReport(
            differing=tuple(DifferingBox(start=box.start, stop=box.stop, reason=reason) for box, reason in differing),
            boxes=len(pair.units),
            bytes_read=bytes_read,
            executor=crew.pool.name,
            way="the target was read, and compared with what the copy read"
            + ("; what an earlier run had read was read again" if earlier else ""),
        )


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads one array alone."""

    crew: Crew
    max_mem: int | None

    def sums(self, ref: ArrayRef, asked: Asked) -> PassResult:
        stored = storage.open_array(ref, read_only=True)
        reading = plan_reading([(ref, stored)], at_once=self.crew.at_once, max_mem=self.max_mem)
        return sums_of(reading, asked, self.crew)


def _changed_since(
    first: Stage, digests: Words, earlier: Sequence[TaskResult], reader: _Reader
) -> tuple[list[Box], int]:
    """Return the regions whose digests, taken by an earlier run, are no longer the source's; and the bytes decoded.

    A region that cannot be read any more is among them.
    """
    numbers = sorted({result.index for result in earlier if result.stage == first.number})
    if not numbers:
        return [], 0
    grid = Grid(first.shape, first.region)
    asked = Asked(regions=tuple(joined([grid.box(number) for number in numbers])), cell=grid.chunk)
    found = reader.sums(first.source, asked)
    now, then = found.arrays[0], digests.reshape(grid.grid_shape)
    changed: list[Box] = []
    for number, region in enumerate(asked.regions):
        cells = asked.cells(number)
        low = [start // size for start, size in zip(region.start, grid.chunk, strict=True)]
        part = then[tuple(slice(a, a + count) for a, count in zip(low, cells.grid_shape, strict=True))]
        one, other = ArraySums((part,), ()), ArraySums((now.sums[number],), now.unreadable)
        changed += [box for box, _ in differing_cells(one, other, cells, region)]
    return changed, found.bytes_read


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
