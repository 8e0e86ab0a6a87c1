"""Two drivers on one target: one of them writes it, or none, and never both. More rounds: ``--long``."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import psutil
import pytest
from zarr.storage import LocalStore, MemoryStore, WrapperStore

import rechunk_exec as rx
from rechunk_exec import storage, wire
from rechunk_exec.storage import ArrayRef, Claim, Lease, claims
from rechunk_exec.storage.documents import Documents
from rechunk_exec.storage.lease import sole_writer
from tests.faults.driver import tasks_begun
from tests.faults.kills import SHAPE, Scene
from tests.jobs import ZarrArray, elements, make_array, stop_after
from tests.s3 import Bucket
from tests.values import same_bits

Mode = Literal["fail", "overwrite", "resume"]
LAYOUTS = ((24, 4, 4), (12, 8, 4))
"""Chunks that the two drivers are to make; the keys of one grid are keys of the other too."""
MODES: tuple[Mode, ...] = ("fail", "overwrite", "resume")
REFUSED = (rx.TargetExistsError, rx.ResumeError)


def lockless(folder: Path) -> Any:
    """A store on a disk that is no local one for us: without locks, moving aside, and folders."""
    return WrapperStore(LocalStore(folder))


@dataclass
class Attempt:
    """One driver's try, in a thread."""

    source: ZarrArray
    target: Any
    chunks: tuple[int, ...]
    mode: Mode
    delay_s: float
    max_mem: int
    outcome: str = ""
    ended: float = 0.0

    def __call__(self) -> None:
        time.sleep(self.delay_s)
        try:
            job = rx.rechunk(
                self.source, self.chunks, self.max_mem, self.target, executor="serial", mode=self.mode, progress=False
            )
            job.execute()
            self.outcome = "done"
        except REFUSED as error:
            self.outcome = type(error).__name__
        except BaseException as error:
            self.outcome = repr(error)
            raise
        finally:
            self.ended = time.monotonic()


def run_rounds(source: ZarrArray, fresh: Any, rounds: int, seed: int, layouts: Any = LAYOUTS) -> dict[str, int]:
    """Have two drivers meet again and again; return how often neither, one, or one after the other wrote."""
    chance = random.Random(seed)
    counts = {"none": 0, "one": 0, "both": 0}
    before: tuple[int, ...] | None = None
    target = fresh(0)
    max_mem = 12_000 if isinstance(target, Path) else 80_000  # two stages where intermediates are wanted
    for number in range(rounds):
        if chance.random() < 0.5:
            target, before = fresh(number), None
        attempts = [
            Attempt(source, target, chunks, chance.choice(MODES), chance.choice([0, chance.uniform(0, 0.1)]), max_mem)
            for chunks in layouts
        ]
        threads = [threading.Thread(target=attempt) for attempt in attempts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        won = [attempt for attempt in attempts if attempt.outcome == "done"]
        assert {attempt.outcome for attempt in attempts} <= {"done", "TargetExistsError", "ResumeError"}, attempts
        counts[["none", "one", "both"][len(won)]] += 1
        if not won and before is None:
            with pytest.raises(rx.StorageError, match="no job of rechunk_exec is recorded"):
                rx.status(target)
            continue
        array = storage.open_array(storage.array_ref(target), read_only=True).array
        assert array.chunks in ([attempt.chunks for attempt in won] if won else [before]), attempts
        assert same_bits(elements(array), elements(source)), attempts
        assert rx.status(target).state == "finished"
        before = array.chunks
    return counts


@pytest.fixture
def source(tmp_path: Path) -> ZarrArray:
    return make_array(tmp_path / "source", SHAPE, (1, *SHAPE[1:]))


@pytest.mark.parametrize("kind", ["disk", "memory", "lockless"])
def test_of_two_drivers_one_writes_or_none(kind: str, tmp_path: Path, source: ZarrArray, long: bool) -> None:
    def fresh(number: int) -> Any:
        if kind == "memory":
            return MemoryStore()
        folder = tmp_path / f"target-{number}"
        return folder if kind == "disk" else lockless(folder)

    counts = run_rounds(source, fresh, 300 if long else 7, 3)
    print(kind, counts)
    assert counts["one"] > 0


def test_of_two_drivers_on_an_object_store_one_writes_or_none(s3: Bucket, source: ZarrArray, long: bool) -> None:
    layouts = ((24, 12, 10), (12, 24, 10))
    counts = run_rounds(source, lambda number: s3.url(f"target-{number}"), 100 if long else 3, 4, layouts)
    print("s3", counts)
    assert counts["one"] + counts["both"] > 0


# Claims that were left, or are somebody's.


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have drivers beat often, so that nobody waits for a minute."""
    monkeypatch.setattr(claims, "BEAT_S", 0.2)
    monkeypatch.setattr(claims, "STALE_S", 1.0)


def claim_of(target: Path, **changed: Any) -> Claim:
    """A claim on a target as another driver would have it."""
    with sole_writer(ArrayRef(store=str(target.with_name("elsewhere")))) as held:
        claim = replace(held._claim, driver="0" * 16, **changed)
    write_claim(target, claim)
    return claim


def write_claim(target: Path, claim: Claim) -> None:
    documents = Documents(ArrayRef(store=str(target)), read_only=False)
    documents.write(f"drivers/{claim.driver}", wire.to_json(claim))


def copy_to(source: ZarrArray, target: Any, mode: Mode = "fail") -> ZarrArray:
    return rx.rechunk(source, LAYOUTS[0], 12_000, target, executor="serial", mode=mode, progress=False).execute()


def test_the_claim_of_a_process_that_has_ended_is_taken_at_once(
    tmp_path: Path, source: ZarrArray, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    claim_of(tmp_path / "target", pid=ended.pid, pid_began=5.0)
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    assert same_bits(elements(copy_to(source, tmp_path / "target")), elements(source))
    assert waits == [], "it was watched"
    assert not (tmp_path / "target" / ".rechunk_exec" / "drivers").exists()


def test_a_process_that_nobody_has_waited_for_has_ended(tmp_path: Path, source: ZarrArray) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as zombie:
        claim_of(tmp_path / "target", pid=zombie.pid, pid_began=claims.process_began(zombie.pid))
        with pytest.raises(rx.TargetExistsError, match=rf"process {zombie.pid} on"):
            copy_to(source, tmp_path / "target")
        os.kill(zombie.pid, signal.SIGKILL)
        while psutil.Process(zombie.pid).status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.01)
        assert same_bits(elements(copy_to(source, tmp_path / "target")), elements(source))


@pytest.mark.parametrize("system", ["another machine", "this one after its next start"])
def test_the_claim_of_another_machine_is_watched_and_taken_when_it_does_not_beat(
    system: str, tmp_path: Path, source: ZarrArray, quick: None
) -> None:
    claim_of(tmp_path / "target", system=system, beat=time.time() - 3600)
    assert same_bits(elements(copy_to(source, tmp_path / "target")), elements(source))


@pytest.mark.parametrize("mode", MODES)
def test_a_fresh_claim_of_another_machine_is_respected(mode: Mode, tmp_path: Path, source: ZarrArray) -> None:
    claim = claim_of(tmp_path / "target", system="another machine", host="elsewhere.example")
    for _ in range(2):
        with pytest.raises(rx.TargetExistsError, match=r"process \d+ on elsewhere.example.*nothing was touched"):
            copy_to(source, tmp_path / "target", mode)
    names = [path.name for path in (tmp_path / "target").rglob("*") if path.is_file()]
    assert names == [f"{claim.driver}.json"]


def test_a_driver_whose_clock_is_behind_and_that_beats_is_respected(
    tmp_path: Path, source: ZarrArray, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = claim_of(tmp_path / "target", system="another machine", beat=time.time() - 3600)
    watched: list[float] = []

    def beat_meanwhile(seconds: float) -> None:
        watched.append(seconds)
        write_claim(tmp_path / "target", replace(claim, beat=time.time() - 3600))

    monkeypatch.setattr(time, "sleep", beat_meanwhile)
    with pytest.raises(rx.TargetExistsError, match="one job at a time"):
        copy_to(source, tmp_path / "target")
    assert sum(watched) > claims.BEAT_S


@pytest.mark.parametrize("text", ["", "{", "null", '{"rechunk_exec": 99}', "\x00" * 100])
def test_a_claim_that_cannot_be_read_is_nobodys(text: str, tmp_path: Path, source: ZarrArray) -> None:
    path = tmp_path / "target" / ".rechunk_exec" / "drivers" / "0123456789abcdef.json"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert same_bits(elements(copy_to(source, tmp_path / "target")), elements(source))
    assert rx.status(tmp_path / "target").state == "finished"


# Drivers that sleep.


@pytest.mark.parametrize("chunks", LAYOUTS[:2])
def test_a_driver_that_slept_finds_that_another_has_taken_over_and_stops(
    chunks: tuple[int, ...], tmp_path: Path, s3: Bucket, monkeypatch: pytest.MonkeyPatch, quick: None
) -> None:
    scene = Scene(tmp_path, "serial", seconds=0.1)
    target = s3.url("slept")
    scene.order = replace(scene.order, target=target, temp=None, max_mem=24_000, beat_s=0.2, stale_s=1.0, mode="fail")
    driver = scene.start()
    while len(tasks_begun(scene.log)) < 3:
        assert driver.poll() is None, driver.communicate()
        time.sleep(0.005)
    os.kill(driver.pid, signal.SIGSTOP)
    time.sleep(1.2)
    mode: Mode = "resume" if chunks == LAYOUTS[0] else "overwrite"
    options = scene.order.options
    job = rx.rechunk(scene.source, chunks, 24_000, target, executor="serial", mode=mode, progress=False, **options)
    array = job.execute()
    os.kill(driver.pid, signal.SIGCONT)
    _, errors = driver.communicate(timeout=60)
    assert driver.returncode == 1
    assert "this one was silent for so long that another has taken over" in errors
    assert array.chunks == chunks
    assert rx.status(target).state == "finished"
    if mode == "resume":  # what it was at when it fell asleep it ends: the same bytes
        assert rx.verify(scene.source, target).ok


def test_a_driver_that_was_silent_looks_before_it_goes_on(
    tmp_path: Path, source: ZarrArray, monkeypatch: pytest.MonkeyPatch, quick: None
) -> None:
    # Its thread has not looked yet; the next task would be begun at once.
    target, ran = lockless(tmp_path / "target"), []

    def taken_away(event: Any) -> None:
        if event.kind != "task":
            return
        ran.append(event.index)
        if len(ran) == 2:
            drivers = tmp_path / "target" / ".rechunk_exec" / "drivers"
            next(drivers.iterdir()).unlink()
            time.sleep(1.1)

    monkeypatch.setattr(Lease, "_keep", lambda held: None)
    job = rx.rechunk(source, LAYOUTS[0], 24_000, target, executor="serial", progress=False)
    with pytest.raises(rx.TargetExistsError, match="another has taken over"):
        job.execute(on_event=taken_away)
    assert len(ran) == 2


@pytest.mark.parametrize("verify", [False, True])
def test_a_finished_job_that_another_driver_replaces_meanwhile_is_not_given(
    source: ZarrArray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verify: bool
) -> None:
    def wanted(mode: Mode) -> rx.Rechunked:
        return rx.rechunk(
            source, LAYOUTS[0], "1MB", tmp_path / "target", executor="serial", mode=mode, verify=verify, progress=False
        )

    def begun_before(job: rx.Rechunked) -> Any:
        stop_after(1, wanted("overwrite"))
        return ended(job)

    wanted("fail").execute()
    ended = rx.Rechunked._nothing_left
    monkeypatch.setattr(rx.Rechunked, "_nothing_left", begun_before)
    with pytest.raises(rx.ResumeError, match="since then another one was begun"):
        wanted("resume").execute()
