"""What is fetched once and asked for again: indices of shards, tables of blocks. Layer: storage.

All tasks of a process ask for the same few kilobytes before they read. They are kept while there is room for them,
bounded in bytes, so that they are part of what a worker holds whatever its tasks are.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")

KEPT_BYTES = 8 << 20
"""How much one reader keeps, at most. Half of what allocators need for their own; see the memory model."""
_EACH_BYTES = 256
"""What a value takes besides its own bytes."""


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
        What was not asked for the longest time goes first.
    """

    def __init__(
        self, fetch: Callable[[Key], Value], size: Callable[[Value], int], most_bytes: int = KEPT_BYTES
    ) -> None:
        self._fetch, self._size, self._most_bytes = fetch, size, most_bytes
        self._lock = threading.Lock()
        self._values: OrderedDict[Key, Value] = OrderedDict()
        self._turns: dict[Key, threading.Lock] = {}
        self._bytes = 0

    def __call__(self, key: Key) -> Value:
        """Return the value of a key."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
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

    def _keep(self, key: Key, value: Value) -> None:
        self._values[key] = value
        self._bytes += self._size(value) + _EACH_BYTES
        while self._bytes > self._most_bytes and len(self._values) > 1:
            _, old = self._values.popitem(last=False)
            self._bytes -= self._size(old) + _EACH_BYTES
