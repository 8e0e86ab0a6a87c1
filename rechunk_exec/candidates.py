"""Which regions and intermediate chunks are worth weighing. Layer: the planner; imports grid and NumPy.

Region sizes are chosen axis by axis and combined under the budget. Along one axis:

* *One stage* (:func:`direct_axis`): multiples of the write unit, and the whole axis. For each number of tasks only the
  sizes that no smaller one beats in elements and units read are kept, so nothing that could win is lost.
* *Two stages* (:func:`staged_axis`): triples of the first region, the intermediate chunk and the second region. The
  first region is a whole number of chunks, or the axis. Where one region spans the axis the chunk is the other region.
  Where both are shorter the chunk is their greatest common divisor if that is not small beside them; else one region is
  made a multiple of the other, or the chunk is cut by a region's edge and the second reading of it is counted. So prime
  sizes never make tiny chunks.
* *More stages*: see :mod:`rechunk_exec.deeper`.

How axes are combined is told in :mod:`rechunk_exec.combining`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.ma  # np.unique imports it when first called, where a Ctrl-C could break the import off

from rechunk_exec.combining import AxisOptions, cells_of
from rechunk_exec.grid import AxisSums, axis_sums, ceil_div
from rechunk_exec.memory import BoolArray, FloatArray, IntArray

_ENUMERATED = 2048
"""Up to so many write units along an axis, every region size is considered; above, those of :func:`per_count`."""
_COUNTED = 2048
"""Up to so many multiples, and so many numbers of regions, :func:`per_count` takes all; above, so many of each."""
_PARTS = 65
"""Below so many equal parts of a read unit are considered, where not all sizes are."""
_UNEVEN = 64
"""Region sizes of an axis up to which all are weighed where tasks run side by side."""
_PAIRS = 2000
"""Pairs of regions considered for an axis where both regions of a staged plan may be shorter than the axis."""
_COMPARED = 2000
"""Options of an axis that are compared with each other."""
_BLOCK = 64
"""Options that are compared with all that are left at once."""
_MULTIPLES = 40
"""Common multiples of a region and a unit considered."""


@lru_cache(maxsize=1024)
def per_count(n: int, step: int) -> IntArray:
    """The smallest multiple of ``step`` for each number of regions that multiples of it can cut ``n`` elements into.

    There are about ``2 * sqrt(n / step)``, sorted, none longer than ``n``; not to be written to: they are kept. Of more
    than some thousand those that are about evenly spread on a logarithmic scale.

    >>> per_count(100, 10).tolist()
    [10, 20, 30, 40, 50, 100]
    """
    step = min(step, n)
    units = ceil_div(n, step)
    root = math.isqrt(units)
    counts = np.arange(1, root + 2, dtype=np.int64) if root <= _COUNTED else _spaced(root + 1, _COUNTED)
    steps = np.unique(np.concatenate([counts, -(-units // counts)]))
    # of several multiples with the same number of regions the smallest
    steps = -(-units // -(-units // steps))
    sizes = np.unique(_multiples(steps, step, n))
    sizes.flags.writeable = False
    return sizes


def _multiples(counts: IntArray, step: int, n: int) -> IntArray:
    """``counts`` times ``step``, as far as that is no more than ``n``, else ``n``: the product may pass 2**63."""
    whole = n // step
    return np.where(counts > whole, n, np.minimum(counts, whole) * step)


def _spaced(last: int, most: int) -> IntArray:
    """At most ``most`` whole numbers from 1 to ``last``, evenly on a logarithmic scale."""
    spaced = np.geomspace(1, last, most).astype(np.int64)
    spaced[-1] = last
    return np.unique(spaced)


def region_sizes(n: int, read_unit: int, write_unit: int) -> IntArray:
    """Sizes of a region along an axis of ``n`` elements: multiples of ``write_unit``, and ``n``.

    >>> region_sizes(10, 4, 3).tolist()
    [3, 6, 9, 10]
    """
    if ceil_div(n, write_unit) <= _ENUMERATED:
        sizes = np.arange(1, ceil_div(n, write_unit) + 1, dtype=np.int64) * write_unit
    else:
        on_both_grids = per_count(n, math.lcm(read_unit, write_unit))
        above_read_units = _multiples(-(-per_count(n, read_unit) // write_unit), write_unit, n)
        sizes = np.concatenate([per_count(n, write_unit), on_both_grids, above_read_units])
        if ceil_div(n, write_unit) > _COUNTED**2:  # those left out of so many may cut read units evenly
            parts = -(-read_unit // np.arange(1, _PARTS, dtype=np.int64))
            sizes = np.append(sizes, _multiples(-(-parts // write_unit), write_unit, n))
    return np.unique(np.minimum(np.append(sizes, n), n))


def direct_axis(n: int, read_unit: int, write_unit: int, fetch_unit: int, *, uneven: bool = False) -> AxisOptions:
    """Options of one axis for one stage. Factors: region, elements read, fetches, tasks.

    With ``uneven``, a short axis keeps regions that leave a small last task: it may fill a slot that would stand idle.
    """
    sizes = region_sizes(n, read_unit, write_unit)
    sums = _sums_of_source(n, read_unit, fetch_unit, sizes)
    if uneven and len(sizes) <= _UNEVEN:
        return AxisOptions(sizes[None, :], _direct_factors(sizes, sums))
    # A longer region with as many tasks is only worth its memory if it reads less.
    smallest = np.unique(-sums.tasks, return_index=True)[1]
    of_count = np.searchsorted(-sums.tasks[smallest], -sums.tasks)
    better = (sums.elements < sums.elements[smallest][of_count]) | (sums.units < sums.units[smallest][of_count])
    kept = set(smallest.tolist())
    best: dict[int, tuple[float, float]] = {}
    for number in np.flatnonzero(better).tolist():
        count = int(of_count[number])
        elements, units = best.get(count, (math.inf, math.inf))
        if sums.elements[number] < elements or sums.units[number] < units:
            kept.add(number)
            best[count] = (min(elements, sums.elements[number]), min(units, sums.units[number]))
    return AxisOptions(sizes[None, :], _direct_factors(sizes, sums)).take(np.array(sorted(kept)))


def _direct_factors(sizes: IntArray, sums: AxisSums) -> FloatArray:
    return np.stack([sizes.astype(np.float64), sums.elements, sums.units, sums.tasks])


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedAxis:
    """One axis of a staged plan, as given."""

    n: int
    """Elements."""
    read_unit: int
    """Of the source, no longer than the axis."""
    write_unit: int
    """Of the target, no longer than the axis."""
    fetch_unit: int
    """What of the source one operation reads, at least the read unit."""
    most: tuple[float, ...]
    """For each stage, the longest region that the budget leaves, whatever is chosen on the other axes."""


def staged_axis(axis: StagedAxis) -> AxisOptions:
    """Options of one axis for two stages; the factors are those of :func:`with_sums`."""
    if is_short(axis.n, axis.write_unit, 2):
        return with_sums(axis, all_chains(axis.n, axis.write_unit, 2), every=True)
    first = whole_and_parts(axis.n, axis.read_unit)
    second = per_count(axis.n, axis.write_unit)
    first, second = first[first <= axis.most[0]], second[second <= axis.most[1]]
    if (first < axis.n).any() and (second < axis.n).any():
        fewer = min(len(first), len(second), math.isqrt(_PAIRS))
        first, second = spread(first, _PAIRS // fewer), spread(second, _PAIRS // fewer)
    return with_sums(axis, triples(axis, first, second))


def whole_and_parts(n: int, read_unit: int) -> IntArray:
    """Sizes of a first region: whole read units, and a few equal parts of one for budgets near a single chunk."""
    parts = -(-read_unit // np.arange(2, 5, dtype=np.int64))
    return np.unique(np.concatenate([per_count(n, read_unit), parts]))


def is_short(n: int, write_unit: int, stages: int) -> bool:
    """Whether an axis has few enough regions and chunks to try them all."""
    chunks = np.arange(1, min(n, _COMPARED) + 1)
    pairs = int((-(-n // chunks)).sum())
    return bool(pairs ** (stages - 1) * ceil_div(n, write_unit) <= _COMPARED)


def all_chains(n: int, write_unit: int, stages: int) -> IntArray:
    """Every (region, chunk, region, ..., region) of a short axis, in columns.

    >>> all_chains(2, 2, 2).T.tolist()
    [[1, 1, 2], [2, 1, 2], [2, 2, 2]]
    """
    chains: list[tuple[int, ...]] = [(last,) for last in {*range(write_unit, n, write_unit), n}]
    for _ in range(stages - 1):
        pairs = [(region, chunk) for chunk in range(1, n + 1) for region in {*range(chunk, n, chunk), n}]
        chains = [(*pair, *chain) for pair in pairs for chain in chains]
    return np.array(sorted(chains), dtype=np.int64).T


def least_staged_axis(axis: StagedAxis) -> AxisOptions:
    """The options that hold least: single units, or the whole axis. They do not depend on the budget."""
    ends = np.array([axis.read_unit, axis.n]), np.array([axis.write_unit, axis.n])
    options = with_sums(axis, triples(axis, np.unique(ends[0]), np.unique(ends[1])))
    return options.take(np.argsort(options.factors[:2].max(axis=0), kind="stable")[:8])


def triples(axis: StagedAxis, first: IntArray, second: IntArray) -> IntArray:
    """Columns of (first region, intermediate chunk, second region) from sizes for both regions, and multiples of those.

    One region may be a multiple of the other that is not among the sizes: so that prime sizes find company.
    """
    n = axis.n
    g1, g2 = _every_pair(first, second)
    short = (g1 < n) & (g2 < n)
    # regions of whole target units cut source chunks
    whole_units = [_columns(g2 * whole, g2, g2, short & (g1 > g2)) for whole in (g1 // g2, -(-g1 // g2))]
    found = [pairs(n, first, second), *whole_units]
    for whole in (g2 // g1, -(-g2 // g1)):
        parts = g2 // np.maximum(whole, 1)
        found.append(_columns(parts, parts, g2, short & (g1 < g2) & (g2 % np.maximum(whole, 1) == 0)))
    for size in first.tolist():
        if math.lcm(size, axis.write_unit) < n:
            sizes = spread(per_count(n, math.lcm(size, axis.write_unit)), _MULTIPLES)
            same = np.full_like(sizes, size)
            found.append(_columns(same, same, sizes, sizes <= axis.most[1]))
    for size in second.tolist():
        if math.lcm(size, axis.read_unit) < n:
            sizes = spread(per_count(n, math.lcm(size, axis.read_unit)), _MULTIPLES)
            same = np.full_like(sizes, size)
            found.append(_columns(sizes, same, same, sizes <= axis.most[0]))
    return unique_columns(np.minimum(np.concatenate(found, axis=1), n))


def pairs(n: int, first: IntArray, second: IntArray) -> IntArray:
    """Columns of (first region, intermediate chunk, second region), the regions of these sizes and no others.

    >>> pairs(100, np.array([6, 100]), np.array([4])).T.tolist()
    [[6, 2, 4], [6, 3, 4], [6, 6, 4], [100, 4, 4]]
    """
    g1, g2 = _every_pair(first, second)
    short = (g1 < n) & (g2 < n)
    common = np.gcd(g1, g2)
    found = [
        _columns(g1, np.where(g1 >= n, g2, g1), g2, ~short),
        _columns(g1, common, g2, short & (common * 8 >= np.minimum(g1, g2))),
        # the second stage cuts the chunks that the first stage's regions are
        _columns(g1, g1, g2, short & (g1 <= g2)),
    ]
    for pieces in (g1 // g2, -(-g1 // g2)):
        whole = np.maximum(pieces, 1)
        # parts of a region of whole source units are cut later
        found.append(_columns(g1, g1 // whole, g2, short & (g1 > g2) & (g1 % whole == 0)))
    return unique_columns(np.concatenate(found, axis=1))


def _every_pair(first: IntArray, second: IntArray) -> tuple[IntArray, IntArray]:
    return np.repeat(first, len(second)), np.tile(second, len(first))


def unique_columns(columns: IntArray) -> IntArray:
    """The columns in order, each once."""
    columns = columns[:, np.lexsort(columns[::-1])]
    new = np.ones(columns.shape[1], dtype=np.bool_)
    new[1:] = (columns[:, 1:] != columns[:, :-1]).any(axis=0)
    return np.asarray(columns[:, new], dtype=np.int64)


def _columns(first: IntArray, chunk: IntArray, second: IntArray, valid: BoolArray) -> IntArray:
    return np.stack([first[valid], chunk[valid], second[valid]])


def with_sums(axis: StagedAxis, sizes: IntArray, most: int = _COMPARED, *, every: bool = False) -> AxisOptions:
    """About ``most`` options from columns of (region, chunk, region, ..., region), but for those that others beat.

    With ``every``, the columns are all there are.

    Factors: the regions of the stages; for each stage elements read, fetches and tasks; chunks of the intermediates.
    """
    regions, chunks = sizes[0::2], sizes[1::2]
    sums = [axis_sums(axis.n, unit, region) for unit, region in zip(chunks, regions[1:], strict=True)]
    sums.insert(0, _sums_of_source(axis.n, axis.read_unit, axis.fetch_unit, regions[0]))
    factors = [*regions, *(column for one in sums for column in (one.elements, one.units, one.tasks))]
    factors += [-(-axis.n // chunk) for chunk in chunks]
    options = AxisOptions(sizes, np.stack([*map(np.float64, factors)]))
    fits = (regions <= np.reshape(axis.most, (-1, 1))).all(axis=0)
    few = _best_of_cells(options.take(np.flatnonzero(fits)), most)
    # A larger chunk has fewer pieces, but more scratch: where every size is tried, so that a smaller one may fit.
    return _undominated(few, few.sizes[1::2] if every else few.sizes[:0])


def _sums_of_source(n: int, read_unit: int, fetch_unit: int, region: IntArray) -> AxisSums:
    """Elements by read units, and in place of those units the fetches. Read units restart in each fetch unit."""
    sums = axis_sums(n, read_unit, region, fetch_unit if fetch_unit % read_unit and fetch_unit < n else 0)
    return sums if fetch_unit == read_unit else replace(sums, units=axis_sums(n, fetch_unit, region).units)


def _best_of_cells(options: AxisOptions, most: int) -> AxisOptions:
    """About ``most`` options: of those with alike regions, the one that reads least and the one with fewest pieces."""
    if len(options) <= most:
        return options
    stages = len(options.sizes[0::2])
    bytes_read = options.factors[stages : 4 * stages : 3].sum(axis=0)
    pieces = options.factors[stages + 1 : 4 * stages : 3].sum(axis=0) + options.factors[4 * stages :].sum(axis=0)
    cells = cells_of(options.factors[:stages], most // 2)
    kept = [
        order[np.unique(cells[order], return_index=True)[1]]
        for order in (np.lexsort((pieces, bytes_read)), np.lexsort((bytes_read, pieces)))
    ]
    return options.take(np.unique(np.concatenate(kept)))


def _undominated(options: AxisOptions, also: IntArray) -> AxisOptions:
    """The options that no other one equals or beats in every factor, nor in what is given besides."""
    factors = np.concatenate([options.factors, also])
    left = np.argsort(np.log(factors).sum(axis=0), kind="stable")
    values = factors[:, left]
    start = 0
    # who beats another one comes before it, so that it is enough to look at those that come after
    while start < len(left):
        end = min(start + _BLOCK, len(left))
        beaten = np.ones((end - start, len(left) - start), dtype=np.bool_)
        for row in values:
            beaten &= row[start:end, None] <= row[None, start:]
        kept = np.ones(len(left), dtype=np.bool_)
        kept[start:] = ~np.triu(beaten, 1).any(axis=0)
        start += int(kept[start:end].sum())
        left, values = left[kept], values[:, kept]
    return options.take(np.sort(left))


def spread(sizes: IntArray, most: int) -> IntArray:
    """At most ``most`` of sorted sizes, evenly on a logarithmic scale, with the first and the last."""
    if len(sizes) <= most:
        return sizes
    wanted = np.geomspace(sizes[0], sizes[-1], most)
    below = np.searchsorted(sizes, wanted, side="right") - 1
    return np.asarray(sizes[np.unique(below.clip(0))])
