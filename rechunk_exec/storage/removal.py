"""Removing arrays, and what killed processes have left. Layer: storage.

An array goes as a whole: at no moment are its chunks under the metadata of another, and what a process that was killed
on the way leaves is known for what it is.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import secrets
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from rechunk_exec.errors import StorageError, TargetExistsError
from rechunk_exec.storage.documents import PREFIX, forget_listings
from rechunk_exec.storage.lease import Lease
from rechunk_exec.storage.objectbase import METADATA_NAMES
from rechunk_exec.storage.objects import PARTIAL_NAME
from rechunk_exec.storage.persistent import persistent
from rechunk_exec.storage.sessions import holds_documents
from rechunk_exec.storage.stores import local_path, open_store
from rechunk_exec.storage.unanswered import sync
from rechunk_exec.tasks import ArrayRef

_STAYS = ("drivers", "job.json")
"""Among our documents: who drives a job there, and what the job is. They say meanwhile that it is unfinished."""

_REMOVERS = 8

_ASIDE = re.compile(r"\.(.+)\.[0-9a-f]{12}\.removed", re.DOTALL)
_LONGEST_ASIDE = 255 - len("..0123456789ab.removed")
"""Bytes of an array's name that fit into the name it is moved aside by: file systems take 255."""
_PARTIAL_OF_ZARR = re.compile(r".+\.[0-9a-f]{32}\.partial", re.DOTALL)
"""Names of files that zarr is writing."""


def remove_array(ref: ArrayRef, lease: Lease | None = None) -> None:
    """Remove an array, chunks and metadata as one: at no moment are old chunks under other metadata.

    Its metadata go first, so that whoever is reading it does not take a chunk that has gone for fill value. On a local
    disk all goes in one step. On stores without folders that takes many, and the record of the job that is to follow,
    and who drives it, stay: a process that is killed on the way leaves an unfinished job.

    The ``lease`` of a job's target outlasts this, and is asked for before each step.

    Raises
    ------
    StorageError
        If it cannot be removed.
    TargetExistsError
        If another driver has taken over.
    """
    path = local_path(ref)
    if lease is not None:
        lease.check()
    try:
        if path is None:
            store = open_store(ref, read_only=False)
            forget_listings(store)
            # Where no documents of ours can be, a session's commit makes it one step.
            check = _nothing if lease is None else lease.check
            documented = holds_documents(ref)
            sync(_remove_objects(persistent(store), ref.path, check) if documented else store.delete_dir(ref.path))
        elif path.is_dir():
            folder = path.resolve()  # a link stays, and leads to an empty folder
            aside = folder.with_name(f".{_name_aside(folder)}.{secrets.token_hex(6)}.removed")
            with nullcontext() if lease is None else lease.carried():
                folder.rename(aside)
                if path.is_symlink():
                    folder.mkdir()
            for name in METADATA_NAMES:  # first, so that who still reads there notices
                (aside / name).unlink(missing_ok=True)
        remove_moved_aside(ref)
    except TargetExistsError:
        raise
    except Exception as error:
        raise StorageError(f"cannot remove the array {ref}: {error}") from error


async def _remove_objects(store: Any, path: str, check: Callable[[], None]) -> None:
    prefix = f"{path}/" if path else ""
    names = [name async for name in store.list_dir(path)]
    if not names:
        return
    for name in METADATA_NAMES:
        await store.delete(prefix + name)
    for name in {*names} - {*METADATA_NAMES, PREFIX, ""}:  # some stores name a mark of the folder ""
        await _remove_tree(store, prefix + name, check)
    for name in [name async for name in store.list_dir(prefix + PREFIX)]:
        if name not in _STAYS:
            await _remove_tree(store, f"{prefix}{PREFIX}/{name}", check)


async def _remove_tree(store: Any, name: str, check: Callable[[], None]) -> None:
    """Remove an object, or all that is under its name."""
    await asyncio.to_thread(check)  # it may make requests of its own
    try:
        await store.delete(name)  # first: a store of files takes no object for a folder
    except (FileNotFoundError, KeyError):
        pass
    except Exception:
        await store.delete_dir(name)  # nor does one that has folders take a folder for an object
        if await store.exists(name):
            raise
        return
    await store.delete_dir(name)


def remove_moved_aside(ref: ArrayRef) -> None:
    """Remove what was moved aside from an array's place, also by a process that was killed before it removed it.

    Local disks only.
    """
    path = local_path(ref)
    for entry in [] if path is None else moved_aside(path):
        _remove_folder(entry)


def moved_aside(path: Path) -> list[Path]:
    """Return what was moved aside from an array's place, and is not removed yet."""
    folder = Path(os.path.realpath(path))  # of links that lead to each other, too
    entries = folder.parent.iterdir() if folder.parent.is_dir() else ()
    found = [(entry, _ASIDE.fullmatch(entry.name)) for entry in entries]
    return [entry for entry, match in found if match is not None and match[1] == _name_aside(folder)]


def _name_aside(folder: Path) -> str:
    """Return what says whose folder it was that was moved aside: its name, or a digest of one that is too long."""
    name = os.fsencode(folder.name)
    return folder.name if len(name) <= _LONGEST_ASIDE else hashlib.sha256(name).hexdigest()


def _remove_folder(folder: Path) -> None:
    """Remove a folder, its files several at a time: giving back the pages of large ones takes the system a while."""
    files = _files(folder)
    turn = threading.Lock()

    def unlink_some() -> None:  # a loop, not a call a file: a job of tiny tasks has made as many files as it had tasks
        while True:
            with turn:
                path = next(files, None)
            if path is None:
                return
            path.unlink()

    with ThreadPoolExecutor(_REMOVERS) as pool:
        for done in [pool.submit(unlink_some) for _ in range(_REMOVERS)]:
            done.result()
    shutil.rmtree(folder)


def _files(folder: Path) -> Iterator[Path]:
    """Yield the files under a folder as they are found: no folder's names are all held at once."""
    folders: list[Path] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                folders.append(Path(entry.path))
            else:
                yield Path(entry.path)
    for inner in folders:
        yield from _files(inner)


def remove_partials(ref: ArrayRef) -> None:
    """Remove the files that processes which died were still writing, by zarr too; no task may be running.

    Local disks only.
    """
    _remove_partials(local_path(ref))


def remove_partial_documents(ref: ArrayRef) -> None:
    """Remove what drivers which died were still writing beside an array; for its one driver only. Local disks only."""
    path = local_path(ref)
    _remove_partials(None if path is None else path / PREFIX)


def _remove_partials(folder: Path | None) -> None:
    for partial in () if folder is None else folder.rglob("*.partial"):
        if PARTIAL_NAME.fullmatch(partial.name) or _PARTIAL_OF_ZARR.fullmatch(partial.name):
            partial.unlink(missing_ok=True)


def _nothing() -> None:
    """Ask nobody."""
