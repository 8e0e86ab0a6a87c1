"""Consolidated metadata of the groups above an array: they hold a copy of its metadata, by which readers find it.

A copy of metadata that are gone would have a reader decode the new chunks by the old grid, or miss the array. So an
array that is about to be made leaves the copies before anything of it is removed or written, and comes back, as it is
then, when its job has ended. Formats: ``.zmetadata`` of zarr 2, and the member ``consolidated_metadata`` of a group's
``zarr.json`` in zarr 3. Layer: storage.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from rechunk_exec.errors import StorageError
from rechunk_exec.storage.objects import LocalObjects, Objects, objects_of, put_object
from rechunk_exec.storage.sessions import holds_documents
from rechunk_exec.storage.stores import is_url, local_path, open_store
from rechunk_exec.tasks import ArrayRef

logger = logging.getLogger("rechunk_exec")

_MEMBERS = {2: (".zarray", ".zattrs", ".zgroup"), 3: ("zarr.json",)}
_INLINE = "consolidated_metadata"


def conceal(target: ArrayRef) -> None:
    """Take an array out of the consolidated metadata of all groups above it.

    Raises
    ------
    StorageError
        If a group's metadata cannot be read, or written.
    """

    def leave(entries: dict[str, Any], path: str, _: int) -> None:
        for name in [name for name in entries if name == path or name.startswith(f"{path}/")]:
            del entries[name]

    _edit(target, leave)


def reveal(target: ArrayRef) -> None:
    """Put an array, as it is, into the consolidated metadata of all groups above it that have any.

    Where that fails a warning is logged: the array is whole, and what was consolidated says nothing of it.
    """

    def enter(entries: dict[str, Any], path: str, zarr_format: int) -> None:
        parts = path.split("/")
        for count in range(1, len(parts) + 1):
            name, place = "/".join(parts[:count]), _above(target, len(parts) - count)
            for document in _MEMBERS[zarr_format]:
                key = f"{name}/{document}" if zarr_format == 2 else name
                found = None if place is None else _document(_objects(place), document)
                if found is not None:
                    found.pop(_INLINE, None)
                    entries[key] = found if count == len(parts) else entries.get(key, found)

    try:
        _edit(target, enter)
    except StorageError as error:
        logger.warning(
            "%s is finished, and not in the consolidated metadata of a group above it: %s; run "
            "zarr.consolidate_metadata on that group",
            target,
            error,
        )


def group_of_other_format(target: ArrayRef, zarr_format: int) -> ArrayRef | None:
    """Return the innermost group that an array of a format is to be in, if it is of the other one only."""
    own = "zarr.json" if zarr_format == 3 else ".zgroup"
    with suppress(StorageError):  # which is told when something is written there
        place = _above(target, 1) if holds_documents(target) else None
        while place is not None:
            objects = _objects(place)
            if _is_group(objects):
                return place if _document(objects, own) is None else None
            place = _above(place, 1) if place.path else None  # zarr makes groups up to the root of a store
    return None


def _edit(target: ArrayRef, change: Callable[[dict[str, Any], str, int], None]) -> None:
    """Have ``change`` alter the entries of each group above an array: by path, of the array and the format."""
    if not holds_documents(target):  # a session shows what it has in one commit
        return
    for group, path in _groups_above(target):
        objects = _objects(group)
        for zarr_format, name in ((2, ".zmetadata"), (3, "zarr.json")):
            if isinstance(objects, LocalObjects):
                objects.remove_abandoned(name)
            document = _document(objects, name)
            holder = document if zarr_format == 2 or document is None else document.get(_INLINE)
            entries = holder.get("metadata") if isinstance(holder, dict) else None
            if not isinstance(entries, dict):
                continue
            before = dict(entries)
            change(entries, path, zarr_format)
            if entries != before:
                put_object(objects, name, json.dumps(document, indent=2).encode())


def _groups_above(target: ArrayRef) -> Iterator[tuple[ArrayRef, str]]:
    """Yield the groups that an array is in, from the inside out, and its path in each."""
    count = 1
    path = ""
    place: ArrayRef | None = target
    while place is not None:
        path = f"{_name(place)}/{path}".rstrip("/")
        place = _above(target, count)
        if place is None or not _is_group(_objects(place)):
            return
        yield place, path
        count += 1


def _is_group(objects: Objects) -> bool:
    document = _document(objects, "zarr.json")
    is_group = document is not None and document.get("node_type") == "group"
    return is_group or _document(objects, ".zgroup") is not None


def _objects(ref: ArrayRef) -> Objects:
    return objects_of(open_store(ref, read_only=False), ref.path)


def _document(objects: Objects, name: str) -> dict[str, Any] | None:
    content = objects.read_document(name)
    try:
        document = None if content is None else json.loads(bytes(content))
    except (ValueError, RecursionError) as error:
        raise StorageError(
            f"a group above a target must have metadata that can be read; {objects.name(name)} is no JSON: {error}; "
            "mend it, or give another target_store"
        ) from error
    return document if isinstance(document, dict) else None


def _name(ref: ArrayRef) -> str:
    whole = ref.path or (str(local_path(ref) or "") if not isinstance(ref.store, str) else ref.store)
    return whole.rstrip("/").rpartition("/")[2]


def _above(ref: ArrayRef, count: int) -> ArrayRef | None:
    """Return the place ``count`` folders above an array; None if there is none that the store can open."""
    for _ in range(count):
        if ref.path:
            ref = replace(ref, path=ref.path.rpartition("/")[0])
            continue
        if not isinstance(ref.store, str):
            return None
        parent = ref.store.rstrip("/").rpartition("/")[0]
        if not parent or (is_url(ref.store) and ("::" in ref.store or not urlsplit(parent).path.strip("/"))):
            return None
        ref = replace(ref, store=parent)
    return ref
