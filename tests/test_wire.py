from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rechunk_exec import wire
from rechunk_exec.errors import SerializationError


@dataclass(frozen=True, slots=True, kw_only=True)
class Single:
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    """A record in a record."""

    number: int
    name: str = "plain"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outer:
    """Every kind of member."""

    count: int
    ratio: float
    text: str
    flag: bool
    kind: Literal["a", "b"]
    sizes: tuple[int, ...]
    pair: tuple[int, str]
    inner: Inner
    many: tuple[Inner, ...] = ()
    maybe: int | None = None
    options: Mapping[str, str | int | float | bool | None] = field(default_factory=dict)
    store: str | object = ""


integers = st.integers(-(2**63) + 1, 2**63 - 1)
floats = st.floats(allow_nan=False).filter(lambda number: math.isinf(number) or abs(number) < 1e300)
names = st.text(max_size=8)
inners = st.builds(Inner, number=integers, name=names)
scalars = st.one_of(names, integers, floats.filter(math.isfinite), st.booleans(), st.none())
outers = st.builds(
    Outer,
    count=integers,
    ratio=floats,
    text=names,
    flag=st.booleans(),
    kind=st.sampled_from(["a", "b"]),
    sizes=st.lists(integers, max_size=4).map(tuple),
    pair=st.tuples(integers, names),
    inner=inners,
    many=st.lists(inners, max_size=3).map(tuple),
    maybe=st.none() | integers,
    options=st.dictionaries(names, scalars, max_size=3),
    store=names,
)

PLAIN = Outer(count=7, ratio=0.5, text="é", flag=True, kind="a", sizes=(1, 2), pair=(3, "x"), inner=Inner(number=4))


def document(**members: Any) -> dict[str, Any]:
    return {**json.loads(wire.to_json(PLAIN)), **members}


def problems_of(**members: Any) -> str:
    with pytest.raises(SerializationError) as caught:
        wire.from_json(Outer, json.dumps(document(**members)))
    return str(caught.value)


@given(outers)
def test_records_come_back_as_they_were(record: Outer) -> None:
    text = wire.to_json(record)
    found = wire.from_json(Outer, text)
    assert found == record
    assert "\n" not in text
    assert [type(value) for value in found.options.values()] == [type(value) for value in record.options.values()]
    assert wire.from_json(Outer, text.encode()) == record


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan, 0.0, -0.0, 1, 1e299])
def test_special_numbers(number: float) -> None:
    record = Outer(count=0, ratio=number, text="", flag=False, kind="b", sizes=(), pair=(0, ""), inner=Inner(number=0))
    found = wire.from_json(Outer, wire.to_json(record)).ratio
    assert type(found) is float
    assert str(found) == str(float(number))


def test_a_document_says_what_it_is_and_its_version() -> None:
    members = json.loads(wire.to_json(PLAIN))
    assert (members["rechunk_exec"], members["type"]) == (1, "Outer")
    assert members["inner"] == {"number": 4, "name": "plain"}


@pytest.mark.parametrize("version", [0, 2, "1", 1.0, True, None, [1], {}])
def test_another_version_is_refused(version: Any) -> None:
    assert "'rechunk_exec': 1 (its version)" in problems_of(rechunk_exec=version)


def test_a_document_without_a_version_or_of_another_type_is_refused() -> None:
    members = document()
    del members["rechunk_exec"]
    with pytest.raises(SerializationError, match=r"got None; write it again"):
        wire.from_json(Outer, json.dumps(members))
    with pytest.raises(SerializationError, match="must be of type 'Inner'; got 'Outer'"):
        wire.from_json(Inner, wire.to_json(PLAIN))
    assert "must be of type 'Outer'; got ['Outer']" in problems_of(type=["Outer"])


