from __future__ import annotations

import errno
import json
import math
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.storage import MemoryStore

from rechunk_exec import storage, wire
from rechunk_exec.errors import ResumeError, SerializationError, StorageError
from rechunk_exec.results import TaskFailure, TaskResult
from rechunk_exec.storage import FinishedRecord, Journal, documents, journal, read_finished, read_job, resultlines
from rechunk_exec.storage.documents import Documents
from rechunk_exec.tasks import ArrayRef
from tests.jobs import snapshot
from tests.storage.journalled import job_record, result_of, target, target_of

__all__ = ["target"]

FINISHED = FinishedRecord(job="job", ended="2024-02-29T13:00:00+00:00", tasks=(4,), bytes_written=320)


def by_task(results: Sequence[TaskResult]) -> dict[tuple[int, int], TaskResult]:
    return {(result.stage, result.index): result for result in results}


def documents_of(ref: ArrayRef, job: str = "job") -> list[str]:
    return Documents(ref, read_only=True).names(f"{job}/done")


# Results.


def test_results_added_one_by_one_and_together_are_read_back(target: ArrayRef) -> None:
    held = Journal(target, "job")
    assert held.results() == {}
    single = [result_of(index) for index in range(5)]
    many = [result_of(index, stage=1) for index in range(200)]
    for result in single:
        held.add([result])
    held.add(many)
    held.add([])
    assert Journal(target, "job", read_only=True).results() == by_task([*single, *many])
    assert Journal(target, "other", read_only=True).results() == {}


def test_a_task_that_ran_twice_has_one_result(target: ArrayRef) -> None:
    held = Journal(target, "job")
    held.add([result_of(3, attempts=1)])
    held.add([result_of(3, attempts=2)])
    assert held.results() == {(0, 3): result_of(3, attempts=2)}


operations = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.lists(st.integers(0, 30), max_size=6)),
        st.tuples(st.just("merge"), st.just([])),
        st.tuples(st.just("replace"), st.lists(st.integers(0, 30), max_size=6, unique=True)),
    ),
    max_size=25,
)


@settings(max_examples=60)  # fewer come to no merge of several
@given(operations)
def test_merging_loses_and_makes_nothing(steps: list[tuple[str, list[int]]]) -> None:
    ref = ArrayRef(store=MemoryStore())
    held = Journal(ref, "job")
    expected: set[int] = set()
    with mock.patch.object(journal, "MERGED_AT_ONCE", 3):
        for step, numbers in steps:
            results = [result_of(number) for number in numbers]
            if step == "add":
                held.add(results)
                expected |= set(numbers)
            elif step == "replace":
                held.replace(results)
                expected = set(numbers)
            else:
                held.merge()
            assert held.results() == by_task([result_of(number) for number in expected])


def test_many_documents_become_few(target: ArrayRef) -> None:
    held = Journal(target, "job")
    at_once = storage.MERGED_AT_ONCE
    for index in range(at_once - 1):
        held.add([result_of(index)])
    held.merge()
    assert len(documents_of(target)) == at_once - 1
    held.add([result_of(at_once - 1)])
    held.merge()
    assert len(documents_of(target)) == 1
    assert held.results() == by_task([result_of(index) for index in range(at_once)])


def test_merged_documents_are_merged_again() -> None:
    ref = ArrayRef(store=MemoryStore())
    held = Journal(ref, "job")
    with mock.patch.object(journal, "MERGED_AT_ONCE", 4):
        for index in range(4 * 4 * 4):
            held.add([result_of(index)])
            held.merge()
            assert len(documents_of(ref)) <= 4 * 3
        held.merge()
        held.merge()
    assert [name.partition("-")[0] for name in documents_of(ref)] == ["3"]
    assert held.results() == by_task([result_of(index) for index in range(64)])


