from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync
from zarr.storage import LocalStore, MemoryStore

from rechunk_exec.errors import StorageError
from rechunk_exec.storage.objects import LocalObjects, Objects, StoreObjects, objects_of

CONTENT = bytes(range(100))


def allocate(size: int) -> memoryview:
    return memoryview(bytearray(size + 7))  # more than asked for is allowed


@pytest.fixture(params=["local", "memory"])
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> Objects:
    return objects_of(LocalStore(tmp_path) if request.param == "local" else MemoryStore(), "some/array")


def write(objects: Objects, key: str, *parts: bytes) -> int:
    writer = objects.create(key)
    for part in parts:
        writer.append(part)
    return writer.commit()


def read(objects: Objects, key: str, start: int = 0, length: int | None = None) -> bytes | None:
    content = objects.read(key, allocate, start, length)
    return None if content is None else bytes(content)


def test_a_local_store_is_used_without_zarr_and_others_through_it(tmp_path: Path) -> None:
    assert isinstance(objects_of(LocalStore(tmp_path), ""), LocalObjects)
    assert isinstance(objects_of(MemoryStore(), ""), StoreObjects)


def test_what_is_written_is_read(objects: Objects) -> None:
    assert write(objects, "c/0/0", CONTENT[:40], CONTENT[40:]) == 100
    assert read(objects, "c/0/0") == CONTENT
    assert read(objects, "c/0/0", 0, 16) == CONTENT[:16]
    assert read(objects, "c/0/0", 30, 7) == CONTENT[30:37]
    assert read(objects, "c/0/0", -16, 16) == CONTENT[-16:]
    assert read(objects, "c/0/0", 100, 0) == b""


def test_the_key_lies_in_the_array_of_the_store(tmp_path: Path) -> None:
    write(objects_of(LocalStore(tmp_path), "a/b"), "c/1", b"x")
    assert (tmp_path / "a/b/c/1").read_bytes() == b"x"
    store = MemoryStore()
    write(objects_of(store, "a/b"), "c/1", b"x")
    assert list(store._store_dict) == ["a/b/c/1"]
    write(objects_of(store, ""), "c/1", b"y")
    assert store._store_dict["c/1"].to_bytes() == b"y"


def test_a_missing_object_is_none(objects: Objects) -> None:
    assert read(objects, "c/0/0") is None
    assert read(objects, "c/0/0", -16, 16) is None
    objects.refuse_unreadable("c/0/0")
    objects.delete("c/0/0")


@pytest.mark.parametrize("start,length", [(-101, 101), (90, 11), (100, 1), (2**40, 1), (0, 2**62), (2**63, 5)])
def test_bytes_that_are_not_there_are_an_error(objects: Objects, start: int, length: int) -> None:
    write(objects, "0", CONTENT)
    with pytest.raises(StorageError):
        read(objects, "0", start, length)


def test_an_empty_object_is_there(objects: Objects) -> None:
    write(objects, "0", b"")
    assert read(objects, "0") == b""
    with pytest.raises(StorageError):
        read(objects, "0", -16, 16)


def test_nothing_is_visible_before_the_commit(objects: Objects) -> None:
    write(objects, "0", b"old")
    writer = objects.create("0")
    writer.append(b"new, and longer")
    assert read(objects, "0") == b"old"
    writer.commit()
    assert read(objects, "0") == b"new, and longer"


def test_what_is_forgotten_leaves_what_was_there(objects: Objects, tmp_path: Path) -> None:
    write(objects, "0", b"old")
    writer = objects.create("0")
    writer.append(b"new")
    writer.abort()
    assert read(objects, "0") == b"old"
    assert len(list(tmp_path.rglob("*0*"))) <= 1


def test_parts_are_placed_in_what_was_reserved(objects: Objects) -> None:
    writer = objects.create("0")
    assert writer.append(bytes(4)) == 0
    assert writer.append(b"end") == 4
    writer.place(b"head", 0)
    assert writer.commit() == 7
    assert read(objects, "0") == b"headend"


def test_parts_appended_by_several_threads_do_not_mix(objects: Objects) -> None:
    writer = objects.create("0")
    parts = [bytes([number]) * (number * 37 % 400 + 1) for number in range(200)]
    barrier = threading.Barrier(4)

    def add(mine: list[bytes]) -> list[tuple[int, bytes]]:
        barrier.wait()
        return [(writer.append(part), part) for part in mine]

    with ThreadPoolExecutor(4) as threads:
        placed = [entry for entries in threads.map(add, [parts[n::4] for n in range(4)]) for entry in entries]
    assert writer.commit() == sum(map(len, parts))
    content = read(objects, "0")
    assert content is not None
    assert all(content[offset : offset + len(part)] == part for offset, part in placed)


def test_an_object_is_deleted(objects: Objects) -> None:
    write(objects, "0", b"x")
    objects.delete("0")
    assert read(objects, "0") is None
    objects.delete("0")


