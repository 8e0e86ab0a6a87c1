"""Claims: whose driver is dead, and what is none."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable

import psutil
import pytest
from zarr.storage import MemoryStore

from rechunk_exec import wire
from rechunk_exec.storage import claims, running_driver, sole_writer
from rechunk_exec.storage.documents import Documents
from rechunk_exec.tasks import ArrayRef
from tests.storage.claims import ended_process, own_claim, write_claim
from tests.storage.journalled import target

__all__ = ["target"]


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
