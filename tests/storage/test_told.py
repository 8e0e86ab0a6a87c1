from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from zarr.storage import FsspecStore, MemoryStore, ObjectStore

from rechunk_exec.storage.told import _mark, ask_of, listed
from tests.conftest import needed_module
from tests.faults.stores import FaultyStore
from tests.s3 import Bucket
from tests.storage.test_stamps import memory_with

NOW = datetime(2026, 1, 2, tzinfo=UTC)


@pytest.mark.parametrize(
    "told, mark",
    [
        ({"ETag": '"abc"', "LastModified": NOW, "VersionId": None, "size": 4}, 'etag:"abc"'),
        ({"etag": "CJ8=", "generation": "17", "md5Hash": "x", "updated": "2026"}, "etag:CJ8="),
        ({"generation": "17", "updated": "2026"}, "generation:17"),
        ({"ETag": "", "LastModified": NOW, "VersionId": "null"}, "versionid:null"),
        ({"e_tag": '"1"', "version": None, "last_modified": NOW}, 'etag:"1"'),
        ({"e_tag": None, "version": "7", "last_modified": NOW}, "version:7"),
        ({"Last-Modified": "Fri, 02 Jan 2026"}, "lastmodified:Fri, 02 Jan 2026"),
        ({"created": 1.5, "mtime": 2.5}, "mtime:2.5"),
        ({"created": NOW}, "created:2026-01-02 00:00:00+00:00"),
        ({"name": "a", "size": 5, "type": "file"}, ""),
    ],
    ids=str,
)
def test_what_changes_when_an_object_is_written_is_found_by_any_client_s_name(told: dict[str, Any], mark: str) -> None:
    assert _mark(told) == mark


def test_stores_that_tell_nothing_are_not_asked() -> None:
    memory = memory_with(a=b"1")
    assert ask_of(memory) is None
    assert ask_of(FaultyStore(memory)) is None
    assert ask_of(ObjectStore(needed_module("obstore.store").MemoryStore())) is None


@pytest.mark.parametrize("client", ["fsspec", "obstore"])
def test_s3_tells_sizes_and_etags(s3: Bucket, client: str) -> None:
    for key, body in {"t/c/0": b"12345", "t/c/1": b"", "t/zarr.json": b"{}", "tt/c/0": b"1"}.items():
        s3.client.put_object(Bucket=s3.name, Key=key, Body=body)
    if client == "fsspec":
        store: Any = s3.store("")
    else:
        stores = needed_module("obstore.store")
        store = ObjectStore(stores.S3Store(s3.name, endpoint=s3.address, client_options={"allow_http": True}))
    ask = ask_of(store)
    assert ask is not None
    told = ask("t/c/0")
    assert told is not None
    assert (told.size, told.mark) == (5, 'etag:"827ccb0eea8a706c4c34a16891f84e7b"')
    assert ask("t/c/2") is None
    assert ask("t/c") is None
    assert listed(store, "t") == {"c/0": 5, "c/1": 0, "zarr.json": 2}
    assert listed(store, "none") == {}
    assert len(listed(store, "") or {}) == 4


def test_a_listing_takes_one_request_a_page(s3: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(25):
        s3.client.put_object(Bucket=s3.name, Key=f"t/c/{number}", Body=b"1")
    store = s3.store("")
    call, calls = store.fs._call_s3, []

    async def counted(method: str, *arguments: Any, **options: Any) -> Any:
        calls.append(method)
        return await call(method, *arguments, **options, MaxKeys=10)

    monkeypatch.setattr(store.fs, "_call_s3", counted)
    assert len(listed(store, "t") or {}) == 25
    assert calls == ["list_objects_v2"] * 3


@pytest.mark.parametrize("trailing", ["", "/"])
def test_any_path_of_a_file_system_is_listed(trailing: str) -> None:
    store = FsspecStore.from_url("memory://told-test/x")
    store.path += trailing
    store.fs.sync_fs.pipe("/told-test/x/t/c/0", b"12345")
    assert listed(store, "t") == {"c/0": 5}
    assert listed(store, "") == {"t/c/0": 5}
    assert listed(store, "u") == {}


def test_sizes_are_told_where_that_takes_no_request_for_each() -> None:
    memory = memory_with(**{"t/c/0": b"12345", "u": b"1"})
    assert listed(memory, "t") == {"c/0": 5}
    assert listed(FaultyStore(memory), "t") == {"c/0": None}


def test_a_store_that_lists_nothing_is_left_in_peace() -> None:
    class Unlisted(MemoryStore):
        supports_listing = False

    assert listed(Unlisted(), "t") is None
