from __future__ import annotations

import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import pytest
import zarr
from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper
from zarr.storage import FsspecStore, LocalStore, MemoryStore, StorePath, ZipStore

import rechunk_exec as rx
from rechunk_exec.errors import SerializationError, StorageError
from rechunk_exec.storage import array_ref, is_url, local_path, open_array, open_reader, open_writer
from rechunk_exec.storage.objects import objects_of, put_object
from rechunk_exec.storage.stores import explicit_secret, open_store
from rechunk_exec.tasks import ArrayRef
from tests.storage.arrays import make, read_by_us, read_by_zarr, write_by_us
from tests.storage.codecs import V3_COMPRESSORS
from tests.values import position_values, same_bits

VALUES = position_values((5, 7), "f4")


def test_names_of_local_stores_become_absolute_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    wanted = ArrayRef(store=str(tmp_path / "a b"))
    urls = [f"{start}{tmp_path}/a b" for start in ("file://", "file:", "file://localhost", "local://")]
    for name in ("a b", "./x/../a b", Path("a b"), LocalStore("a b"), *urls, tmp_path / "a b"):
        assert array_ref(name) == wanted, name
    assert array_ref("a b", "x/y") == ArrayRef(store=str(tmp_path / "a b"), path="x/y")
    assert array_ref(StorePath(LocalStore("a b"), "x"), "y") == ArrayRef(store=str(tmp_path / "a b"), path="x/y")


def test_a_relative_path_without_a_working_directory_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # It was a FileNotFoundError of os.getcwd, which names nothing.
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    for store in ("a.zarr", LocalStore("a.zarr")):
        with pytest.raises(StorageError, match=r"working directory.* was removed; got 'a\.zarr'"):
            array_ref(store)
    assert array_ref(tmp_path / "b").store == str(tmp_path / "b")


@pytest.mark.parametrize("name", ["a%20b", "ü%C3", "a#b", "a?b=1", "%", "a b", "~", "a\nb", "[*]"])
def test_each_character_of_a_file_url_stands_for_itself_as_in_fsspec_and_zarr(tmp_path: Path, name: str) -> None:
    for start in ("file://", "file:", "local://"):
        assert array_ref(f"{start}{tmp_path}/{name}").store == f"{tmp_path}/{name}"
    assert fsspec.filesystem("file")._strip_protocol(f"file://{tmp_path}/{name}") == f"{tmp_path}/{name}"


@pytest.mark.parametrize("url", ["file://a/b", "file://", "file://localhost", "local://a"])
def test_a_file_url_without_an_absolute_path_is_refused(url: str) -> None:
    with pytest.raises(StorageError, match="a file URL names an absolute path"):
        array_ref(url)