def test_a_commit_that_fails_leaves_no_part(tmp_path: Path) -> None:
    objects = LocalObjects(tmp_path)
    (tmp_path / "0").mkdir()
    writer = objects.create("0")
    writer.append(b"x")
    with pytest.raises(StorageError, match="cannot write"):
        writer.commit()
    writer.abort()
    assert [path.name for path in tmp_path.iterdir()] == ["0"]


def test_a_descriptor_is_closed_once(tmp_path: Path) -> None:
    # Closed twice, it was by then the number of another thread's file.
    objects = LocalObjects(tmp_path)
    (tmp_path / "0").mkdir()
    writer = objects.create("0")
    with pytest.raises(StorageError):
        writer.commit()
    other = os.open(tmp_path / "other", os.O_WRONLY | os.O_CREAT)
    try:
        writer.abort()
        assert os.write(other, b"still open") == 10
    finally:
        os.close(other)


def test_two_writers_of_one_object_do_not_disturb_each_other(objects: Objects) -> None:
    one, two = objects.create("0"), objects.create("0")
    one.append(b"one")
    two.append(b"two")
    one.commit()
    assert read(objects, "0") == b"one"
    two.commit()
    assert read(objects, "0") == b"two"


def test_a_folder_in_the_place_of_an_object_is_an_error(tmp_path: Path) -> None:
    objects = LocalObjects(tmp_path)
    (tmp_path / "0").mkdir()
    uses: list[Callable[[], object]] = [
        lambda: read(objects, "0"),
        lambda: read(objects, "0", -4, 4),
        lambda: objects.refuse_unreadable("0"),
        lambda: objects.delete("0"),
    ]
    for use in uses:
        with pytest.raises(StorageError):
            use()


def test_a_file_in_the_place_of_a_folder_is_an_error(tmp_path: Path) -> None:
    objects = LocalObjects(tmp_path)
    (tmp_path / "c").write_bytes(b"")
    uses: list[Callable[[], object]] = [
        lambda: read(objects, "c/0"),
        lambda: objects.refuse_unreadable("c/0"),
        lambda: objects.delete("c/0"),
        lambda: objects.create("c/0"),
    ]
    for use in uses:
        with pytest.raises(StorageError):
            use()


def test_a_link_to_an_object_is_read_and_a_dangling_one_is_an_error(tmp_path: Path) -> None:
    objects = LocalObjects(tmp_path)
    (tmp_path / "far").write_bytes(CONTENT)
    (tmp_path / "0").symlink_to("far")
    objects.refuse_unreadable("0")
    assert read(objects, "0") == CONTENT
    (tmp_path / "far").unlink()
    uses: list[Callable[[], object]] = [lambda: read(objects, "0"), lambda: objects.refuse_unreadable("0")]
    for use in uses:
        with pytest.raises(StorageError, match="link"):
            use()


class BrokenStore(MemoryStore):
    """A store whose server is away."""

    async def get(self, *args: object, **kwargs: object) -> None:
        raise OSError("the server is away")

    async def set(self, *args: object, **kwargs: object) -> None:
        raise OSError("the server is away")

    async def delete(self, key: str) -> None:
        raise OSError("the server is away")


def test_failures_of_a_store_are_ours() -> None:
    objects = objects_of(BrokenStore(), "")
    uses: list[Callable[[], object]] = [
        lambda: read(objects, "0"),
        lambda: read(objects, "0", 1, 2),
        lambda: write(objects, "0", b"x"),
        lambda: objects.delete("0"),
    ]
    for use in uses:
        with pytest.raises(StorageError, match="the server is away") as caught:
            use()
        assert isinstance(caught.value.__cause__, OSError)


def test_a_full_disk_is_ours(tmp_path: Path) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("there is no /dev/full")
    writer = LocalObjects(tmp_path).create("0")
    descriptor = os.open(full, os.O_WRONLY)
    os.dup2(descriptor, writer.descriptor)  # type: ignore[attr-defined]
    os.close(descriptor)
    with pytest.raises(StorageError, match="No space left"):
        writer.append(b"x")
    writer.abort()
    assert list(tmp_path.iterdir()) == []


def test_what_zarr_stores_is_what_we_store(tmp_path: Path) -> None:
    for store in (LocalStore(tmp_path), MemoryStore()):
        write(objects_of(store, "a"), "c/0", CONTENT)
        buffer = sync(store.get("a/c/0", prototype=default_buffer_prototype()))
        assert buffer is not None
        assert buffer.to_bytes() == CONTENT


@pytest.mark.parametrize("number", [errno.ETIMEDOUT, errno.ESTALE, errno.EIO, errno.ENOSPC])
def test_what_a_network_disk_fails_to_write_by_the_time_a_file_is_closed_is_no_object(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Another try found the file closed, and gave it its name, whatever it held.
    objects = LocalObjects(tmp_path)
    writer = objects.create("c/0")
    writer.append(CONTENT)
    close = os.close

    def fail(descriptor: int) -> None:
        close(descriptor)
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, "close", fail)
        with pytest.raises(StorageError, match=f"cannot write .*c/0: .*{os.strerror(number)}") as caught:
            writer.commit()
    assert caught.value.permanent == (number == errno.ENOSPC)
    writer.abort()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
