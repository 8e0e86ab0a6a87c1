"""What a client of object stores lacks, made good. Layer: storage.

adlfs asks Azure for the last bytes of an object by a negative offset, which the service does not know; zarr finds the
index of a shard that way. So a store on adlfs is given the place of these bytes instead, which takes a request for the
object's size.
"""

from __future__ import annotations

from zarr.abc.store import ByteRequest, RangeByteRequest, Store, SuffixByteRequest
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.storage import FsspecStore


def able(store: Store) -> Store:
    """Return a store that gives all ranges of bytes: itself, or one with the same client and path."""
    if type(store) is not FsspecStore or type(store.fs).__module__.partition(".")[0] != "adlfs":
        return store
    return _NoSuffixes(store.fs, store.read_only, store.path, store.allowed_exceptions)


class _NoSuffixes(FsspecStore):
    """A store whose client is never asked for the last bytes of an object without being told where they are."""

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        if isinstance(byte_range, SuffixByteRequest):
            try:
                size = await self.getsize(key)
            except self.allowed_exceptions:
                return None
            if not size:
                return prototype.buffer.from_bytes(b"")
            byte_range = RangeByteRequest(max(0, size - byte_range.suffix), size)
        return await super().get(key, prototype, byte_range)
