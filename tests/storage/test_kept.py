from __future__ import annotations

import threading
import time
from collections.abc import Iterable

import pytest

from rechunk_exec.storage.kept import Kept


def test_what_was_fetched_is_kept() -> None:
    asked: list[int] = []

    def fetch(key: int) -> int:
        asked.append(key)
        return key * 10

    kept = Kept(fetch, lambda value: 8)
    assert [kept(1), kept(2), kept(1)] == [10, 20, 10]
    assert asked == [1, 2]


def asked_for(kept_count: int, keys: Iterable[int]) -> list[int]:
    """The keys that are fetched where there is room for so many values."""
    asked: list[int] = []

    def fetch(key: int) -> bytes:
        asked.append(key)
        return bytes(1000)

    kept = Kept(fetch, len, most_bytes=kept_count * 1512)
    for key in keys:
        kept(key)
        assert kept.held_bytes <= kept_count * 1512
    return asked


def test_many_are_found_of_values_that_are_asked_for_in_a_cycle_longer_than_there_is_room_for() -> None:
    assert len(asked_for(100, [*range(100)] * 10)) == 100
    assert len(asked_for(100, [*range(120)] * 10)) < 120 * 5, "not one was found while the oldest one went"


def test_values_that_are_no_longer_asked_for_give_way() -> None:
    first, then = [*range(100)] * 3, [*range(1000, 1080)] * 20
    asked = asked_for(100, [*first, *then])
    assert len(asked) < 100 + 80 * 6
    assert asked_for(100, [*first, *then]) == asked, "the same in every run"


def test_a_value_larger_than_all_the_room_is_kept_alone() -> None:
    asked: list[int] = []

    def fetch(key: int) -> bytes:
        asked.append(key)
        return bytes(1000)

    kept = Kept(fetch, len, most_bytes=10)
    for key in (1, 1, 2, 2, 1):
        kept(key)
    assert asked == [1, 2, 1]


def test_threads_that_ask_at_once_make_one_request() -> None:
    asked: list[int] = []
    found: list[int] = []

    def fetch(key: int) -> int:
        asked.append(key)
        time.sleep(0.05)
        return key + 1

    kept = Kept(fetch, lambda value: 8)
    threads = [threading.Thread(target=lambda: found.append(kept(5))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (asked, found) == ([5], [6] * 8)


def test_a_failure_is_not_kept() -> None:
    fails = [True]

    def fetch(key: int) -> int:
        if fails.pop() if fails else False:
            raise ValueError("once")
        return key

    kept = Kept(fetch, lambda value: 8)
    with pytest.raises(ValueError, match="once"):
        kept(3)
    assert kept(3) == 3
