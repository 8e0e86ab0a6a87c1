from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from zarr.storage import MemoryStore, WrapperStore

from rechunk_exec.storage.bodies import Body, buffer_for, copies_sent
from rechunk_exec.storage.objects import objects_of
from rechunk_exec.storage.stores import open_store
from rechunk_exec.tasks import ArrayRef
from tests.conftest import needed_module
from tests.s3 import Bucket

CONTENT = np.arange(3 << 18, dtype="<u4").tobytes()


def test_a_body_reads_as_a_file_of_its_bytes() -> None:
    body, file = Body(memoryview(CONTENT)), io.BytesIO(CONTENT)
    for offset, whence in ((5, 0), (100, 1), (-7, 2), (0, 2), (3, 0)):
        assert body.seek(offset, whence) == file.seek(offset, whence)
        assert body.read(1000) == file.read(1000)
        assert body.tell() == file.tell()
    assert body[17:90].read() == CONTENT[17:90]
    assert body[len(CONTENT) - 3 : len(CONTENT) + 50].read() == CONTENT[-3:]
    assert (len(body), body.readable(), body.seekable(), body.writable()) == (len(CONTENT), True, True, False)


def test_a_large_piece_of_a_body_comes_in_smaller_ones() -> None:
    body = Body(memoryview(CONTENT))[5:]
    pieces = list(iter(lambda: body.read(1 << 20), b""))
    assert b"".join(pieces) == CONTENT[5:]
    assert max(map(len, pieces)) <= 1 << 17
    body.seek(7)
    assert body.read() == CONTENT[12:], "who asks for all of it gets that"


@pytest.mark.parametrize("size", [0, 1, (1 << 20) - 1, 1 << 20, len(CONTENT)])
def test_large_and_small_objects_reach_s3(s3: Bucket, size: int) -> None:
    objects = objects_of(open_store(ArrayRef(store=s3.url("a")), read_only=False), "b")
    writer = objects.create("c")
    writer.append(CONTENT[:size])
    assert writer.commit() == size
    assert s3.contents() == {"a/b/c": CONTENT[:size]}


def test_an_object_that_goes_in_parts_is_whole(s3: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    s3fs: Any = needed_module("s3fs")
    pipe = s3fs.S3FileSystem._pipe_file
    sent: list[type] = []

    async def in_parts(self: Any, path: str, data: Any, **options: Any) -> None:
        sent.append(type(data))
        await pipe(self, path, data, chunksize=5 << 20, **options)

    monkeypatch.setattr(s3fs.S3FileSystem, "_pipe_file", in_parts)
    store = open_store(ArrayRef(store=s3.url("a")), read_only=False)
    writer = objects_of(store, "b").create("c")
    for number in range(5):
        writer.append(CONTENT[number:] + CONTENT[:number])
    writer.commit()
    assert s3.contents() == {"a/b/c": b"".join(CONTENT[number:] + CONTENT[:number] for number in range(5))}
    assert sent == [Body]


def test_other_stores_get_plain_bytes(s3: Bucket) -> None:
    memory = MemoryStore()
    assert copies_sent(memory) == 1.15
    assert copies_sent(WrapperStore(memory)) == 3, "who knows"
    assert buffer_for(memory, memoryview(CONTENT)).to_bytes() == CONTENT
    store = open_store(ArrayRef(store=s3.url("a")), read_only=False)
    assert copies_sent(store) == 1.2
    assert buffer_for(store, memoryview(b"small")).to_bytes() == b"small"
    assert isinstance(buffer_for(store, memoryview(CONTENT)).to_bytes(), Body)
