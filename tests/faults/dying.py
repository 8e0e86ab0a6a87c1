"""Processes that die at their k-th change of a store: on object stores in this one, on a local disk in their own."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from zarr.abc.store import Store
from zarr.core.buffer import Buffer
from zarr.storage import FsspecStore, MemoryStore

_PATIENCE_S = 60
"""How long a process may take that is to die on a local disk."""
_FILE_CHANGES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate", "os.link", "os.symlink"}
"""Audit events of changes that are no opening of a file for writing."""


class Death(BaseException):
    """The end of a process, as if it were killed: nothing that it does then reaches the store."""


@dataclass
class Fuse:
    """Says when a process dies, and counts its changes until then."""

    at: int | None = None
    """The number of the change, from 1, that it does not live to make; None: it lives."""
    torn: bool = False
    """Whether it dies in the midst of that change where it is a write, and half of the object is there."""
    changes: int = 0
    what: str = ""
    """The change."""

    def burn(self, what: str) -> bool:
        """Count a change; raise if the process is dead by now. True: it dies in the midst of this one."""
        if self.what:
            raise Death(self.what)
        self.changes += 1
        if self.changes != self.at:
            return False
        self.what = what
        if not self.torn:
            raise Death(what)
        return True


class Dying(Store):
    """Has a store obey a fuse. It removes a folder object by object, as object stores do."""

    fuse = Fuse()
    _supports_sync_io = False  # what zarr 3.4 may read and write by instead

    async def set(self, key: str, value: Buffer, *args: Any) -> None:
        if self.fuse.burn(f"set {key}"):
            octets = value.to_bytes()
            await super().set(key, value.from_bytes(octets[: len(octets) // 2]))  # type: ignore[safe-super]
            raise Death(key)
        await super().set(key, value, *args)  # type: ignore[safe-super]

    async def set_if_not_exists(self, key: str, value: Buffer) -> None:
        if not await self.exists(key):
            await self.set(key, value)

    async def delete(self, key: str) -> None:
        if self.fuse.burn(f"delete {key}"):
            raise Death(key)
        await super().delete(key)  # type: ignore[safe-super]

    async def delete_dir(self, prefix: str) -> None:
        for key in [key async for key in self.list_prefix(f"{prefix.rstrip('/')}/")]:
            await self.delete(key)


class DyingMemoryStore(Dying, MemoryStore):
    """A store of whole objects in memory."""


class DyingS3Store(Dying, FsspecStore):
    """A bucket, through s3fs."""


def die_on_store(store: Dying, fuse: Fuse, call: Callable[[], object]) -> None:
    """Make a call by which all that is written to a store obeys a fuse."""
    store.fuse = fuse
    try:
        call()
    except Death:
        assert fuse.what
    finally:
        store.fuse = Fuse()


def die_on_disk(fuse: Fuse, call: Callable[[], object]) -> None:
    """Make a call in a process of its own, which dies before that file operation; fail if it ends by an error.

    For a process without threads that the call would need.
    """
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            _obey(fuse, write)
            call()
            os._exit(0)
        except BaseException as error:  # noqa: BLE001 - told to the parent, which must not go on here too
            os.write(write, f"{type(error).__name__}: {error}".encode()[:4000])
            os._exit(3)
    os.close(write)
    with os.fdopen(read) as told:
        text = told.read()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code in {0, 9}, text or code
    fuse.what = text


def _obey(fuse: Fuse, write: int) -> None:
    """Have this process die at its k-th operation that changes files."""
    sys.dont_write_bytecode = True
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(_PATIENCE_S)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            if not flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) or str(path).startswith(("/dev/", "/proc/")):
                return
        elif event not in _FILE_CHANGES:
            return
        try:
            fuse.burn(f"{event} {arguments}")
        except Death:
            os.write(write, fuse.what.encode()[:4000])
            os._exit(9)

    sys.addaudithook(hook)
