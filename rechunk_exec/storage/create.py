"""Arrays that do not exist yet: designed in memory while planning, created where they belong while preparing."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import zarr
from zarr.abc.store import Store
from zarr.codecs import BytesCodec
from zarr.core.buffer import default_buffer_prototype
from zarr.errors import ContainsArrayError, ContainsGroupError
from zarr.storage import MemoryStore

from rechunk_exec.errors import PlanError, StorageError
from rechunk_exec.storage.consolidated import group_of_other_format
from rechunk_exec.storage.cut import is_json
from rechunk_exec.storage.objectbase import METADATA_NAMES, fresh
from rechunk_exec.storage.objects import objects_of, put_object
from rechunk_exec.storage.persistent import persistent
from rechunk_exec.storage.places import groups_above
from rechunk_exec.storage.stored import INTERMEDIATE, StoredArray, describe
from rechunk_exec.storage.stores import open_store, quiet_zarr
from rechunk_exec.storage.translate import carry_over, inexact_codecs, split_codecs, v2_compressor, v3_compressor
from rechunk_exec.storage.unanswered import sync
from rechunk_exec.tasks import ArrayRef

_OPTIONS = (
    "compressor",
    "compressors",
    "filters",
    "serializer",
    "fill_value",
    "order",
    "attributes",
    "chunk_key_encoding",
    "dimension_names",
)
_SETTLES_S = 10.0
_ELSEWHERE = {
    "shape": "it is the source's",
    "dtype": "values are copied, not converted",
    "chunks": "give it as target_chunks",
    "shards": "give it as target_shards",
    "zarr_format": "give it as zarr_format",
    "store": "give it as target_store",
    "name": "give it as array_name",
    "overwrite": "give it as mode='overwrite'",
    "storage_options": "give it as storage_options",
    "config": "it is how zarr works with an array, and is not stored",
    "write_empty_chunks": "chunks that are all fill value are not stored",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """An array that can be created: its arguments were accepted by zarr, in memory."""

    arguments: Mapping[str, Any]
    """For ``zarr.create_array``, all but where."""
    like: StoredArray
    """What the array will be, made in memory."""
    notes: tuple[str, ...] = ()
    """What could not be carried over as it was, for people."""
    alone: bool = False
    """Whether the array is made without the groups that zarr makes above an array."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetWishes:
    """What the target is to be, beyond what it takes over from the source."""

    chunk: tuple[int, ...]
    shard: tuple[int, ...] | None
    zarr_format: int
    options: Mapping[str, Any]
    """Arguments of ``zarr.create_array``, and rechunker's ``compressor``."""


def design_target(source: StoredArray, wishes: TargetWishes) -> Design:
    """Return the design of an array like ``source`` with other chunks.

    Raises
    ------
    PlanError
        If the format cannot hold it, or an option is not one of zarr's.
    """
    if wishes.zarr_format not in (2, 3):
        raise PlanError(f"zarr_format must be 2, 3 or None (the source's); got {wishes.zarr_format!r}")
    if wishes.shard is not None and wishes.zarr_format == 2:
        raise PlanError(
            f"shards need zarr format 3; got target_shards={wishes.shard} and format 2; "
            "give zarr_format=3 or no target_shards"
        )
    options = _options(wishes, source.dtype.itemsize)
    # An option replaces what would be carried over, so that is not asked for where it could not be.
    relaxed = _without(source, options)
    carried = carry_over(relaxed, wishes.zarr_format)
    attributes: dict[str, Any] = carried.arguments["attributes"]
    arguments = {
        **carried.arguments,
        "attributes": {name: value for name, value in attributes.items() if (name, value) != INTERMEDIATE},
        "shape": source.shape,
        "chunks": wishes.chunk,
        **({} if wishes.shard is None else {"shards": wishes.shard}),
        **options,
    }
    notes = [*carried.notes, *_order_notes(arguments, asked="order" in options)]
    like = prototype(arguments)
    if source.dtype.names and like.dtype != source.dtype:
        notes.append(
            f"elements of {source.dtype} are stored as {like.dtype}: zarr format {wishes.zarr_format} keeps no byte "
            "order for each field"
        )
    inexact = inexact_codecs(like.metadata)
    if inexact:
        notes.append(
            f"{', '.join(map(str, inexact))} may round: elements that are encoded anew may not be the same to the bit; "
            "verify=True compares them all"
        )
    return Design(arguments=arguments, like=like, notes=tuple(notes))