def test_no_more_results_are_merged_at_once_than_make_a_large_document() -> None:
    ref = ArrayRef(store=MemoryStore())
    held = Journal(ref, "job")
    added: list[int] = []
    add = Journal.add

    def noted(self: Journal, results: Sequence[TaskResult], *, level: int = 0, durable: bool = False) -> None:
        added.append(len(results))
        add(self, results, level=level, durable=durable)

    with mock.patch.multiple(journal, MERGED_AT_ONCE=4, _LARGE_DOCUMENT=10):
        for number in range(64):
            held.add([result_of(4 * number + place) for place in range(4)])
            with mock.patch.object(Journal, "add", noted):
                held.merge()
    # Fewer than a large one, and the document that makes them enough: one that was merged before, twice at most.
    assert 10 <= max(added) <= 3 * 9 + 4
    assert sum(added) <= 3 * 256, "none is written again more than three times"
    assert {name.partition("-")[0] for name in documents_of(ref)} <= {"0", "1", "2", "3"}
    assert held.results() == by_task([result_of(index) for index in range(256)])


def test_replacing_by_nothing_leaves_nothing(target: ArrayRef) -> None:
    held = Journal(target, "job")
    held.add([result_of(1), result_of(2)])
    held.replace(iter([result_of(2)]))
    assert held.results() == {(0, 2): result_of(2)}
    held.replace([])
    assert held.results() == {}
    assert documents_of(target) == []


