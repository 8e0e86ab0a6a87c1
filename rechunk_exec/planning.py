"""The planner for people who have numbers, not arrays. Layer: the planner's front door; pure arithmetic."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import asdict
from typing import SupportsIndex

from rechunk_exec.algorithm import plan
from rechunk_exec.chunkspec import ChunkSpec, exact_sizes, resolve_chunks, resolve_shards
from rechunk_exec.cost import CostModel, resolve
from rechunk_exec.errors import PlanError
from rechunk_exec.plans import Plan
from rechunk_exec.request import Limits, PlanRequest, SourceLayout, TargetLayout
from rechunk_exec.sizes import parse_bytes


def plan_rechunk(  # noqa: PLR0913 - the signature is part of the public contract
    shape: Sequence[int],
    itemsize: int,
    source_chunks: int | Sequence[int],
    target_chunks: ChunkSpec,
    max_mem: int | str,
    *,
    target_shards: ChunkSpec = None,
    read_unit: Sequence[int] | None = None,
    cost_model: str | CostModel = "local",
    tasks_per_worker: int = 1,
    max_objects: int | None = None,
    min_object_bytes: int | str | None = None,
    max_temp_bytes: int | str | None = None,
) -> Plan:
    """Plan a rechunk by arithmetic alone: no file is opened and nothing is made.

    Parameters
    ----------
    shape : sequence of int
        Elements of the array along every axis.
    itemsize : int
        Bytes of one element.
    source_chunks : int or sequence of int
        Chunks of the source, in elements; -1 for the whole axis. A chunk longer than its axis is decoded whole.
    target_chunks : int, tuple or dict
        Chunks of the target, in elements; see :mod:`rechunk_exec.chunkspec` for all forms. Axes are named by number.
    max_mem : int or str
        Bytes that one worker process may hold, or such as ``"8GB"`` (10**9 based) or ``"8GiB"`` (2**30 based).
    target_shards : int, tuple or dict, optional
        Shards of the target, in elements; None for none.
    read_unit : sequence of int, optional
        The smallest box of the source that is decoded on its own, where its codec allows less than a chunk.
    cost_model : {"local", "object"} or CostModel
        Rates that the plan's time is predicted with.
    tasks_per_worker : int
        Tasks that one worker process runs at once; they share ``max_mem``.
    max_objects : int, optional
        Objects that all stages together may write, the target's included.
    min_object_bytes : int or str, optional
        Raw bytes that every object has at least, those at the far edges of the array aside.
    max_temp_bytes : int or str, optional
        Raw bytes that intermediates may hold at once; 0 for no intermediate.

    Returns
    -------
    Plan
        The stages with their exact figures, and the alternatives that were weighed.

    Raises
    ------
    PlanError
        If an argument is not valid, or the target itself passes a limit.
    BudgetError
        If no plan holds within ``max_mem`` and the limits; ``needed_bytes`` is the least that would do, ``limits`` has
        the nearest limits that would.

    Examples
    --------
    A stack of 389 epochs in blocks becomes whole-series chunks in one pass:

    >>> plan = plan_rechunk((389, 6898, 9618), 4, (1, 1024, 1024), (389, 256, 256), "8GB")
    >>> [stage.region for stage in plan.stages], plan.traffic
    ([(389, 1024, 1024)], 2.0)

    In one chunk an epoch, it takes two, through an intermediate:

    >>> plan = plan_rechunk((389, 6898, 9618), 4, (1, 6898, 9618), (389, 256, 256), "8GB")
    >>> [stage.target for stage in plan.stages], plan.traffic
    (['temp-1', 'target'], 4.0)
    """
    if isinstance(max_mem, str) and max_mem.strip().lower() == "auto":
        raise PlanError(
            "max_mem must be a number of bytes where a plan is made by arithmetic alone; got 'auto', a share of what a "
            "machine leaves; give a number, or plan with rechunk(), which looks at the machine"
        )
    lengths = tuple(_whole(n, "shape", at_least=0) for n in shape)
    bytes_each = _whole(itemsize, "itemsize", at_least=1)
    source_chunk = exact_sizes(source_chunks, shape=lengths, name="source_chunks")
    chunk = resolve_chunks(target_chunks, shape=lengths, itemsize=bytes_each, current=source_chunk)
    request = PlanRequest(
        shape=lengths,
        itemsize=bytes_each,
        source=SourceLayout(
            chunk=source_chunk,
            read_unit=None if read_unit is None else exact_sizes(read_unit, shape=lengths, name="read_unit"),
        ),
        target=TargetLayout(chunk=chunk, shard=resolve_shards(target_shards, shape=lengths, chunk=chunk)),
        max_mem=parse_bytes(max_mem),
        cost=resolve(cost_model),
        tasks_per_worker=_whole(tasks_per_worker, "tasks_per_worker", at_least=1),
        **asdict(Limits.asked(max_objects, min_object_bytes, max_temp_bytes)),
    )
    return plan(request)


def _whole(number: SupportsIndex, name: str, *, at_least: int) -> int:
    try:
        whole = operator.index(number)
    except TypeError:
        whole = at_least - 1
    if whole < at_least or isinstance(number, bool):
        raise PlanError(f"{name} must be whole numbers of at least {at_least}; got {number!r}")
    return whole
