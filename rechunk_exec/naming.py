"""Where arrays are: loose names of stores made exact references. Layer: with the job, below the api."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

import zarr

from rechunk_exec import storage
from rechunk_exec.errors import PlanError, StorageError
from rechunk_exec.staging import JobPlaces
from rechunk_exec.tasks import ArrayRef, OptionValue

Options: TypeAlias = Mapping[str, OptionValue]

RESERVED = frozenset({"zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata"})
"""Names of metadata documents, which no node may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Where the arrays of a job are to be, as it was asked for."""

    source: object
    target_store: object
    temp_store: object
    array_name: str | None
    storage_options: Options | None
    temp_storage_options: Options | None


def job_places(wanted: Wanted) -> JobPlaces:
    """Return where the arrays of a job are; the folder of its intermediates is not named yet.

    Raises
    ------
    PlanError
        If an array has no place, or options are for none.
    StorageError
        If a place is read only.
    """
    _refuse_idle_options("storage_options", wanted.storage_options, wanted.source, wanted.target_store)
    _refuse_idle_options("temp_storage_options", wanted.temp_storage_options, wanted.temp_store)
    source = source_ref(wanted.source, wanted.storage_options)
    if wanted.target_store is None:
        target = storage.beside(source, "-rechunked")
        if target is None:
            raise PlanError(f"the source {source} has no place beside it for the target; give target_store")
    else:
        _refuse_read_only(wanted.target_store, "target_store")
        target = target_ref(wanted.target_store, None, wanted.storage_options)
    target = named(target, wanted.array_name)
    temp = None
    if wanted.temp_store is not None:
        _refuse_read_only(wanted.temp_store, "temp_store")
        temp = storage.array_ref(wanted.temp_store, "", _options_for(wanted.temp_store, wanted.temp_storage_options))
    return JobPlaces(source, target, None, temp)


def target_ref(store: object, array_name: str | None, options: Options | None) -> ArrayRef:
    """Return the reference of a target, as ``target_store`` and ``array_name`` say."""
    return named(storage.array_ref(store, "", _options_for(store, options)), array_name)


def named(target: ArrayRef, array_name: str | None) -> ArrayRef:
    """Return the reference of the array of that name inside a store; None is the store itself."""
    if array_name is None:
        return target
    # A path, not a store of its own: so the store becomes a group.
    return replace(target, path="/".join(filter(None, (target.path, node_path(array_name)))))


def _refuse_read_only(store: object, name: str) -> None:
    """Raise if a live store says that it is not to be written, which a path made of it would no longer say."""
    if getattr(store, "read_only", False) is True:
        raise StorageError(f"{name} must be a store that can be written; got the read-only {store}; give another one")


def node_path(name: object) -> str:
    """Return the path of a node; what the zarr specifications reserve is no name of one."""
    # zarr takes a backslash for a slash: chunks would not lie where it looks for them.
    parts = name.replace("\\", "/").strip("/").split("/") if isinstance(name, str) else [""]
    if any(not part.strip(".") or part in RESERVED or part.startswith("__") or "\0" in part for part in parts):
        raise PlanError(
            f"array_name must be a path inside target_store, such as 'layers/displacement'; got {name!r}; zarr "
            f"reserves dots alone, {', '.join(sorted(RESERVED))} and what begins with __"
        )
    return "/".join(parts)


def source_ref(source: object, storage_options: Options | None) -> ArrayRef:
    """Return the reference of an array that is read."""
    if isinstance(source, zarr.Array):
        return storage.array_ref(source.store_path)
    if isinstance(source, zarr.Group):
        raise PlanError("a group has several arrays; give one of them as the source (groups come in a later version)")
    try:
        return storage.array_ref(source, "", _options_for(source, storage_options))
    except StorageError as error:
        kind = "" if isinstance(source, str) else f"; got a {type(source).__name__}"
        raise PlanError(
            f"the source must be a path, a URL, a zarr array or a zarr store{kind or f': {error}'}"
        ) from error


def _refuse_idle_options(name: str, options: object, *stores: object) -> None:
    """Raise if options are no dict, or if no store would get them."""
    if options is not None and not isinstance(options, Mapping):
        raise PlanError(f"{name} must be a dict of options by name; got {options!r}")
    if options and not any(isinstance(store, str) and storage.is_url(store) for store in stores):
        raise PlanError(
            f"{name} go with a URL (s3://...); got {', '.join(map(str, options))} and no URL; leave them out, or give "
            "the store by its URL"
        )


def _options_for(store: object, options: Options | None) -> Options | None:
    return options if isinstance(store, str) and storage.is_url(store) else None


def node_ref(node: object, storage_options: Options | None) -> ArrayRef:
    """Return the reference of an array or group that is read."""
    return storage.array_ref(node.store_path) if isinstance(node, zarr.Group) else source_ref(node, storage_options)
