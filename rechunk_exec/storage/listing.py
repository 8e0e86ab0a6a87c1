"""The sizes of an array's objects, from listings of parts of it. Layer: storage.

Clients of object stores hold about a kilobyte for each object that they have listed. So of an array with very many, a
folder of its chunks is listed at a time, which takes as many requests: a page tells of a thousand objects at most.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from rechunk_exec.grid import Grid
from rechunk_exec.storage.stored import StoredArray
from rechunk_exec.storage.stores import open_store
from rechunk_exec.storage.told import listed, lists_folders
from rechunk_exec.tasks import ArrayRef

_MOST_OBJECTS = 100_000
"""Listed at once, if the chunks lie in folders that have fewer."""
_FEWEST_OBJECTS = 1_000
"""Of a folder that is listed by itself: those of a page."""

_Sizes = Mapping[str, int | None]


class Listing:
    """The sizes of an array's objects, as they were when each folder was listed.

    Parameters
    ----------
    ref : ArrayRef
    stored : StoredArray
        The array that is there.
    """

    def __init__(self, ref: ArrayRef, stored: StoredArray) -> None:
        self._store = open_store(ref, read_only=True)
        self._path = ref.path
        self._names = self._names_of_folders(stored) if lists_folders(self._store) else 0
        self._folders: dict[str, _Sizes | None] = {}

    def sizes(self, keys: Sequence[str]) -> list[int | None] | None:
        """Return the sizes of those of some objects that are there, in bytes, by keys within the array.

        A size that takes a request of its own is None; where nothing can be listed, so is the answer. Keys are best
        asked for in order: folders without any of them are forgotten where much is held.

        Raises
        ------
        StorageError
            If the array cannot be listed.
        """
        inside: dict[str, list[str]] = {}
        for key in keys:
            folder = "/".join(key.split("/")[: self._names])
            inside.setdefault(folder, []).append(key.removeprefix(f"{folder}/"))
        sizes: list[int | None] = []
        for folder, names in inside.items():
            if folder not in self._folders:
                self._forget_others(inside)
                path = "/".join(filter(None, (self._path, folder)))
                self._folders[folder] = listed(self._store, path)
            there = self._folders[folder]
            if there is None:
                return None
            sizes += [there[name] for name in names if name in there]
        return sizes

    def _forget_others(self, needed: Mapping[str, object]) -> None:
        if sum(len(sizes or ()) for sizes in self._folders.values()) > _MOST_OBJECTS:
            self._folders = {folder: sizes for folder, sizes in self._folders.items() if folder in needed}

    @staticmethod
    def _names_of_folders(stored: StoredArray) -> int:
        """Return how many names of a key, from its first, are the folder that is listed at once; 0 for the array's."""
        if not stored.shape:
            return 0
        grid = Grid(stored.shape, stored.write_unit).grid_shape
        before = len(stored.metadata.encode_chunk_key((0,) * len(grid)).split("/")) - len(grid)
        if before < 0:  # the numbers of a chunk are one name
            return 0
        inside = [prod(grid[axis:]) for axis in range(len(grid))]
        axis = next((axis for axis, objects in enumerate(inside) if objects <= _MOST_OBJECTS), len(grid) - 1)
        if axis and inside[axis] < _FEWEST_OBJECTS:
            axis -= 1
        return before + axis if axis else 0
