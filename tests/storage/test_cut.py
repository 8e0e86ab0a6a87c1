"""Documents of which a part came, or a page of a server's own, in answers that say that all is well."""

from __future__ import annotations

import http.server
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import zarr
from zarr.abc.store import ByteRequest, Store
from zarr.core.buffer import Buffer, BufferPrototype, cpu
from zarr.core.sync import sync
from zarr.storage import MemoryStore, WrapperStore

import rechunk_exec as rx
from rechunk_exec.storage import RetryPolicy, array_ref, members_of, open_array, retry_policy
from rechunk_exec.storage.consolidated import conceal
from rechunk_exec.storage.retry import take_retries
from tests.conftest import needed_module
from tests.jobs import assert_exact, make_array, stop_after
from tests.webserver import served

SHAPE, CHUNKS = (6, 12, 10), (1, 12, 10)
PAGE = b"<?xml version='1.0'?><Error><Code>SlowDown</Code></Error>" * 20
CUTS: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "half": lambda whole: whole[: len(whole) // 2],
    "page": lambda _: PAGE,
}


class CutStore(WrapperStore[Store]):
    """Gives something else for documents, the first times that each is asked for."""

    _supports_sync_io = False

    def __init__(
        self, store: Store, cut: Callable[[bytes], bytes], times: int, seen: Counter[str] | None = None
    ) -> None:
        super().__init__(store)
        self.cut, self.times, self.seen = cut, times, Counter[str]() if seen is None else seen

    def _with_store(self, store: Store) -> CutStore:
        return CutStore(store, self.cut, self.times, self.seen)

    def with_read_only(self, read_only: bool = False) -> CutStore:
        return self._with_store(self._store.with_read_only(read_only))

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        found = await self._store.get(key, prototype, byte_range)
        if found is None or not key.endswith((".json", ".zarray", ".zattrs", ".zgroup", ".zmetadata")):
            return found
        self.seen[key] += 1
        return found if self.seen[key] > self.times else cpu.Buffer.from_bytes(self.cut(found.to_bytes()))

    async def getsize(self, key: str) -> int:
        return await self._store.getsize(key)


@pytest.fixture(autouse=True)
def _quickly() -> Iterator[None]:
    with retry_policy(RetryPolicy(tries=4, first_wait_s=0.001, longest_wait_s=0.01)):
        yield


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("cut", CUTS)
def test_metadata_that_came_cut_are_asked_for_again(cut: str, zarr_format: Any) -> None:
    inner = MemoryStore()
    make_array(inner, SHAPE, CHUNKS, name="a", zarr_format=zarr_format)
    take_retries()
    assert open_array(array_ref(CutStore(inner, CUTS[cut], 2), "a"), read_only=True).shape == SHAPE
    assert take_retries() >= 2
    with pytest.raises(rx.StorageError, match=r"cannot open .*CutStore.* a.* no JSON.* it was tried 4 times"):
        open_array(array_ref(CutStore(inner, CUTS[cut], 10**6), "a"), read_only=True)


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("cut", CUTS)
def test_metadata_of_groups_that_came_cut_are_asked_for_again(cut: str, zarr_format: Any) -> None:
    inner = MemoryStore()
    for name in ("one", "inner/two"):
        make_array(inner, SHAPE, CHUNKS, name=name, zarr_format=zarr_format)
    found = members_of(array_ref(CutStore(inner, CUTS[cut], 2)))
    assert found is not None
    assert (found.arrays, found.damaged) == ({"one", "inner/two"}, {})
    assert rx.verify(CutStore(inner, CUTS[cut], 2), inner).ok
    with pytest.raises(rx.StorageError, match="no JSON"):
        rx.verify(CutStore(inner, CUTS[cut], 10**6), inner)


@pytest.mark.parametrize("cut", CUTS)
def test_a_job_goes_on_whose_documents_came_cut(cut: str) -> None:
    inner = MemoryStore()
    source = make_array(MemoryStore(), SHAPE, CHUNKS)

    def job(target: Store, mode: Any) -> rx.Rechunked:
        return rx.rechunk(source, (2, 12, 10), "4kB", target, executor="serial", mode=mode, progress=False)

    stop_after(2, job(inner, "fail"))
    again = job(CutStore(inner, CUTS[cut], 2), "resume")
    assert rx.status(CutStore(inner, CUTS[cut], 2)).done == 2
    assert_exact(again.execute(), source)


