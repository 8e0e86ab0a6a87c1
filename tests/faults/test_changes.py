"""Jobs whose source or words changed between two runs are not gone on with: the error names what differs."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.codecs import GzipCodec

import rechunk_exec as rx
from rechunk_exec.executors import ProcessesExecutor, ThreadsExecutor
from rechunk_exec.storage import identity
from tests.conftest import needed_module
from tests.faults.kinds import KINDS, Kind, kind
from tests.faults.stopped import STOPPED_AFTER, folder, source, stopped, wanted
from tests.faults.test_unfinished import FIRST, MAX_MEM, SECOND, SHAPE
from tests.jobs import ZarrArray, assert_exact, elements, make_array, snapshot, stop_after, tasks_run
from tests.s3 import Bucket
from tests.values import position_values, same_bits

__all__ = ["folder", "kind", "source", "stopped"]


def chunk_rewritten(folder: Path) -> None:
    zarr.open_array(folder / "source", mode="r+")[5] = 7


def chunk_touched(folder: Path) -> None:
    path = folder / "source" / "c" / "5" / "0" / "0"
    later = path.stat().st_mtime_ns + 1_000_000_000
    os.utime(path, ns=(later, later))


def metadata_touched(folder: Path) -> None:
    path = folder / "source" / "zarr.json"
    later = path.stat().st_mtime_ns + 1_000_000_000
    os.utime(path, ns=(later, later))


def chunk_removed(folder: Path) -> None:
    (folder / "source" / "c" / "23" / "0" / "0").unlink()


def attribute_changed(folder: Path) -> None:
    zarr.open_array(folder / "source", mode="r+").attrs["units"] = "cm"


def attribute_added(folder: Path) -> None:
    zarr.open_array(folder / "source", mode="r+").attrs["note"] = "new"


def fill_value_changed(folder: Path) -> None:
    path = folder / "source" / "zarr.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"fill_value": 4.0}))


def grown(folder: Path) -> None:
    zarr.open_array(folder / "source", mode="r+").resize((30, 24, 20))


def replaced(folder: Path) -> None:
    shutil.rmtree(folder / "source")
    make_array(folder / "source", SHAPE, (1, *SHAPE[1:]), values=np.ones(SHAPE, "f4"), attributes={"units": "m"})


def replaced_by_another_dtype(folder: Path) -> None:
    shutil.rmtree(folder / "source")
    make_array(folder / "source", SHAPE, (1, *SHAPE[1:]), "i4", attributes={"units": "m"})


def replaced_by_other_chunks(folder: Path) -> None:
    shutil.rmtree(folder / "source")
    make_array(folder / "source", SHAPE, (2, *SHAPE[1:]), attributes={"units": "m"})


CHANGES: list[tuple[Callable[[Path], None], str]] = [
    (chunk_rewritten, "the source's chunk c/5/0/0 was written since"),
    (chunk_touched, "the source's chunk c/5/0/0 was written since"),
    (metadata_touched, "the source's zarr.json was written since"),
    (chunk_removed, "the source's chunk c/23/0/0 was written since"),
    (attribute_changed, 'the source\'s attributes: .*"m".* then, .*"cm".* now'),
    (attribute_added, "the source's attributes: .*new"),
    (fill_value_changed, "the source's fill_value: 0.0 then, 4.0 now"),
    (grown, r"the source's shape: \[24,24,20\] then, \[30,24,20\] now"),
    (replaced, "the source's zarr.json was written since; the source's chunk c/0/0/0 was written since, and 23 more"),
    (replaced_by_another_dtype, 'the source\'s data_type: "float32" then, "int32" now'),
    (replaced_by_other_chunks, "the source's chunk_grid: "),
]


@pytest.mark.parametrize("change, words", CHANGES, ids=[change.__name__ for change, _ in CHANGES])
def test_a_source_that_changed_is_refused_and_nothing_is_touched(
    change: Callable[[Path], None], words: str, folder: Path, source: ZarrArray
) -> None:
    change(folder)
    before = snapshot(folder)
    with pytest.raises(rx.ResumeError, match=words) as caught:
        wanted(folder)
    assert "nothing was touched" in str(caught.value)
    assert snapshot(folder) == before
    assert rx.status(folder / "target").done == STOPPED_AFTER
    again = wanted(folder, mode="overwrite", max_mem="1MB")
    assert_exact(again.execute(), zarr.open_array(folder / "source", mode="r"))


EPOCHS: tuple[int, ...] = (32, 8, 8)


def series_of(source: Any, folder: Path, mode: Any = "resume", **options: Any) -> rx.Rechunked:
    """A job of few tasks."""
    return rx.rechunk(
        source, (32, 2, 2), "5kB", folder / "series", mode=mode, executor="serial", progress=False, **options
    )


LAYOUTS: dict[str, dict[str, Any]] = {"zstd": {}, "raw": {"compressors": None}}


@pytest.mark.parametrize(
    "kind, layout",
    [
        *((kind, "raw") for kind in (*KINDS, "wrapped")),
        ("local", "zstd"),
        ("memory", "zstd"),
        *(pytest.param(kind, "zstd", marks=pytest.mark.long) for kind in ("wrapped", "s3", "obstore")),
    ],
    indirect=["kind"],
)
def test_a_source_in_any_store_that_was_rewritten_is_refused(kind: Kind, layout: str, tmp_path: Path) -> None:
    # The target was finished, and held both.
    make_array(kind.written("source"), EPOCHS, (1, *EPOCHS[1:]), values=np.full(EPOCHS, 1, "f4"), **LAYOUTS[layout])
    stop_after(1, series_of(kind.at("source"), tmp_path, "fail"))
    series_of(kind.at("source"), tmp_path)  # nothing has changed yet
    zarr.open_array(kind.written("source"), mode="r+")[...] = 2
    before = snapshot(tmp_path / "series")
    with pytest.raises(rx.ResumeError, match=r"the source's chunk c/0/0/0 was written since, and .* more"):
        series_of(kind.at("source"), tmp_path)
    assert snapshot(tmp_path / "series") == before
    anew = series_of(kind.at("source"), tmp_path, "overwrite")
    assert (elements(anew.execute()) == 2).all()


def test_another_store_in_memory_is_refused(tmp_path: Path) -> None:
    one, other = ({"zarr.json": None} for _ in range(2))
    for store, value in ((one, 1), (other, 2)):
        store.clear()
        make_array(store, EPOCHS, (1, *EPOCHS[1:]), values=np.full(EPOCHS, value, "f4"))
    stop_after(1, series_of(one, tmp_path, "fail"))
    with pytest.raises(rx.ResumeError, match="the source's chunk c/0/0/0 was written since"):
        series_of(other, tmp_path)
    assert (elements(series_of(one, tmp_path).execute()) == 1).all()


def test_another_snapshot_of_an_icechunk_repository_is_refused(tmp_path: Path) -> None:
    icechunk: Any = needed_module("icechunk")
    repo = icechunk.Repository.create(icechunk.local_filesystem_storage(str(tmp_path / "repository")))
    session = repo.writable_session("main")
    array = make_array(session.store, EPOCHS, (1, *EPOCHS[1:]))
    values = elements(array)
    first = session.commit("one")
    stop_after(1, series_of(repo.readonly_session("main"), tmp_path, "fail"))
    session = repo.writable_session("main")
    zarr.open_array(session.store, mode="r+")[...] = 2
    with pytest.raises(rx.ResumeError, match=f"the source's snapshot: {first} then, {first} with uncommitted changes"):
        series_of(session, tmp_path)
    second = session.commit("two")
    with pytest.raises(rx.ResumeError, match=f"the source's snapshot: {first} then, {second} now .*snapshot_id"):
        series_of(repo.readonly_session("main"), tmp_path)
    job = series_of(repo.readonly_session(snapshot_id=first), tmp_path)
    assert same_bits(elements(job.execute()), values)


def test_changes_of_a_session_that_were_not_committed_are_told_from_others(tmp_path: Path) -> None:
    icechunk: Any = needed_module("icechunk")
    repo = icechunk.Repository.create(icechunk.local_filesystem_storage(str(tmp_path / "repository")))
    session = repo.writable_session("main")
    array = make_array(session.store, EPOCHS, (1, *EPOCHS[1:]))
    stop_after(1, series_of(session, tmp_path, "fail"))
    series_of(session, tmp_path)
    array[...] = 2
    with pytest.raises(rx.ResumeError, match="the source's chunk c/0/0/0 was written since"):
        series_of(session, tmp_path)


@pytest.mark.parametrize("chunks, stages", [((32, 2, 2), 2), ((8, 4, 4), 1)])
def test_a_change_that_resume_does_not_see_is_found_by_verification(
    chunks: tuple[int, ...], stages: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The digests of the earlier run were believed, so the target held both and was verified.
    monkeypatch.setattr(identity, "FILES_LOOKED_AT", 2)
    array = make_array(tmp_path / "source", EPOCHS, (1, *EPOCHS[1:]))

    def job(mode: Any) -> rx.Rechunked:
        return rx.rechunk(
            array, chunks, "5kB", tmp_path / "series", mode=mode, executor="serial", verify=True, progress=False
        )

    first = job("fail")
    assert len(first.stages) == stages
    stop_after(1, first)
    array[5] = position_values(EPOCHS[1:], "f4", seed=7)
    with pytest.raises(rx.RechunkError, match=r"differ; the first is \(0, 0, 0\) to .*give mode='resume'"):
        job("resume").execute()
    assert rx.status(tmp_path / "series").state == "unfinished"
    again = job("resume")
    assert_exact(again.execute(), array)
    assert tasks_run(again) > 0
    assert rx.status(tmp_path / "series").state == "finished"


WORDS: list[tuple[dict[str, Any], str]] = [
    ({"max_mem": MAX_MEM + 1}, "max_mem: 7000 then, 7001 now"),
    ({"max_mem": "1MB"}, "max_mem: 7000 then, 1000000 now"),
    ({"target_chunks": (12, 4, 4)}, r"the target's chunk_grid: .*\[24,4,4\].* then, .*\[12,4,4\].* now"),
    ({"target_shards": (24, 8, 8), "max_mem": 40_000}, "the target's"),
    ({"target_options": {"compressors": GzipCodec()}}, "the target's codecs: .*zstd.* then, .*gzip.* now"),
    ({"target_options": {"fill_value": 3}}, "the target's fill_value: 0.0 then, 3.0 now"),
    ({"target_options": {"attributes": {"a": 1}}}, "the target's attributes"),
    ({"zarr_format": 2}, "the target's zarr_format: 3 then, 2 now"),
    ({"temp_store": "elsewhere"}, "temp_store: .*/temp/.* then, .*/elsewhere/.* now"),
]


def test_other_words_are_refused_and_nothing_is_touched(folder: Path, source: ZarrArray) -> None:
    before = snapshot(folder)
    for changed, words in WORDS:
        given = changed | ({"temp_store": folder / "elsewhere"} if "temp_store" in changed else {})
        with pytest.raises(rx.ResumeError, match=words):
            wanted(folder, **given)
        assert snapshot(folder) == before, changed
    assert_exact(wanted(folder).execute(), source)


def test_another_source_of_the_same_form_is_refused(folder: Path, source: ZarrArray) -> None:
    other = make_array(folder / "other", SHAPE, (1, *SHAPE[1:]), attributes={"units": "m"})
    with pytest.raises(rx.ResumeError, match=r"source: .*/source then, .*/other now"):
        rx.rechunk(
            other, (24, 4, 4), MAX_MEM, folder / "target", temp_store=folder / "temp", mode="resume", progress=False
        )


@pytest.mark.parametrize("first, second", [("source", "link/source"), ("link/source", "source"), ("to", "source")])
def test_a_source_is_known_by_another_path(first: str, second: str, tmp_path: Path) -> None:
    source = make_array(tmp_path / "source", SHAPE, (1, *SHAPE[1:]))
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "to").symlink_to(tmp_path / "source")

    def job(name: str, mode: Any) -> rx.Rechunked:
        return rx.rechunk(tmp_path / name, (24, 4, 4), MAX_MEM, tmp_path / "target", mode=mode, progress=False)

    stop_after(5, job(first, "fail"))
    assert_exact(job(second, "resume").execute(), source)


@pytest.mark.parametrize("first, second", [("", "/"), ("/", "")])
def test_a_source_is_known_by_a_url_that_ends_in_a_slash(first: str, second: str, tmp_path: Path, s3: Bucket) -> None:
    source = make_array(s3.store("source.zarr"), SHAPE, (1, *SHAPE[1:]))

    def job(ending: str, mode: Any) -> rx.Rechunked:
        url, target = s3.url("source.zarr") + ending, tmp_path / "target"
        temp = s3.url("temp") + ending
        return rx.rechunk(url, (24, 4, 4), MAX_MEM, target, temp_store=temp, mode=mode, progress=False)

    stop_after(FIRST + 5, job(first, "fail"))
    assert_exact(job(second, "resume").execute(), source)


@pytest.mark.parametrize("make", [ThreadsExecutor, ProcessesExecutor])
def test_another_executor_goes_on(make: Callable[[int], Any], folder: Path, source: ZarrArray) -> None:
    job = wanted(folder, executor=make(1))
    assert_exact(job.execute(), source)
    assert job.report is not None
    assert job.report.tasks == FIRST + SECOND - STOPPED_AFTER


def test_a_job_that_another_call_has_gone_on_with_since_it_was_planned_is_not_run_twice(
    folder: Path, source: ZarrArray
) -> None:
    late = wanted(folder)
    assert_exact(wanted(folder).execute(), source)
    before = snapshot(folder / "target" / "c")
    with pytest.raises(rx.ResumeError, match="since then another one was begun"):
        late.execute()
    assert snapshot(folder / "target" / "c") == before
    assert rx.status(folder / "target").state == "finished"


def test_a_target_that_was_changed_since_is_refused(folder: Path, source: ZarrArray) -> None:
    path = folder / "target" / "zarr.json"
    document = json.loads(path.read_text())
    document["chunk_grid"]["configuration"]["chunk_shape"] = [12, 4, 4]
    path.write_text(json.dumps(document))
    with pytest.raises(rx.ResumeError, match="it was changed since: its chunk_grid"):
        wanted(folder).execute()
    assert rx.status(folder / "target").state == "unfinished"


def test_intermediates_of_another_job_that_had_the_same_name_are_not_taken_for_its_own(tmp_path: Path) -> None:
    # They were, having the right sizes: the array was wrong, and seemed finished.
    names = ("source", "other")
    for name in names:
        made = make_array(tmp_path / name, SHAPE, (1, *SHAPE[1:]))
        made[...] = elements(made) if name == "source" else elements(made)[::-1]
        stop_after(FIRST + 2, wanted(tmp_path, source=tmp_path / name, mode="fail"))
        (tmp_path / "target").rename(tmp_path / f"target of {name}")
    for name in names:
        (tmp_path / f"target of {name}").rename(tmp_path / "target")
        job = wanted(tmp_path, source=tmp_path / name)
        assert_exact(job.execute(), zarr.open_array(tmp_path / name, mode="r"))
        assert job.report is not None
        stages = [result.stage for result in job.report.results]
        assert stages == [1] * (SECOND - 2), "each has its own, and none made the other's anew"
        (tmp_path / "target").rename(tmp_path / f"target of {name}")
    assert list((tmp_path / "temp").iterdir()) == []


def test_an_unfinished_target_is_no_source(folder: Path, source: ZarrArray) -> None:
    before = snapshot(folder)
    with pytest.raises(rx.StorageError, match=r"a source must be whole; .*target is unfinished: .*mode='resume'"):
        rx.rechunk(folder / "target", (4, 4, 4), "1MB", folder / "copy")
    assert snapshot(folder) == before
    wanted(folder).execute()
    copy = rx.rechunk(folder / "target", (4, 4, 4), "1MB", folder / "copy", progress=False).execute()
    assert_exact(copy, source)


def test_a_finished_target_that_was_damaged_is_found_by_a_resume_that_verifies(folder: Path, source: ZarrArray) -> None:
    wanted(folder, verify=True).execute()
    again = wanted(folder, verify=True)
    assert_exact(again.execute(), source)
    assert again.report is not None
    assert again.report.tasks == 0
    (folder / "target" / "c" / "0" / "3" / "2").unlink()
    with pytest.raises(rx.RechunkError, match=r"1 of 30 boxes differ.*\(0, 12, 8\).*mode='overwrite'"):
        wanted(folder, verify=True).execute()
    assert_exact(wanted(folder, mode="overwrite", verify=True).execute(), source)


@pytest.mark.parametrize(
    "member, value", [("shape", [24, 24, 19]), ("fill_value", 5.0), ("codecs", [{"name": "bytes"}])]
)
def test_a_finished_target_whose_metadata_were_changed_is_not_given(
    member: str, value: object, folder: Path, source: ZarrArray
) -> None:
    wanted(folder).execute()
    zarr.open_array(folder / "target").attrs["mine"] = 1
    assert wanted(folder).execute().attrs["mine"] == 1
    metadata = folder / "target" / "zarr.json"
    metadata.write_text(json.dumps(json.loads(metadata.read_text()) | {member: value}))
    before = metadata.read_bytes()
    # It was given, as the finished target.
    with pytest.raises(rx.ResumeError, match=f"it was changed since: its {member}: "):
        wanted(folder).execute()
    assert metadata.read_bytes() == before
    wanted(folder, mode="overwrite").execute()
    assert_exact(wanted(folder).execute(), source)
