"""The only user of zarr: stores, arrays, metadata and codecs. Layer: above tasks, below copy.

An array is read and written in one of three ways, and reports name the one taken:

``direct``
    Chunks are decoded and encoded by numcodecs straight from and to the task's buffer (:mod:`.direct`). For arrays
    whose metadata say no more than bytes, byte order, order of axes, known compressors, and one level of shards.
    Where a GPU does the compressor's part (:mod:`.devicecodec`), reports say ``gpu``.
``zarrs``
    Through zarr, with the Rust codec pipeline of the package ``zarrs`` (:mod:`.viazarr`).
``zarr``
    Through zarr with its own pipeline, which serves everything else.
"""

from __future__ import annotations

from rechunk_exec.memory import ReadScratch
from rechunk_exec.storage.access import Index, Moved, Region, Scratch, UnitReader, UnitWriter, Written
from rechunk_exec.storage.bands import BandReader, find_bands
from rechunk_exec.storage.batch import BatchNotes, BatchRecord
from rechunk_exec.storage.claims import Claim, running_driver
from rechunk_exec.storage.consolidated import conceal, reveal
from rechunk_exec.storage.create import (
    Design,
    TargetWishes,
    apart_from_groups,
    complete,
    create,
    design_target,
    restore,
)
from rechunk_exec.storage.devicecodec import ALGORITHMS as DEVICE_ALGORITHMS
from rechunk_exec.storage.devicecodec import Device, try_device, use_device
from rechunk_exec.storage.direct import DirectReader, DirectWriter
from rechunk_exec.storage.failures import has_outlasted
from rechunk_exec.storage.identity import Fingerprint, fingerprint, layout_differences, layout_members
from rechunk_exec.storage.intermediates import (
    TempForm,
    design_intermediate,
    lz4_options,
    temp_form,
)
from rechunk_exec.storage.journal import (
    MERGED_AT_ONCE,
    FinishedRecord,
    JobRecord,
    Journal,
    read_finished,
    read_job,
)
from rechunk_exec.storage.lease import Lease, has_traces_of_drivers, sole_writer
from rechunk_exec.storage.lines import LinesFile, LinesWriter, remove_abandoned_lines
from rechunk_exec.storage.links import refuse_links_into
from rechunk_exec.storage.locations import location, refuse_overlap
from rechunk_exec.storage.members import Members, members_of
from rechunk_exec.storage.objects import LocalObjects, Objects, objects_of
from rechunk_exec.storage.pieces import PieceWriter, in_pieces
from rechunk_exec.storage.places import (
    beside,
    child,
    exists,
    free_bytes,
    is_temp_of,
    mark_temp,
    new_temp_name,
    refuse_existing,
    refuse_foreign_temp,
    refuse_inside_array,
    refuse_unwritable,
    remove_temp,
    temp_place,
)
from rechunk_exec.storage.presence import Presence
from rechunk_exec.storage.removal import remove_array, remove_moved_aside, remove_partial_documents, remove_partials
from rechunk_exec.storage.retry import RetryPolicy, retry_policy, take_retries
from rechunk_exec.storage.scratch import read_scratch, write_scratch
from rechunk_exec.storage.sessions import (
    IcechunkTarget,
    hidden_from_processes,
    holds_documents,
    run_with_changes,
    session_target,
)
from rechunk_exec.storage.sessiontemp import forget_intermediates, intermediate_place, merging, without_changes
from rechunk_exec.storage.shardreader import ShardReader
from rechunk_exec.storage.stored import StoredArray, describe, open_array
from rechunk_exec.storage.stores import array_ref, is_url, local_path
from rechunk_exec.storage.translate import dimension_names
from rechunk_exec.storage.unanswered import interrupted, requests_of_driver, thread_of_driver
from rechunk_exec.storage.viazarr import ZarrReader, ZarrWriter
from rechunk_exec.tasks import ArrayRef

