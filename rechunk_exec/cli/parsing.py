"""What the text of options means. Layer: cli."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click

from rechunk_exec.budget import AUTO, asked_bytes
from rechunk_exec.cost import PRESETS, CostModel
from rechunk_exec.errors import SerializationError

Sizes = tuple[int, ...] | dict[str, int] | dict[int, int]
Parsed = TypeVar("Parsed")

_EXAMPLES = "time=-1,y=64,x=64 nor like -1,64,64"


def parsed_by(parse: Callable[[str], Parsed]) -> Callable[[click.Context, click.Parameter, str | None], Parsed | None]:
    """The callback of an option whose text ``parse`` reads; its ValueError is wrong usage."""

    def callback(ctx: click.Context, param: click.Parameter, text: str | None) -> Parsed | None:
        try:
            return None if text is None else parse(text)
        except ValueError as error:
            raise click.BadParameter(str(error), ctx, param) from error

    return callback


def parse_sizes(text: str) -> Sizes:
    """Sizes by axis, as :func:`rechunk_exec.rechunk` takes them.

    Parameters
    ----------
    text : str
        ``time=-1,y=64,x=64`` by name, ``0=-1,2=64`` by number, or ``-1,64,64`` for all axes in order.

    Raises
    ------
    ValueError
        If it is like neither, or names an axis twice.

    Examples
    --------
    >>> parse_sizes("time=-1,y=64"), parse_sizes("0=-1"), parse_sizes("-1,64")
    ({'time': -1, 'y': 64}, {0: -1}, (-1, 64))
    """
    parts = [part.split("=") for part in text.split(",")]
    axes = [axis.strip() for axis, *_ in parts]
    try:
        sizes = [int(part[-1]) for part in parts]
    except ValueError:
        raise ValueError(f"{text!r} is neither like {_EXAMPLES}") from None
    lengths = {len(part) for part in parts}
    if lengths == {1}:
        return tuple(sizes)
    if lengths != {2} or not all(axes):
        raise ValueError(f"{text!r} is neither like {_EXAMPLES}")
    by_name = dict(zip(axes, sizes, strict=True))
    by_number = {int(axis): size for axis, size in by_name.items() if axis.isdecimal()}
    if len(by_name) < len(axes) or 0 < len(by_number) < len(axes):
        raise ValueError(f"{text!r} names an axis twice, or some by name and some by number")
    return by_number or by_name


def parse_max_mem(text: str) -> int | str:
    """A number of bytes, or ``"auto"``.

    >>> parse_max_mem("2MB"), parse_max_mem("auto")
    (2000000, 'auto')
    """
    return asked_bytes(text) or AUTO


def parse_cost_model(text: str) -> str | CostModel:
    """The name of a preset, or the cost model in a file.

    Raises
    ------
    ValueError
        If it is neither.
    """
    if text in PRESETS:
        return text
    try:
        return CostModel.from_json(Path(text).read_bytes())
    except (OSError, SerializationError) as error:
        raise ValueError(f"{text!r} is none of {', '.join(PRESETS)}, nor a file of a cost model: {error}") from error


def parse_range(text: str) -> range:
    """Numbers of lines, from one to before another, like a slice.

    >>> parse_range("3:7"), parse_range(":2")
    (range(3, 7), range(0, 2))
    """
    first, colon, stop = text.partition(":")
    if not colon or not all(not part or part.isdecimal() for part in (first, stop)):
        raise ValueError(f"{text!r} is not like 0:100, 100: or :100")
    numbers = range(int(first or 0), int(stop) if stop else 2**62)
    if numbers.start >= numbers.stop:
        raise ValueError(f"{text!r} is empty: the second number is the first that is left out")
    return numbers
