from __future__ import annotations

import re
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np
import pytest
import zarr
from zarr.core.buffer import Buffer, cpu
from zarr.core.sync import sync
from zarr.storage import LocalStore, MemoryStore

import rechunk_exec as rx
from rechunk_exec.cli import main
from rechunk_exec.errors import StorageError
from rechunk_exec.storage import Members, array_ref, members_of
from rechunk_exec.storage.retry import RetryPolicy, retry_policy
from tests.faults.stores import BusyError
from tests.storage.arrays import Place, Shape, make
from tests.values import position_values


def make_group(place: Place, chunk: Shape, seed: int = 0, zarr_format: int = 3) -> None:
    zarr.create_group(place, zarr_format=zarr_format)  # type: ignore[arg-type]
    for path, dtype in (("a", "f4"), ("sub/b", "i2"), ("sub/deep/c", "U3")):
        values = position_values((6, 4), dtype, seed)
        make(place, (6, 4), chunk, dtype, path=path, values=values, zarr_format=zarr_format)


def consolidate(group: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zarr warns of what its specification does not have
        zarr.consolidate_metadata(group)


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("memory", [False, True])
def test_arrays_of_groups_are_listed_by_path(memory: bool, zarr_format: int, tmp_path: Path) -> None:
    place: Place = MemoryStore() if memory else tmp_path / "group"
    make_group(place, (2, 2), zarr_format=zarr_format)
    if not memory:
        (tmp_path / "group/.rechunk_exec/x").mkdir(parents=True)
        (tmp_path / "group/note.txt").write_text("no array")
    assert members_of(array_ref(place)) == Members(arrays={"a", "sub/b", "sub/deep/c"})
    assert members_of(array_ref(place, "sub")) == Members(arrays={"b", "deep/c"})
    assert members_of(array_ref(place, "a")) is None
    with pytest.raises(StorageError, match="nowhere"):
        members_of(array_ref(place, "nowhere"))
    assert memory or not (tmp_path / "group/nowhere").exists()


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("inner", ["", "sub"])
def test_arrays_that_consolidated_metadata_do_not_name_are_compared(
    tmp_path: Path, inner: str, zarr_format: Literal[2, 3]
) -> None:
    for name in ("one", "other"):
        make_group(tmp_path / name, (2, 2), zarr_format=zarr_format)
        consolidate(tmp_path / name / inner)
        make(tmp_path / name, (4,), (2,), "i4", path="sub/late", values=np.arange(4), zarr_format=zarr_format)
    report = rx.verify(tmp_path / "one", tmp_path / "other")
    assert (report.ok, report.arrays) == (True, 4)
    zarr.open_array(tmp_path / "other/sub/late")[3] = 4
    assert [box.path for box in rx.verify(tmp_path / "one", tmp_path / "other").differing] == ["sub/late"]
    shutil.rmtree(tmp_path / "other/sub/deep/c")  # which they name
    report = rx.verify(tmp_path / "one", tmp_path / "other")
    assert [box.path for box in report.differing] == ["sub/deep/c", "sub/late"]


def refuse_to_list(patch: pytest.MonkeyPatch, error: Exception) -> None:
    def refuses(self: LocalStore, prefix: str) -> NoReturn:
        raise error

    patch.setattr(LocalStore, "list_dir", refuses)


def test_what_consolidated_metadata_name_is_compared_where_nothing_can_be_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_group(tmp_path / "one", (2, 2))
    consolidate(tmp_path / "one")
    refuse_to_list(monkeypatch, PermissionError("it may not be listed"))
    assert members_of(array_ref(tmp_path / "one")) == Members(arrays={"a", "sub/b", "sub/deep/c"})


@pytest.mark.parametrize("consolidated", [False, True])
def test_a_listing_that_fails_passes_over_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, consolidated: bool
) -> None:
    make_group(tmp_path / "one", (2, 2))
    if consolidated:
        consolidate(tmp_path / "one")
    refuse_to_list(monkeypatch, TimeoutError("no answer"))
    with pytest.raises(StorageError, match="no answer"):
        members_of(array_ref(tmp_path / "one"))


