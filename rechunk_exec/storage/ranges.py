"""Several ranges of one object in few requests. Layer: storage.

A request costs a round trip, whatever it brings. So ranges that are neighbours in the object, or have a small gap
between them, are fetched as one, up to a size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

STORE_GAP_BYTES = 256 << 10
"""A gap this long costs a store about what another request does (at 20 ms and 64 in flight, 1 GB/s)."""
FILE_GAP_BYTES = 16 << 10
"""The same for a local file, of which the kernel reads ahead anyway."""


class Joined(NamedTuple):
    """A range that is fetched at once."""

    start: int
    stop: int
    first: int
    last: int
    """The ranges in it, ``first`` to before ``last``, in the order of their starts."""


def join(starts: Sequence[int], stops: Sequence[int], *, gap_bytes: int, most_bytes: int) -> Iterator[Joined]:
    """Yield ranges that hold the given ones, in order.

    Parameters
    ----------
    starts, stops : sequence of int
        Bytes of each range, from and to, in the order of the starts.
    gap_bytes : int
        The longest gap that is fetched along.
    most_bytes : int
        The most that is fetched at once; one range that is longer is fetched whole.

    Examples
    --------
    >>> [tuple(one) for one in join([0, 10, 30, 50], [10, 20, 40, 90], gap_bytes=10, most_bytes=40)]
    [(0, 40, 0, 3), (50, 90, 3, 4)]
    """
    first = 0
    stop = stops[0] if starts else 0
    for number in range(1, len(starts)):
        further = max(stop, stops[number])
        if starts[number] - stop > gap_bytes or further - starts[first] > most_bytes:
            yield Joined(starts[first], stop, first, number)
            first, further = number, stops[number]
        stop = further
    if starts:
        yield Joined(starts[first], stop, first, len(starts))