__all__ = [
    "DEVICE_ALGORITHMS",
    "MERGED_AT_ONCE",
    "ArrayRef",
    "BatchNotes",
    "BatchRecord",
    "Claim",
    "Design",
    "Device",
    "Fingerprint",
    "FinishedRecord",
    "IcechunkTarget",
    "Index",
    "JobRecord",
    "Journal",
    "Lease",
    "LinesFile",
    "LinesWriter",
    "Members",
    "Moved",
    "Presence",
    "Region",
    "RetryPolicy",
    "Scratch",
    "StoredArray",
    "TargetWishes",
    "TempForm",
    "UnitReader",
    "UnitWriter",
    "Written",
    "apart_from_groups",
    "array_ref",
    "beside",
    "child",
    "complete",
    "conceal",
    "create",
    "describe",
    "design_intermediate",
    "design_target",
    "dimension_names",
    "exists",
    "finer_read",
    "finer_read_unit",
    "fingerprint",
    "forget_intermediates",
    "free_bytes",
    "has_outlasted",
    "has_traces_of_drivers",
    "hidden_from_processes",
    "holds_documents",
    "intermediate_place",
    "interrupted",
    "is_temp_of",
    "is_url",
    "layout_differences",
    "layout_members",
    "local_path",
    "location",
    "lz4_options",
    "mark_temp",
    "members_of",
    "merging",
    "new_temp_name",
    "open_array",
    "open_reader",
    "open_writer",
    "read_finished",
    "read_job",
    "read_scratch",
    "refuse_existing",
    "refuse_foreign_temp",
    "refuse_inside_array",
    "refuse_links_into",
    "refuse_overlap",
    "refuse_unwritable",
    "remove_abandoned_lines",
    "remove_array",
    "remove_moved_aside",
    "remove_partial_documents",
    "remove_partials",
    "remove_temp",
    "requests_of_driver",
    "restore",
    "retry_policy",
    "reveal",
    "run_with_changes",
    "running_driver",
    "session_target",
    "sole_writer",
    "take_retries",
    "temp_form",
    "temp_place",
    "thread_of_driver",
    "try_device",
    "use_device",
    "without_changes",
    "write_scratch",
]


def open_reader(ref: ArrayRef, read_unit: Index | None = None) -> UnitReader:
    """Open the array that ``ref`` names for reading, in the fastest way that serves it.

    Parameters
    ----------
    ref : ArrayRef
    read_unit : tuple of int, optional
        What the plan counts one read to decode, in elements, where that is less than a chunk (see
        :func:`finer_read_unit`).
    """
    stored, objects = _opened(ref, read_only=True)
    if stored.codec is None:
        return ZarrReader(stored, objects)
    if read_unit is None or read_unit == tuple(map(min, stored.chunk, stored.shape)):
        return DirectReader(stored, objects) if stored.index is None else ShardReader(stored, objects)
    return BandReader(stored, objects, read_unit)


def finer_read(stored: StoredArray, *, forgiving: bool = False) -> tuple[Index, ReadScratch] | None:
    """Return the smallest box that is worth decoding on its own, in elements, and what reading it holds besides.

    None if that is the chunk. Chunks that cannot be looked at are an error, or passed over if ``forgiving``.
    """
    bands = find_bands(stored, _objects(stored), forgiving=forgiving)
    return None if bands is None else (bands.unit, read_scratch(stored, bands))


def finer_read_unit(stored: StoredArray) -> Index | None:
    """Return the box of :func:`finer_read` alone."""
    finer = finer_read(stored)
    return None if finer is None else finer[0]


def open_writer(ref: ArrayRef) -> UnitWriter:
    """Open the array that ``ref`` names for writing whole write units, in the fastest way that serves it."""
    stored, objects = _opened(ref, read_only=False)
    if in_pieces(stored):
        return PieceWriter(stored, objects)
    return DirectWriter(stored, objects) if stored.codec is not None else ZarrWriter(stored, objects)


def _opened(ref: ArrayRef, *, read_only: bool) -> tuple[StoredArray, Objects]:
    """Open an array; its folder first, so that no other array of the same name is met later on."""
    path = local_path(ref)
    held = None if path is None else LocalObjects(path)
    if held is not None:
        held.hold()
    stored = open_array(ref, read_only=read_only)
    objects = _objects(stored)
    return stored, held if held is not None and isinstance(objects, LocalObjects) else objects


def _objects(stored: StoredArray) -> Objects:
    return objects_of(stored.array.store, stored.array.path)
