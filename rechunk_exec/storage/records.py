"""Small documents of ours beside an array's chunks, under :data:`PREFIX`.

A name that begins with a dot is no chunk key and no node of either zarr format, so other tools pass it over.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress

from zarr.abc.store import Store
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync

from rechunk_exec.storage.objects import objects_of
from rechunk_exec.storage.stores import local_path, open_store
from rechunk_exec.tasks import ArrayRef

PREFIX = ".rechunk_exec"


def write_record(ref: ArrayRef, job: str, name: str, text: str) -> None:
    """Write one document beside the array; whole or not at all on a local disk."""
    writer = objects_of(open_store(ref, read_only=False), ref.path).create(f"{PREFIX}/{job}/{name}.json")
    writer.append(text.encode())
    writer.commit()


def read_records(ref: ArrayRef, job: str) -> list[str]:
    """Return the documents of a job beside the array, in any order."""
    return sync(_read_all(open_store(ref, read_only=True), _prefix(ref, job)))


def remove_records(ref: ArrayRef, job: str) -> None:
    """Remove the documents of a job beside the array, and on a local disk their folder if that leaves it empty."""
    sync(open_store(ref, read_only=False).delete_dir(_prefix(ref, job)))
    path = local_path(ref)
    if path is not None:
        with suppress(OSError):
            (path / PREFIX).rmdir()


def _prefix(ref: ArrayRef, *parts: str) -> str:
    return "/".join(part for part in (ref.path, PREFIX, *parts) if part)


async def _read_all(store: Store, prefix: str) -> list[str]:
    texts = []
    names: AsyncIterator[str] = store.list_dir(prefix)
    async for name in names:
        buffer = await store.get(f"{prefix}/{name}", prototype=default_buffer_prototype())
        if buffer is not None and name.endswith(".json"):
            texts.append(buffer.to_bytes().decode())
    return texts
