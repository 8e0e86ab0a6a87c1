"""What a stored array is, for ``rechunk-exec info STORE``. Layer: with the api; reads metadata, and writes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from rechunk_exec import storage
from rechunk_exec.jobstatus import find_status
from rechunk_exec.sizes import format_bytes
from rechunk_exec.tasks import ArrayRef

_SHOWN = ("zarr_format", "codecs", "filters", "compressor", "order", "fill_value")


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayReport:
    """What an array's metadata say, and whether a job of ours has finished it."""

    place: str
    """Path or URL."""
    shape: tuple[int, ...]
    """In elements."""
    dimensions: tuple[str | None, ...]
    dtype: str
    nbytes: int
    """Of all elements, decoded."""
    chunk: tuple[int, ...]
    """What one read returns, in elements."""
    shard: tuple[int, ...] | None
    """What one stored object holds, in elements; None if that is a chunk."""
    read_unit: tuple[int, ...] | None
    """The smallest box that is worth decoding on its own, in elements; None if that is a chunk."""
    metadata: Mapping[str, str]
    """The members of its metadata documents but for attributes, as JSON."""
    way: str
    """How we decode it: see :mod:`rechunk_exec.storage`."""
    job: str
    """How far the job is that writes it; empty if none of ours does."""

    def facts(self) -> list[tuple[str, str]]:
        """Names and values for people."""
        names = ", ".join(name or "-" for name in self.dimensions)
        return [
            ("array", self.place),
            ("shape", f"{self.shape}{f' of {names}' if any(self.dimensions) else ''}"),
            ("dtype", self.dtype),
            ("size", f"{format_bytes(self.nbytes)} ({self.nbytes} bytes)"),
            ("chunk", str(self.chunk)),
            ("shard", "none" if self.shard is None else str(self.shard)),
            ("read unit", "the chunk" if self.read_unit is None else str(self.read_unit)),
            ("decoded by", self.way),
            *((name, self.metadata[name]) for name in _SHOWN if name in self.metadata),
            ("job", self.job or "none of rechunk_exec"),
        ]


def describe_array(ref: ArrayRef) -> ArrayReport:
    """Return what the array at ``ref`` is.

    Raises
    ------
    StorageError
        If no array can be opened there; of an unfinished job whose target is not there yet, the message says so.
    """
    status = find_status(ref)
    reader = storage.open_reader(ref)
    stored = reader.stored
    names = storage.dimension_names(stored)
    return ArrayReport(
        place=str(ref),
        shape=stored.shape,
        dimensions=tuple(names) if names is not None else (None,) * len(stored.shape),
        dtype=str(stored.dtype),
        nbytes=prod(stored.shape) * stored.dtype.itemsize,
        chunk=stored.chunk,
        shard=stored.shard,
        read_unit=storage.finer_read_unit(stored),
        metadata=storage.layout_members(stored),
        way=reader.way,
        job="" if status is None else str(status),
    )
