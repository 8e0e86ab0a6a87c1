"""Shards that only zarr can read: what is torn, or goes while it is read, is an error and no fill value."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.abc.store import ByteRequest, Store
from zarr.core.buffer import Buffer, BufferPrototype, default_buffer_prototype
from zarr.core.sync import sync
from zarr.storage import LocalStore, MemoryStore, ObjectStore, WrapperStore

from rechunk_exec.errors import StorageError
from rechunk_exec.storage import array_ref, open_reader
from rechunk_exec.storage.failures import ShortAnswerError
from rechunk_exec.storage.retry import RetryPolicy, retry_policy, take_retries
from rechunk_exec.tasks import ArrayRef
from tests.faults.stores import BusyError
from tests.storage.arrays import make, read_box, read_by_us
from tests.values import position_values, same_bits

TEXT = np.dtypes.StringDType()
SHAPE, SHARD, CHUNK = (8, 6), (4, 6), (2, 3)
VALUES = position_values(SHAPE, TEXT)
KEY = "c/1/0"
LAST = (4, 3), (6, 6)
"""A box of one inner chunk of the second shard."""


@pytest.fixture(params=["memory", "local", "s3", "obstore"])
def store(request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[Store]:
    kind = request.param
    if kind in ("s3", "obstore"):
        bucket = request.getfixturevalue("s3")
        if kind == "s3":
            yield bucket.store("a.zarr")
        else:
            from obstore.store import from_url

            yield ObjectStore(from_url(bucket.url("b.zarr")))
    else:
        yield MemoryStore() if kind == "memory" else LocalStore(tmp_path / "a.zarr")


@pytest.fixture(autouse=True)
def no_retries_of_other_tests() -> None:
    take_retries()  # they are counted by thread


def made(store: Store, place: str, chunk: tuple[int, ...] = CHUNK) -> ArrayRef:
    shards: Any = {"shape": SHARD, "index_location": place}
    ref = make(store, SHAPE, chunk, TEXT, values=VALUES, shards=shards, overwrite=True)
    assert open_reader(ref).way == "zarr"
    return ref


@pytest.mark.parametrize("place", ["start", "end"])
@pytest.mark.parametrize("chunk", [CHUNK, SHARD], ids=["parts", "whole"])
def test_a_torn_shard_is_an_error_for_good(store: Store, place: str, chunk: tuple[int, ...]) -> None:
    # An empty one was fill value where it is read whole; and errors of zarr were tried again.
    ref = made(store, place, chunk)
    whole = content(store)
    for size in sorted({0, 3, 40, len(whole) // 2, len(whole) - 1}):
        put(store, whole[:size])
        with pytest.raises(StorageError, match=KEY) as caught:
            read_by_us(ref)
        assert caught.value.permanent, size
        assert not take_retries()
    put(store, whole)
    assert same_bits(read_by_us(ref), VALUES)


def content(store: Store) -> bytes:
    found = sync(store.get(KEY, default_buffer_prototype()))
    assert found is not None
    return found.to_bytes()


def put(store: Store, content: bytes) -> None:
    sync(store.set(KEY, default_buffer_prototype().buffer.from_bytes(content)))


class Changing(WrapperStore[Store]):
    """A store that does something after it was asked for a shard, or instead of answering, once."""

    _supports_sync_io = False

    def __init__(self, store: Store, after: list[Callable[[], None]], instead: list[Exception]) -> None:
        super().__init__(store)
        self.after, self.instead = after, instead

    def _with_store(self, store: Store) -> Changing:
        return type(self)(store, self.after, self.instead)

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        answer = await super().get(key, prototype, byte_range)
        if key != KEY:
            return answer
        if self.after:
            await asyncio.to_thread(self.after.pop())
        elif self.instead:
            raise self.instead.pop()
        return answer


@pytest.mark.parametrize("place", ["start", "end"])
@pytest.mark.parametrize("left", [None, 0, 40])
def test_a_shard_that_goes_after_its_index_was_read_is_an_error_for_good(
    store: Store, place: str, left: int | None
) -> None:
    # Its inner chunk was fill value.
    made(store, place)
    whole = content(store)

    def change() -> None:
        if left is None:
            delete(store)
        else:
            put(store, whole[:left])

    ref = array_ref(Changing(store, [change], []))
    with pytest.raises(StorageError, match=KEY) as caught:
        read_box(open_reader(ref), *LAST)
    assert caught.value.permanent
    assert not take_retries()


@pytest.mark.parametrize("error", [BusyError(503), ShortAnswerError("half"), TimeoutError("no answer")])
def test_what_may_pass_while_an_inner_chunk_is_read_is_tried_again(error: Exception) -> None:
    store = MemoryStore()
    made(store, "end")
    ref = array_ref(Changing(store, [lambda: None], [error]))
    with retry_policy(RetryPolicy(tries=2, first_wait_s=0.001)):
        assert same_bits(read_box(open_reader(ref), *LAST)[0], VALUES[4:6, 3:6])
    assert take_retries() == 1


def test_an_absent_shard_and_an_absent_inner_chunk_are_fill_value(store: Store) -> None:
    for place in ("start", "end"):
        ref = made(store, place)
        zarr.open_array(store).__setitem__((slice(4, 6), slice(3, 6)), "")
        assert (read_box(open_reader(ref), *LAST)[0] == "").all()
        delete(store)
        assert (read_box(open_reader(ref), *LAST)[0] == "").all()


def delete(store: Store) -> None:
    sync(store.delete(KEY))
