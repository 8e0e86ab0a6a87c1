"""One job at a time on a target. Layer: storage.

On a local disk the driver of a job holds a lock that the system gives back when its process dies. On every store it
also has a document of its own beside the target, ``.rechunk_exec/drivers/<driver>.json``, which it writes again every
:data:`BEAT_S` seconds: its claim. A driver writes its claim first and then looks for others; so of two that come at
once at least one sees the other, and gives way. This asks no more of a store than that what was written is listed.

The claim of a driver that died is taken away: at once where it can be seen that its process is gone (the same machine,
since its last start, and the same container), else when it has not beaten for :data:`STALE_S` seconds. A driver that
was only asleep finds its claim gone and stops.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import platform
import random
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from rechunk_exec import wire
from rechunk_exec.errors import SerializationError, StorageError, TargetExistsError
from rechunk_exec.storage.documents import Documents, missing_folders, remove_empty
from rechunk_exec.storage.locations import overlap
from rechunk_exec.storage.sessions import holds_documents
from rechunk_exec.storage.stores import local_path
from rechunk_exec.tasks import ArrayRef

BEAT_S = 10.0
"""How often a driver writes its claim again."""
STALE_S = 60.0
"""After how many seconds without a beat the claim of a driver on another machine is taken away."""
WORKERS_LEAVE_S = 2.0
"""Within this time the workers of a driver that was killed have ended."""

_FOLDER = "drivers"
_TAKEN = (errno.EWOULDBLOCK, errno.EACCES)
_TRIES = 4


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
        """Whether it can be seen from here that the process is gone."""
        if self.system != _system():
            return False
        try:
            process = psutil.Process(self.pid)
            # One that nobody has waited for holds its number, and does nothing any more.
            return abs(process_began(process) - self.pid_began) > 1 or process.status() == psutil.STATUS_ZOMBIE
        except (psutil.NoSuchProcess, ValueError, OverflowError):  # or no number of a process
            return True
        except psutil.Error:
            return False

    @property
    def is_fresh(self) -> bool:
        """Whether it has beaten of late, by this machine's clock."""
        return time.time() - self.beat < STALE_S


class Lease:
    """Being the one driver of a target's job, until the context of :func:`sole_writer` ends."""

    def __init__(self, documents: Documents | None, claim: Claim) -> None:
        self._documents = documents
        self._claim = claim
        self.took_over = False
        """Whether a driver before this one died while it ran a job."""
        self._workers_gone = time.monotonic()
        """By when the workers of drivers that died have ended."""

    def beat(self, *, done: int = 0, left: int = 0, bytes_written: int = 0) -> None:
        """Write the claim again, with what was done so far.

        Raises
        ------
        TargetExistsError
            If the claim is gone: another driver has taken it for dead.
        """
        if self._documents is None:
            return
        if self._documents.read(self._name) is None:
            raise TargetExistsError(
                "one job at a time writes a target; this one was silent for so long that another has taken over; "
                "it stops here"
            )
        self._claim = replace(self._claim, beat=time.time(), done=done, left=left, bytes_written=bytes_written)
        self.claim()

    def claim(self) -> None:
        """Write the claim."""
        if self._documents is not None:
            self._documents.write(self._name, wire.to_json(self._claim))

    def give_back(self) -> None:
        """Remove the claim."""
        if self._documents is not None:
            self._documents.delete(self._name)
            self._documents.tidy()

    def refuse_beside(self, source: ArrayRef, target: ArrayRef) -> None:
        """Raise :class:`PlanError` if the claim, written beside the target, lies beside the source: they are one.

        This needs no knowledge of stores. It comes before anything is removed or created.
        """
        if self._documents is None or not holds_documents(source):
            return
        try:
            found = Documents(source, read_only=True).read(self._name)
        except StorageError as error:
            if not error.permanent:
                raise
            return  # many a server denies what is not there, if who asks may not list
        if found is not None and self._claim.driver in found:  # some servers answer something to whatever is asked
            raise overlap(source, target, ": what is written beside the target is beside the source")

    def others(self) -> list[Claim]:
        """Return the claims of others."""
        return [] if self._documents is None else _claims(self._documents, besides=self._claim.driver)

    def take_away(self, claim: Claim) -> None:
        """Remove the claim of a driver that died."""
        if self._documents is not None:
            self._documents.delete(f"{_FOLDER}/{claim.driver}")
            self.took_over = True
            # It lived until its next beat at most. A clock that is wrong must not make this a long wait.
            left = min(WORKERS_LEAVE_S, claim.beat + BEAT_S + WORKERS_LEAVE_S - time.time())
            self._workers_gone = max(self._workers_gone, time.monotonic() + left)

    def await_workers(self) -> None:
        """Wait until the workers of drivers that died have ended; their last tasks write objects until then."""
        if self.took_over:
            time.sleep(max(0.0, self._workers_gone - time.monotonic()))

    @property
    def _name(self) -> str:
        return f"{_FOLDER}/{self._claim.driver}"


