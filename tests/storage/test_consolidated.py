"""Groups whose consolidated metadata hold a copy of what a job makes anew."""

from __future__ import annotations

import json
import logging
import os
import warnings
from pathlib import Path
from typing import Any

import pytest
import zarr
from zarr.storage import MemoryStore, StorePath

import rechunk_exec as rx
from rechunk_exec import storage
from rechunk_exec.results import Event
from rechunk_exec.tasks import ArrayRef
from tests.jobs import assert_exact, elements, make_array, tasks_run
from tests.values import same_bits

FORMATS = pytest.mark.parametrize("zarr_format", [2, 3])
SHAPE = (6, 8)


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Consolidated metadata is currently not part")
        yield


def group_at(store: Any, zarr_format: Any) -> None:
    """A group with an array ``a`` and, in a group in it, ``b``; consolidated."""
    root = zarr.open_group(store, mode="w", zarr_format=zarr_format, attributes={"title": "x"})
    make_array(root.store, (4, 4), (2, 4), name="a", zarr_format=zarr_format)
    inner = root.create_group("sub", attributes={"of": 1})
    inner.create_array("b", shape=(6, 6), chunks=(6, 1), dtype="i2")[...] = 5
    zarr.consolidate_metadata(root.store)


def found(store: Any) -> set[str]:
    """What readers of a group find by its consolidated metadata."""
    root = zarr.open_group(store, mode="r")
    assert root.metadata.consolidated_metadata is not None
    return {name for name, _ in root.members(max_depth=None)}


def source_at(tmp_path: Path, zarr_format: int) -> Any:
    return make_array(tmp_path / "source", SHAPE, (1, 8), zarr_format=zarr_format)


@FORMATS
@pytest.mark.parametrize("kind", ["disk", "memory"])
@pytest.mark.parametrize("path", ["sub/b", "sub/new", "c"])
def test_an_array_is_found_when_its_job_has_ended_and_not_before(
    kind: str, zarr_format: int, path: str, tmp_path: Path
) -> None:
    source = source_at(tmp_path, zarr_format)
    store: Any = tmp_path / "group" if kind == "disk" else MemoryStore()
    group_at(store, zarr_format)
    others = found(store) - {path}
    seen: list[set[str]] = []
    job = rx.rechunk(
        source, (6, 2), "1MB", store / path if kind == "disk" else StorePath(store, path), mode="overwrite",
        executor="serial", progress=False,
    )  # fmt: skip
    made = job.execute(on_event=lambda _: seen.append(found(store)))
    assert seen
    assert all(names == others for names in seen)
    assert found(store) == others | {path}
    root = zarr.open_group(store, mode="r")
    assert dict(root.attrs) == {"title": "x"}
    shown: Any = root[path]
    assert shown.metadata == made.metadata
    assert same_bits(elements(shown), elements(source)), "by the metadata that the group holds"
    assert_exact(made, source)
    again = json.dumps(documents(store), sort_keys=True)
    zarr.consolidate_metadata(store)
    assert json.dumps(documents(store), sort_keys=True) == again, "as zarr consolidates it"


def documents(store: Any) -> Any:
    """The consolidated metadata as they are stored."""
    objects = {p.name: p.read_bytes() for p in store.iterdir() if p.is_file()} if isinstance(store, Path) else None
    if objects is None:
        objects = {name: value.to_bytes() for name, value in store._store_dict.items() if "/" not in name}
    if ".zmetadata" in objects:
        return json.loads(objects[".zmetadata"])["metadata"]
    return json.loads(objects["zarr.json"])["consolidated_metadata"]["metadata"]


@FORMATS
def test_an_array_is_not_found_while_its_job_is_unfinished(zarr_format: int, tmp_path: Path) -> None:
    source = source_at(tmp_path, zarr_format)
    group_at(tmp_path / "group", zarr_format)
    words: dict[str, Any] = {"executor": "serial", "progress": False}

    def stop(event: Event) -> None:
        if event.kind == "task":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rx.rechunk(source, (2, 8), "2kB", tmp_path / "group/a", mode="overwrite", **words).execute(on_event=stop)
    assert found(tmp_path / "group") == {"sub", "sub/b"}
    rx.rechunk(source, (2, 8), "2kB", tmp_path / "group/a", mode="resume", **words).execute()
    assert found(tmp_path / "group") == {"a", "sub", "sub/b"}


def test_a_job_of_lines_ends_the_same_way(tmp_path: Path) -> None:
    source = source_at(tmp_path, 3)
    group_at(tmp_path / "group", 3)
    lines = tmp_path / "jobs.jsonl"
    count = rx.rechunk(source, (2, 8), "1MB", tmp_path / "group/new", progress=False).write_jobs(lines)
    for number in range(count):
        rx.run_job(lines, number)
    assert "new" not in found(tmp_path / "group")
    rx.finalize_jobs(lines)
    assert "new" in found(tmp_path / "group")


@FORMATS
def test_a_group_that_is_not_consolidated_is_left_as_it_is(zarr_format: Any, tmp_path: Path) -> None:
    source = source_at(tmp_path, zarr_format)
    zarr.open_group(tmp_path / "group", mode="w", zarr_format=zarr_format)
    before = {path.name: path.read_bytes() for path in (tmp_path / "group").iterdir()}
    rx.rechunk(source, (6, 2), "1MB", tmp_path / "group/new", progress=False).execute()
    assert {path.name: path.read_bytes() for path in (tmp_path / "group").iterdir() if path.is_file()} == before


