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
from rechunk_exec.storage.stores import quiet_zarr

DIMENSIONS_ATTRIBUTE = "_ARRAY_DIMENSIONS"
"""Where xarray keeps the names of dimensions in zarr format 2."""
MASK_ATTRIBUTE = "_FillValue"

_SHUFFLES = {0: "noshuffle", 1: "shuffle", 2: "bitshuffle"}
_INEXACT = {"astype", "cast_value", "fixedscaleoffset", "quantize", "scale_offset", "zfpy"}
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
    if source.dtype.kind == "f" and source.fill is not None and source.absent != source.absent:
        plain = np.array(np.nan, source.dtype).tobytes()
        if source.fill != plain:
            notes.append(
                f"zarr writes a fill value that is a NaN of other bits as plain NaN; elements with the bits "
                f"{source.fill.hex()} are stored, so that they stay as they are"
            )
    return Carried(arguments, tuple(notes))


def v3_compressor(codec: Any, itemsize: int) -> Any:
    """Return the zarr v3 form of a numcodecs compressor, or of its dict (what is of v3 is returned as it is)."""
    if isinstance(codec, Mapping) and "id" in codec:
        codec = numcodecs.get_codec(dict(codec))
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
        with quiet_zarr():
            return getattr(v3_numcodecs, _V3_CLASSES[name])(**configuration)
    raise PlanError(
        f"zarr format 3 has no codec like {codec!r}; give another, or the default, "
        "with target_options={'compressors': 'auto'}, or keep zarr_format=2"
    )


def v2_compressor(codec: Any) -> Any:
    """Return the numcodecs form of a zarr v3 compressor, or of its dict (what is of v2 is returned as it is)."""
    document = codec.to_dict() if hasattr(codec, "to_dict") else codec
    if not isinstance(document, Mapping) or "name" not in document:
        return codec
    name, configuration = document["name"], dict(document.get("configuration") or {})
    if name == "blosc":
        shuffle = {text: number for number, text in _SHUFFLES.items()}[str(configuration["shuffle"])]
        blocksize = configuration.get("blocksize", 0)
        return numcodecs.Blosc(configuration["cname"], configuration["clevel"], shuffle, blocksize)
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
    if metadata.filters and source.fixed_size:
        raise PlanError(
            f"zarr format 3 cannot hold the filters {metadata.filters}; leave them out with "
            "target_options={'filters': 'auto'}, or keep zarr_format=2"
        )
    itemsize = source.dtype.itemsize
    arguments["compressors"] = None if metadata.compressor is None else [v3_compressor(metadata.compressor, itemsize)]
    # zarr 3.1 misplaces strings behind a transpose; where elements have no fixed size their order on disk means
    # nothing.
    if metadata.order == "F" and len(source.shape) > 1 and source.fixed_size:
        arguments["filters"] = [TransposeCodec(order=tuple(reversed(range(len(source.shape)))))]
    if _is_big(source):
        arguments["serializer"] = BytesCodec(endian="big")
    names = dimension_names(source)
    if names is not None:
        arguments["dimension_names"] = names
        del arguments["attributes"][DIMENSIONS_ATTRIBUTE]
        _mask_to_v3(metadata.fill_value, source.dtype, arguments["attributes"], notes)
    if metadata.fill_value is None:
        arguments["fill_value"] = source.absent
        notes.append(
            f"zarr format 3 has no null fill value: absent chunks, which were undefined, now read as {source.absent!r}"
        )
    else:
        arguments["fill_value"] = metadata.fill_value


def _mask_to_v3(fill_value: Any, dtype: np.dtype[Any], attributes: dict[str, Any], notes: list[str]) -> None:
    """Let the attributes say which cells xarray takes for missing: those of the fill value, or what they named."""
    masked = attributes.pop(MASK_ATTRIBUTE, None) if fill_value is None else fill_value
    if masked is None:
        return
    try:
        encoded = mask_attribute(masked, dtype)
    except (TypeError, ValueError, OverflowError) as error:
        attributes.pop(MASK_ATTRIBUTE, None)
        notes.append(
            f"the attribute {MASK_ATTRIBUTE!r} is left out: {error}; in format 3 xarray would not open the array, or "
            "take other cells for missing ones"
        )
        return
    if encoded is None:
        attributes.pop(MASK_ATTRIBUTE, None)  # xarray cannot open an array of this dtype that has one
        if dtype.kind not in "mM":
            notes.append(
                f"xarray takes {masked!r} for missing cells in zarr format 2; it has no way to say so of {dtype} "
                "in format 3"
            )
        return
    attributes[MASK_ATTRIBUTE] = encoded
    notes.append(
        f"{masked!r}, which xarray takes for missing cells in zarr format 2, is now the attribute "
        f"{MASK_ATTRIBUTE!r} as xarray wants it in format 3"
    )


def _v3_to_v2(source: StoredArray, metadata: ArrayV3Metadata, arguments: dict[str, Any], notes: list[str]) -> None:
    filters, serializer, compressors = split_codecs(metadata)
    if source.fixed_size and serializer.to_dict()["name"] != "bytes":
        raise PlanError(
            f"zarr format 2 cannot hold the codec {serializer}; leave it out with "
            "target_options={'serializer': 'auto'}, or keep zarr_format=3"
        )
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
    if source.codec is not None and _is_big(source):
        arguments["dtype"] = source.dtype
    names = metadata.dimension_names or ()
    if len(names) == len(source.shape) and all(name is not None for name in names):  # xarray wants [] for 0-d arrays
        arguments["attributes"][DIMENSIONS_ATTRIBUTE] = list(names)
        _mask_to_v2(source.dtype, arguments, notes)


