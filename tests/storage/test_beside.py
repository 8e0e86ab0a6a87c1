"""Places beside an array, and the names of folders of intermediates."""

from __future__ import annotations

import re

import pytest
from zarr.storage import MemoryStore

from rechunk_exec.storage import (
    ArrayRef,
    beside,
    child,
    new_temp_name,
    temp_place,
)


@pytest.mark.parametrize(
    "store,path,wanted",
    [
        ("/d/frame.zarr", "", ("/d/frame-rechunked.zarr", "")),
        ("/d/frame.zarr/", "", ("/d/frame-rechunked.zarr", "")),
        ("/d/frame", "", ("/d/frame-rechunked", "")),
        ("/d/a.b/frame", "", ("/d/a.b/frame-rechunked", "")),
        ("/d/frame.v1.zarr", "", ("/d/frame.v1-rechunked.zarr", "")),
        ("/d/frame.zarr", "layers/disp", ("/d/frame.zarr", "layers/disp-rechunked")),
        ("s3://bucket/frame.zarr", "", ("s3://bucket/frame-rechunked.zarr", "")),
    ],
)
def test_beside(store: str, path: str, wanted: tuple[str, str]) -> None:
    found = beside(ArrayRef(store=store, path=path), "-rechunked")
    assert found is not None
    assert (found.store, found.path) == wanted


def test_the_root_of_a_live_store_has_no_beside() -> None:
    store = MemoryStore()
    assert beside(ArrayRef(store=store), "-x") is None
    assert temp_place(ArrayRef(store=store), None, "x") is None
    inside = beside(ArrayRef(store=store, path="a"), "-x")
    assert inside is not None
    assert (inside.store, inside.path) == (store, "a-x")


def test_options_stay_with_a_neighbour() -> None:
    ref = ArrayRef(store="s3://b/a.zarr", storage_options={"anon": True})
    for place in (beside(ref, "-x"), temp_place(ref, None, "x"), child(ref, "y")):
        assert place is not None
        assert place.storage_options == {"anon": True}


def test_the_folder_of_intermediates_is_named_in_the_temp_store_and_beside_the_target() -> None:
    one, scratch = ArrayRef(store="/d/a.zarr"), ArrayRef(store="/scratch")
    assert temp_place(one, scratch, "mine") == ArrayRef(store="/scratch/mine")
    next_to = temp_place(one, None, "mine")
    assert next_to == ArrayRef(store="/d/a.zarr.rechunk_exec-temp")
    assert temp_place(ArrayRef(store="/d", path="a.zarr"), None, "mine") == next_to
    store = MemoryStore()
    in_memory = temp_place(ArrayRef(store=store, path="a"), None, "mine")
    assert in_memory == ArrayRef(store=store, path="a.rechunk_exec-temp")


def test_no_two_jobs_have_a_folder_of_intermediates_of_one_name() -> None:
    names = [new_temp_name(ArrayRef(store="/d/a.zarr")) for _ in range(2)]
    assert len({*names}) == 2
    assert all(re.fullmatch("rechunk_exec-[0-9a-f]{12}-[0-9a-f]{8}", name) for name in names)


def test_the_folder_of_intermediates_of_earlier_versions_follows_from_the_target() -> None:
    one, two = ArrayRef(store="/d/a.zarr"), ArrayRef(store="/d/b.zarr")
    scratch = ArrayRef(store="/scratch")
    place = temp_place(one, scratch, "")
    assert place == temp_place(ArrayRef(store="/d/a.zarr"), scratch, "") != temp_place(two, scratch, "")
    assert place is not None
    assert re.fullmatch("/scratch/rechunk_exec-[0-9a-f]{12}", str(place.store))
    next_to = temp_place(one, None, "")
    assert next_to is not None
    assert str(next_to.store) == "/d/a.zarr.rechunk_exec-temp"
    assert temp_place(ArrayRef(store="/d", path="a.zarr"), None, "") == next_to


def test_two_targets_in_memory_do_not_share_a_folder_of_intermediates() -> None:
    # Both were "<MemoryStore>" by name, so that one job removed what the other needed.
    scratch = ArrayRef(store="/scratch")
    stores = MemoryStore({}), MemoryStore({})
    one, other = (temp_place(ArrayRef(store=store), scratch, "") for store in stores)
    assert one != other


@pytest.mark.parametrize(
    "ref,name,wanted",
    [
        (ArrayRef(store="/d/a"), "b", ("/d/a/b", "")),
        (ArrayRef(store="/d/a/"), "b/c", ("/d/a/b/c", "")),
        (ArrayRef(store="/d/a", path="x"), "b", ("/d/a", "x/b")),
        (ArrayRef(store="s3://b"), "c", ("s3://b/c", "")),
    ],
    ids=str,
)
def test_child(ref: ArrayRef, name: str, wanted: tuple[str, str]) -> None:
    assert (child(ref, name).store, child(ref, name).path) == wanted