def test_groups_are_compared_array_by_array(tmp_path: Path) -> None:
    make_group(tmp_path / "one", (1, 4))
    make_group(tmp_path / "other", (6, 2))
    report = rx.verify(tmp_path / "one", zarr.open_group(tmp_path / "other", mode="r"))
    assert report.ok
    assert (report.arrays, report.boxes) == (3, 6)
    assert str(report) == "verified: 6 boxes of 3 arrays are the same to the bit"
    array = zarr.open_array(tmp_path / "other/sub/b")
    array[5, 3] = array[5, 3] ^ 1  # type: ignore[operator]
    report = rx.verify(tmp_path / "one", tmp_path / "other")
    assert [(box.path, box.start, box.stop, box.reason) for box in report.differing] == [("sub/b", (0, 2), (6, 4), "")]
    assert str(report) == "1 of 6 boxes of 3 arrays differ; the first is sub/b (0, 2) to (6, 4)"


def test_arrays_on_one_side_only_differ(tmp_path: Path) -> None:
    make_group(tmp_path / "one", (1, 4))
    make_group(tmp_path / "other", (6, 2))
    make(tmp_path / "one", (3,), (2,), "f4", path="sub/more")
    make(tmp_path / "other", (2, 2), (2, 2), "f4", path="z")
    report = rx.verify(tmp_path / "one", tmp_path / "other")
    assert [(box.path, box.start, box.stop, box.reason) for box in report.differing] == [
        ("sub/more", (0,), (3,), "it is in the source only"),
        ("z", (0, 0), (2, 2), "it is in the target only"),
    ]
    assert report.boxes == 6


def test_arrays_of_another_shape_or_that_cannot_be_opened_differ(tmp_path: Path) -> None:
    make_group(tmp_path / "one", (1, 4))
    make_group(tmp_path / "other", (6, 2))
    make(tmp_path / "other", (6, 5), (6, 5), "f4", path="a", overwrite=True)
    report = rx.verify(tmp_path / "one", tmp_path / "other")
    assert [(box.path, box.stop) for box in report.differing] == [("a", (6, 4))]
    assert "(6, 4) of float32" in report.differing[0].reason
    assert "(6, 5) of float32" in report.differing[0].reason
    (tmp_path / "other/sub/b/zarr.json").write_text("{torn")
    report = rx.verify(tmp_path / "one", tmp_path / "other")
    assert [box.path for box in report.differing] == ["a", "sub/b"], "the others are compared"
    assert report.arrays == 3
    assert "cannot be opened in the target" in report.differing[1].reason
    report = rx.verify(tmp_path / "other", tmp_path / "one")
    assert [box.path for box in report.differing] == ["a", "sub/b"], "of the source, too"
    assert "cannot be opened in the source" in report.differing[1].reason