def test_consolidated_metadata_that_came_cut_are_asked_for_again() -> None:
    inner = MemoryStore()
    make_array(inner, SHAPE, CHUNKS, name="a", zarr_format=2)
    zarr.consolidate_metadata(inner)
    conceal(array_ref(CutStore(inner, CUTS["half"], 2), "a"))
    assert "a" not in zarr.open_group(inner, mode="r", use_consolidated=True)


@pytest.mark.parametrize("cut", ["empty", "half"])
def test_metadata_that_are_stored_cut_are_told_at_once(cut: str) -> None:
    store = MemoryStore()
    make_array(store, SHAPE, CHUNKS)
    whole = sync(store.get("zarr.json", cpu.buffer_prototype))
    assert whole is not None
    sync(store.set("zarr.json", cpu.Buffer.from_bytes(CUTS[cut](whole.to_bytes()))))
    take_retries()
    with pytest.raises(rx.StorageError, match="JSONDecodeError"):
        open_array(array_ref(store), read_only=True)
    assert not take_retries()


class BusyServer(http.server.SimpleHTTPRequestHandler):
    """Serves files, but answers with a page, and that all is well, the first times that metadata are asked for."""

    def __init__(self, *args: Any, seen: Counter[str], times: int, **options: Any) -> None:
        self.seen, self.times = seen, times
        super().__init__(*args, **options)

    def send_head(self) -> Any:
        if self.path.endswith("zarr.json"):
            self.seen[self.path] += 1
            if self.seen[self.path] <= self.times:
                self.send_response(200)
                self.send_header("Content-Length", str(len(PAGE)))
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(PAGE)
                return None
        return super().send_head()

    def log_message(self, *args: object) -> None:
        return


def test_a_web_server_that_has_a_page_for_those_who_come_too_soon(tmp_path: Path) -> None:
    needed_module("aiohttp")
    source = make_array(tmp_path / "www/a.zarr", SHAPE, CHUNKS)
    with served(partial(BusyServer, directory=str(tmp_path / "www"), seen=Counter(), times=3)) as address:
        job = rx.rechunk(f"{address}/a.zarr", (6, 4, 5), "1MB", tmp_path / "t", executor="serial", progress=False)
        assert_exact(job.execute(), source)


class PageServer(http.server.BaseHTTPRequestHandler):
    """Answers with a page, the same each time, and that all is well, to whatever is asked but what it says it lacks."""

    def __init__(self, *args: Any, asked: Counter[str], lacks: str = "", **options: Any) -> None:
        self.asked, self.lacks = asked, lacks
        super().__init__(*args, **options)

    def do_GET(self) -> None:
        self.asked[self.path.rpartition("/")[2]] += 1
        self.do_HEAD()
        if not self.is_lacking:
            self.wfile.write(PAGE)

    def do_HEAD(self) -> None:
        self.send_response(404 if self.is_lacking else 200)
        self.send_header("Content-Length", "0" if self.is_lacking else str(len(PAGE)))
        self.end_headers()

    @property
    def is_lacking(self) -> bool:
        return bool(self.lacks) and self.path.endswith(self.lacks)

    def log_message(self, *args: object) -> None:
        return


def test_a_server_that_has_one_page_for_everything_is_told_soon(tmp_path: Path) -> None:
    # It was asked ten times, with waits of 22 s on average.
    needed_module("aiohttp")
    local, asked = make_array(tmp_path / "a.zarr", SHAPE, CHUNKS), Counter[str]()
    told = "gives a page for people, in HTML or XML, where metadata are expected"
    with served(partial(PageServer, asked=asked)) as address, retry_policy(RetryPolicy(tries=20, first_wait_s=0.001)):
        with pytest.raises(rx.StorageError, match=f"no array .* at: {address}/b.zarr: its server {told}") as failure:
            open_array(array_ref(f"{address}/b.zarr"), read_only=True)
        assert failure.value.permanent
        assert 2 < asked["zarr.json"] < 12
        with pytest.raises(rx.StorageError, match=told):
            rx.rechunk(f"{address}/b.zarr", (6, 4, 5), "1MB", tmp_path / "t")
        with pytest.raises(rx.StorageError, match=told):
            rx.verify(f"{address}/b.zarr", local)


def test_a_page_that_stands_for_one_document_alone_is_asked_for_again(tmp_path: Path) -> None:
    needed_module("aiohttp")
    asked = Counter[str]()
    with (
        served(partial(PageServer, asked=asked, lacks=".zgroup")) as address,
        retry_policy(RetryPolicy(tries=20, first_wait_s=0.001, longest_wait_s=0.01)),
        pytest.raises(rx.StorageError, match="it was tried 20 times"),
    ):
        open_array(array_ref(f"{address}/b.zarr"), read_only=True)
