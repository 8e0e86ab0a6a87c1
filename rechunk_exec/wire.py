"""Records as JSON and back. Layer: the ground; imports only :mod:`rechunk_exec.errors`.

A record is a frozen dataclass of integers, floats, strings, booleans, ``None``, tuples, string-keyed mappings and other
records. Its document is a JSON object of its fields, plus two members that say what it is::

    {"rechunk_exec": 1, "type": "CopyTask", "stage": 0, "index": 7, ...}

Reading is strict, since a document may have been edited by hand or come from a stranger: unknown and missing members,
wrong types, another version and absurd numbers are refused, all problems at once, each with its place. Reading runs no
code and creates nothing but the record. A record that may hold in a program what it must not hold when it comes from
elsewhere has a method ``check_read``, which is called on what was read, and raises.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from rechunk_exec.errors import RechunkError, SerializationError

VERSION = 1
"""Version of the documents this package writes, and the only one that it reads."""

NO_DOCUMENT: Mapping[str, bool] = types.MappingProxyType({"no_document": True})
"""Metadata of a record's field that has no JSON form: documents leave it out while it holds its default."""

_MAX_INTEGER = 2**63 - 1
_MAX_FLOAT = 1e300
# json has no infinities or NaN; these spell them.
_SPECIAL_FLOATS = {"Infinity": math.inf, "-Infinity": -math.inf, "NaN": math.nan}

_SHARED_AT_MOST = 4096
"""What more there is differs so much that there is little to share."""

Record = TypeVar("Record")


def to_json(record: object) -> str:
    """Return a record as one line of JSON.

    Raises
    ------
    SerializationError
        If a field holds something JSON cannot name, such as a live store; the message says which.
    """
    document = {"rechunk_exec": VERSION, "type": type(record).__name__, **to_document(record)}
    return json.dumps(document, separators=(",", ":"), allow_nan=False)


def from_json(kind: type[Record], text: str | bytes) -> Record:
    """Return the record of class ``kind`` that ``text`` holds.

    Raises
    ------
    SerializationError
        If ``text`` is not JSON, is not a document of this class and version, or has missing, unknown or wrong members.
        The message lists every problem with its place in the document.
    """
    return from_document(kind, parse_document(kind.__name__, text))


def parse_document(name: str, text: str | bytes) -> dict[str, Any]:
    """Return the members of a document of type ``name``, without the two that say what it is; see :func:`from_json`."""
    try:
        document = json.loads(text, object_pairs_hook=_object_without_duplicates)
    except (ValueError, RecursionError) as error:
        raise SerializationError(f"a {name} document must be JSON; got {_shorten(text)}: {error}") from error
    if not isinstance(document, dict):
        raise SerializationError(f"a {name} document must be a JSON object; got {_shorten(text)}")
    version, kind = document.pop("rechunk_exec", None), document.pop("type", None)
    if type(version) is not int or version != VERSION:
        raise SerializationError(
            f"a {name} document must have the member 'rechunk_exec': {VERSION} (its version); "
            f"got {_shorten(version)}; write it again with this version of rechunk_exec"
        )
    if kind != name:
        raise SerializationError(f"the document must be of type {name!r}; got {_shorten(kind)}")
    return document


def to_document(record: object) -> dict[str, Any]:
    """Return a record's fields as values that :mod:`json` can write."""
    if not dataclasses.is_dataclass(record) or isinstance(record, type):
        raise SerializationError(f"only records can be written as JSON; got {record!r}")
    return {
        field.name: _plain(getattr(record, field.name), f"{type(record).__name__}.{field.name}")
        for field in dataclasses.fields(record)
        if field.init and not _left_out(field, record)
    }


def from_document(kind: type[Record], document: Mapping[str, Any]) -> Record:
    """Return the record of class ``kind`` with the members of ``document``; see :func:`from_json`."""
    problems: list[str] = []
    record = _record(kind, document, kind.__name__, problems)
    _refuse(f"a {kind.__name__}", problems)
    return typing.cast(Record, record)


