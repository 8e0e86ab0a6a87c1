"""What is worth choosing along an axis of plans with three or more stages. Layer: the planner; beside candidates.

A stage more moves the array once more, but where fewer stages must cut it into very many pieces it makes a middle
layout whose pieces are large on both sides. Along one axis regions g1, g2, g3, ... with chunks c1 between g1 and g2, c2
between g2 and g3 are pairs of regions, as in a plan of two stages, each of which shares a region with the next:

* the outer regions are a few of those of :func:`rechunk_exec.candidates.staged_axis`, evenly on a logarithmic scale;
* the middle region of three stages is a multiple of one of them, so that pieces are whole on that side, or one of them,
  or the axis, and each pair has the chunks of :func:`rechunk_exec.candidates.pairs`;
* of more stages, the regions grow: each is a multiple of the one before, but for the last; or they shrink: each is a
  multiple of the one after, but for the first. So each chunk is the smaller region of its pair.

Few sizes are a coarse net. Once a plan is found, the net is drawn again, finer, around its regions.

Example: rows of 100 x 100 to columns, along the first axis, with first regions of 1 to 10 rows: 1 row, joined in the
second stage to 10, then to all 100:

>>> sizes = deeper_axis(StagedAxis(n=100, read_unit=1, write_unit=100, fetch_unit=1, most=(10, 10, 100))).sizes
>>> [1, 1, 10, 10, 100] in sizes.T.tolist()
True
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from rechunk_exec.candidates import (
    StagedAxis,
    all_chains,
    is_short,
    pairs,
    per_count,
    spread,
    unique_columns,
    whole_and_parts,
    with_sums,
)
from rechunk_exec.combining import AxisOptions
from rechunk_exec.memory import IntArray

_OUTER = 12
"""Sizes of the first and of the last region."""
_MIDDLE = 200
"""Sizes of the region between, of three stages."""
_MULTIPLES = 8
"""Multiples of each region, of more stages."""
_CHAINS = 60_000
"""Chains of sizes considered at most."""
_COMPARED = 600
"""Chains of three stages that are compared with each other; half of that of four."""
_AROUND = 1.6
"""How many times larger or smaller regions are than those around which more are sought."""


def deeper_axis(axis: StagedAxis, around: Sequence[int] | None = None) -> AxisOptions:
    """Options of one axis for as many stages as ``axis.most`` has bounds, three at least.

    Parameters
    ----------
    axis : StagedAxis
    around : sequence of int, optional
        The regions of a plan that is known: only such as are about as long.
    """
    n, stages = axis.n, len(axis.most)
    if is_short(n, axis.write_unit, stages):
        return with_sums(axis, all_chains(n, axis.write_unit, stages), every=True)
    bounds = [(1.0, most) for most in axis.most]
    if around is not None:
        bounds = [(size / _AROUND, min(most, size * _AROUND)) for size, most in zip(around, axis.most, strict=True)]
    first = spread(_within(whole_and_parts(n, axis.read_unit), bounds[0]), _OUTER)
    last = spread(_within(per_count(n, axis.write_unit), bounds[-1]), _OUTER)
    if stages == 3:
        between = _between(n, first, last, bounds[1])
        chains = _join(pairs(n, first, between), pairs(n, between, last))
    else:
        growing = _every(_multiples(n, first, bounds[1:-1]), last[None])
        shrinking = _every(_multiples(n, last, bounds[-2:0:-1]), first[None])
        chains = _with_chunks(n, np.concatenate([growing, shrinking[::-1]], axis=1))
    return with_sums(axis, chains, _COMPARED // (stages - 2))


def _within(sizes: IntArray, bounds: tuple[float, float]) -> IntArray:
    return sizes[(sizes >= bounds[0]) & (sizes <= bounds[1])]


def _between(n: int, first: IntArray, last: IntArray, bounds: tuple[float, float]) -> IntArray:
    """Sizes of a middle region: multiples of those on either side, those, and the axis."""
    ends = np.unique(np.concatenate([first, last]))
    multiples = [_within(per_count(n, int(size)), bounds) for size in ends.tolist()]
    few = [spread(sizes, max(2, _MIDDLE // len(ends))) for sizes in multiples]
    return np.asarray(_within(np.unique(np.concatenate([ends, *few, [n]])), bounds), dtype=np.int64)


def _multiples(n: int, base: IntArray, bounds: Sequence[tuple[float, float]]) -> IntArray:
    """Columns of sizes: one of the base, a multiple of it within the first bounds, a multiple of that, and so on."""
    columns = base[None]
    for bound in bounds:
        parts = [spread(_within(per_count(n, size), bound), _MULTIPLES) for size in columns[-1].tolist()]
        columns = columns[:, np.repeat(np.arange(columns.shape[1]), [len(sizes) for sizes in parts])]
        columns = np.concatenate([columns, np.concatenate([base[:0], *parts])[None]])
    return columns


def _every(columns: IntArray, others: IntArray) -> IntArray:
    """Each column above each of the others."""
    above = np.repeat(columns, others.shape[1], axis=1)
    return np.concatenate([above, np.tile(others, columns.shape[1])])


def _with_chunks(n: int, regions: IntArray) -> IntArray:
    """Chains of regions with the chunks between; without those of which a chunk would be small beside its regions."""
    rows, whole = [regions[0]], np.ones(regions.shape[1], dtype=np.bool_)
    for before, after in pairwise(regions):
        smaller, common = np.minimum(before, after), np.gcd(before, after)
        chunk = np.where((before >= n) | (after >= n), smaller, common)
        # a chunk is cut by the edges of the regions that read it, but never by those that write it
        chunk = np.where((common * 8 < smaller) & (before <= after), before, chunk)
        whole &= chunk * 8 >= smaller
        rows += [chunk, after]
    chains = unique_columns(np.stack(rows)[:, whole])
    return chains[:, :: -(-chains.shape[1] // _CHAINS) or 1]


def _join(before: IntArray, after: IntArray) -> IntArray:
    """The pairs before, each with every pair that begins with the region it ends with; those after are in order."""
    start = np.searchsorted(after[0], before[-1], side="left")
    counts = np.searchsorted(after[0], before[-1], side="right") - start
    # every so manieth chain where all would be too many
    step = -(-int(counts.sum()) // _CHAINS) or 1
    which = np.repeat(np.arange(before.shape[1]), counts)
    offsets = np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)
    joined = np.concatenate([before[:, which], after[1:, np.repeat(start, counts) + offsets]])
    return np.asarray(joined[:, ::step])
