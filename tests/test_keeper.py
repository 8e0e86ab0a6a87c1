from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from zarr.storage import MemoryStore

from rechunk_exec import keeper as keeping
from rechunk_exec.errors import RechunkError, StorageError, TargetExistsError, TaskError
from rechunk_exec.keeper import Keeper
from rechunk_exec.results import Event, TaskResult
from rechunk_exec.storage import MERGED_AT_ONCE, Journal, Lease, claims, running_driver, sole_writer
from rechunk_exec.storage.documents import Documents
from rechunk_exec.tasks import ArrayRef
from tests.executors.workers import wait_until
from tests.storage.journalled import result_of

TARGET = ArrayRef(store="/nowhere")


@pytest.fixture
def target() -> ArrayRef:
    return ArrayRef(store=MemoryStore())


@pytest.fixture
def lease(target: ArrayRef) -> Iterator[Lease]:
    with sole_writer(target) as held:
        yield held


@pytest.fixture
def journal(target: ArrayRef) -> Journal:
    return Journal(target, "job")


def event_of(index: int) -> Event:
    return Event(kind="task", index=index, result=result_of(index))


def quick(monkeypatch: pytest.MonkeyPatch, *, merge_s: float = 1000.0) -> None:
    monkeypatch.setattr(keeping, "WRITE_S", 0.01)
    monkeypatch.setattr(keeping, "MERGE_S", merge_s)


def take_over(target: ArrayRef) -> None:
    """Take the claim of the driver away, as another one does."""
    (driver,) = Documents(target, read_only=True).names("drivers")
    Documents(target, read_only=False).delete(f"drivers/{driver}")


def failing(monkeypatch: pytest.MonkeyPatch, errors: Iterable[Exception]) -> None:
    """Have the first writes of results fail."""
    waiting = list(errors)
    plain = Journal.add

    def add(self: Journal, results: Iterable[TaskResult], **options: Any) -> None:
        if waiting:
            raise waiting.pop(0)
        plain(self, results, **options)

    monkeypatch.setattr(Journal, "add", add)


def test_results_are_written_while_the_job_runs(
    journal: Journal, lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick(monkeypatch)
    with Keeper(journal, lease, told=True, left=3) as keeper:
        keeper(Event(kind="start", total=3))
        keeper(event_of(0))
        wait_until(journal.results)
        keeper(Event(kind="retry", index=1, message="no"))
        keeper(event_of(1))
        keeper(event_of(2))
    assert journal.results() == {(0, index): result_of(index) for index in range(3)}


def test_results_that_were_not_written_yet_are_at_the_end(journal: Journal, lease: Lease) -> None:
    with Keeper(journal, lease, told=True, left=2) as keeper:
        keeper(event_of(0))
        keeper(event_of(1))
    assert sorted(journal.results()) == [(0, 0), (0, 1)]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, LookupError])
def test_results_are_written_when_the_job_is_interrupted(
    journal: Journal, lease: Lease, error: type[BaseException]
) -> None:

    def job() -> None:
        with Keeper(journal, lease, told=True, left=9) as keeper:
            keeper(event_of(4))
            raise error

    with pytest.raises(error):
        job()
    assert journal.results() == {(0, 4): result_of(4)}
    assert journal.failures() == ()


