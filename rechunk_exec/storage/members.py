"""The arrays inside a group, by path."""

from __future__ import annotations

import zarr

from rechunk_exec.errors import MissingExtraError, StorageError
from rechunk_exec.storage.stores import local_path, open_store, quiet_zarr
from rechunk_exec.tasks import ArrayRef


def array_paths(ref: ArrayRef) -> tuple[str, ...] | None:
    """Return the paths of all arrays inside the group that ``ref`` names, sorted; None if it is an array itself.

    Paths are relative to the group, groups in groups are walked, and what is no zarr node is passed over. Where the
    group has consolidated metadata, they say what is in it.

    Raises
    ------
    StorageError
        If nothing is there, or what is there cannot be opened.
    """
    path = local_path(ref)
    if path is not None and not path.exists():  # zarr would make a folder there
        raise StorageError(f"nothing is at the path of the array or group {ref}")
    try:
        store = open_store(ref, read_only=True)
        with quiet_zarr():
            node = zarr.open(store=store, path=ref.path, mode="r")
            if isinstance(node, zarr.Array):
                return None
            members = node.members(max_depth=None)
            return tuple(sorted(name for name, member in members if isinstance(member, zarr.Array)))
    except (StorageError, MissingExtraError):
        raise
    except Exception as error:
        raise StorageError(
            f"no array or group could be opened at {ref} (zarr says: {type(error).__name__}: {error})"
        ) from error
