"""Where a probe writes: a hidden folder beside the target, or the system's temporary one, gone in the end.

Layer: measuring. Nothing else is written to, and nothing that was there is removed.
"""

from __future__ import annotations

import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from rechunk_exec import storage
from rechunk_exec.errors import RechunkError
from rechunk_exec.storage.objects import Objects, objects_of, put_object
from rechunk_exec.storage.stores import open_store
from rechunk_exec.tasks import ArrayRef

_ENDING = ".rechunk_exec-probe"


@dataclass(slots=True)
class ProbePlace:
    """A place of a probe's own."""

    folder: ArrayRef
    described: str
    """For people."""
    _arrays: list[ArrayRef] = field(default_factory=list)

    def create(self, design: storage.Design, name: str) -> ArrayRef:
        """Create an array of this name here, in place of one of the probe's own."""
        ref = storage.child(self.folder, name)
        if ref in self._arrays:
            storage.remove_array(ref)
        else:
            self._arrays.append(ref)
        storage.create(replace(design, alone=True), ref)
        return ref

    def objects(self) -> Objects:
        """The objects of the place itself."""
        return objects_of(open_store(self.folder, read_only=False), self.folder.path)

    @contextmanager
    def tiny_objects(self, count: int) -> Iterator[tuple[Objects, list[str]]]:
        """Names for objects that are removed in the end, whether they were written or not."""
        objects = self.objects()
        keys = [f"tiny/{number}" for number in range(count)]
        try:
            yield objects, keys
        finally:
            for key in keys:
                with suppress(RechunkError):
                    objects.delete(key)

    def clear(self) -> None:
        """Remove all that was made here."""
        path = storage.local_path(self.folder)
        if path is not None:
            shutil.rmtree(path, ignore_errors=True)
            return
        for ref in self._arrays:
            storage.remove_array(ref)


@contextmanager
def probe_place(beside: ArrayRef | None, purpose: str, needed_bytes: int) -> Iterator[ProbePlace]:
    """Make a hidden place beside an array that need not exist, and remove it in the end.

    Parameters
    ----------
    beside : ArrayRef or None
        None is the system's folder for temporary files; so is a store that keeps for ever what is written to it.
    purpose : str
        What is beside it, for messages.
    needed_bytes : int
        Room that the disk must have.

    Raises
    ------
    StorageError
        If nothing can be written there.
    """
    with ExitStack() as stack:
        if beside is None or not storage.holds_documents(beside):
            folder = Path(tempfile.mkdtemp(suffix=_ENDING))
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            place = ProbePlace(storage.array_ref(folder), f"in the system's temporary folder {folder.parent}")
        else:
            place = ProbePlace(_hidden(beside), f"beside the {purpose} {beside}")
        storage.refuse_unwritable(place.folder, needed_bytes, f"place of the probe {place.described}")
        storage.refuse_inside_array(place.folder)
        stack.callback(place.clear)
        put_object(place.objects(), "tiny/0", b"rechunk_exec")  # what cannot be written shows before anything is timed
        place.objects().delete("tiny/0")
        yield place


def _hidden(beside: ArrayRef) -> ArrayRef:
    """Return a place that nobody has, hidden beside an array; where its folder does not exist, in the nearest one."""
    token = secrets.token_hex(6)
    path = storage.local_path(beside)
    if path is not None:
        folder = path.parent
        while not folder.exists() and folder != folder.parent:
            folder = folder.parent
        return storage.array_ref(folder / f".{path.name}.{token}{_ENDING}")
    if beside.path:
        above, slash, name = beside.path.rpartition("/")
        return replace(beside, path=f"{above}{slash}.{name}.{token}{_ENDING}")
    if isinstance(beside.store, str):
        above, slash, name = beside.store.rstrip("/").rpartition("/")
        if not above.endswith("/"):  # else the last part is the bucket
            return replace(beside, store=f"{above}{slash}.{name}.{token}{_ENDING}")
    return storage.child(beside, f".{token}{_ENDING}")
