"""One place under two names is no source and target, whatever the stores."""

from __future__ import annotations

import shutil
from collections import UserDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest
import zarr
from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper
from fsspec.implementations.cached import SimpleCacheFileSystem
from fsspec.implementations.dirfs import DirFileSystem
from zarr.abc.store import ByteRequest, Store
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.storage import FsspecStore, LocalStore, MemoryStore, ObjectStore, StorePath, WrapperStore

import rechunk_exec as rx
from rechunk_exec.errors import PlanError, StorageError
from rechunk_exec.storage import ArrayRef, array_ref, refuse_overlap
from rechunk_exec.storage.locations import location
from tests.conftest import needed_module
from tests.faults.proxy import running_proxy
from tests.jobs import QUICK_STAGES, assert_exact, make_array, snapshot
from tests.s3 import Bucket

SHAPE, EPOCHS, SERIES = (2, 8, 8), (1, 8, 8), (2, 4, 4)

Name = Callable[[str], Any]
"""A way to name what is under a path."""


def assert_overlap(one: Any, other: Any, *, overlap: bool = True) -> None:
    refs = [ref if isinstance(ref, ArrayRef) else array_ref(ref) for ref in (one, other)]
    for source, target in (refs, refs[::-1]):
        if overlap:
            with pytest.raises(PlanError, match="same or inside"):
                refuse_overlap(source, target)
        else:
            refuse_overlap(source, target)


def run(source: Any, target: Any, **options: Any) -> Any:
    """Replace what is at the target."""
    return rx.rechunk(
        source, SERIES, "1MB", target, **{"mode": "overwrite", "verify": True, "progress": False, **options}
    ).execute()


def unshown(held: Any) -> MemoryStore:
    """A store of the same mapping that does not show whose it is."""
    view: UserDict[str, Any] = UserDict()
    view.data = held
    return MemoryStore(view)


@pytest.mark.parametrize(
    "source,target,overlap",
    [
        (("/d/a", ""), ("/d/a", ""), True),
        (("/d/a", ""), ("/d/a/", ""), True),
        (("/d/a", ""), ("/d", "a"), True),
        (("/d/a", ""), ("/d/a/b", ""), True),
        (("/d/a", ""), ("/d/ab", ""), False),
        (("/d/a", "x"), ("/d/a", "y"), False),
        (("/d/a", "x"), ("/d/a", "xy"), False),
        (("/d/a", "x"), ("/d/a", "x/y"), True),
        (("/d/a", ""), ("/d/b/../a", ""), True),
        (("/d/a", ""), ("local:///d/a", ""), True),
        (("/d/a.zip", ""), ("/d", ""), True),
        (("/d/a.zip", "x"), ("/d/a.zip", "y"), False),
        (("s3://b/a", ""), ("s3://b/a", ""), True),
        (("s3://b/a", ""), ("s3://b/a/c", ""), True),
        (("s3://b", "a/c"), ("s3://b/a", ""), True),
        (("s3://b/a", ""), ("s3://b/ab", ""), False),
        (("s3://b/a", ""), ("s3://c/a", ""), False),
        (("s3://b/a", ""), ("/b/a", ""), False),
        (("s3://b/a", ""), ("s3a://b/a/", ""), True),
        (("s3://b/a", ""), ("s3://b//a", ""), True),
        (("https://h/a", ""), ("http://h/a/b", ""), True),
        (("https://h/a", ""), ("https://g/a", ""), False),
        (("memory://a", ""), ("memory://a/b", ""), True),
        (("memory://a", ""), ("memory://b", ""), False),
    ],
    ids=str,
)
def test_names(source: tuple[str, str], target: tuple[str, str], overlap: bool) -> None:
    one, other = (ArrayRef(store=store, path=path) for store, path in (source, target))
    assert_overlap(one, other, overlap=overlap)


