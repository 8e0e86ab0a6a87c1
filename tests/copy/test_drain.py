from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait

import pytest

from rechunk_exec.copy.buffers import ScratchBuffers
from rechunk_exec.copy.drain import drain


@pytest.fixture
def helpers() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as executor:
        yield executor


def scratches(count: int) -> list[ScratchBuffers]:
    return [ScratchBuffers() for _ in range(count)]


@pytest.mark.parametrize("threads", [0, 1, 2, 5])
@pytest.mark.parametrize("pieces", [0, 1, 3, 400])
def test_each_piece_is_done_once(threads: int, pieces: int, helpers: ThreadPoolExecutor) -> None:
    done: Counter[int] = Counter()
    drain(
        range(pieces), lambda piece, _: done.update([piece]), scratches(max(1, threads)), helpers if threads else None
    )
    assert done == Counter(range(pieces))


def test_without_helpers_the_caller_works() -> None:
    seen = set()
    drain(range(5), lambda piece, _: seen.add(threading.current_thread()), scratches(1), None)
    assert seen == {threading.current_thread()}


def test_pieces_run_side_by_side_each_with_its_scratch(helpers: ThreadPoolExecutor) -> None:
    barrier = threading.Barrier(3, timeout=10)
    used = scratches(3)
    seen: list[ScratchBuffers] = []

    def meet(piece: int, scratch: ScratchBuffers) -> None:
        barrier.wait()  # fails unless all three come
        seen.append(scratch)

    drain(range(3), meet, used, helpers)
    assert {id(scratch) for scratch in seen} == {id(scratch) for scratch in used}


def test_pieces_are_taken_as_they_are_needed(helpers: ThreadPoolExecutor) -> None:
    taken, done = [0], [0]
    lock = threading.Lock()

    def pieces() -> Iterator[int]:
        for number in range(200):
            taken[0] += 1
            assert taken[0] - done[0] <= 3
            yield number

    def do(piece: int, _: ScratchBuffers) -> None:
        with lock:
            done[0] += 1

    drain(pieces(), do, scratches(2), helpers)
    assert done == [200]


class BoomError(Exception):
    pass


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_a_failure_stops_the_others_and_is_raised(threads: int, helpers: ThreadPoolExecutor) -> None:
    done: list[int] = []

    def do(piece: int, _: ScratchBuffers) -> None:
        if piece == 5:
            raise BoomError(piece)
        done.append(piece)

    with pytest.raises(BoomError):
        drain(range(100_000), do, scratches(max(1, threads)), helpers if threads else None)
    assert len(done) < 100_000


def test_no_piece_is_in_work_when_the_failure_is_raised(helpers: ThreadPoolExecutor) -> None:
    started, slow_done = threading.Event(), threading.Event()

    def do(piece: int, _: ScratchBuffers) -> None:
        if piece == 0:
            started.set()
            threading.Event().wait(0.05)
            slow_done.set()
        else:
            started.wait()
            raise BoomError

    with pytest.raises(BoomError):
        drain(range(2), do, scratches(2), helpers)
    assert slow_done.is_set()


@pytest.mark.parametrize("threads", [0, 2])
def test_a_failure_to_tell_the_next_piece_is_raised(threads: int, helpers: ThreadPoolExecutor) -> None:
    def pieces() -> Iterator[int]:
        yield 1
        raise BoomError

    with pytest.raises(BoomError):
        drain(pieces(), lambda piece, _: None, scratches(max(1, threads)), helpers if threads else None)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_an_interruption_in_a_thread_is_raised_in_the_caller(
    kind: type[BaseException], helpers: ThreadPoolExecutor
) -> None:
    def do(piece: int, _: ScratchBuffers) -> None:
        raise kind

    with pytest.raises(kind):
        drain(range(10), do, scratches(2), helpers)


def test_an_interrupted_caller_leaves_no_thread_at_work(
    helpers: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[int] = []
    waits = [0]

    def interrupted(running: list[Future[None]], timeout: float | None = None) -> object:
        waits[0] += 1
        if waits[0] == 1:
            raise KeyboardInterrupt
        return wait(running, timeout)

    monkeypatch.setattr("rechunk_exec.copy.drain.wait", interrupted)

    def do(piece: int, _: ScratchBuffers) -> None:
        threading.Event().wait(0.01)
        done.append(piece)

    with pytest.raises(KeyboardInterrupt):
        drain(range(10_000), do, scratches(2), helpers)
    at_rest = len(done)
    threading.Event().wait(0.05)
    assert len(done) == at_rest < 10_000


def test_many_drains_share_their_helpers() -> None:
    with ThreadPoolExecutor(2) as helpers, ThreadPoolExecutor(6) as callers:
        counts: list[list[int]] = [[] for _ in range(6)]
        runs = [
            callers.submit(drain, range(50), lambda piece, _, mine=mine: mine.append(piece), scratches(4), helpers)
            for mine in counts
        ]
        for run in runs:
            run.result(timeout=20)
    assert all(sorted(mine) == list(range(50)) for mine in counts)
