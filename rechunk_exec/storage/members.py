"""The arrays inside a group, by path."""

from __future__ import annotations

from collections.abc import Iterator

import zarr
from zarr.abc.store import Store

from rechunk_exec.errors import MissingExtraError, StorageError
from rechunk_exec.storage.failures import Outlook, as_told, outlook, without_queries
from rechunk_exec.storage.persistent import persistent
from rechunk_exec.storage.stores import is_there, local_path, open_store, quiet_zarr
from rechunk_exec.tasks import ArrayRef


def array_paths(ref: ArrayRef) -> tuple[str, ...] | None:
    """Return the paths of all arrays inside the group that ``ref`` names, sorted; None if it is an array itself.

    Paths are relative to the group, groups in groups are walked, and what is no zarr node is passed over. Where the
    group has consolidated metadata, what they name counts, and what they do not name if the store can be listed: an
    array that was added since, or whose job has not ended.

    Raises
    ------
    StorageError
        If nothing is there, or what is there cannot be opened.
    """
    path = local_path(ref)
    if path is not None and not is_there(path):  # zarr would make a folder there
        raise StorageError(f"nothing is at the path of the array or group {ref}")
    try:
        store = open_store(ref, read_only=True)
        with quiet_zarr():
            node = zarr.open(store=store, path=ref.path, mode="r")
            if isinstance(node, zarr.Array):
                return None
            if node.metadata.consolidated_metadata is None:
                return tuple(sorted(_walked(persistent(store), ref.path)))
            paths = {name for name, member in node.members(max_depth=None) if isinstance(member, zarr.Array)}
            try:
                paths.update(_walked(persistent(store), ref.path))
            except Exception as error:
                if outlook(error, remote=True) is Outlook.PASSING:
                    raise  # else what it would have named would be passed over
            return tuple(sorted(paths))
    except (StorageError, MissingExtraError):
        raise
    except Exception as error:  # noqa: BLE001 - told, without what may be signed
        text = without_queries(f"{type(error).__name__}: {error}")
        raise StorageError(f"no array or group could be opened at {ref} (zarr says: {text})") from as_told(error)


def _walked(store: Store, path: str) -> Iterator[str]:
    """Yield the paths of the arrays in a group as the store lists them, whatever consolidated metadata say.

    A group at a time: zarr believes those of inner groups even where it is told not to.
    """
    for name, member in zarr.open_group(store, path=path, mode="r", use_consolidated=False).members():
        if isinstance(member, zarr.Array):
            yield name
        else:
            yield from (f"{name}/{inner}" for inner in _walked(store, f"{path}/{name}".lstrip("/")))
