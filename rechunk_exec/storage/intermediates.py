"""Arrays between two stages: how they are stored, and what that holds in memory. Layer: storage.

An intermediate is uncompressed unless the user wants a compressor: its bytes are written once and read once, near by.
It has one object a chunk; or, where it is raw and the plan says so, one object for each task that writes it, made of
pieces that are read by range (:mod:`.pieces`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rechunk_exec.errors import PlanError
from rechunk_exec.memory import RAW_READ, RAW_WRITE, ReadScratch, WriteScratch
from rechunk_exec.storage.create import Design, compressors_of, prototype
from rechunk_exec.storage.identity import Fingerprint, layout_members
from rechunk_exec.storage.pieces import in_pieces
from rechunk_exec.storage.scratch import chunk_read, chunk_write, form_at
from rechunk_exec.storage.stored import INTERMEDIATE, StoredArray
from rechunk_exec.storage.translate import carry_over
from rechunk_exec.tasks import ArrayRef

_NAMES = ("compressor", "compressors")
LZ4_OPTIONS: Mapping[str, Any] = {"compressor": {"id": "blosc", "cname": "lz4", "clevel": 1, "shuffle": 1}}
"""What intermediates are compressed with where nothing else was asked for: least time, for most of what it saves."""
_MOST_CHUNK_BYTES = 64 << 20
"""What is counted that codecs work in for a chunk whose size is not yet known."""
_NO_OPTIONS: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class TempForm:
    """How intermediates are stored, and what reading and writing them holds besides the region."""

    codecs: str
    """The codecs of their chunks, as JSON; empty if they are raw."""
    reading: ReadScratch
    writing: WriteScratch
    """Where each chunk is an object."""
    pieces: WriteScratch | None
    """Where each task writes one object; None where that cannot be."""


def design_intermediate(
    source: StoredArray,
    chunk: tuple[int, ...],
    write_unit: tuple[int, ...] | None = None,
    options: Mapping[str, Any] = _NO_OPTIONS,
) -> Design:
    """Return the design of an array like ``source``, in the source's format, which can hold its dtype.

    Parameters
    ----------
    source : StoredArray
    chunk : tuple of int
        What one read decodes, in elements.
    write_unit : tuple of int, optional
        What one object holds, clipped to the array; where that is more than a chunk, chunks are the pieces of shards,
        in zarr format 3.
    options : dict, optional
        ``compressor`` or ``compressors``, as for targets; it is uncompressed without.

    Raises
    ------
    PlanError
        If the array cannot be made so, or an option is not known.
    """
    shard = None
    if write_unit is not None and write_unit != tuple(map(min, chunk, source.shape)):
        shard = tuple(-(-size // piece) * piece for size, piece in zip(write_unit, chunk, strict=True))
    zarr_format = source.metadata.zarr_format if shard is None else 3
    carried = carry_over(source, zarr_format).arguments
    keep = {"dtype", "zarr_format", "fill_value"}
    if not source.fixed_size:
        keep |= {"serializer", "filters"}  # strings and objects have no other form
    elif source.codec is not None:
        keep |= {"serializer"}  # the byte order
    arguments = {name: value for name, value in carried.items() if name in keep}
    arguments |= {"shape": source.shape, "chunks": chunk, "attributes": dict([INTERMEDIATE])}
    arguments["compressors"] = _compressors(options, zarr_format, source.dtype.itemsize)
    if "filters" not in arguments:
        arguments["filters"] = None
    if shard is not None:
        arguments["shards"] = shard
    return Design(arguments=arguments, like=prototype(arguments, "temp_options"), alone=True)


def temp_form(source: StoredArray, options: Mapping[str, Any], place: ArrayRef | None) -> TempForm:
    """Return how intermediates of an array are stored in the folder ``place``; on a local disk, if there is none.

    Raises
    ------
    PlanError
        If an option is not known.
    """
    ones = (1,) * len(source.shape)
    like = design_intermediate(dataclasses.replace(source, shape=ones), ones, ones, options).like
    codec = like.codec
    if codec is None:
        return TempForm(codecs=_codecs(like) if options else "", reading=RAW_READ, writing=RAW_WRITE, pieces=None)
    form = form_at(place)
    if codec.raw:
        gathered = WriteScratch(gathered=1, stored=0, assembled=form.sent, work=form.client_bytes)
        # Pieces are gathered for a file, or while they are sent, or else where they belong in an object in memory.
        pieces = dataclasses.replace(gathered, gathered=int(form.streams), assembled=form.sent - form.draws)
        return TempForm(
            codecs="",
            reading=ReadScratch(stored=0 if form.streams else form.received, decoded=1, work=form.client_bytes),
            writing=gathered,
            pieces=pieces if _may_be_sharded(source) else None,
        )
    return TempForm(
        codecs=_codecs(like),
        reading=chunk_read(codec, _MOST_CHUNK_BYTES, form),
        writing=chunk_write(codec, _MOST_CHUNK_BYTES, form),
        pieces=None,
    )


def _codecs(like: StoredArray) -> str:
    members = layout_members(like)
    return members.get("codecs") or members.get("compressor", "")


def lz4_options(source: StoredArray, begun: Fingerprint | None, wished: bool) -> Mapping[str, Any]:
    """Return the options of intermediates where the user gave none.

    Parameters
    ----------
    source : StoredArray
    begun : Fingerprint, optional
        Of the job that is gone on with, whose intermediates are as they are.
    wished : bool
        Whether the cost model has them compressed.
    """
    if source.codec is None:
        return _NO_OPTIONS
    if begun is None:
        return LZ4_OPTIONS if wished else _NO_OPTIONS
    return LZ4_OPTIONS if begun.temp_codecs == temp_form(source, LZ4_OPTIONS, None).codecs else _NO_OPTIONS


def _may_be_sharded(source: StoredArray) -> bool:
    """Whether intermediates of an array can be stored as raw pieces in shards, read and written without zarr."""
    if source.codec is None or not source.shape:
        return False
    pieces, shard = (1,) * len(source.shape), (2,) * len(source.shape)
    try:
        return in_pieces(design_intermediate(dataclasses.replace(source, shape=shard), pieces, shard).like)
    except PlanError:
        return False


def _compressors(options: Any, zarr_format: int, itemsize: int) -> Any:
    """Return what ``zarr.create_array`` takes for the compressors that are asked for."""
    if not isinstance(options, Mapping) or any(name not in _NAMES for name in options) or len(options) > 1:
        raise PlanError(
            f"temp_options takes {' or '.join(_NAMES)}, as target_options does; got temp_options={options!r}"
        )
    wanted = next(iter(options.values()), None)
    if wanted is None or (isinstance(wanted, (list, tuple)) and not wanted):
        return None
    try:
        return compressors_of(wanted, zarr_format, itemsize)
    except PlanError as error:
        raise PlanError(f"temp_options: {error}") from error
