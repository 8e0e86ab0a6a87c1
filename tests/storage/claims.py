"""Claims of drivers, as tests write and look at them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from typing import Any

import pytest

from rechunk_exec import wire
from rechunk_exec.storage import Claim, claims, running_driver
from rechunk_exec.storage.documents import Documents
from rechunk_exec.tasks import ArrayRef


def own_claim(**fields: Any) -> Claim:
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
    return replace(claim, **fields)


def write_claim(ref: ArrayRef, claim: Claim) -> None:
    Documents(ref, read_only=False).write(f"drivers/{claim.driver}", wire.to_json(claim))


def drivers_of(ref: ArrayRef) -> list[str]:
    return Documents(ref, read_only=True).names("drivers")


def ended_process() -> int:
    """The number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def quick(monkeypatch: pytest.MonkeyPatch, *, stale_s: float = 60.0) -> None:
    monkeypatch.setattr(claims, "BEAT_S", 0.01)
    monkeypatch.setattr(claims, "STALE_S", stale_s)


def beat_of(ref: ArrayRef) -> float:
    driver = running_driver(ref)
    assert driver is not None
    return driver.beat
