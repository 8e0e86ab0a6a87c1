"""What tells one job from another: the fingerprint that a job is resumed by. Layer: storage."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from zarr.core.buffer import default_buffer_prototype

from rechunk_exec.grid import Grid
from rechunk_exec.storage.sessions import session_of
from rechunk_exec.storage.stamps import Stamp, file_stamp, object_stamps
from rechunk_exec.storage.stored import StoredArray
from rechunk_exec.storage.stores import local_path, quiet_zarr, zip_file
from rechunk_exec.tasks import ArrayRef

FILES_LOOKED_AT = 256
"""On a local disk."""
_OBJECTS_LOOKED_AT = 16
"""Of an object store, where each takes a request."""
_LONGEST_TEXT = 200
_DOCUMENTS = {2: (".zarray", ".zattrs"), 3: ("zarr.json",)}
"""Names of an array's metadata documents, by zarr format."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """What must be the same for a job to go on: the source, the target that is wanted, and the budget."""

    source: str
    """The source's path or URL."""
    source_metadata: Mapping[str, str]
    """The members of its metadata documents, as JSON; long ones by their SHA-256."""
    source_chunks: tuple[Stamp, ...]
    """Of some chunks, spread evenly; of all where there are few. None where a snapshot tells all."""
    source_documents: tuple[Stamp, ...] = ()
    """Of its metadata documents. Jobs of before this was looked at have none."""
    source_snapshot: str = ""
    """Of a source in an icechunk repository: the snapshot that its session is of."""
    target_metadata: Mapping[str, str]
    """The members of the metadata documents that the target is to have."""
    max_mem: int
    """In bytes."""
    temp: str
    """Where intermediates are; empty if that was not asked for, and they are beside the target."""
    temp_codecs: str = ""
    """How chunks of intermediates are stored, as JSON; empty for raw."""

    def differences(self, other: Fingerprint, *, with_temp: bool) -> list[str]:
        """Return what differs between this job, which was begun, and another one, for people."""
        found = [
            *_places_differ("source", self.source, other.source),
            *_differ("max_mem", self.max_mem, other.max_mem),
            *_members_differ("the source's", self.source_metadata, other.source_metadata),
            *_members_differ("the target's", self.target_metadata, other.target_metadata),
        ]
        if with_temp:
            found += _places_differ("temp_store", self.temp, other.temp)
            found += _differ("temp_options", self.temp_codecs or None, other.temp_codecs or None)
        if not found and self.source_snapshot not in {"", other.source_snapshot}:
            text = _differ("the source's snapshot", self.source_snapshot, other.source_snapshot or None)
            found = [f"{text[0]} (Repository.readonly_session(snapshot_id=...) opens the former)"]
        if not found:
            documents = _changed(self.source_documents, other.source_documents)
            found = [f"the source's {name} was written since" for name in documents]
            keys = _changed(self.source_chunks, other.source_chunks)
            if keys:
                first = f"chunk {keys[0]}" if keys[0] else "file"
                found.append(f"the source's {first} was written since" + _more(len(keys) - 1))
        return found


def fingerprint(
    source: StoredArray, source_ref: ArrayRef, target: StoredArray, *, max_mem: int, temp: ArrayRef | None
) -> Fingerprint:
    """Return the fingerprint of a job that copies ``source`` to an array like ``target``.

    Raises
    ------
    StorageError
        If the source's chunks or metadata documents cannot be looked at, after the tries.
    """
    state = _state(source, source_ref)
    return Fingerprint(
        source=str(source_ref),
        source_metadata=_members(source),
        source_chunks=state.chunks,
        source_documents=state.documents,
        source_snapshot=state.snapshot,
        target_metadata=_members(target),
        max_mem=max_mem,
        temp="" if temp is None else str(temp),
    )


def layout_differences(begun: Fingerprint, there: StoredArray) -> list[str]:
    """Return in what, besides attributes, an array is not as the target of a job was to be; for people."""
    wanted = {name: value for name, value in begun.target_metadata.items() if not name.startswith("attribute")}
    return _members_differ("its", wanted, _shortened(layout_members(there)))


