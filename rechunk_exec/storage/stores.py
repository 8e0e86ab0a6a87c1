"""Loose names of stores made exact: a path, URL, mapping or zarr store in, a zarr store out."""

from __future__ import annotations

import errno
import inspect
import os
import threading
import warnings
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from functools import cache
from glob import has_magic
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from zarr.abc.store import Store
from zarr.core.sync import sync
from zarr.storage import FsspecStore, LocalStore, MemoryStore, StorePath, WrapperStore, ZipStore

from rechunk_exec.errors import MissingExtraError, StorageError
from rechunk_exec.storage.clients import able
from rechunk_exec.storage.retry import Requests
from rechunk_exec.storage.sessions import session_store
from rechunk_exec.tasks import ArrayRef, OptionValue, is_secret, secret_in

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
        If ``store`` is nothing that zarr takes as a store, or wraps an icechunk store, which takes no ranges past the
        end of an object and no keys but zarr's, so that it has to be known.
    """
    options = dict(storage_options or {})
    store = session_store(store) or store
    if isinstance(store, WrapperStore) and session_store(unwrapped(store)) is not None:
        raise StorageError(
            f"an icechunk store must be given as it is, or its session; got it in a {type(store).__name__}; give what "
            "that wraps"
        )
    if isinstance(store, StorePath):
        return array_ref(store.store, "/".join(part for part in (store.path, path) if part), options)
    if isinstance(store, LocalStore):
        return ArrayRef(store=_absolute(store.root), path=path)
    archive = zip_file(store)
    if archive is not None and archive.suffix == ".zip":  # others are known as archives by their store alone
        return ArrayRef(store=_absolute(archive), path=path)
    if isinstance(store, Store):
        return ArrayRef(store=store, path=path)
    if isinstance(store, str) and is_url(store) and (options or not store.startswith("local://")):
        return ArrayRef(store=store, path=path, storage_options=options)
    if options:
        raise StorageError(f"storage_options go with a URL (s3://...); got the store {store!r}")
    if isinstance(store, str) and not store:
        raise StorageError("a path must not be empty; got ''")
    if isinstance(store, (str, os.PathLike)) and not hasattr(store, "fs"):
        return ArrayRef(store=_absolute(Path(_local_path(os.fspath(store))).expanduser()), path=path)
    return ArrayRef(store=_live_store(store), path=path)


def open_store(ref: ArrayRef, *, read_only: bool) -> Store:
    """Return the zarr store that ``ref`` names. Nothing is created by this."""
    live = session_store(ref.store) or ref.store
    if isinstance(live, Store):
        return able(live)
    if not isinstance(ref.store, str):
        raise StorageError(f"a store must be a path, a URL or a zarr store; got {ref.store!r}")
    if is_url(ref.store):
        try:
            return able(_store_of_url(ref.store, ref.storage_options, read_only=read_only))
        except ImportError as error:
            client = _CLIENTS.get(urlsplit(ref.store).scheme)
            if client is not None:
                raise MissingExtraError(*client) from error
            raise StorageError(f"{ref.store} needs a package that is not installed: {error}") from error
        except Exception as error:
            raise StorageError(f"{ref.store} cannot be opened: {type(error).__name__}: {error}") from error
    if ref.store.endswith(".zip") and Path(ref.store).is_file():
        archive = ref.store
        # zarr 3.1 lists none that is not open.
        return Requests().make(lambda: sync(ZipStore.open(archive, mode="r")), "open", f"the zip file {archive}")
    return LocalStore(ref.store, read_only=read_only)


def unwrapped(store: object) -> object:
    """Return the store that is inside zarr's wrappers of stores."""
    while isinstance(store, WrapperStore):
        store = store._store  # noqa: SLF001 - zarr shows it no other way
    return store


def zip_file(store: object) -> Path | None:
    """Return the file that a store of a ZIP archive reads; None of one that was given an open file, and of others."""
    return getattr(store, "path", None) if isinstance(store, ZipStore) else None


class _Client(NamedTuple):
    """What a client of stores depends on."""

    root: str
    """Scheme and host, or bucket, of a URL; all of one that chains several."""
    options: tuple[tuple[str, OptionValue], ...]
    process: int
    """Where it was made: a fork has not the threads of its client."""
    credentials: int
    """What the environment was: a client has read it once."""


def _store_of_url(url: str, options: Mapping[str, OptionValue], *, read_only: bool) -> FsspecStore:
    import fsspec

    parts = urlsplit(url)
    chained = "::" in url
    root = url if chained else f"{parts.scheme}://{parts.netloc}"
    opened = _opened_store(_Client(root, tuple(sorted(options.items())), os.getpid(), _credentials_seen()))
    # The way in which fsspec itself makes a path of a URL.
    path = opened.path if chained else fsspec.get_filesystem_class(parts.scheme)._strip_protocol(url)  # noqa: SLF001
    # gcsfs leaves a slash at the end; zarr then lists keys that nothing has.
    return FsspecStore(fs=opened.fs, path=path.rstrip("/") or path, read_only=read_only)


@cache
def _opened_store(client: _Client) -> FsspecStore:
    """Return a store with a client, one for all threads: fsspec makes one for each thread, which takes long.

    They are kept to the end: there are few, and those of aiohttp complain when they are forgotten.
    """
    # fsspec keeps file systems by their options, whatever the environment was when they were made.
    known: dict[str, OptionValue] = {"skip_instance_cache": True}
    if urlsplit(client.root).scheme in _CLIENTS:
        # Other processes write there: what was listed before is no longer so.
        known["use_listings_cache"] = False
    return FsspecStore.from_url(client.root, storage_options={**known, **dict(client.options)})


