"""What ``max_mem`` comes to: a number that was given, or with ``"auto"`` a share of what is left. Layer: below the api.

A job that goes on takes the number that it was begun with: its plan is made for that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import SupportsIndex

from rechunk_exec.errors import PlanError
from rechunk_exec.executors import WorkerShape, memory_left
from rechunk_exec.sizes import bytes_text, count_text, format_bytes, parse_bytes

AUTO = "auto"
"""Stands for a share of what is left."""
SHARE = 0.6
"""Of what is left. The rest is for the page cache, without which stores are slow, for what others come to need while
the job runs, and for what no figure says: a group's usage is of one moment."""
IDLE_BYTES = 150 * 10**6
"""What a worker process that is yet to be started takes before its first task, on top of which ``max_mem`` comes."""
_WHOLE = 10**6
"""Numbers are rounded down to these: more figures would seem more exact than they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Memory of one worker."""

    max_mem: int
    """In bytes."""
    how: str = ""
    """How the number came about, for people; empty where it was given."""
    warning: str = ""
    """Why it may be too much by now; empty if it is not."""
    of_this_machine: bool = False
    """Whether it holds for workers on this machine only."""


def asked_bytes(max_mem: SupportsIndex | str) -> int | None:
    """Return the number that ``max_mem`` says, or None for ``"auto"``; :class:`PlanError` if it is neither.

    >>> asked_bytes("8GB"), asked_bytes("auto")
    (8000000000, None)
    """
    return None if isinstance(max_mem, str) and max_mem.strip().lower() == AUTO else parse_bytes(max_mem)


def budget_for(asked: int | None, workers: WorkerShape, *, executor: str, begun: int | None = None) -> Budget:
    """Return the memory of one worker.

    Parameters
    ----------
    asked : int, optional
        The number of bytes that was given; None for ``"auto"``.
    workers : WorkerShape
    executor : str
        Its name, for messages.
    begun : int, optional
        The number that the job which is gone on with was begun with.

    Raises
    ------
    PlanError
        If a share is asked of what is not known or nothing.

    Examples
    --------
    >>> here = WorkerShape(workers=2, tasks_per_worker=1, cores_per_worker=1, elastic=False, here=True)
    >>> 0 < budget_for(None, here, executor="processes").max_mem <= SHARE * memory_left() / 2
    True
    """
    if asked is not None:
        return Budget(max_mem=asked)
    if begun is not None:
        how = f"max_mem is {bytes_text(begun)}, as when the job was begun"
        return Budget(max_mem=begun, how=how, warning=_shortage(begun, workers))
    left = _left_each(workers)
    if left is None:
        raise PlanError(
            "max_mem='auto' is a share of what this machine leaves, so the workers must be on it, or say what they may "
            f"use; got executor {executor!r}, whose workers may be anywhere; give what one of them has, such as '8GB'"
        )
    most = int(left * SHARE)
    if workers.spare_bytes is not None:
        most = min(most, workers.spare_bytes)
    if most < _WHOLE:
        raise PlanError(
            f"max_mem='auto' is {SHARE:.0%} of the memory that is left; got {format_bytes(max(0, int(left)))} for each "
            f"of {count_text(workers.workers, 'worker')}; free some, use fewer workers, or give a number of bytes"
        )
    most -= most % _WHOLE
    source = "its limit leaves a worker" if workers.spare_bytes is not None else "this machine and its limits leave"
    each = f", for each of {workers.workers} workers" * (workers.spare_bytes is None and workers.workers > 1)
    return Budget(
        max_mem=most,
        how=f"max_mem is {bytes_text(most)}: {SHARE:.0%} of what {source}{each}",
        of_this_machine=True,
    )


def _left_each(workers: WorkerShape) -> float | None:
    """Bytes that are left for each worker; None where that is not known."""
    if workers.spare_bytes is not None:
        return workers.spare_bytes
    if not workers.here:
        return None
    return (memory_left() - workers.to_start * IDLE_BYTES) / workers.workers


def _shortage(begun: int, workers: WorkerShape) -> str:
    left = _left_each(workers)
    if left is None or begun <= left:
        return ""
    return (
        f"the job was begun with max_mem {format_bytes(begun)}, and by now each of "
        f"{count_text(workers.workers, 'worker')} has {format_bytes(max(0, int(left)))} left"
    )