def test_what_is_done_is_told_by_names_where_they_can(target: ArrayRef, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Journal(target, "job")
    held.add([result_of(index) for index in range(5, 9)])
    held.add([result_of(index) for index in (7, 8, 9)])
    held.add([result_of(1)])
    held.add([result_of(index, stage=1) for index in range(3)])
    assert documents_of(target) == ["0-0-1", "0-0-5-9", "0-0-7-10", "0-1-0-3"]
    with monkeypatch.context() as patches:
        patches.setattr(Documents, "read", lambda *words: pytest.fail("a document was read"))
        assert held.done() == {(0, index) for index in (1, *range(5, 10))} | {(1, index) for index in range(3)}
        assert [held.count_done(stage) for stage in range(3)] == [6, 3, 0]
    held.add([result_of(0), result_of(2)])
    held.add([result_of(3), result_of(3, stage=1)])
    assert [held.count_done(stage) for stage in range(3)] == [9, 4, 0]
    assert held.done() == set(held.results())


@pytest.mark.parametrize("name", ["0-0-3-99999999999", "0-0-3-2", "0-0-3-3", "0-0-3-4-5", "0-" + "9" * 99, "0--1-2"])
def test_a_name_that_tells_nonsense_is_not_believed(target: ArrayRef, name: str) -> None:
    held = Journal(target, "job")
    held.add([result_of(1), result_of(3)])
    (text,) = Documents(target, read_only=True).read_all("job/done").values()
    held.replace([])
    Documents(target, read_only=False).write(f"job/done/{name}", text)
    assert held.done() == {(0, 1), (0, 3)}
    assert held.count_done(0) == 2


def test_documents_of_neighbours_become_one_whose_name_tells_of_all() -> None:
    ref = ArrayRef(store=MemoryStore())
    held = Journal(ref, "job")
    for first in (20, 0, 100, 5, 10):  # as text, 100 comes before 20
        held.add([result_of(index) for index in range(first, first + (80 if first == 20 else 5))])
    held.add([result_of(index) for index in range(15, 20)])
    with mock.patch.object(journal, "MERGED_AT_ONCE", 4):
        held.merge()
    assert documents_of(ref) == ["1-0-0-105"]
    assert held.results() == by_task([result_of(index) for index in range(105)])


# Many at once.


def merging_between(monkeypatch: pytest.MonkeyPatch, method: str, merge: Callable[[], None]) -> None:
    """Have a merge happen once, right before a method of documents runs."""
    plain = getattr(Documents, method)
    waiting = [merge]

    def interrupted(self: Documents, *arguments: Any) -> Any:
        if waiting:
            waiting.pop()()
        return plain(self, *arguments)

    monkeypatch.setattr(Documents, method, interrupted)


def test_a_merge_between_listing_and_reading_hides_no_result(target: ArrayRef, monkeypatch: pytest.MonkeyPatch) -> None:
    # Names that a reader had listed were gone when it read them, and their results with them.
    writer, reader = Journal(target, "job"), Journal(target, "job", read_only=True)
    for index in range(storage.MERGED_AT_ONCE):
        writer.add([result_of(index)])
    merging_between(monkeypatch, "read", writer.merge)
    assert len(reader.results()) == storage.MERGED_AT_ONCE
    assert len(documents_of(target)) == 1


def test_a_listing_that_misses_both_the_old_and_the_new_hides_no_result(
    target: ArrayRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A folder that changes while it is listed may give neither what went nor what came.
    held = Journal(target, "job")
    held.add([result_of(index) for index in range(9)])
    plain = documents.Documents.names
    blind = [True]

    def names(self: Documents, folder: str = "") -> list[str]:
        return [] if blind and blind.pop() else plain(self, folder)

    monkeypatch.setattr(Documents, "names", names)
    assert len(held.results()) == 9


@pytest.mark.parametrize("one_by_one", [False, True])
def test_readers_never_see_fewer_results_than_there_were(tmp_path: Path, one_by_one: bool) -> None:
    ref = ArrayRef(store=str(tmp_path / "target"))
    writer = Journal(ref, "job")
    added = 0
    ended = threading.Event()
    faults: list[str] = []

    def read() -> None:
        reader = Journal(ref, "job", read_only=True)
        while not ended.is_set():
            least = added
            seen = len(reader.results())
            if seen < least:
                faults.append(f"{seen} of {least}")

    readers = [threading.Thread(target=read) for _ in range(2)]
    with mock.patch.object(journal, "MERGED_AT_ONCE", 4), mock.patch.object(resultlines, "MOST_LINES", 5):
        for thread in readers:
            thread.start()
        for index in range(100):
            if one_by_one:
                writer.add_one(result_of(index))
            else:
                writer.add([result_of(index)])
            added = index + 1
            if index % 4 == 3:
                writer.merge()
        ended.set()
        for thread in readers:
            thread.join()
    assert faults == []
    assert writer.results() == by_task([result_of(index) for index in range(100)])


def test_threads_add_while_the_driver_merges(target: ArrayRef) -> None:
    def add(first: int) -> None:
        held = Journal(target, "job")
        for index in range(first, first + 40):
            held.add([result_of(index)])
        for index in range(first + 40, first + 60):
            held.add_one(result_of(index))

    driver = Journal(target, "job")
    threads = [threading.Thread(target=add, args=(first,)) for first in (0, 60, 120)]
    for thread in threads:
        thread.start()
    with mock.patch.object(journal, "MERGED_AT_ONCE", 8), mock.patch.object(resultlines, "MOST_LINES", 5):
        while any(thread.is_alive() for thread in threads):
            driver.merge()
    for thread in threads:
        thread.join()
    assert driver.results() == by_task([result_of(index) for index in range(180)])


def add_in_a_process(ref: ArrayRef, first: int) -> None:
    held = Journal(ref, "job")
    for index in range(first, first + 30):
        held.add([result_of(index)])
        held.add([result_of(index)])  # as a task that ran twice does
    with mock.patch.object(resultlines, "MOST_LINES", 7):
        for index in range(first + 30, first + 500):
            held.add_one(result_of(index))


def test_processes_add_while_the_driver_merges(tmp_path: Path) -> None:
    ref = target_of("inside", tmp_path)
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=add_in_a_process, args=(ref, first)) for first in (0, 500)]
    for process in processes:
        process.start()
    driver = Journal(ref, "job")
    with mock.patch.object(journal, "MERGED_AT_ONCE", 8):
        while any(process.is_alive() for process in processes):
            driver.merge()
            time.sleep(0.002)
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    assert driver.results() == by_task([result_of(index) for index in range(1000)])