def _order_notes(arguments: dict[str, Any], *, asked: bool) -> Iterator[str]:
    """Have elements be stored in C order, and say so, where zarr would misplace them.

    Some filters of format 2 give arrays that zarr stores in C order whatever the metadata say, and reads as these do.
    """
    filters = arguments.get("filters")
    if arguments["zarr_format"] == 2 and arguments.get("order") == "F" and _misplaces(arguments):
        if asked:
            raise PlanError(
                f"zarr misplaces elements that go through the filters {filters} in order 'F'; leave the order or the "
                "filters out"
            )
        arguments["order"] = "C"
        yield f"elements are stored in C order, and not in 'F': there zarr misplaces those behind {filters}"


def _misplaces(arguments: Mapping[str, Any]) -> bool:
    """Whether a small array of other order holds other values."""
    shape = tuple(2 + axis % 2 for axis in range(len(arguments["shape"])))
    values = np.arange(prod(shape)).reshape(shape)
    read = []
    try:
        for order in ("C", "F"):
            array = _create(MemoryStore(), "", {**arguments, "shape": shape, "chunks": shape, "order": order})
            array[...] = values.astype(array.dtype)
            read.append(np.asarray(array[...]))
    except Exception:  # noqa: BLE001 - of elements that are no numbers, or an array that cannot be, which is told later
        return False
    return read[0].tobytes() != read[1].tobytes()


def create(design: Design, ref: ArrayRef) -> None:
    """Create the array's metadata where ``ref`` says.

    Raises
    ------
    StorageError
        If the store cannot be written.
    """
    store = open_store(ref, read_only=False)
    try:
        if design.alone:
            for name, document in _documents(design).items():
                put_object(objects_of(store, ref.path), name, document)
        else:
            _create(persistent(store), ref.path, design.arguments)
    except Exception as error:
        if not isinstance(error, (ContainsArrayError, ContainsGroupError)):
            sync(_settled())
            _remove_metadata(store, ref.path)
        raise StorageError(f"cannot create the array {ref}: {type(error).__name__}: {error}") from error


def apart_from_groups(design: Design, target: ArrayRef) -> Design:
    """Return a design that leaves a group of the other zarr format, if the target is to be in one, as it is.

    Zarr would make it a group of both formats, in which readers see the arrays of format 3 only.
    """
    own = design.like.metadata.zarr_format
    group = group_of_other_format(target, own)
    if group is None:
        return design
    note = (
        f"the group {group} is of zarr format {5 - own}: whoever opens it does not see the target, of format {own}; "
        f"zarr_format={5 - own} has it seen"
    )
    return dataclasses.replace(design, notes=(*design.notes, note), alone=True)


def restore(design: Design, ref: ArrayRef) -> None:
    """Write those documents of an array anew that are there and are no JSON, as a power cut leaves them.

    Raises
    ------
    StorageError
        If a document cannot be read, or written.
    """
    objects = objects_of(open_store(ref, read_only=False), ref.path)
    for name, document in _documents(design).items():
        content = objects.read(name, fresh)
        if content is not None and not is_json(content):
            put_object(objects, name, document)


def complete(design: Design, ref: ArrayRef) -> None:
    """Write what is missing of the documents of an array that was being created when its process was killed.

    Raises
    ------
    StorageError
        If the store cannot be written.
    """
    store = open_store(ref, read_only=False)
    objects = objects_of(store, ref.path)
    for name, document in _documents(design).items():
        if objects.read(name, fresh) is None:
            put_object(objects, name, document)
    try:
        for path in () if design.alone else groups_above(ref.path):
            zarr.open_group(persistent(store), path=path, mode="a", zarr_format=design.like.metadata.zarr_format)
    except Exception as error:
        raise StorageError(f"cannot create the groups of {ref}: {type(error).__name__}: {error}") from error


def _documents(design: Design) -> dict[str, bytes]:
    """Return the metadata documents that an array of this design has, by name."""
    with quiet_zarr():
        documents = design.like.metadata.to_buffer_dict(default_buffer_prototype())
    return {name: document.to_bytes() for name, document in documents.items()}