_HTTP = ("http", "https")
_CLIENTS = {
    **dict.fromkeys(_HTTP, ("aiohttp", "http")),
    **dict.fromkeys(("s3", "s3a"), ("s3fs", "s3")),
    **dict.fromkeys(("gs", "gcs"), ("gcsfs", "gcs")),
    **dict.fromkeys(("az", "abfs", "abfss"), ("adlfs", "azure")),
}
"""The package that opens URLs of a scheme, and the extra that brings it."""


def _credentials_seen() -> int:
    """Return a number that changes with the environment variables that clients read."""
    names = ("AWS_", "GOOGLE_", "STORAGE_EMULATOR_HOST", "AZURE_", "FSSPEC_")
    return hash(frozenset(item for item in os.environ.items() if item[0].startswith(names)))


def is_read_only(ref: ArrayRef) -> bool:
    """Whether nothing can be written to a store, by its kind or because it says so."""
    if isinstance(ref.store, str):
        return urlsplit(ref.store).scheme in _HTTP or ref.store.endswith(".zip")
    return bool(getattr(ref.store, "read_only", False))


def refuse_name(ref: ArrayRef, purpose: str) -> None:
    """Raise :class:`StorageError` if fsspec removes, or lists, something else than what has the name of a place."""
    store = unwrapped(ref.store)
    magic = has_magic(f"{getattr(store, 'path', store)}/{ref.path}")
    if isinstance(store, str) and (magic or "//" in store.partition("://")[2]):
        store = open_store(ref, read_only=True)
    # Its local file system removes what is named so.
    if not isinstance(store, FsspecStore) or "local" in getattr(store.fs, "sync_fs", store.fs).protocol:
        return
    if magic:
        raise StorageError(
            f"the {purpose} must have no *, ? or [ in its name, where fsspec removes what such a name is a pattern of; "
            f"got {ref}; give another name, or a store of obstore"
        )
    bucket, slashes, _ = store.path.partition("//")
    if bucket and slashes and "/" not in bucket:
        raise StorageError(
            f"the {purpose} must have one slash after the name of its bucket, where fsspec finds nothing in what has "
            f"more; got {ref}; give it without the second one"
        )


def explicit_secret(store: object, depth: int = 4) -> str | None:
    """Return the name of an option with credentials that a live store was made with, or None.

    Such a store works in its own process, but must not be pickled. Credentials of the environment do not count: no
    pickle holds them.
    """
    for name, value in _options_of(store):
        named = (is_secret(name) or name.lower() in _SECRET_HEADERS) and value and value not in _NO_SECRETS
        if named or secret_in(value) is not None:
            return name
        if isinstance(value, Mapping) and depth:
            found = explicit_secret(value, depth - 1)
            if found is not None:
                return found
    if isinstance(store, Mapping) or not depth:
        return None
    # A store may wrap another one, or a file system, or a client.
    inner = (getattr(store, name, None) for name in ("store", "_store", "fs", "sync_fs"))
    return next(filter(None, (explicit_secret(one, depth - 1) for one in inner if one is not None)), None)


_SECRET_HEADERS = ("auth", "authorization", "cookie")
_NO_SECRETS = ("anon", "google_default", "cloud", "browser", "cache")  # words that gcsfs takes for a token


def _options_of(store: object) -> Iterator[tuple[str, object]]:
    """Yield the options, by name, that a store, a file system, a client or a mapping holds."""
    given = (store, getattr(store, "storage_options", None), getattr(store, "config", None))
    for options in given:
        if isinstance(options, Mapping):
            yield from ((str(name), value) for name, value in options.items())
    arguments = getattr(store, "storage_args", None)
    if isinstance(arguments, tuple) and arguments:
        names = list(inspect.signature(type(store)).parameters)
        yield from zip(names, arguments, strict=False)


def is_url(text: str) -> bool:
    """Whether ``text`` names a store that is not a local path."""
    return "://" in text and not text.startswith("file://")


def is_there(path: Path) -> bool:
    """Whether something is at a path; not if it is a link to what is not there.

    Raises
    ------
    StorageError
        If that cannot be seen, as of a folder that one may not look into.
    """

    def request() -> bool:
        try:
            path.stat()
        except (FileNotFoundError, NotADirectoryError, ValueError):  # the last of a name with NUL
            return False
        return True

    return Requests().make(request, "look at", str(path))


def is_too_long(path: Path) -> bool:
    """Whether the file system takes no name so long: then nothing is there."""
    try:
        path.lstat()
    except OSError as error:
        return error.errno == errno.ENAMETOOLONG
    return False


def local_path(ref: ArrayRef) -> Path | None:
    """Return where the array is on a local disk, or None if it is not on one."""
    root = ref.store.root if isinstance(ref.store, LocalStore) else ref.store
    if isinstance(root, str) and (is_url(root) or root.endswith(".zip")):
        return None
    return Path(root) / ref.path if isinstance(root, (str, Path)) else None


def _absolute(path: str | os.PathLike[str]) -> str:
    try:
        return os.path.abspath(path)
    except FileNotFoundError as error:
        raise StorageError(
            f"a relative path is taken from the working directory, and that of this process was removed; got "
            f"{os.fspath(path)!r}; change to a folder that is there, or give an absolute path"
        ) from error


def _local_path(text: str) -> str:
    """Return the path that a text names: in a ``file`` URL each character stands for itself, as in fsspec and zarr."""
    scheme, _, path = text.partition(":")
    if scheme not in ("file", "local") or not path.startswith("/"):
        return text
    if path.startswith("//"):
        path = path.removeprefix("//").removeprefix("localhost")
    if not path.startswith("/"):
        raise StorageError(f"a file URL names an absolute path, as in file:///folder/a.zarr; got {text!r}")
    return f"/{path.lstrip('/')}"


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
