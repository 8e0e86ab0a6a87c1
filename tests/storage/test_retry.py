from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from rechunk_exec.errors import StorageError
from rechunk_exec.storage.retry import Requests, RetryPolicy, current_policy, retry_policy, take_retries

QUICK = RetryPolicy(tries=4, first_wait_s=0.001, longest_wait_s=0.002)
RESET = ConnectionResetError(errno.ECONNRESET, "reset by peer")


@dataclass
class Flaky:
    """A request that fails some times."""

    errors: list[Exception]
    calls: int = 0
    result: object = field(default_factory=object)

    def __call__(self) -> object:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return self.result


def requests(store: str = "", policy: RetryPolicy = QUICK) -> Requests:
    return Requests(store=store, remote=bool(store), policy=policy)


@pytest.fixture(autouse=True)
def nothing_counted() -> None:
    take_retries()


def test_a_request_that_goes_well_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail("waited"))
    request = Flaky([])
    assert requests().make(request, "read", "c/0") is request.result
    assert (request.calls, take_retries()) == (1, 0)


@pytest.mark.parametrize("failures", [1, 2, 3])
def test_a_request_is_made_again_and_that_is_counted(failures: int) -> None:
    request = Flaky([RESET] * failures)
    assert requests().make(request, "read", "c/0") is request.result
    assert (request.calls, take_retries(), take_retries()) == (failures + 1, failures, 0)


def test_after_the_tries_the_error_says_what_where_and_how_often() -> None:
    request = Flaky([RESET] * 9)
    with pytest.raises(
        StorageError, match=r"cannot read c/0 from <store>: .*reset by peer; it was tried 4 times"
    ) as got:
        requests("<store>").make(request, "read", "c/0")
    assert request.calls == 4
    assert got.value.__cause__ is RESET
    assert not got.value.permanent


@pytest.mark.parametrize(
    "error,permanent",
    [(ValueError("x"), False), (PermissionError(errno.EACCES, "x"), True), (OSError(errno.EROFS, "x"), True)],
    ids=repr,
)
def test_other_errors_fail_at_once(error: Exception, permanent: bool) -> None:
    request = Flaky([error])
    with pytest.raises(StorageError, match="cannot write c/0 to <store>") as caught:
        requests("<store>").make(request, "write", "c/0")
    assert request.calls == 1
    assert caught.value.permanent == permanent
    assert "tried" not in str(caught.value)


def test_an_error_that_turns_up_after_a_passing_one_ends_the_tries() -> None:
    request = Flaky([RESET, PermissionError(errno.EACCES, "denied")])
    with pytest.raises(StorageError, match=r"denied.*it was tried 2 times") as caught:
        requests().make(request, "read", "/d/c/0")
    assert caught.value.permanent


def test_our_own_errors_are_raised_as_they_are() -> None:
    for before in ([], [RESET]):
        last = StorageError("torn", permanent=True)
        errors: list[Exception] = [*before, last]
        with pytest.raises(StorageError) as caught:
            requests().make(Flaky(errors), "read", "c/0")
        assert caught.value is last


def test_a_full_disk_says_what_to_do() -> None:
    with pytest.raises(StorageError, match=r"/d/c/0.*disk is full.*make room.*mode='resume'") as caught:
        requests().make(Flaky([OSError(errno.ENOSPC, "No space left on device")]), "write", "/d/c/0")
    assert caught.value.permanent


def test_an_interrupt_is_no_failure() -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        requests().make(interrupted, "read", "c/0")


def test_waits_grow_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr("tenacity.nap.time.sleep", waited.append)
    policy = RetryPolicy(tries=9, first_wait_s=0.1, longest_wait_s=1.0)
    with pytest.raises(StorageError):
        requests("<store>", policy).make(Flaky([RESET] * 9), "read", "c/0")
    bounds = [min(0.1 * 2**number, 1.0) for number in range(8)]
    assert len(waited) == len(bounds)
    assert all(0 <= wait <= bound for wait, bound in zip(waited, bounds, strict=True))
    assert len(set(waited)) > 1
    assert policy.waiting_s == pytest.approx(sum(bounds))
    assert RetryPolicy().waiting_s < 60


@pytest.mark.parametrize("wrong", [{"tries": 0}, {"first_wait_s": -1.0}, {"longest_wait_s": -1.0}])
def test_policies_that_are_none(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="at least one try"):
        RetryPolicy(**wrong)


def test_a_policy_holds_in_its_context_and_its_thread() -> None:
    assert current_policy() == RetryPolicy()
    seen: list[RetryPolicy] = []
    with retry_policy(QUICK):
        assert Requests().policy == QUICK
        thread = threading.Thread(target=lambda: seen.append(current_policy()))
        thread.start()
        thread.join()
    assert seen == [RetryPolicy()]
    assert Requests().policy == RetryPolicy()


def test_retries_are_counted_by_thread() -> None:
    counts: dict[str, int] = {}

    def work(name: str, request: Callable[[], object]) -> None:
        requests().make(request, "read", "c/0")
        counts[name] = take_retries()

    threads = [threading.Thread(target=work, args=(f"{n}", Flaky([RESET] * n))) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts == {"0": 0, "1": 1, "2": 2}
