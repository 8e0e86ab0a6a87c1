"""Icechunk sessions as source and target. Layer: storage. The only module that imports icechunk, when it is used.

A session collects changes, and its branch shows none of them before it is committed. So a job is one commit, at its
end, or none. Tasks of the driver's process write to the session itself. Other processes get a *fork* of it: a stage
that is pickled carries an :class:`IcechunkFork` where it had an :class:`IcechunkTarget`. Each task there works on a
fresh copy of the fork and gives its own changes back with its result; the driver merges them into the session.

Making an array must come before forking, or each worker would make an array of its own and all but one would be lost.
"""

from __future__ import annotations

import pickle
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from zarr.abc.store import Store

from rechunk_exec.errors import PlanError, RechunkError, ResumeError, StorageError
from rechunk_exec.results import TaskResult
from rechunk_exec.storage.unanswered import sync
from rechunk_exec.tasks import ArrayRef, CopyTask, Stage

if TYPE_CHECKING:
    from icechunk import IcechunkStore, Session

    from rechunk_exec.storage.stored import StoredArray


class SessionPlace(ABC):
    """What stands for a session's store in the stages of one job: it pickles as an :class:`IcechunkFork`."""

    @property
    @abstractmethod
    def store(self) -> IcechunkStore:
        """The store that tasks of this process use."""

    @property
    @abstractmethod
    def loss_in_copies(self) -> str:
        """What keeps other processes from the repository, or ""."""

    @abstractmethod
    def done(self, index: int) -> None:
        """Note a task that has written to the store itself."""


def session_store(store: object) -> Store | None:
    """Return the zarr store of an icechunk session, or an icechunk store itself; None for anything else."""
    if isinstance(store, SessionPlace | IcechunkFork):
        return store.store
    if "icechunk" not in sys.modules:  # then there is no such object
        return None
    from icechunk import IcechunkStore, Session

    if isinstance(store, Session):
        return store.store
    return store if isinstance(store, IcechunkStore) else None


def holds_documents(ref: ArrayRef) -> bool:
    """Whether documents of ours can lie beside an array: icechunk takes no keys but zarr's."""
    return not isinstance(ref.store, IcechunkFork) and session_store(ref.store) is None


def refuse_resume(ref: ArrayRef) -> None:
    """Raise :class:`ResumeError`: an array is in an icechunk repository, which holds no record of jobs."""
    raise ResumeError(
        "a job that failed leaves nothing in an icechunk repository, so an array that is there was finished by "
        f"another one; got mode='resume' and an array at {ref}; give mode='overwrite' to replace it, or another "
        "array_name"
    )


def hidden_from_processes(ref: ArrayRef) -> str | None:
    """Return why other processes could not use an icechunk store, or "" if they can; None for any other store."""
    if isinstance(ref.store, IcechunkFork):
        return ""
    if isinstance(ref.store, SessionPlace):
        return ref.store.loss_in_copies
    session = session_of(ref.store)
    if session is None:
        return None
    if not session.read_only:
        return (
            "a writable session is seen in its own process only; for a source, give the store of a read-only session "
            "(Repository.readonly_session)"
        )
    return loss_in_copies(session)


def session_target(target: ArrayRef, zarr_format: int) -> IcechunkTarget | None:
    """Return the session that a job is to write to; None if the target is in no icechunk repository.

    Raises
    ------
    PlanError
        If the array would not be of zarr format 3.
    StorageError
        If the session cannot be committed, or has changes of somebody else.
    """
    session = session_of(target.store)
    if session is None:
        return None
    if zarr_format != 3:
        raise PlanError(
            f"icechunk holds arrays of zarr format 3; got format {zarr_format} for {target}; give zarr_format=3"
        )
    return IcechunkTarget(target, session)