def process_began(process: psutil.Process) -> float:
    """Return when a process began, in seconds since the machine's last start, which no setting of clocks changes."""
    return process.create_time() - psutil.boot_time()


def running_driver(ref: ArrayRef) -> Claim | None:
    """Return the claim of the driver that runs the job on a target now, or None if none does."""
    claims = _claims(Documents(ref, read_only=True), besides="")
    return next((claim for claim in claims if claim.is_fresh and not claim.is_dead()), None)


@contextmanager
def sole_writer(ref: ArrayRef, *, documents: bool = True) -> Iterator[Lease]:
    """Be the only job that writes an array, while the context lasts.

    Parameters
    ----------
    ref : ArrayRef
    documents : bool
        Whether the store holds documents of ours. If not, and it is no local disk, nobody is kept out.

    Raises
    ------
    TargetExistsError
        If another job has the array.
    StorageError
        If nothing can be written beside the array.
    """
    now = time.time()
    claim = Claim(
        driver=secrets.token_hex(8),
        host=platform.node(),
        system=_system(),
        pid=os.getpid(),
        pid_began=process_began(psutil.Process()),
        began=now,
        beat=now,
    )
    missing = missing_folders(ref)
    try:
        with _lock(ref):
            lease = Lease(Documents(ref, read_only=False) if documents else None, claim)
            try:
                _enter(lease, ref)
                yield lease
            finally:
                with suppress(StorageError):  # what goes wrong here must not hide what went wrong before
                    lease.give_back()
    finally:
        remove_empty(missing)  # those that were made, if nothing has come into them


def _enter(lease: Lease, ref: ArrayRef) -> None:
    """Get the lease, or raise and leave nothing behind."""
    for tries_left in reversed(range(_TRIES)):
        lease.claim()
        rival = next((other for other in lease.others() if not _gone(other, lease)), None)
        if rival is None:
            return
        lease.give_back()
        if not tries_left:
            raise _taken(ref, f" (process {rival.pid} on {rival.host})")
        time.sleep(random.uniform(0.05, 0.3))


def _gone(claim: Claim, lease: Lease) -> bool:
    """Whether a claim is a dead driver's; it is taken away then."""
    if not claim.is_dead():
        if claim.is_fresh:
            return False
        # Its clock may be behind ours: see whether it beats.
        time.sleep(1.5 * BEAT_S)
        if any(other.driver == claim.driver and other.beat != claim.beat for other in lease.others()):
            return False
    lease.take_away(claim)
    return True


def _claims(documents: Documents, *, besides: str) -> list[Claim]:
    claims = []
    for name, text in documents.read_all(_FOLDER).items():
        with suppress(SerializationError):  # half of one, from a power cut
            claim = wire.from_json(Claim, text)
            if name == claim.driver != besides:
                claims.append(claim)
    return claims


def _system() -> str:
    try:
        start = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        space = Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        start, space = f"{psutil.boot_time():.0f}", 0
    return f"{platform.node()}:{start}:{space}"


@contextmanager
def _lock(ref: ArrayRef) -> Iterator[None]:
    """Hold the lock of a local array, a file near it. One that a killed process left is free.

    Where the file system knows no locks, and for other stores, this does nothing.
    """
    path = local_path(ref)
    if path is None:
        yield
        return
    real = Path(os.path.realpath(path))
    root = local_path(replace(ref, path=""))
    lock = _lock_folder(real, root) / f".rechunk_exec-{hashlib.sha256(str(real).encode()).hexdigest()[:12]}.lock"
    try:
        descriptor = _acquire(lock)
    except OSError as error:
        if error.errno in _TAKEN:
            raise _taken(ref) from error
        raise StorageError(f"no lock can be made for the target {ref}: {error}") from error
    try:
        yield
    finally:
        with suppress(FileNotFoundError):
            lock.unlink()
        os.close(descriptor)


def _lock_folder(real: Path, root: Path | None) -> Path:
    """Return where the lock of an array lies: outside the groups above it, as zarr warns of files that it finds in one.

    Who sees groups where another driver saw none yet has another lock; of these two the claims tell.
    """
    store = real if root is None else Path(os.path.realpath(root))
    folder = store.parent if store in real.parents else real.parent
    while any((folder / name).exists() for name in ("zarr.json", ".zgroup")):
        folder = folder.parent
    return folder if os.access(folder, os.W_OK) else real.parent


def _taken(ref: ArrayRef, who: str = "") -> TargetExistsError:
    return TargetExistsError(
        f"one job at a time writes a target; another one{who} is writing {ref}; nothing was touched; wait for it, "
        "or give another target_store"
    )


def _acquire(lock: Path) -> int:
    while True:
        lock.parent.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except FileNotFoundError:
            if lock.parent.exists():
                raise
            continue  # another job that made the folder has just removed it
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            same = lock.stat().st_ino == os.fstat(descriptor).st_ino
        except FileNotFoundError:
            same = False
        except OSError as error:
            if error.errno in _TAKEN:
                os.close(descriptor)
                raise
            same = True  # no locks on this file system
        if same:
            return descriptor
        os.close(descriptor)  # its last holder has just removed the file: begin again with a new one
