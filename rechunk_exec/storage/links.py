"""Files of a source that are links to where the target is to be. Layer: storage."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from rechunk_exec.storage.identity import FILES_LOOKED_AT, some_keys
from rechunk_exec.storage.locations import location, overlap
from rechunk_exec.storage.stored import StoredArray
from rechunk_exec.tasks import ArrayRef


def refuse_links_into(target: ArrayRef, source: ArrayRef, stored: StoredArray) -> None:
    """Raise :class:`PlanError` if files of a source, or their folders, are links into the target's folder.

    To replace what is there would destroy them. All in the source's own folder is looked at, and as many chunks as for
    the fingerprint.

    Parameters
    ----------
    target, source : ArrayRef
    stored : StoredArray
        The source.
    """
    one, other = location(source), location(target)
    if one.kind != "file" or other.kind != "file":
        return
    for key in (*_links_in(str(one)), *some_keys(stored, FILES_LOOKED_AT)):
        if (os.path.realpath(Path(str(one), key)) + os.sep).startswith(str(other) + os.sep):
            raise overlap(source, target, f": {key!r} of the source leads there by a link")


def _links_in(folder: str) -> list[str]:
    with suppress(OSError), os.scandir(folder) as entries:
        return [entry.name for entry in entries if entry.is_symlink()]
    return []  # such as a zip file