@pytest.mark.parametrize(
    "text",
    ["", "{", "nonsense", "[1]", "5", '"Outer"', "null", b"\xff\xfe", "[" * 100_000, '{"a": 1' + "0" * 5000 + "}"],
    ids=lambda text: str(text)[:12],
)
def test_what_is_no_document_is_refused(text: Any) -> None:
    with pytest.raises(SerializationError, match="a Outer document must be") as caught:
        wire.from_json(Outer, text)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "members,problem",
    [
        ({"extra": 1}, "Outer.extra is unknown"),
        ({"inner": {"number": 1, "nmae": "x"}}, "Outer.inner.nmae is unknown"),
        ({"inner": {}}, "Outer.inner.number is missing"),
        ({"inner": 5}, "Outer.inner must be an object"),
        ({"inner": None}, "Outer.inner must be an object"),
        ({"count": True}, "Outer.count must be an integer; got True"),
        ({"count": 1.0}, "Outer.count must be an integer; got 1.0"),
        ({"count": "1"}, "Outer.count must be an integer; got '1'"),
        ({"count": None}, "Outer.count must be an integer; got None"),
        ({"count": 2**63}, "Outer.count must be an integer of at most 63 bits; got one of 64 bits"),
        ({"count": -(2**200)}, "Outer.count must be an integer of at most 63 bits"),
        ({"ratio": True}, "Outer.ratio must be a number"),
        ({"ratio": "0.5"}, "Outer.ratio must be a number"),
        ({"ratio": 1e300}, "Outer.ratio must be a number"),
        ({"ratio": 10**400}, "Outer.ratio must be a number"),
        ({"text": 5}, "Outer.text must be a string"),
        ({"flag": 1}, "Outer.flag must be true or false"),
        ({"flag": "true"}, "Outer.flag must be true or false"),
        ({"kind": "c"}, "Outer.kind must be"),
        ({"kind": 1}, "Outer.kind must be"),
        ({"kind": []}, "Outer.kind must be"),
        ({"sizes": [1, "2"]}, "Outer.sizes[1] must be an integer"),
        ({"sizes": [1, True]}, "Outer.sizes[1] must be an integer"),
        ({"sizes": 5}, "Outer.sizes must be"),
        ({"sizes": "12"}, "Outer.sizes must be"),
        ({"sizes": {"0": 1}}, "Outer.sizes must be"),
        ({"pair": [1]}, "Outer.pair must have 2 items; got 1"),
        ({"pair": [1, 2]}, "Outer.pair[1] must be a string"),
        ({"many": [{"number": 1}, {"number": "x"}]}, "Outer.many[1].number must be an integer"),
        ({"many": {}}, "Outer.many must be"),
        ({"maybe": "x"}, "Outer.maybe must be an integer or null"),
        ({"options": []}, "Outer.options must be"),
        ({"options": {"a": [1]}}, "Outer.options['a'] must be"),
        ({"options": {"a": {"b": 1}}}, "Outer.options['a'] must be"),
        ({"store": 5}, "Outer.store must be a string"),
    ],
    ids=str,
)
def test_members_edited_by_hand_are_told_with_their_place(members: dict[str, Any], problem: str) -> None:
    assert problem in problems_of(**members)


def test_nan_and_infinity_as_bare_words_are_refused() -> None:
    for word in ("NaN", "Infinity", "-Infinity"):
        with pytest.raises(SerializationError, match=r"Outer.ratio must be a number"):
            wire.from_json(Outer, json.dumps(document()).replace("0.5", word))


def test_a_member_given_twice_is_refused() -> None:
    text = json.dumps(document())
    with pytest.raises(SerializationError, match="member given twice: 'count'"):
        wire.from_json(Outer, text[:-1] + ', "count": 8}')
    with pytest.raises(SerializationError, match="member given twice: 'number'"):
        wire.from_json(Outer, text.replace('"number": 4', '"number": 4, "number": 5'))


def test_all_problems_are_told_at_once() -> None:
    message = problems_of(count="x", flag=2, extra=1, inner={"number": None, "more": 1})
    for place in ("Outer.count", "Outer.flag", "Outer.extra", "Outer.inner.number", "Outer.inner.more"):
        assert place in message
    assert "more;" not in message


def test_very_many_problems_are_counted() -> None:
    message = problems_of(sizes=["x"] * 1000)
    assert "Outer.sizes[19]" in message
    assert "and 980 more" in message
    assert len(message) < 3000


def test_missing_members_are_told_and_defaults_are_taken() -> None:
    members = document()
    for name in ("many", "maybe", "options", "store"):
        del members[name]
    assert wire.from_json(Outer, json.dumps(members)) == PLAIN
    for name in ("count", "pair"):
        del members[name]
    with pytest.raises(SerializationError, match=r"Outer.count is missing; Outer.pair is missing"):
        wire.from_json(Outer, json.dumps(members))


def test_what_the_record_itself_refuses_is_told_with_its_place() -> None:
    @dataclass(frozen=True)
    class Positive:
        number: int

        def __post_init__(self) -> None:
            if self.number < 0:
                raise ValueError("must be positive")

    with pytest.raises(SerializationError, match="Positive: must be positive"):
        wire.from_json(Positive, '{"rechunk_exec":1,"type":"Positive","number":-1}')