# Results that a process adds one by one.


def files_of(ref: ArrayRef) -> list[str]:
    folder = Documents(ref, read_only=True).local_folder("job/done")
    return [] if folder is None else sorted(path.name for path in folder.iterdir())


def test_results_of_one_process_are_read_back(target: ArrayRef) -> None:
    held, reader = Journal(target, "job"), Journal(target, "job", read_only=True)
    for index in range(20):
        held.add_one(result_of(index))
        assert reader.results() == by_task([result_of(number) for number in range(index + 1)])
        assert reader.count_done(0) == index + 1
    held.add_one(result_of(3, attempts=2))
    held.merge()
    assert reader.done() == {(0, index) for index in range(20)} == set(reader.results())
    held.add_one(result_of(20))
    held.replace([result_of(4)])
    assert reader.results() == {(0, 4): result_of(4)}


def lines_of(ref: ArrayRef) -> list[Path]:
    """Files of lines, those that are full last."""
    folder = Documents(ref, read_only=True).local_folder("job/done")
    return [] if folder is None else sorted(folder.glob("*.lines"), key=lambda path: (len(path.name), path.name))


def forget_time(ref: ArrayRef) -> None:
    """Have nobody have written to files of lines for long."""
    for path in lines_of(ref):
        os.utime(path, (0, 0))


def test_on_a_disk_a_process_has_one_document_and_files_of_lines(tmp_path: Path) -> None:
    ref = target_of("local", tmp_path)
    held, driver = Journal(ref, "job"), Journal(ref, "job")
    with mock.patch.object(resultlines, "MOST_LINES", 4):
        for index in range(11):
            held.add_one(result_of(index))
    assert documents_of(ref) == ["0-0-0"], "its name tells of the first task"
    assert [len(path.read_text().splitlines()) for path in lines_of(ref)] == [3, 5, 5], "a head, and the others"
    driver.merge()
    assert documents_of(ref) == ["0-0-0", "1-0-1-5", "1-0-5-9"]
    (left,) = lines_of(ref)
    held.add_one(result_of(11))
    assert lines_of(ref) == [left], "it is not full"
    forget_time(ref)
    driver.merge()  # its name is taken away
    assert documents_of(ref) == ["0-0-0", "1-0-1-5", "1-0-5-9"]
    held.add_one(result_of(12))
    assert len(lines_of(ref)) == 2
    driver.merge()  # now it is moved
    assert documents_of(ref) == ["0-0-0", "1-0-1-5", "1-0-5-9", "1-0-9-12"]
    assert driver.results() == by_task([result_of(index) for index in range(13)])
    held.forget()
    assert not (tmp_path / "target/.rechunk_exec").exists()
    held.add_one(result_of(13))
    assert held.results() == {(0, 13): result_of(13)}


def test_a_line_that_was_on_its_way_while_its_file_was_renamed_is_moved_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = target_of("local", tmp_path)
    held, driver = Journal(ref, "job"), Journal(ref, "job")
    for index in range(3):
        held.add_one(result_of(index))
    forget_time(ref)
    write = os.write

    def write_later(descriptor: int, content: bytes) -> int:
        monkeypatch.undo()
        driver.merge()  # the file is open by now
        return write(descriptor, content)

    monkeypatch.setattr(os, "write", write_later)
    held.add_one(result_of(3))
    assert driver.results() == by_task([result_of(index) for index in range(4)])
    driver.merge()
    assert (documents_of(ref), lines_of(ref)) == (["0-0-0", "1-0-1-4"], [])


