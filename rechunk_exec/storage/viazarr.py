"""Reading and writing through zarr's array layer, for what the direct way cannot serve.

The codecs run in the Rust pipeline of the package ``zarrs`` where that knows the array, else in zarr's own. Either is
given to our own array object only: zarr's process-wide configuration stays as the user left it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from math import prod
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.abc.codec import CodecPipeline
from zarr.abc.store import ByteRequest, RangeByteRequest, Store
from zarr.core.array import AsyncArray
from zarr.core.buffer import Buffer, BufferPrototype, default_buffer_prototype
from zarr.core.metadata.v2 import ArrayV2Metadata
from zarr.core.metadata.v3 import ArrayV3Metadata
from zarr.storage import LocalStore, StorePath, WrapperStore

from rechunk_exec.errors import StorageError
from rechunk_exec.storage.access import (
    NOTHING_WRITTEN,
    Index,
    Moved,
    Region,
    Scratch,
    UnitReader,
    UnitWriter,
    Written,
    bytes_of,
)
from rechunk_exec.storage.chunkcodec import blosc_size
from rechunk_exec.storage.direct import is_filled
from rechunk_exec.storage.failures import Outlook, ShortAnswerError, outlook
from rechunk_exec.storage.objectbase import Objects
from rechunk_exec.storage.stored import StoredArray
from rechunk_exec.storage.stores import quiet_zarr

_SIZES_KEPT = 4096


class ZarrReader(UnitReader):
    """Reads one chunk at a time through a zarr array."""

    def __init__(self, stored: StoredArray, objects: Objects) -> None:
        super().__init__(stored, objects)
        self.array, self.way = _own_array(
            stored, stored.shape, _BloscAnswers if _is_blosc(stored.metadata) else _Answers
        )

    def read(self, unit: Any, region: Region, scratch: Scratch) -> Moved:
        """Copy the part of chunk ``unit`` that lies in ``region`` into it."""
        low, high = self.unit_box(unit)
        within = region.overlap(low, high)[1]
        shard = tuple(a // size for a, size in zip(low, self.stored.write_unit, strict=True))
        key = self.stored.metadata.encode_chunk_key(shard)
        self.objects.refuse_unreadable(key)
        if self.stored.intermediate:  # there all objects are stored
            self.objects.read(key, length=1, required=True)
        selection = tuple(slice(a + part.start, a + part.stop) for a, part in zip(low, within, strict=True))
        target = region.part(low, high)
        # zarrs fills contiguous memory only.
        out: Any = target if target.flags.c_contiguous else np.empty(target.shape, target.dtype)

        def request() -> None:
            try:
                self.array.get_basic_selection(selection, out=default_buffer_prototype().nd_buffer(out))
            except Exception as error:
                self._refuse_damaged(error, key)
                raise

        name = f"chunk {unit} of {self.stored.array.store_path}"
        self.objects.requests.make(request, "read", name)
        if out is not target:
            target[...] = out
        return Moved(prod(b - a for a, b in zip(low, high, strict=True)) * self.stored.dtype.itemsize, 0)

    def _refuse_damaged(self, error: Exception, key: str) -> None:
        """Raise what it means that the bytes of an object came and could not be decoded."""
        store = self.array.store_path.store
        size = store.take_size(self.objects.name(key)) if isinstance(store, _Answers) else None
        unknown = outlook(error, remote=self.objects.requests.remote) is Outlook.UNKNOWN
        if size is None or not unknown or isinstance(error, MemoryError):
            return
        self.objects.refuse_short(key, size)
        raise StorageError(f"{key} cannot be decoded: {type(error).__name__}: {error}", permanent=True) from error


class ZarrWriter(UnitWriter):
    """Writes one whole write unit at a time through a zarr array.

    zarr reads a unit before it writes a part of it, also at the array's edge, where a torn one would then fail every
    retry. So it is given an array that is a whole number of write units long, of which only the chunks are stored, and
    a store that does not show it what is there.
    """

    def __init__(self, stored: StoredArray, objects: Objects) -> None:
        super().__init__(stored, objects)
        unit = stored.write_unit
        padded = tuple(-(-n // size) * size for n, size in zip(stored.shape, unit, strict=True))
        self.array, self.way = _own_array(stored, padded, _Unread)

    def jobs(self, region: Region) -> AbstractContextManager[Iterator[Index]]:
        """Return the write units of the region."""
        return nullcontext(region.units(self.stored.write_unit))

    def write(self, job: Any, region: Region, scratch: Scratch) -> Written:
        """Write one unit."""
        unit = self.stored.write_unit
        low = tuple(number * size for number, size in zip(job, unit, strict=True))
        high = tuple(start + size for start, size in zip(low, unit, strict=True))
        part = region.part(low, high)
        elements = part if part.shape == unit and part.flags.c_contiguous else self._gather(part)
        key = self.stored.metadata.encode_chunk_key(job)
        left_out = self.stored.fill is not None and not self.stored.intermediate
        if left_out and is_filled(bytes_of(elements), self.stored.fill or b""):
            self.objects.delete(key)
            return NOTHING_WRITTEN
        self.objects.requests.make(
            lambda: self.array.set_basic_selection(tuple(map(slice, low, high)), elements),
            "write",
            f"unit {job} (object {key}) of {self.stored.array.store_path}",
        )
        return Written(1, 0)

    def _gather(self, part: NDArray[Any]) -> NDArray[Any]:
        elements = np.full(self.stored.write_unit, self.stored.absent, dtype=self.stored.dtype)
        elements[tuple(slice(size) for size in part.shape)] = part
        return elements


def _own_array(
    stored: StoredArray, shape: tuple[int, ...], wrapper: type[WrapperStore[Store]] | None
) -> tuple[zarr.Array[Any], str]:
    """Return an array object of ours on the same chunks, and the name of the pipeline that it uses.

    ``wrapper`` stands between the store and zarr's own pipeline.
    """
    metadata: Any = dataclasses.replace(stored.metadata, shape=shape)
    store_path = stored.array.store_path
    # What zarr leaves out must be the fill value to the bit. It takes all NaNs for one, and 0.0 for -0.0 in complex
    # numbers and fields; and the default for null.
    exact = not stored.fixed_size or (stored.dtype.kind not in "cV" and stored.absent == stored.absent)
    config: Any = {"order": "C", "write_empty_chunks": metadata.fill_value is None or stored.intermediate or not exact}
    # zarrs makes requests to stores that are not local by clients of its own.
    local = isinstance(store_path.store, LocalStore)
    pipeline = zarrs_pipeline(metadata, store_path.store, stored.dtype) if local else None
    if pipeline is None and wrapper is not None:
        store_path = StorePath(wrapper(store_path.store), store_path.path)
    with quiet_zarr():
        array = AsyncArray(metadata=metadata, store_path=store_path, config=config)
    if pipeline is not None:
        object.__setattr__(array, "codec_pipeline", pipeline)
    return zarr.Array(array), "zarr" if pipeline is None else "zarrs"


class _Answers(WrapperStore[Store]):
    """A store that remembers how many bytes it gave, in case they cannot be decoded."""

    _supports_sync_io = False  # what zarr 3.4 may read by instead of get

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.sizes: dict[str, int] = {}

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        answer = await super().get(key, prototype, byte_range)
        if answer is not None and byte_range is None:
            self.sizes[key] = len(answer)
            if len(self.sizes) > _SIZES_KEPT:
                self.sizes.pop(next(iter(self.sizes)), None)
        elif answer is not None and isinstance(byte_range, RangeByteRequest):
            wanted = byte_range.end - byte_range.start
            if len(answer) < wanted and await self.getsize(key) >= byte_range.end:
                raise ShortAnswerError(f"it gave {len(answer)} bytes where {wanted} were asked for")
        return answer

    async def getsize(self, key: str) -> int:
        return await self._store.getsize(key)

    def take_size(self, key: str) -> int | None:
        """Return how many bytes were given when an object was last read whole, once."""
        return self.sizes.pop(key, None)


class _BloscAnswers(_Answers):
    """A store of Blosc frames that hands over none that is torn: zarr would decode it, whatever follows in memory."""

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        frame = await super().get(key, prototype, byte_range)
        if frame is not None:
            try:
                blosc_size(memoryview(frame.to_bytes()))
            except StorageError:
                if len(frame) < await self.getsize(key):
                    raise ShortAnswerError(f"it gave {len(frame)} bytes, and there are more") from None
                raise
        return frame


class _Unread(WrapperStore[Store]):
    """A store in which zarr finds nothing: zarr 3.1 reads every shard before it replaces it, whole ones too."""

    _supports_sync_io = False

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        return None


def _is_blosc(metadata: ArrayV2Metadata | ArrayV3Metadata) -> bool:
    """Whether stored objects are Blosc frames."""
    if isinstance(metadata, ArrayV2Metadata):
        return metadata.compressor is not None and metadata.compressor.get_config()["id"] == "blosc"
    return str(metadata.codecs[-1].to_dict()["name"]).removeprefix("numcodecs.") == "blosc"


def zarrs_pipeline(
    metadata: ArrayV2Metadata | ArrayV3Metadata, store: Store, dtype: np.dtype[Any]
) -> CodecPipeline | None:
    """Return the Rust pipeline for an array, or None where it would hand the work to zarr's own."""
    # The kinds and byte orders that zarrs 0.2 passes on to zarr while it runs.
    if dtype.kind in "VSUMmOT" or not dtype.isnative or metadata.fill_value is None:
        return None
    names = [codec.to_dict()["name"] for codec in getattr(metadata, "codecs", ())]
    if "sharding_indexed" in names[:-1]:  # shards are encoded as a whole: zarrs 0.2 reads parts as if they were not
        return None
    from zarrs import ZarrsCodecPipeline

    with quiet_zarr():  # it warns where it cannot serve, which is our question
        try:
            pipeline = ZarrsCodecPipeline.from_array_metadata_and_store(metadata, store)
        except Exception:  # noqa: BLE001 - whatever it says, it does not serve
            return None
    return pipeline if pipeline.impl is not None else None