DAMAGES: dict[str, Callable[[str], str]] = {
    "empty": lambda text: "",
    "cut": lambda text: text[:40],
    "no object": lambda text: "[]",
    "null": lambda text: "null",
    "without members": lambda text: "{}",
    "without a shape": lambda text: text.replace('"shape"', '"shade"'),
    "of another kind": lambda text: text.replace('"array"', '"arrow"').replace('"zarr_format": 2', '"zarr_format": 5'),
    "no text": lambda text: "\xff",
    "deep": lambda text: "[" * 100_000,
    "huge": lambda text: re.sub(r'("shape": \[\s*)6', rf"\g<1>{2**70}", text),
    "of empty chunks": lambda text: re.sub(r'("chunks": \[\s*|"chunk_shape": \[\s*)6', r"\g<1>0", text),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_an_array_that_cannot_be_opened_is_found_on_either_side_and_the_others_are_compared(
    zarr_format: int, damage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # One of the source ended the comparison; without a shape it was passed over, on both sides without a word.
    for name in ("one", "other", "third"):
        make_group(tmp_path / name, (6, 2), zarr_format=zarr_format)
    zarr.open_array(tmp_path / "third/sub/deep/c")[5, 3] = "x"
    for name in ("one", "third"):
        document = tmp_path / name / "sub/b" / {2: ".zarray", 3: "zarr.json"}[zarr_format]
        document.write_text(DAMAGES[damage](document.read_text()), encoding="latin1")
    sides: dict[tuple[str, str], list[tuple[str, tuple[int, ...], str]]] = {
        ("one", "other"): [("sub/b", (6, 4), "cannot be opened in the source")],
        ("other", "one"): [("sub/b", (6, 4), "cannot be opened in the target")],
        ("one", "third"): [("sub/b", (), "source: .* in the target"), ("sub/deep/c", (6, 4), "")],
    }
    for (one, other), expected in sides.items():
        found = rx.verify(tmp_path / one, tmp_path / other).differing
        assert [(box.path, box.stop) for box in found] == [(path, stop) for path, stop, _ in expected]
        assert all(re.search(reason, box.reason) for box, (_, _, reason) in zip(found, expected, strict=True))
    assert main(["verify", str(tmp_path / "one"), str(tmp_path / "other")]) == 1
    assert "sub/b (0, 0) to (6, 4): it cannot be opened in the source" in capsys.readouterr().out


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_group_that_cannot_be_opened_is_found_and_what_is_in_it_compared(zarr_format: int, tmp_path: Path) -> None:
    for name in ("one", "other"):
        make_group(tmp_path / name, (6, 2), zarr_format=zarr_format)
    array: Any = zarr.open_array(tmp_path / "one/sub/b")
    array[5, 3] ^= 1
    (tmp_path / "other/sub" / {2: ".zgroup", 3: "zarr.json"}[zarr_format]).write_text("{torn")
    for one, other, side in (("one", "other", "target"), ("other", "one", "source")):
        report = rx.verify(tmp_path / one, tmp_path / other)
        assert [(box.path, box.stop) for box in report.differing] == [("sub", ()), ("sub/b", (6, 4))]
        assert f"cannot be opened in the {side}" in report.differing[0].reason


@pytest.mark.parametrize("content", ["{torn", "{}"])
@pytest.mark.parametrize("memory", [False, True])
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_what_is_in_a_group_that_cannot_be_opened_on_both_sides_is_compared(
    zarr_format: int, memory: bool, content: str, tmp_path: Path
) -> None:
    # It was passed over: only the group was named.
    places: list[Place] = [MemoryStore() if memory else tmp_path / name for name in ("one", "other")]
    for place in places:
        make_group(place, (6, 2), zarr_format=zarr_format)
        array: Any = zarr.open_array(place, path="sub/deep/c")
        array[5, 3] = "x" if place is places[0] else "y"
        store = zarr.open_group(place).store
        for name in ("sub", "sub/deep"):
            document = f"{name}/{ {2: '.zgroup', 3: 'zarr.json'}[zarr_format] }"
            sync(store.set(document, cpu.Buffer.from_bytes(content.encode())))
    report = rx.verify(*places)
    assert [(box.path, box.stop) for box in report.differing] == [("sub", ()), ("sub/deep", ()), ("sub/deep/c", (6, 4))]
    assert report.arrays == 5


@pytest.mark.parametrize("memory", [False, True])
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_arrays_named_by_numbers_in_a_group_that_cannot_be_opened_are_compared(
    zarr_format: Literal[2, 3], memory: bool, tmp_path: Path
) -> None:
    # As the levels of a pyramid are. They were taken for chunks, and passed over.
    places: list[Place] = [MemoryStore() if memory else tmp_path / name for name in ("one", "other")]
    for place in places:
        zarr.create_group(place, zarr_format=zarr_format)
        for level in range(30):
            values = position_values((6, 4), "i2", seed=level == 28 and place is places[0])
            make(place, (6, 4), (6, 4), "i2", path=f"image/{level}", values=values, zarr_format=zarr_format)
        document = f"image/{ {2: '.zgroup', 3: 'zarr.json'}[zarr_format] }"
        sync(zarr.open_group(place).store.set(document, cpu.Buffer.from_bytes(b"{torn")))
    report = rx.verify(*places)
    assert [(box.path, box.start) for box in report.differing] == [("image", ()), ("image/28", (0, 0))]
    assert report.arrays == 31


def test_a_damaged_array_of_many_chunks_costs_few_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    zarr.create_group(store, zarr_format=2)
    keys: Any = {"name": "v2", "separator": "/"}
    array = zarr.create_array(
        store, name="a", shape=(500, 2), chunks=(1, 1), dtype="i2", zarr_format=2, chunk_key_encoding=keys
    )
    array[:] = 1
    sync(store.set("a/.zarray", cpu.Buffer.from_bytes(b"{torn")))
    asked, get = [], MemoryStore.get

    async def told(self: MemoryStore, key: str, *arguments: Any, **options: Any) -> Buffer | None:
        asked.append(key)
        return await get(self, key, *arguments, **options)

    monkeypatch.setattr(MemoryStore, "get", told)
    monkeypatch.setattr(MemoryStore, "_supports_sync_io", False, raising=False)  # zarr 3.4 may read otherwise
    found = members_of(array_ref(store))
    assert found is not None
    assert list(found.damaged) == ["a"]
    assert len(asked) < 100


@pytest.mark.parametrize("name, content", [("zarr.json", '{"zarr_format": 3}'), ("zarr.json", "{}"), (".zgroup", "{}")])
def test_what_does_not_say_that_it_is_a_group_is_none(name: str, content: str, tmp_path: Path) -> None:
    # zarr takes it for a group: two of these held the same arrays, none.
    for side in ("one", "other"):
        make_group(tmp_path / side, (6, 2), zarr_format=3 if name == "zarr.json" else 2)
        (tmp_path / side / "sub" / name).write_text(content)
    (box,) = rx.verify(tmp_path / "one", tmp_path / "other").differing
    assert (box.path, box.reason.count("cannot be opened in the")) == ("sub", 2)
    (tmp_path / "one" / name).write_text(content)
    with pytest.raises(StorageError, match="neither an array's nor a group's"):
        rx.verify(tmp_path / "one", tmp_path / "other")


def test_what_may_pass_while_members_are_opened_is_tried_again_and_no_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = MemoryStore(), MemoryStore()
    make_group(one, (6, 2))
    make_group(other, (6, 2))
    get, left = MemoryStore.get, 2

    async def busy(self: MemoryStore, key: str, *arguments: Any, **options: Any) -> Buffer | None:
        nonlocal left
        if key == "sub/b/zarr.json" and left:
            left -= 1
            raise BusyError(503)
        return await get(self, key, *arguments, **options)

    monkeypatch.setattr(MemoryStore, "get", busy)
    monkeypatch.setattr(MemoryStore, "_supports_sync_io", False, raising=False)  # zarr 3.4 may read otherwise
    with retry_policy(RetryPolicy(tries=3, first_wait_s=0.001)):
        assert rx.verify(one, other).ok
        assert not left
        left = 10**6
        with pytest.raises(StorageError, match="503"):
            rx.verify(one, other)


@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_a_member_whose_source_is_damaged_is_found_and_the_others_are_compared(executor: str, tmp_path: Path) -> None:
    # It ended the comparison.
    make_group(tmp_path / "one", (3, 4))
    make_group(tmp_path / "other", (6, 2))
    (tmp_path / "one/a/c/1/0").write_bytes(b"torn")
    zarr.open_array(tmp_path / "other/sub/deep/c")[5, 3] = "x"
    report = rx.verify(tmp_path / "one", tmp_path / "other", executor=executor)
    assert [(box.path, box.start) for box in report.differing] == [("a", (0, 0)), ("sub/deep/c", (0, 2))]
    assert re.search(r"it cannot be read in the source: .*c/1/0", report.differing[0].reason)


def test_damaged_chunks_of_a_member_are_named(tmp_path: Path) -> None:
    make_group(tmp_path / "one", (1, 4))
    make_group(tmp_path / "other", (6, 2))
    (tmp_path / "other/sub/deep/c/c/0/1").write_bytes(b"")
    report = rx.verify(tmp_path / "one", tmp_path / "other")
    assert [(box.path, box.start) for box in report.differing] == [("sub/deep/c", (0, 2))]
    assert "c/0/1" in report.differing[0].reason


def test_a_group_and_an_array_cannot_be_compared(tmp_path: Path) -> None:
    make_group(tmp_path / "one", (1, 4))
    for pair in ((tmp_path / "one", tmp_path / "one/a"), (tmp_path / "one/a", tmp_path / "one")):
        with pytest.raises(StorageError, match=r"two arrays or two groups .* name an array"):
            rx.verify(*pair)


def test_samples_of_groups_count_over_all_arrays(tmp_path: Path) -> None:
    make_group(tmp_path / "one", (1, 4))
    make_group(tmp_path / "other", (1, 1))
    report = rx.verify(tmp_path / "one", tmp_path / "other", sample=0.1)
    assert (report.boxes, report.all_boxes) == (6, 72)
    assert str(report) == "verified: 6 of 72 boxes, a sample, of 3 arrays are the same to the bit"


def test_empty_groups_are_the_same(tmp_path: Path) -> None:
    for name in ("one", "other"):
        zarr.create_group(tmp_path / name)
    report = rx.verify(tmp_path / "one", tmp_path / "other")
    assert report.ok
    assert (report.arrays, report.boxes) == (0, 0)
