"""What is worth choosing along an axis of plans with three or more stages. Layer: the planner; beside candidates.

A stage more moves the array once more, but where two stages must cut it into very many pieces it makes a middle layout
whose pieces are large on both sides. Along one axis a chain of regions g1, g2, g3 with chunks c1 between g1 and g2, c2
between g2 and g3 is two pairs of regions, as in a plan of two stages, that share the middle one:

* the outer regions are a few of those of :func:`rechunk_exec.candidates.staged_axis`, evenly on a logarithmic scale;
* a middle region is a multiple of one of them, so that pieces are whole on that side, or one of them, or the axis;
* each pair has the chunks of :func:`rechunk_exec.candidates.pairs`.

Example: rows of 100 x 100 to columns, along the first axis, with first regions of 1 to 10 rows: 1 row, joined in the
second stage to 10, then to all 100:

>>> sizes = deeper_axis(StagedAxis(n=100, read_unit=1, write_unit=100, fetch_unit=1, most=(10, 10, 100))).sizes
>>> [1, 1, 10, 10, 100] in sizes.T.tolist()
True
"""

from __future__ import annotations

import numpy as np

from rechunk_exec.candidates import (
    StagedAxis,
    all_chains,
    is_short,
    pairs,
    per_count,
    spread,
    whole_and_parts,
    with_sums,
)
from rechunk_exec.combining import AxisOptions
from rechunk_exec.memory import IntArray

_OUTER = 12
"""Sizes of the first and of the last region."""
_MIDDLE = 200
"""Sizes of each region between."""
_CHAINS = 60_000
"""Chains of sizes considered at most."""
_COMPARED = 600
"""Chains that are compared with each other."""


def deeper_axis(axis: StagedAxis) -> AxisOptions:
    """Options of one axis for as many stages as ``axis.most`` has bounds, three at least."""
    n, *middle = axis.n, *axis.most[1:-1]
    if is_short(n, axis.write_unit, len(axis.most)):
        return with_sums(axis, all_chains(n, axis.write_unit, len(axis.most)), every=True)
    first = _outer(whole_and_parts(n, axis.read_unit), axis.most[0])
    last = _outer(per_count(n, axis.write_unit), axis.most[-1])
    chains: IntArray | None = None
    before = first
    for most in middle:
        between = _between(n, before, last, most)
        chains = _join(chains, pairs(n, before, between))
        before = between
    return with_sums(axis, _join(chains, pairs(n, before, last)), _COMPARED)


def _outer(sizes: IntArray, most: float) -> IntArray:
    return spread(sizes[sizes <= most], _OUTER)


def _between(n: int, first: IntArray, last: IntArray, most: float) -> IntArray:
    """Sizes of a middle region: multiples of those on either side, those, and the axis."""
    ends = np.unique(np.concatenate([first, last]))
    multiples = [per_count(n, int(size)) for size in ends.tolist()]
    few = [spread(sizes, max(2, _MIDDLE // len(ends))) for sizes in multiples]
    sizes = np.unique(np.concatenate([ends, *few, [n]]))
    return np.asarray(sizes[sizes <= most], dtype=np.int64)


def _join(chains: IntArray | None, links: IntArray) -> IntArray:
    """The chains, each with every link that begins with the region it ends with; links are in order."""
    if chains is None:
        return links
    start = np.searchsorted(links[0], chains[-1], side="left")
    counts = np.searchsorted(links[0], chains[-1], side="right") - start
    # every so manieth chain where all would be too many
    step = -(-int(counts.sum()) // _CHAINS) or 1
    which = np.repeat(np.arange(chains.shape[1]), counts)
    offsets = np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)
    joined = np.concatenate([chains[:, which], links[1:, np.repeat(start, counts) + offsets]])
    return np.asarray(joined[:, ::step])
