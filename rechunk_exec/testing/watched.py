"""Arrays whose requests are watched: in a store that pickles, or behind a web address. Layer: testing."""

from __future__ import annotations

import asyncio
import functools
import http.server
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from zarr.abc.store import ByteRequest
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.storage import LocalStore, WrapperStore

from rechunk_exec.testing.record import InjectedFault, Watch, chunk_place

REFUSED = 418
"""The HTTP status of a request that is to fail: one that says nothing of whether it may pass."""


class WatchedStore(WrapperStore[LocalStore]):
    """A folder as a store whose chunks are read and written on record, and with faults. It pickles as a few strings.

    Parameters
    ----------
    root : Path
        The folder of one array.
    watch : Watch
    read_only : bool
    """

    _supports_sync_io = False  # what zarr 3.4 may read and write by instead

    def __init__(self, root: Path, watch: Watch, *, read_only: bool = False) -> None:
        super().__init__(LocalStore(root, read_only=read_only))
        self._root = root
        self._watch = watch

    def __reduce__(self) -> tuple[Callable[..., WatchedStore], tuple[object, ...]]:
        return _watched, (self._root, self._watch, self.read_only)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WatchedStore) and (self._root, self._watch) == (other._root, other._watch)

    __hash__ = None  # type: ignore[assignment]

    def with_read_only(self, read_only: bool = False) -> WatchedStore:
        return type(self)(self._root, self._watch, read_only=read_only)

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        if chunk_place(key) is None:
            return await self._store.get(key, prototype, byte_range)
        name, wait_s = self._watch.begin("read", key)
        await asyncio.sleep(wait_s)
        value = await self._store.get(key, prototype, byte_range)
        self._watch.record.end(name)
        return value

    async def set(self, key: str, value: Buffer) -> None:
        if chunk_place(key) is None:
            await self._store.set(key, value)
            return
        name, _ = self._watch.begin("write", key)
        await self._store.set(key, value)
        self._watch.record.end(name)


def _watched(root: Path, watch: Watch, read_only: bool) -> WatchedStore:
    return WatchedStore(root, watch, read_only=read_only)


@contextmanager
def serving(folder: Path, watches: Mapping[str, Watch]) -> Iterator[str]:
    """Serve the arrays in a folder over HTTP, on this machine, while the context lasts; yield the address.

    Parameters
    ----------
    folder : Path
        Holds the arrays, by the names in ``watches``.
    watches : mapping of str to Watch
    """
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(_WatchedFiles, watches=watches, directory=str(folder))
    )
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _WatchedFiles(http.server.SimpleHTTPRequestHandler):
    def __init__(self, *arguments: Any, watches: Mapping[str, Watch], **options: Any) -> None:
        self._watches = watches
        super().__init__(*arguments, **options)

    def do_GET(self) -> None:
        """Answer a request for a file, of chunks with the faults."""
        array, _, key = self.path.strip("/").partition("/")
        if chunk_place(key) is None:
            super().do_GET()
            return
        watch = self._watches[array]
        try:
            name, wait_s = watch.begin("read", key)
        except InjectedFault as fault:
            self.send_error(REFUSED, f"{type(fault).__name__}: {fault}")
            return
        time.sleep(wait_s)
        super().do_GET()
        watch.record.end(name)

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - as it is called there
        """Say nothing."""
