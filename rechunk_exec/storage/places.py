"""Where arrays go: what is there already, what may be removed, what lies beside it.

Only what we made and marked is ever removed, and an array that the caller asked to be replaced.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from rechunk_exec.errors import PlanError, ResumeError, StorageError, TargetExistsError
from rechunk_exec.storage.documents import PREFIX, list_names
from rechunk_exec.storage.files import is_partial
from rechunk_exec.storage.objectbase import fresh
from rechunk_exec.storage.objects import objects_of, put_object
from rechunk_exec.storage.removal import moved_aside, remove_array, remove_partials
from rechunk_exec.storage.sessions import holds_documents, refuse_resume
from rechunk_exec.storage.stored import open_array
from rechunk_exec.storage.stores import is_read_only, is_too_long, local_path, open_store, refuse_name
from rechunk_exec.tasks import ArrayRef

_MARKER = ".rechunk_exec-temp"
_BESIDE = ".rechunk_exec-temp"
_OF_AN_ARRAY = re.compile(r"|\..*|zarr\.json|c(\.\d+)*|\d+(\.\d+)*", re.DOTALL)
"""Names in an array's folder: hidden ones, as ours are, metadata, and how chunk keys of either format begin.

An empty one is what some stores name who found a marker of the folder."""
_NAMES_TOLD = 5
_REMOVING = "removing.json"
"""Marks what an earlier version has left where it was killed while it removed an array."""


def beside(ref: ArrayRef, ending: str) -> ArrayRef | None:
    """Return the place beside an array, under its name with ``ending`` before ``.zarr``; None if it has no beside."""
    name = ref.path or (ref.store if isinstance(ref.store, str) else "")
    if not name:
        return None
    stem, dot, kind = name.rstrip("/").rpartition(".")
    renamed = f"{stem}{ending}{dot}{kind}" if kind == "zarr" and stem else name.rstrip("/") + ending
    if ref.path:
        return replace(ref, path=renamed)
    return replace(ref, store=renamed)


def new_temp_name(target: ArrayRef) -> str:
    """Return a name for the folder of a new job's intermediates; the job's record keeps it.

    Two machines may have targets of one path, each on its own disk, and share a temp store: so a part of it is random.
    Where there is no record, all of it follows from the target, so that a job begun again finds what it left.
    """
    name = _name_in_temp(_real_place(target))
    return f"{name}-{secrets.token_hex(4)}" if holds_documents(target) else name


def _name_in_temp(target: ArrayRef) -> str:
    # A live store's own text tells it from others of its kind. Names of files need not be UTF-8.
    place = f"{target.store}/{target.path}".encode(errors="surrogatepass")
    return f"rechunk_exec-{hashlib.sha256(place).hexdigest()[:12]}"


def temp_place(target: ArrayRef, temp: ArrayRef | None, name: str) -> ArrayRef | None:
    """Return the folder of a job's intermediates: in ``temp``, or beside the target; None if there is no beside.

    ``name`` is that of the folder in ``temp``, as the job's record says; "" for a job of an earlier version. A target
    in icechunk has no beside.
    """
    target = _real_place(target)
    if temp is not None:
        return child(temp, name or _name_in_temp(target))
    if not holds_documents(target):
        return None
    # Named by the target alone: who moves or copies the target with what is beside it can go on there.
    if target.path:
        return replace(target, path=target.path + _BESIDE)
    return replace(target, store=target.store.rstrip("/") + _BESIDE) if isinstance(target.store, str) else None


def _real_place(ref: ArrayRef) -> ArrayRef:
    """Return the place of an array without links on the way, and as one path, if it is on a local disk."""
    path = local_path(ref)
    if path is None:
        return ref
    with suppress(ValueError):  # a name with NUL, which is refused where it is opened
        path = Path(os.path.realpath(path))
    return replace(ref, store=str(path), path="")


def child(ref: ArrayRef, name: str) -> ArrayRef:
    """Return the place ``name`` inside another one."""
    if isinstance(ref.store, str) and not ref.path:
        return replace(ref, store=f"{ref.store.rstrip('/')}/{name}")
    return replace(ref, path=f"{ref.path}/{name}".lstrip("/"))


def exists(ref: ArrayRef) -> bool:
    """Whether the metadata of an array are at a place."""
    objects = objects_of(open_store(ref, read_only=True), ref.path)
    return any(objects.read(name, fresh) is not None for name in ("zarr.json", ".zarray"))


def refuse_inside_array(target: ArrayRef) -> None:
    """Raise :class:`PlanError` if a target lies inside an array that exists.

    On a local disk at any depth. Of a store that is given, its groups are looked at; of a URL also what is around it,
    as far as its bucket or server.

    Raises
    ------
    PlanError
    StorageError
        If a store cannot be asked, but for one that does not let us look.
    """
    path = local_path(target)
    if path is not None:
        around: Iterator[object] = (folder for folder in path.parents if _holds_array(folder))
    else:
        around = (ref for ref in _refs_above(target) if _stores_array(ref))
    found = next(around, None)
    if found is not None:
        raise PlanError(f"a target must not lie inside an array; got {target} inside the array {found}")


def _refs_above(ref: ArrayRef) -> Iterator[ArrayRef]:
    """Yield what an array on no local disk may be in, from the innermost."""
    for group in groups_above(ref.path):
        yield replace(ref, path=group)
    if isinstance(ref.store, str):
        scheme, colon, place = ref.store.partition("://")
        bucket, _, path = place.strip("/").partition("/")
        for folder in groups_above(path):
            yield replace(ref, store=f"{scheme}{colon}{bucket}/{folder}".rstrip("/"), path="")


def groups_above(path: str) -> Iterator[str]:
    """Yield the paths of the groups that something in a store is in, from the innermost to the root, which is ""."""
    while path:
        path = path.rpartition("/")[0]
        yield path


def _holds_array(folder: Path) -> bool:
    with suppress(OSError, ValueError):  # such as a name with NUL, which is refused where it is opened
        return (folder / ".zarray").is_file() or _is_of_array((folder / "zarr.json").read_bytes())
    return False


def _stores_array(ref: ArrayRef) -> bool:
    try:
        objects = objects_of(open_store(ref, read_only=True), ref.path)
        document = objects.read_document("zarr.json")
        return objects.read(".zarray", fresh) is not None or (document is not None and _is_of_array(bytes(document)))
    except StorageError as error:
        if not error.permanent:
            raise
        return False  # who may write an array need not be allowed to look at what is around it


def _is_of_array(document: bytes) -> bool:
    """Whether a document ``zarr.json`` is of an array; a group's may hold copies of those of its arrays."""
    try:
        found = json.loads(document)
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and found.get("node_type") == "array"


