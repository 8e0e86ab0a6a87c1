"""Where arrays really are: one form for all ways to name a place, and what must not overlap. Layer: storage.

One array has many names: ``s3://b/a`` and ``s3a://b/a``, the live store that zarr made of either, a store of the bucket
with a path in it, another client's store, one that is read only or wrapped. Whoever replaces an array would destroy a
source that he names in another way than the target. So places are compared as :class:`Location`. What no name tells - a
store of a kind that is not known here, two addresses of one server, a disk that is mounted twice - is found by a
document that was written at the one place and is read at the other:
:meth:`rechunk_exec.storage.lease.Lease.refuse_beside`.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from zarr.storage import FsspecStore, LocalStore, MemoryStore, ObjectStore

from rechunk_exec.errors import PlanError, StorageError
from rechunk_exec.storage.stores import is_url, open_store, unwrapped, zip_file
from rechunk_exec.tasks import ArrayRef

_KINDS = {
    **dict.fromkeys(("file", "local"), "file"),
    **dict.fromkeys(("http", "https"), "http"),
    **dict.fromkeys(("s3", "s3a"), "s3"),
    **dict.fromkeys(("gs", "gcs"), "gs"),
    **dict.fromkeys(("az", "abfs", "abfss"), "az"),
}
"""What is one and the same, by the protocols of fsspec's file systems: here a path says where something is."""
_CACHES = frozenset({"blockcache", "cached", "filecache", "simplecache"})
"""Protocols of file systems that show what another one holds, under the same paths."""
_OBSTORE = {"S3Store": ("s3", "bucket"), "GCSStore": ("gs", "bucket"), "AzureStore": ("az", "container_name")}
"""Of obstore's classes: the kind, and what their configuration calls a bucket."""
_SERVERS = ("account_name", "endpoint_url", "host")
"""What file systems call the server that their paths are on."""
_PORTS = {"http": 80, "https": 443}
_AWS = ("amazonaws.com", "amazonaws.com.cn")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Location:
    """A place, in the one form that all its names lead to."""

    kind: str
    """``file``, ``s3``, ..., or the class of a store that is known by itself alone."""
    parts: tuple[str, ...] = ()
    """Names from the outermost to the innermost: folders, or the bucket or host and what is in it."""
    server: str = ""
    """What the names are of: a host and its port, an account; empty where that is not known."""
    holder: object = None
    """The live object that the names are in, where nothing else tells where that is."""

    def __str__(self) -> str:
        names = "/".join(self.parts)
        return f"/{names}" if self.kind == "file" else f"{self.kind}://{names}"

    def inside(self, *paths: str) -> Location:
        """Return the place under this one."""
        return replace(self, parts=(*self.parts, *_parts(*paths)))

    def overlaps(self, other: Location) -> bool:
        """Whether these are the same place, or one is inside the other, as far as is known."""
        depth = min(len(self.parts), len(other.parts))
        return (
            self.kind == other.kind
            and (self.server == other.server or not (self.server and other.server))
            and _is_same(self.holder, other.holder)
            and self.parts[:depth] == other.parts[:depth]
        )


def location(ref: ArrayRef) -> Location:
    """Return where an array is. Of a URL this makes the client; nothing is asked of its server.

    Raises
    ------
    StorageError
        If there can be no such place, or the client of a URL cannot be made.
    """
    if isinstance(ref.store, str) and not is_url(ref.store):
        return _on_disk(ref.store, ref.path)
    live = open_store(ref, read_only=True) if isinstance(ref.store, str) else ref.store
    found = _of_store(live)
    return _on_disk("/" + "/".join(found.parts), ref.path) if found.kind == "file" else found.inside(ref.path)


def refuse_overlap(source: ArrayRef, target: ArrayRef) -> None:
    """Raise :class:`PlanError` if one array lies at or inside the other, however they are named."""
    one, other = location(source), location(target)
    if one.overlaps(other):
        told = (str(one), str(other)) == (str(source), str(target))
        raise overlap(source, target, "" if told else f", which are {one} and {other}")


def overlap(source: ArrayRef, target: ArrayRef, why: str) -> PlanError:
    """Return the error that tells of a source and a target which are the same, or inside each other."""
    return PlanError(
        f"source and target must not be the same or inside each other; got {source} and {target}{why}; nothing was "
        "touched; give another target_store"
    )