def layout_members(stored: StoredArray) -> dict[str, str]:
    """Return the members of an array's metadata documents but for attributes, as JSON."""
    return {name: value for name, value in _whole_members(stored).items() if not name.startswith("attribute")}


def _members(stored: StoredArray) -> dict[str, str]:
    return _shortened(_whole_members(stored))


def _shortened(members: Mapping[str, str]) -> dict[str, str]:
    """Put the SHA-256 of a long member in its place."""
    return {
        name: text if len(text) <= _LONGEST_TEXT else "sha256:" + hashlib.sha256(text.encode()).hexdigest()
        for name, text in members.items()
    }


def _whole_members(stored: StoredArray) -> dict[str, str]:
    with quiet_zarr():
        documents = stored.metadata.to_buffer_dict(default_buffer_prototype())
    members: dict[str, str] = {}
    for name, document in documents.items():
        for member, value in json.loads(document.to_bytes()).items():
            named = f"attribute {member}" if name == ".zattrs" else member
            members[named] = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return members


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    """What tells one state of a source from another."""

    snapshot: str = ""
    chunks: tuple[Stamp, ...] = ()
    documents: tuple[Stamp, ...] = ()


def _state(stored: StoredArray, ref: ArrayRef) -> _State:
    store, folder, archive = stored.array.store, local_path(ref), zip_file(stored.array.store)
    if archive is not None:
        return _State(chunks=(file_stamp("", archive),))
    names = _DOCUMENTS[stored.metadata.zarr_format]
    if folder is not None:
        return _State(
            chunks=tuple(file_stamp(key, folder / key) for key in some_keys(stored, FILES_LOOKED_AT)),
            documents=tuple(file_stamp(name, folder / name) for name in names),
        )
    session = session_of(ref.store)
    snapshot = "" if session is None else session.snapshot_id
    if session is not None and not session.has_uncommitted_changes:
        return _State(snapshot=snapshot)
    return _State(
        snapshot=f"{snapshot} with uncommitted changes" if snapshot else "",
        chunks=object_stamps(store, ref.path, some_keys(stored, _OBJECTS_LOOKED_AT)),
        documents=object_stamps(store, ref.path, names),
    )


def _changed(begun: Iterable[Stamp], now: Iterable[Stamp]) -> list[str]:
    there = {stamp.key: stamp for stamp in now}
    return sorted(one.key for one in begun if one.key not in there or one.shows_change(there[one.key]))


def some_keys(stored: StoredArray, most: int) -> Iterator[str]:
    """Yield the keys of some objects of an array, spread evenly; of all where there are few."""
    grid = Grid(stored.shape, stored.write_unit)
    last = len(grid) - 1
    steps = range(min(most, len(grid)))
    for number in steps if last < most else (step * last // (most - 1) for step in steps):
        yield stored.metadata.encode_chunk_key(grid.index(number))


def _members_differ(whose: str, begun: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    names = [*begun, *(name for name in now if name not in begun)]
    return [text for name in names for text in _differ(f"{whose} {name}", begun.get(name), now.get(name))]


def _differ(name: str, begun: object, now: object) -> list[str]:
    return [] if begun == now else [f"{name}: {_text(begun)} then, {_text(now)} now"]


def _places_differ(name: str, begun: str, now: str) -> list[str]:
    """Compare what names two places, as they are now: the words of a job that was begun stay as they were given."""
    return [] if _place(begun) == _place(now) else _differ(name, begun or None, now or None)


def _place(text: str) -> str:
    """Return a path without links on the way, or a URL without a slash at its end."""
    if not text.startswith("/"):
        return text.rstrip("/")
    with suppress(ValueError):  # a name with NUL, which is refused where it is opened
        return os.path.realpath(text)
    return text


def _text(value: object) -> str:
    return "none" if value is None else str(value)


def _more(count: int) -> str:
    return f", and {count} more of those looked at" if count else ""
