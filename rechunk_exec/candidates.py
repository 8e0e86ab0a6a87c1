"""Which regions and intermediate chunks are worth weighing. Layer: the planner; imports grid and NumPy.

Region sizes are chosen axis by axis and combined under the budget. Along one axis:

* *One stage* (:func:`direct_axis`): multiples of the write unit, and the whole axis. For each number of tasks only the
  sizes that no smaller one beats in elements and units read are kept, so nothing that could win is lost.
* *Two stages* (:func:`staged_axis`): triples of the first region, the intermediate chunk and the second region. The
  first region is a whole number of chunks, or the axis. Where one region spans the axis the chunk is the other region.
  Where both are shorter the chunk is their greatest common divisor if that is not small beside them; else one region is
  made a multiple of the other, or the chunk is cut by a region's edge and the second reading of it is counted. So prime
  sizes never make tiny chunks.

A combination's sums are the products of its axes' sums (:mod:`rechunk_exec.grid`). So :func:`combine` keeps a table of
partial products, drops what can no longer fit, and if the table grows too long keeps the best of each cell of (memory
of the first stage, memory of the second stage) on a logarithmic scale: a dynamic program over memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rechunk_exec.grid import axis_sums, ceil_div
from rechunk_exec.memory import BoolArray, FloatArray, IntArray

_ENUMERATED = 2048
"""Up to so many write units along an axis, every region size is considered; above, those of :func:`per_count`."""
_ROWS = 100_000
"""Combinations weighed at most."""
_PAIRS = 2000
"""Pairs of regions considered for an axis where both regions of a staged plan may be shorter than the axis."""
_COMPARED = 2000
"""Options of an axis that are compared with each other."""
_KEPT = 500
"""Options of an axis that are combined with those of others, where all combinations would be too many."""
_MULTIPLES = 40
"""Common multiples of a region and a unit considered."""


@dataclass(frozen=True, slots=True)
class AxisOptions:
    """What may be chosen along one axis: one column an option."""

    sizes: IntArray
    """Elements: of the region; or of the first region, the intermediate chunk and the second region."""
    factors: FloatArray
    """Sums whose products over the axes count. First those that a budget bounds (the regions' elements)."""

    def take(self, kept: IntArray) -> AxisOptions:
        """The options with these numbers."""
        return AxisOptions(self.sizes[:, kept], self.factors[:, kept])

    def __len__(self) -> int:
        return int(self.sizes.shape[1])


def per_count(n: int, step: int) -> IntArray:
    """The smallest multiple of ``step`` for each number of regions that multiples of it can cut ``n`` elements into.

    There are about ``2 * sqrt(n / step)``, sorted, none longer than ``n``.

    >>> per_count(100, 10).tolist()
    [10, 20, 30, 40, 50, 100]
    """
    units = ceil_div(n, step)
    root = math.isqrt(units)
    counts = np.arange(1, root + 2, dtype=np.int64)
    steps = np.unique(np.concatenate([counts, -(-units // counts)]))
    # of several multiples with the same number of regions the smallest
    steps = -(-units // -(-units // steps))
    return np.unique(np.minimum(steps * step, n))


def region_sizes(n: int, read_unit: int, write_unit: int) -> IntArray:
    """Sizes of a region along an axis of ``n`` elements: multiples of ``write_unit``, and ``n``.

    >>> region_sizes(10, 4, 3).tolist()
    [3, 6, 9, 10]
    """
    if ceil_div(n, write_unit) <= _ENUMERATED:
        sizes = np.arange(1, ceil_div(n, write_unit) + 1, dtype=np.int64) * write_unit
    else:
        on_both_grids = per_count(n, math.lcm(read_unit, write_unit))
        above_read_units = -(-per_count(n, read_unit) // write_unit) * write_unit
        sizes = np.concatenate([per_count(n, write_unit), on_both_grids, above_read_units])
    return np.unique(np.minimum(np.append(sizes, n), n))


def direct_axis(n: int, read_unit: int, write_unit: int) -> AxisOptions:
    """Options of one axis for one stage. Factors: region, elements read, units read, tasks."""
    sizes = region_sizes(n, read_unit, write_unit)
    sums = axis_sums(n, read_unit, sizes)
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
    factors = np.stack([sizes.astype(np.float64), sums.elements, sums.units, sums.tasks])
    return AxisOptions(sizes[None, :], factors).take(np.array(sorted(kept)))


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedAxis:
    """One axis of a staged plan, as given."""

    n: int
    """Elements."""
    read_unit: int
    """Of the source, no longer than the axis."""
    write_unit: int
    """Of the target, no longer than the axis."""
    most_first: float
    """The longest first region that the budget leaves, whatever is chosen on the other axes."""
    most_second: float


def staged_axis(axis: StagedAxis) -> AxisOptions:
    """Options of one axis for two stages.

    Factors: first region, second region, elements and units read by the first stage, intermediate chunks, elements and
    units read by the second stage, tasks of the first stage, of the second.
    """
    chunks = np.arange(1, min(axis.n, _COMPARED) + 1)
    if (-(-axis.n // chunks)).sum() * ceil_div(axis.n, axis.write_unit) <= _COMPARED:
        return _with_sums(axis, _all_triples(axis))
    first = _whole_and_parts(axis.n, axis.read_unit)
    second = per_count(axis.n, axis.write_unit)
    first, second = first[first <= axis.most_first], second[second <= axis.most_second]
    if (first < axis.n).any() and (second < axis.n).any():
        fewer = min(len(first), len(second), math.isqrt(_PAIRS))
        first, second = _spread(first, _PAIRS // fewer), _spread(second, _PAIRS // fewer)
    return _with_sums(axis, _triples(axis, first, second))


def _whole_and_parts(n: int, read_unit: int) -> IntArray:
    """Sizes of a first region: whole read units, and a few equal parts of one for budgets near a single chunk."""
    parts = -(-read_unit // np.arange(2, 5, dtype=np.int64))
    return np.unique(np.concatenate([per_count(n, read_unit), parts]))


def _all_triples(axis: StagedAxis) -> IntArray:
    """Every (first region, intermediate chunk, second region) of a short axis."""
    n = axis.n
    columns = [
        (first, chunk, second)
        for chunk in range(1, n + 1)
        for first in {*range(chunk, n, chunk), n}
        for second in {*range(axis.write_unit, n, axis.write_unit), n}
    ]
    return np.array(sorted(columns), dtype=np.int64).T


def least_staged_axis(axis: StagedAxis) -> AxisOptions:
    """The options that hold least: single units, or the whole axis. They do not depend on the budget."""
    ends = np.array([axis.read_unit, axis.n]), np.array([axis.write_unit, axis.n])
    options = _with_sums(axis, _triples(axis, np.unique(ends[0]), np.unique(ends[1])))
    return options.take(np.argsort(options.factors[:2].max(axis=0), kind="stable")[:8])


def _triples(axis: StagedAxis, first: IntArray, second: IntArray) -> IntArray:
    """Columns of (first region, intermediate chunk, second region) from sizes for both regions."""
    n = axis.n
    g1, g2 = (grid.ravel() for grid in np.meshgrid(first, second, indexing="ij"))
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
        # regions of whole target units cut source chunks; parts of a region of whole source units are cut later
        found += [_columns(g2 * whole, g2, g2, short & (g1 > g2))]
        found += [_columns(g1, g1 // whole, g2, short & (g1 > g2) & (g1 % whole == 0))]
    for pieces in (g2 // g1, -(-g2 // g1)):
        whole = np.maximum(pieces, 1)
        found += [_columns(g2 // whole, g2 // whole, g2, short & (g1 < g2) & (g2 % whole == 0))]
    for size in first.tolist():
        if math.lcm(size, axis.write_unit) < n:
            sizes = _spread(per_count(n, math.lcm(size, axis.write_unit)), _MULTIPLES)
            same = np.full_like(sizes, size)
            found.append(_columns(same, same, sizes, sizes <= axis.most_second))
    for size in second.tolist():
        if math.lcm(size, axis.read_unit) < n:
            sizes = _spread(per_count(n, math.lcm(size, axis.read_unit)), _MULTIPLES)
            same = np.full_like(sizes, size)
            found.append(_columns(sizes, same, same, sizes <= axis.most_first))
    triples = np.minimum(np.concatenate(found, axis=1), n)
    return np.asarray(np.unique(triples, axis=1), dtype=np.int64)


def _columns(first: IntArray, chunk: IntArray, second: IntArray, valid: BoolArray) -> IntArray:
    return np.stack([first[valid], chunk[valid], second[valid]])


def _with_sums(axis: StagedAxis, triples: IntArray) -> AxisOptions:
    first, chunk, second = triples
    reading = axis_sums(axis.n, axis.read_unit, first)
    rereading = axis_sums(axis.n, chunk, second)
    chunks = (-(-axis.n // chunk)).astype(np.float64)
    factors = [first, second, reading.elements, reading.units, chunks, rereading.elements, rereading.units]
    options = AxisOptions(triples, np.stack([*map(np.float64, factors), reading.tasks, rereading.tasks]))
    fits = (first <= axis.most_first) & (second <= axis.most_second)
    return _undominated(_best_of_cells(options.take(np.flatnonzero(fits)), _COMPARED))


def _best_of_cells(options: AxisOptions, most: int) -> AxisOptions:
    """About ``most`` options: of those with alike regions, the one that reads least and the one with fewest pieces."""
    if len(options) <= most:
        return options
    bytes_read, pieces = options.factors[[2, 5]].sum(axis=0), options.factors[[3, 4, 6]].sum(axis=0)
    cells = _cells(options.factors[:2], most // 2)
    kept = [
        order[np.unique(cells[order], return_index=True)[1]]
        for order in (np.lexsort((pieces, bytes_read)), np.lexsort((bytes_read, pieces)))
    ]
    return options.take(np.unique(np.concatenate(kept)))


def _undominated(options: AxisOptions) -> AxisOptions:
    """The options that no other one equals or beats in every factor."""
    left = np.argsort(np.log(options.factors).sum(axis=0), kind="stable")
    values = options.factors[:, left]
    number = 0
    while number < len(left):
        kept = np.asarray((values < values[:, number : number + 1]).any(axis=0))
        kept[number] = True
        left, values = left[kept], values[:, kept]
        number = int(kept[:number].sum()) + 1
    return options.take(np.sort(left))


def _spread(sizes: IntArray, most: int) -> IntArray:
    """At most ``most`` of sorted sizes, evenly on a logarithmic scale, with the first and the last."""
    if len(sizes) <= most:
        return sizes
    wanted = np.geomspace(sizes[0], sizes[-1], most)
    below = np.searchsorted(sizes, wanted, side="right") - 1
    return np.asarray(sizes[np.unique(below.clip(0))])


def _cells(bounded: FloatArray, most: int) -> IntArray:
    """A cell number for each column, of about ``most`` cells that are even on a logarithmic scale."""
    logs = np.log2(bounded)
    logs = logs - logs.min(axis=1, keepdims=True)
    spans = np.maximum(logs.max(axis=1), 1e-9)
    sides = (spans / spans.max() > 1e-6).sum()
    per_octave = (most / np.prod(spans[spans / spans.max() > 1e-6])) ** (1 / sides)
    cells: IntArray = np.zeros(bounded.shape[1], dtype=np.int64)
    for row, span in zip(logs, spans, strict=True):
        places = np.floor(row * per_octave).astype(np.int64)
        cells = cells * (int(span * per_octave) + 2) + places
    return cells


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What makes a combination not worth weighing."""

    limits: Sequence[float]
    """Bounds on the products of the first factors."""
    weights: Sequence[float]
    """Seconds that each factor's product adds."""
    seconds: float = math.inf
    """Bound on the sum of those."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Combinations:
    """Combinations of options, one an axis."""

    numbers: list[IntArray]
    """Numbers of the options: one array an axis, one entry a combination."""
    complete: bool
    """Whether none were left out that are within the bounds."""


def combine(axes: Sequence[AxisOptions], bounds: Bounds) -> Combinations:
    """The combinations to weigh, or a choice of them where they are too many. There is at least one axis."""
    order = sorted(range(len(axes)), key=lambda axis: len(axes[axis]))
    if min(len(axis) for axis in axes) == 0:
        return Combinations(numbers=[np.zeros(0, dtype=np.int64) for _ in axes], complete=True)
    useful = _within(axes, bounds)
    shortened = _shorten([axes[axis] for axis in order], [useful[axis] for axis in order], len(bounds.limits))
    complete = all(len(few) == len(useful[axis]) for axis, few in zip(order, shortened, strict=True))
    totals = np.ones((axes[0].factors.shape[0], 1))
    chosen: list[IntArray] = []
    for position, original in enumerate(shortened):
        options = axes[order[position]].take(original)
        later = [
            axes[axis].factors[:, few].min(axis=1, keepdims=True, initial=math.inf)
            for axis, few in zip(order[position + 1 :], shortened[position + 1 :], strict=True)
        ]
        least = np.prod(later, axis=0) if later else np.ones((totals.shape[0], 1))
        before, here = _products_within(totals, options, least, bounds)
        totals = totals[:, before] * options.factors[:, here]
        times = np.array(bounds.weights) @ (totals * least)
        best = np.flatnonzero(times <= bounds.seconds)
        if later and len(best) * len(shortened[position + 1]) > _ROWS:
            complete = False
            cells = _cells(totals[: len(bounds.limits), best], max(500, _ROWS // len(shortened[position + 1])))
            by_time = np.argsort(times[best], kind="stable")
            best = np.sort(best[by_time[np.unique(cells[by_time], return_index=True)[1]]])
        totals, before, here = totals[:, best], before[best], here[best]
        chosen = [numbers[before] for numbers in chosen] + [original[here]]
    return Combinations(numbers=[chosen[order.index(axis)] for axis in range(len(axes))], complete=complete)


def _products_within(
    totals: FloatArray, options: AxisOptions, least: FloatArray, bounds: Bounds
) -> tuple[IntArray, IntArray]:
    """Numbers of the totals and of the options whose products keep to the limits; most do not."""
    kept: BoolArray | None = None
    for total, factor, rest, limit in zip(totals, options.factors, least[:, 0], bounds.limits, strict=False):
        within = np.outer(total, factor) * rest <= limit
        kept = within if kept is None else kept & within
    before, here = np.nonzero(np.ones((totals.shape[1], len(options))) if kept is None else kept)
    return before, here


def _within(axes: Sequence[AxisOptions], bounds: Bounds) -> list[IntArray]:
    """Numbers of the options of each axis that are within the bounds whatever is chosen on the others."""
    least = [options.factors.min(axis=1) for options in axes]
    useful = []
    for axis, options in enumerate(axes):
        others = np.prod([few for other, few in enumerate(least) if other != axis], axis=0)
        products = options.factors * np.reshape(others, (-1, 1))
        fits = np.array(bounds.weights) @ products <= bounds.seconds
        for product, limit in zip(products, bounds.limits, strict=False):
            fits = fits & (product <= limit)
        useful.append(np.flatnonzero(fits))
    return useful


def _shorten(axes: Sequence[AxisOptions], useful: Sequence[IntArray], bounded: int) -> list[IntArray]:
    """Numbers of the useful options; fewer where all combinations would be many."""
    if len(axes) < 2 or math.prod(len(numbers) for numbers in useful) <= 4 * _ROWS:
        return list(useful)
    shortened = []
    for options, numbers in zip(axes, useful, strict=True):
        few = numbers
        if len(numbers) > _KEPT:
            factors = options.factors[:, numbers]
            by_weight = np.argsort(factors[bounded:].sum(axis=0), kind="stable")
            cells = _cells(factors[:bounded], _KEPT)
            few = numbers[np.sort(by_weight[np.unique(cells[by_weight], return_index=True)[1]])]
        shortened.append(few)
    return shortened