class IcechunkTarget(SessionPlace):
    """A writable session, as the target of one job.

    Parameters
    ----------
    target : ArrayRef
        The array, in the session's store.
    session : icechunk.Session
    """

    def __init__(self, target: ArrayRef, session: Session) -> None:
        self._store: IcechunkStore = session.store
        self._loss_in_copies: str | None = None
        self._target = target
        self._session = session
        self._fork: bytes | None = None
        self._made = False
        self._complete = False
        self._done: set[int] = set()
        self._branch = session.branch
        refuse_unfit(session, f"target {target}")

    @property
    def store(self) -> IcechunkStore:
        return self._store

    @property
    def loss_in_copies(self) -> str:
        """What keeps other processes from the repository, or "". Asked before anything is written."""
        if self._loss_in_copies is None:
            self._loss_in_copies = loss_in_copies(self._store.session)
        return self._loss_in_copies

    @contextmanager
    def job(self) -> Iterator[None]:
        """Have the session to oneself; what goes wrong before :meth:`commit` discards all that was written to it.

        Raises
        ------
        StorageError
            If the session has changes of somebody else by now, which are left as they are.
        """
        refuse_unfit(self._session, f"target {self._target}")
        try:
            yield
        finally:
            if not (self._complete or self._session.read_only):
                self._session.discard_changes()

    @contextmanager
    def making(self) -> Iterator[ArrayRef]:
        """Yield the place in which the array is to be made, so that tasks of any process find it."""
        if _forks_carry_changes() or self.loss_in_copies:
            yield replace(self._target, store=self.store)
        else:
            base = self._session.fork()
            yield replace(self._target, store=base.store)
            self._fork = pickle.dumps(base)
            self._session.merge(base)
        self._made = True

    def done(self, index: int) -> None:
        """Note a task that has written to the session itself."""
        self._done.add(index)

    def collect(self, stage: Stage, results: Sequence[TaskResult]) -> tuple[TaskResult, ...]:
        """Merge what tasks of other processes have changed; return the results without the changes.

        Raises
        ------
        RechunkError
            If what a task wrote in another process did not come back.
        """
        for result in results:
            if result.stage == stage.number and result.changes is not None:
                self._session.merge(pickle.loads(result.changes))
                self._done.add(result.index)
        missing = [task for task in map(stage.task_number, range(len(stage))) if task not in self._done]
        if missing:
            raise RechunkError(
                f"what tasks write to an icechunk session in other processes must come back as TaskResult.changes, by "
                f"pickle; got nothing from {len(missing)} of {len(stage)} tasks, the first is {missing[0]}; have the "
                "executor return what run_task returns, or use executor='threads'"
            )
        return tuple(result if result.changes is None else replace(result, changes=None) for result in results)

    def commit(self, made: StoredArray) -> None:
        """Commit the session, after commits of others if these touch nothing of ours; ``made`` is for the message.

        Raises
        ------
        StorageError
            If icechunk refuses, or the session has changes of somebody else. It keeps them, and the finished array,
            uncommitted.
        """
        from icechunk import ConflictDetector

        self._complete = True
        self._refuse_changes_of_others()
        shards = "" if made.shard is None else f" in shards of {made.shard}"
        message = f"rechunk_exec: array /{self._target.path}, shape {made.shape}, chunks of {made.chunk}{shards}"
        try:
            self._session.commit(message, rebase_with=ConflictDetector())
        except Exception as error:
            conflicts = "".join(f", of {conflict.path}" for conflict in getattr(error, "conflicts", ())[:5])
            raise StorageError(
                f"the array {self._target} is complete, and cannot be committed to branch {self._branch!r}: "
                f"{type(error).__name__}: {error}{conflicts}; the session holds it: commit() or rebase() it yourself, "
                "or discard_changes() and run the job again"
            ) from error

    def _refuse_changes_of_others(self) -> None:
        """Raise :class:`StorageError` unless the session has the array that was made, and no other changes.

        Another thread may have the session too, with an array in it that is not finished.
        """
        changes = self._session.status()
        array = f"/{self._target.path}"
        groups = {path for path in changes.new_groups if f"{array}/".startswith(f"{path.rstrip('/')}/")}
        changed = changes.deleted_arrays | changes.new_arrays | changes.updated_arrays | set(changes.updated_chunks)
        changed |= changes.deleted_groups | changes.new_groups | changes.updated_groups
        problem = ""
        if array not in changes.new_arrays:
            problem = "its session does not have it any more: somebody has discarded or committed what was there"
        elif others := sorted(changed - groups - {array}):
            problem = f"its session has got changes of somebody else, of {', '.join(others[:5])}"
        if problem:
            raise StorageError(
                f"the array {self._target} is complete, and not committed to branch {self._branch!r}: {problem}; give "
                "each job a session of its own; what this one holds can be committed by commit(), once it is whole"
            )

    @property
    def committed(self) -> ArrayRef:
        """The array as it was committed, in a store that says that it is read only."""
        return replace(self._target, store=self._session.store)

    @property
    def left(self) -> str:
        """What is left of a job that failed, for people; empty where :meth:`commit` has told."""
        if self._complete:
            return ""
        return f"nothing was committed to branch {self._branch!r}, and the session's changes were discarded"

    def __reduce__(self) -> tuple[type[IcechunkFork], tuple[bytes | None]]:
        if self._made and self._fork is None:
            self._fork = pickle.dumps(self._session.fork())
        return IcechunkFork, (self._fork,)