def refuse_existing(source: ArrayRef, target: ArrayRef, mode: str) -> None:
    """Raise if the target's place is taken by what ``mode`` does not replace.

    Raises
    ------
    TargetExistsError
        With the modes ``fail`` and ``overwrite``.
    ResumeError
        With the mode ``resume``, which is asked only where no job of ours was begun.
    """
    try:
        found = _find(target)
    except (OSError, ValueError) as error:
        raise StorageError(f"nothing can be stored at {str(target)!r}: {error}; give another target_store") from error
    what = found.what
    if what is None:
        return
    if (what is Occupant.REMAINS and mode != "fail") or (
        mode == "overwrite" and what in {Occupant.ARRAY, Occupant.JOB}
    ):
        _refuse_foreign(found, source, target)
        return
    if mode == "resume":
        if what is Occupant.ARRAY and not holds_documents(target):
            refuse_resume(target)
        raise ResumeError(
            f"a job is resumed where it was begun; {what.value} is at {target}, and no job is recorded there (the "
            f"source is {source}); nothing was touched; give mode='overwrite' to replace an array, or another "
            "target_store"
        )
    remedy = {
        ("overwrite", False): "mode='overwrite' replaces arrays only; remove it yourself, or give another target_store",
        ("fail", False): "give mode='overwrite' to replace an array, or another target_store",
        ("fail", True): "give mode='resume' to go on with it, or mode='overwrite' to begin anew",
    }[mode, what in {Occupant.JOB, Occupant.REMAINS}]
    raise TargetExistsError(
        f"the target's place must be free: {what.value} is at {target} (the source is {source}); "
        f"nothing was touched; {remedy}"
    )