@pytest.mark.parametrize("value", [object(), {1, 2}, b"x", 1j, len, Inner], ids=lambda value: type(value).__name__)
def test_what_json_cannot_name_is_told_with_its_place(value: Any) -> None:
    record = Outer(
        count=0, ratio=0, text="", flag=False, kind="a", sizes=(), pair=(0, ""), inner=Inner(number=0), store=value
    )
    with pytest.raises(SerializationError, match=r"Outer.store must be .* JSON can name; got a .*pickle"):
        wire.to_json(record)
    nested = Outer(count=0, ratio=0, text="", flag=False, kind="a", sizes=(), pair=(0, ""), inner=Inner(number=value))
    with pytest.raises(SerializationError, match=r"Inner.number must be"):
        wire.to_json(nested)


def test_only_records_are_written() -> None:
    for value in ({"a": 1}, 5, Inner, None):
        with pytest.raises(SerializationError, match="only records"):
            wire.to_document(value)


@given(st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3)))
def test_any_json_is_read_or_refused_by_us(value: Any) -> None:
    for text in (json.dumps(value), json.dumps({"rechunk_exec": 1, "type": "Outer", "count": value, "inner": value})):
        with pytest.raises(SerializationError):
            wire.from_json(Outer, text)


# Many records as columns.


@given(st.lists(outers, max_size=4))
def test_records_come_back_from_columns(records: list[Outer]) -> None:
    columns = json.loads(json.dumps(wire.to_columns(Outer, records)))
    assert wire.from_columns(Outer, columns) == records
    assert len(columns) == 12


@given(st.lists(outers, min_size=1, max_size=3), st.data())
def test_columns_are_as_strict_as_documents(records: list[Outer], data: st.DataObject) -> None:
    columns = json.loads(json.dumps(wire.to_columns(Outer, records)))
    name = data.draw(st.sampled_from(sorted(columns)))
    row = data.draw(st.integers(0, len(records) - 1))
    odd: Any = data.draw(
        st.sampled_from([None, True, 0, -1, 2**63, 1.5, math.nan, 1e301, "", "NaN", [], [1], {}, {"number": 1}])
    )
    columns[name][row] = odd
    document = {column: values[row] for column, values in columns.items()}
    try:
        expected = wire.from_document(Outer, document)
    except SerializationError:
        with pytest.raises(SerializationError, match=rf"{name}\[{row}\]"):
            wire.from_columns(Outer, columns)
    else:
        assert repr(wire.from_columns(Outer, columns)[row]) == repr(expected)


def test_a_column_with_a_default_may_be_missing_and_no_other() -> None:
    columns = wire.to_columns(Inner, [Inner(number=1), Inner(number=2)])
    assert wire.from_columns(Inner, {"number": columns["number"]}) == [Inner(number=1), Inner(number=2)]
    with pytest.raises(SerializationError, match="column number is missing"):
        wire.from_columns(Inner, {"name": columns["name"]})


def test_records_of_one_field_have_one_column() -> None:
    records = [Single(number=5), Single(number=7)]
    columns = wire.to_columns(Single, records)
    assert columns == {"number": [5, 7]}
    assert wire.from_columns(Single, columns) == records


@pytest.mark.parametrize("columns", [None, [], "x", {"number": 5}, {"number": "12"}, {"number": {"0": 1}}], ids=str)
def test_columns_that_are_no_lists_are_refused(columns: object) -> None:
    with pytest.raises(SerializationError, match="an object of lists"):
        wire.from_columns(Inner, columns)


def test_a_record_has_a_say_when_it_is_read() -> None:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Careful:
        number: int

        def check_read(self) -> None:
            if self.number > 9:
                raise SerializationError("not from a stranger")

    assert wire.from_json(Careful, wire.to_json(Careful(number=9))).number == 9
    with pytest.raises(SerializationError, match="Careful: not from a stranger"):
        wire.from_json(Careful, wire.to_json(Careful(number=10)))


def test_records_that_refuse_their_values_are_refused_in_columns_too() -> None:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Even:
        number: int

        def __post_init__(self) -> None:
            if self.number % 2:
                raise ValueError(f"{self.number} is odd")

    assert len(wire.from_columns(Even, {"number": [0, 2, 4]})) == 3
    with pytest.raises(SerializationError, match="a table of Even must hold such records: 3 is odd"):
        wire.from_columns(Even, {"number": [0, 3, 4]})
