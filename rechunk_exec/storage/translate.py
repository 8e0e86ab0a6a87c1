"""Metadata of one array carried over to another, and from one zarr format to the other.

What is carried: dtype and byte order, fill value, filters, compressors, order of axes, attributes, dimension names, the
encoding of chunk keys. What the other format cannot hold is an error that offers a way, or is told in a note.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numcodecs
import numpy as np
from zarr.abc.codec import ArrayBytesCodec
from zarr.codecs import BloscCodec, BytesCodec, GzipCodec, TransposeCodec, ZstdCodec
from zarr.codecs import numcodecs as v3_numcodecs
from zarr.core.metadata.v2 import ArrayV2Metadata
from zarr.core.metadata.v3 import ArrayV3Metadata

from rechunk_exec.errors import PlanError
from rechunk_exec.storage.stored import StoredArray

DIMENSIONS_ATTRIBUTE = "_ARRAY_DIMENSIONS"
"""Where xarray keeps the names of dimensions in zarr format 2."""
MASK_ATTRIBUTE = "_FillValue"

_SHUFFLES = {0: "noshuffle", 1: "shuffle", 2: "bitshuffle"}
_V3_CLASSES = {"zlib": "Zlib", "lz4": "LZ4", "bz2": "BZ2", "lzma": "LZMA"}


@dataclass(frozen=True, slots=True)
class Carried:
    """What a new array takes over from the source, as arguments of ``zarr.create_array``."""

    arguments: Mapping[str, Any]
    notes: tuple[str, ...]
    """What could not be carried over as it was, for people."""


def dimension_names(stored: StoredArray) -> tuple[str | None, ...] | None:
    """Return the names of an array's axes, in whichever way its format keeps them."""
    names: Any = getattr(stored.metadata, "dimension_names", None) or stored.metadata.attributes.get(
        DIMENSIONS_ATTRIBUTE
    )
    return tuple(names) if isinstance(names, Sequence) and len(names) == len(stored.shape) else None


def carry_over(source: StoredArray, zarr_format: int) -> Carried:
    """Return the arguments that make an array of ``zarr_format`` like ``source``, but for its chunks.

    Raises
    ------
    PlanError
        If the format cannot hold the source's dtype or codecs; the message offers the default.
    """
    metadata = source.metadata
    arguments: dict[str, Any] = {"zarr_format": zarr_format, "attributes": dict(metadata.attributes)}
    notes: list[str] = []
    if isinstance(metadata, ArrayV2Metadata):
        arguments["dtype"] = metadata.dtype
        if zarr_format == 2:
            _v2_as_is(metadata, arguments)
        else:
            _v2_to_v3(source, metadata, arguments, notes)
    else:
        arguments["dtype"] = metadata.data_type
        if zarr_format == 3:
            _v3_as_is(metadata, arguments)
        else:
            _v3_to_v2(source, metadata, arguments, notes)
    return Carried(arguments, tuple(notes))


def v3_compressor(codec: Any, itemsize: int) -> Any:
    """Return the zarr v3 form of a numcodecs compressor (a v3 codec, dict or name is returned as it is)."""
    if not isinstance(codec, numcodecs.abc.Codec) or hasattr(codec, "to_dict"):
        return codec
    configuration = dict(codec.get_config())
    name = configuration.pop("id")
    if name == "blosc":
        shuffle = configuration["shuffle"]
        if shuffle == -1:  # "auto": by bits for single bytes, else by bytes
            shuffle = 2 if itemsize == 1 else 1
        return BloscCodec(
            cname=configuration["cname"],
            clevel=configuration["clevel"],
            shuffle=_SHUFFLES[shuffle],  # type: ignore[arg-type]
            blocksize=configuration.get("blocksize") or 0,
            typesize=configuration.get("typesize") or itemsize,
        )
    if name == "zstd":
        return ZstdCodec(level=configuration["level"], checksum=bool(configuration.get("checksum", False)))
    if name == "gzip":
        return GzipCodec(level=configuration["level"])
    if name in _V3_CLASSES:
        return getattr(v3_numcodecs, _V3_CLASSES[name])(**configuration)
    raise PlanError(
        f"zarr format 3 has no codec like {codec!r}; give another, or the default, "
        "with target_options={'compressors': 'auto'}, or keep zarr_format=2"
    )


def v2_compressor(codec: Any) -> Any:
    """Return the numcodecs form of a zarr v3 compressor (a numcodecs codec or name is returned as it is)."""
    if not hasattr(codec, "to_dict"):
        return codec
    document = codec.to_dict()
    name, configuration = document["name"], dict(document.get("configuration") or {})
    if name == "blosc":
        shuffle = {text: number for number, text in _SHUFFLES.items()}[str(configuration["shuffle"])]
        return numcodecs.Blosc(configuration["cname"], configuration["clevel"], shuffle, configuration["blocksize"])
    if name in ("zstd", "gzip") or name.startswith("numcodecs."):
        return numcodecs.get_codec({"id": name.removeprefix("numcodecs."), **configuration})
    raise PlanError(
        f"zarr format 2 has no codec like {name!r}; give another, or the default, "
        "with target_options={'compressor': 'auto'}, or keep zarr_format=3"
    )


def _v2_as_is(metadata: ArrayV2Metadata, arguments: dict[str, Any]) -> None:
    arguments |= {
        "compressors": metadata.compressor,
        "filters": metadata.filters,
        "order": metadata.order,
        "fill_value": metadata.fill_value,
        "chunk_key_encoding": {"name": "v2", "separator": metadata.dimension_separator},
    }