@pytest.mark.parametrize("step", ["rename", "merge"])
def test_a_merge_beside_a_reader_hides_no_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """Right before each file is read, and before and after all are."""
    ref = target_of("local", tmp_path)
    held, driver = Journal(ref, "job"), Journal(ref, "job")
    for index in range(5):
        held.add_one(result_of(index))
    expected = by_task([result_of(index) for index in range(5)])
    read_lines, read_bytes = resultlines.read_lines, Path.read_bytes

    def interfere() -> None:
        forget_time(ref)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Path, "read_bytes", read_bytes)
            for _ in range(1 if step == "rename" else 2):
                driver.merge()

    def read(folder: Path) -> dict[str, list[str]]:
        interfere()
        held.add_one(result_of(2))
        lines = read_lines(folder)
        interfere()
        return lines

    monkeypatch.setattr(journal, "read_lines", read)
    assert held.results() == expected
    monkeypatch.setattr(journal, "read_lines", read_lines)
    held.add_one(result_of(3))

    def read_one(path: Path) -> bytes:
        interfere()
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", read_one)
    assert held.results() == expected
    assert held.done() == set(expected)


@pytest.mark.parametrize("kept", [0, 1, 40, -1])
def test_a_line_that_was_cut_is_a_task_that_is_not_known(tmp_path: Path, kept: int) -> None:
    """Of the last line, a writer that was killed, or is still at it, leaves some bytes; a power cut leaves zeros."""
    ref = target_of("local", tmp_path)
    held = Journal(ref, "job")
    for index in range(5):
        held.add_one(result_of(index))
    (path,) = lines_of(ref)
    *before, last = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(before) + (bytes(len(last)) if kept < 0 else last[:kept]))
    expected = by_task([result_of(index) for index in range(4)])
    assert held.results() == expected
    assert held.done() == set(expected)
    path.rename(path.with_name("a.full.lines"))
    held.merge()
    assert (held.results(), lines_of(ref)) == (expected, [])


def test_of_a_file_of_lines_that_begins_with_zeros_nothing_is_known(tmp_path: Path) -> None:
    ref = target_of("local", tmp_path)
    held = Journal(ref, "job")
    for index in range(5):
        held.add_one(result_of(index))
    (path,) = lines_of(ref)
    path.write_bytes(bytes(200) + path.read_bytes()[200:])
    assert held.results() == {(0, 0): result_of(0)}


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content.replace(b"[0,2,", b"[0,-2,"),
        lambda content: content.replace(b"[0,2,", b"[0,"),
        lambda content: content.replace(b"[0,2,", b"[0,2,{},"),
        lambda content: content.replace(b"[0,2,", b'[0,"2",'),
        lambda content: content.replace(b"[0,2,", b"0,2,"),
        lambda content: content.replace(b"[0,2,", b"[0,NaN,"),
        lambda content: content.replace(b"[0,2,", b"[0," + b"9" * 5000 + b","),
        lambda content: content.replace(b"[0,2,", b"[" * 100_000),
        lambda content: content.replace(b"[0,2,", b"\xff\xfe,"),
        lambda content: content.replace(b'"job":"job"', b'"job":"other"'),
        lambda content: content.replace(b'"seconds"', b'"second"'),
        lambda content: content.replace(b'"columns":[', b'"columns":{},"more":['),
        lambda content: content.replace(b'"columns":[', b'"columns":7,"columns":['),
        lambda content: content.partition(b"\n")[2],
    ],
)
def test_damaged_lines_are_refused_and_named_and_not_merged_away(
    tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    ref = target_of("local", tmp_path)
    held = Journal(ref, "job")
    for index in range(4):
        held.add_one(result_of(index))
    (path,) = lines_of(ref)
    assert damage(path.read_bytes()) != path.read_bytes()
    path.write_bytes(damage(path.read_bytes()))
    path = path.rename(path.with_name("a.full.lines"))
    before = snapshot(tmp_path)
    for read in (held.results, held.done, held.merge):
        with pytest.raises(ResumeError, match=r"its document 'a\.full\.lines' is not: "):
            read()
    assert snapshot(tmp_path) == before


def test_a_result_that_is_no_line_of_numbers_is_a_document(tmp_path: Path) -> None:
    ref = target_of("local", tmp_path)
    held = Journal(ref, "job")
    odd = [result_of(0), result_of(1), result_of(2, seconds=math.inf), result_of(3)]
    for result in odd:
        held.add_one(result)
    assert documents_of(ref) == ["0-0-0", "0-0-2", "0-0-3"]
    assert held.results().keys() == {(0, index) for index in range(4)}


def test_a_full_disk_leaves_no_part_of_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ref = target_of("local", tmp_path)
    held = Journal(ref, "job")
    for index in range(3):
        held.add_one(result_of(index))
    write = os.write
    room = [30, 0]  # of the line, then of all that is tried

    def write_some(descriptor: int, content: bytes) -> int:
        some = room.pop(0)
        if not some:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, content[:some])

    monkeypatch.setattr(os, "write", write_some)
    held.add_one(result_of(3))  # as a document, for which there is room
    monkeypatch.undo()
    held.add_one(result_of(4))
    assert documents_of(ref) == ["0-0-0", "0-0-3", "0-0-4"]
    assert held.results() == by_task([result_of(index) for index in range(5)])


