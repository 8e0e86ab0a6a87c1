"""One job at a time on a target. Layer: storage.

On a local disk the driver of a job holds a lock (:mod:`.locallock`) that the system gives back when its process dies.
On every store it also has documents of its own beside the target: its claim, and its beat, written again every
``BEAT_S`` seconds (:mod:`.claims`). A driver writes its claim first and then looks for others; so of two that come at
once at least one sees the other, and gives way. This asks no more of a store than that what was written is listed.

The claim of a driver that died is taken away: at once where it can be seen that its process is gone (the same machine,
since its last start, and the same container), else when it has not beaten for ``STALE_S`` seconds. So a claim beats in
a thread of its own as long as it stands, whatever its driver is at: creating and removing arrays, running tasks,
verifying, ending the job.

A driver that was asleep, or whose thread had no turn, may have been taken for dead all the same. It asks
(:meth:`Lease.check`) before each step that could spoil another driver's work. That looks at the store only where the
last beat is long ago, so that a job which is over within a beat makes no request for it.
"""

from __future__ import annotations

import logging
import os
import platform
import random
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

from rechunk_exec.errors import StorageError, TargetExistsError
from rechunk_exec.storage import claims
from rechunk_exec.storage.claims import (
    Claim,
    claim_stands,
    claims_in,
    has_claims,
    leave_claim,
    process_began,
    remove_claim,
    this_system,
    write_beat,
    write_claim,
)
from rechunk_exec.storage.documents import Documents, make_linked, missing_folders, remove_empty
from rechunk_exec.storage.locallock import local_lock, lock_lies, taken
from rechunk_exec.storage.locations import overlap
from rechunk_exec.storage.sessions import holds_documents
from rechunk_exec.storage.unanswered import interrupted, thread_of_driver
from rechunk_exec.tasks import ArrayRef

logger = logging.getLogger("rechunk_exec")

WORKERS_LEAVE_S = 2.0
"""Within this time the workers of a driver that was killed have ended."""

_TRIES = 4
_SOONER = 5
"""How many times sooner than a beat one that failed is made again."""
_BEATS_APART_S = 1e-3
"""By which a beat tells a later time than the one before, at least."""


