"""Intermediates in an icechunk repository, by a session that is never committed. Layer: storage.

Each intermediate is in a *fork* of the session that was given, which stays as it is. Tasks of the driver's process
write to the fork itself. Other processes get copies of it, as of a target's (:mod:`.sessions`): each task gives what it
has changed in one back with its result, the driver merges that before the next stage begins, and the tasks of that one
read from copies of what was merged. When the fork is let go of nothing names the chunks any more: they are garbage in
the repository's storage, for ``Repository.garbage_collect``.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rechunk_exec.errors import RechunkError, StorageError
from rechunk_exec.results import Event, OnEvent, TaskResult
from rechunk_exec.storage.places import child
from rechunk_exec.storage.sessions import IcechunkFork, SessionPlace, loss_in_copies, refuse_unfit, session_of
from rechunk_exec.tasks import ArrayRef, Stage

if TYPE_CHECKING:
    from icechunk import IcechunkStore, Session


def intermediate_place(folder: ArrayRef, name: str) -> ArrayRef:
    """Return where an intermediate is, in the folder of the intermediates; in icechunk, in a fork of its own.

    Raises
    ------
    StorageError
        If a session cannot be forked, or is of a repository in memory, whose forks do not see it.
    """
    place = child(folder, name)
    session = session_of(folder.store)
    if session is None:
        return place
    refuse_unfit(session, f"temp store {folder}")
    loss = loss_in_copies(session.store.session)
    if loss:
        raise StorageError(
            f"intermediates in icechunk are in forks of the session, which must see what is stored; got the temp store "
            f"{folder}: {loss}; give a folder or a URL"
        )
    return ArrayRef(store=IcechunkTemp(session), path=place.path)


class IcechunkTemp(SessionPlace):
    """A fork of a session, which holds one intermediate. It is made when it is first used.

    Parameters
    ----------
    session : icechunk.Session
        Which is only forked.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._held: Any = None
        self._packed: bytes | None = None
        self.here: set[int] = set()
        """The tasks that have written to the fork itself, in this process."""

    @property
    def store(self) -> IcechunkStore:
        return self._opened[1]

    @property
    def loss_in_copies(self) -> str:
        return ""  # else it was refused

    def done(self, index: int) -> None:
        self.here.add(index)
        self._packed = None

    def merge(self, changes: bytes) -> None:
        """Take what a task of another process has changed."""
        self._opened[0].merge(pickle.loads(changes))
        self._packed = None

    def forget(self) -> None:
        """Let go of the intermediate."""
        self._held = self._packed = None

    @property
    def _opened(self) -> tuple[Any, IcechunkStore]:
        if self._held is None:
            # By a session of its own in Python: icechunk 1 would warn where the given one is committed later.
            fork = self._session.store.session.fork()
            self._held = fork, fork.store
        held: tuple[Any, IcechunkStore] = self._held
        return held

    def __reduce__(self) -> tuple[type[IcechunkFork], tuple[bytes | None]]:
        if self._packed is None:
            self._packed = pickle.dumps(self._opened[0])
        return IcechunkFork, (self._packed,)


def merging(stages: Sequence[Stage], tell: OnEvent) -> OnEvent:
    """Return a listener that merges what tasks have changed in intermediates, and tells of the rest.

    Executors tell of all tasks of a stage before the next one begins. The listener raises :class:`RechunkError` where
    what a task has changed did not come back.
    """
    temps = {stage.number: stage.target.store for stage in stages if isinstance(stage.target.store, IcechunkTemp)}

    def listen(event: Event) -> None:
        temp = temps.get(event.stage) if event.result is not None else None
        if temp is not None and event.result is not None:
            if event.result.changes is not None:
                temp.merge(event.result.changes)
            elif event.index not in temp.here:
                raise RechunkError(
                    "what tasks write to an icechunk session in other processes must come back as TaskResult.changes, "
                    f"by pickle; got nothing from task {event.index} of stage {event.stage}; have the executor return "
                    "what run_task returns, or use executor='threads'"
                )
            event = replace(event, result=without_changes(event.result))
        tell(event)

    return listen


def without_changes(result: TaskResult) -> TaskResult:
    """Return a result as reports and documents have it."""
    return result if result.changes is None else replace(result, changes=None)


def forget_intermediates(stages: Sequence[Stage]) -> None:
    """Let go of intermediates that are in forks of a session."""
    for stage in stages:
        if isinstance(stage.target.store, IcechunkTemp):
            stage.target.store.forget()
