"""Who is next on a device, and what is on it at once. Layer: executors.

:class:`DeviceQueue` gathers the pieces of work of a worker's threads into batches that fit the device's budget, which
is apart from the worker's own: a batch is what is in flight. What a device does with a batch is its
:class:`DeviceBackend`'s business, and in the tests that is one that counts bytes.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from rechunk_exec.errors import RechunkError, StorageError
from rechunk_exec.sizes import format_bytes

Direction = Literal["decode", "encode"]


@dataclass(slots=True, eq=False)
class Piece:
    """One stream to decode, or some bytes to encode."""

    direction: Direction
    algorithm: str
    content: memoryview
    out: memoryview | None = None
    """Where a decoded stream goes."""
    encoded: bytes = b""
    """What became of the bytes."""
    error: Exception | None = None
    done: bool = False
    device_bytes: int = field(default=0)
    """What it holds on the device at most."""


class DeviceBackend(Protocol):
    """A device as a library drives it. Used by one thread at a time."""

    def largest_bytes(self, algorithm: str) -> int:
        """Return the most decoded bytes of a chunk that it decodes and encodes; 0: not by this algorithm."""

    def device_bytes(self, chunk_bytes: int) -> int:
        """Return the most that one piece of a chunk of so many decoded bytes holds on the device."""

    def run(self, pieces: Sequence[Piece]) -> None:
        """Decode or encode pieces of one direction and algorithm: fill their ``out``, or set their ``encoded``."""


class DeviceQueue:
    """A device as codecs see it: pieces come from several threads, and go in batches that fit its budget.

    One batch is on the device at a time. While it is, pieces of other threads wait, and go together in the next one,
    first come first served.

    Parameters
    ----------
    backend : DeviceBackend
    budget_bytes : int
        What may be on the device at once.
    algorithms : sequence of str
        What to take of what the backend can.
    """

    def __init__(self, backend: DeviceBackend, budget_bytes: int, algorithms: Sequence[str]) -> None:
        self._backend = backend
        self._budget_bytes = budget_bytes
        self._algorithms = frozenset(algorithms)
        self._lock = threading.Lock()
        self._device = threading.Lock()
        self._waiting: deque[Piece] = deque()

    def takes(self, algorithm: str, chunk_bytes: int) -> bool:
        """Whether a chunk of so many bytes is one for the device."""
        return (
            algorithm in self._algorithms
            and chunk_bytes <= self._backend.largest_bytes(algorithm)
            and self._backend.device_bytes(chunk_bytes) <= self._budget_bytes
        )

    def in_flight(self, chunk_bytes: int) -> int:
        """Return how many pieces of chunks of so many bytes the budget holds at once."""
        return self._budget_bytes // self._backend.device_bytes(chunk_bytes)

    def decode(self, algorithm: str, stream: memoryview, out: memoryview) -> None:
        """Decode a stream into ``out``."""
        self._do(Piece("decode", algorithm, stream, out, device_bytes=self._backend.device_bytes(len(out))))

    def encode(self, algorithm: str, content: memoryview) -> bytes:
        """Return the stream of some bytes."""
        piece = Piece("encode", algorithm, content, device_bytes=self._backend.device_bytes(len(content)))
        self._do(piece)
        return piece.encoded

    def _do(self, piece: Piece) -> None:
        if piece.device_bytes > self._budget_bytes:
            raise StorageError(
                f"a piece must fit the device's budget of {format_bytes(self._budget_bytes)}; got one of "
                f"{format_bytes(piece.device_bytes)}; give a larger device_max_mem",
                permanent=True,
            )
        with self._lock:
            self._waiting.append(piece)
        with self._device:
            if not piece.done:  # else it went with the batch of the thread before
                self._run(self._batch(piece))
        if piece.error is not None:
            raise piece.error

    def _batch(self, first: Piece) -> list[Piece]:
        """Take a piece out of the queue, and those that can go with it."""
        with self._lock:
            self._waiting.remove(first)
            batch, held = [first], first.device_bytes
            for piece in list(self._waiting):
                alike = (piece.direction, piece.algorithm) == (first.direction, first.algorithm)
                if alike and held + piece.device_bytes <= self._budget_bytes:
                    self._waiting.remove(piece)
                    batch.append(piece)
                    held += piece.device_bytes
            return batch

    def _run(self, batch: Sequence[Piece]) -> None:
        try:
            self._backend.run(batch)
        except Exception as error:  # noqa: BLE001 - raised in the threads whose pieces they are
            if len(batch) > 1:  # one that is damaged must not take the others with it
                for piece in batch:
                    self._run([piece])
                return
            batch[0].error = error if isinstance(error, RechunkError) else _failed(batch[0], error)
        for piece in batch:
            piece.done = True


def _failed(piece: Piece, error: Exception) -> StorageError:
    failure = StorageError(f"a device could not {piece.direction} {piece.algorithm}: {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure
