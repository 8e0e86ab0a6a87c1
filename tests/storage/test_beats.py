"""Claims beat as long as their drivers are at work, and are not lost to others by that."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest
from zarr.storage import MemoryStore

from rechunk_exec.errors import StorageError, TargetExistsError
from rechunk_exec.storage import claims, running_driver, sole_writer
from rechunk_exec.storage.documents import Documents
from rechunk_exec.storage.removal import remove_array
from rechunk_exec.tasks import ArrayRef
from tests.executors.workers import wait_until
from tests.storage.claims import beat_of, drivers_of, quick
from tests.storage.journalled import target, target_of

__all__ = ["target"]


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
