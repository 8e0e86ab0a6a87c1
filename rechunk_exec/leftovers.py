"""What a job that did not come to its end has left, for people. Layer: with the job, above its preparation.

A job may be ended while its arrays are created, in the midst of its tasks, or while it cleans up. So what is told is
what is found there, not what the job meant to leave.
"""

from __future__ import annotations

import logging
from contextlib import suppress

from rechunk_exec import storage
from rechunk_exec.endrequests import Terminated
from rechunk_exec.errors import RechunkError, ResumeError, StorageError
from rechunk_exec.preparation import Undertaking, remove_intermediates
from rechunk_exec.storage import Journal

logger = logging.getLogger("rechunk_exec")


def tell_what_is_left(error: BaseException, work: Undertaking) -> None:
    """Add to the error that ended a job what is left of it, and how to go on; log it where Python prints nothing."""
    left = _left_in_session(work) if work.session is not None else _left(error, work)
    if not left:
        return
    if isinstance(error, RechunkError) and error.args:
        error.args = (f"{error.args[0]}; {left}", *error.args[1:])
    else:
        error.add_note(left)
    if isinstance(error, SystemExit):  # of which Python prints nothing
        logger.warning("ended by %s: %s", "SIGTERM" if isinstance(error, Terminated) else repr(error), left)


def _left_in_session(work: Undertaking) -> str:
    """The job cannot be resumed, so nothing is kept."""
    with suppress(StorageError):
        remove_intermediates(work)
    return work.session.left if work.session is not None else ""


def _left(error: BaseException, work: Undertaking) -> str:
    target, job = work.places.target, work.stages[0].job
    try:
        record = storage.read_job(target)
        if record is None or record.job != job:  # our own errors of before that say what was touched
            return "" if isinstance(error, RechunkError) else _not_begun(work)
        if storage.read_finished(target) is not None:
            return f"the target {target} is finished"
    except RechunkError:
        return (
            f"the target {target} may be unfinished: its journal cannot be read now; once it can be, the same call "
            "with mode='resume' goes on, or says why not"
        )
    left = f"the target {target} is unfinished"
    with suppress(RechunkError):  # what went wrong with the journal is told already
        left += f": {len(Journal(target, job).results())} of {work.plan.tasks} tasks are done"
    left += _left_of_intermediates(work)
    return left if isinstance(error, ResumeError) else f"{left}; the same call with mode='resume' goes on from here"


def _not_begun(work: Undertaking) -> str:
    """What to say where the record of this run is not there yet: nothing was changed, or the target's place is free."""
    target = work.places.target
    if work.resumed is not None:
        return f"the job at {target} is as it was; the same call goes on with it"
    if storage.exists(target):
        return f"the array at {target} is as it was; the same call begins again"
    return f"no array is at {target}; the same call begins again"


def _left_of_intermediates(work: Undertaking) -> str:
    if work.intermediates and not storage.holds_documents(work.temp):
        remove_intermediates(work)
        return "; its intermediates were in a fork of an icechunk session, and are made again"
    kept = []
    for stage in work.stages[:-1]:
        with suppress(RechunkError):
            kept += [stage.plan.target] if storage.exists(stage.target) else []
    return f"; kept: the intermediates {', '.join(kept)} in {work.temp}" if kept else ""
