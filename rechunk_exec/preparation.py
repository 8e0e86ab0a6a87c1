"""Before the first task: arrays are created, and the job is recorded. Layer: with the job, above storage.

The order makes that nothing half-done looks done: first the journal says that the target is unfinished, then arrays
are created. What is replaced is gone before that on a local disk, where it goes in one step. Elsewhere it takes many,
and the journal says before the first of them that the target is unfinished, and that something is still to be removed.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib import metadata
from typing import Any

from rechunk_exec import storage
from rechunk_exec.errors import PlanError, ResumeError, StorageError, TargetExistsError
from rechunk_exec.plans import Plan
from rechunk_exec.results import TaskResult
from rechunk_exec.resuming import replaced, what_is_left
from rechunk_exec.staging import JobPlaces, intermediates
from rechunk_exec.storage import JobRecord, Journal, Lease
from rechunk_exec.tasks import ArrayRef, Stage

logger = logging.getLogger("rechunk_exec")

_METADATA_BYTES = 4096
"""A disk with less room than this is full: the metadata of an array would not fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Undertaking:
    """What a job is to do, before it is prepared."""

    places: JobPlaces
    stored: storage.StoredArray
    """The source."""
    design: storage.Design
    """The target's."""
    fingerprint: storage.Fingerprint
    mode: str
    resumed: JobRecord | None
    """The job that was begun before, and is gone on with."""
    plan: Plan
    temp_name: str
    """Of the folder of its intermediates, for the job's record."""
    session: storage.IcechunkTarget | None
    """Of the target, if it is in an icechunk repository."""
    temp_options: Mapping[str, Any] = field(default_factory=dict)
    """What the user wants of intermediates."""
    stages: tuple[Stage, ...] = ()
    """All of the job's, whole; none before they are known."""

    @property
    def intermediates(self) -> tuple[str, ...]:
        """Names of the intermediates."""
        return intermediates(self.plan)

    @property
    def temp(self) -> ArrayRef:
        """The folder of the intermediates; see :meth:`rechunk_exec.staging.JobPlaces.needed_temp`."""
        return self.places.needed_temp(self.plan)


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """A job that is ready to run."""

    stages: tuple[Stage, ...]
    """With the tasks that are left."""
    done: tuple[TaskResult, ...]
    """Results of the others."""
    journal: Journal | None


def begin(work: Undertaking, lease: Lease) -> Begun:
    """Prepare all that the tasks need.

    Raises
    ------
    PlanError
        If the source turns out to be in the target's place.
    TargetExistsError
        If the target's place is taken.
    ResumeError
        If another job than the planned one is there by now.
    StorageError
        If arrays cannot be created.
    """
    lease.refuse_beside(work.places.source, work.places.target)
    return _begin_anew(work, lease) if work.resumed is None else _go_on(work, work.resumed, lease)


def refuse_places(work: Undertaking) -> None:
    """Raise if an array has no place, or one that cannot be written or lies in another's. Nothing is written."""
    places = work.places
    storage.refuse_unwritable(places.target, _METADATA_BYTES, "target")
    if work.intermediates:
        for name, array in (("source", places.source), ("target", places.target)):
            try:
                storage.refuse_overlap(array, work.temp)
            except PlanError as error:
                raise PlanError(
                    f"intermediates must lie outside the {name}; got {work.temp} for {array}; give another temp_store"
                ) from error
        storage.refuse_unwritable(work.temp, work.plan.temp_bytes if work.resumed is None else 0, "temp store")


def refuse_what_is_there(work: Undertaking) -> None:
    """Raise if something is in the way of an array. Nothing is written."""
    if work.resumed is None:
        storage.refuse_existing(work.places.source, work.places.target, work.mode)
    if work.intermediates:
        storage.refuse_foreign_temp(work.temp)