def _refuse_foreign(found: _Found, source: ArrayRef, target: ArrayRef) -> None:
    """Raise :class:`TargetExistsError` if what is of no array lies in the folder of one that is to be replaced."""
    foreign = sorted(name for name in found.names if not _OF_AN_ARRAY.fullmatch(name))
    if foreign:
        more = f" and {len(foreign) - _NAMES_TOLD} more" if len(foreign) > _NAMES_TOLD else ""
        raise TargetExistsError(
            f"an array is replaced with all that is in its folder, which must be its own; got "
            f"{', '.join(map(repr, foreign[:_NAMES_TOLD]))}{more} inside {target} (the source is {source}); nothing "
            "was touched; move that away, or give another target_store"
        )


def refuse_unwritable(ref: ArrayRef, needed_bytes: int, purpose: str) -> None:
    """Raise :class:`StorageError` if a place cannot be written to and cleared, or is on a disk that is too full."""
    path = local_path(ref)
    if path is None:
        if isinstance(ref.store, str) and is_read_only(ref):
            what = "zip files are" if ref.store.endswith(".zip") else "what HTTP serves is"
            raise StorageError(
                f"the {purpose} must be writable; {what} read only; got {ref}; give a folder or an object store"
            )
        if is_read_only(ref):
            raise StorageError(f"the {purpose} must be writable; got the read-only store {ref}")
        refuse_name(ref, purpose)
        return
    there = path
    try:
        while not there.exists() and there != there.parent:
            there = there.parent
    except OSError as error:  # such as a name that is too long
        raise StorageError(
            f"the {purpose} must be in a folder; {path} cannot be: {error}; give another place"
        ) from error
    if not there.is_dir():
        raise StorageError(f"the {purpose} must be in a folder; {there} is a file, so {path} cannot be")
    if not os.access(there, os.W_OK) or os.statvfs(there).f_flag & os.ST_RDONLY:
        raise StorageError(f"the {purpose} must be writable; {there} is not, so {path} cannot be; give another place")
    free = shutil.disk_usage(there).free
    if free < needed_bytes:
        raise StorageError(
            f"the {purpose} needs {needed_bytes} bytes; the disk of {there} has {free} left; "
            "make room or give another place"
        )


def free_bytes(ref: ArrayRef) -> int | None:
    """Bytes that are free on the disk of a local place; None for other places, and where that is not known."""
    path = local_path(ref)
    try:
        there = next((folder for folder in (path, *path.parents) if folder.exists()), None) if path else None
        return None if there is None else shutil.disk_usage(there).free
    except OSError:
        return None


def refuse_foreign_temp(place: ArrayRef) -> None:
    """Raise :class:`TargetExistsError` if the folder of intermediates holds something, and is not marked as ours."""
    if not holds_documents(place):  # a fork of an icechunk session, which nobody else has
        return
    try:
        taken = _read_mark(place) is None and _find(place).what is not None and not _holds_half_a_mark(place)
    except (OSError, ValueError) as error:
        raise StorageError(f"no intermediates can be stored at {place}: {error}; give another temp_store") from error
    if taken:
        raise TargetExistsError(f"the place of the intermediates must be free or ours; {place} is neither; remove it")


