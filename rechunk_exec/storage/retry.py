"""Requests to stores that fail for a passing reason, and are made again. Layer: storage.

A request that goes well costs a call and nothing else. One that fails for a reason that may pass (:mod:`.failures`) is
made again after a wait that grows, with a random part so that many workers do not come back at once; any other failure
is raised at once. What is raised in the end is a :class:`~rechunk_exec.errors.StorageError` that names the object, the
store and how often it was tried.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TypeVar

import tenacity

from rechunk_exec.errors import StorageError
from rechunk_exec.storage.failures import Outlook, as_told, is_full, outlook, without_queries
from rechunk_exec.storage.unanswered import of_this_call

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often, and after which waits, a request is made again that failed for a passing reason.

    The wait before the n-th new try is a random part of ``first_wait_s * 2**(n - 1)``, at most of ``longest_wait_s``.
    """

    tries: int = 10
    """How often a request is made, at most."""
    first_wait_s: float = 0.1
    longest_wait_s: float = 20.0

    def __post_init__(self) -> None:
        if self.tries < 1 or self.first_wait_s < 0 or self.longest_wait_s < 0:
            raise ValueError(f"a RetryPolicy has at least one try and no negative waits; got {self}")

    @property
    def waiting_s(self) -> float:
        """The most that one request waits between its tries, in seconds: 45.5 by default."""
        return sum(min(self.first_wait_s * 2.0**number, self.longest_wait_s) for number in range(self.tries - 1))


_POLICY: ContextVar[RetryPolicy] = ContextVar("rechunk_exec_retry_policy", default=RetryPolicy())  # noqa: B039 - frozen


@contextmanager
def retry_policy(policy: RetryPolicy) -> Iterator[None]:
    """Have arrays that are opened in this context, by this thread, make their requests by ``policy``."""
    token = _POLICY.set(policy)
    try:
        yield
    finally:
        _POLICY.reset(token)


def current_policy() -> RetryPolicy:
    """Return the policy in force here."""
    return _POLICY.get()


class _Count(threading.local):
    retries = 0


_COUNT = _Count()


def count_retry() -> None:
    """Count one request that this thread makes again."""
    _COUNT.retries += 1


def take_retries() -> int:
    """Return how many requests this thread has made again since it was last asked."""
    retries, _COUNT.retries = _COUNT.retries, 0
    return retries


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """How requests to one store are made, and what is said of those that fail."""

    store: str = ""
    """The store in messages; empty if the names of its objects say enough, as paths do."""
    remote: bool = False
    """Whether the store is at the other end of a network."""
    policy: RetryPolicy = field(default_factory=current_policy)

    def make(self, request: Callable[[], T], verb: str, name: str) -> T:
        """Make a request, again if need be, and return what it returns.

        Parameters
        ----------
        request : callable
            May be called several times, and does the same each time.
        verb, name : str
            What it does to which object, for the message: ``"read"``, ``"c/0/0"``.

        Raises
        ------
        StorageError
            If it failed for good; ``permanent`` if it is known that trying again cannot help. A StorageError of the
            request itself is raised as it is.
        """
        try:
            return request()
        except StorageError:
            raise
        except Exception as error:  # noqa: BLE001 - told, without what may be signed
            if outlook(error, remote=self.remote) is not Outlook.PASSING:
                raise self.error(error, verb, name) from as_told(error)
            first = error
        return self._again(request, first, verb, name)

    def error(self, error: Exception, verb: str, name: str, tries: int = 1) -> StorageError:
        """Return what is raised for a request that failed for good."""
        where = f"{_PREPOSITIONS.get(verb, ' of')} {self.store}" if self.store else ""
        what = f"{type(error).__name__}: {error}" if self.store or not isinstance(error, OSError) else f"{error}"
        tried = f"; it was tried {tries} times" if tries > 1 else ""
        if is_full(error):
            what += (
                "; the disk is full, or a quota is used up: make room, then run the same call with mode='resume', "
                "which goes on where this stopped"
            )
        # With the name of a file, it is of a disk, and not of a bucket that is not there.
        if self.store and verb == "write" and isinstance(error, FileNotFoundError) and error.filename is not None:
            what += "; this store makes no folders: name it by its path, or make its file system with auto_mkdir=True"
        permanent = outlook(error, remote=self.remote) is Outlook.PERMANENT
        return StorageError(f"cannot {verb} {name}{where}: {without_queries(what)}{tried}", permanent=permanent)

    def _again(self, request: Callable[[], T], first: Exception, verb: str, name: str) -> T:
        failed: list[Exception] = [first]
        tries = 1

        def attempt() -> T:
            nonlocal tries
            if failed:  # the try that was made already, so that a wait comes first
                raise failed.pop()
            tries += 1
            count_retry()
            return request()

        unanswered = of_this_call()
        sleep: Callable[[float], None] = tenacity.nap.sleep
        stop: tenacity.stop.stop_base = tenacity.stop_after_attempt(self.policy.tries)
        if unanswered is not None:
            sleep = tenacity.sleep_using_event(unanswered.given_up)
            stop |= tenacity.stop_when_event_set(unanswered.given_up)
        loop = tenacity.Retrying(
            sleep=sleep,
            stop=stop,
            wait=tenacity.wait_random_exponential(self.policy.first_wait_s, self.policy.longest_wait_s),
            retry=tenacity.retry_if_exception(
                lambda error: (
                    not isinstance(error, StorageError) and outlook(error, remote=self.remote) is Outlook.PASSING
                )
            ),
            reraise=True,
        )
        try:
            return loop(attempt)
        except StorageError:
            raise
        except Exception as error:  # noqa: BLE001 - told, without what may be signed
            raise self.error(error, verb, name, tries) from as_told(error)


_PREPOSITIONS = {"read": " from", "write": " to"}
