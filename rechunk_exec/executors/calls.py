"""What passes between a pool and its workers: a call, and how it ended. Layer: executors, below the pools."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rechunk_exec.executors.shared import Shared


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A function to be called with one argument, in a worker."""

    number: int
    """What the pool knows the call by; never used twice."""
    function: Shared[Callable[[Any], object]]
    argument: object


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a call ended."""

    number: int
    value: object = None
    error: BaseException | None = None
    lost: bool = False
    """Whether the error is that the worker died."""
