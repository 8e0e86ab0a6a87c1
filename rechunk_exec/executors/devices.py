"""Devices without a device: which there are, what each may hold, and who is next. Layer: executors.

Nothing here starts CUDA. :func:`visible_devices` says which devices a pool pins its workers to; :class:`DeviceQueue`
gathers the pieces of work of a worker's threads into batches that fit the device's budget, which is apart from the
worker's own: a batch is what is in flight. What a device does with a batch is its :class:`DeviceBackend`'s business,
and in the tests that is one that counts bytes.
"""

from __future__ import annotations

import ctypes
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from rechunk_exec.errors import PlanError, RechunkError, StorageError
from rechunk_exec.sizes import format_bytes

VISIBLE = "CUDA_VISIBLE_DEVICES"
"""The variable that CUDA reads once, when it starts in a process."""
_SHARE = 0.8
"""Of a device's memory, what a pool takes if it is not told: CUDA itself and others need some."""

Direction = Literal["decode", "encode"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundDevice:
    """A device of this machine."""

    name: str
    """What pins a process to it, whatever the order of devices: a UUID."""
    total_bytes: int
    """Its memory."""


def visible_devices(environment: Mapping[str, str], found: Sequence[FoundDevice]) -> tuple[str, ...]:
    """Return what to pin workers to: the devices that this process may see, in order.

    As CUDA reads the variable: what comes after an entry that is no device does not count.

    Examples
    --------
    >>> two = [FoundDevice(name=name, total_bytes=1) for name in ("GPU-a", "GPU-b")]
    >>> visible_devices({}, two), visible_devices({"CUDA_VISIBLE_DEVICES": "1,-1,0"}, two)
    (('GPU-a', 'GPU-b'), ('1',))
    """
    if VISIBLE not in environment:
        return tuple(device.name for device in found)
    names: list[str] = []
    for entry in environment[VISIBLE].split(","):
        name = entry.strip()
        if not (name.startswith(("GPU-", "MIG-")) or (name.isdigit() and int(name) < len(found))):
            break
        names.append(name)
    return tuple(names)


def device_budget(asked: int | None, found: Sequence[FoundDevice]) -> int:
    """Return how many bytes a worker may hold on its device: what was asked for, else a share of the smallest.

    Raises
    ------
    PlanError
        If no device has as much, or there is none to take a share of.
    """
    least = min((device.total_bytes for device in found), default=0)
    if asked is None:
        if not least:
            raise PlanError("device_max_mem must be given where no device tells its memory; got None")
        return int(least * _SHARE)
    if least and asked > least:
        raise PlanError(
            f"device_max_mem must be no more than a device has; got {format_bytes(asked)} of {format_bytes(least)}"
        )
    return asked


def nvml_devices() -> tuple[FoundDevice, ...]:
    """Return the NVIDIA devices of this machine, as its driver tells them without starting CUDA; none without one.

    Uses the `NVIDIA Management Library <https://docs.nvidia.com/deploy/nvml-api/>`_, which comes with the driver.
    """
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        if nvml.nvmlInit_v2():
            return ()
    except (OSError, AttributeError):
        return ()
    try:
        count = ctypes.c_uint()
        if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)):
            return ()
        return tuple(device for number in range(count.value) if (device := _nvml_device(nvml, number)) is not None)
    finally:
        nvml.nvmlShutdown()


class _NvmlMemory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


def _nvml_device(nvml: ctypes.CDLL, number: int) -> FoundDevice | None:
    handle, name, memory = ctypes.c_void_p(), ctypes.create_string_buffer(96), _NvmlMemory()
    if (
        nvml.nvmlDeviceGetHandleByIndex_v2(number, ctypes.byref(handle))
        or nvml.nvmlDeviceGetUUID(handle, name, len(name))
        or nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory))
    ):
        return None
    return FoundDevice(name=name.value.decode(), total_bytes=memory.total)


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