def remove_intermediates(work: Undertaking) -> None:
    """Remove the intermediates, and what marked their folder as ours."""
    if work.intermediates:
        storage.remove_temp(work.temp, work.intermediates)
        storage.forget_intermediates(work.stages)


def utc_now() -> str:
    """The time, in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _begin_anew(work: Undertaking, lease: Lease) -> Begun:
    target = work.places.target
    refuse_what_is_there(work)
    refuse_places(work)
    replaces = work.mode != "fail" and work.session is None
    if replaces:
        lease.await_workers()  # of a job before: they would write to the new arrays
        lease.check()
        _remove_intermediates_before(work)
    else:
        storage.remove_partial_documents(target)  # of a driver that died before it had begun: nothing else is there
    lease.check()
    journal = Journal(target, work.stages[0].job) if work.places.journalled else None
    try:
        storage.conceal(target)  # before anything of it goes: nobody finds the new chunks by a copy of the old metadata
        storage.remove_moved_aside(target)
        if replaces:
            _remove_what_is_there(work, journal, lease)
    except BaseException:
        if lease.is_ours():
            _reveal_what_is_there(work)
        raise
    try:
        lease.check()
        if journal is not None:
            journal.begin(_record(work))
        if work.intermediates:  # after the record, which tells who comes later of the folder
            lease.check()
            storage.mark_temp(work.temp, target, work.stages[0].job)
        _create_intermediates(work, work.stages, lease)
        lease.check()
        _create_anew(work)
    except (StorageError, TargetExistsError):
        if not lease.is_ours():  # what is there by now is another driver's
            raise
        if work.intermediates and storage.is_temp_of(work.temp, work.stages[0].job):
            remove_intermediates(work)  # nothing is in them
        if journal is not None:
            journal.withdraw()
        raise
    return Begun(stages=work.stages, done=(), journal=journal)


def _go_on(work: Undertaking, resumed: JobRecord, lease: Lease) -> Begun:
    target = work.places.target
    record = storage.read_job(target)
    if record is None or record.job != resumed.job:
        raise replaced(target)
    results = Journal(target, record.job).results()
    # A name of its own: what is still running for the job before it does not reach this one.
    journal = Journal(target, work.stages[0].job)
    lease.check()
    storage.conceal(target)
    if record.replaces:  # a driver died while it removed what was there
        lease.await_workers()
        storage.remove_array(target, lease)
    if work.intermediates:
        if not storage.is_temp_of(work.temp, record.job):
            remove_intermediates(work)
        storage.mark_temp(work.temp, target, record.job, journal.job)
    lease.check()
    _restore_metadata(work)
    remainder = what_is_left(work.stages, results)
    lease.check()
    _remove_partials(work)
    if remainder.done:
        journal.add(remainder.done, level=1)
    lease.check()
    journal.begin(_record(work))
    journal.forget(others=True)
    lease.check()
    _create_intermediates(work, [stage for stage in remainder.stages if len(stage)], lease)
    lease.check()
    _create_target(work)
    return Begun(stages=remainder.stages, done=remainder.done, journal=journal)


def _remove_what_is_there(work: Undertaking, journal: Journal | None, lease: Lease) -> None:
    """Remove what the job replaces; a driver that is killed meanwhile leaves an array that is whole, or unfinished."""
    target = work.places.target
    if journal is not None and storage.local_path(target) is None:
        journal.begin(replace(_record(work), replaces=True))
    storage.remove_array(target, lease)


def _reveal_what_is_there(work: Undertaking) -> None:
    """Have the groups above show the array again that was to be replaced, if it is still there and whole."""
    target = work.places.target
    if work.places.journalled:
        with suppress(StorageError, ResumeError):  # what went wrong before is told
            whole = storage.read_job(target) is None or storage.read_finished(target) is not None
            if whole and storage.exists(target):
                storage.reveal(target)


def refuse_changed_target(work: Undertaking) -> None:
    """Raise :class:`ResumeError` if the target is not laid out as the job that is gone on with has made it."""
    target = work.places.target
    there = storage.open_array(target, read_only=True)
    changed = storage.layout_differences(work.fingerprint, there)
    if changed:
        raise ResumeError(
            f"a job goes on with the target that it made; at {target} it was changed since: {'; '.join(changed)}; "
            "give mode='overwrite' to begin anew"
        )


def tidy_ended(target: ArrayRef) -> None:
    """Undo what a driver has left that was killed after its job had ended, or before it replaced what the job made.

    For the one driver of the target only: to become that has removed the lock and the claim of one that died.
    """
    storage.remove_partial_documents(target)
    storage.reveal(target)


def _remove_intermediates_before(work: Undertaking) -> None:
    """Remove the intermediates of the unfinished job that is replaced: nobody will read them."""
    target = work.places.target
    try:
        before = storage.read_job(target) if work.places.journalled else None
    except ResumeError:  # damaged, which may be why it is replaced
        return
    if before is None:
        return
    names = intermediates(before.plan)
    stores = [None] if work.places.temp_store is None else [None, work.places.temp_store]
    places = [storage.temp_place(target, temp, before.temp_name) for temp in stores]
    for place in places:
        if names and place is not None and storage.is_temp_of(place, before.job):
            storage.remove_temp(place, names)
    elsewhere = before.fingerprint.temp
    # A path out of a document is not followed.
    if names and elsewhere not in {"", *map(str, places)} and storage.read_finished(target) is None:
        logger.warning("the job that is replaced had its intermediates in %s; remove them if they are there", elsewhere)


def _create_anew(work: Undertaking) -> None:
    """Create the target; in a session, after removing what it replaces, so that both are one commit."""
    if work.session is None:
        storage.create(work.design, work.places.target)
        return
    with work.session.making() as target:
        if work.mode != "fail":
            storage.remove_array(target)
        storage.create(work.design, target)


def _record(work: Undertaking) -> JobRecord:
    return JobRecord(
        job=work.stages[0].job,
        fingerprint=work.fingerprint,
        plan=work.plan,
        begun=utc_now() if work.resumed is None else work.resumed.begun,
        package=_package_version(),
        temp_name=work.temp_name,
    )


def _package_version() -> str:
    try:
        return metadata.version("rechunk_exec")
    except metadata.PackageNotFoundError:  # used as it lies in a folder, not installed
        return "unknown"


def _create_intermediates(work: Undertaking, stages: Sequence[Stage], lease: Lease) -> None:
    """Create the intermediates that stages write; one of another job is removed before."""
    for stage in stages:
        lease.check()
        if stage.plan.target != "target" and not (work.resumed is not None and storage.exists(stage.target)):
            if storage.holds_documents(stage.target):  # else it is in a fork of its own, with nothing there
                storage.remove_array(stage.target)
            storage.create(_design_of(work, stage), stage.target)


def _design_of(work: Undertaking, stage: Stage) -> storage.Design:
    """Return the design of the array that a stage writes."""
    if stage.plan.target == "target":
        return work.design
    return storage.design_intermediate(work.stored, stage.plan.chunk, stage.plan.write_unit, work.temp_options)


def _restore_metadata(work: Undertaking) -> None:
    """Have the arrays of a job that is gone on with have whole metadata, so that what is in them can be looked at."""
    for stage in work.stages:
        if storage.holds_documents(stage.target):
            storage.restore(_design_of(work, stage), stage.target)


def _create_target(work: Undertaking) -> None:
    """Create the target of a job that is gone on with, or see that it is as it was."""
    target = work.places.target
    if not storage.exists(target):
        storage.create(work.design, target)
        return
    refuse_changed_target(work)
    storage.complete(work.design, target)


def _remove_partials(work: Undertaking) -> None:
    """Remove what tasks that were killed had half written."""
    storage.remove_partials(work.places.target)
    if work.intermediates:
        storage.remove_partials(work.temp)
