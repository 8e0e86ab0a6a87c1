"""The arrays inside a group, by path, and what cannot be opened there."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Literal

import zarr
from zarr.abc.store import Store
from zarr.core.buffer import Buffer, default_buffer_prototype

from rechunk_exec.errors import MissingExtraError, StorageError
from rechunk_exec.storage.cut import PAGE_TEXT, is_page, undecoded
from rechunk_exec.storage.documents import list_names
from rechunk_exec.storage.failures import Outlook, as_told, has_outlasted, outlook, without_queries
from rechunk_exec.storage.persistent import persistent
from rechunk_exec.storage.stores import is_there, local_path, open_store, quiet_zarr
from rechunk_exec.storage.unanswered import sync
from rechunk_exec.tasks import ArrayRef

_NODE_DOCUMENTS = {2: (".zarray", ".zgroup"), 3: ("zarr.json",)}
"""Where there is one of these, by zarr format, there is a node."""
_OF_GROUPS = (("zarr.json", "node_type", "group"), (".zgroup", "zarr_format", 2))
"""Documents of groups, and what each of them says of a member."""
_OF_NO_NODE = re.compile(r"|\..*|zarr\.json|c\.\d+(\.\d+)*|\d+(\.\d+)+", re.DOTALL)
"""Names in a folder that are of chunks, or of no node."""
_NUMBER = re.compile(r"\d+")
"""The name of a chunk, or of a folder of chunks, or of a node, such as a level of a pyramid."""
_LOOKS_IN_VAIN = 16
"""After so many numbers in a folder that are no nodes the others are chunks, of which an array may have a million."""
_NO_GROUP = "its metadata are neither an array's nor a group's"


@dataclass(frozen=True, slots=True, kw_only=True)
class Members:
    """What a group holds, in groups inside it too, by paths relative to it."""

    arrays: set[str] = field(default_factory=set)
    damaged: dict[str, str] = field(default_factory=dict)
    """Nodes, arrays or groups, that cannot be opened, each with the reason."""


def members_of(ref: ArrayRef) -> Members | None:
    """Return what is inside the group that ``ref`` names; None if it is an array itself.

    Groups in groups are walked, and what is no zarr node is passed over. Where the group has consolidated metadata,
    what they name counts, and what they do not name if the store can be listed: an array that was added since, or whose
    job has not ended. In a group that cannot be opened, what looks like a chunk is not looked at; of names that are
    numbers, as both may have, only some unless they are nodes.

    Raises
    ------
    StorageError
        If nothing is there, or what is there cannot be opened, or not be listed, or an inner node not be looked at for
        a reason that may pass.
    """
    path = local_path(ref)
    if path is not None and not is_there(path):  # zarr would make a folder there
        raise StorageError(f"nothing is at the path of the array or group {ref}")
    try:
        store = open_store(ref, read_only=True)
        with quiet_zarr():
            node = zarr.open(store=persistent(store), path=ref.path, mode="r")
            if isinstance(node, zarr.Array):
                return None
            if not _says_group(store, ref.path):
                raise StorageError(f"no array or group could be opened at {ref}: {_NO_GROUP}")
            found = Members()
            consolidated = node.metadata.consolidated_metadata is not None
            if consolidated:
                members = node.members(max_depth=None)
                found.arrays.update(name for name, member in members if isinstance(member, zarr.Array))
            try:
                _Walk(store, ref.path, node.metadata.zarr_format, found).group("")
            except Exception as error:
                if not consolidated or outlook(error, remote=True) is Outlook.PASSING:
                    raise  # else what it would have named would be passed over
            return found
    except (StorageError, MissingExtraError):
        raise
    except Exception as error:  # noqa: BLE001 - told, without what may be signed
        content = undecoded(error)
        reason = f"zarr says: {_text(error)}" if content is None or not is_page(content) else PAGE_TEXT
        raise StorageError(f"no array or group could be opened at {ref} ({reason})") from as_told(error)


@dataclass(frozen=True, slots=True)
class _Walk:
    """Notes what is in a group; paths are relative to it."""

    store: Store
    root: str
    zarr_format: Literal[2, 3]
    found: Members

    def group(self, path: str) -> None:
        """Note what is in a group as the store lists it, whatever consolidated metadata say.

        A group at a time: zarr believes those of inner groups even where it is told not to.
        """
        place = _joined(self.root, path)
        group = zarr.open_group(persistent(self.store), path=place, mode="r", use_consolidated=False)
        try:
            members = dict(group.members())  # many at once
        except Exception as error:
            if outlook(error, remote=True) is Outlook.PASSING:
                raise
            members = {}  # one of them cannot be opened
        for name in sorted({*list_names(self.store, place), *members}):
            inner = _joined(path, name)
            if name in members:
                self._note(inner, members[name])
            else:  # zarr passes over some that it cannot open
                self._open(inner)

    def _open(self, path: str) -> bool:
        """Note what is there, if it is a node; return whether it is one."""
        place = _joined(self.root, path)
        if not _is_node(self.store, place, self.zarr_format):
            return False
        try:
            member = zarr.open(store=persistent(self.store), path=place, mode="r", zarr_format=self.zarr_format)
        except Exception as error:
            if outlook(error, remote=True) is Outlook.PASSING:
                raise
            self.found.damaged[path] = _text(error)
            self._damaged(path)
        else:
            self._note(path, member)
        return True

    def _note(self, path: str, member: object) -> None:
        """Note a member that zarr has opened, and what is in it."""
        place = _joined(self.root, path)
        if isinstance(member, zarr.Array):
            self.found.arrays.add(path)
        elif self.zarr_format == 2 and _is_there(self.store, f"{place}/.zarray"):
            self.found.damaged[path] = "its .zarray is damaged"  # zarr takes one without members for a group
        elif _says_group(self.store, place):
            self.group(path)
        else:
            self.found.damaged[path] = _NO_GROUP
            self._damaged(path)

    def _damaged(self, path: str) -> None:
        """Note what is in a node that cannot be opened, as far as it can be listed: it may be a group, or an array."""
        try:
            names = list_names(self.store, _joined(self.root, path))
        except StorageError as error:
            if has_outlasted(error):
                raise
            return
        in_vain = 0
        for name in sorted(name for name in names if not _OF_NO_NODE.fullmatch(name)):
            number = _NUMBER.fullmatch(name) is not None
            if number and in_vain == _LOOKS_IN_VAIN:
                continue
            if not self._open(_joined(path, name)) and number:
                in_vain += 1


def _says_group(store: Store, path: str) -> bool:
    """Whether what zarr takes for a group says so in its document: zarr asks for no more than that there is one."""
    for name, member, value in _OF_GROUPS:
        document = _document(store, _joined(path, name))
        if document is not None:
            try:
                content = json.loads(document.to_bytes())
            except (ValueError, RecursionError):
                return False
            return isinstance(content, dict) and content.get(member) == value
    return True  # what consolidated metadata name need not have one


def _is_node(store: Store, path: str, zarr_format: int) -> bool:
    return any(_is_there(store, f"{path}/{name}") for name in _NODE_DOCUMENTS[zarr_format])


def _is_there(store: Store, key: str) -> bool:
    return _document(store, key) is not None


def _document(store: Store, key: str) -> Buffer | None:
    return sync(persistent(store).get(key, default_buffer_prototype()))


def _joined(path: str, name: str) -> str:
    return "/".join(filter(None, (path, name)))


def _text(error: Exception) -> str:
    return without_queries(f"{type(error).__name__}: {error}")
