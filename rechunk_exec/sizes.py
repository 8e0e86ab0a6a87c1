"""Numbers of bytes as people write them. Layer: the ground, beside :mod:`rechunk_exec.errors`.

Units follow IEC 80000-13: ``kB``, ``MB``, ``GB`` are powers of 1000, ``KiB``, ``MiB``, ``GiB`` powers of 1024. Case
does not matter.
"""

from __future__ import annotations

import operator
import re
from decimal import Decimal
from typing import SupportsIndex

from rechunk_exec.errors import PlanError

_PREFIXES = "kmgtpe"
_UNITS = (
    {"": 1, "b": 1}
    | {f"{p}b": 1000 ** (i + 1) for i, p in enumerate(_PREFIXES)}
    | {f"{p}ib": 1024 ** (i + 1) for i, p in enumerate(_PREFIXES)}
)
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?(?:e[+]?[0-9]{1,2})?|\.[0-9]+)\s*([a-z]*)\s*", re.ASCII | re.IGNORECASE)
_LIMIT = 1 << 63
"""Documents hold integers below this, and no machine has as many bytes."""
_REMEDY = "give an integer of bytes or a string such as '8GB' (10**9 based) or '8GiB' (2**30 based)"


def parse_bytes(size: str | SupportsIndex | float, *, name: str = "max_mem", at_least: int = 1) -> int:
    """Number of bytes from an integer or a string with a unit.

    Parameters
    ----------
    size : str, int or float
        Such as ``8_000_000_000``, ``8e9``, ``"8GB"``, ``"1.5 GiB"``. A float must be a whole number. A string may come
        out between two bytes and is rounded down.
    name : str
        What the size is, for messages.
    at_least : int
        The smallest size, in bytes, that is taken.

    Returns
    -------
    int
        At least ``at_least``, and below 2**63.

    Raises
    ------
    PlanError
        If it is none of these, smaller, or larger.

    Examples
    --------
    >>> parse_bytes("8GB"), parse_bytes("1 GiB"), parse_bytes(1000)
    (8000000000, 1073741824, 1000)
    """
    amount = _bytes_of_text(size, name) if isinstance(size, str) else _bytes_of_number(size, name)
    if amount < at_least:
        least = "one byte" if at_least == 1 else f"{at_least} bytes"
        raise PlanError(f"{name} must be at least {least}; got {size!r}; {_REMEDY}")
    if amount >= _LIMIT:
        raise PlanError(f"{name} must be less than 2**63 bytes; got {Decimal(amount):.3g} bytes; {_REMEDY}")
    return amount


def _bytes_of_text(size: str, name: str) -> int:
    found = _SIZE.fullmatch(size)
    unit = found[2].lower() if found else ""
    if not found or unit not in _UNITS:
        raise PlanError(f"{name} must be a number of bytes; got {size!r}; {_REMEDY}")
    return int(Decimal(found[1]) * _UNITS[unit])


def _bytes_of_number(size: SupportsIndex | float, name: str) -> int:
    if isinstance(size, bool):
        raise PlanError(f"{name} must be a number of bytes; got {size!r}; {_REMEDY}")
    if isinstance(size, float) and size.is_integer():
        return int(size)
    try:
        return operator.index(size)  # type: ignore[arg-type]
    except TypeError:
        raise PlanError(f"{name} must be a whole number of bytes; got {size!r}; {_REMEDY}") from None


def format_bytes(size: int) -> str:
    """A size for people, in powers of 1000, with three figures.

    >>> format_bytes(999), format_bytes(1_607_467_008), format_bytes(8_000_000_000)
    ('999 B', '1.61 GB', '8 GB')
    """
    if size < 1000:
        return f"{size} B"
    thousands = next((k for k in range(1, len(_PREFIXES)) if size < 999.5 * 1000**k), len(_PREFIXES))
    amount, prefix = size / 1000**thousands, _PREFIXES[thousands - 1]
    figures = f"{amount:.3g}" if amount < 999.5 else f"{amount:.0f}"
    return f"{figures} {prefix if prefix == 'k' else prefix.upper()}B"


def bytes_text(size: int) -> str:
    """A size for people, with the exact number, to be copied, where it has more than three figures.

    >>> bytes_text(999), bytes_text(128_000), bytes_text(1_607_467_008)
    ('999 B', '128 kB (128000 bytes)', '1.61 GB (1607467008 bytes)')
    """
    return format_bytes(size) if size < 1000 else f"{format_bytes(size)} ({size} bytes)"


def count_text(number: int, noun: str, form: str = "d") -> str:
    """A count with its noun, whose plural ends in s.

    >>> count_text(1, "task"), count_text(12000, "task"), count_text(12000, "task", ",")
    ('1 task', '12000 tasks', '12,000 tasks')
    """
    return f"{number:{form}} {noun}" if number == 1 else f"{number:{form}} {noun}s"
