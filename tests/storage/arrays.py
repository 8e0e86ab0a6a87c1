"""Arrays to test storage on: made by zarr, read and written by our readers and writers, and by zarr itself."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import zarr
from zarr.abc.store import Store

from rechunk_exec.copy.buffers import ScratchBuffers
from rechunk_exec.storage import Moved, Region, UnitReader, UnitWriter, array_ref, open_reader, open_writer
from rechunk_exec.tasks import ArrayRef
from tests.values import Array

Shape: TypeAlias = tuple[int, ...]
Place: TypeAlias = Path | str | Store

ZARR_VERSION = tuple(int(number) for number in zarr.__version__.split(".")[:2])


def make(
    store: Place,
    shape: Shape,
    chunks: Shape,
    dtype: Any,
    *,
    values: Array | None = None,
    path: str = "",
    **options: Any,
) -> ArrayRef:
    """Make an array with zarr, with ``values`` if they are given, and return its name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zarr warns of what its specification does not have
        array = zarr.create_array(store, name=path or None, shape=shape, chunks=chunks, dtype=dtype, **options)
        if values is not None:
            array[...] = values
    return array_ref(store, path)


def read_by_zarr(ref: ArrayRef) -> Array:
    """All elements of an array, read by zarr."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        array = zarr.open_array(ref.store, path=ref.path, mode="r")
        return np.asarray(array[...])


def read_box(reader: UnitReader, start: Shape, stop: Shape) -> tuple[Array, Moved]:
    """The elements of a box, read by one of our readers, and what that moved."""
    shape = tuple(high - low for low, high in zip(start, stop, strict=True))
    dtype = reader.stored.dtype
    elements = np.empty(shape, dtype)
    if not dtype.hasobject and dtype.kind != "T":
        elements.view("V" + str(dtype.itemsize))[...] = b"\xa5" * dtype.itemsize  # what is not read shows
    region = Region(start, stop, elements)
    scratch = ScratchBuffers()
    moved = [reader.read(unit, region, scratch) for unit in reader.units(region)]
    return elements, Moved(sum(one.decoded for one in moved), sum(one.stored for one in moved))


def region_of(start: Shape, stop: Shape, dtype: Any) -> Region:
    """A region of elements that are nobody's."""
    shape = tuple(high - low for low, high in zip(start, stop, strict=True))
    return Region(start, stop, np.full(shape, 0xA5, "u1").repeat(np.dtype(dtype).itemsize).view(dtype).reshape(shape))


def read_by_us(ref: ArrayRef) -> Array:
    """All elements of an array, read by our reader for it."""
    reader = open_reader(ref)
    shape = reader.stored.shape
    return read_box(reader, (0,) * len(shape), shape)[0]


def write_box(writer: UnitWriter, start: Shape, elements: Array) -> int:
    """Write a box with one of our writers; return the bytes of the objects that it completed."""
    stop = tuple(low + size for low, size in zip(start, elements.shape, strict=True))
    region = Region(start, stop, np.ascontiguousarray(elements).reshape(elements.shape))
    scratch = ScratchBuffers()
    with writer.jobs(region) as jobs:
        return sum(writer.write(job, region, scratch).stored for job in jobs)


def write_by_us(ref: ArrayRef, values: Array, units: int = 2) -> UnitWriter:
    """Write all elements of an array with our writer for it, in boxes of so many write units along each axis."""
    writer = open_writer(ref)
    for start, stop in boxes(values.shape, tuple(units * size for size in writer.stored.write_unit)):
        write_box(writer, start, box_of(values, start, stop))
    return writer


def box_of(values: Array, start: Shape, stop: Shape) -> Array:
    """A view of a box of an array, of no dimensions too."""
    index: Any = (*map(slice, start, stop), ...)
    box: Array = values[index]
    return box


def boxes(shape: Shape, size: Shape) -> Iterator[tuple[Shape, Shape]]:
    """Cut an array into boxes."""
    for start in product(*(range(0, n, step) for n, step in zip(shape, size, strict=True))):
        yield start, tuple(min(low + step, n) for low, step, n in zip(start, size, shape, strict=True))


def object_names(ref: ArrayRef) -> set[str]:
    """The stored objects of an array, metadata aside."""
    if isinstance(ref.store, str):
        folder = Path(ref.store, ref.path)
        names = {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}
    else:
        prefix = f"{ref.path}/" if ref.path else ""
        stored: Any = ref.store
        names = {name.removeprefix(prefix) for name in stored._store_dict if name.startswith(prefix)}
    return names - {"zarr.json", ".zarray", ".zattrs", ".zgroup"}


def count_objects(ref: ArrayRef) -> int:
    return len(object_names(ref))


def grid_size(shape: Shape, unit: Shape) -> int:
    """How many boxes of ``unit`` cover an array."""
    return math.prod(-(-n // size) for n, size in zip(shape, unit, strict=True))
