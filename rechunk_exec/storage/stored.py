"""An opened array, as the copying sees it: its grid of chunks, how they are stored, and what stands for absent ones."""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Literal

import numpy as np
import zarr
from zarr.abc.store import Store
from zarr.api import asynchronous
from zarr.core.metadata.v2 import ArrayV2Metadata
from zarr.core.metadata.v3 import ArrayV3Metadata

from rechunk_exec.errors import StorageError
from rechunk_exec.storage.chunkcodec import ChunkCodec, direct_codec
from rechunk_exec.storage.cut import PAGE_TEXT, Pages, is_page, undecoded
from rechunk_exec.storage.devicecodec import on_device
from rechunk_exec.storage.failures import ShortAnswerError
from rechunk_exec.storage.objectbase import METADATA_NAMES
from rechunk_exec.storage.objects import StoreObjects, requests_to
from rechunk_exec.storage.shards import ShardIndex, shard_index
from rechunk_exec.storage.stores import is_there, local_path, open_store, quiet_zarr
from rechunk_exec.storage.unanswered import sync
from rechunk_exec.tasks import ArrayRef

INTERMEDIATE = ("rechunk_exec", "intermediate")
"""The attribute, name and value, that tells an intermediate from arrays of other people."""

_ALL_NAMES = (*METADATA_NAMES, ".zgroup")
_LIMIT = 2**63


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredArray:
    """What the metadata of an array say of its chunks."""

    array: zarr.Array[Any]
    metadata: ArrayV2Metadata | ArrayV3Metadata
    shape: tuple[int, ...]
    """In elements."""
    dtype: np.dtype[Any]
    """Of the elements in memory, in the stored byte order."""
    chunk: tuple[int, ...]
    """What one call of a codec encodes: the inner chunk if there are shards, in elements, as stored (not clipped)."""
    shard: tuple[int, ...] | None
    """What one object holds, if more than one chunk, in elements."""
    codec: ChunkCodec | None
    """How to decode a chunk without zarr; None if zarr has to."""
    index: ShardIndex | None
    """The form of a shard's index, if there are shards that can be read without zarr."""
    reason: str
    """Why zarr has to decode, or empty."""
    absent: Any
    """The scalar that stands for elements of absent chunks."""
    fill: bytes | None
    """One element's bytes that mark a chunk as not worth storing; None if every chunk is stored (null fill,
    strings)."""

    @property
    def write_unit(self) -> tuple[int, ...]:
        """What one write replaces whole, in elements, not clipped."""
        return self.shard or self.chunk

    @property
    def intermediate(self) -> bool:
        """Whether this is an array of ours between two stages, in which every object is stored."""
        return self.metadata.attributes.get(INTERMEDIATE[0]) == INTERMEDIATE[1]

    @property
    def chunk_bytes(self) -> int:
        """Bytes of a decoded chunk."""
        return prod(self.chunk) * self.dtype.itemsize

    @property
    def fixed_size(self) -> bool:
        """Whether elements have a fixed size: not so strings and objects."""
        return not self.dtype.hasobject and self.dtype.kind != "T"

    @property
    def kind(self) -> str:
        """The dtype whatever its byte order: equal for arrays that can hold each other's elements."""
        return str(self.dtype.newbyteorder("=")) if self.fixed_size else "text"


def open_array(ref: ArrayRef, *, read_only: bool) -> StoredArray:
    """Open the array that ``ref`` names.

    Raises
    ------
    StorageError
        If nothing is there, what is there is no array, or it cannot be read.
    """
    path = local_path(ref)
    if path is not None and not is_there(path):  # zarr would make a folder there
        raise StorageError(f"{_what_is_there(ref)}: {ref}")
    store = open_store(ref, read_only=read_only)

    def opened() -> zarr.Array[Any]:
        with quiet_zarr():
            mode: Literal["r", "r+"] = "r" if read_only else "r+"
            return zarr.Array(sync(asynchronous.open_array(store=store, path=ref.path, mode=mode)))

    pages = Pages()

    def whole() -> zarr.Array[Any]:
        try:
            return opened()
        except Exception as error:
            _refuse_cut(ref, store, error, pages)
            raise

    requests = requests_to(store)
    try:
        array = requests.make(whole if requests.remote else opened, "open", str(ref))
    except StorageError as error:
        raise StorageError(f"{_what_is_there(ref)}: {error}", permanent=error.permanent) from error.__cause__
    return describe(array)