def _is_big(source: StoredArray) -> bool:
    """Whether numbers, or all those of a structure, are stored with their highest byte first."""
    dtype = source.dtype
    return source.fixed_size and dtype == dtype.newbyteorder(">") != dtype.newbyteorder("<")


def _mask_to_v2(dtype: np.dtype[Any], arguments: dict[str, Any], notes: list[str]) -> None:
    """Let the fill value say which cells xarray takes for missing, where an attribute says so in format 3."""
    fill_value, attributes = arguments["fill_value"], arguments["attributes"]
    try:
        masked = masked_value(attributes[MASK_ATTRIBUTE], dtype)
    except (KeyError, TypeError, ValueError, OverflowError, struct.error):  # no such attribute, or not as xarray's
        if dtype.kind not in "fcmM" or not np.isnan(fill_value):  # NaN and NaT are missing in any format
            notes.append(
                f"xarray takes the fill value {fill_value!r} for missing cells in zarr format 2, "
                "which it did not in format 3"
            )
        return
    if mask_attribute(fill_value, dtype) != attributes.pop(MASK_ATTRIBUTE):
        arguments["fill_value"] = masked
        notes.append(
            f"the fill value becomes {masked!r}, which the attribute {MASK_ATTRIBUTE!r} named in zarr format 3: "
            f"xarray takes the fill value for missing cells in format 2; it was {fill_value!r}"
        )


def split_codecs(metadata: ArrayV3Metadata) -> tuple[Sequence[Any], Any, Sequence[Any]]:
    """Return the codecs of the innermost chunks: array to array, array to bytes, bytes to bytes."""
    codecs: list[Any] = list(metadata.codecs)
    while True:
        serializer = next(number for number, codec in enumerate(codecs) if isinstance(codec, ArrayBytesCodec))
        if codecs[serializer].to_dict()["name"] != "sharding_indexed":
            return codecs[:serializer], codecs[serializer], codecs[serializer + 1 :]
        codecs[serializer : serializer + 1] = codecs[serializer].codecs


def inexact_codecs(metadata: ArrayV2Metadata | ArrayV3Metadata) -> list[Any]:
    """Return the codecs of an array that do not give back to the bit what they are given.

    Those that round once and for all (``bitround``) are not among them: what comes from such an array is round already.
    """
    if isinstance(metadata, ArrayV2Metadata):
        named = [
            (codec.get_config()["id"], codec) for codec in (*(metadata.filters or ()), metadata.compressor) if codec
        ]
    else:
        filters, serializer, compressors = split_codecs(metadata)
        named = [(str(codec.to_dict()["name"]), codec) for codec in (*filters, serializer, *compressors)]
    floating = metadata.dtype.to_native_dtype().kind in "fc"
    inexact = _INEXACT | ({"delta"} if floating else set())
    return [codec for name, codec in named if name.removeprefix("numcodecs.") in inexact]


def mask_attribute(value: Any, dtype: np.dtype[Any]) -> Any:
    """Return a fill value in the form that xarray wants for ``_FillValue`` in zarr format 3, or None if it has none.

    Floats are base64 of eight little-endian bytes, complex numbers two of them
    (``xarray.backends.zarr.FillValueCoder``).

    Raises
    ------
    TypeError, ValueError, OverflowError
        If the value is no number, or none of the dtype, or several.

    Examples
    --------
    >>> mask_attribute(float("nan"), np.dtype("f4"))
    'AAAAAAAA+H8='
    >>> mask_attribute(-32768, np.dtype("i2"))
    -32768
    """
    if dtype.kind not in "biufc":
        return None
    if isinstance(value, (list, tuple)) and len(value) == 1:  # as attributes of netCDF files are written by some
        (value,) = value
    if not isinstance(value, (int, float, complex, np.number, np.bool_)):
        raise TypeError(f"{value!r} is not one number")
    number: Any = value
    if dtype.kind == "c":
        return [mask_attribute(part, np.dtype("f8")) for part in (complex(number).real, complex(number).imag)]
    if dtype.kind == "f":
        return base64.standard_b64encode(struct.pack("<d", float(number))).decode()
    if number not in (0, 1) if dtype.kind == "b" else number % 1 != 0:
        raise ValueError(f"{value!r} is no value of {dtype}")
    return bool(number) if dtype.kind == "b" else int(number)


def masked_value(attribute: Any, dtype: np.dtype[Any]) -> Any:
    """Return the value that :func:`mask_attribute` wrote, as a scalar of ``dtype``.

    Raises
    ------
    TypeError, ValueError, OverflowError, struct.error
        If the attribute is of another form, or no value of the dtype.

    Examples
    --------
    >>> masked_value("AAAAAAAA+H8=", np.dtype("f4"))
    np.float32(nan)
    """
    if dtype.kind == "f":
        value: Any = struct.unpack("<d", base64.standard_b64decode(attribute))[0]
    elif dtype.kind == "c":
        value = complex(*(masked_value(part, np.dtype("f8")) for part in attribute))
    elif dtype.kind in "biu" and isinstance(attribute, (int, float)):
        value = int(attribute)
    else:
        raise TypeError(f"xarray has no {MASK_ATTRIBUTE} of {attribute!r} for {dtype}")
    return np.array([value]).astype(dtype)[0] if dtype.kind in "fc" else np.array([value], dtype)[0]