def test_tasks_that_write_their_own_results_are_only_counted(
    target: ArrayRef, journal: Journal, lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick(monkeypatch, merge_s=0.0)
    with Keeper(journal, lease, told=False, left=100) as keeper:
        for index in range(70):
            journal.add([result_of(index)])
        # Which of the 70 are merged depends on how many there were when the thread looked.
        wait_until(lambda: len(Documents(target, read_only=True).names("job/done")) < MERGED_AT_ONCE)
        keeper(event_of(0))
        keeper(event_of(1))
        lease.beat()
        claim = running_driver(target)
        assert claim is not None
        assert (claim.done, claim.left, claim.bytes_written) == (2, 100, 13)
    assert len(journal.results()) == 70


def test_results_that_tasks_of_this_process_hand_over_are_written_together_and_counted_once(
    target: ArrayRef, journal: Journal, lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick(monkeypatch, merge_s=0.0)
    monkeypatch.setattr(keeping, "WRITE_S", 1000.0)
    with Keeper(journal, lease, told=False, left=8) as keeper:
        for index in (*range(5), 3):
            keeper.take(result_of(index))
        assert journal.results() == {}
        keeper.flush()
        assert journal.results() == {(0, index): result_of(index) for index in range(5)}
        assert len(Documents(target, read_only=True).names("job/done")) == 1
        for index in range(8):  # in the end events tell of all, also of those that other processes ran
            keeper(event_of(index))
        lease.beat()
        claim = running_driver(target)
        assert claim is not None
        assert (claim.done, claim.bytes_written) == (8, 13 * sum(range(8)))
        keeper.take(result_of(7))
    assert sorted(journal.results()) == [(0, 0), (0, 1), (0, 2), (0, 3), (0, 4), (0, 7)]


def test_who_flushes_waits_for_what_the_thread_is_writing(
    journal: Journal, lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick(monkeypatch)
    begun, let_go = threading.Event(), threading.Event()
    plain = Journal.add

    def slow(self: Journal, results: Iterable[TaskResult], **options: Any) -> None:
        begun.set()
        assert let_go.wait(30)
        plain(self, results, **options)

    monkeypatch.setattr(Journal, "add", slow)
    with Keeper(journal, lease, told=False, left=1) as keeper:
        keeper.take(result_of(4))
        assert begun.wait(30)
        threading.Timer(0.05, let_go.set).start()
        keeper.flush()
        assert journal.results() == {(0, 4): result_of(4)}


def test_results_that_cannot_be_written_stop_the_tasks_that_hand_theirs_over(
    journal: Journal, lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick(monkeypatch)
    failing(monkeypatch, [StorageError("the disk is full")])
    seen: list[str] = []

    def job() -> None:
        with Keeper(journal, lease, told=False, left=9) as keeper:
            keeper.take(result_of(0))
            wait_until(lambda: keeper._failure)
            calls: list[Callable[[], None]] = [lambda: keeper.take(result_of(1)), keeper.flush]
            for hand_over in calls:
                with pytest.raises(StorageError, match="the disk is full") as caught:
                    hand_over()
                seen.append(str(caught.value))
            raise LookupError("mine")

    with pytest.raises(LookupError):
        job()
    assert len(seen) == 2
    assert sorted(journal.results()) == [(0, 0)]


def test_many_writes_are_merged(
    target: ArrayRef, journal: Journal, lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Keeper(journal, lease, told=True, left=200) as keeper:
        for index in range(200):
            keeper(event_of(index))
            keeper._write()
    assert len(journal.results()) == 200
    assert len(Documents(target, read_only=True).names("job/done")) == 3 + 200 % 64


def test_a_failure_is_raised_by_the_next_event_and_no_result_is_lost(
    journal: Journal, lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick(monkeypatch)
    failing(monkeypatch, [StorageError("the disk is full")])

    def job() -> None:
        with Keeper(journal, lease, told=True, left=9) as keeper:
            keeper(event_of(0))
            wait_until(lambda: keeper._failure)
            keeper(event_of(1))
            pytest.fail("the event before should have raised")

    with pytest.raises(StorageError, match="the disk is full"):
        job()
    assert journal.results() == {(0, 0): result_of(0)}


def test_a_failure_after_the_last_event_is_raised_at_the_end(
    journal: Journal, lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, [StorageError("the disk is full")])
    with pytest.raises(StorageError, match="the disk is full"), Keeper(journal, lease, told=True, left=9) as keeper:
        keeper(event_of(0))


def test_an_error_of_the_job_is_not_hidden_by_one_of_the_journal(
    journal: Journal, lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, [StorageError("the disk is full")] * 9)

    def job() -> None:
        with Keeper(journal, lease, told=True, left=9) as keeper:
            keeper(event_of(0))
            raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        job()


def test_any_fault_of_the_thread_is_raised(journal: Journal, lease: Lease, monkeypatch: pytest.MonkeyPatch) -> None:
    # The thread ended in silence, and the claim was no longer written.
    quick(monkeypatch)
    failing(monkeypatch, [ZeroDivisionError("a fault of ours")])

    def job() -> None:
        with Keeper(journal, lease, told=True, left=9) as keeper:
            keeper(event_of(0))
            wait_until(lambda: keeper._failure)
            keeper(event_of(1))

    with pytest.raises(ZeroDivisionError):
        job()


HAND_OVERS: dict[str, Callable[[Keeper], None]] = {
    "an event": lambda keeper: keeper(event_of(1)),
    "a result": lambda keeper: keeper.take(result_of(1)),
    "the end": lambda keeper: None,
}


@pytest.mark.parametrize("hand_over", HAND_OVERS)
def test_a_claim_that_is_gone_stops_the_job_which_writes_no_more(
    hand_over: str, target: ArrayRef, journal: Journal, lease: Lease
) -> None:
    def job() -> None:
        with Keeper(journal, lease, told=True, left=9) as keeper:
            keeper(event_of(0))
            take_over(target)
            with pytest.raises(TargetExistsError):
                lease.beat()
            HAND_OVERS[hand_over](keeper)

    with pytest.raises(TargetExistsError, match="it stops here"):
        job()
    assert journal.results() == {}


@pytest.mark.parametrize("error", [StorageError("the intermediate is not there"), KeyboardInterrupt()])
@pytest.mark.parametrize("thread", ["has looked", "has not looked"])
def test_a_task_that_fails_since_another_driver_has_taken_over_says_so(
    thread: str,
    error: BaseException,
    target: ArrayRef,
    journal: Journal,
    lease: Lease,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A driver that woke up told of an intermediate that is not there, which the other one had removed in the end.
    def job() -> None:
        with Keeper(journal, lease, told=True, left=9) as keeper:
            keeper(event_of(0))
            take_over(target)
            if thread == "has looked":
                with pytest.raises(TargetExistsError):
                    lease.beat()
            else:
                monkeypatch.setattr(claims, "STALE_S", 0.0)
            raise error

    with pytest.raises((TargetExistsError, KeyboardInterrupt)) as raised:
        job()
    if isinstance(error, Exception):
        assert "another has taken over" in str(raised.value)
        assert raised.value.__cause__ is error
    assert journal.results() == {}


def task_error(cause: BaseException | None) -> TaskError:
    error = TaskError("task 5 of stage 1 failed", stage=1, index=5)
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "cause,message",
    [(OSError("é: no"), "OSError: é: no"), (None, "TaskError: task 5 of stage 1 failed")],
    ids=["a cause", "no cause"],
)
def test_a_task_that_failed_for_good_is_noted(
    journal: Journal, lease: Lease, cause: BaseException | None, message: str
) -> None:

    def job() -> None:
        with Keeper(journal, lease, told=True, left=9) as keeper:
            keeper(event_of(0))
            raise task_error(cause)

    with pytest.raises(TaskError):
        job()
    (failure,) = journal.failures()
    assert (failure.stage, failure.index, failure.message) == (1, 5, message)
    assert sorted(journal.results()) == [(0, 0)]


def test_a_task_that_failed_is_noted_also_where_results_cannot_be_written(
    journal: Journal, lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, [StorageError("the disk is full")] * 9)

    def job() -> None:
        with Keeper(journal, lease, told=True, left=9) as keeper:
            keeper(event_of(0))
            raise task_error(None)

    with pytest.raises(TaskError):
        job()
    assert len(journal.failures()) == 1


def test_a_store_without_a_journal_needs_none(lease: Lease) -> None:
    with Keeper(None, lease, told=True, left=1) as keeper:
        keeper(event_of(0))
    with pytest.raises(RechunkError), Keeper(None, lease, told=True, left=1) as keeper:
        raise task_error(None)
