"""Combining the options of the axes under a budget. Layer: the planner; imports memory and NumPy.

A combination's sums are the products of its axes' sums (:mod:`rechunk_exec.grid`). So :func:`combine` keeps a table of
partial products, drops what can no longer fit, and if the table grows too long keeps the best of each cell of (memory
of the first stage, memory of the second stage, ...) on a logarithmic scale: a dynamic program over memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rechunk_exec.memory import BoolArray, FloatArray, IntArray

_ROWS = 100_000
"""Combinations weighed at most."""
_KEPT = 500
"""Options of an axis that are combined with those of others, where all combinations would be too many."""


@dataclass(frozen=True, slots=True)
class AxisOptions:
    """What may be chosen along one axis: one column an option."""

    sizes: IntArray
    """Elements: of the first region, the chunk of the first intermediate, the second region, and so on."""
    factors: FloatArray
    """Sums whose products over the axes count. First those that a budget bounds (the regions' elements)."""

    def take(self, kept: IntArray) -> AxisOptions:
        """The options with these numbers."""
        return AxisOptions(self.sizes[:, kept], self.factors[:, kept])

    def __len__(self) -> int:
        return int(self.sizes.shape[1])


def cells_of(bounded: FloatArray, most: int) -> IntArray:
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


def weighted(weights: Sequence[float], products: FloatArray) -> FloatArray:
    """The sum of the weighted factors of each column.

    By :func:`numpy.einsum`, here and below: of sums so short BLAS makes work for threads, which take longer.
    """
    return np.asarray(np.einsum("f,fi->i", weights, products))


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What makes a combination not worth weighing."""

    limits: Sequence[float]
    """Bounds on the products of the first factors."""
    weights: Sequence[float]
    """What each factor's product adds, such as seconds or objects."""
    total: float = math.inf
    """Bound on the sum of those."""
    also: Sequence[tuple[Sequence[float], float]] = ()
    """Other weights, each with a bound on their sum."""

    def keep(self, products: FloatArray) -> BoolArray:
        """Which columns of products of factors have sums within the bounds; the limits aside."""
        kept = weighted(self.weights, products) <= self.total
        for weights, total in self.also:
            kept = kept & (weighted(weights, products) <= total)
        return kept

    def keep_pairs(self, ones: FloatArray, others: FloatArray) -> BoolArray:
        """The same for the product of each column of ``ones`` (down) with each of ``others`` (across)."""
        kept = np.ones((ones.shape[1], others.shape[1]), dtype=np.bool_)
        for weights, total in ((self.weights, self.total), *self.also):
            if total < math.inf:
                # a sum of products rounds in another order than elsewhere
                kept &= np.einsum("f,fi,fj->ij", weights, ones, others) <= total * (1 + 1e-12)
        return kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Combinations:
    """Combinations of options, one an axis."""

    numbers: list[IntArray]
    """Numbers of the options: one array an axis, one entry a combination."""
    weights: FloatArray
    """What the weighted factors of each add up to."""
    complete: bool
    """Whether none were left out that are within the bounds."""

    def first(self, most: int | None) -> Combinations:
        """At most so many, those of the least weights; all of them for None."""
        if most is None or len(self.weights) <= most:
            return self
        least = np.argpartition(self.weights, most)[:most]
        return Combinations(
            numbers=[numbers[least] for numbers in self.numbers], weights=self.weights[least], complete=False
        )


def combine(axes: Sequence[AxisOptions], bounds: Bounds) -> Combinations:
    """The combinations to weigh, or a choice of them where they are too many. There is at least one axis."""
    order = sorted(range(len(axes)), key=lambda axis: len(axes[axis]))
    useful = _within(axes, bounds)
    if min(map(len, useful)) == 0:
        return Combinations(numbers=[np.zeros(0, dtype=np.int64) for _ in axes], weights=np.zeros(0), complete=True)
    shortened = _shorten([axes[axis] for axis in order], [useful[axis] for axis in order], len(bounds.limits))
    complete = all(len(few) == len(useful[axis]) for axis, few in zip(order, shortened, strict=True))
    totals = np.ones((axes[0].factors.shape[0], 1))
    chosen: list[IntArray] = []
    for position, original in enumerate(shortened):
        options = axes[order[position]].take(original)
        later = [
            axes[axis].factors[:, few].min(axis=1, keepdims=True)
            for axis, few in zip(order[position + 1 :], shortened[position + 1 :], strict=True)
        ]
        least = np.prod(later, axis=0) if later else np.ones((totals.shape[0], 1))
        before, here = _products_within(totals, options, least, bounds)
        totals = totals[:, before] * options.factors[:, here]
        times = weighted(bounds.weights, totals * least)
        best = np.flatnonzero(times <= bounds.total)
        if later and len(best) * len(shortened[position + 1]) > _ROWS:
            complete = False
            cells = cells_of(totals[: len(bounds.limits), best], max(500, _ROWS // len(shortened[position + 1])))
            by_time = np.argsort(times[best], kind="stable")
            best = np.sort(best[by_time[np.unique(cells[by_time], return_index=True)[1]]])
        totals, before, here = totals[:, best], before[best], here[best]
        chosen = [numbers[before] for numbers in chosen] + [original[here]]
    return Combinations(
        numbers=[chosen[order.index(axis)] for axis in range(len(axes))],
        weights=weighted(bounds.weights, totals),
        complete=complete,
    )


def _products_within(
    totals: FloatArray, options: AxisOptions, least: FloatArray, bounds: Bounds
) -> tuple[IntArray, IntArray]:
    """Numbers of the totals and of the options whose products keep to the bounds; most do not."""
    kept = bounds.keep_pairs(totals * least, options.factors)
    for total, factor, rest, limit in zip(totals, options.factors, least[:, 0], bounds.limits, strict=False):
        kept &= np.outer(total, factor) * rest <= limit
    before, here = np.nonzero(kept)
    return before, here


def _within(axes: Sequence[AxisOptions], bounds: Bounds) -> list[IntArray]:
    """Numbers of the options of each axis that are within the bounds whatever is chosen on the others."""
    least = [options.factors.min(axis=1, initial=math.inf) for options in axes]
    useful = []
    for axis, options in enumerate(axes):
        others = np.prod([few for other, few in enumerate(least) if other != axis], axis=0)
        products = options.factors * np.reshape(others, (-1, 1))
        fits = bounds.keep(products)
        for product, limit in zip(products, bounds.limits, strict=False):
            fits = fits & (product <= limit)
        useful.append(np.flatnonzero(fits))
    return useful


def thinned(axes: Sequence[AxisOptions], combinations: int, bounded: int) -> list[AxisOptions]:
    """A few options of each axis, those with the least sums, of which there are about so many combinations."""
    most = max(2, int(combinations ** (1 / len(axes))))
    return [options.take(_fewer(options, np.arange(len(options)), most, bounded)) for options in axes]


def _shorten(axes: Sequence[AxisOptions], useful: Sequence[IntArray], bounded: int) -> list[IntArray]:
    """Numbers of the useful options; fewer where all combinations would be many."""
    if len(axes) < 2 or math.prod(len(numbers) for numbers in useful) <= 4 * _ROWS:
        return list(useful)
    return [_fewer(options, numbers, _KEPT, bounded) for options, numbers in zip(axes, useful, strict=True)]


def _fewer(options: AxisOptions, numbers: IntArray, most: int, bounded: int) -> IntArray:
    """Of these options about ``most``: of those that are alike in the bounded factors the one that adds up to least."""
    if len(numbers) <= most:
        return numbers
    factors = options.factors[:, numbers]
    by_weight = np.argsort(factors[bounded:].sum(axis=0), kind="stable")
    cells = cells_of(factors[:bounded], most)
    return numbers[np.sort(by_weight[np.unique(cells[by_weight], return_index=True)[1]])]
