"""Ctrl-C and SIGTERM at moments at which Python loses what is raised, or would break an import off."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rechunk_exec as rx
from rechunk_exec.endrequests import EndRequests, Terminated
from rechunk_exec.results import Event
from tests.jobs import ZarrArray, assert_exact, make_array

ROOT = Path(__file__).parent.parent
REQUESTS = [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)]


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Start from Python's own handlers, and see that they are there in the end."""
    before = [signal.getsignal(number) for number, _ in REQUESTS]
    assert before == [signal.default_int_handler, signal.SIG_DFL]
    yield
    assert [signal.getsignal(number) for number, _ in REQUESTS] == before


@pytest.fixture
def lost(monkeypatch: pytest.MonkeyPatch) -> list[type[BaseException]]:
    """What was raised where Python can only print it."""
    seen: list[type[BaseException]] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda told: seen.append(told.exc_type))
    return seen


class Thing:
    """Something that weak references can watch."""


def ask_in_a_callback(number: signal.Signals) -> None:
    """Ask for the end while the callback of a weak reference runs: what is raised there is lost."""
    thing = Thing()
    watch = weakref.ref(thing, lambda _: signal.raise_signal(number))
    del thing
    gc.collect()
    assert watch() is None


def ask_in_an_import(number: signal.Signals) -> None:
    """Ask for the end while Python's own code is at an import."""

    class Finder:
        def find_spec(self, *_: object) -> None:
            handler = signal.getsignal(number)
            assert callable(handler)
            handler(number, sys._getframe(1))

    finder: Any = Finder()
    sys.meta_path.insert(0, finder)
    try:
        with pytest.raises(ModuleNotFoundError):
            __import__("no_such_module_anywhere")
    finally:
        sys.meta_path.remove(finder)


@pytest.fixture
def source(tmp_path: Path) -> ZarrArray:
    return make_array(tmp_path / "source", (24, 24, 20), (1, 24, 20))


def plan(source: ZarrArray, target: Path, executor: object, **options: Any) -> rx.Rechunked:
    job = rx.rechunk(source, (24, 4, 4), 6000, target, executor=executor, progress=False, **options)
    assert len(job.stages) == 2
    return job


@pytest.mark.parametrize(
    "executor, number, error",
    [
        ("serial", *REQUESTS[1]),
        ("threads", *REQUESTS[0]),
        ("processes", *REQUESTS[0]),
        *(
            pytest.param(executor, *request, marks=pytest.mark.long)
            for executor, request in [("serial", REQUESTS[0]), ("threads", REQUESTS[1]), ("processes", REQUESTS[1])]
        ),
    ],
)
def test_a_request_that_was_lost_ends_the_job_at_the_next_event(
    executor: str,
    number: signal.Signals,
    error: type[BaseException],
    tmp_path: Path,
    source: ZarrArray,
    lost: list[type[BaseException]],
) -> None:
    events: list[Event] = []

    def listen(event: Event) -> None:
        events.append(event)
        if len(events) == 4:
            ask_in_a_callback(number)
            assert lost == [error]

    job = plan(source, tmp_path / "target", executor)
    with pytest.raises(error) as raised:
        job.execute(on_event=listen)
    assert len(events) == 4
    assert "the same call with mode='resume' goes on from here" in raised.value.__notes__[0]
    status = rx.status(tmp_path / "target")
    assert (status.state, status.done) == ("unfinished", 3)
    again = plan(source, tmp_path / "target", "serial", mode="resume")
    assert_exact(again.execute(), source)
    assert again.report is not None
    assert again.report.tasks == job.plan.tasks - 3


def test_an_import_is_not_broken_off_and_the_job_ends_all_the_same(tmp_path: Path, source: ZarrArray) -> None:
    events: list[Event] = []

    def listen(event: Event) -> None:
        events.append(event)
        ask_in_an_import(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        plan(source, tmp_path / "target", "serial").execute(on_event=listen)
    assert [event.kind for event in events] == ["start"], "no task was begun"


def test_a_second_request_is_raised_in_an_import_too() -> None:
    came_through: list[int] = []

    def ask_twice() -> None:
        with EndRequests():
            for _ in range(2):
                ask_in_an_import(signal.SIGINT)
                came_through.append(1)

    with pytest.raises(KeyboardInterrupt):
        ask_twice()
    assert came_through == [1]


def test_a_request_that_is_not_lost_is_raised_where_it_comes() -> None:
    def ask(number: signal.Signals) -> None:
        with EndRequests():
            signal.raise_signal(number)
            pytest.fail("the program went on")

    for number, error in REQUESTS:
        with pytest.raises(error):
            ask(number)


def test_a_request_that_was_lost_at_the_very_end_is_raised_there(lost: list[type[BaseException]]) -> None:
    with pytest.raises(Terminated) as raised, EndRequests():
        ask_in_a_callback(signal.SIGTERM)
    assert raised.value.code == 128 + signal.SIGTERM
    assert raised.value.__notes__ == ["the job was done before this was seen"]
    assert lost == [Terminated]


def test_an_error_is_not_hidden_by_a_request_that_was_lost(lost: list[type[BaseException]]) -> None:
    def fail() -> None:
        with EndRequests():
            ask_in_a_callback(signal.SIGINT)
            raise LookupError

    with pytest.raises(LookupError):
        fail()
    assert lost == [KeyboardInterrupt]


def test_handlers_of_the_program_are_left_alone() -> None:
    came: list[int] = []
    before = [signal.signal(number, lambda number, _: came.append(number)) for number, _ in REQUESTS]
    try:
        with EndRequests() as requests:
            for number, _ in REQUESTS:
                signal.raise_signal(number)
            requests.heed()
    finally:
        for (number, _), handler in zip(REQUESTS, before, strict=True):
            signal.signal(number, handler)
    assert came == [signal.SIGINT, signal.SIGTERM]


def test_another_thread_takes_none() -> None:
    handlers: list[object] = []

    def look() -> None:
        with EndRequests():
            handlers.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert handlers == [signal.default_int_handler]


_JOB = """
import sys
import numpy as np, zarr
import rechunk_exec as rx
from rechunk_exec.executors import ProcessesExecutor, resolve

if __name__ == "__main__":
    folder, name = sys.argv[1:]
    source = zarr.create_array(folder + "/source", shape=(24, 24, 20), chunks=(1, 24, 20), dtype="f4")
    source[...] = np.arange(source.size).reshape(source.shape)
    executor, rechunk = ProcessesExecutor(1) if name == "processes" else resolve(name), rx.rechunk
    before = set(sys.modules)
    rechunk(source, (24, 4, 4), 6000, folder + "/target", executor=executor, progress=False).execute()
    print(sorted(sys.modules.keys() - before))
"""


@pytest.mark.parametrize("name", [pytest.param("serial", marks=pytest.mark.long), "threads", "processes"])
def test_a_job_imports_nothing_that_was_not_imported_with_the_function(name: str, tmp_path: Path) -> None:
    # A Ctrl-C that breaks an import off may leave the import lock held, on which all threads wait.
    (tmp_path / "job.py").write_text(_JOB)
    run = subprocess.run(
        [sys.executable, tmp_path / "job.py", tmp_path, name],
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert run.stdout == "[]\n"
