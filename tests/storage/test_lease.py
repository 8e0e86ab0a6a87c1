from __future__ import annotations

import errno
import os
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from zarr.storage import MemoryStore

from rechunk_exec.errors import StorageError, TargetExistsError
from rechunk_exec.storage import Claim, Lease, claims, running_driver, sole_writer
from rechunk_exec.storage.documents import Documents
from rechunk_exec.tasks import ArrayRef
from tests.jobs import snapshot
from tests.storage.claims import drivers_of, ended_process, own_claim, write_claim
from tests.storage.journalled import target, target_of

__all__ = ["target"]


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