def local_names(folder: Path) -> dict[str, Name]:
    files = fsspec.filesystem("file", auto_mkdir=True)
    lasting = AsyncFileSystemWrapper(files, asynchronous=True)
    return {
        "path": lambda name: folder / name,
        "link": lambda name: folder / "link" / name,
        "url": lambda name: f"file://{folder}/{name}",
        "other url": lambda name: f"local://{folder}/{name}",
        "store": lambda name: StorePath(LocalStore(folder), name),
        "wrapped": lambda name: WrapperStore(LocalStore(folder / name)),
        "twice wrapped": lambda name: StorePath(WrapperStore(WrapperStore(LocalStore(folder / "link"))), name),
        "map": lambda name: fsspec.get_mapper(f"{folder}/{name}"),
        "fsspec": lambda name: FsspecStore(lasting, path=f"{folder}/link/{name}", read_only=True),
        "cached": lambda name: FsspecStore(
            AsyncFileSystemWrapper(SimpleCacheFileSystem(fs=files), asynchronous=True), path=f"{folder}/{name}"
        ),
        "folder": lambda name: FsspecStore(
            AsyncFileSystemWrapper(DirFileSystem(path=str(folder), fs=files), asynchronous=True), path=name
        ),
        "obstore": lambda name: ObjectStore(needed_module("obstore.store").LocalStore(str(folder / name))),
    }


def link(path: Path, to: Path) -> None:
    """Put a link in the place of a file or a folder, which moves to where the link leads."""
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(path, to)
    path.symlink_to(to)


@pytest.mark.parametrize("linked", ["c", "c/1", "c/1/0/0", "zarr.json"])
@pytest.mark.parametrize("by", ["path", "fsspec"])
@pytest.mark.parametrize("into", ["target", "target/inside/of/it"])
def test_a_source_whose_chunks_are_links_into_the_target_is_refused(
    tmp_path: Path, linked: str, by: str, into: str
) -> None:
    make_array(tmp_path / "source", SHAPE, EPOCHS)
    make_array(tmp_path / "target", SHAPE, EPOCHS)
    shutil.rmtree(tmp_path / "target" / "c")
    (tmp_path / "target" / "zarr.json").unlink()
    link(tmp_path / "source" / linked, tmp_path / into / linked)
    (tmp_path / "link").symlink_to(tmp_path)
    before = snapshot(tmp_path)
    for mode in ("fail", "overwrite", "resume"):
        with pytest.raises(PlanError, match=r"same or inside .* of the source leads there by a link"):
            run(local_names(tmp_path)[by]("source"), tmp_path / "target", mode=mode)
    assert snapshot(tmp_path) == before


def test_a_source_whose_chunks_are_links_elsewhere_is_read(tmp_path: Path) -> None:
    source = make_array(tmp_path / "source", SHAPE, EPOCHS)
    link(tmp_path / "source" / "c", tmp_path / "targets" / "c")
    for _ in range(2):
        assert_exact(run(tmp_path / "source", tmp_path / "target"), source)


@pytest.mark.parametrize("by", local_names(Path()))
def test_a_place_on_a_disk_is_known_by_any_name(tmp_path: Path, by: str) -> None:
    real = tmp_path / "real"
    real.mkdir()
    (real / "b").mkdir()  # obstore wants a folder
    (real / "link").symlink_to(real)
    make_array(real / "a", SHAPE, EPOCHS)
    name = local_names(real)[by]
    assert_overlap(name("a"), real / "a")
    assert_overlap(name("a"), real / "a/new")
    assert_overlap(name("a"), real)
    assert_overlap(name("a"), real / "ab", overlap=False)
    assert_overlap(name("a"), name("b"), overlap=False)
    before = snapshot(tmp_path)
    for target in (real / "a", LocalStore(real / "a")):
        with pytest.raises(PlanError, match="same or inside"):
            run(name("a"), target)
    for target in (real / "a", real / "a/new"):
        with pytest.raises(PlanError, match="same or inside"):
            run(name("a"), target, mode="fail")
    assert snapshot(tmp_path) == before


