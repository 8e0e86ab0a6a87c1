"""Which cells are missing: xarray itself says, before and after."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import zarr
from zarr.storage import MemoryStore

from rechunk_exec.storage import TargetWishes, array_ref, create, design_target, open_array
from rechunk_exec.storage.translate import mask_attribute, masked_value
from tests.conftest import needed_module
from tests.storage.arrays import make, read_by_us, write_by_us

pytestmark = pytest.mark.filterwarnings("ignore:variable 'x' has multiple fill values")

PACKED = {"scale_factor": 0.001, "add_offset": 298.15}

CASES: dict[str, tuple[Any, Any, list[Any]]] = {
    "i2": ("i2", -32768, [-32768, 0, 5]),
    "i2 zero": ("i2", 0, [-32768, 0, 5]),
    "i2 big": (">i2", -1, [-1, 0, 5]),
    "u1": ("u1", 255, [255, 0, 1]),
    "u8": ("u8", 2**64 - 1, [2**64 - 1, 0, 1]),
    "f4 1e37": ("f4", np.float32(1e37), [1e37, 0, np.nan]),
    "f4 big": (">f4", np.float32(1e37), [1e37, 0, np.nan]),
    "f4 NaN": ("f4", np.nan, [np.nan, 0, 1]),
    "f4 inf": ("f4", np.inf, [np.inf, 1, -np.inf]),
    "f4 zero": ("f4", 0.0, [0, 1, 2]),
    "f8": ("f8", -9999.0, [-9999, 0, np.nan]),
    "f2": ("f2", np.float16(6e4), [6e4, 0, 1]),
    "bool": ("?", False, [True, False, True]),
    "c8": ("c8", complex(1, 2), [1 + 2j, 0, 1]),
    "M8": ("M8[ns]", np.datetime64("NaT", "ns"), ["NaT", 5, 7]),
    "M8 5": ("M8[ns]", np.datetime64(5, "ns"), ["NaT", 5, 7]),
    "null i4": ("i4", None, [0, 1, 2]),
    "null f4": ("f4", None, [0, 1, np.nan]),
}
NUMBERS = [name for name in CASES if name not in ("bool", "c8", "M8", "M8 5")]
ALIKE = ("i2 big", "u1", "f4 big", "f4 inf", "f4 zero", "f8", "f2")
"""What attributes do to these is what they do to one of the others."""
ATTRIBUTES: dict[str, dict[str, Any]] = {
    "plain": {},
    "packed": PACKED,
    "missing_value": {"missing_value": 1},
    "_FillValue of another value": {"_FillValue": 2},
    "_FillValue as a float": {"_FillValue": 2.0},
    "_FillValue and packed": {"_FillValue": 2, **PACKED},
}


def as_xarray_sees(store: MemoryStore, zarr_format: int) -> Any:
    xarray = needed_module("xarray")
    return xarray.open_zarr(store, consolidated=False, zarr_format=zarr_format)["x"].values


def same_cells(a: Any, b: Any) -> bool:
    return bool(a.dtype == b.dtype) and str(a.tolist()) == str(b.tolist())  # a missing cell is "nan"


def copied(store: MemoryStore, zarr_format: int) -> tuple[MemoryStore, tuple[str, ...]]:
    """The array ``x`` in a new store of ``zarr_format``, and what was noted."""
    target = MemoryStore()
    zarr.create_group(target, zarr_format=zarr_format)  # type: ignore[arg-type]
    source = open_array(array_ref(store, "x"), read_only=True)
    ndim = len(source.shape)
    shard = None if zarr_format == 2 else (3,) * ndim
    made = design_target(source, TargetWishes(chunk=(1,) * ndim, shard=shard, zarr_format=zarr_format, options={}))
    create(made, array_ref(target, "x"))
    write_by_us(array_ref(target, "x"), read_by_us(array_ref(store, "x")))
    return target, made.notes


def store_of(name: str, attributes: dict[str, Any]) -> MemoryStore:
    dtype, fill, values = CASES[name]
    store = MemoryStore()
    zarr.create_group(store, zarr_format=2)
    attributes = {"_ARRAY_DIMENSIONS": ["t"], **attributes}
    array = np.array(values, dtype)
    make(store, (3,), (2,), dtype, path="x", values=array, zarr_format=2, fill_value=fill, attributes=attributes)
    return store


@pytest.mark.parametrize(
    "name,attributes",
    [
        pytest.param(
            name, attributes, id=f"{name}, {what}", marks=pytest.mark.long if attributes and name in ALIKE else ()
        )
        for name in CASES
        for what, attributes in ATTRIBUTES.items()
        if name in NUMBERS or not attributes
    ],
)
def test_the_same_cells_are_missing_from_format_2_to_3_and_on(name: str, attributes: dict[str, Any]) -> None:
    two = store_of(name, attributes)
    before = as_xarray_sees(two, 2)
    three, notes = copied(two, 3)
    assert same_cells(as_xarray_sees(three, 3), before)
    fill = CASES[name][1]
    masks = fill is not None or "_FillValue" in attributes
    assert any("missing cells" in note for note in notes) == (masks and not name.startswith("M8"))
    assert same_cells(as_xarray_sees(copied(three, 3)[0], 3), before)
    if fill is not None:
        assert same_cells(as_xarray_sees(copied(three, 2)[0], 2), before)


@pytest.mark.parametrize("dtype", ["i2", "u1", "f4", pytest.param(">f8", marks=pytest.mark.long), "?", "c8"])
@pytest.mark.parametrize("mask", ["none", "1", "", 0.5, 300, -1, [1], True], ids=repr)
def test_an_attribute_of_format_2_that_is_no_value_masks_as_little_in_format_3(dtype: str, mask: Any) -> None:
    # Kept as it was xarray could not open the array, and made a boolean, or an integer, it masked all that is true.
    store = MemoryStore()
    zarr.create_group(store, zarr_format=2)
    attributes = {"_ARRAY_DIMENSIONS": ["t"], "_FillValue": mask}
    values = np.array([0, 1, 1], dtype)
    make(store, (3,), (2,), dtype, path="x", values=values, zarr_format=2, fill_value=None, attributes=attributes)
    target, notes = copied(store, 3)
    before, after = as_xarray_sees(store, 2), as_xarray_sees(target, 3)
    assert np.array_equal(before.astype("c16"), after.astype("c16"), equal_nan=True)
    left_out = "_FillValue" not in open_array(array_ref(target, "x"), read_only=True).metadata.attributes
    assert left_out == any("'_FillValue' is left out" in note for note in notes)
    assert left_out >= isinstance(mask, str)


def test_several_masks_of_format_2_are_told_since_format_3_has_no_form_for_them() -> None:
    store = MemoryStore()
    zarr.create_group(store, zarr_format=2)
    attributes = {"_ARRAY_DIMENSIONS": ["t"], "_FillValue": [1, 2]}
    make(store, (3,), (2,), "i2", path="x", zarr_format=2, fill_value=None, attributes=attributes)
    target, notes = copied(store, 3)
    assert any("[1, 2] is not one number" in note for note in notes)
    assert as_xarray_sees(target, 3).tolist() == [0, 0, 0]


@pytest.mark.parametrize("name", CASES)
def test_the_same_cells_are_missing_in_format_2(name: str) -> None:
    two = store_of(name, {})
    assert same_cells(as_xarray_sees(copied(two, 2)[0], 2), as_xarray_sees(two, 2))


ENCODINGS: dict[str, dict[str, Any]] = {
    "packed": {"dtype": "i2", "_FillValue": -32768, **PACKED},
    "1e37": {"dtype": "f4", "_FillValue": np.float32(1e37)},
    "default": {"dtype": "f4"},
}


@pytest.mark.parametrize("encoding", ENCODINGS.values(), ids=ENCODINGS)
@pytest.mark.parametrize("formats", [(2, 2), (2, 3), (3, 3), (3, 2)], ids=str)
def test_what_xarray_wrote_decodes_to_the_same(encoding: dict[str, Any], formats: tuple[int, int]) -> None:
    # Format 3 to 2: xarray keeps the fill value 0 there beside its _FillValue, which format 2 has no place for.
    xarray = needed_module("xarray")
    store = MemoryStore()
    values = np.array([[290.0, np.nan, 298.0], [np.nan, 291.5, 300.0]])
    dataset = xarray.Dataset({"x": (("t", "q"), values)})
    dataset.to_zarr(store, zarr_format=formats[0], encoding={"x": encoding}, consolidated=False)
    before = as_xarray_sees(store, formats[0])
    assert np.array_equal(np.isnan(before), np.isnan(values))
    after = as_xarray_sees(copied(store, formats[1])[0], formats[1])
    assert np.array_equal(before, after, equal_nan=True)


@pytest.mark.parametrize("dtype,fill", [("S3", b"ab"), ("U3", "ab"), (np.dtypes.StringDType(), "ab")], ids=str)
def test_missing_texts_are_told_since_xarray_has_no_form_for_them(dtype: Any, fill: Any) -> None:
    store = MemoryStore()
    zarr.create_group(store, zarr_format=2)
    attributes = {"_ARRAY_DIMENSIONS": ["t"], "_FillValue": "x"}  # in format 3 xarray could not open the array
    values = np.array(["ab", "x", ""], dtype)
    make(store, (3,), (2,), dtype, path="x", values=values, zarr_format=2, fill_value=fill, attributes=attributes)
    three, notes = copied(store, 3)
    assert any("no way to say so" in note for note in notes)
    assert as_xarray_sees(three, 3).tolist() == values.tolist()


def test_a_mask_that_is_not_carried_to_format_2_is_told() -> None:
    store = MemoryStore()
    zarr.create_group(store)
    make(store, (3,), (2,), "f4", path="x", values=np.arange(3, dtype="f4"), dimension_names=["t"])
    _, notes = copied(store, 2)
    assert any("missing cells in zarr format 2, which it did not" in note for note in notes)
    make(store, (3,), (2,), "f4", path="y", fill_value=np.nan, dimension_names=["t"])
    source = open_array(array_ref(store, "y"), read_only=True)
    assert design_target(source, TargetWishes(chunk=(1,), shard=None, zarr_format=2, options={})).notes == ()


@pytest.mark.parametrize(
    "dtype,value",
    [
        ("f4", 1e37),
        ("f4", np.nan),
        ("f8", -np.inf),
        ("f2", 0.5),
        ("c8", 1 + 2j),
        ("i2", -5),
        ("u8", 2**64 - 1),
        ("?", True),
    ],
    ids=str,
)
def test_a_mask_attribute_is_read_back(dtype: str, value: Any) -> None:
    wanted = np.array([value]).astype(dtype)[0] if dtype != "u8" else np.uint64(value)
    found = masked_value(mask_attribute(wanted, np.dtype(dtype)), np.dtype(dtype))
    assert found.dtype == np.dtype(dtype)
    assert found.tobytes() == wanted.tobytes()


@pytest.mark.parametrize(
    "dtype,attribute",
    [
        ("f4", "NaN"),
        ("f4", -9999.0),
        ("f4", "AAAA"),
        ("c8", "AAAAAAAA+H8="),
        ("i2", "x"),
        ("i2", 99999),
        ("S3", "YWI="),
        ("M8[s]", 5),
    ],
    ids=str,
)
def test_an_attribute_of_another_form_masks_nothing(dtype: str, attribute: Any) -> None:
    store = MemoryStore()
    zarr.create_group(store)
    make(store, (3,), (2,), dtype, path="x", dimension_names=["t"], attributes={"_FillValue": attribute})
    source = open_array(array_ref(store, "x"), read_only=True)
    made = design_target(source, TargetWishes(chunk=(1,), shard=None, zarr_format=2, options={}))
    assert made.like.fill == source.fill
    assert made.arguments["attributes"]["_FillValue"] == attribute
