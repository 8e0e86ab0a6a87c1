from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import fsspec
import pytest
import zarr
from zarr.storage import FsspecStore, LocalStore, ObjectStore, WrapperStore

import rechunk_exec as rx
from rechunk_exec.errors import StorageError
from rechunk_exec.storage.removal import remove_array
from rechunk_exec.storage.stores import array_ref
from rechunk_exec.tasks import ArrayRef
from tests.conftest import needed_module
from tests.jobs import assert_exact, elements, make_array
from tests.values import same_bits

WITH_FOLDERS: dict[str, Callable[[Path], Any]] = {
    "fsspec": lambda path: FsspecStore.from_url(f"local://{path}", storage_options={"auto_mkdir": True}),
    "fsspec's mapping": lambda path: fsspec.get_mapper(f"file://{path}", auto_mkdir=True),
    "obstore": lambda path: ObjectStore(needed_module("obstore.store").LocalStore(str(path), mkdir=True)),
    "wrapped": lambda path: WrapperStore(LocalStore(path)),
}
"""Stores, none of them known as a local folder, in which a name is a folder's or a file's."""


def test_all_that_is_in_an_array_goes_and_nothing_that_it_links_to(tmp_path: Path) -> None:
    array, elsewhere = tmp_path / "array", tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "kept").write_text("kept")
    for number in range(300):
        chunk = array / "c" / str(number % 7) / str(number)
        chunk.parent.mkdir(parents=True, exist_ok=True)
        chunk.write_bytes(b"chunk")
    (array / "zarr.json").write_text("{}")
    (array / "empty" / "inner").mkdir(parents=True)
    (array / "c" / "link").symlink_to(elsewhere, target_is_directory=True)
    remove_array(ArrayRef(store=str(array)))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere"]
    assert (elsewhere / "kept").read_text() == "kept"


@pytest.mark.parametrize("name", [None, "g/a"])
@pytest.mark.parametrize("kind", WITH_FOLDERS)
def test_arrays_in_stores_that_have_folders_are_overwritten(tmp_path: Path, kind: str, name: str | None) -> None:
    place = WITH_FOLDERS[kind](tmp_path / "target")
    for number, chunks in enumerate([(40, 5), (40, 7), (8, 40)]):
        source = make_array(tmp_path / f"source{number}", (40, 40), (10, 40), "u2")
        again = rx.rechunk(
            source, chunks, "20kB", place, array_name=name, mode="overwrite", executor="serial", progress=False
        ).execute()
        assert_exact(again, source)
    files = {path.relative_to(tmp_path / "target").as_posix() for path in (tmp_path / "target").rglob("c/*/*")}
    assert files == {f"{'' if name is None else 'g/a/'}c/{row}/0" for row in range(5)}, "of the last one only"


@pytest.mark.parametrize("kind", WITH_FOLDERS)
def test_intermediates_in_stores_that_have_folders_are_removed(tmp_path: Path, kind: str) -> None:
    source = make_array(tmp_path / "source", (40, 40), (1, 40), "f4")
    temp = WITH_FOLDERS[kind](tmp_path / "temp")
    options: Any = {"temp_store": temp, "executor": "serial", "progress": False}
    job = rx.rechunk(source, (40, 1), 2000, tmp_path / "target", **options)
    assert len(job.stages) == 2
    assert_exact(job.execute(), source)
    assert rx.status(tmp_path / "target").state == "finished"
    assert not [path for path in (tmp_path / "temp").rglob("*") if path.is_file()]


@pytest.mark.parametrize("kind", WITH_FOLDERS)
def test_folders_without_files_are_no_objects(tmp_path: Path, kind: str) -> None:
    make_array(tmp_path / "array", (4, 4), (2, 2), "i4")
    (tmp_path / "array" / "empty").mkdir()
    place = WITH_FOLDERS[kind](tmp_path / "array")
    remove_array(array_ref(place))
    assert not [path for path in (tmp_path / "array").rglob("*") if path.is_file()]


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("name", ["a*", "a?", "[ab]1", "x/*/a"])
def test_what_a_name_is_a_pattern_of_is_not_removed(name: str, wrapped: bool) -> None:
    # fsspec removes what a name matches, on every store but a local disk.
    root = f"memory://pattern-{secrets.token_hex(6)}"
    others = [make_array(f"{root}/{other}", (8, 8), (4, 4), "i4") for other in ("a1", "x/y/a")]
    before = [elements(other) for other in others]
    source = make_array(f"{root}/source", (8, 8), (1, 8), "i4")
    place: Any = WrapperStore(FsspecStore.from_url(root)) if wrapped else f"{root}/{name}"
    with pytest.raises(StorageError, match=r"target must have no \*, \? or \[ in its name"):
        rx.rechunk(source, (8, 1), "1MB", place, array_name=name if wrapped else None, mode="overwrite")
    for values, other in zip(before, others, strict=True):
        assert same_bits(elements(other), values)


