"""Tasks as data. Layer: above :mod:`rechunk_exec.plans`, below everything that touches a store.

A :class:`Stage` is a :class:`~rechunk_exec.plans.StagePlan` plus the names of the two arrays it copies between. It is a
lazy sequence of :class:`CopyTask`: constant in size however many tasks it has, so a worker gets the stage once and then
numbers, and makes its own tasks. A task is a few integers and strings; what runs it is
:func:`rechunk_exec.copy.run_task`, and what it gives back is a :class:`~rechunk_exec.results.TaskResult`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeAlias, overload
from urllib.parse import parse_qsl, urlsplit

from rechunk_exec import wire
from rechunk_exec.errors import PlanError, SerializationError
from rechunk_exec.stageplan import StagePlan, refuse_many_threads

OptionValue: TypeAlias = str | int | float | bool | None

DOCUMENT_SCHEMES = (
    *("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oci", "oss", "hf"),
    *("http", "https", "ftp", "sftp", "ssh", "hdfs", "webhdfs", "memory"),
)
"""What the URLs of stores in documents begin with: file systems that lead to nothing but what the URL says."""

_SECRET_WORDS = (
    "secret",
    "password",
    "passwd",
    "token",
    "credential",
    "access_key",
    "account_key",
    "api_key",
    "private_key",
    "connection_string",
    "sas",
)


_NOT_IN_A_NAME = re.compile(r"[/\\\x00\ud800-\udfff]")
"""No half of a character can be written down."""


def refuse_job_name(job: str) -> None:
    """Raise :class:`SerializationError` unless a job's name can be that of a folder, or is empty."""
    if job.startswith(".") or _NOT_IN_A_NAME.search(job):
        raise SerializationError(f"a job's name must be that of a folder, not hidden, and no path; got {job!r}")


def is_secret(option: str) -> bool:
    """Whether an option of a store, by its name, holds credentials."""
    return option.lower() == "key" or any(word in option.lower() for word in _SECRET_WORDS)