class SharedValues:
    """Numbers and strings of which equal ones are held once.

    >>> values = SharedValues()
    >>> values.once(int("1000")) is values.once(int("1000"))
    True
    """

    def __init__(self) -> None:
        self._values: dict[Any, Any] = {}

    def once(self, value: Any) -> Any:
        """Return the value that is held and equals this one."""
        if len(self._values) < _SHARED_AT_MOST:
            return self._values.setdefault(value, value)
        return self._values.get(value, value)


def to_columns(kind: type[Record], records: Sequence[Record]) -> dict[str, list[Any]]:
    """Return the fields of many records of one class as lists, which take less room than so many documents."""
    fields = _fields(typing.cast(type, kind))
    names, hints = [name for name, _, _ in fields], tuple(hint for _, hint, _ in fields)
    rows = [tuple([getattr(record, name) for name in names]) for record in records]
    columns = list(map(list, zip(*rows, strict=True))) if rows else [[] for _ in names]
    # One look at each row is quicker than many at each column: most tables have one row, and there are many of them.
    if not (all(tuple(map(type, row)) == hints for row in rows) and all(map(_writes_itself, hints, columns))):
        columns = [
            [_plain(value, f"{kind.__name__}.{name}[{row}]") for row, value in enumerate(column)]
            for name, column in zip(names, columns, strict=True)
        ]
    return dict(zip(names, columns, strict=True))


def from_columns(kind: type[Record], columns: object) -> list[Record]:
    """Return the records that :func:`to_columns` made lists of; as strict as :func:`from_document`, and much faster.

    Raises
    ------
    SerializationError
        If the lists are not as long as each other, or there are missing, unknown or wrong ones.
    """
    problems: list[str] = []
    fields = _fields(typing.cast(type, kind))
    if not isinstance(columns, dict) or not all(isinstance(column, list) for column in columns.values()):
        raise SerializationError(f"columns must be an object of lists; got {_shorten(columns)}")
    problems += [f"column {name} is unknown" for name in columns if name not in {field[0] for field in fields}]
    problems += [f"column {name} is missing" for name, _, required in fields if required and name not in columns]
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        problems.append(f"columns must be as long as each other; got {_shorten(lengths)}")
    _refuse(f"a table of {kind.__name__}", problems)
    checked = {name: _column(hint, columns[name], name, problems) for name, hint, _ in fields if name in columns}
    _refuse(f"a table of {kind.__name__}", problems)
    names = tuple(checked)
    try:
        return [kind(**dict(zip(names, row, strict=True))) for row in zip(*checked.values(), strict=True)]
    except (RechunkError, ValueError, TypeError) as error:
        raise SerializationError(f"a table of {kind.__name__} must hold such records: {error}") from error


def _writes_itself(hint: Any, column: Sequence[Any]) -> bool:
    """Whether :mod:`json` writes values of this class as they are to be written."""
    return hint is int or hint is str or (hint is float and all(map(math.isfinite, column)))


def _refuse(what: str, problems: Sequence[str]) -> None:
    if problems:
        rest = f"; and {len(problems) - 20} more" if len(problems) > 20 else ""
        raise SerializationError(
            f"the document is not {what}: {'; '.join(problems[:20])}{rest}; write it again with rechunk_exec"
        )


def _column(hint: Any, column: list[Any], name: str, problems: list[str]) -> list[Any]:
    """Return the values of a list, each checked as :func:`_value` does; quickly where they are plain."""
    kinds = set(map(type, column))
    if kinds == {hint}:
        if hint is str or (hint is int and min(column) >= -_MAX_INTEGER and max(column) <= _MAX_INTEGER):
            return list(map(SharedValues().once, column))
        if hint is float and all(map(math.isfinite, column)) and max(map(abs, column)) < _MAX_FLOAT:
            return column
    return [_value(hint, value, f"{name}[{row}]", problems) for row, value in enumerate(column)]


def _left_out(field: dataclasses.Field[Any], record: object) -> bool:
    return bool(field.metadata.get("no_document")) and getattr(record, field.name) == field.default


def _object_without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"member given twice: {next(name for name in names if names.count(name) > 1)!r}")
    return document


def holds(figure: float) -> bool:
    """Whether documents hold a number as it is: what is larger is refused when they are read.

    >>> holds(2**63 - 1), holds(2**63), holds(math.inf)
    (True, False, False)
    """
    return abs(figure) <= _MAX_INTEGER if isinstance(figure, int) else abs(figure) < _MAX_FLOAT


