"""What stores tell of their objects without giving them: sizes, and what changes when one is written. Layer: storage.

Of one object by a request for it alone; of all objects of an array by a listing, of which a page tells of a thousand.
The one module that asks fsspec and obstore themselves: zarr's interface passes on names and sizes only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from zarr.abc.store import Store
from zarr.storage import FsspecStore, MemoryStore, ObjectStore

from rechunk_exec.storage.documents import forget_listings
from rechunk_exec.storage.failures import Outlook, outlook
from rechunk_exec.storage.objects import requests_to
from rechunk_exec.storage.unanswered import sync

_MARKS = (
    *("etag", "generation", "versionid", "version", "md5hash", "contentmd5", "digest", "crc"),
    *("lastmodified", "updated", "mtime", "modified", "created"),
)
"""What clients tell of an object that changes when it is written, the surest first: names in small letters, with no
dashes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a store tells of one object."""

    size: int | None
    """In bytes; None if it does not tell."""
    mark: str
    """What changes when the object is written, with its name: ``etag:"9a0364b9"``; empty if it tells nothing."""


def ask_of(store: Store) -> Callable[[str], Told | None] | None:
    """Return what makes one request for what a store tells of an object, by name; None for a store that tells nothing.

    The request gives None if there is no such object, and raises what the client raises.
    """
    if isinstance(store, FsspecStore):
        return lambda name: _told_by_fsspec(store, name)
    if isinstance(store, ObjectStore) and not _is_memory(store):
        return lambda name: _told_by_obstore(store, name)
    return None


def refuse_failed(error: Exception) -> None:
    """Raise what a client took for an object that is not there, if that is something else: of HTTP, all that fails."""
    reason = error.__cause__
    if reason is not None and outlook(reason, remote=True) is not Outlook.UNKNOWN:
        raise reason from reason.__cause__


def lists_folders(store: Store) -> bool:
    """Whether listing one folder takes less than listing the whole store, as where each page is a request."""
    return isinstance(store, FsspecStore) or (isinstance(store, ObjectStore) and not _is_memory(store))


def listed(store: Store, path: str) -> Mapping[str, int | None] | None:
    """Return the sizes of the objects under ``path`` of a store, in bytes, by key relative to it.

    Where a size takes a request for each object it is None; where nothing can be listed, so is the answer.

    Raises
    ------
    StorageError
        If the store cannot be listed, after the tries.
    """
    if not store.supports_listing:
        return None
    forget_listings(store)
    prefix = f"{path}/" if path else ""
    if isinstance(store, FsspecStore):
        find = _found_by_fsspec
    elif isinstance(store, ObjectStore):
        find = _found_by_obstore
    else:
        find = _found_by_zarr
    found = requests_to(store).make(lambda: find(store, prefix), "list", path or "the root")
    return {name.removeprefix(prefix): size for name, size in found}


def _told_by_fsspec(store: FsspecStore, name: str) -> Told | None:
    try:
        told: Mapping[str, Any] = sync(store.fs._info(_in_fsspec(store, name)))  # noqa: SLF001 - what zarr calls too
    except store.allowed_exceptions as error:
        refuse_failed(error)
        return None
    if told.get("type") == "directory":
        return None
    return Told(size=_size(told), mark=_mark(told))


def _told_by_obstore(store: ObjectStore[Any], name: str) -> Told | None:
    import obstore

    try:
        told = obstore.head(store.store, name)
    except FileNotFoundError:
        return None
    return Told(size=told["size"], mark=_mark(cast(Mapping[str, Any], told)))


def _is_memory(store: ObjectStore[Any]) -> bool:
    """Whether a store's objects are in memory: their ETags are numbers from 0 on, and those of any two alike."""
    return type(store.store).__name__ == "MemoryStore"


def _mark(told: Mapping[str, Any]) -> str:
    values = {name.lower().translate({ord(dash): None for dash in "-_"}): value for name, value in told.items()}
    name = next((name for name in _MARKS if values.get(name) not in (None, "")), None)
    return "" if name is None else f"{name}:{values[name]}"


def _found_by_fsspec(store: Any, prefix: str) -> list[tuple[str, int | None]]:
    folder = _in_fsspec(store, prefix)
    try:
        find = store.fs._find(folder, detail=True, maxdepth=None, withdirs=False)  # noqa: SLF001 - what zarr calls too
        found: Mapping[str, Mapping[str, Any]] = sync(find)
    except FileNotFoundError:
        return []
    root = _in_fsspec(store, "")
    return [(name.removeprefix(root), _size(told)) for name, told in found.items()]


def _found_by_obstore(store: Any, prefix: str) -> list[tuple[str, int | None]]:
    import obstore

    pages: Iterable[Any] = obstore.list(store.store, prefix=prefix or None)
    return [(told["path"], told["size"]) for page in pages for told in page]


def _found_by_zarr(store: Store, prefix: str) -> list[tuple[str, int | None]]:
    async def found() -> list[tuple[str, int | None]]:
        # What zarr's stores do by default to tell a size is to read the object: in memory that costs nothing.
        told = isinstance(store, MemoryStore)
        return [(name, await store.getsize(name) if told else None) async for name in store.list_prefix(prefix)]

    return sync(found())


def _in_fsspec(store: FsspecStore, name: str) -> str:
    root = store.path.rstrip("/")
    return f"{root}/{name}" if root else name


def _size(told: Mapping[str, Any]) -> int | None:
    size = told.get("size")
    return size if isinstance(size, int) else None
