"""Which devices, how much of each, and whose turn: with a device that counts bytes."""

from __future__ import annotations

import os
import threading

import pytest

from rechunk_exec.errors import PlanError, StorageError
from rechunk_exec.executors.devicequeue import DeviceQueue
from rechunk_exec.executors.devices import FoundDevice, device_budget, nvml_devices, visible_devices
from tests.executors.fakedevice import FakeBackend

FOUND = [FoundDevice(name=f"GPU-{letter}", total_bytes=size) for letter, size in (("a", 1000), ("b", 500), ("c", 800))]


@pytest.mark.parametrize(
    "variable, names",
    [
        (None, ("GPU-a", "GPU-b", "GPU-c")),
        ("2, 0", ("2", "0")),
        ("", ()),
        ("-1", ()),
        ("1,-1,0", ("1",)),
        ("0,3,1", ("0",)),
        ("NoDevFiles", ()),
        ("GPU-xyz,MIG-1/2", ("GPU-xyz", "MIG-1/2")),
    ],
)
def test_visible_devices(variable: str | None, names: tuple[str, ...]) -> None:
    assert visible_devices({} if variable is None else {"CUDA_VISIBLE_DEVICES": variable}, FOUND) == names


def test_budgets() -> None:
    assert device_budget(None, FOUND) == 400
    assert device_budget(500, FOUND) == 500
    with pytest.raises(PlanError, match="got 501 B of 500 B"):
        device_budget(501, FOUND)
    with pytest.raises(PlanError, match="must be given"):
        device_budget(None, [])
    assert device_budget(10**12, []) == 10**12


def test_a_machine_without_the_driver_has_no_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr("ctypes.CDLL", missing)
    assert nvml_devices() == ()


def contents(count: int, size: int = 1000) -> list[bytes]:
    return [bytes([number]) * (size // 2) + os.urandom(size // 2) for number in range(count)]


def all_at_once(queue: DeviceQueue, pieces: list[bytes]) -> list[bytes | Exception]:
    """What encoding, then decoding, gives for each piece, one thread a piece."""
    results: list[bytes | Exception] = [b""] * len(pieces)
    barrier = threading.Barrier(len(pieces))

    def work(number: int) -> None:
        try:
            barrier.wait()
            stream = queue.encode("zstd", memoryview(pieces[number]))
            out = bytearray(len(pieces[number]))
            queue.decode("zstd", memoryview(stream), memoryview(out))
            results[number] = bytes(out)
        except Exception as error:  # noqa: BLE001 - looked at by the test
            results[number] = error

    threads = [threading.Thread(target=work, args=[number]) for number in range(len(pieces))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_pieces_of_several_threads_go_in_batches_within_the_budget() -> None:
    backend = FakeBackend()
    queue = DeviceQueue(backend, 7000, ["zstd"])
    # The first piece is done when all the others wait.
    backend.first_waits_for = lambda: len(queue._waiting) == 7
    pieces = contents(8)
    assert all_at_once(queue, pieces) == pieces
    assert queue.in_flight(1000) == 3
    assert backend.most_bytes == 6000, "three of 2000 bytes, which the budget holds"
    assert sum(len(batch) for batch in backend.batches) == 16
    assert len(backend.batches) < 16
    assert all(len({(piece.direction, piece.algorithm) for piece in batch}) == 1 for batch in backend.batches)


def test_a_budget_of_one_piece() -> None:
    backend = FakeBackend()
    pieces = contents(5)
    assert all_at_once(DeviceQueue(backend, 2000, ["zstd"]), pieces) == pieces
    assert [len(batch) for batch in backend.batches] == [1] * 10


def test_a_piece_that_does_not_fit() -> None:
    queue = DeviceQueue(FakeBackend(), 1999, ["zstd"])
    assert not queue.takes("zstd", 1000)
    assert queue.takes("zstd", 999)
    with pytest.raises(StorageError, match=r"budget of 2 kB.*device_max_mem"):
        queue.encode("zstd", memoryview(bytes(1000)))


def test_what_is_taken() -> None:
    queue = DeviceQueue(FakeBackend(), 10**9, ["lz4"])
    assert queue.takes("lz4", 1 << 18)
    assert not queue.takes("lz4", (1 << 18) + 1), "more than the backend can"
    assert not queue.takes("zstd", 10), "not asked for"


def test_a_damaged_piece_does_not_take_the_others_with_it() -> None:
    backend = FakeBackend()
    queue = DeviceQueue(backend, 10**6, ["zstd"])
    streams = [queue.encode("zstd", memoryview(piece)) for piece in contents(6)]
    # The first piece that is decoded is done when all the others wait.
    backend.first_waits_for = lambda: len(queue._waiting) == 5
    streams[3] = b"no stream" * 5
    outcomes: list[object] = [None] * 6
    started = threading.Barrier(6)

    def decode(number: int) -> None:
        out = bytearray(1000)
        started.wait()
        try:
            queue.decode("zstd", memoryview(streams[number]), memoryview(out))
            outcomes[number] = out[0]
        except StorageError as error:
            outcomes[number] = error

    threads = [threading.Thread(target=decode, args=[number]) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes[:3] + outcomes[4:] == [0, 1, 2, 4, 5]
    assert isinstance(outcomes[3], StorageError)
    assert "could not decode zstd" in str(outcomes[3])
    assert any(len(batch) > 1 for batch in backend.batches)