def secret_in(text: object) -> str | None:
    """Return what holds credentials in a URL, or in one of those that it chains, for people; None if nothing does.

    Examples
    --------
    >>> secret_in("simplecache::https://me:secret@host/a"), secret_in("https://host/a?X-Amz-Signature=5f3a")
    ('a URL of host with a password', "a URL of host with 'X-Amz-Signature'")
    >>> secret_in("abfs://container@account/a")
    """
    for url in text.split("::") if isinstance(text, str) and "://" in text else ():
        with suppress(ValueError):  # it is none, which is told where it is opened
            parts = urlsplit(url)
            names = [name for name, _ in parse_qsl(parts.query, keep_blank_values=True)]
            signs = [name for name in names if is_secret(name) or name.lower().endswith(("sig", "signature"))]
            user = "a user name alone, which may be a token" if parts.scheme in ("http", "https") else None
            # In fsspec github://organisation:repository@commit names no user.
            password = None if parts.scheme == "github" else parts.password
            told = "a password" if password is not None else user if parts.username else None
            if told or signs:
                return f"a URL of {parts.hostname} with {told or repr(signs[0])}"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayRef:
    """The name of a zarr array: enough for any process that sees the store to open it."""

    store: str | object
    """A path or URL; or a live zarr store, which then travels by pickle only."""
    path: str = ""
    """The array's path inside the store."""
    storage_options: Mapping[str, OptionValue] = field(default_factory=dict, hash=False)
    """Options for a URL's file system. Secrets are refused: credentials come from a worker's own environment."""

    def __post_init__(self) -> None:
        if self.path and any(part in {"", ".", ".."} for part in self.path.split("/")):
            raise SerializationError(
                f"an array's path inside its store must be names with / between them; got {self.path!r}; leave out "
                "what is empty, '.' or '..'"
            )
        if "\0" in self.path:
            raise SerializationError(f"an array's path inside its store holds no NUL character; got {self.path!r}")
        secret = next(filter(is_secret, self.storage_options), None)
        if secret is not None:
            raise SerializationError(
                f"a task carries no credentials; got the storage option {secret!r}; "
                "set the credentials in the environment of the workers"
            )
        # A live store's path may be a URL, which its errors name.
        for text in (self.store, getattr(self.store, "path", ""), *self.storage_options.values()):
            found = secret_in(text)
            if found is not None:
                raise SerializationError(
                    f"a task carries no credentials; got {found}; set the credentials in the environment of the workers"
                )
        for name, value in self.storage_options.items():
            if value is not None and not isinstance(value, (str, int, float)):
                raise SerializationError(
                    f"a storage option must be a string, a number, true, false or None; got a {type(value).__name__} "
                    f"for {name!r}; make the store yourself (zarr.storage.FsspecStore) and give that"
                )

    def check_read(self) -> None:
        """Refuse what no document of ours names: it may come from a stranger.

        Raises
        ------
        SerializationError
            If the store is neither an absolute local path nor the URL of a store that is read and written as it is.
            Chained URLs (``simplecache::s3://...``) and the file systems behind them read local files of the worker
            and write where they like.
        """
        store = str(self.store)
        scheme, colon, place = store.partition("://")
        if colon:
            named = scheme in DOCUMENT_SCHEMES and "::" not in place and ".." not in place.split("/")
        else:
            named = store.startswith("/") and os.path.normpath(store) == store
        if not named or "\0" in store:
            raise SerializationError(
                "a store in a document must be an absolute path without '.' and '..', or one URL that begins with one "
                f"of {', '.join(DOCUMENT_SCHEMES)}; got {store!r}; give such a one, or send the task by pickle"
            )

    @property
    def by_name(self) -> bool:
        """Whether another process can open the array from this reference alone."""
        return isinstance(self.store, str)

    @property
    def key(self) -> Hashable:
        """What tells this reference from others inside one process."""
        return (
            self.store if isinstance(self.store, str) else id(self.store),
            self.path,
            tuple(sorted(self.storage_options.items())),
        )

    def __str__(self) -> str:
        store = self.store if isinstance(self.store, str) else f"<{type(self.store).__name__}>"
        return f"{store.rstrip('/')}/{self.path}" if self.path else store


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyTask:
    """One region of one stage: copy the box ``[start, stop)`` from ``source`` to ``target``.

    The box is whole write units of the target, or reaches to its edge, so no other task of the stage writes to them: a
    task needs no lock, and may run again, or twice at once.
    """

    stage: int
    """The number of the stage, from 0."""
    index: int
    """The number of the task in its stage, from 0, in C order of the regions."""
    start: tuple[int, ...]
    """First element of the region, on each axis."""
    stop: tuple[int, ...]
    """One past the last element of the region, on each axis."""
    source: ArrayRef
    target: ArrayRef
    threads: int
    """How many units are decoded or encoded at once."""
    predicted_bytes: int
    """The most this task holds at once, by :mod:`rechunk_exec.memory`."""
    read_unit: tuple[int, ...] | None = None
    """What one read decodes, by the plan, in elements; None: a chunk."""
    job: str = ""
    """The job's name: what a worker keeps of one job never serves another."""
    journal: ArrayRef | None = None
    """The array beside which the task notes its result, where its executor does not tell of it; None: nowhere."""
    digest: bool = False
    """Whether the task's result is to hold the digest of its region."""

    def __post_init__(self) -> None:
        refuse_job_name(self.job)
        if len(self.start) != len(self.stop) or not all(
            0 <= low < high for low, high in zip(self.start, self.stop, strict=False)
        ):
            raise PlanError(f"a task's box must have 0 <= start < stop on each axis; got {self.start} to {self.stop}")
        if min(self.stage, self.index, self.predicted_bytes, self.threads - 1) < 0:
            raise PlanError(
                "a task's stage, index and predicted_bytes must be at least 0 and its threads at least 1; got "
                f"{self.stage}, {self.index}, {self.predicted_bytes} and {self.threads}"
            )
        if self.read_unit is not None and (
            len(self.read_unit) != len(self.start) or min(self.read_unit, default=1) < 1
        ):
            raise PlanError(
                f"a task's read_unit must be at least 1 on each axis of its box; got {self.read_unit} for "
                f"{self.start} to {self.stop}"
            )

    def check_read(self) -> None:
        """Refuse what no plan of ours comes to; :class:`SerializationError`: it may come from a stranger."""
        refuse_many_threads(self.threads)

    def to_json(self) -> str:
        """Return the task as one line of JSON."""
        return wire.to_json(self)

    @classmethod
    def from_json(cls, text: str | bytes) -> CopyTask:
        """Return the task that ``text`` holds; :class:`SerializationError` if it holds none."""
        return wire.from_json(cls, text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage(Sequence[CopyTask]):
    """One copy of the whole array, as a lazy sequence of tasks.

    Its size does not depend on the number of tasks, and neither does the time to build, pickle or send it.
    """

    number: int
    """The number of the stage, from 0."""
    plan: StagePlan
    source: ArrayRef
    target: ArrayRef
    job: str = ""
    """The job's name, the same for all stages of a job."""
    journal: ArrayRef | None = None
    """The array beside which tasks note their results, where the executor does not tell of them; None: nowhere."""
    digest: bool = False
    """Whether the tasks' results are to hold the digests of their regions."""
    left: tuple[tuple[int, int], ...] | None = None
    """Runs ``[first, stop)`` of the task numbers that this stage still has to run, in order; None: all of the plan's.
    The length of the stage counts these only."""

    def __post_init__(self) -> None:
        refuse_job_name(self.job)
        if self.number < 0:
            raise PlanError(f"a stage's number is at least 0; got {self.number}")
        ends = [0, *(number for run in self.left or () for number in run), self.plan.tasks]
        if ends != sorted(ends) or any(first == stop for first, stop in self.left or ()):
            raise PlanError(f"a stage's runs of task numbers go up, from 0 to {self.plan.tasks}; got {self.left}")

    def __len__(self) -> int:
        return self.plan.tasks if self.left is None else sum(stop - first for first, stop in self.left)

    @overload
    def __getitem__(self, index: int) -> CopyTask: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[CopyTask]: ...
    def __getitem__(self, index: int | slice) -> CopyTask | Sequence[CopyTask]:
        if isinstance(index, slice):
            return _TaskRange(self, range(len(self))[index])
        number = self.task_number(range(len(self))[index])
        start, stop = self.plan.box(number)
        return CopyTask(
            stage=self.number,
            index=number,
            start=start,
            stop=stop,
            source=self.source,
            target=self.target,
            threads=self.plan.threads,
            predicted_bytes=self.plan.task_bytes,
            read_unit=self.plan.read_unit,
            job=self.job,
            journal=self.journal,
            digest=self.digest,
        )

    def task_number(self, position: int) -> int:
        """Return the number, in the whole stage, of the task at ``position`` among those left."""
        for first, stop in self.left or ():
            if position < stop - first:
                return first + position
            position -= stop - first
        return position

    def has_task(self, number: int) -> bool:
        """Whether the task of this number is among those left."""
        return any(first <= number < stop for _, (first, stop) in self._runs())

    def __iter__(self) -> Iterator[CopyTask]:
        return (self[index] for index in range(len(self)))

    def __contains__(self, task: object) -> bool:
        return isinstance(task, CopyTask) and any(
            first <= task.index < stop and self[before + task.index - first] == task
            for before, (first, stop) in self._runs()
        )

    def _runs(self) -> Iterator[tuple[int, tuple[int, int]]]:
        """Yield the runs left, each after the number of tasks before it."""
        before = 0
        for run in ((0, self.plan.tasks),) if self.left is None else self.left:
            yield before, run
            before += run[1] - run[0]

    @property
    def by_name(self) -> bool:
        """Whether other processes can open both arrays from the stage alone."""
        return self.source.by_name and self.target.by_name

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array, in elements."""
        return self.plan.shape

    @property
    def region(self) -> tuple[int, ...]:
        """Shape of the box that one task copies, in elements."""
        return self.plan.region

    @property
    def read_unit(self) -> tuple[int, ...]:
        """The smallest box that the stage's source decodes on its own, in elements."""
        return self.plan.read_unit

    @property
    def write_unit(self) -> tuple[int, ...]:
        """The box that one write replaces whole, in elements."""
        return self.plan.write_unit

    @property
    def tasks(self) -> int:
        """Number of tasks of the whole stage; ``len(stage)`` counts those that are left."""
        return self.plan.tasks

    def box(self, index: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return ``(start, stop)`` of task ``index``, in elements."""
        return self.plan.box(index)

    def to_json(self) -> str:
        """Return the stage as one line of JSON."""
        return wire.to_json(self)

    @classmethod
    def from_json(cls, text: str | bytes) -> Stage:
        """Return the stage that ``text`` holds; :class:`SerializationError` if it holds none."""
        return wire.from_json(cls, text)


@dataclass(frozen=True, slots=True)
class _TaskRange(Sequence[CopyTask]):
    """Some tasks of a stage, as lazy as the stage."""

    stage: Stage
    numbers: range

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, index: int) -> CopyTask: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[CopyTask]: ...
    def __getitem__(self, index: int | slice) -> CopyTask | Sequence[CopyTask]:
        if isinstance(index, slice):
            return _TaskRange(self.stage, self.numbers[index])
        return self.stage[self.numbers[index]]