@pytest.mark.parametrize("call", ["results", "done", "merge", "replace"])
def test_lines_that_cannot_be_had_are_an_error_of_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    ref = target_of("local", tmp_path)
    held = Journal(ref, "job")
    for index in range(3):
        held.add_one(result_of(index))

    def refuse(*_: object) -> NoReturn:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(StorageError, match=rf"lines of results in .*done cannot be .*{os.strerror(errno.EMFILE)}"):
        getattr(held, call)(*[[]] * (call == "replace"))


# The job, and its end.


def test_a_job_is_begun_and_finished(target: ArrayRef) -> None:
    held = Journal(target, "job")
    assert (read_job(target), read_finished(target)) == (None, None)
    held.begin(job_record())
    assert (read_job(target), read_finished(target)) == (job_record(), None)
    held.finish(FINISHED)
    assert (read_job(target), read_finished(target)) == (job_record(), FINISHED)
    Journal(target, "again").begin(job_record("again"))
    assert (read_job(target), read_finished(target)) == (job_record("again"), None)


def test_a_record_of_before_jobs_said_what_they_replace_is_read(target: ArrayRef) -> None:
    document = json.loads(wire.to_json(job_record()))
    del document["replaces"]
    Documents(target, read_only=False).write("job", json.dumps(document))
    assert read_job(target) == job_record()


def test_the_end_of_another_job_is_not_this_ones(target: ArrayRef) -> None:
    # A driver that was thought dead may say that it has finished, after another one began anew.
    Journal(target, "job").begin(job_record("another"))
    Journal(target, "job").finish(FINISHED)
    assert read_finished(target) is None


def test_a_job_that_is_withdrawn_leaves_nothing(tmp_path: Path, target: ArrayRef) -> None:
    held = Journal(target, "job")
    held.begin(job_record())
    held.withdraw()
    assert read_job(target) is None
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_results_are_forgotten_of_one_job_or_of_all_others(target: ArrayRef) -> None:
    held = {name: Journal(target, number * 32) for name, number in (("one", "1"), ("two", "2"), ("three", "3"))}
    for number, one in enumerate(held.values()):
        one.add([result_of(number)])
        one.add_failure(TaskFailure(stage=0, index=number, message="no"))
    somebodys = ["drivers/somebody", "backup/job"]
    for name in somebodys:
        Documents(target, read_only=False).write(name, "{}")
    held["two"].forget(others=True)
    assert [len(one.results()) for one in held.values()] == [0, 1, 0]
    assert [len(one.failures()) for one in held.values()] == [0, 1, 0]
    assert [Documents(target, read_only=True).read(name) for name in somebodys] == ["{}", "{}"]
    held["two"].forget()
    assert held["two"].results() == {}
    assert Documents(target, read_only=True).folders() == ["backup", "drivers"]