def _plain(value: object, place: str) -> Any:
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if math.isfinite(value):
            return float(value)
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, (tuple, list)):
        return [_plain(item, f"{place}[{number}]") for number, item in enumerate(value)]
    if isinstance(value, Mapping):
        return {str(key): _plain(item, f"{place}[{key!r}]") for key, item in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return to_document(value)
    raise SerializationError(
        f"{place} must be something that JSON can name; got a {type(value).__name__}; "
        "such a task travels by pickle (or cloudpickle) only: give a path or URL to have it as JSON"
    )


@functools.cache
def _fields(kind: type) -> tuple[tuple[str, Any, bool], ...]:
    hints = typing.get_type_hints(kind)
    return tuple(
        (
            field.name,
            hints[field.name],
            field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING,
        )
        for field in dataclasses.fields(kind)
        if field.init and not field.metadata.get("no_document")
    )


def _record(kind: type, document: object, place: str, problems: list[str]) -> object:
    if not isinstance(document, Mapping):
        problems.append(f"{place} must be an object; got {_shorten(document)}")
        return None
    fields = _fields(kind)
    before = len(problems)
    problems += [f"{place}.{name} is unknown" for name in document if name not in {field[0] for field in fields}]
    values = {}
    for name, hint, required in fields:
        if name in document:
            values[name] = _value(hint, document[name], f"{place}.{name}", problems)
        elif required:
            problems.append(f"{place}.{name} is missing")
    if len(problems) > before:
        return None
    try:
        record = kind(**values)
        check = getattr(record, "check_read", None)
        if check is not None:
            check()
        return record
    except (RechunkError, ValueError, TypeError) as error:
        problems.append(f"{place}: {error}")
        return None


def _value(hint: Any, value: object, place: str, problems: list[str]) -> object:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _one_of(arguments, value, place, problems)
    if origin is typing.Literal:
        if value in arguments and type(value) in {type(argument) for argument in arguments}:
            return value
    elif origin is tuple and isinstance(value, list):
        return _tuple(arguments, value, place, problems)
    elif origin is not None and isinstance(origin, type) and issubclass(origin, Mapping) and isinstance(value, dict):
        return {key: _value(arguments[1], item, f"{place}[{key!r}]", problems) for key, item in value.items()}
    elif isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _record(hint, value, place, problems)
    elif hint is float and not isinstance(value, bool):
        if isinstance(value, str) and value in _SPECIAL_FLOATS:
            return _SPECIAL_FLOATS[value]
        if isinstance(value, (int, float)) and abs(value) < _MAX_FLOAT:
            return float(value)
    elif hint is int and type(value) is int:
        if -_MAX_INTEGER <= value <= _MAX_INTEGER:
            return value
        problems.append(f"{place} must be an integer of at most 63 bits; got one of {value.bit_length()} bits")
        return None
    elif (hint in (bool, str) and type(value) is hint) or (hint is type(None) and value is None):
        return value
    problems.append(f"{place} must be {_describe(hint)}; got {_shorten(value)}")
    return None


def _one_of(hints: tuple[Any, ...], value: object, place: str, problems: list[str]) -> object:
    for hint in hints:
        if hint is object:  # a live object, which has no JSON form
            continue
        attempt: list[str] = []
        result = _value(hint, value, place, attempt)
        if not attempt:
            return result
    problems.append(f"{place} must be {' or '.join(_describe(hint) for hint in hints)}; got {_shorten(value)}")
    return None


def _tuple(hints: tuple[Any, ...], value: list[Any], place: str, problems: list[str]) -> tuple[object, ...]:
    if len(hints) == 2 and hints[1] is Ellipsis:
        hints = (hints[0],) * len(value)
    if len(hints) != len(value):
        problems.append(f"{place} must have {len(hints)} items; got {len(value)}")
        return ()
    return tuple(
        _value(hint, item, f"{place}[{number}]", problems)
        for number, (hint, item) in enumerate(zip(hints, value, strict=True))
    )


def _describe(hint: Any) -> str:
    names = {int: "an integer", float: "a number", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(hint) or str(getattr(hint, "__name__", hint))


def _shorten(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
