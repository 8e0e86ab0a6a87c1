"""Drivers' claims on a target, as documents beside it say. Layer: storage; see :mod:`.lease`.

::

    .rechunk_exec/drivers/<driver>.json         the claim: written once, and removed once, by its driver or another
    .rechunk_exec/drivers/<driver>-beat.json    the same, written again and again by its driver; nothing by itself

Because a driver does not write its claim again, one that was taken away stays away, whatever request of its driver was
on its way, or asleep, at that moment.
"""

from __future__ import annotations

import platform
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from rechunk_exec import wire
from rechunk_exec.errors import SerializationError
from rechunk_exec.storage.documents import Documents
from rechunk_exec.tasks import ArrayRef

BEAT_S = 10.0
"""How often a driver writes its claim again."""
STALE_S = 60.0
"""After how many seconds without a beat the claim of a driver on another machine is taken away."""

_FOLDER = "drivers"
_BEAT = "-beat"
_left_behind: set[str] = set()
"""Drivers of this process that have ended and could not remove their claims."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A driver's word that it runs the job on a target."""

    driver: str
    host: str
    system: str
    """The machine since its last start, and the container: process numbers mean the same only within one."""
    pid: int
    pid_began: float
    """When the process began, in seconds since the machine's last start: numbers are used again."""
    began: float
    """When the driver began with the job, in seconds since 1970."""
    beat: float
    """When this was written."""
    done: int = 0
    """Tasks that it has seen done."""
    left: int = 0
    """Tasks that it was to run."""
    bytes_written: int = 0
    """By those done, before encoding."""

    def is_dead(self) -> bool:
        """Whether it can be seen from here that the driver is gone."""
        if self.system != this_system():
            return False
        if self.driver in _left_behind:
            return True
        try:
            if abs(process_began(self.pid) - self.pid_began) > 1:
                return True
            # One that nobody has waited for holds its number, and does nothing any more.
            return psutil.Process(self.pid).status() == psutil.STATUS_ZOMBIE
        except (psutil.NoSuchProcess, ValueError, OverflowError):  # or no number of a process
            return True
        except psutil.Error:
            return False

    @property
    def is_fresh(self) -> bool:
        """Whether it has beaten of late, by this machine's clock."""
        return time.time() - self.beat < STALE_S


def process_began(pid: int) -> float:
    """Return when a process began, in seconds since the machine's last start, which no setting of clocks changes."""
    booted = psutil.boot_time()  # first: some versions of psutil keep it for create_time
    return psutil.Process(pid).create_time() - booted


def running_driver(ref: ArrayRef) -> Claim | None:
    """Return the claim of the driver that runs the job on a target now, or None if none does."""
    claims = claims_in(Documents(ref, read_only=True))
    return next((claim for claim in claims if claim.is_fresh and not claim.is_dead()), None)


def has_claims(documents: Documents) -> bool:
    """Whether there are claims, or parts of some, of drivers that are at work or were killed."""
    return _FOLDER in documents.folders()


def claims_in(documents: Documents, *, besides: str = "") -> list[Claim]:
    """Return the claims among documents, as their last beats tell them, but that of one driver."""
    found: dict[str, Claim] = {}
    for name, text in documents.read_all(_FOLDER).items():
        with suppress(SerializationError):  # half of one, from a power cut, is nobody's
            found[name] = wire.from_json(Claim, text)
    own = {name: claim for name, claim in found.items() if name == claim.driver != besides}
    beats = {name: found.get(f"{name}{_BEAT}", claim) for name, claim in own.items()}
    return [
        beats[name] if beats[name].driver == name and beats[name].beat > claim.beat else claim
        for name, claim in own.items()
    ]


def write_claim(documents: Documents, claim: Claim) -> None:
    """Write a claim."""
    documents.write(f"{_FOLDER}/{claim.driver}", wire.to_json(claim))


def write_beat(documents: Documents, claim: Claim) -> None:
    """Tell that a claim's driver lives, and what it has done."""
    documents.write(f"{_FOLDER}/{claim.driver}{_BEAT}", wire.to_json(claim))


def claim_stands(documents: Documents, claim: Claim) -> bool:
    """Whether a claim is there: some servers answer something to whatever is asked."""
    return claim.driver in (documents.read(f"{_FOLDER}/{claim.driver}") or "")


def remove_claim(documents: Documents, claim: Claim, *, has_beaten: bool = True) -> None:
    """Remove a claim; its beat too, if there is one."""
    documents.delete(f"{_FOLDER}/{claim.driver}")
    if has_beaten:
        documents.delete(f"{_FOLDER}/{claim.driver}{_BEAT}")


def leave_claim(claim: Claim) -> None:
    """Have the claim of a driver that has ended, and that could not remove it, count as a dead one's here."""
    _left_behind.add(claim.driver)


def this_system() -> str:
    """Return what tells this machine since its last start, and this container, from others."""
    try:
        start = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        space = Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        start, space = f"{psutil.boot_time():.0f}", 0
    return f"{platform.node()}:{start}:{space}"