def _refuse_cut(ref: ArrayRef, store: Store, error: Exception, pages: Pages) -> None:
    """Raise :class:`ShortAnswerError` if zarr failed over metadata that are not what the store holds.

    A page counts as such whatever the store tells: it may stand for a server that is busy; unless it is all there is.
    """
    content = undecoded(error)
    if content is None:
        return
    objects = StoreObjects(store, ref.path)
    if is_page(content) and pages.is_all(content, lambda: map(objects.read, _ALL_NAMES)):
        raise StorageError(f"{ref}: {PAGE_TEXT}", permanent=True) from error
    held = any(objects.size(name) == len(content) for name in METADATA_NAMES)
    if is_page(content) or not held:
        raise ShortAnswerError(f"it gave {len(content)} bytes that are no JSON as metadata") from error


def describe(array: zarr.Array[Any]) -> StoredArray:
    """Return what an open array's metadata say of its chunks."""
    metadata = array.metadata
    try:
        chunk, shard = tuple(array.chunks), array.shards
    except NotImplementedError as error:
        raise StorageError(
            f"arrays with a regular chunk grid can be copied; {array.name or array.store_path} has another: {error}"
        ) from error
    _refuse_huge(array)
    _refuse_empty_chunks(array)
    chunk = tuple(max(1, size) for size in chunk)  # of an axis without elements
    codec = direct_codec(metadata)
    index: ShardIndex | str | None = None
    if shard is not None and not isinstance(metadata, ArrayV2Metadata):
        sharding: Any = metadata.codecs[0].to_dict()
        index = "" if isinstance(codec, str) else shard_index(sharding["configuration"], tuple(shard))
    reason = codec if isinstance(codec, str) else index if isinstance(index, str) else ""
    dtype = codec.dtype if isinstance(codec, ChunkCodec) else np.dtype(array.dtype)
    if isinstance(codec, ChunkCodec):
        codec = on_device(codec, prod(chunk) * dtype.itemsize)
    absent, fill = _fill(metadata, dtype)
    return StoredArray(
        array=array,
        metadata=metadata,
        shape=tuple(array.shape),
        dtype=dtype,
        chunk=chunk,
        shard=None if shard is None else tuple(shard),
        codec=codec if isinstance(codec, ChunkCodec) and not reason else None,
        index=index if isinstance(index, ShardIndex) and not reason else None,
        reason=reason,
        absent=absent,
        fill=fill,
    )


def _fill(metadata: ArrayV2Metadata | ArrayV3Metadata, dtype: np.dtype[Any]) -> tuple[Any, bytes | None]:
    value = metadata.fill_value
    if value is None:  # zarr v2's null: absent chunks read as the dtype's default, and no chunk is left out
        return metadata.dtype.default_scalar(), None
    if dtype.hasobject or dtype.kind == "T":
        return value, None
    scalar = np.array(value, dtype=dtype)
    return scalar[()], scalar.tobytes()


def _refuse_huge(array: zarr.Array[Any]) -> None:
    """Raise for what zarr opens although no store holds it: the metadata were edited or damaged."""
    if max(array.shape, default=0) >= _LIMIT or prod(array.shape) * array.dtype.itemsize >= _LIMIT:
        raise StorageError(
            f"an array has less than 2**63 bytes; {array.store_path} has {array.shape} elements of {array.dtype}"
        )


def _refuse_empty_chunks(array: zarr.Array[Any]) -> None:
    """Raise for chunks that hold nothing of an axis that has elements: the metadata were edited or damaged.

    zarr 3.4 takes them for chunks of one element, and keeps what the document says where nobody else sees it.
    """
    document: Any = getattr(array.metadata, "_stored_document", None)
    if document is None:
        chunk = array.shards or array.chunks
    else:
        chunk = document["chunks"] if "chunks" in document else document["chunk_grid"]["configuration"]["chunk_shape"]
    if any(size == 0 < length for size, length in zip(chunk, array.shape, strict=True)):
        raise StorageError(
            f"a chunk must hold elements; {array.store_path} has {array.shape} elements in chunks of {tuple(chunk)}"
        )


def _what_is_there(ref: ArrayRef) -> str:
    path = local_path(ref)
    if path is None:
        return "no array could be opened at"
    if not is_there(path):
        return "nothing is at the path of the array"
    if is_there(path / ".zarray") or _node_type(path / "zarr.json") == "array":
        return "zarr cannot open the array at"
    if is_there(path / ".zgroup") or _node_type(path / "zarr.json") == "group":
        return "a group, not an array, is at"
    return "something that is no zarr array is at"


def _node_type(path: Path) -> object:
    """Return the kind of node that a document of zarr format 3 describes, or None."""
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return document.get("node_type") if isinstance(document, dict) else None