def test_failures_are_in_order_and_the_last_of_a_task_counts(target: ArrayRef) -> None:
    held = Journal(target, "job")
    for stage, index, message in ((1, 2, "b"), (0, 10, "c"), (0, 9, "d"), (1, 2, "é: new")):
        held.add_failure(TaskFailure(stage=stage, index=index, message=message))
    assert [(one.stage, one.index, one.message) for one in held.failures()] == [
        (0, 9, "d"),
        (0, 10, "c"),
        (1, 2, "é: new"),
    ]


@pytest.mark.parametrize("name", ["../up", "a/b", "/etc", ".", "..", ".hidden", "nul\0", "a\\b"])
def test_a_jobs_name_leads_nowhere_else(tmp_path: Path, name: str) -> None:
    with pytest.raises(SerializationError, match="a job's name must be that of a folder"):
        Journal(ArrayRef(store=str(tmp_path / "target")), name)
    with pytest.raises(SerializationError, match="a job's name"):
        job_record(name)
    assert list(tmp_path.iterdir()) == []


# Damage.


def results_document(**edits: Any) -> str:
    ref = ArrayRef(store=MemoryStore())
    Journal(ref, "job").add([result_of(1), result_of(2)])
    (text,) = Documents(ref, read_only=True).read_all("job/done").values()
    document = json.loads(text)
    document["columns"] |= edits.pop("columns", {})
    return json.dumps({name: value for name, value in {**document, **edits}.items() if value is not None})


def without(column: str) -> str:
    document = json.loads(results_document())
    del document["columns"][column]
    return json.dumps(document)


