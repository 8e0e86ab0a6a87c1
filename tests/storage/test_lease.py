from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from zarr.storage import MemoryStore

from rechunk_exec import wire
from rechunk_exec.errors import StorageError, TargetExistsError
from rechunk_exec.storage import Claim, Lease, claims, running_driver, sole_writer
from rechunk_exec.storage.documents import Documents
from rechunk_exec.storage.removal import remove_array
from rechunk_exec.tasks import ArrayRef
from tests.executors.workers import wait_until
from tests.jobs import snapshot
from tests.storage.journalled import target, target_of

__all__ = ["target"]


def own_claim(**fields: object) -> Claim:
    """A claim of this very process."""
    now = time.time()
    claim = Claim(
        driver="rival",
        host="elsewhere",
        system=claims.this_system(),
        pid=os.getpid(),
        pid_began=claims.process_began(os.getpid()),
        began=now,
        beat=now,
    )
    return replace(claim, **fields)  # type: ignore[arg-type]


def write_claim(ref: ArrayRef, claim: Claim) -> None:
    Documents(ref, read_only=False).write(f"drivers/{claim.driver}", wire.to_json(claim))


def drivers_of(ref: ArrayRef) -> list[str]:
    return Documents(ref, read_only=True).names("drivers")


def ended_process() -> int:
    """The number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


# Who is dead.


def test_a_process_that_runs_is_not_dead() -> None:
    assert not own_claim().is_dead()


def test_a_clock_that_is_set_does_not_make_a_process_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    # What the system calls the time of its start moves with the clock, and with it the times of all processes.
    claim = own_claim()
    created, booted = psutil.Process().create_time(), psutil.boot_time()
    monkeypatch.setattr(psutil.Process, "create_time", lambda _: created + 3600)
    monkeypatch.setattr(psutil, "boot_time", lambda: booted + 3600)
    assert not claim.is_dead()


def test_a_clock_that_was_set_since_psutil_looked_at_it_does_not_make_a_process_dead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Up to 7.0 it keeps the time of the system's start for create_time, until boot_time is called again.
    began, kept, booted = claims.process_began(os.getpid()), [1e9], [1e9]

    def boot_time() -> float:
        kept[0] = booted[0]
        return kept[0]

    monkeypatch.setattr(psutil.Process, "create_time", lambda _: began + kept[0])
    monkeypatch.setattr(psutil, "boot_time", boot_time)
    claim = own_claim()
    booted[0] += 3600
    assert not claim.is_dead()
    booted[0] -= 7200
    assert own_claim().pid_began == pytest.approx(began)


@pytest.mark.parametrize(
    "fields",
    [
        lambda: {"pid": ended_process()},
        lambda: {"pid_began": claims.process_began(os.getpid()) - 60},
        lambda: {"pid": -1},
        lambda: {"pid": 2**62},
    ],
    ids=["ended", "the number was used again", "no number of a process", "too big a number"],
)
def test_a_process_that_is_gone_is_dead(fields: Callable[[], dict[str, object]]) -> None:
    assert own_claim(**fields()).is_dead()


def test_a_process_that_nobody_has_waited_for_is_dead() -> None:
    # A driver killed in a container whose first process waits for nobody kept its claim for ever.
    process = subprocess.Popen([sys.executable, "-c", ""])
    began = claims.process_began(process.pid)
    while psutil.Process(process.pid).status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    assert own_claim(pid=process.pid, pid_began=began).is_dead()
    process.wait()


def test_nothing_can_be_said_of_another_machines_processes() -> None:
    assert not own_claim(system="another:machine:1", pid=ended_process()).is_dead()


def test_a_claim_is_fresh_for_a_while() -> None:
    assert own_claim().is_fresh
    assert own_claim(beat=time.time() - claims.STALE_S + 5).is_fresh
    assert not own_claim(beat=time.time() - claims.STALE_S - 5).is_fresh


# Being the only one.


def test_a_lease_is_held_and_leaves_nothing(target: ArrayRef, tmp_path: Path) -> None:
    with sole_writer(target) as held:
        assert not held.took_over
        assert len(drivers_of(target)) == 1
        driver = running_driver(target)
        assert driver is not None
        assert (driver.pid, driver.done, driver.left) == (os.getpid(), 0, 0)
        held.note(done=3, left=7, bytes_written=11)
        held.beat()
        driver = running_driver(target)
        assert driver is not None
        assert (driver.done, driver.left, driver.bytes_written) == (3, 7, 11)
        assert driver.beat >= driver.began
    assert drivers_of(target) == []
    assert running_driver(target) is None
    assert list(tmp_path.iterdir()) == []
    with sole_writer(target):
        pass


def test_a_second_job_of_the_same_process_is_refused(
    target: ArrayRef, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    with sole_writer(target):
        before, drivers = snapshot(tmp_path), drivers_of(target)
        refused = pytest.raises(TargetExistsError, match=r"one job at a time writes a target.*nothing was touched")
        with refused, sole_writer(target):
            pytest.fail("two are in")
        assert drivers_of(target) == drivers
        assert {name: held for name, (_, held) in snapshot(tmp_path).items()} == {
            name: held for name, (_, held) in before.items()
        }
    with sole_writer(target):
        pass


def test_the_other_one_is_named_where_it_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    ref = ArrayRef(store=MemoryStore())
    write_claim(ref, own_claim(host="there"))
    with pytest.raises(TargetExistsError, match=rf"\(process {os.getpid()} on there\)"), sole_writer(ref):
        pass
    assert drivers_of(ref) == ["rival"]


@pytest.mark.parametrize("there", [True, False], ids=["an empty folder of the user", "no folder"])
def test_a_folder_is_left_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    ref = target_of("local", tmp_path)
    if there:
        (tmp_path / "target").mkdir()
    with sole_writer(ref):
        pass
    assert (tmp_path / "target").exists() == there
    assert list(tmp_path.iterdir()) == ([tmp_path / "target"] if there else [])
    assert not there or list((tmp_path / "target").iterdir()) == []


def test_other_files_stay(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "mine").write_text("x")
    with sole_writer(target_of("local", tmp_path)):
        pass
    assert [path.name for path in (tmp_path / "target").iterdir()] == ["mine"]


def test_an_error_passes_and_the_lease_is_given_back(target: ArrayRef) -> None:
    with pytest.raises(LookupError, match="mine"), sole_writer(target):
        raise LookupError("mine")
    assert drivers_of(target) == []


def test_a_failure_on_the_way_in_leaves_no_claim(target: ArrayRef, monkeypatch: pytest.MonkeyPatch) -> None:
    # The claim stayed, and kept everybody out until the process had ended.
    def fails(self: Lease) -> list[Claim]:
        raise StorageError("the store does not list")

    monkeypatch.setattr(Lease, "others", fails)
    with pytest.raises(StorageError, match="does not list"), sole_writer(target):
        pass
    assert drivers_of(target) == []


def test_a_store_without_documents_has_no_lease() -> None:
    ref = ArrayRef(store=MemoryStore())
    with sole_writer(ref, documents=False) as held, sole_writer(ref, documents=False):
        held.beat()
        assert drivers_of(ref) == []


def test_of_many_at_once_one_is_in_at_a_time() -> None:
    ref = ArrayRef(store=MemoryStore())
    inside: list[int] = []
    most: list[int] = []
    refused: list[TargetExistsError] = []

    def try_it(number: int) -> None:
        try:
            with sole_writer(ref):
                inside.append(number)
                most.append(len(inside))
                time.sleep(0.02)
                inside.remove(number)
        except TargetExistsError as error:
            refused.append(error)

    threads = [threading.Thread(target=try_it, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(most) <= {1}
    assert len(most) + len(refused) == 6
    assert drivers_of(ref) == []


# Taking over.


def test_the_claim_of_a_dead_driver_is_taken_away(target: ArrayRef) -> None:
    write_claim(target, own_claim(pid=ended_process()))
    assert running_driver(target) is None
    with sole_writer(target) as held:
        assert held.took_over
        assert "rival" not in drivers_of(target)


def test_a_silent_driver_of_another_machine_is_waited_for_and_then_taken_for_dead(
    target: ArrayRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    write_claim(target, own_claim(system="another:machine:1", beat=time.time() - 2 * claims.STALE_S))
    assert running_driver(target) is None
    with sole_writer(target) as held:
        assert held.took_over
    assert slept == [1.5 * claims.BEAT_S]


def test_a_driver_whose_clock_is_behind_is_not_taken_for_dead(
    target: ArrayRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    beats = iter(range(1, 100))
    silent = own_claim(system="another:machine:1", beat=time.time() - 2 * claims.STALE_S)

    def beat_meanwhile(seconds: float) -> None:
        write_claim(target, replace(silent, beat=silent.beat + next(beats)))

    monkeypatch.setattr(time, "sleep", beat_meanwhile)
    write_claim(target, silent)
    with pytest.raises(TargetExistsError, match="on elsewhere"), sole_writer(target):
        pass
    assert drivers_of(target) == ["rival"]


def test_a_driver_whose_clock_is_set_back_beats_on(target: ArrayRef, monkeypatch: pytest.MonkeyPatch) -> None:
    # Beats that were older than the claim counted for nothing: a driver that lived was taken for dead.
    with sole_writer(target) as held:
        beats: list[float] = []
        clock = time.time()
        for behind_s in (3600, 3590):
            with monkeypatch.context() as patch:
                patch.setattr(time, "time", lambda behind_s=behind_s: clock - behind_s)
                held.beat()
            driver = running_driver(target)
            assert driver is not None
            beats.append(driver.beat)
        assert beats[0] < beats[1], "who watches sees no beat"


def test_a_lock_that_cannot_be_removed_is_given_back_and_hides_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As on a disk that the system makes read only, when it finds a fault, and that is mounted anew.
    unlink = Path.unlink

    def refuses_locks(path: Path, missing_ok: bool = False) -> None:
        if path.suffix == ".lock":
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        unlink(path, missing_ok)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuses_locks)
        with pytest.raises(LookupError, match="mine"), sole_writer(target_of("local", tmp_path)):
            raise LookupError("mine")
    with sole_writer(target_of("local", tmp_path)):
        pass


def test_a_driver_that_was_taken_for_dead_stops(target: ArrayRef) -> None:
    with sole_writer(target) as held:
        (name,) = drivers_of(target)
        Documents(target, read_only=False).delete(f"drivers/{name}")
        with pytest.raises(TargetExistsError, match="another has taken over; it stops here"):
            held.beat()
        assert drivers_of(target) == []


@pytest.mark.parametrize("text", ["", "{", '{"rechunk_exec": 1, "type": "Claim"}', "[]", "\0"])
def test_half_a_claim_is_nobodys(target: ArrayRef, text: str) -> None:
    Documents(target, read_only=False).write("drivers/half", text)
    assert running_driver(target) is None
    with sole_writer(target) as held:
        assert not held.took_over


def test_a_claim_under_another_name_is_nobodys() -> None:
    # What is written into a document must not say which one is removed.
    ref = ArrayRef(store=MemoryStore())
    Documents(ref, read_only=False).write("drivers/odd", wire.to_json(own_claim(driver="../job")))
    Documents(ref, read_only=False).write("job", "stays")
    with sole_writer(ref):
        pass
    assert Documents(ref, read_only=True).read("job") == "stays"


# Beating.


def quick(monkeypatch: pytest.MonkeyPatch, *, stale_s: float = 60.0) -> None:
    monkeypatch.setattr(claims, "BEAT_S", 0.01)
    monkeypatch.setattr(claims, "STALE_S", stale_s)


def beat_of(ref: ArrayRef) -> float:
    driver = running_driver(ref)
    assert driver is not None
    return driver.beat


def claim_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "rechunk_exec-claim"]


@pytest.mark.parametrize("ends", ["well", "with an error"])
def test_a_claim_beats_while_its_driver_is_at_anything_and_no_thread_is_left(
    ends: str, target: ArrayRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Drivers that verified, created or removed for longer than a minute were taken for dead.
    quick(monkeypatch)

    def job() -> None:
        with sole_writer(target) as held:
            first = beat_of(target)
            held.note(done=3, left=9, bytes_written=11)
            wait_until(lambda: beat_of(target) > first)
            second = beat_of(target)
            wait_until(lambda: beat_of(target) > second)
            driver = running_driver(target)
            assert driver is not None
            assert (driver.done, driver.left, driver.bytes_written) == (3, 9, 11)
            if ends == "with an error":
                raise LookupError("mine")

    if ends == "well":
        job()
    else:
        with pytest.raises(LookupError):
            job()
    assert claim_threads() == []
    assert drivers_of(target) == []


def test_a_job_that_is_over_within_a_beat_makes_no_request(target: ArrayRef, monkeypatch: pytest.MonkeyPatch) -> None:
    with sole_writer(target) as held, monkeypatch.context() as patches:
        for request in ("read", "write", "delete", "names"):
            patches.setattr(Documents, request, lambda *words, **options: pytest.fail("a request was made"))
        for _ in range(1000):
            held.note(done=1, left=2, bytes_written=3)
            held.check()
            assert held.is_ours()


def test_beats_that_fail_are_made_again(
    target: ArrayRef, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    quick(monkeypatch)
    plain, left = Documents.write, [StorageError("busy")] * 3

    def write(self: Documents, name: str, text: str, **options: bool) -> None:
        if name.endswith("-beat") and left:
            raise left.pop()
        plain(self, name, text, **options)

    monkeypatch.setattr(Documents, "write", write)
    with sole_writer(target) as held:
        first = beat_of(target)
        wait_until(lambda: beat_of(target) > first)
        held.check()
    assert "the claim on a target could not be written, which is tried again: busy" in caplog.text


def test_a_full_disk_takes_the_claim_from_nobody(target: ArrayRef, monkeypatch: pytest.MonkeyPatch) -> None:
    quick(monkeypatch, stale_s=0.0)

    def full(*words: object, **options: object) -> None:
        raise StorageError("No space left on device")

    with sole_writer(target) as held:
        (driver,) = (name for name in drivers_of(target) if not name.endswith("-beat"))
        with monkeypatch.context() as patches:
            patches.setattr(Documents, "write", full)
            for _ in range(3):
                held.check()
            assert held.is_ours()
            Documents(target, read_only=False).delete(f"drivers/{driver}")
            with pytest.raises(TargetExistsError, match="another has taken over"):
                held.check()
            assert not held.is_ours()


def test_a_store_that_is_away_is_told_by_who_asks_and_outlasted_by_who_does_not(
    target: ArrayRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick(monkeypatch, stale_s=0.0)

    def away(*words: object, **options: object) -> None:
        raise StorageError("no route to host")

    with sole_writer(target) as held:
        with monkeypatch.context() as patches:
            for request in ("read", "write"):
                patches.setattr(Documents, request, away)
            with pytest.raises(StorageError, match="no route to host"):
                held.check()
            assert held.is_ours(), "nothing says that it is not"
        held.check()
        assert claim_threads() != []


def test_a_beat_that_was_on_its_way_does_not_bring_a_claim_back(
    target: ArrayRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A driver that fell asleep between looking for its claim and writing it anew took itself for the one ever after.
    monkeypatch.setattr(claims, "BEAT_S", 1000.0)
    plain = Documents.write
    with sole_writer(target) as held:
        (driver,) = drivers_of(target)

        def write(self: Documents, name: str, text: str, **options: bool) -> None:
            Documents(target, read_only=False).delete(f"drivers/{driver}")  # while it is asleep
            plain(self, name, text, **options)

        monkeypatch.setattr(Documents, "write", write)
        with pytest.raises(TargetExistsError, match="another has taken over"):
            held.beat()
        monkeypatch.setattr(Documents, "write", plain)
        with pytest.raises(TargetExistsError, match="another has taken over"):
            held.check()
        assert drivers_of(target) == []


def test_an_error_that_comes_of_another_driver_is_told_so(target: ArrayRef, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "STALE_S", 0.0)
    gone = StorageError("the array is not there")

    def job(error: BaseException) -> None:
        with sole_writer(target):
            (driver,) = drivers_of(target)
            Documents(target, read_only=False).delete(f"drivers/{driver}")
            raise error

    with pytest.raises(TargetExistsError, match="another has taken over") as raised:
        job(gone)
    assert raised.value.__cause__ is gone
    with pytest.raises(KeyboardInterrupt):
        job(KeyboardInterrupt())


def test_an_array_that_is_moved_away_leaves_its_claim(target: ArrayRef, monkeypatch: pytest.MonkeyPatch) -> None:
    quick(monkeypatch)
    with sole_writer(target) as held:
        before = beat_of(target)
        wait_until(lambda: beat_of(target) > before)
        for _ in range(20):
            Documents(target, read_only=False).write("finished", "{}")
            remove_array(target, held)
            assert running_driver(target) is not None
            assert Documents(target, read_only=True).read("finished") is None
            held.beat()
        held.check()
        assert held.is_ours()
    assert drivers_of(target) == []


def test_an_array_of_another_driver_is_not_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "STALE_S", 0.0)
    target = ArrayRef(store=MemoryStore())
    with sole_writer(target) as held:
        Documents(target, read_only=False).write("job", "{}")
        (driver,) = drivers_of(target)
        Documents(target, read_only=False).delete(f"drivers/{driver}")
        with pytest.raises(TargetExistsError, match="another has taken over"):
            remove_array(target, held)
    assert Documents(target, read_only=True).read("job") == "{}"


def test_a_fork_leaves_the_claim_to_its_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = target_of("local", tmp_path)
    with monkeypatch.context() as patches:
        with sole_writer(target) as held:
            patches.setattr(os, "getpid", lambda: 1)  # as in a fork, which ends
            patches.setattr(claims, "STALE_S", 0.0)
            held.check()
            held.beat()
        (name,) = drivers_of(target)
        assert not name.endswith("-beat")
        assert len(list(tmp_path.glob(".rechunk_exec-*.lock"))) == 1
    wait_until(lambda: not claim_threads())


def test_a_claim_that_an_earlier_version_beats_is_read(target: ArrayRef) -> None:
    now = time.time()
    write_claim(target, own_claim(beat=now - 2 * claims.STALE_S))
    assert running_driver(target) is None
    documents = Documents(target, read_only=False)
    documents.write("drivers/rival-beat", wire.to_json(own_claim(beat=now, done=5)))
    driver = running_driver(target)
    assert driver is not None
    assert (driver.beat, driver.done) == (now, 5)
    write_claim(target, own_claim(beat=now + 1, done=6))
    driver = running_driver(target)
    assert driver is not None
    assert driver.done == 6
    documents.delete("drivers/rival")
    assert running_driver(target) is None, "a beat without a claim is nothing"
    documents.write("drivers/rival-beat", wire.to_json(own_claim(driver="somebody", beat=now)))
    write_claim(target, own_claim(beat=now - 2 * claims.STALE_S))
    assert running_driver(target) is None, "a beat is its own driver's"
