"""Loose names of stores made exact: a path, URL, mapping or zarr store in, a zarr store out."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

from zarr.abc.store import Store
from zarr.core.sync import sync
from zarr.storage import FsspecStore, LocalStore, MemoryStore, StorePath, ZipStore

from rechunk_exec.errors import MissingExtraError, StorageError
from rechunk_exec.storage.sessions import session_store
from rechunk_exec.tasks import ArrayRef, OptionValue

_WARNING_FILTERS = threading.RLock()


@contextmanager
def quiet_zarr() -> Iterator[None]:
    """Hush zarr about dtypes and codecs that its specification does not have yet: the source has them already.

    Filters of warnings are the whole process's, so one thread at a time changes them.
    """
    with _WARNING_FILTERS, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def array_ref(store: object, path: str = "", storage_options: Mapping[str, OptionValue] | None = None) -> ArrayRef:
    """Return the reference that names an array in ``store``, by text wherever the store has a name.

    Parameters
    ----------
    store : str, os.PathLike, zarr store, StorePath, mapping or icechunk session
        A local path becomes absolute, so that a worker with another working directory finds it.
    path : str
        The array's path inside the store.
    storage_options : mapping, optional
        Options for a URL's file system.

    Raises
    ------
    StorageError
        If ``store`` is nothing that zarr takes as a store.
    """
    options = dict(storage_options or {})
    store = session_store(store) or store
    if isinstance(store, StorePath):
        return array_ref(store.store, "/".join(part for part in (store.path, path) if part), options)
    if isinstance(store, LocalStore):
        return ArrayRef(store=os.path.abspath(store.root), path=path)
    if isinstance(store, ZipStore):
        return ArrayRef(store=os.path.abspath(store.path), path=path)
    if isinstance(store, Store):
        return ArrayRef(store=store, path=path)
    if isinstance(store, str) and is_url(store):
        return ArrayRef(store=store, path=path, storage_options=options)
    if options:
        raise StorageError(f"storage_options go with a URL (s3://...); got the store {store!r}")
    if isinstance(store, str) and not store:
        raise StorageError("a path must not be empty; got ''")
    if isinstance(store, (str, os.PathLike)) and not hasattr(store, "fs"):
        return ArrayRef(store=os.path.abspath(Path(_local_path(os.fspath(store))).expanduser()), path=path)
    return ArrayRef(store=_live_store(store), path=path)


def open_store(ref: ArrayRef, *, read_only: bool) -> Store:
    """Return the zarr store that ``ref`` names. Nothing is created by this."""
    live = session_store(ref.store) or ref.store
    if isinstance(live, Store):
        return live
    if not isinstance(ref.store, str):
        raise StorageError(f"a store must be a path, a URL or a zarr store; got {ref.store!r}")
    if is_url(ref.store):
        try:
            return FsspecStore.from_url(ref.store, storage_options=dict(ref.storage_options), read_only=read_only)
        except ImportError as error:
            if urlsplit(ref.store).scheme in ("s3", "s3a"):
                raise MissingExtraError("s3fs", "s3") from error
            raise StorageError(f"{ref.store} needs a package that is not installed: {error}") from error
        except Exception as error:
            raise StorageError(f"{ref.store} cannot be opened: {type(error).__name__}: {error}") from error
    if ref.store.endswith(".zip") and Path(ref.store).is_file():
        return sync(ZipStore.open(ref.store, mode="r"))  # zarr 3.1 lists none that is not open
    return LocalStore(ref.store, read_only=read_only)


def is_url(text: str) -> bool:
    """Whether ``text`` names a store that is not a local path."""
    return "://" in text and not text.startswith("file://")


def local_path(ref: ArrayRef) -> Path | None:
    """Return where the array is on a local disk, or None if it is not on one."""
    root = ref.store.root if isinstance(ref.store, LocalStore) else ref.store
    if isinstance(root, str) and (is_url(root) or root.endswith(".zip")):
        return None
    return Path(root) / ref.path if isinstance(root, (str, Path)) else None


def _local_path(text: str) -> str:
    return unquote(urlsplit(text).path) if text.startswith("file://") else text


def _live_store(store: object) -> Store:
    if isinstance(store, MutableMapping) and not hasattr(store, "fs"):
        return MemoryStore(store)
    fs, root = getattr(store, "fs", None), getattr(store, "root", None) or getattr(store, "path", None)
    if fs is not None and isinstance(root, str):  # an fsspec map or a universal path
        if hasattr(store, "storage_options"):
            return FsspecStore.from_upath(store)
        return FsspecStore.from_mapper(store)
    raise StorageError(
        f"a store must be a path, a URL, a mapping, an fsspec map or a zarr store; got a {type(store).__name__}"
    )