def _v3_as_is(metadata: ArrayV3Metadata, arguments: dict[str, Any]) -> None:
    filters, serializer, compressors = split_codecs(metadata)
    arguments |= {
        "filters": filters,
        "serializer": serializer,
        "compressors": compressors,
        "fill_value": metadata.fill_value,
        "chunk_key_encoding": metadata.chunk_key_encoding.to_dict(),
        "dimension_names": metadata.dimension_names,
    }
    if metadata.dimension_names and any(metadata.dimension_names):
        arguments["attributes"].pop(DIMENSIONS_ATTRIBUTE, None)


def _v2_to_v3(source: StoredArray, metadata: ArrayV2Metadata, arguments: dict[str, Any], notes: list[str]) -> None:
    if metadata.filters and source.fill is not None:
        raise PlanError(
            f"zarr format 3 cannot hold the filters {metadata.filters}; leave them out with "
            "target_options={'filters': 'auto'}, or keep zarr_format=2"
        )
    itemsize = source.dtype.itemsize
    arguments["compressors"] = None if metadata.compressor is None else [v3_compressor(metadata.compressor, itemsize)]
    # zarr 3.1 misplaces strings behind a transpose; where elements have no fixed size their order on disk means
    # nothing.
    fixed_size = not source.dtype.hasobject and source.dtype.kind != "T"
    if metadata.order == "F" and len(source.shape) > 1 and fixed_size:
        arguments["filters"] = [TransposeCodec(order=tuple(reversed(range(len(source.shape)))))]
    if source.dtype.byteorder == ">":
        arguments["serializer"] = BytesCodec(endian="big")
    names = dimension_names(source)
    if names is not None:
        arguments["dimension_names"] = names
        del arguments["attributes"][DIMENSIONS_ATTRIBUTE]
    if metadata.fill_value is None:
        arguments["fill_value"] = source.absent
        notes.append(
            f"zarr format 3 has no null fill value: absent chunks, which were undefined, now read as {source.absent!r}"
        )
        return
    arguments["fill_value"] = metadata.fill_value
    if names is not None and MASK_ATTRIBUTE not in arguments["attributes"]:
        encoded = mask_attribute(metadata.fill_value, source.dtype)
        if encoded is not None:
            arguments["attributes"][MASK_ATTRIBUTE] = encoded
            notes.append(
                f"the fill value {metadata.fill_value!r}, which xarray takes for missing cells in zarr format 2, "
                f"is also the attribute {MASK_ATTRIBUTE!r}, as xarray wants it in format 3"
            )


def _v3_to_v2(source: StoredArray, metadata: ArrayV3Metadata, arguments: dict[str, Any], notes: list[str]) -> None:
    filters, _, compressors = split_codecs(metadata)
    order = "C"
    reverse = tuple(reversed(range(len(source.shape))))
    for codec in filters:
        if isinstance(codec, TransposeCodec) and tuple(codec.order) in (reverse, tuple(reversed(reverse))):
            order = "F" if tuple(codec.order) == reverse and len(reverse) > 1 else "C"
        else:
            raise PlanError(
                f"zarr format 2 cannot hold the codec {codec}; leave it out with target_options={{'filters': 'auto'}}, "
                "or keep zarr_format=3"
            )
    if len(compressors) > 1:
        raise PlanError(
            f"zarr format 2 holds one compressor; the source has {[str(codec) for codec in compressors]}; "
            "give one, or the default, with target_options={'compressor': 'auto'}, or keep zarr_format=3"
        )
    separator = getattr(metadata.chunk_key_encoding, "separator", ".")
    arguments |= {
        "order": order,
        "compressors": v2_compressor(compressors[0]) if compressors else None,
        "fill_value": metadata.fill_value,
        "chunk_key_encoding": {"name": "v2", "separator": separator if separator == "/" else "."},
    }
    if source.codec is not None and source.dtype.byteorder == ">":
        arguments["dtype"] = source.dtype
    names = metadata.dimension_names
    attributes = arguments["attributes"]
    if names and all(name is not None for name in names):
        attributes[DIMENSIONS_ATTRIBUTE] = list(names)
        same = attributes.get(MASK_ATTRIBUTE) == mask_attribute(metadata.fill_value, source.dtype)
        if MASK_ATTRIBUTE in attributes and same:
            del attributes[MASK_ATTRIBUTE]  # xarray takes it from the fill value in format 2
        else:
            notes.append(
                f"xarray takes the fill value {metadata.fill_value!r} for missing cells in zarr format 2, "
                "which it did not in format 3"
            )


def split_codecs(metadata: ArrayV3Metadata) -> tuple[Sequence[Any], Any, Sequence[Any]]:
    """Return the codecs of chunks: array to array, array to bytes, bytes to bytes; those of inner chunks if sharded."""
    codecs = list(metadata.codecs)
    if len(codecs) == 1 and codecs[0].to_dict()["name"] == "sharding_indexed":
        sharding: Any = codecs[0]
        codecs = list(sharding.codecs)
    serializer = next(number for number, codec in enumerate(codecs) if isinstance(codec, ArrayBytesCodec))
    return codecs[:serializer], codecs[serializer], codecs[serializer + 1 :]


def mask_attribute(value: Any, dtype: np.dtype[Any]) -> Any:
    """Return a fill value in the form that xarray wants for ``_FillValue`` in zarr format 3, or None if it has none.

    Floats are base64 of eight little-endian bytes (``xarray.backends.zarr.FillValueCoder``).

    Examples
    --------
    >>> mask_attribute(float("nan"), np.dtype("f4"))
    'AAAAAAAA+H8='
    >>> mask_attribute(-32768, np.dtype("i2"))
    -32768
    """
    if dtype.kind == "f":
        return base64.standard_b64encode(struct.pack("<d", float(value))).decode()
    if dtype.kind in "iu":
        return int(value)
    if dtype.kind == "b":
        return bool(value)
    return None