def mark_temp(place: ArrayRef, target: ArrayRef, *jobs: str) -> None:
    """Mark a folder of intermediates as ours, and as of these jobs; see :func:`refuse_foreign_temp`.

    A job that is gone on with has two names for a moment: the one in the journal, and the one that is about to be.
    """
    refuse_foreign_temp(place)
    text = "\n".join((*jobs, str(target)))
    if holds_documents(place):
        put_object(
            objects_of(open_store(place, read_only=False), place.path), _MARKER, text.encode(errors="surrogatepass")
        )


def is_temp_of(place: ArrayRef, job: str) -> bool:
    """Whether a folder of intermediates is marked as of a job, or holds no more than half of a mark.

    Its place follows from the target's alone. Where another target was moved away and back, the intermediates that are
    there may be another job's: of the same sizes, and with other values.
    """
    if not holds_documents(place):
        return True
    path = local_path(place)
    if path is not None and is_too_long(path):
        return False
    mark = _read_mark(place)
    return job in mark.splitlines() if mark is not None else _holds_half_a_mark(place)


def _read_mark(place: ArrayRef) -> str | None:
    objects = objects_of(open_store(place, read_only=True), place.path)
    mark = objects.read(_MARKER, fresh)
    return None if mark is None else bytes(mark).decode(errors="replace")


def _holds_half_a_mark(place: ArrayRef) -> bool:
    """Whether a local folder holds no more than what a process left that was killed while it marked it."""
    path = local_path(place)
    return path is not None and path.is_dir() and all(is_partial(entry.name, _MARKER) for entry in path.iterdir())


def remove_temp(place: ArrayRef, names: Iterable[str]) -> None:
    """Remove the named intermediates and the mark, and the folder if that leaves it empty."""
    if not holds_documents(place):
        return
    for name in names:
        remove_array(child(place, name))
    remove_partials(place)
    objects_of(open_store(place, read_only=False), place.path).delete(_MARKER)
    path = local_path(place)
    if path is not None:
        with suppress(OSError):
            path.rmdir()


class Occupant(Enum):
    """What is at a place, for people."""

    ARRAY = "an array"
    JOB = "an unfinished job"
    REMAINS = "what is left of an array that was being removed"
    GROUP = "a group"
    GROUP_OR_DAMAGED = "a group, or a damaged array,"
    FILE = "a file"
    BROKEN_LINK = "a broken symbolic link"
    OTHER = "something that is no zarr array"


class _Found(NamedTuple):
    """What is at a place."""

    what: Occupant | None
    """None if it is free. An empty folder is free, and so is one with our claims only."""
    names: frozenset[str] = frozenset()
    """Of what is directly in it, if it is a folder."""


def _find(ref: ArrayRef) -> _Found:
    path = local_path(ref)
    if path is not None:
        if path.is_symlink() and not path.exists():
            return _Found(None if moved_aside(path) else Occupant.BROKEN_LINK)  # by a process that was killed then
        if not path.exists():
            return _Found(None)
        if not path.is_dir():
            return _Found(Occupant.FILE)
        names = frozenset(entry.name for entry in path.iterdir())
    else:
        names = frozenset(list_names(open_store(ref, read_only=True), ref.path))
    return _Found(_occupant(ref, names), names)


def _occupant(ref: ArrayRef, names: frozenset[str]) -> Occupant | None:
    ours = set(list_names(open_store(ref, read_only=True), f"{ref.path}/{PREFIX}".lstrip("/"))) if names else set()
    if _REMOVING in ours:
        return Occupant.REMAINS
    if "job.json" in ours and "finished.json" not in ours:
        return Occupant.JOB
    if names <= {PREFIX}:
        return None
    if ".zarray" in names:
        return Occupant.ARRAY
    if "zarr.json" in names:
        return _node_kind(ref)
    return Occupant.GROUP if ".zgroup" in names else Occupant.OTHER


def _node_kind(ref: ArrayRef) -> Occupant:
    try:
        open_array(ref, read_only=True)
    except StorageError:
        return Occupant.GROUP_OR_DAMAGED
    return Occupant.ARRAY