def test_a_link_in_a_path_stays(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert array_ref(tmp_path / "link").store == str(tmp_path / "link")


def test_live_stores_and_mappings_stay_what_they_are() -> None:
    store = MemoryStore()
    assert array_ref(store).store is store
    assert array_ref(StorePath(store, "g"), "a").path == "g/a"
    content: dict[str, Any] = {}
    made: Any = array_ref(content).store
    assert isinstance(made, MemoryStore)
    assert made._store_dict is content


def test_an_empty_live_store_is_a_store(tmp_path: Path) -> None:
    # An empty mapping is false: tools that ask for truth took it for none.
    assert array_ref({}).store is not None
    ref = make(MemoryStore(), (5, 7), (2, 3), "f4")
    write_by_us(ref, VALUES)
    assert same_bits(read_by_zarr(ref), VALUES)


@pytest.mark.parametrize("store", [None, 5, b"bytes", ["list"], object()], ids=lambda store: type(store).__name__)
def test_what_is_no_store_is_refused(store: Any) -> None:
    with pytest.raises(StorageError, match="a store must be a path, a URL, a mapping"):
        array_ref(store)


def test_options_go_with_urls_only(tmp_path: Path) -> None:
    assert array_ref("s3://b/a", "x", {"anon": True}) == ArrayRef(
        store="s3://b/a", path="x", storage_options={"anon": True}
    )
    stores: list[Any] = [tmp_path, str(tmp_path), {}]
    for store in stores:
        with pytest.raises(StorageError, match="storage_options go with a URL"):
            array_ref(store, "", {"anon": True})
    with pytest.raises(SerializationError, match="no credentials; got the storage option 'secret'"):
        array_ref("s3://b/a", "", {"secret": "x"})


@pytest.mark.parametrize(
    "text,url",
    [
        ("s3://b/a", True),
        ("memory://a", True),
        ("https://h/a", True),
        ("file:///d/a", False),
        ("/d/a", False),
        ("a:b", False),
    ],
)
def test_urls(text: str, url: bool) -> None:
    assert is_url(text) == url


def test_local_paths(tmp_path: Path) -> None:
    assert local_path(ArrayRef(store="/d/a", path="x")) == Path("/d/a/x")
    assert local_path(ArrayRef(store=LocalStore(tmp_path), path="x")) == tmp_path / "x"
    for store in ("s3://b/a", "/d/a.zip", MemoryStore()):
        assert local_path(ArrayRef(store=store)) is None


def test_opening_a_store_makes_nothing(tmp_path: Path) -> None:
    open_store(array_ref(tmp_path / "a"), read_only=True)
    open_store(array_ref(tmp_path / "b"), read_only=False)
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_is_none_is_refused() -> None:
    with pytest.raises(StorageError, match="a store must be"):
        open_store(ArrayRef(store=5), read_only=True)


def test_a_zip_file_is_read(tmp_path: Path) -> None:
    with ZipStore(tmp_path / "a.zip", mode="w") as store:
        zarr.create_array(store, shape=(5, 7), chunks=(2, 3), shards=(4, 6), dtype="f4")[...] = VALUES
    for name in (tmp_path / "a.zip", ZipStore(tmp_path / "a.zip", mode="r")):
        ref = array_ref(name)
        assert ref.by_name
        assert open_reader(ref).way == "direct"
        assert same_bits(read_by_us(ref), VALUES)


def test_a_url_is_read_and_written() -> None:
    name = "memory://rechunk_exec-test/a.zarr"
    try:
        store = FsspecStore.from_url(name)
        zarr.create_array(store, name="x", shape=(5, 7), chunks=(2, 3), shards=(4, 6), dtype="f4", fill_value=1)
        ref = array_ref(name, "x")
        assert (read_by_us(ref) == 1).all()
        assert write_by_us(ref, VALUES).way == "direct"
        assert same_bits(read_by_us(ref), VALUES)
        assert same_bits(read_by_zarr(ArrayRef(store=store, path="x")), VALUES)
        mapper: Any = fsspec.get_mapper(name)
        assert same_bits(read_by_us(array_ref(mapper, "x")), VALUES)
    finally:
        fsspec.filesystem("memory").rm("/rechunk_exec-test", recursive=True)


def test_a_file_system_that_makes_no_folders_is_told(tmp_path: Path) -> None:
    files = AsyncFileSystemWrapper(fsspec.filesystem("file", auto_mkdir=False), asynchronous=True)
    store = FsspecStore(files, path=f"{tmp_path}/target")
    with pytest.raises(FileNotFoundError):
        zarr.create_array(store, shape=(5, 7), dtype="f4")  # nor does zarr get on with it
    with pytest.raises(StorageError, match=r"makes no folders: name it by its path, or .* auto_mkdir=True"):
        put_object(objects_of(store, "a"), "c/0", b"1")


def test_an_unknown_kind_of_url_names_what_is_missing() -> None:
    with pytest.raises(Exception, match="nonsense"):
        open_store(array_ref("nonsense://b/a"), read_only=True)


@pytest.mark.parametrize(
    "occupy,what",
    [
        (lambda place: None, "nothing is at"),
        (zarr.create_group, "a group, not an array"),
        (lambda place: zarr.create_group(place, zarr_format=2), "a group, not an array"),
        (lambda place: place.mkdir(), "something that is no zarr array"),
        (lambda place: (place.mkdir(), (place / "zarr.json").write_text("{")), "something that is no zarr array"),
        (
            lambda place: (place.mkdir(), (place / "zarr.json").write_text('{"zarr_format":3,"node_type":"array"}')),
            "zarr cannot open the array",
        ),
        (lambda place: (place.mkdir(), (place / ".zarray").write_text("{}")), "zarr cannot open the array"),
    ],
)
def test_what_is_no_array_is_named(occupy: Any, what: str, tmp_path: Path) -> None:
    # An array that zarr cannot open, for a codec that is not installed say, was called a group.
    occupy(tmp_path / "a")
    with pytest.raises(StorageError, match=what):
        open_array(array_ref(tmp_path / "a"), read_only=True)


def test_an_array_of_a_read_only_store_is_not_written() -> None:
    store = MemoryStore()
    make(store, (5, 7), (2, 3), "f4", values=VALUES)
    ref = ArrayRef(store=store.with_read_only(True))
    assert same_bits(read_by_us(ref), VALUES)
    with pytest.raises(StorageError):
        write_by_us(ref, VALUES)


def test_zarrs_warnings_are_hushed_and_the_filters_left_as_they_were(tmp_path: Path) -> None:
    # Filters are the process's: two threads that changed them at once could leave all warnings off.
    refs = [
        make(tmp_path / name, (5, 7), (2, 3), "f4", values=VALUES, compressors=V3_COMPRESSORS[name])
        for name in ("lz4", "bz2")
    ]
    before = list(warnings.filters)
    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(lambda ref: same_bits(read_by_us(ref), VALUES), refs * 10))
    assert list(warnings.filters) == before
    with pytest.warns(UserWarning, match="heard"):
        warnings.warn("heard", stacklevel=1)


