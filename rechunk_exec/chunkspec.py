"""Loose chunk and shard arguments made exact. Layer: beside the planner; pure arithmetic.

======================  ==============================================================================================
what is given           what it means
======================  ==============================================================================================
``None``                keep the current chunk (of a shard: one chunk)
an integer              that many elements; longer than the axis means the axis
``-1``                  the whole axis
``"auto"``              as long as ``target_bytes`` allows, shared evenly by all such axes (chunks only)
one of these            for every axis
a tuple or list         one of these for each axis
a dict                  one of these by axis name or number; axes not named are ``None``. A name that several axes have
                        is refused
======================  ==============================================================================================
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any, SupportsIndex

import numpy as np

from rechunk_exec.errors import PlanError
from rechunk_exec.grid import ceil_div

AxisSpec = SupportsIndex | str | None
ChunkSpec = AxisSpec | Sequence[AxisSpec] | Mapping[Any, AxisSpec]

AUTO = "auto"
AUTO_BYTES = 16 * 2**20
"""Raw bytes of a chunk with ``"auto"`` axes, where no ``target_bytes`` is given: 16 MiB."""
_FORMS = "give an integer of at least 1, -1 for the whole axis, None to keep it"


def resolve_chunks(  # noqa: PLR0913 - one argument for each thing that sizes depend on
    spec: ChunkSpec,
    *,
    shape: tuple[int, ...],
    itemsize: int,
    current: tuple[int, ...],
    names: Sequence[str | None] | None = None,
    target_bytes: int | None = None,
) -> tuple[int, ...]:
    """Exact chunk shape from what a user gave.

    Parameters
    ----------
    spec : int, str, None, tuple, list or dict
        See the module.
    shape, current : tuple of int
        Elements of the array and of its current chunk.
    itemsize : int
        Bytes of one element.
    names : sequence of str or None, optional
        Names of the axes.
    target_bytes : int, optional
        Goal for the chunk's raw bytes, for ``"auto"`` axes; :data:`AUTO_BYTES` by default. The chunk has between half
        and all of it, unless the array is smaller or its other axes alone pass it.

    Returns
    -------
    tuple of int
        Elements along every axis, at least 1 and, unless an axis has no elements, no longer than the axis.

    Raises
    ------
    PlanError
        If a size is no such thing, or an axis is not there.

    Examples
    --------
    >>> resolve_chunks({"x": 5}, shape=(20, 10), itemsize=4, current=(2, 5), names=("y", "x"))
    (2, 5)
    >>> resolve_chunks((-1, "auto", "auto"), shape=(8760, 721, 1440), itemsize=4, current=(1, 721, 1440),
    ...                target_bytes=16_000_000)
    (8760, 21, 21)
    """
    wanted = _per_axis(spec, "chunks", len(shape), names)
    sizes: list[int | None] = []
    for axis, (size, n, kept) in enumerate(zip(wanted, shape, current, strict=True)):
        if size == AUTO:
            sizes.append(None)
        else:
            exact = kept if size is None else _whole_or_exact(size, n, f"chunk of axis {_label(axis, names)}", _FORMS)
            sizes.append(min(exact, max(n, 1)))
    goal = (AUTO_BYTES if target_bytes is None else target_bytes) // itemsize
    return _fill(sizes, shape, goal)


def resolve_shards(
    spec: ChunkSpec,
    *,
    shape: tuple[int, ...],
    chunk: tuple[int, ...],
    names: Sequence[str | None] | None = None,
) -> tuple[int, ...] | None:
    """Exact shard shape from what a user gave; None where no shards are asked for.

    A shard holds whole chunks. One that reaches the end of an axis is as long as the chunks that cover the axis, which
    may be longer than the axis.

    Parameters
    ----------
    spec : int, None, tuple, list or dict
        See the module.
    shape, chunk : tuple of int
        Elements of the array, and of a chunk as :func:`resolve_chunks` returns it.
    names : sequence of str or None, optional
        Names of the axes.

    Raises
    ------
    PlanError
        If a shard would hold parts of chunks; the message names the nearest shards that would not.

    Examples
    --------
    >>> resolve_shards({"time": -1}, shape=(10, 100), chunk=(3, 20), names=("time", "x"))
    (12, 20)
    """
    if spec is None:
        return None
    sizes, nearest, wrong = [], [], []
    for axis, (size, n, c) in enumerate(zip(_per_axis(spec, "shards", len(shape), names), shape, chunk, strict=True)):
        exact = c if size is None else _whole_or_exact(size, n, f"shard of axis {_label(axis, names)}", _FORMS)
        if exact >= n:
            exact = max(1, ceil_div(n, c)) * c
        elif exact % c:
            below, above = exact // c * c, min(exact // c + 1, ceil_div(n, c)) * c
            nearest.append(f"{below} or {above}" if below else f"{above}")
            wrong.append(_label(axis, names))
        sizes.append(exact)
    if wrong:
        swapped = all(s <= c and c % s == 0 for s, c in zip(sizes, chunk, strict=True))
        hint = "; chunks and shards look swapped: a shard is the larger, and holds chunks" if swapped else ""
        lengths = "; ".join(f"axis {axis}: {values}" for axis, values in zip(wrong, nearest, strict=True))
        raise PlanError(
            f"a shard holds a whole number of chunks on every axis; got shard {tuple(sizes)} for chunk {chunk}{hint}; "
            f"the nearest valid lengths are {lengths}"
        )
    return tuple(sizes)


def exact_sizes(spec: int | Sequence[int], *, shape: tuple[int, ...], name: str) -> tuple[int, ...]:
    """Sizes as they are stored: integers of at least 1 or -1, which may be longer than the axis.

    >>> exact_sizes((1, -1), shape=(4, 6), name="source_chunks")
    (1, 6)
    """
    wanted = _per_axis(spec, name, len(shape), None)
    forms = "give an integer of at least 1, or -1 for the whole axis"
    return tuple(
        _whole_or_exact(size, n, f"{name} of axis {axis}", forms)
        for axis, (size, n) in enumerate(zip(wanted, shape, strict=True))
    )


def _per_axis(spec: ChunkSpec, what: str, ndim: int, names: Sequence[str | None] | None) -> list[AxisSpec]:
    """What is given for each axis."""
    if isinstance(spec, bytes):
        raise PlanError(f"{what} are sizes, one for each axis; got the bytes {spec!r}")
    if isinstance(spec, np.ndarray) and spec.ndim == 1:
        spec = spec.tolist()
    if isinstance(spec, Mapping):
        return _by_axis(spec, what, ndim, names)
    if isinstance(spec, str) or not isinstance(spec, Sequence):
        return [spec] * ndim
    if len(spec) != ndim:
        raise PlanError(f"{what} need one size for each axis; got {len(spec)} ({spec!r}) for {ndim} axes")
    return list(spec)


def _by_axis(
    spec: Mapping[str, AxisSpec] | Mapping[int, AxisSpec], what: str, ndim: int, names: Sequence[str | None] | None
) -> list[AxisSpec]:
    axes: dict[str, list[int]] = {}
    for axis, name in enumerate(names or ()):
        if name is not None:
            axes.setdefault(name, []).append(axis)
    given: dict[int, AxisSpec] = {}
    for key, size in spec.items():
        if isinstance(size, (Mapping, list, tuple)):
            raise PlanError(
                f"{what} of a single array are sizes by axis; got {dict(spec)!r}, which gives {key!r} the form that "
                f"arrays of a group take; give one size for each axis, as in {{{key!r}: 100}}"
            )
        found = axes.get(key, []) if isinstance(key, str) else _axis_number(key, ndim)
        if not found:
            named = f"named {', '.join(map(repr, axes))} and " if axes else ""
            raise PlanError(
                f"{what} name an axis that is not there; got {key!r}; the axes are {named}numbered 0 to {ndim - 1}"
            )
        if len(found) > 1:
            raise PlanError(
                f"{what} name one axis each; got {key!r}, which is the name of the axes {', '.join(map(str, found))}; "
                f"give their numbers, as in {{{found[0]}: {size!r}}}, or a size for each axis"
            )
        (axis,) = found
        if axis in given:
            raise PlanError(f"{what} give each axis one size; got two for axis {_label(axis, names)} in {dict(spec)!r}")
        given[axis] = size
    return [given.get(axis) for axis in range(ndim)]


def _axis_number(key: object, ndim: int) -> list[int]:
    try:
        axis = operator.index(key)  # type: ignore[arg-type]
    except TypeError:
        return []
    return [axis] if 0 <= axis < ndim and not isinstance(key, bool) else []


def _whole_or_exact(size: AxisSpec, n: int, what: str, forms: str) -> int:
    """``size`` as an integer; -1 is the whole axis."""
    try:
        exact = operator.index(size)  # type: ignore[arg-type]
    except TypeError:
        exact = 0
    if isinstance(size, bool) or (exact < 1 and exact != -1):
        raise PlanError(f"the {what} must be a number of elements; got {size!r}; {forms}")
    return max(n, 1) if exact == -1 else exact


def _label(axis: int, names: Sequence[str | None] | None) -> str:
    name = names[axis] if names else None
    return str(axis) if name is None else repr(name)


def _fill(sizes: Sequence[int | None], shape: tuple[int, ...], goal: int) -> tuple[int, ...]:
    """Lengths for the axes that are None: alike, as long as the chunk has at most ``goal`` elements."""
    chunk = [1 if size is None else size for size in sizes]
    room = max(1, goal // math.prod(chunk))
    # The shortest axes first: what an axis is too short to take goes to the others.
    axes = sorted((axis for axis, size in enumerate(sizes) if size is None), key=lambda axis: (shape[axis], axis))
    for taken, axis in enumerate(axes):
        chunk[axis] = max(1, min(shape[axis], _root(room, len(axes) - taken)))
        room //= chunk[axis]
    return tuple(chunk)


def _root(number: int, degree: int) -> int:
    """The largest integer whose power is at most ``number``; integers only, so that every machine agrees.

    >>> _root(456, 2), _root(1000, 3), _root(999, 3)
    (21, 10, 9)
    """
    low, high = 1, number
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if middle**degree <= number else (low, middle - 1)
    return low