@dataclass(frozen=True)
class IcechunkFork:
    """What another process has of a :class:`SessionPlace`."""

    base: bytes | None = field(repr=False)
    """The pickle of a fork of the session, with the array made in it; None if that is not made yet. It says how to get
    at the repository, with what credentials it was opened with, so it is shown nowhere."""

    @cached_property
    def store(self) -> IcechunkStore:
        """The store of one copy, to read from."""
        return self.open().store

    def open(self) -> Session:
        """Return a copy of the fork, which holds no changes but those of who asks."""
        if self.base is None:
            raise StorageError(
                "tasks with an icechunk target run while their job is executed; got one that was pickled before; "
                "use Rechunked.execute"
            )
        session: Session = pickle.loads(self.base)
        return session


def run_with_changes(run: Callable[[CopyTask], TaskResult], task: CopyTask) -> TaskResult:
    """Run a task; if its target is a session of another process, on a copy of its own, whose changes come back."""
    place = task.target.store
    if isinstance(place, IcechunkFork):
        session = place.open()
        result = run(replace(task, target=replace(task.target, store=session.store)))
        return replace(result, changes=pickle.dumps(session))
    result = run(task)
    if isinstance(place, SessionPlace):
        place.done(task.index)
    return result


def refuse_unfit(session: Session, what: str) -> None:
    """Raise :class:`StorageError` unless a session can be written, and has no changes; ``what`` it is, for people."""
    from icechunk.session import ForkSession

    problem = remedy = ""
    if isinstance(session, ForkSession):
        problem, remedy = "is a fork, which cannot be committed or forked", "give the session that it was forked from"
    elif session.read_only:
        problem, remedy = "is read only, as each is once committed", "open another with Repository.writable_session"
    elif session.has_uncommitted_changes:
        problem = "has uncommitted changes, which the job would commit, or discard if it failed"
        remedy = "commit or discard them, and give a new session"
    if problem:
        raise StorageError(
            f"a job needs a writable icechunk session with no changes; the one of the {what} {problem}; {remedy}"
        )


def session_of(store: object) -> Session | None:
    """Return the icechunk session that a store is of; None for any other store."""
    there: Any = session_store(store)
    return None if there is None else there.session


def loss_in_copies(session: Session) -> str:
    """Return what keeps a copy of a session from what is stored, or ""."""
    try:
        copy: Session = pickle.loads(pickle.dumps(session if session.read_only else session.fork()))
        sync(copy.store.exists("zarr.json"))
    except Exception as error:  # noqa: BLE001 - whatever it is, a worker would meet it too
        first_line = str(error).partition("\n")[0]
        return f"a copy of the session cannot read the repository, as if that were in memory ({first_line.strip()})"
    return ""


def _forks_carry_changes() -> bool:
    """Whether a session with changes can be forked.

    Icechunk 1 refuses that. It merges what was made in a fork instead, also where the fork has removed an array before,
    which version 2 refuses.
    """
    import icechunk

    return int(icechunk.__version__.partition(".")[0]) >= 2