async def _settled() -> None:
    """Wait for what zarr still writes: it writes several documents at once, and goes on with others when one fails."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        await asyncio.wait(others, timeout=_SETTLES_S)


def _remove_metadata(store: Store, path: str) -> None:
    """Remove what was written of an array that could not be created: a part of its documents may be an array too."""
    for name in METADATA_NAMES:
        with suppress(StorageError):
            objects_of(store, path).delete(name)


def _options(wishes: TargetWishes, itemsize: int) -> dict[str, Any]:
    options = dict(wishes.options)
    for name in options:
        if name in _ELSEWHERE:
            raise PlanError(f"target_options cannot set {name!r}: {_ELSEWHERE[name]}")
        if name not in _OPTIONS:
            raise PlanError(f"target_options knows {', '.join(_OPTIONS)}; got {name!r}")
    if wishes.zarr_format == 3 and options.get("order", "C") != "C":
        raise PlanError(
            f"zarr format 3 has no order of elements; got {options['order']!r}; give target_options={{'filters': "
            "[TransposeCodec(order=...)]}, or zarr_format=2"
        )
    if "compressor" in options:
        if "compressors" in options:
            raise PlanError("target_options takes compressor or compressors; got both")
        compressor = options.pop("compressor")
        options["compressors"] = compressor
    compressors = options.get("compressors", "auto")
    if compressors is not None and compressors != "auto":
        options["compressors"] = compressors_of(compressors, wishes.zarr_format, itemsize)
    return options


def compressors_of(wanted: Any, zarr_format: int, itemsize: int) -> Any:
    """Return what ``zarr.create_array`` takes for one codec or several, of zarr or of numcodecs.

    Raises
    ------
    PlanError
        If the format does not hold several.
    """
    several = list(wanted) if isinstance(wanted, (list, tuple)) else [wanted]
    if zarr_format == 3:
        return [v3_compressor(codec, itemsize) for codec in several]
    if len(several) > 1:
        raise PlanError(f"zarr format 2 holds one compressor; got {several}; give one, or zarr_format=3")
    return v2_compressor(several[0]) if several else None


def _without(source: StoredArray, options: Mapping[str, Any]) -> StoredArray:
    """Return the source as if it did not have the codecs that the options replace."""
    metadata: Any = source.metadata
    if metadata.zarr_format == 2:
        if "filters" in options and source.fixed_size:
            metadata = dataclasses.replace(metadata, filters=None)
        if "compressors" in options:
            metadata = dataclasses.replace(metadata, compressor=None)
    elif any(name in options for name in ("filters", "serializer", "compressors")):
        filters, serializer, compressors = split_codecs(metadata)
        kept = (
            *(() if "filters" in options else filters),
            BytesCodec() if "serializer" in options and source.fixed_size else serializer,
            *(() if "compressors" in options else compressors),
        )
        metadata = dataclasses.replace(metadata, codecs=kept)
    return source if metadata is source.metadata else dataclasses.replace(source, metadata=metadata)


def prototype(arguments: Mapping[str, Any], options: str = "target_options") -> StoredArray:
    """Return an array of these arguments, made in memory; ``options`` is where a message says to set others.

    Raises
    ------
    PlanError
        If zarr does not take them.
    """
    try:
        store = MemoryStore()
        _create(store, "", arguments)
        with quiet_zarr():
            return describe(zarr.open_array(store, mode="r+"))  # zarr creates some that it cannot open
    except PlanError:
        raise
    except Exception as error:
        zarr_format = arguments["zarr_format"]
        raise PlanError(
            f"an array of shape {arguments['shape']} and dtype {arguments['dtype']} with these codecs cannot be in "
            f"zarr format {zarr_format}: {type(error).__name__}: {error}; give {options}={{'filters': 'auto', "
            "'compressors': 'auto', 'serializer': 'auto'} for the format's defaults, or the other zarr_format"
        ) from error


def _create(store: Any, path: str, arguments: Mapping[str, Any]) -> zarr.Array[Any]:
    with quiet_zarr():
        return zarr.create_array(store, name=path or None, overwrite=False, **arguments)