def test_a_path_with_odd_characters(tmp_path: Path) -> None:
    for name in ("a b", "ä#1", "per%20cent", "semi;colon", "q?x=1"):
        ref = make(tmp_path / name, (5, 7), (2, 3), "f4")
        write_by_us(ref, VALUES)
        assert same_bits(read_by_us(ref), VALUES)
        assert (tmp_path / name / "c").is_dir()
    assert len(list(tmp_path.iterdir())) == 5


def test_zarr_arrays_in_groups(tmp_path: Path) -> None:
    ref = make(tmp_path, (5, 7), (2, 3), "f4", path="g/h/a", values=VALUES)
    array = zarr.open_array(str(tmp_path), path="g/h/a", mode="r")
    assert array_ref(array.store_path) == ref
    assert open_writer(ref).stored.shape == (5, 7)
    assert same_bits(read_by_us(ref), VALUES)


def test_a_store_that_was_made_with_a_password_in_an_address_is_known() -> None:
    for address, found in (("http://me:hunter2@host", "endpoint_url"), ("http://host", None)):
        store = FsspecStore.from_url("memory://a", storage_options={"endpoint_url": address})
        assert explicit_secret(store) == found


@pytest.mark.parametrize("size", [0, 200, -10])
def test_a_zip_file_that_is_cut_is_told(tmp_path: Path, size: int) -> None:
    with ZipStore(tmp_path / "whole.zip", mode="w") as store:
        zarr.create_array(store, shape=(4,), chunks=(2,), dtype="i4")
    (tmp_path / "cut.zip").write_bytes((tmp_path / "whole.zip").read_bytes()[:size])
    with pytest.raises(StorageError, match=r"cannot open the zip file .*cut\.zip: BadZipFile") as caught:
        open_store(array_ref(tmp_path / "cut.zip"), read_only=True)
    assert caught.value.permanent
    with pytest.raises(StorageError, match=r"cannot open the zip file .*cut\.zip"):
        rx.rechunk(tmp_path / "cut.zip", (4,), "1MB", tmp_path / "target")