def test_a_link_that_is_no_more_than_alike_is_another_place(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert_overlap(tmp_path / "real", tmp_path / "link/inside")
    assert_overlap(tmp_path / "real", tmp_path / "link-2", overlap=False)


def s3_names(s3: Bucket) -> dict[str, Name]:
    def obstore(prefix: str | None = None, *, read_only: bool = False) -> ObjectStore[Any]:
        stores = needed_module("obstore.store")
        options = {"allow_http": True}
        store = stores.S3Store(s3.name, prefix=prefix, endpoint=s3.address, client_options=options)
        return ObjectStore(store, read_only=read_only)

    return {
        "url": s3.url,
        "url with a slash": lambda name: s3.url(name) + "/",
        "s3a": lambda name: f"s3a://{s3.name}/{name}",
        "store": s3.store,
        "store that is read only": lambda name: FsspecStore.from_url(s3.url(name), read_only=True),
        "bucket": lambda name: StorePath(s3.store(""), name),
        "wrapped": lambda name: WrapperStore(s3.store(name)),
        "obstore": lambda name: StorePath(obstore(), name),
        "obstore that is read only": lambda name: StorePath(obstore(read_only=True), name),
        "obstore with a prefix": obstore,
    }


@pytest.mark.parametrize("by", s3_names(Bucket("", "")))
def test_a_place_on_s3_is_known_by_any_name(s3: Bucket, by: str) -> None:
    make_array(s3.store("a"), SHAPE, EPOCHS)
    name = s3_names(s3)[by]
    before = s3.contents()
    names = s3_names(s3)
    for other in list(names.values())[list(names).index(by) :]:  # each two once
        assert_overlap(name("a"), other("a"))
        assert_overlap(name("a"), other("a/new"))
        assert_overlap(name("a"), other("ab"), overlap=False)
    for target in (s3.url("a"), StorePath(s3.store(""), "a")):
        with pytest.raises(PlanError, match=f"same or inside each other.*s3://{s3.name}/a"):
            run(name("a"), target)
    with pytest.raises(PlanError, match="same or inside each other"):
        run(name("a"), s3.url("a/new"), mode="fail")
    assert s3.contents() == before


def test_an_open_array_on_s3_is_known_by_any_name(s3: Bucket) -> None:
    make_array(s3.store("a"), SHAPE, EPOCHS)
    for target in (s3.url("a"), StorePath(s3.store(""), "a")):
        with pytest.raises(PlanError, match="same or inside each other"):
            run(zarr.open_array(s3.url("a"), mode="r"), target)


def test_intermediates_do_not_go_into_a_source_or_target_by_another_name(s3: Bucket) -> None:
    source = make_array(s3.store("a"), (6, 20, 20), (1, 20, 20))
    before = s3.contents()
    for place, what in (("a/temp", "source"), ("t/temp", "target")):
        temp = StorePath(s3_names(s3)["obstore"](""), place)
        with pytest.raises(PlanError, match=f"intermediates must lie outside the {what}"):
            rx.rechunk(source, (6, 10, 10), 8_000, s3.url("t"), temp_store=temp, cost_model=QUICK_STAGES)
    assert s3.contents() == before


def test_one_name_on_two_servers_is_two_places(s3: Bucket) -> None:
    def at(endpoint: str, name: str = "a") -> FsspecStore:
        return FsspecStore.from_url(f"s3://b/{name}", storage_options={"endpoint_url": endpoint})

    assert_overlap(at("http://one:9000"), at("http://two:9000"), overlap=False)
    assert_overlap(at("http://one:9000"), at("http://one:9001"), overlap=False)
    assert_overlap(at("https://one"), at("https://one:443"))
    assert_overlap(at("http://localhost:9000"), at("http://127.0.0.1:9000"))
    assert_overlap(at("https://s3.us-east-1.amazonaws.com"), at("https://s3.eu-west-1.amazonaws.com"))
    assert_overlap(at("http://one:9000"), "s3://b/a")  # which may be there
    store = s3.store("a")
    make_array(store, SHAPE, EPOCHS)
    assert location(array_ref(store)).server == f"localhost:{s3.address.rpartition(':')[2]}"


def test_obstore_elsewhere_and_in_memory() -> None:
    stores = needed_module("obstore.store")
    azure = stores.AzureStore.from_url("abfss://c@acc.dfs.core.windows.net/p/q")
    assert str(location(array_ref(ObjectStore(azure)))) == "az://c/p/q"
    other = stores.AzureStore.from_url("abfss://c@other.dfs.core.windows.net/p/q")
    assert_overlap(ObjectStore(azure), ObjectStore(other), overlap=False)
    assert str(location(array_ref(ObjectStore(stores.GCSStore("b", prefix="p"))))) == "gs://b/p"
    web = ObjectStore(stores.HTTPStore.from_url("https://h/a"), read_only=True)
    assert_overlap(web, "https://h/a/b")
    memory = stores.MemoryStore()
    assert_overlap(ObjectStore(memory), ObjectStore(memory, read_only=True))
    assert_overlap(ObjectStore(memory), ObjectStore(stores.MemoryStore()), overlap=False)


def test_memory() -> None:
    held: dict[str, Any] = {}
    store = MemoryStore(held)
    for other in (store, MemoryStore(held), WrapperStore(store), MemoryStore(held, read_only=True)):
        assert_overlap(StorePath(store, "a"), StorePath(other, "a/b"))
        assert_overlap(StorePath(store, "a"), StorePath(other, "b"), overlap=False)
    assert_overlap(store, MemoryStore(), overlap=False)  # equal, as both are empty
    source = make_array(WrapperStore(store), SHAPE, EPOCHS, name="a")
    before = dict(held)
    for target in (StorePath(store, "a"), StorePath(MemoryStore(held), "a")):
        with pytest.raises(PlanError, match="same or inside"):
            run(source, target)
    assert held == before
    assert_exact(run(source, StorePath(store, "b")), source)


def test_memory_by_url() -> None:
    url = "memory://locations-test/a"
    source = make_array(url, SHAPE, EPOCHS, overwrite=True)
    with pytest.raises(PlanError, match="same or inside"):
        run(zarr.open_array(url, mode="r"), url)
    assert_exact(run(source, f"{url}b"), source)


def test_nothing_can_be_under_a_name_with_nul() -> None:
    with pytest.raises(StorageError, match="nothing can be stored"):
        refuse_overlap(ArrayRef(store="/a"), ArrayRef(store="/b\0"))


# What no name tells.


@pytest.mark.parametrize("other", ["source", "target"])
def test_a_place_whose_names_do_not_tell_is_found_before_anything_goes(other: str) -> None:
    held: dict[str, Any] = {}
    make_array(MemoryStore(held), SHAPE, EPOCHS, name="a")
    before = dict(held)
    stores = [unshown(held), MemoryStore(held)][:: 1 if other == "source" else -1]
    source, target = (StorePath(store, "a") for store in stores)
    with pytest.raises(PlanError, match=r"same or inside each other.*beside the source"):
        run(source, target)
    assert held == before
    assert_exact(run(source, StorePath(stores[1], "b")), zarr.open_array(source, mode="r"))


def test_a_place_on_a_server_of_two_addresses_is_found_before_anything_goes(s3: Bucket) -> None:
    make_array(s3.store("a"), SHAPE, EPOCHS)
    before = s3.contents()
    with running_proxy(s3.address) as proxy:
        store = FsspecStore.from_url(s3.url("a"), storage_options={"endpoint_url": proxy.address})
        source = zarr.open_array(store, mode="r")
        with pytest.raises(PlanError, match=r"same or inside each other.*beside the source"):
            run(source, s3.store("a"))
        assert s3.contents() == before
        assert_exact(run(source, s3.store("b")), source)


class TightLippedStore(WrapperStore[Store]):
    """A store whose server denies what is not there, as S3 does to whom it does not let list."""

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        found = await super().get(key, prototype, byte_range)
        if found is None and ".rechunk_exec/drivers" in key:
            raise PermissionError(key)
        return found


def test_a_source_that_does_not_tell_what_is_not_there_is_copied() -> None:
    source = make_array(TightLippedStore(MemoryStore()), SHAPE, EPOCHS)
    assert_exact(run(source, MemoryStore()), source)


def test_a_folder_that_is_seen_by_two_paths_is_found_before_anything_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that is mounted twice: a link which ``realpath`` does not follow."""
    make_array(tmp_path / "a", SHAPE, EPOCHS)
    (tmp_path / "b").symlink_to("a")
    before = snapshot(tmp_path)
    monkeypatch.setattr("os.path.realpath", str)
    with pytest.raises(PlanError, match=r"same or inside each other.*beside the source"):
        run(tmp_path / "b", tmp_path / "a")
    after = snapshot(tmp_path)
    assert {name: text for name, (_, text) in after.items()} == {name: text for name, (_, text) in before.items()}
