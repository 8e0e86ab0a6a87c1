"""Journals that are damaged: a clear error with nothing written, or a task is run again, and never a wrong array."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rechunk_exec as rx
from rechunk_exec import storage
from tests.faults.stopped import STOPPED_AFTER, folder, source, stopped, wanted
from tests.faults.test_unfinished import FIRST, SECOND
from tests.jobs import ZarrArray, assert_exact, snapshot, tasks_run

__all__ = ["folder", "source", "stopped"]

TASKS = FIRST + SECOND
HUGE = 10**30


def job_document(folder: Path) -> Path:
    return folder / "target" / ".rechunk_exec" / "job.json"


def results_document(folder: Path) -> Path:
    return next((folder / "target" / ".rechunk_exec").glob("*/done/*.json"))


def edited(change: Callable[[Any], object]) -> Callable[[str], str]:
    def edit(text: str) -> str:
        document = json.loads(text)
        change(document)
        return json.dumps(document)

    return edit


DAMAGES: dict[str, Callable[[str], str]] = {
    "truncated": lambda text: text[: len(text) // 2],
    "one byte less": lambda text: text[:-1],
    "something else": lambda _: "a page of a proxy that wants a password",
    "null": lambda _: "null",
    "a list": lambda _: "[]",
    "nothing in it": lambda _: "{}",
    "very deep": lambda _: "[" * 100_000,
    "another version": edited(lambda it: it.update(rechunk_exec=99)),
    "no version": edited(lambda it: it.pop("rechunk_exec")),
    "another type": edited(lambda it: it.update(type="Plan")),
    "an unknown member": edited(lambda it: it.update(colour="red")),
    "zeros": lambda text: "\0" * len(text),
    "no text": lambda text: "\udcff" * len(text),
}
OF_JOB: dict[str, Callable[[str], str]] = {
    "a number for a name": edited(lambda it: it.update(job=5)),
    "a path for a name": edited(lambda it: it.update(job="../../elsewhere")),
    "half a character for a name": edited(lambda it: it.update(job="\ud800")),
    "no plan": edited(lambda it: it.pop("plan")),
    "stages of another plan": edited(lambda it: it["plan"]["stages"].pop()),
    "no stages": edited(lambda it: it["plan"].update(stages=[])),
    "a huge region": edited(lambda it: it["plan"]["stages"][0].update(region=[HUGE, 1, 1])),
    "a huge budget": edited(lambda it: it["fingerprint"].update(max_mem=HUGE)),
    "another budget": edited(lambda it: it["plan"].update(max_mem=7500)),
    "a smaller array": edited(lambda it: [stage.update(shape=[12, 24, 20]) for stage in it["plan"]["stages"]]),
    "huge reads": edited(lambda it: it["plan"]["stages"][0]["read_unit"].__setitem__(0, 2**62)),
    "reads of more than a chunk": edited(lambda it: it["plan"]["stages"][0]["read_unit"].__setitem__(0, 2)),
    "reads of more than a chunk of an intermediate": edited(
        lambda it: it["plan"]["stages"][1].update(read_unit=it["plan"]["stages"][1]["shape"])
    ),
    "a region of half units": edited(lambda it: it["plan"]["stages"][1].update(region=[24, 2, 4])),
}
OF_RESULTS: dict[str, Callable[[str], str]] = {
    "another job's": edited(lambda it: it.update(job="f" * 32)),
    "columns of two lengths": edited(lambda it: it["columns"]["index"].pop()),
    "a column too few": edited(lambda it: it["columns"].pop("stage")),
    "texts for numbers": edited(lambda it: it["columns"].update(index=[str(one) for one in it["columns"]["index"]])),
    "huge numbers": edited(lambda it: it["columns"].update(index=[HUGE for _ in it["columns"]["index"]])),
    "negative numbers": edited(lambda it: it["columns"].update(index=[-1 for _ in it["columns"]["index"]])),
    "columns that are none": edited(lambda it: it.update(columns=7)),
}


def damage_document(path: Path, damage: Callable[[str], str]) -> None:
    path.write_bytes(damage(path.read_text()).encode(errors="surrogateescape"))


def assert_refused(path: Path, damage: Callable[[str], str], folder: Path) -> None:
    """Damage a document and resume: that is refused with nothing written."""
    damage_document(path, damage)
    before = snapshot(folder)
    with pytest.raises(rx.ResumeError, match="mode='overwrite'"):
        wanted(folder).execute()
    after = snapshot(folder)
    assert after.keys() == before.keys()
    assert {name: content for name, (_, content) in after.items()} == {
        name: content for name, (_, content) in before.items()
    }


OF_RECORD = {**DAMAGES, **OF_JOB}
OF_DONE = {**DAMAGES, **OF_RESULTS}


@pytest.mark.parametrize("damage", OF_RECORD)
def test_a_damaged_record_of_the_job_is_refused(damage: str, folder: Path) -> None:
    assert_refused(job_document(folder), OF_RECORD[damage], folder)


@pytest.mark.parametrize("damage", OF_DONE)
def test_damaged_results_are_refused(damage: str, folder: Path) -> None:
    assert_refused(results_document(folder), OF_DONE[damage], folder)


SHOWN = ("truncated", "no text", "very deep", "another version", "a path for a name", "a huge region")


@pytest.mark.parametrize(
    "damage", [name if name in SHOWN else pytest.param(name, marks=pytest.mark.long) for name in OF_RECORD]
)
def test_a_job_with_a_damaged_record_is_replaced(damage: str, folder: Path, source: ZarrArray) -> None:
    damage_document(job_document(folder), OF_RECORD[damage])
    assert_exact(wanted(folder, mode="overwrite", max_mem="1MB").execute(), source)


@pytest.mark.parametrize(
    "damage", [name if name in SHOWN[:2] else pytest.param(name, marks=pytest.mark.long) for name in OF_DONE]
)
def test_a_job_with_damaged_results_is_replaced(damage: str, folder: Path, source: ZarrArray) -> None:
    damage_document(results_document(folder), OF_DONE[damage])
    assert_exact(wanted(folder, mode="overwrite", max_mem="1MB").execute(), source)


def test_empty_results_from_a_power_cut_are_run_again(folder: Path, source: ZarrArray) -> None:
    results_document(folder).write_text("")
    job = wanted(folder)
    assert_exact(job.execute(), source)
    assert TASKS - STOPPED_AFTER < tasks_run(job) <= TASKS


def test_an_empty_record_of_the_job_is_refused(folder: Path, source: ZarrArray) -> None:
    assert_refused(job_document(folder), lambda _: "", folder)
    assert_exact(wanted(folder, mode="overwrite", max_mem="1MB").execute(), source)


@pytest.mark.parametrize("stage, index", [(0, 99), (7, 2**62)])
def test_results_of_tasks_that_there_are_not_count_for_nothing(
    stage: int, index: int, folder: Path, source: ZarrArray
) -> None:
    def change(document: Any) -> None:
        for name, column in document["columns"].items():
            column.append({"stage": stage, "index": index}.get(name, column[-1]))

    path = results_document(folder)
    path.write_text(edited(change)(path.read_text()))
    assert rx.status(folder / "target").done == STOPPED_AFTER
    job = wanted(folder)
    assert_exact(job.execute(), source)
    assert job.report is not None
    assert job.report.tasks == TASKS - STOPPED_AFTER


def test_results_that_claim_too_much_are_not_believed(folder: Path, source: ZarrArray) -> None:
    def claims_all(document: Any) -> None:
        columns = document["columns"]
        for index in range(SECOND):
            for name, column in columns.items():
                column.append({"stage": 1, "index": index}.get(name, column[-1]))

    path = results_document(folder)
    path.write_text(edited(claims_all)(path.read_text()))
    assert_exact(wanted(folder).execute(), source)


def write_lines(target: Path) -> None:
    """Have the results of a job be as a process leaves them that adds one after the other."""
    ref = storage.array_ref(str(target))
    record = storage.read_job(ref)
    assert record is not None
    journal = storage.Journal(ref, record.job)
    results = journal.results().values()
    journal.replace([])
    for result in results:
        journal.add_one(result)


@pytest.mark.parametrize("lines", [False, True])
def test_random_bytes_in_any_document_never_give_a_wrong_array(
    folder: Path, source: ZarrArray, lines: bool, long: bool
) -> None:
    chance = random.Random(8)
    if lines:
        write_lines(folder / "target")
    paths = sorted((folder / "target" / ".rechunk_exec").rglob("*.lines" if lines else "*.json"))
    assert paths
    whole = {path: path.read_bytes() for path in (folder / "target").rglob("*") if path.is_file()}
    temp = {path: path.read_bytes() for path in (folder / "temp").rglob("*") if path.is_file()}
    for _ in range(400 if long else 15):
        for place in (folder / "target", folder / "temp"):
            for path in place.rglob("*"):
                if path.is_file() and path not in whole and path not in temp:
                    path.unlink()
        for path, content in {**whole, **temp}.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        path = chance.choice(paths)
        damaged = bytearray(whole[path])
        for _ in range(chance.randint(1, 3)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        path.write_bytes(damaged)
        try:
            target = wanted(folder).execute()
        except rx.ResumeError:
            continue
        assert_exact(target, source)


def test_a_damaged_end_of_a_job_is_told(folder: Path, source: ZarrArray) -> None:
    wanted(folder).execute()
    path = folder / "target" / ".rechunk_exec" / "finished.json"
    path.write_text(path.read_text()[:-5])
    for call in (lambda: rx.status(folder / "target"), lambda: wanted(folder).execute()):
        with pytest.raises(rx.ResumeError, match="its document 'finished' is not"):
            call()
    path.write_text("")  # a power cut: the job is looked at again
    job = wanted(folder)
    assert_exact(job.execute(), source)
    assert job.report is not None
    assert job.report.tasks == 0
    assert rx.status(folder / "target").state == "finished"


def test_a_damaged_note_of_a_failure_is_told(folder: Path, source: ZarrArray) -> None:
    place = results_document(folder).parents[1] / "failed"
    place.mkdir()
    (place / "1-3.json").write_text("{")
    with pytest.raises(rx.ResumeError, match="1-3"):
        rx.status(folder / "target")
    assert_exact(wanted(folder).execute(), source)


def test_what_somebody_left_in_the_journal_is_in_nobodys_way_and_stays(folder: Path, source: ZarrArray) -> None:
    journal = folder / "target" / ".rechunk_exec"
    shutil.copytree(journal, journal / "before")
    (journal / "job.json~").write_text("an editor's copy")
    before = snapshot(journal / "before")
    assert_exact(wanted(folder).execute(), source)
    assert (journal / "job.json~").read_text() == "an editor's copy"
    assert snapshot(journal / "before") == before
