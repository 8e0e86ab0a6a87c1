from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rechunk_exec.copy.buffers import BufferPool, ScratchBuffers

MEBIBYTE = 1 << 20


def address(buffer: memoryview) -> int:
    return int(np.frombuffer(buffer, np.uint8).ctypes.data)


@pytest.mark.parametrize("size", [0, 1, 4096, MEBIBYTE - 1, MEBIBYTE, 3 * MEBIBYTE + 1])
def test_a_buffer_has_the_size_asked_for_and_can_be_written(size: int) -> None:
    with BufferPool().borrow(size) as buffer:
        assert len(buffer) == size
        assert buffer.format == "B"
        buffer[:] = b"\xff" * size


@pytest.mark.parametrize("size", [4096, 2 * MEBIBYTE])
def test_what_was_returned_is_lent_again(size: int) -> None:
    pool = BufferPool()
    with pool.borrow(size) as buffer:
        first = address(buffer)
    with pool.borrow(size - 7) as buffer:
        assert address(buffer) == first
        assert len(buffer) == size - 7
    with pool.borrow(size) as buffer:
        assert address(buffer) == first


def test_the_smallest_that_is_large_enough_is_lent() -> None:
    pool = BufferPool()
    with pool.borrow(3000) as large, pool.borrow(1000) as small, pool.borrow(2000) as middle:
        addresses = {1000: address(small), 2000: address(middle), 3000: address(large)}
    for size, wanted in ((1001, 2000), (900, 1000), (2001, 3000)):
        with pool.borrow(size) as buffer:
            assert address(buffer) == addresses[wanted]


def test_one_that_is_too_small_makes_way_for_a_larger() -> None:
    pool = BufferPool()
    for size in (1000, 2000, 3000):
        with pool.borrow(size):
            pass
        assert [len(buffer) for buffer in pool._free] == [size]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5000)), max_size=60))
def test_there_are_never_more_buffers_than_were_lent_at_once(steps: list[tuple[int, int]]) -> None:
    pool = BufferPool()
    lent: dict[int, AbstractContextManager[memoryview]] = {}
    most = 0
    for slot, size in steps:
        if slot in lent:
            lent.pop(slot).__exit__(None, None, None)
        else:
            lent[slot] = pool.borrow(size)
            lent[slot].__enter__()
            most = max(most, len(lent))
        assert len(pool._free) + len(lent) <= most
    for loan in lent.values():
        loan.__exit__(None, None, None)
    assert len(pool._free) <= most


def test_buffers_that_are_lent_at_once_do_not_overlap() -> None:
    pool = BufferPool()
    barrier = threading.Barrier(4)

    def use(number: int) -> bool:
        barrier.wait()
        for _ in range(50):
            with pool.borrow(1000 + number) as buffer:
                buffer[:] = bytes([number]) * len(buffer)
                if bytes(buffer) != bytes([number]) * len(buffer):
                    return False
        return True

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(use, range(4)))
    assert len(pool._free) <= 4


def test_a_buffer_comes_back_after_a_failure() -> None:
    pool = BufferPool()
    with pytest.raises(RuntimeError), pool.borrow(100):
        raise RuntimeError
    assert len(pool._free) == 1
    pool.clear()
    assert pool._free == []


def test_scratch_grows_to_what_is_asked_for_and_stays() -> None:
    scratch = ScratchBuffers()
    assert len(scratch.stored(0)) >= 0
    small = scratch.stored(100)
    assert len(small) >= 100
    assert address(scratch.stored(50)) == address(small)
    large = scratch.stored(2 * MEBIBYTE)
    assert len(large) >= 2 * MEBIBYTE
    assert address(scratch.stored(100)) == address(large)


def test_the_two_parts_of_scratch_are_apart() -> None:
    scratch = ScratchBuffers()
    stored, decoded = scratch.stored(1000), scratch.decoded(1000)
    stored[:] = b"a" * len(stored)
    decoded[:] = b"b" * len(decoded)
    assert set(scratch.stored(1000)) == {ord("a")}


def test_only_large_scratch_is_let_go() -> None:
    scratch = ScratchBuffers()
    small = scratch.stored(1000)
    scratch.decoded(2 * MEBIBYTE)
    scratch.shrink()
    assert address(scratch.stored(1000)) == address(small)
    assert len(scratch._decoded) == 0
    assert len(scratch.decoded(10)) >= 10