@pytest.mark.parametrize("wrapped", [False, True])
def test_what_a_name_of_a_temp_store_is_a_pattern_of_is_not_removed(tmp_path: Path, wrapped: bool) -> None:
    source = make_array(tmp_path / "source", (40, 40), (1, 40), "f4")
    url = f"memory://pattern-{secrets.token_hex(6)}/t[1]"
    temp: Any = WrapperStore(FsspecStore.from_url(url)) if wrapped else url
    with pytest.raises(StorageError, match=r"temp store must have no \*, \? or \[ in its name"):
        rx.rechunk(source, (40, 1), 2000, tmp_path / "target", temp_store=temp, executor="serial")


def test_a_name_on_a_disk_is_a_name(tmp_path: Path) -> None:
    source = make_array(tmp_path / "source", (8, 8), (1, 8), "i4")
    beside = make_array(tmp_path / "a1", (8, 8), (4, 4), "i4")
    for store in (tmp_path / "a[1]*", WITH_FOLDERS["fsspec"](tmp_path / "a?")):
        for chunks in ((8, 1), (8, 2)):
            job = rx.rechunk(source, chunks, "1MB", store, mode="overwrite", executor="serial", progress=False)
            assert_exact(job.execute(), source)
    assert same_bits(elements(beside), elements(source))


def test_each_chunk_of_a_flat_array_is_removed_without_a_listing(monkeypatch: pytest.MonkeyPatch) -> None:
    # A listing of an object's name is one of all that begins like it, or of its folder, on some stores.
    url = f"memory://flat-{secrets.token_hex(6)}"
    make_array(url, (40, 40), (4, 4), "i4", zarr_format=2)
    asked: list[str] = []
    plain = {name: getattr(FsspecStore, name) for name in ("list_dir", "list_prefix")}

    def counted(name: str) -> Callable[[FsspecStore, str], Any]:
        def lists(self: FsspecStore, prefix: str) -> Any:
            asked.append(prefix)
            return plain[name](self, prefix)

        return lists

    for name in plain:
        monkeypatch.setattr(FsspecStore, name, counted(name))
    remove_array(ArrayRef(store=url))
    assert 0 < len(asked) < 10
    monkeypatch.undo()
    with pytest.raises(FileNotFoundError):
        zarr.open_array(url, mode="r")


@pytest.mark.parametrize("name", ["a\nb", "ä\n", "a.b", "b" * 255])
def test_what_is_moved_aside_goes_whatever_the_name(tmp_path: Path, name: str) -> None:
    source = make_array(tmp_path / "source", (6, 6), (1, 6), "i4")
    for chunks in ((6, 1), (6, 2)):
        job = rx.rechunk(source, chunks, "1MB", tmp_path / "t" / name, mode="overwrite", executor="serial")
        assert_exact(job.execute(), source)
    assert [path.name for path in (tmp_path / "t").iterdir()] == [name]
    assert same_bits(elements(zarr.open_array(tmp_path / "t" / name, mode="r")), elements(source))


@pytest.mark.parametrize("mode", ["fail", "resume", "overwrite"])
def test_an_array_behind_a_link_is_made_after_a_death_between_its_removal_and_the_new_folder(
    tmp_path: Path, mode: Any
) -> None:
    source = make_array(tmp_path / "source", (6, 6), (1, 6), "i4")
    disk, link = tmp_path / "disk", tmp_path / "link"
    disk.mkdir()
    link.symlink_to(disk / "array")

    def job(mode: Any) -> rx.Rechunked:
        return rx.rechunk(source, (6, 1), "1MB", link, mode=mode, executor="serial", progress=False)

    with pytest.raises(rx.RechunkError, match="a broken symbolic link is at"):
        job(mode)
    (disk / "array").mkdir()
    job("fail").execute()
    removed: list[Path] = []

    def dies(self: Path, *_: object, **__: object) -> NoReturn:
        removed.append(self)
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "mkdir", dies)
        with pytest.raises(KeyboardInterrupt):
            remove_array(array_ref(link))
    assert removed == [disk / "array"]
    assert_exact(job(mode).execute(), source)
    assert link.is_symlink()
    assert [path.name for path in disk.iterdir()] == ["array"]


def test_links_that_lead_to_each_other_are_refused(tmp_path: Path) -> None:
    source = make_array(tmp_path / "source", (6, 6), (1, 6), "i4")
    (tmp_path / "one").symlink_to(tmp_path / "other")
    (tmp_path / "other").symlink_to(tmp_path / "one")
    with pytest.raises(rx.RechunkError):
        rx.rechunk(source, (6, 1), "1MB", tmp_path / "one", mode="overwrite", executor="serial", progress=False)