class Lease:
    """Being the one driver of a target's job, until the context of :func:`sole_writer` ends.

    Its methods may be called from any thread. A fork of the driver's process neither beats nor removes the claim.
    """

    def __init__(self, documents: Documents | None, claim: Claim) -> None:
        self._documents = documents
        self._claim = claim
        self._noted = 0, 0, 0
        self.took_over = False
        """Whether a driver before this one died while it ran a job."""
        self._workers_gone = time.monotonic()
        """By when the workers of drivers that died have ended."""
        self._turn = threading.Lock()
        """Held by who writes the claim or its beat, removes it, or looks for it."""
        self._stands = False
        """Whether the claim was written, and not removed by this driver."""
        self._beaten = _clocks()
        """When the claim or a beat was written last, as far as others can have seen it."""
        self._has_beaten = False
        self._lost: TargetExistsError | None = None
        self._end = threading.Event()
        self._thread = thread_of_driver(self._keep, "rechunk_exec-claim")

    @contextmanager
    def beating(self) -> Iterator[None]:
        """Have the claim beat while the context lasts, in a thread that ends with it."""
        if self._documents is not None:
            self._thread.start()
        try:
            yield
        except BaseException as error:
            interrupted(error)
            raise
        finally:
            self._end.set()
            if self._documents is not None and self._is_own:
                self._thread.join()

    def note(self, *, done: int, left: int, bytes_written: int) -> None:
        """Have the next beat tell what was done so far. Makes no request."""
        self._noted = done, left, bytes_written

    def check(self) -> None:
        """Go on only if no other driver has taken over. Asks the store if the claim was not written of late.

        Raises
        ------
        TargetExistsError
            If the claim is gone: another driver has taken it for dead.
        StorageError
            If that cannot be seen.
        """
        if self._lost is None and self._is_silent and self._is_own:
            with self._turn:
                if self._stands and self._is_silent:  # the thread may have been at it
                    with suppress(StorageError):  # such as a full disk, which takes the claim from nobody
                        self._write_beat()
                    self._look()
        if self._lost is not None:
            raise self._lost

    def beat(self) -> None:
        """Tell others that this driver lives, and see whether they believed it.

        Raises
        ------
        TargetExistsError
            If the claim is gone: another driver has taken it for dead.
        """
        if not self._is_own:
            return
        with self._turn:
            if self._stands and self._lost is None:
                self._write_beat()
                self._look()

    def is_ours(self) -> bool:
        """Whether no other driver has taken over, as far as can be seen."""
        try:
            self.check()
        except TargetExistsError:
            return False
        except StorageError:
            pass
        return True

    def explain(self, error: BaseException) -> None:
        """Raise that another driver has taken over, if so: that is why ``error`` came, or what counts more."""
        if not self.is_ours() and self._lost is not None and error is not self._lost:
            raise self._lost from error

    def claim(self) -> None:
        """Write the claim, which stands from now on."""
        with self._turn:
            self._write_claim()
            self._stands = True

    @contextmanager
    def carried(self) -> Iterator[None]:
        """Hold the claim while the array's folder is moved away with it, and write it anew in the array's place."""
        with self._turn:
            yield
            self._write_claim()

    def give_back(self) -> None:
        """Remove the claim."""
        if self._documents is None or not self._is_own:
            return
        with self._turn:
            self._stands = False
            if self._lost is not None:
                return
            try:
                remove_claim(self._documents, self._claim, has_beaten=self._has_beaten)
            except BaseException:
                leave_claim(self._claim)
                raise
            self._documents.tidy()

    def refuse_beside(self, source: ArrayRef, target: ArrayRef) -> None:
        """Raise :class:`PlanError` if the claim, written beside the target, lies beside the source: they are one.

        This needs no knowledge of stores. It comes before anything is removed or created.
        """
        if self._documents is None or not holds_documents(source):
            return
        try:
            found = claim_stands(Documents(source, read_only=True), self._claim)
        except StorageError as error:
            if not error.permanent:
                raise
            return  # many a server denies what is not there, if who asks may not list
        if found:
            raise overlap(source, target, ": what is written beside the target is beside the source")

    def others(self) -> list[Claim]:
        """Return the claims of others."""
        return [] if self._documents is None else claims_in(self._documents, besides=self._claim.driver)

    def take_away(self, claim: Claim) -> None:
        """Remove the claim of a driver that died."""
        if self._documents is not None:
            remove_claim(self._documents, claim)
            self.took_over = True
            # It lived until its next beat at most. A clock that is wrong must not make this a long wait.
            left = min(WORKERS_LEAVE_S, claim.beat + claims.BEAT_S + WORKERS_LEAVE_S - time.time())
            self._workers_gone = max(self._workers_gone, time.monotonic() + left)

    def await_workers(self) -> None:
        """Wait until the workers of drivers that died have ended; their last tasks write objects until then."""
        if self.took_over:
            time.sleep(max(0.0, self._workers_gone - time.monotonic()))

    @property
    def _is_own(self) -> bool:
        """Whether this is the process that has the claim, and no fork of it."""
        return os.getpid() == self._claim.pid

    @property
    def _is_silent(self) -> bool:
        """Whether the claim was not written for so long that another driver may have taken it for dead, or soon will.

        One clock stands still while a machine sleeps; the other may be set.
        """
        return max(now - then for now, then in zip(_clocks(), self._beaten, strict=True)) > claims.STALE_S / 2

    def _keep(self) -> None:
        """Beat until the end. What goes wrong may pass, as requests that fail do, and full disks; so it is tried on."""
        wait_s = claims.BEAT_S
        while not self._end.wait(wait_s):
            try:
                self.beat()
                wait_s = claims.BEAT_S
            except TargetExistsError:  # the driver hears of it when it asks
                return
            except Exception as error:  # noqa: BLE001 - the thread must not end while the driver lives
                if wait_s == claims.BEAT_S:
                    logger.warning("the claim on a target could not be written, which is tried again: %s", error)
                wait_s = claims.BEAT_S / _SOONER

    def _look(self) -> None:
        """See whether the claim is still there."""
        if self._documents is None or claim_stands(self._documents, self._claim):
            return
        self._lost = TargetExistsError(
            "one job at a time writes a target; this one was silent for so long that another has taken over; "
            "it stops here"
        )
        with suppress(StorageError):  # a beat without a claim is nothing, and in nobody's way
            remove_claim(self._documents, self._claim)
        raise self._lost

    def _write_claim(self) -> None:
        if self._documents is not None:
            began, claim = self._now()
            write_claim(self._documents, claim)
            self._beaten, self._claim = began, claim

    def _write_beat(self) -> None:
        if self._documents is not None:
            began, claim = self._now()
            self._has_beaten = True
            write_beat(self._documents, claim)
            self._beaten, self._claim = began, claim

    def _now(self) -> tuple[tuple[float, float], Claim]:
        """Return the time, by both clocks, and the claim as it is now."""
        done, left, bytes_written = self._noted
        began = _clocks()
        # Where the clock was set back, others still see a later beat each time.
        beat = max(began[1], self._claim.beat + _BEATS_APART_S)
        return began, replace(self._claim, beat=beat, done=done, left=left, bytes_written=bytes_written)


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
        If another job has the array; or if the context ends with an error, and another job had taken over before.
    StorageError
        If nothing can be written beside the array.
    """
    now = time.time()
    claim = Claim(
        driver=secrets.token_hex(8),
        host=platform.node(),
        system=this_system(),
        pid=os.getpid(),
        pid_began=process_began(os.getpid()),
        began=now,
        beat=now,
    )
    missing = missing_folders(ref)
    make_linked(ref)
    try:
        with local_lock(ref):
            lease = Lease(Documents(ref, read_only=False) if documents else None, claim)
            try:
                with lease.beating():
                    _enter(lease, ref)
                    with _explained(lease):
                        yield lease
            finally:
                with suppress(StorageError):  # what goes wrong here must not hide what went wrong before
                    lease.give_back()
    finally:
        remove_empty(missing)  # those that were made, if nothing has come into them


def _clocks() -> tuple[float, float]:
    """Return the time by the clock that cannot be set, and by the one that all machines have."""
    return time.monotonic(), time.time()


def has_traces_of_drivers(ref: ArrayRef) -> bool:
    """Whether a lock or a claim lies beside an array, of a driver that is at work or was killed.

    Raises
    ------
    StorageError
        If that cannot be seen.
    """
    return lock_lies(ref) or has_claims(Documents(ref, read_only=True))


@contextmanager
def _explained(lease: Lease) -> Iterator[None]:
    """Raise that another driver has taken over instead of an error that came of it."""
    try:
        yield
    except Exception as error:
        lease.explain(error)
        raise


def _enter(lease: Lease, ref: ArrayRef) -> None:
    """Get the lease, or raise and leave nothing behind."""
    for tries_left in reversed(range(_TRIES)):
        lease.claim()
        rival = next((other for other in lease.others() if not _gone(other, lease)), None)
        if rival is None:
            return
        lease.give_back()
        if not tries_left:
            raise taken(ref, f" (process {rival.pid} on {rival.host})")
        time.sleep(random.uniform(0.05, 0.3))


def _gone(claim: Claim, lease: Lease) -> bool:
    """Whether a claim is a dead driver's; it is taken away then."""
    if not claim.is_dead():
        if claim.is_fresh:
            return False
        # Its clock may be behind ours: see whether it beats.
        time.sleep(1.5 * claims.BEAT_S)
        if any(other.driver == claim.driver and other.beat != claim.beat for other in lease.others()):
            return False
    lease.take_away(claim)
    return True
