from __future__ import annotations

import http.server
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from zarr.abc.store import ByteRequest
from zarr.core.buffer import Buffer, BufferPrototype, default_buffer_prototype
from zarr.storage import FsspecStore, MemoryStore, ObjectStore, WrapperStore

from rechunk_exec.errors import StorageError
from rechunk_exec.storage.retry import RetryPolicy, retry_policy
from rechunk_exec.storage.stamps import Stamp, file_stamp, object_stamps
from tests.conftest import needed_module
from tests.faults.stores import BusyError, Faults, FaultyStore
from tests.webserver import served

MEGABYTE = 1 << 20


def memory_with(**objects: bytes) -> MemoryStore:
    return MemoryStore({key: default_buffer_prototype().buffer.from_bytes(body) for key, body in objects.items()})


class Counting(WrapperStore[MemoryStore]):
    """A store that counts the bytes that it gives."""

    _supports_sync_io = False
    given = 0

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        answer = await super().get(key, prototype, byte_range)
        self.given += len(answer or b"")
        return answer


def test_what_was_not_looked_at_then_does_not_count_now() -> None:
    now = Stamp(key="c/0", size=5, mtime_ns=0, mark="etag:b")
    assert replace(now, mark="etag:a").shows_change(now)
    assert not replace(now, mark="").shows_change(now), "of a job of before"
    assert replace(now, mark="", size=4).shows_change(now)


@pytest.mark.parametrize("make", [lambda store: store, Counting, FaultyStore])
def test_objects_of_which_a_store_tells_nothing_are_known_by_a_checksum(make: Any) -> None:
    store = make(memory_with(a=b"12345", b=b"", c=bytes(3 * MEGABYTE)))
    a, b, c, absent = object_stamps(store, "", ["a", "b", "c", "d"])
    assert [stamp.size for stamp in (a, b, absent)] == [5, 0, -1]
    assert c.size in {0, 3 * MEGABYTE}, "where a store tells it"
    assert len({a.mark, b.mark, c.mark}) == 3
    assert all(stamp.mark.startswith("blake2b:") for stamp in (a, b, c))
    assert (absent.mark, absent.mtime_ns) == ("", 0)
    (again,) = object_stamps(make(memory_with(a=b"12345")), "", ["a"])
    assert again == a
    (other,) = object_stamps(make(memory_with(a=b"12346")), "", ["a"])
    assert a.shows_change(other)


def test_keys_are_below_the_path() -> None:
    (stamp,) = object_stamps(memory_with(**{"g/a/zarr.json": b"{}"}), "g/a", ["zarr.json"])
    assert (stamp.key, stamp.size) == ("zarr.json", 2)


def test_of_a_large_object_its_ends_are_read() -> None:
    body = bytearray(4 * MEGABYTE)
    store = Counting(memory_with(a=bytes(body)))
    (before,) = object_stamps(store, "", ["a"])
    assert store.given == MEGABYTE
    for place, seen in ((0, True), (MEGABYTE // 2 - 1, True), (2 * MEGABYTE, False), (len(body) - 1, True)):
        body[place] = 1
        (now,) = object_stamps(memory_with(a=bytes(body)), "", ["a"])
        assert before.shows_change(now) is seen
        body[place] = 0


def test_obstore_numbers_what_is_in_memory() -> None:
    # Two stores that were written alike have the same ETags.
    stores = needed_module("obstore.store")
    obstore = needed_module("obstore")
    stamps: list[Stamp] = []
    for body in (b"one", b"two"):
        store = stores.MemoryStore()
        obstore.put(store, "a", body)
        stamps += object_stamps(ObjectStore(store), "", ["a"])
    assert stamps[0].shows_change(stamps[1])


def test_what_fails_for_a_passing_reason_is_asked_for_again() -> None:
    store = FaultyStore(memory_with(a=b"12345", b=b"1" * 3000), Faults(seed=4, fails=0.4, truncates=0.3))
    quiet = object_stamps(memory_with(a=b"12345", b=b"1" * 3000), "", ["a", "b"])
    with retry_policy(RetryPolicy(tries=40, first_wait_s=0.001)):
        for _ in range(5):
            assert object_stamps(store, "", ["a", "b"]) == quiet
    assert store.seen.failed > 2
    assert store.seen.truncated > 2


@pytest.mark.parametrize("fails", [1, 2, 3])
def test_a_client_that_is_told_to_slow_down_asks_again(fails: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # The first such answer ended the call.
    store = FsspecStore.from_url("memory://stamps-test")
    store.fs.sync_fs.pipe("/stamps-test/c/0", b"12345")
    ask, asked = store.fs._info, []

    async def busy(path: str) -> Any:
        asked.append(path)
        if len(asked) <= fails:
            raise BusyError(503)
        return await ask(path)

    monkeypatch.setattr(store.fs, "_info", busy)
    with retry_policy(RetryPolicy(tries=3, first_wait_s=0.001)):
        if fails < 3:
            (stamp,) = object_stamps(store, "c", ["0"])
            assert stamp.size == 5
        else:
            with pytest.raises(StorageError, match=r"cannot look at c/0 of <FsspecStore\(.*503; it was tried 3 times"):
                object_stamps(store, "c", ["0"])


def test_a_file_that_cannot_be_looked_at_is_named(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")
    assert file_stamp("b", tmp_path / "b").size == -1
    with pytest.raises(StorageError, match=r"cannot look at .*a/b"):
        file_stamp("a/b", tmp_path / "a" / "b")


@pytest.mark.parametrize("status,error", [(503, "it was tried 2 times"), (403, "403"), (404, "")])
def test_what_a_web_server_refuses_to_tell_of_is_not_absent(status: int, error: str) -> None:
    # fsspec says of all that fails that there is no such file.
    needed_module("aiohttp")

    class Refusing(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(status)

        do_HEAD = do_GET  # noqa: N815 - a name that the base class looks for

        def log_message(self, *args: object) -> None:
            return

    with served(Refusing) as address, retry_policy(RetryPolicy(tries=2, first_wait_s=0.001)):
        store = FsspecStore.from_url(address)
        if error:
            with pytest.raises(StorageError, match=rf"cannot look at c/0 of .*{error}") as caught:
                object_stamps(store, "c", ["0"])
            assert caught.value.permanent == (status == 403)
        else:
            assert object_stamps(store, "c", ["0"]) == (Stamp(key="0", size=-1, mtime_ns=0),)