def test_a_group_that_was_damaged_meanwhile_costs_no_array(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = source_at(tmp_path, 2)
    group_at(tmp_path / "group", 2)

    def damage(_: Event) -> None:
        (tmp_path / "group/.zmetadata").write_text("{")

    with caplog.at_level(logging.WARNING, "rechunk_exec"):
        made = rx.rechunk(source, (6, 2), "1MB", tmp_path / "group/new", progress=False).execute(on_event=damage)
    assert_exact(made, source)
    assert rx.status(tmp_path / "group/new").state == "finished"
    assert "zarr.consolidate_metadata" in caplog.text
    with pytest.raises(rx.StorageError, match=r"\.zmetadata is no JSON"):
        rx.rechunk(source, (6, 2), "1MB", tmp_path / "group/more", progress=False).execute()


@FORMATS
@pytest.mark.parametrize("kind", ["disk", "memory"])
def test_an_array_whose_replacement_was_given_up_before_it_began_is_found_again(
    kind: str, zarr_format: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = source_at(tmp_path, zarr_format)
    store: Any = tmp_path / "group" if kind == "disk" else MemoryStore()
    group_at(store, zarr_format)
    place = store / "a" if kind == "disk" else StorePath(store, "a")
    seen: list[set[str]] = []

    def give_up(*_: Any) -> None:
        seen.append(found(store))
        raise KeyboardInterrupt

    monkeypatch.setattr(storage, "remove_moved_aside", give_up)
    with pytest.raises(KeyboardInterrupt):
        rx.rechunk(source, (6, 2), "1MB", place, mode="overwrite", progress=False).execute()
    assert seen == [{"sub", "sub/b"}]
    assert found(store) == {"a", "sub", "sub/b"}


@FORMATS
def test_an_array_whose_replacement_was_killed_before_it_began_is_found_when_its_job_is_resumed(
    zarr_format: int, tmp_path: Path
) -> None:
    source = source_at(tmp_path, zarr_format)
    group_at(tmp_path / "group", zarr_format)
    words: dict[str, Any] = {"executor": "serial", "progress": False}
    rx.rechunk(source, (6, 2), "1MB", tmp_path / "group/new", **words).execute()
    storage.conceal(ArrayRef(store=str(tmp_path / "group/new")))
    assert "new" not in found(tmp_path / "group")
    again = rx.rechunk(source, (6, 2), "1MB", tmp_path / "group/new", mode="resume", **words)
    assert_exact(again.execute(), source)
    assert tasks_run(again) == 0
    assert "new" in found(tmp_path / "group")


def test_what_a_killed_process_has_left_of_a_groups_metadata_goes_and_what_is_written_now_does_not(
    tmp_path: Path,
) -> None:
    source = source_at(tmp_path, 2)
    group_at(tmp_path / "group", 2)
    old, fresh = (tmp_path / "group" / f"..zmetadata.{number:012x}.partial" for number in (1, 2))
    foreign = tmp_path / "group" / "..zmetadata.mine.partial"
    for path in (old, fresh, foreign):
        path.write_text("{")
    for path in (old, foreign):
        os.utime(path, (0, 0))
    rx.rechunk(source, (6, 2), "1MB", tmp_path / "group/new", progress=False).execute()
    assert (old.exists(), fresh.exists(), foreign.exists()) == (False, True, True)


@pytest.mark.filterwarnings("ignore:Object at .* is not recognized")  # zarr, of what its group does not see
@pytest.mark.parametrize("place", ["disk", "memory"])
@pytest.mark.parametrize("name", ["new", "layers/new"])
@FORMATS
def test_a_group_of_another_format_is_left_as_it_is_and_told(
    tmp_path: Path, zarr_format: Any, name: str, place: str
) -> None:
    store: Any = tmp_path / "group" if place == "disk" else MemoryStore()
    group = zarr.open_group(store, mode="w", zarr_format=zarr_format)
    group.create_array("old", shape=(3,), dtype="i4", chunks=(3,))
    source = make_array(tmp_path / "source", SHAPE, (1, 8))

    def notes(job: rx.Rechunked) -> list[str]:
        return [line for line in repr(job).splitlines() if "note: the group" in line]

    def job(target_format: Any, name: str) -> rx.Rechunked:
        return rx.rechunk(
            source, (6, 1), "1MB", store, array_name=name, zarr_format=target_format, executor="threads", progress=False
        )  # fmt: skip

    apart = job(5 - zarr_format, name)
    (note,) = notes(apart)
    assert f"is of zarr format {zarr_format}" in note
    assert f"zarr_format={zarr_format} has it seen" in note
    assert_exact(apart.execute(), source)
    seen = zarr.open_group(store, mode="r")
    assert (seen.metadata.zarr_format, [path for path, _ in seen.members(max_depth=None)]) == (zarr_format, ["old"])
    inside = job(zarr_format, "inside")
    assert notes(inside) == []
    inside.execute()
    assert sorted(path for path, _ in zarr.open_group(store, mode="r").members()) == ["inside", "old"]
