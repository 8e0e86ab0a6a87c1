"""Small documents of ours beside an array's chunks, under :data:`PREFIX`.

They lie inside the array's own folder, so that they go where it goes: whoever renames, copies or deletes the array has
done the same to them. A name that begins with a dot is no chunk key and no node of either zarr format, so other tools
pass it over.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from zarr.abc.store import Store
from zarr.storage import FsspecStore

from rechunk_exec.errors import StorageError
from rechunk_exec.storage.failures import as_told, says_nothing_is_there, without_queries
from rechunk_exec.storage.objects import objects_of, put_object
from rechunk_exec.storage.persistent import persistent
from rechunk_exec.storage.retry import Requests
from rechunk_exec.storage.stores import local_path, open_store
from rechunk_exec.storage.unanswered import each_of, sync
from rechunk_exec.tasks import ArrayRef

T = TypeVar("T")

PREFIX = ".rechunk_exec"

_ENDING = ".json"
_REQUESTS = 16
"""How many documents are asked for at once of a store that is no local disk."""
_LOOKS = 2
"""How often a folder is listed at least, while others may write to it."""


class Documents:
    """The documents beside one array, by names such as ``job`` or ``drivers/7f3a``. Each is written whole.

    Parameters
    ----------
    ref : ArrayRef
        The array. It need not exist.
    read_only : bool
        Whether nothing is to be written.
    """

    def __init__(self, ref: ArrayRef, *, read_only: bool) -> None:
        self._ref = ref
        self._store = open_store(ref, read_only=read_only)
        self._objects = objects_of(self._store, ref.path)

    def write(self, name: str, text: str, *, durable: bool = False) -> None:
        """Write a document, in place of what had its name.

        ``durable`` waits until it is on the disk, where the store is a local one: it then outlasts a power cut.
        """
        key = f"{PREFIX}/{name}{_ENDING}"
        put_object(self._objects, key, text.encode())
        folder = local_path(self._ref) if durable else None
        if folder is not None:
            _flush(folder, key)

    def read(self, name: str) -> str | None:
        """Return a document, or None if there is none of this name."""
        try:
            content = self._objects.read_document(f"{PREFIX}/{name}{_ENDING}")
        except StorageError as error:
            if says_nothing_is_there(error):
                return None
            raise
        return None if content is None else bytes(content).decode(errors="replace")  # who reads it finds the damage

    def names(self, folder: str = "", *, filled: bool = False) -> list[str]:
        """Return the names of the documents in a folder, in order; only those that hold something if ``filled``.

        Other stores than a local disk put a document whole or not at all: there all count as filled.
        """
        local = self.local_folder(folder)
        names = self._list(folder) if not filled or local is None else _filled(local)
        return sorted(
            name.removesuffix(_ENDING) for name in names if name.endswith(_ENDING) and not name.startswith(".")
        )

    def local_folder(self, folder: str) -> Path | None:
        """Return where a folder of documents is on a local disk; None if it is in another store."""
        root = local_path(self._ref)
        return None if root is None else root / PREFIX / folder

    def folders(self) -> list[str]:
        """Return the names of the folders of documents, in order."""
        return sorted(name for name in self._list("") if not name.endswith(_ENDING) and not name.startswith("."))

    def read_all(self, folder: str) -> dict[str, str]:
        """Return the documents of a folder by name; one that is removed meanwhile is left out.

        One that is replaced meanwhile by another, which is written before the first is removed, is found in one form
        at least: a listing may miss both, or name what is gone when it is read; so there is a second one, and more
        until all that were named were there.
        """
        texts: dict[str, str | None] = {}
        looks, gone = 0, True
        while looks < _LOOKS or gone:
            new = [name for name in self.names(folder) if name not in texts]
            texts |= self.read_several(folder, new)
            looks, gone = looks + 1, any(texts[name] is None for name in new)
        return {name: text for name, text in texts.items() if text is not None}

    def read_several(self, folder: str, names: Sequence[str]) -> dict[str, str | None]:
        """Return documents of a folder by name, None for those that are not there."""
        return dict(zip(names, self._for_each(self.read, folder, names), strict=True))

    def delete(self, name: str) -> None:
        """Remove a document if it is there."""
        self._objects.delete(f"{PREFIX}/{name}{_ENDING}")

    def delete_several(self, folder: str, names: Sequence[str]) -> None:
        """Remove documents of a folder that are there."""
        self._for_each(self.delete, folder, names)

    def _for_each(self, request: Callable[[str], T], folder: str, names: Sequence[str]) -> list[T]:
        """Make a request for each of some documents, several at once where each waits for the store."""
        paths = [f"{folder}/{name}" for name in names]
        if local_path(self._ref) is not None or len(names) < 2:
            return [request(path) for path in paths]
        return each_of(request, paths, threads=_REQUESTS)

    def delete_folder(self, folder: str) -> None:
        """Remove a folder of documents, and on a local disk what is above it as far as that leaves it empty."""
        try:
            sync(persistent(self._store).delete_dir(self._path(folder)))
        except Exception as error:
            raise StorageError(f"cannot remove {self._path(folder)} of {self._store}: {error}") from error
        self.tidy()

    def tidy(self) -> None:
        """Remove empty folders of documents, on a local disk."""
        root = local_path(self._ref)
        if root is not None:
            remove_empty((root / PREFIX / "drivers", root / PREFIX))

    def _path(self, folder: str) -> str:
        return "/".join(part for part in (self._ref.path, PREFIX, folder) if part)

    def _list(self, folder: str) -> list[str]:
        return list_names(self._store, self._path(folder))


def missing_folders(ref: ArrayRef) -> tuple[Path, ...]:
    """Return the folders that would have to be made for an array, the innermost first; none if it is on no disk."""
    root = local_path(ref)
    if root is None:
        return ()
    return tuple(folder for folder in (root, *root.parents) if not os.path.lexists(folder))


def make_linked(ref: ArrayRef) -> None:
    """Make the folder that a link leads to where an array is to be, if it is not there."""
    root = local_path(ref)
    if root is not None and root.is_symlink():
        with suppress(OSError):  # which is told when something is written there
            Path(os.path.realpath(root)).mkdir(exist_ok=True)


def remove_empty(folders: Iterable[Path]) -> None:
    """Remove folders, one after the other, that are there and empty."""
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()


def list_names(store: Store, folder: str) -> list[str]:
    """Return the names of what is directly in a folder of a store, as it is now."""
    forget_listings(store)
    try:
        return sync(_names(persistent(store), folder))
    except FileNotFoundError:
        return []
    except Exception as error:  # noqa: BLE001 - told, without what may be signed
        text = without_queries(f"{type(error).__name__}: {error}")
        raise StorageError(f"cannot list {folder or 'the root'} of {store}: {text}") from as_told(error)


def forget_listings(store: Store) -> None:
    """Have a store look anew: fsspec remembers what it has listed, and does not see what other processes write."""
    if isinstance(store, FsspecStore):
        store.fs.invalidate_cache()


async def _names(store: Store, folder: str) -> list[str]:
    names: AsyncIterator[str] = store.list_dir(folder)
    return [name.rstrip("/").rpartition("/")[2] async for name in names]


def _filled(folder: Path) -> list[str]:
    """Return the names of the files in a folder that are not empty, as a power cut leaves them."""

    def request() -> list[str]:
        names = []
        with suppress(FileNotFoundError), os.scandir(folder) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):  # gone since
                    if entry.stat().st_size:
                        names.append(entry.name)
        return names

    return Requests().make(request, "list", str(folder))


def _flush(root: Path, key: str) -> None:
    """Wait until a file is on the disk, and its name, and those of the folders that it may be the first in."""
    path = root / key
    folders = [folder for folder in path.parents if folder == root or root in folder.parents]
    try:
        for place in (path, *folders, root.parent):
            descriptor = os.open(place, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
    except OSError as error:
        raise StorageError(f"cannot write {path} to the disk: {error}") from error
