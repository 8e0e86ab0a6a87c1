"""The index of a shard: where its inner chunks are.

Format: `the sharding codec of zarr v3 <https://zarr-specs.readthedocs.io/en/latest/v3/codecs/sharding-indexed/index.html>`_.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rechunk_exec.errors import StorageError
from rechunk_exec.storage.chunkcodec import crc32c

EMPTY = 2**64 - 1
"""Offset and length of an inner chunk that is not stored, because it is all fill value."""


@dataclass(frozen=True, slots=True)
class ShardIndex:
    """The form of a shard's index: an offset and a length, little-endian, for each inner chunk in C order."""

    grid_shape: tuple[int, ...]
    """Inner chunks of a shard on each axis."""
    at_start: bool
    checksum: bool

    @property
    def nbytes(self) -> int:
        """Size of the stored index."""
        return 16 * prod(self.grid_shape) + 4 * self.checksum

    def empty(self) -> NDArray[np.uint64]:
        """Return the index of a shard without chunks, of shape ``(*grid_shape, 2)``."""
        return np.full((*self.grid_shape, 2), EMPTY, dtype="<u8")

    def encode(self, entries: NDArray[np.uint64]) -> bytes:
        """Return the stored form of an index."""
        content = entries.tobytes()
        return content + crc32c(content) if self.checksum else content

    def decode(self, content: memoryview, key: str) -> NDArray[np.uint64]:
        """Return the index that ``content`` holds."""
        return self.entries(self.body(content, key))

    def body(self, content: memoryview, key: str) -> bytes:
        """Return the bytes of the entries that ``content`` holds, checked."""
        if len(content) != self.nbytes:
            raise StorageError(
                f"the shard {key} must hold an index of {self.nbytes} bytes; "
                f"got {len(content)}: it is torn or not a shard",
                permanent=True,
            )
        body = bytes(content[: 16 * prod(self.grid_shape)])
        if self.checksum and crc32c(body) != bytes(content[-4:]):
            raise StorageError(
                f"the index of the shard {key} does not match its CRC-32C: the shard is torn or damaged", permanent=True
            )
        return body

    def entries(self, body: bytes) -> NDArray[np.uint64]:
        """Return the entries that have these bytes."""
        return np.frombuffer(body, dtype="<u8").reshape(*self.grid_shape, 2)


def shard_index(configuration: Mapping[str, Any], shard: tuple[int, ...]) -> ShardIndex | str:
    """Return the form of the index that a sharding codec's configuration describes, or why it is not one we know."""
    names = [codec["name"] for codec in configuration["index_codecs"]]
    endian = (configuration["index_codecs"][0].get("configuration") or {}).get("endian", "little")
    if names not in (["bytes", "crc32c"], ["bytes"]) or endian != "little":
        return f"its shards' index is stored through {names}"
    grid_shape = tuple(size // chunk for size, chunk in zip(shard, configuration["chunk_shape"], strict=True))
    return ShardIndex(grid_shape, configuration.get("index_location", "end") == "start", len(names) == 2)
