"""What reading and writing an array holds besides the region, for the memory model. Layer: storage."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from zarr.abc.store import Store
from zarr.storage import LocalStore, MemoryStore

from rechunk_exec.errors import StorageError
from rechunk_exec.memory import ReadScratch, WriteScratch
from rechunk_exec.storage.bands import PIECE_BYTES, Bands
from rechunk_exec.storage.bodies import copies_received, copies_sent, draws
from rechunk_exec.storage.chunkcodec import ChunkCodec
from rechunk_exec.storage.direct import COMPARED_BYTES
from rechunk_exec.storage.kept import KEPT_BYTES, kept_bytes
from rechunk_exec.storage.shards import ShardIndex
from rechunk_exec.storage.stored import StoredArray
from rechunk_exec.storage.stores import local_path, open_store
from rechunk_exec.tasks import ArrayRef

_BLOCK_TABLE_BYTES = 4
"""Bytes kept for each block of a frame: where it begins."""
_STORE_PIECES = 8
"""How much more is fetched at once from a store than from a file, in bands."""
_CLIENT_BYTES = 2 << 20
"""What a client of a store far away works in for each request: buffers of its connection, checksums."""


@dataclass(frozen=True, slots=True)
class StoreForm:
    """What objects take in memory on their way from and to a store."""

    received: float
    """How many times stored bytes are in memory when they are read."""
    sent: float
    """How many times an object is in memory until it is stored; 0 where it is streamed to a file."""
    client_bytes: int
    """Bytes that the store's client works in for each request."""
    draws: bool = False
    """Whether an object may be made while it is sent: then it is in memory one time less."""

    @property
    def streams(self) -> bool:
        """Whether objects are files, which are read to where they are wanted and written as they come."""
        return not self.sent


FILES = StoreForm(received=1, sent=0, client_bytes=0)


def form_of(store: Store) -> StoreForm:
    """Return what objects take on their way from and to a store."""
    if type(store) is LocalStore:
        return FILES
    client_bytes = 0 if isinstance(store, MemoryStore) else _CLIENT_BYTES
    return StoreForm(copies_received(store), copies_sent(store), client_bytes, draws(store))


def form_at(place: ArrayRef | None) -> StoreForm:
    """Return what objects take on their way to a place and back; those of a local disk, if there is none."""
    if place is None or local_path(place) is not None:
        return FILES
    try:
        return form_of(open_store(place, read_only=True))
    except StorageError:  # told by who writes there
        return StoreForm(2, 2, _CLIENT_BYTES)


def read_scratch(stored: StoredArray, bands: Bands | None = None) -> ReadScratch:
    """Return what reading chunks of the array, or bands of them, holds besides the region."""
    if stored.codec is None:
        return ReadScratch(stored=2, decoded=2, in_place=False)
    form = form_of(stored.array.store)
    if bands is not None:
        return _band_scratch(stored, stored.codec, bands, form)
    return replace(chunk_read(stored.codec, stored.chunk_bytes, form), kept=_indices_bytes(stored))


def chunk_read(codec: ChunkCodec, chunk_bytes: int, form: StoreForm) -> ReadScratch:
    """Return what reading whole chunks holds."""
    straight = codec.raw and form.streams
    return ReadScratch(
        stored=0 if straight else form.received * _growth(codec, chunk_bytes) + codec.decoded_between,
        decoded=1,
        in_place=codec.c_order,
        work=codec.decode_work(chunk_bytes) + form.client_bytes,
    )


def _band_scratch(stored: StoredArray, codec: ChunkCodec, bands: Bands, form: StoreForm) -> ReadScratch:
    """Return what reading a band holds: some of them are fetched and decoded at once.

    They are decoded straight, or through scratch where a region cuts them; and so is a block that a band cuts.
    """
    unit_bytes = prod(bands.unit) * stored.dtype.itemsize
    piece_bytes = min(PIECE_BYTES * (1 if form.streams else _STORE_PIECES), stored.chunk_bytes)
    units = max(1.0, piece_bytes / unit_bytes) if unit_bytes else 1.0
    chunks = prod(-(-n // size) for n, size in zip(stored.shape, stored.chunk, strict=True))
    blocks = -(-stored.chunk_bytes // bands.block_bytes) if bands.block_bytes else 0
    return ReadScratch(
        stored=(0 if codec.raw and form.streams else form.received) * units,
        decoded=units + (not codec.raw),
        in_place=False,
        work=codec.decode_work(unit_bytes) + form.client_bytes,
        kept=_indices_bytes(stored) + kept_bytes(chunks, blocks * _BLOCK_TABLE_BYTES),
    )


def write_scratch(stored: StoredArray, place: ArrayRef) -> WriteScratch:
    """Return what writing a chunk of such an array at ``place`` holds besides the region."""
    if stored.codec is None:
        return WriteScratch(gathered=1, stored=2, in_place=False, assembled=3)
    table = 3 * _index_bytes(stored.index)  # as numbers, as bytes, and those with their checksum
    return replace(chunk_write(stored.codec, stored.chunk_bytes, form_at(place)), table=table)


def chunk_write(codec: ChunkCodec, chunk_bytes: int, form: StoreForm) -> WriteScratch:
    """Return what writing chunks holds, one by one or in shards."""
    growth = _growth(codec, chunk_bytes)
    return WriteScratch(
        gathered=1,
        stored=codec.encoded_copies * growth,
        in_place=codec.c_order,
        assembled=form.sent * growth,
        work=codec.encode_work(chunk_bytes) + 2 * min(chunk_bytes, COMPARED_BYTES) + form.client_bytes,
    )


def _growth(codec: ChunkCodec, size: int) -> float:
    """How many times as long as a chunk its stored bytes are, where it does not compress."""
    return codec.most(size) / size if size else 1.0


def _index_bytes(index: ShardIndex | None) -> int:
    return 0 if index is None else index.nbytes


def _indices_bytes(stored: StoredArray) -> int:
    """Bytes of the indices of shards that a reader keeps, and of one that it decodes."""
    size = _index_bytes(stored.index)
    shards = prod(-(-n // unit) for n, unit in zip(stored.shape, stored.write_unit, strict=True))
    return min(KEPT_BYTES, shards * size) + 2 * size
