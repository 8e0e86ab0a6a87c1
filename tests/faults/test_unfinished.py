"""Unfinished jobs whose objects were lost, cut short or removed: what is missing is made again, and no more."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import zarr

import rechunk_exec as rx
from tests.faults.kinds import KINDS, Kind, kind
from tests.jobs import ZarrArray, assert_exact, elements, make_array, stop_after, stored_objects, tasks_run
from tests.values import same_bits

__all__ = ["kind"]

SHAPE, CHUNKS = (24, 24, 20), (24, 4, 4)
MAX_MEM = 7000
FIRST, SECOND = 18, 30
"""Tasks of the two stages within that."""


def job(source: ZarrArray, folder: Path, mode: Any = "resume", **options: Any) -> rx.Rechunked:
    options = {"executor": "serial", "temp_store": folder / "temp", "progress": False, **options}
    planned = rx.rechunk(source, CHUNKS, MAX_MEM, folder / "target", mode=mode, **options)
    assert [stage.tasks for stage in planned.plan.stages] == [FIRST, SECOND]
    return planned


@pytest.fixture
def source(tmp_path: Path) -> ZarrArray:
    return make_array(tmp_path / "source", SHAPE, (1, *SHAPE[1:]), attributes={"units": "m"})


def intermediate(folder: Path) -> Path:
    (place,) = (folder / "temp").iterdir()
    return place / "temp-1"


def cut(size: Callable[[int], int]) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(path.read_bytes()[: size(path.stat().st_size)])


DAMAGES: dict[str, Callable[[Path], object]] = {
    "empty": cut(lambda _: 0),
    "10 bytes": cut(lambda _: 10),
    "half": cut(lambda size: size // 2),
    "one byte less": cut(lambda size: size - 1),
    "deleted": Path.unlink,
}


def damage_in_each_way(place: Path, names: list[str]) -> None:
    for name, damage in zip(names, DAMAGES.values(), strict=True):
        damage(place / name)


def test_objects_of_the_target_that_are_damaged_are_made_again(tmp_path: Path, source: ZarrArray) -> None:
    stop_after(FIRST + 20, job(source, tmp_path, "fail"))
    objects = stored_objects(tmp_path / "target")
    assert len(objects) == 20
    damage_in_each_way(tmp_path / "target", random.Random(1).sample(objects, len(DAMAGES)))
    again = job(source, tmp_path)
    assert_exact(again.execute(), source)
    assert again.report is not None
    assert again.report.tasks == SECOND - 20 + len(DAMAGES), (
        "what was whole was not made again, nor what is not read any more"
    )


def test_objects_of_an_intermediate_that_are_damaged_are_made_again(tmp_path: Path, source: ZarrArray) -> None:
    stop_after(FIRST + 3, job(source, tmp_path, "fail"))
    objects = stored_objects(intermediate(tmp_path))
    assert len(objects) == FIRST, "each of another task"
    damage_in_each_way(intermediate(tmp_path), random.Random(2).sample(objects, len(DAMAGES)))
    again = job(source, tmp_path)
    assert_exact(again.execute(), source)
    assert again.report is not None
    run = [result.stage for result in again.report.results]
    assert run.count(0) == len(DAMAGES)
    assert run.count(1) == SECOND - 3


def job_in(kind: Kind, source: ZarrArray, mode: Any = "resume", **options: Any) -> rx.Rechunked:
    """A job of few tasks, with target and intermediates in a store."""
    options = {"max_mem": "20kB", "temp_store": kind.at("temp"), "executor": "serial", "progress": False} | options
    return rx.rechunk(source, (32, 4, 4), target_store=kind.at("target"), mode=mode, **options)


@pytest.fixture
def small_source(tmp_path: Path) -> ZarrArray:
    return make_array(tmp_path / "source", (32, 16, 16), (1, 16, 16))


STORED_DAMAGES = {"empty": lambda content: b"", "half": lambda content: content[: len(content) // 2], "deleted": None}


def damage_stored(kind: Kind, keys: list[str]) -> None:
    """Damage one object in each way."""
    contents = kind.contents()
    for key, change in zip(keys, STORED_DAMAGES.values(), strict=True):
        if change is None:
            kind.delete(key)
        else:
            kind.put(key, change(contents[key]))


def objects_in(kind: Kind, folder: str) -> list[str]:
    """The keys of the chunks or shards in a folder."""
    return sorted(key for key in kind.contents() if key.startswith(folder) and "/c/" in key)


def test_a_shard_of_a_target_in_any_store_that_is_damaged_is_made_again(kind: Kind, small_source: ZarrArray) -> None:
    # Resume had nothing to do, and said that it was finished.
    options = {"max_mem": "40kB", "target_shards": (32, 8, 8), "cost_model": "object"}
    first = job_in(kind, small_source, "fail", **options)
    stop_after(first.plan.tasks, first)
    shards = objects_in(kind, "target/")
    assert len(shards) == len(first.stages[-1]) == 4
    damage_stored(kind, shards[:3])
    again = job_in(kind, small_source, **options)
    assert_exact(again.execute(), small_source)
    assert tasks_run(again) == 3


FORMS: dict[str, dict[str, Any]] = {
    "pieces": {"cost_model": "object"},
    "chunks": {"temp_options": {"compressor": {"id": "lz4"}}},
}


@pytest.mark.parametrize(
    "kind, form",
    [
        *((kind, "pieces") for kind in KINDS),
        *((kind, "chunks") for kind in ("local", "memory")),
        *(pytest.param(kind, "chunks", marks=pytest.mark.long) for kind in ("s3", "obstore")),
    ],
    indirect=["kind"],
)
def test_objects_of_an_intermediate_in_any_store_that_are_damaged_are_made_again(
    form: str, kind: Kind, small_source: ZarrArray
) -> None:
    # Every resume read them, and failed.
    first = job_in(kind, small_source, "fail", **FORMS[form])
    tasks = len(first.stages[0]), len(first.stages[1])
    stop_after(tasks[0], first)
    objects = objects_in(kind, "temp/")
    rows = {key.split("/c/")[1].split("/")[0]: key for key in objects}
    assert len(rows) == tasks[0], "each of another task"
    damage_stored(kind, list(rows.values())[-3:])
    again = job_in(kind, small_source, **FORMS[form])
    assert_exact(again.execute(), small_source)
    assert tasks_run(again) == 3 + tasks[1]
    assert not objects_in(kind, "temp/")


def some(place: Path) -> None:
    for name in stored_objects(place)[::3]:
        (place / name).unlink()


def metadata_document(place: Path) -> None:
    (place / "zarr.json").unlink()


def chunks(place: Path) -> None:
    shutil.rmtree(place / "c")


def folder_of_it(place: Path) -> None:
    shutil.rmtree(place)


def folder_above(place: Path) -> None:
    shutil.rmtree(place.parent)


def whole_store(place: Path) -> None:
    shutil.rmtree(place.parents[1])


LOSSES = (some, metadata_document, chunks, folder_of_it, folder_above, whole_store)
REMOVED = [
    *((loss, FIRST + 1) for loss in LOSSES),
    *((loss, done) for loss in (some, whole_store) for done in (5, FIRST + SECOND - 1)),
]
"""What is lost, and how many tasks were done then: all in the midst of the second stage, some before and at its end."""


@pytest.mark.parametrize("loss, done", REMOVED)
def test_an_intermediate_that_somebody_removed_is_made_again(
    loss: Callable[[Path], None], done: int, tmp_path: Path, source: ZarrArray
) -> None:
    stop_after(done, job(source, tmp_path, "fail"))
    loss(intermediate(tmp_path))
    again = job(source, tmp_path)
    assert_exact(again.execute(), source)
    assert again.report is not None
    assert sum(result.stage == 1 for result in again.report.results) == SECOND - max(0, done - FIRST)
    assert not list((tmp_path / "temp").rglob("*"))


@pytest.mark.parametrize("done", [5, FIRST + 4])
def test_a_target_that_was_emptied_is_made_again(done: int, tmp_path: Path, source: ZarrArray) -> None:
    stop_after(done, job(source, tmp_path, "fail"))
    shutil.rmtree(tmp_path / "target" / "c", ignore_errors=True)
    (tmp_path / "target" / "zarr.json").unlink()
    assert_exact(job(source, tmp_path).execute(), source)


def test_a_target_that_was_removed_is_begun_anew(tmp_path: Path, source: ZarrArray) -> None:
    stop_after(FIRST + 4, job(source, tmp_path, "fail"))
    shutil.rmtree(tmp_path / "target")
    again = job(source, tmp_path)
    assert_exact(again.execute(), source)
    assert again.report is not None
    assert again.report.tasks == FIRST + SECOND


@pytest.mark.parametrize("missing", [".zattrs", ".zarray"])
def test_metadata_of_format_2_that_a_kill_left_in_part_are_completed(
    missing: str, tmp_path: Path, source: ZarrArray
) -> None:
    stop_after(1, job(source, tmp_path, "fail", zarr_format=2))
    (tmp_path / "target" / missing).unlink()
    target = job(source, tmp_path, zarr_format=2).execute()
    assert_exact(target, source)
    assert dict(zarr.open_array(tmp_path / "target", mode="r").attrs)["units"] == "m"


@pytest.mark.parametrize("damage", ["empty", "half"])
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_metadata_that_a_power_cut_left_empty_or_cut_are_made_again_and_no_task_is_run_for_them(
    damage: str, zarr_format: Any, tmp_path: Path, source: ZarrArray
) -> None:
    options = {"zarr_format": zarr_format}
    stop_after(FIRST + 20, job(source, tmp_path, "fail", **options))
    damaged = [tmp_path / "target" / name for name in {2: [".zarray", ".zattrs"], 3: ["zarr.json"]}[zarr_format]]
    for path in (*damaged, intermediate(tmp_path) / "zarr.json"):
        DAMAGES[damage](path)
    again = job(source, tmp_path, **options)
    assert_exact(again.execute(), source)
    assert tasks_run(again) == SECOND - 20
    assert dict(zarr.open_array(tmp_path / "target", mode="r").attrs)["units"] == "m"


def test_results_are_kept_where_what_they_are_of_cannot_be_looked_at(tmp_path: Path, source: ZarrArray) -> None:
    stop_after(FIRST + 20, job(source, tmp_path, "fail"))
    document = tmp_path / "target" / "zarr.json"
    whole = document.read_text()
    document.write_text(whole.replace('"array"', '"arrow"', 1))
    with pytest.raises(rx.StorageError, match="cannot open"):
        job(source, tmp_path).execute()
    document.write_text(whole)
    again = job(source, tmp_path)
    assert_exact(again.execute(), source)
    assert tasks_run(again) == SECOND - 20


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("missing", ["", "layers/"])
def test_groups_above_a_target_that_a_kill_left_out_are_made(
    missing: str, zarr_format: Any, tmp_path: Path, source: ZarrArray
) -> None:
    options = {"zarr_format": zarr_format, "array_name": "layers/a"}
    stop_after(1, job(source, tmp_path, "fail", **options))
    (tmp_path / "target" / missing / {2: ".zgroup", 3: "zarr.json"}[zarr_format]).unlink()
    job(source, tmp_path, **options).execute()
    group: Any = zarr.open_group(tmp_path / "target", mode="r")
    assert same_bits(elements(group["layers"]["a"]), elements(source))


@pytest.mark.long  # tests/test_preparation.py shows it
def test_a_package_that_is_on_the_path_and_not_installed_works(
    tmp_path: Path, source: ZarrArray, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = metadata.version

    def not_found(name: str) -> str:
        if name == "rechunk_exec":
            raise metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(metadata, "version", not_found)
    assert_exact(job(source, tmp_path, "fail").execute(), source)


def test_flipped_bits_keep_their_size_and_are_found_by_verification(tmp_path: Path, source: ZarrArray) -> None:
    stop_after(FIRST + 20, job(source, tmp_path, "fail"))
    name = stored_objects(tmp_path / "target")[3]
    content = bytearray((tmp_path / "target" / name).read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / "target" / name).write_bytes(content)
    with pytest.raises(rx.RechunkError):
        job(source, tmp_path, verify=True).execute()
    assert rx.status(tmp_path / "target").state == "unfinished"
