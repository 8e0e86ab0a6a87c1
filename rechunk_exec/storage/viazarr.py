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
from zarr.abc.store import ByteRequest, Store
from zarr.core.array import AsyncArray
from zarr.core.buffer import Buffer, BufferPrototype, default_buffer_prototype
from zarr.core.metadata.v2 import ArrayV2Metadata
from zarr.core.metadata.v3 import ArrayV3Metadata
from zarr.storage import StorePath, WrapperStore

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
from rechunk_exec.storage.objects import Objects
from rechunk_exec.storage.stored import StoredArray
from rechunk_exec.storage.stores import quiet_zarr


class ZarrReader(UnitReader):
    """Reads one chunk at a time through a zarr array."""

    def __init__(self, stored: StoredArray, objects: Objects) -> None:
        super().__init__(stored)
        self.array, self.way = _own_array(stored, stored.shape, _WholeFrames if _is_blosc(stored.metadata) else None)
        self.objects = objects

    def read(self, unit: Index, region: Region, scratch: Scratch) -> Moved:
        """Copy the part of chunk ``unit`` that lies in ``region`` into it."""
        low, high = self.unit_box(unit)
        within = region.overlap(low, high)[1]
        shard = tuple(a // size for a, size in zip(low, self.stored.write_unit, strict=True))
        self.objects.refuse_unreadable(self.stored.metadata.encode_chunk_key(shard))
        selection = tuple(slice(a + part.start, a + part.stop) for a, part in zip(low, within, strict=True))
        target = region.part(low, high)
        # zarrs fills contiguous memory only.
        out: Any = target if target.flags.c_contiguous else np.empty(target.shape, target.dtype)
        try:
            self.array.get_basic_selection(selection, out=default_buffer_prototype().nd_buffer(out))
        except Exception as error:
            raise StorageError(
                f"chunk {unit} of {self.stored.array.store_path} cannot be read: {type(error).__name__}: {error}"
            ) from error
        if out is not target:
            target[...] = out
        return Moved(prod(b - a for a, b in zip(low, high, strict=True)) * self.stored.dtype.itemsize, 0)


class ZarrWriter(UnitWriter):
    """Writes one whole write unit at a time through a zarr array.

    zarr reads a unit before it writes a part of it, also at the array's edge, where a torn one would then fail every
    retry. So it is given an array that is a whole number of write units long, of which only the chunks are stored, and
    a store that does not show it what is there.
    """

    def __init__(self, stored: StoredArray, objects: Objects) -> None:
        super().__init__(stored)
        unit = stored.write_unit
        padded = tuple(-(-n // size) * size for n, size in zip(stored.shape, unit, strict=True))
        self.array, self.way = _own_array(stored, padded, _Unread)
        self.objects = objects

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
        try:
            if self.stored.fill is not None and is_filled(bytes_of(elements), self.stored.fill):
                self.objects.delete(self.stored.metadata.encode_chunk_key(job))
                return NOTHING_WRITTEN
            self.array.set_basic_selection(tuple(map(slice, low, high)), elements)
        except StorageError:
            raise
        except Exception as error:
            raise StorageError(
                f"unit {job} of {self.stored.array.store_path} cannot be written: {type(error).__name__}: {error}"
            ) from error
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
    config: Any = {"order": "C", "write_empty_chunks": metadata.fill_value is None or not exact}
    pipeline = zarrs_pipeline(metadata, store_path.store, stored.dtype)
    if pipeline is None and wrapper is not None:
        store_path = StorePath(wrapper(store_path.store), store_path.path)
    array = AsyncArray(metadata=metadata, store_path=store_path, config=config)
    if pipeline is not None:
        object.__setattr__(array, "codec_pipeline", pipeline)
    return zarr.Array(array), "zarr" if pipeline is None else "zarrs"


class _WholeFrames(WrapperStore[Store]):
    """A store of Blosc frames that hands over none that is torn: zarr would decode it, whatever follows in memory."""

    _supports_sync_io = False  # what zarr 3.4 may read by instead of get

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        frame = await super().get(key, prototype, byte_range)
        if frame is not None:
            blosc_size(memoryview(frame.to_bytes()))
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
    from zarrs import ZarrsCodecPipeline

    with quiet_zarr():  # it warns where it cannot serve, which is our question
        try:
            pipeline = ZarrsCodecPipeline.from_array_metadata_and_store(metadata, store)
        except Exception:  # noqa: BLE001 - whatever it says, it does not serve
            return None
    return pipeline if pipeline.impl is not None else None
