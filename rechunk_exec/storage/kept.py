"""What is fetched once and asked for again: indices of shards, tables of blocks. Layer: storage.

All tasks of a process ask for the same few kilobytes before they read. They are kept while there is room for them,
bounded in bytes, so that they are part of what a worker holds whatever its tasks are.

Where there is too little room, a value that is drawn goes. Tasks ask in a cycle: each for the tables of the same chunks
in the same order. What was not asked for the longest time is then just what is asked for next, and of twice as many
values as there is room for, none would ever be found; of those drawn, some are. Tasks that move on to other chunks
find the values of those soon kept as well.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")

KEPT_BYTES = 8 << 20
"""How much one reader keeps, at most. Half of what allocators need for their own; see the memory model."""
_EACH_BYTES = 512
"""What a value takes besides its own bytes: its key, the objects around both, their places in tables."""


def kept_bytes(count: int, size: int) -> int:
    """Bytes that a reader comes to keep of ``count`` values of ``size`` bytes each.

    >>> kept_bytes(10, 488), kept_bytes(10**6, 488) == KEPT_BYTES
    (10000, True)
    """
    return min(KEPT_BYTES, count * (size + _EACH_BYTES))


class Kept(Generic[Key, Value]):
    """Values by key, fetched when they are first asked for. Safe to use from several threads.

    Parameters
    ----------
    fetch : callable
        Returns the value of a key. Two threads that ask for one key at once make one request; what it raises is not
        kept.
    size : callable
        Returns how many bytes a value holds.
    most_bytes : int
        The bound on what is kept; but a value larger than that is kept alone.
    """

    def __init__(
        self, fetch: Callable[[Key], Value], size: Callable[[Value], int], most_bytes: int = KEPT_BYTES
    ) -> None:
        self._fetch, self._size, self._most_bytes = fetch, size, most_bytes
        self._lock = threading.Lock()
        self._values: dict[Key, Value] = {}
        self._keys: list[Key] = []
        self._random = random.Random(0)  # the same draws in every run
        self._turns: dict[Key, threading.Lock] = {}
        self._bytes = 0

    def __call__(self, key: Key) -> Value:
        """Return the value of a key."""
        with self._lock:
            if key in self._values:
                return self._values[key]
            turn = self._turns.setdefault(key, threading.Lock())
        with turn:
            with self._lock:
                if key in self._values:
                    return self._values[key]
            try:
                value = self._fetch(key)
                with self._lock:
                    self._keep(key, value)
            finally:
                with self._lock:
                    self._turns.pop(key, None)
        return value

    def known(self, key: Key) -> Value | None:
        """Return the value of a key if it is kept."""
        with self._lock:
            return self._values.get(key)

    @property
    def held_bytes(self) -> int:
        """Bytes that are kept, as they are counted."""
        return self._bytes

    def _keep(self, key: Key, value: Value) -> None:
        size = self._size(value) + _EACH_BYTES
        while self._keys and self._bytes + size > self._most_bytes:
            drawn = self._random.randrange(len(self._keys))
            self._keys[drawn], self._keys[-1] = self._keys[-1], self._keys[drawn]
            self._bytes -= self._size(self._values.pop(self._keys.pop())) + _EACH_BYTES
        self._values[key] = value
        self._keys.append(key)
        self._bytes += size