def _of_store(store: object) -> Location:
    """Return where a live store begins."""
    store = unwrapped(store)
    if isinstance(store, LocalStore):
        return _on_disk(store.root)
    if isinstance(store, MemoryStore):
        held = store._store_dict  # noqa: SLF001 - likewise; the store itself may be one of several
        return Location(kind="memory", holder=held).inside(getattr(store, "path", ""))
    if isinstance(store, FsspecStore):
        return _of_file_system(store.fs, store.path)
    if isinstance(store, ObjectStore):
        return _of_obstore(store.store)
    archive = zip_file(store)
    if archive is not None:
        return _on_disk(archive)
    return Location(kind=type(store).__name__, holder=store)


def _of_file_system(fs: Any, path: str) -> Location:
    """Return where a path of one of fsspec's file systems is."""
    while True:
        inner = getattr(fs, "sync_fs", None)  # of one that is wrapped to be asynchronous
        protocols = {fs.protocol} if isinstance(fs.protocol, str) else {*fs.protocol}
        if inner is not None:
            fs = inner
        elif "dir" in protocols:
            fs, path = fs.fs, f"{fs.path}/{path}"
        elif protocols & _CACHES:
            fs = fs.fs
        else:
            break
    kind = next((_KINDS[name] for name in sorted(protocols) if name in _KINDS), "")
    scheme, colon, rest = path.partition("://")
    path = rest if colon and scheme in protocols else path
    if kind == "file":
        return _on_disk(f"/{path}")
    if "memory" in protocols:
        return Location(kind="memory", holder=fs.store).inside(path)
    server = _server_of(fs)
    if kind or server:
        return Location(kind=kind or min(protocols), server=server).inside(path)
    return Location(kind=min(protocols), holder=fs).inside(path)


def _server_of(fs: Any) -> str:
    """Return the server that the paths of a file system are on, as far as it tells."""
    client = getattr(getattr(fs, "_s3", None), "meta", None)  # of s3fs, once it has made a request
    options = {**(getattr(fs, "storage_options", None) or {}), **(getattr(fs, "client_kwargs", None) or {})}
    told = [getattr(client, "endpoint_url", None)]
    told += [value for name in _SERVERS for value in (getattr(fs, name, None), options.get(name))]
    return next((_host(value) for value in told if isinstance(value, str) and value), "")


def _of_obstore(store: Any) -> Location:
    """Return where a store of obstore's begins."""
    prefix = getattr(store, "prefix", None) or ""
    names = [one.__name__ for one in type(store).__mro__]
    if "LocalStore" in names:
        return _on_disk(prefix or "/")
    if "HTTPStore" in names:
        return Location(kind="http").inside(store.url.partition("://")[2])
    kind, bucket = next((_OBSTORE[name] for name in names if name in _OBSTORE), ("", ""))
    if not kind:
        return Location(kind=names[0], holder=store)
    name = store.config.get(bucket, "")
    # A bucket may be part of its server's name.
    server = store.config.get("account_name") or _host(store.config.get("endpoint", "")).removeprefix(f"{name}.")
    return Location(kind=kind, server=server).inside(name, prefix)


def _host(address: str) -> str:
    """Return what two addresses of one server have in common: all of one cloud's share their buckets."""
    parts = urlsplit(address)
    host = parts.hostname or ""
    if not host:
        return address
    if host in {"127.0.0.1", "::1"}:
        host = "localhost"
    port = parts.port or _PORTS.get(parts.scheme)
    return next((cloud for cloud in _AWS if host.endswith(f".{cloud}")), f"{host}:{port}")


def _on_disk(folder: str | os.PathLike[str], path: str = "") -> Location:
    """Return where a path of a disk leads, through links."""
    place = Path(folder, path)
    try:
        return Location(kind="file").inside(os.path.realpath(place))
    except ValueError as error:  # a name with NUL
        raise StorageError(f"nothing can be stored at {str(place)!r}: {error}") from error


def _parts(*paths: str) -> tuple[str, ...]:
    whole = posixpath.normpath("/".join(("", *paths)))
    return tuple(part for part in whole.split("/") if part)


def _is_same(one: object, other: object) -> bool:
    # Mappings are equal where they hold the same; two empty ones are not one place.
    return one is other or (type(one) is type(other) and not isinstance(one, Mapping) and bool(one == other))
