"""How much longer a stage takes because slots stand idle at its end. Layer: the planner; imports NumPy and memory.

Tasks at the far edges of an array are smaller than the others, so it is not their number that counts. Two things bound
the time from below, whatever the order of tasks: all work, spread evenly over the slots; and, for tasks of at least
some size, that one slot does ``ceil(their number / slots)`` of them. The largest of these bounds is taken: with few
tasks it is what an order from large to small comes to, nearly always.

Example: eight bands of rows on four slots keep all busy. 3001 rows, cut at 1000, 2000 and 3000, are three bands and a
sliver, on four slots: they take as long as one band, a third longer than four bands of 750 rows would.

>>> idle_factor((8, 10), [np.array([1]), np.array([10])], slots=4).tolist()
[1.0]
>>> idle_factor((3001, 2), [np.array([1000]), np.array([1])], slots=4).round(3).tolist()
[1.333]
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rechunk_exec.memory import FloatArray, IntArray


def idle_factor(shape: tuple[int, ...], region: Sequence[IntArray], slots: int) -> FloatArray:
    """Seconds of all slots from a stage's first task to its last, over the seconds of work; row by row.

    Parameters
    ----------
    shape : tuple of int
        Elements of the array along each axis.
    region : sequence of int arrays
        Elements of a task along each axis, at most those of the array; one entry a plan.
    slots : int
        Tasks that run side by side.
    """
    total = math.prod(shape)
    if slots == 1 or not total:
        return np.ones(region[0].shape if region else ())
    sizes, counts = [np.asarray(1.0)], [np.asarray(1.0)]
    for n, length in zip(shape, region, strict=True):
        whole, rest = n // length, n % length
        further = [(size * rest, count) for size, count in zip(sizes, counts, strict=True)] if rest.any() else []
        sizes = [size * length for size in sizes] + [size for size, _ in further]
        counts = [count * whole for count in counts] + [count for _, count in further]
    size, count = np.stack(np.broadcast_arrays(*sizes)), np.stack(np.broadcast_arrays(*counts))
    largest_first = np.argsort(-size, axis=0)
    size = np.take_along_axis(size, largest_first, axis=0)
    count = np.cumsum(np.take_along_axis(count, largest_first, axis=0), axis=0)
    longest = (np.ceil(count / slots) * size).max(axis=0)
    return np.asarray(np.maximum(longest * slots / total, 1.0))
