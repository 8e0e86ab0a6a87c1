from __future__ import annotations

import copy
import pickle

import pytest

from rechunk_exec.errors import RechunkError, SerializationError
from rechunk_exec.executors.shared import ARRIVALS, Arrivals, Shared, pack


def test_a_handle_travels_as_a_name() -> None:
    handle = Shared(bytes(1_000_000))
    packed = pack({"handle": handle})
    assert len(packed.data) < 300
    assert packed.handles == (handle,)
    assert handle.value == bytes(1_000_000)


def test_a_handle_finds_what_arrived() -> None:
    handle = Shared([1, 2])
    sent = pickle.dumps(handle)
    with pytest.raises(RechunkError, match="in a process that was not sent the object"):
        _ = pickle.loads(sent).value
    ARRIVALS.keep(handle.token, handle.pack().data)
    first, second = pickle.loads(sent), pickle.loads(sent)
    assert first.value == [1, 2]
    assert first.value is second.value, "it is loaded once"
    ARRIVALS.forget(handle.token)
    assert first.value == [1, 2], "a call that has begun keeps what it uses"
    with pytest.raises(RechunkError, match="not sent"):
        _ = pickle.loads(sent).value


def test_what_is_needed_comes_with_what_that_needs() -> None:
    inner = Shared(1)
    middle = Shared((inner, "middle"))
    other = Shared(2)
    packed = pack([middle, other])
    assert list(packed.needs()) == [inner.token, middle.token, other.token]


def test_copies_of_a_handle_are_the_handle() -> None:
    handle = Shared([1, 2])
    assert copy.copy(handle) is handle
    assert copy.deepcopy({"task": handle})["task"] is handle


def test_an_object_is_packed_once() -> None:
    handle = Shared({"a": 1})
    assert handle.pack() is handle.pack()


def test_what_does_not_pickle() -> None:
    with pytest.raises(SerializationError, match="define functions at a module's top level") as caught:
        pack(lambda: 1)
    assert caught.value.__cause__ is not None


def test_the_least_recently_used_goes_first() -> None:
    arrivals = Arrivals()
    for name in "abc":
        arrivals.keep(name, pickle.dumps(name))
    assert arrivals.find("a") is not None
    arrivals.trim(2)
    assert arrivals.find("b") is None
    assert arrivals.find("a") is not None
    assert arrivals.find("c") is not None
    arrivals.trim(5)
    arrivals.forget("never there")
