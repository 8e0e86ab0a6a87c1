"""Reading and writing through zarr's array layer, for what the direct way cannot serve.

The codecs run in the Rust pipeline of the package ``zarrs`` where that knows the array, else in zarr's own. Either is
given to our own array object only: zarr's process-wide configuration stays as the user left it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from math import prod
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.abc.codec import CodecPipeline
from zarr.abc.store import ByteRequest, RangeByteRequest, Store, SuffixByteRequest
from zarr.codecs import ShardingCodec
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
from rechunk_exec.storage.unanswered import held

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
        unknown = outlook(error, remote=self.objects.requests.remote) is Outlook.UNKNOWN
        if not isinstance(store, _Answers) or not unknown or isinstance(error, (MemoryError, StorageError)):
            return
        try:
            size = store.take_size((self.array.store_path / key).path)
        except KeyError:
            return
        if size is not None:
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
        wrapped = wrapper(store_path.store)
        if isinstance(wrapped, _Answers):
            wrapped.shards = next(
                (codec for codec in getattr(metadata, "codecs", ()) if isinstance(codec, ShardingCodec)), None
            )
        store_path = StorePath(wrapped, store_path.path)
    with quiet_zarr():
        array = AsyncArray(metadata=metadata, store_path=store_path, config=config)
    if pipeline is not None:
        object.__setattr__(array, "codec_pipeline", pipeline)
    return zarr.Array(array), "zarr" if pipeline is None else "zarrs"


class _Answers(WrapperStore[Store]):
    """A store that remembers how many bytes it gave, in case they cannot be decoded, and gives no part of a torn shard.

    zarr takes an inner chunk whose bytes do not come for one that is absent, and an empty shard for no shard.
    """

    _supports_sync_io = False  # what zarr 3.4 may read by instead of get
    shards: ShardingCodec | None = None
    """How shards are made, if parts of them are asked for."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.sizes: dict[str, int | None] = {}

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        try:
            answer = await held(super().get(key, prototype, byte_range))
        except StorageError:  # it was given up
            raise
        except Exception as error:
            self.sizes.pop(key, None)
            # Clients refuse what lies outside of an object, each in its own words.
            if byte_range is not None and outlook(error, remote=True) is Outlook.UNKNOWN:
                await self._refuse_torn(key, byte_range, 0)
            raise
        if answer is None:
            if byte_range is not None and not self._asks_for_index(byte_range):
                raise _gone(key)
        elif byte_range is not None:
            if len(answer) < _wanted(byte_range):
                await self._refuse_torn(key, byte_range, len(answer))
                raise ShortAnswerError(f"it gave {len(answer)} bytes where {_wanted(byte_range)} were asked for")
            if len(answer) > _wanted(byte_range):
                answer = await self._part(key, byte_range, answer)
        elif self.shards is not None and not len(answer):
            await self._refuse_torn(key, None, 0)
            raise ShortAnswerError("it gave nothing of what there is")
        if answer is not None:
            self.sizes[key] = len(answer) if byte_range is None else None
            if len(self.sizes) > _SIZES_KEPT:
                self.sizes.pop(next(iter(self.sizes)), None)
        return answer

    async def get_ranges(
        self, key: str, byte_ranges: Sequence[ByteRequest | None], *, prototype: BufferPrototype, **joins: int
    ) -> AsyncIterator[Sequence[tuple[int, Buffer | None]]]:
        """How zarr 3.4 asks for inner chunks, of which we read one at a time."""
        for number, byte_range in enumerate(byte_ranges):
            yield [(number, await self.get(key, prototype, byte_range))]

    def _asks_for_index(self, byte_range: ByteRequest) -> bool:
        if isinstance(byte_range, SuffixByteRequest):
            return True
        place: object = None if self.shards is None else self.shards.index_location  # an enum up to zarr 3.2, then text
        at_start = getattr(place, "value", place) == "start"
        return at_start and isinstance(byte_range, RangeByteRequest) and byte_range.start == 0

    async def _part(self, key: str, byte_range: ByteRequest, answer: Buffer) -> Buffer:
        """Return the part that was asked for, of an answer that has more: servers that ignore ranges give all."""
        wanted = _wanted(byte_range)
        if isinstance(byte_range, SuffixByteRequest):
            return answer[len(answer) - wanted :]
        if not isinstance(byte_range, RangeByteRequest):
            return answer
        if len(answer) < byte_range.end:
            await self._refuse_torn(key, byte_range, len(answer))
            raise ShortAnswerError(f"it gave {len(answer)} bytes where {wanted} were asked for")
        return answer[byte_range.start : byte_range.end]

    async def _refuse_torn(self, key: str, byte_range: ByteRequest | None, given: int) -> None:
        """Raise if an object, of which too few bytes came, has no more in that place, or is not there any more."""
        try:
            size = await self.getsize(key)
        except FileNotFoundError:
            raise _gone(key) from None
        except Exception:  # noqa: BLE001 - the failure that led here is raised by who asks
            return
        needed = byte_range.end if isinstance(byte_range, RangeByteRequest) else _wanted(byte_range)
        if size < needed:
            raise StorageError(
                f"{key} gave {given} bytes where {_wanted(byte_range)} were expected; it has {size}: it is torn",
                permanent=True,
            )

    async def getsize(self, key: str) -> int:
        return await held(self._store.getsize(key))

    def take_size(self, key: str) -> int | None:
        """Return how many bytes were given when an object was last read whole, once; None of one read in part.

        Raises
        ------
        KeyError
            If nothing was given.
        """
        return self.sizes.pop(key)


def _wanted(byte_range: ByteRequest | None) -> int:
    """Return how many bytes an answer has at least."""
    if isinstance(byte_range, RangeByteRequest):
        return byte_range.end - byte_range.start
    return byte_range.suffix if isinstance(byte_range, SuffixByteRequest) else 1


def _gone(key: str) -> StorageError:
    return StorageError(
        f"{key} is gone since its index was read: it has been removed, or is being replaced", permanent=True
    )


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

    async def set(self, key: str, value: Buffer) -> None:
        await held(super().set(key, value))


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
