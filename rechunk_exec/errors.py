"""The error tree. Layer: the ground, beside :mod:`rechunk_exec.sizes`.

.. code-block:: text

    RechunkError
    ├── PlanError (ValueError)           the request cannot be planned
    │   └── BudgetError                  ... within max_mem; .needed_bytes would do
    ├── TargetExistsError (FileExistsError)
    ├── StorageError                     a store or its metadata failed
    ├── TaskError                        a task failed for good; .stage, .index
    ├── NotReadyError                    an earlier stage, or a task, is not done yet
    ├── ResumeError                      what is there is not what was begun
    ├── MissingExtraError (ImportError)  an optional package is not installed
    └── SerializationError               a value cannot travel, or what came is not ours

Every message says the rule, what was given, and what to do. Every class survives pickle, so that an error of a worker
process arrives with its attributes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class RechunkError(Exception):
    """Base of all errors raised by this package."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(kind: type[RechunkError], args: tuple[Any, ...], state: dict[str, Any]) -> RechunkError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class PlanError(RechunkError, ValueError):
    """The request cannot be planned. Nothing was created."""


class BudgetError(PlanError):
    """The request cannot be planned within ``max_mem``.

    Attributes
    ----------
    needed_bytes : int
        The smallest ``max_mem`` with which the same call succeeds.
    max_mem : int
        The ``max_mem`` that was given, in bytes.
    limits : dict of str to int
        For limits on objects or intermediates that no plan keeps within ``max_mem``, by the names of the arguments: the
        nearest value with which the same call succeeds. Empty where there are none.
    """

    needed_bytes: int
    max_mem: int
    limits: dict[str, int]

    def __init__(
        self, message: str, *, needed_bytes: int, max_mem: int, limits: Mapping[str, int] | None = None
    ) -> None:
        super().__init__(message)
        self.needed_bytes = needed_bytes
        self.max_mem = max_mem
        self.limits = dict(limits or {})


class TargetExistsError(RechunkError, FileExistsError):
    """Something is where the target should go, and it was not touched."""


class StorageError(RechunkError):
    """A store, an array in it, or its metadata cannot be used as asked.

    Attributes
    ----------
    permanent : bool
        Whether trying again cannot help: a disk is full, access is denied, stored bytes are damaged.
    """

    permanent: bool

    def __init__(self, message: str, *, permanent: bool = False) -> None:
        super().__init__(message)
        self.permanent = permanent


class TaskError(RechunkError):
    """A task failed after all its tries. Its ``__cause__`` is the last failure.

    Attributes
    ----------
    stage, index : int
        The task's stage (from 0) and its number in that stage (from 0).
    """

    stage: int
    index: int

    def __init__(self, message: str, *, stage: int, index: int) -> None:
        super().__init__(message)
        self.stage = stage
        self.index = index


class NotReadyError(RechunkError):
    """What was asked for comes after tasks that are not done yet. Nothing was written."""


class ResumeError(RechunkError):
    """A job cannot be resumed: what is there does not belong to it."""


class MissingExtraError(RechunkError, ImportError):
    """An optional package is needed; the message names the extra that installs it."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(
            f"this needs the package {package!r}, which is not installed; "
            f"install it with: pip install 'rechunk_exec[{extra}]'"
        )


class SerializationError(RechunkError):
    """A value cannot be written as JSON or pickle, or a document is not one of ours."""


def error_text(error: BaseException) -> str:
    """Return an exception's class and message, whatever it does when it is asked for that.

    Examples
    --------
    >>> error_text(KeyError("time"))
    "KeyError: 'time'"
    """
    try:
        message = str(error)
    except Exception as problem:  # noqa: BLE001 - whatever a class does when it is shown
        message = f"(its message cannot be shown: {type(problem).__name__})"
    return f"{type(error).__name__}: {message}"
