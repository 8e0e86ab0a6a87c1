"""Bytes that grow, against a bytearray."""

from __future__ import annotations

import mmap
import random
from typing import Any

import numpy as np
import pytest

from rechunk_exec.storage.growing import GrowingBytes


class Fixed(mmap.mmap):
    """A mapping of a system that moves none."""

    def resize(self, newsize: int) -> None:
        raise SystemError(f"mmap: resizing to {newsize} not available")


@pytest.mark.parametrize("movable", [True, False])
@pytest.mark.parametrize("largest", [50, 90_000, 3_000_000])
def test_whatever_is_added_is_there(monkeypatch: pytest.MonkeyPatch, largest: int, *, movable: bool) -> None:
    if not movable:
        monkeypatch.setattr(mmap, "mmap", Fixed)
    draw = random.Random(largest)
    content, expected = GrowingBytes(), bytearray()
    for number in range(40):
        size = draw.randrange(largest)
        kind = draw.choice(("add", "reserve", "put"))
        if kind == "reserve":
            assert content.reserve(size) == len(expected)
            expected += bytes(size)
        elif kind == "add":
            part = bytes([number + 1]) * size
            assert content.add(part if number % 2 else memoryview(part)) == len(expected)
            expected += part
        elif expected:
            start = draw.randrange(len(expected))
            part = bytes([100 + number]) * min(size, len(expected) - start)
            content.put(part, start)
            expected[start : start + len(part)] = part
        assert len(content) == len(expected)
    assert bytes(content.view()) == expected


def test_elements_count_by_their_bytes() -> None:
    content = GrowingBytes()
    numbers = np.arange(7, dtype="<u4")
    assert content.add(numbers.data) == 0
    assert (len(content), bytes(content.view())) == (28, numbers.tobytes())


def test_small_content_takes_little_more_than_its_bytes() -> None:
    """A store in memory keeps what it is given: room that was made for more would stay with each object."""
    content = GrowingBytes()
    for _ in range(500):
        content.add(bytes(1000))
    view = content.view()
    assert isinstance(view.obj, bytearray)
    assert view.obj.__sizeof__() < 1.2 * len(content)


@pytest.mark.parametrize("size", [10, 5_000_000])
def test_a_view_keeps_what_was_let_go(size: int) -> None:
    content: Any = GrowingBytes()
    content.add(bytes([3]) * size)
    view = content.view()
    content.clear()
    assert len(content) == 0
    assert content.add(b"new") == 0
    assert bytes(view) == bytes([3]) * size
