"""The contender's half of a benchmark: what it says to the process that measures it. Standard library only.

It prints ``ready`` when all is imported and its pools stand, waits for a line, does its work, prints ``done NOTE``, and
waits for its input to end, so that its processes can still be looked at.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress


def compete(work: Iterator[str]) -> None:
    """Run a contender, written as a generator: set up, ``yield ""``, work, ``yield note``, clean up."""
    next(work)
    print("ready", flush=True)
    if not sys.stdin.readline():
        raise SystemExit("nobody is there to measure")
    print("done", next(work), flush=True)
    sys.stdin.read()
    with suppress(StopIteration):
        next(work)