DAMAGE = {
    "no JSON": ("half of", "must be JSON"),
    "cut": (results_document()[:-20], "must be JSON"),
    "binary": ("\0\1\2", "must be JSON"),
    "a list": ("[]", "must be a JSON object"),
    "deep": ("[" * 100_000, "must be JSON"),
    "another version": (results_document(rechunk_exec=2), "'rechunk_exec': 1"),
    "a version that is no number": (results_document(rechunk_exec="1"), "'rechunk_exec': 1"),
    "another type": (results_document(type="Claim"), "must be of type 'Results'"),
    "another job": (results_document(job="other"), "of job 'other'"),
    "no job": (results_document(job=None), "of job None"),
    "an unknown member": (results_document(code="import os"), "code"),
    "columns that are a list": (json.dumps({**json.loads(results_document()), "columns": [1]}), "object of lists"),
    "a column that is none": (results_document(columns={"stage": 0}), "object of lists"),
    "an unknown column": (results_document(columns={"code": [1, 2]}), "column code is unknown"),
    "a missing column": (without("seconds"), "column seconds is missing"),
    "a short column": (results_document(columns={"seconds": [1.5]}), "as long as each other"),
    "text for a number": (results_document(columns={"index": [1, "2"]}), r"index\[1\] must be an integer; got '2'"),
    "true for a number": (results_document(columns={"index": [True, 2]}), r"index\[0\] must be an integer; got True"),
    "a fraction": (results_document(columns={"index": [1, 2.0]}), r"index\[1\] must be an integer; got 2.0"),
    "a number for text": (results_document(columns={"digest": ["", 5]}), r"digest\[1\] must be a string"),
    "null": (results_document(columns={"seconds": [None, 1.0]}), r"seconds\[0\] must be a number"),
    "not finite": (results_document(columns={"seconds": [float("nan"), 1.0]}), r"seconds\[0\] must be a number"),
    "huge": (results_document(columns={"bytes_read": [2**63, 2]}), r"bytes_read\[0\] .* at most 63 bits"),
    "very huge": (results_document().replace("1001", "9" * 5000).replace('"index": [1', f'"index": [{"9" * 5000}'), ""),
    "negative": (results_document(columns={"index": [-1, 2]}), "at least 0"),
    "a member twice": (results_document().replace("{", '{"job": "job", ', 1), "given twice"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_results_are_refused_and_named(tmp_path: Path, damage: str) -> None:
    text, problem = DAMAGE[damage]
    ref = ArrayRef(store=str(tmp_path))
    held = Journal(ref, "job")
    held.add([result_of(3), result_of(4)])
    Documents(ref, read_only=False).write("job/done/0-odd", text)
    before = snapshot(tmp_path)
    with pytest.raises(ResumeError, match=rf"its document '0-odd' is not: .*{problem}") as error:
        held.results()
    assert "mode='overwrite'" in str(error.value)
    assert snapshot(tmp_path) == before


def test_bytes_that_are_no_text_are_damage(tmp_path: Path) -> None:
    # They raised a UnicodeDecodeError.
    ref = ArrayRef(store=str(tmp_path))
    Journal(ref, "job").begin(job_record())
    (tmp_path / ".rechunk_exec/job.json").write_bytes(b"\xff\xfe\x80")
    with pytest.raises(ResumeError, match="its document 'job' is not"):
        read_job(ref)


def test_damage_is_not_merged_away(tmp_path: Path) -> None:
    ref = ArrayRef(store=str(tmp_path))
    held = Journal(ref, "job")
    for index in range(storage.MERGED_AT_ONCE):
        held.add([result_of(index)])
    Documents(ref, read_only=False).write("job/done/0-odd", "{")
    before = snapshot(tmp_path)
    with pytest.raises(ResumeError, match="0-odd"):
        held.merge()
    assert snapshot(tmp_path) == before


def test_an_empty_document_is_what_a_power_cut_leaves(tmp_path: Path) -> None:
    ref = ArrayRef(store=str(tmp_path))
    held = Journal(ref, "job")
    held.add([result_of(1)])
    for name in ("job", "finished", "job/done/0-0-2"):
        Documents(ref, read_only=False).write(name, "")
    assert held.results() == {(0, 1): result_of(1)}
    assert (read_job(ref), read_finished(ref)) == (None, None)


@pytest.mark.parametrize(
    "edit,problem",
    [
        ({"rechunk_exec": 2}, "'rechunk_exec': 1"),
        ({"type": "Plan"}, "must be of type 'JobRecord'"),
        ({"job": "../up"}, "a job's name"),
        ({"job": 5}, "JobRecord.job must be a string"),
        ({"plan": {}}, "JobRecord.plan.stages is missing"),
        ({"fingerprint": None}, "JobRecord.fingerprint must be an object"),
        ({"more": 1}, "JobRecord.more is unknown"),
    ],
    ids=str,
)
def test_a_damaged_job_is_refused(tmp_path: Path, edit: dict[str, Any], problem: str) -> None:
    ref = ArrayRef(store=str(tmp_path))
    Journal(ref, "job").begin(job_record())
    path = tmp_path / ".rechunk_exec/job.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **edit}))
    with pytest.raises(ResumeError, match=problem):
        read_job(ref)


def test_damaged_failures_are_refused(tmp_path: Path) -> None:
    ref = ArrayRef(store=str(tmp_path))
    Documents(ref, read_only=False).write("job/failed/0-1", '{"rechunk_exec": 1, "type": "TaskFailure", "stage": 0}')
    with pytest.raises(ResumeError, match=r"TaskFailure\.index is missing"):
        Journal(ref, "job").failures()


def test_a_journal_that_is_only_read_is_not_made(tmp_path: Path) -> None:
    ref = ArrayRef(store=str(tmp_path / "target"))
    held = Journal(ref, "job", read_only=True)
    assert (held.results(), held.failures(), read_job(ref)) == ({}, (), None)
    assert list(tmp_path.iterdir()) == []
