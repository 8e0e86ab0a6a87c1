"""Servers that take requests and never answer: a job that is to end ends, and says how to go on."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import zarr
from zarr.core.sync import sync

import rechunk_exec as rx
from tests.conftest import needed_module
from tests.executors.workers import PATIENCE_S, interrupted_when, started, wait_until
from tests.faults.proxy import running_proxy
from tests.jobs import assert_exact, make_array
from tests.s3 import Bucket
from tests.values import position_values
from tests.webserver import Ranged, served

SHAPE, CHUNKS, SERIES = (8, 12, 10), (1, 12, 10), (8, 4, 5)
LAYOUTS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "direct": ("f4", "f4", {}),
    "shards": ("f4", "f4", {"shards": (4, 12, 10)}),
    "zarr": (zarr.dtype.VariableLengthUTF8(), object, {}),
    "zarr shards": (zarr.dtype.VariableLengthUTF8(), object, {"shards": (4, 12, 10)}),
}


class Hanging(Ranged):
    """Serves files; but once it is to hang, what has ``silent`` in its path is not answered before the test ends."""

    silent = "/c/"
    hangs = threading.Event()
    over = threading.Event()
    begun: Path | None = None
    """It hangs as soon as this is there, too."""
    waiting = 0

    def send_head(self) -> Any:
        hangs = self.hangs.is_set() or (self.begun is not None and self.begun.exists())
        if self.silent in self.path and hangs:
            type(self).waiting += 1
            self.over.wait(PATIENCE_S * 3)
            return None
        return super().send_head()


@pytest.fixture
def web(tmp_path: Path) -> Iterator[str]:
    needed_module("aiohttp")
    Hanging.hangs.clear()
    Hanging.over.clear()
    Hanging.waiting, Hanging.begun, Hanging.silent = 0, None, "/c/"
    with served(partial(Hanging, directory=str(tmp_path / "www"))) as address:
        try:
            yield address
        finally:
            Hanging.over.set()


def make_source(folder: Path, layout: str) -> Any:
    dtype, values, options = LAYOUTS[layout]
    return make_array(folder / "www/a.zarr", SHAPE, CHUNKS, dtype, values=position_values(SHAPE, values), **options)


def planned(address: str, target: Path, **options: Any) -> rx.Rechunked:
    return rx.rechunk(f"{address}/a.zarr", SERIES, "1MB", target, executor="threads", progress=False, **options)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_interrupt_ends_a_job_whose_source_does_not_answer(layout: str, tmp_path: Path, web: str) -> None:
    # It waited for the client's time-out, of minutes, and then for other tries.
    source = make_source(tmp_path, layout)
    job = planned(web, tmp_path / "t")
    Hanging.hangs.set()
    with interrupted_when(lambda: Hanging.waiting > 0):
        try:
            job.execute()
        except KeyboardInterrupt as error:
            told = error.__notes__
            raise
    assert not Hanging.over.is_set()
    assert any("is unfinished" in note and "mode='resume'" in note for note in told)
    Hanging.hangs.clear()
    Hanging.over.set()
    assert_exact(planned(web, tmp_path / "t", mode="resume").execute(), source)


def test_requests_of_others_on_the_same_loop_go_on(tmp_path: Path, web: str) -> None:
    make_source(tmp_path, "direct")
    answer = threading.Event()

    async def asked() -> str:
        await asyncio.to_thread(answer.wait)
        return "answered"

    theirs: list[str] = []
    thread = threading.Thread(target=lambda: theirs.append(sync(asked())))
    thread.start()
    job = planned(web, tmp_path / "t")
    Hanging.hangs.set()
    with interrupted_when(lambda: Hanging.waiting > 0):
        job.execute()
    answer.set()
    thread.join()
    assert theirs == ["answered"]


PROGRAM = """
import sys
import rechunk_exec as rx
source, target, executor = sys.argv[1:]
rx.rechunk(source, (8, 4, 5), "1MB", target, executor=executor, progress=False, mode="resume").execute()
"""


@pytest.mark.parametrize("silent", ["/c/", "zarr.json"])
def test_a_plan_is_interrupted_whose_source_does_not_answer(silent: str, tmp_path: Path, web: str) -> None:
    # It looked at chunks on threads, for which it waited, and for their tries.
    make_source(tmp_path, "direct")
    Hanging.hangs.set()
    Hanging.silent = silent
    command = sys.executable, "-c", PROGRAM, f"{web}/a.zarr", tmp_path / "t", "serial"
    with started(*command, stderr=subprocess.PIPE) as program:
        wait_until(lambda: Hanging.waiting)
        program.send_signal(signal.SIGINT)
        errors = program.communicate(timeout=PATIENCE_S)[1]
    assert "KeyboardInterrupt" in errors
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize(
    "number, executor", [(signal.SIGINT, "threads"), (signal.SIGTERM, "threads"), (signal.SIGINT, "serial")]
)
def test_a_program_whose_source_does_not_answer_ends_when_it_is_asked_to(
    number: signal.Signals, executor: str, tmp_path: Path, web: str
) -> None:
    make_source(tmp_path, "direct")
    address = f"{web}/a.zarr"
    Hanging.begun = tmp_path / "t/zarr.json"  # a plan looks at chunks, too
    with started(sys.executable, "-c", PROGRAM, address, tmp_path / "t", executor, stderr=subprocess.PIPE) as program:
        wait_until(lambda: Hanging.waiting)
        program.send_signal(number)
        errors = program.communicate(timeout=PATIENCE_S)[1]
    assert "is unfinished" in errors
    assert "mode='resume'" in errors


WRITER = """
import sys, time
import rechunk_exec as rx
job = rx.rechunk(sys.argv[1], (12, 10, 10), "30kB", sys.argv[2], executor=sys.argv[3], progress=False)
job.execute(on_event=lambda event: time.sleep(0.5))
"""


@pytest.mark.parametrize(
    "number, executor", [(signal.SIGINT, "serial"), (signal.SIGTERM, "threads"), (signal.SIGINT, "processes")]
)
def test_a_program_whose_target_does_not_answer_ends_when_it_is_asked_to(
    number: signal.Signals, executor: str, s3: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Its journal and its claim were asked for again and again, each time until the client's time-out.
    source = make_array(tmp_path / "a.zarr", (12, 40, 30), (1, 40, 30))
    target = s3.url("t.zarr")
    with running_proxy(s3.address) as way:
        monkeypatch.setenv("AWS_ENDPOINT_URL", way.address)
        command = sys.executable, "-c", WRITER, tmp_path / "a.zarr", target, executor
        with started(*command, stderr=subprocess.PIPE) as running:
            wait_until(lambda: any("t.zarr/c/" in key for key in s3.contents()))
            way.kinds, way.rate = ("hang",), 1.0
            wait_until(lambda: way.done)
            running.send_signal(number)
            errors = running.communicate(timeout=PATIENCE_S)[1]
    assert "may be unfinished" in errors
    assert "mode='resume'" in errors
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.address)
    job = rx.rechunk(tmp_path / "a.zarr", (12, 10, 10), "30kB", target, progress=False, mode="resume")
    assert_exact(job.execute(), source)


FINALIZER = """
import sys, time
import rechunk_exec as rx
from rechunk_exec.storage import Journal
merge = Journal.merge
def slowly(journal):
    time.sleep(1)
    merge(journal)
Journal.merge = slowly
rx.finalize_jobs(sys.argv[1])
"""


LINES = """
import sys, time
import rechunk_exec as rx
from rechunk_exec.storage import Journal
begin = Journal.begin
def slowly(journal, record):
    begin(journal, record)
    time.sleep(1)
Journal.begin = slowly
rx.rechunk(sys.argv[2], (12, 10, 10), "30kB", sys.argv[3], progress=False).write_jobs(sys.argv[1])
"""


RUNNER = """
import sys, time
import rechunk_exec as rx
from rechunk_exec.batch import running
run_task, running.HOLD_S = running.run_task, 1000
def slowly(task):
    time.sleep(0.2)
    return run_task(task)
running.run_task = slowly
rx.run_job(sys.argv[1], range(1000))
"""
"""Results of lines are held until the end, where they are to be written."""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_lines_whose_target_does_not_answer_end_when_they_are_asked_to(
    number: signal.Signals, s3: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # To write their results they waited for the client's time-out, again and again; SIGTERM lost them at once.
    source = make_array(tmp_path / "a.zarr", (24, 40, 30), (1, 40, 30))
    lines, target = tmp_path / "jobs.jsonl", s3.url("t.zarr")
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.address)
    rx.rechunk(source, (1, 10, 10), "20kB", target, progress=False).write_jobs(lines)
    with running_proxy(s3.address) as way:
        monkeypatch.setenv("AWS_ENDPOINT_URL", way.address)
        with started(sys.executable, "-c", RUNNER, lines, stderr=subprocess.PIPE) as running:
            wait_until(lambda: any("t.zarr/c/8/" in key for key in s3.contents()))
            way.kinds, way.rate = ("hang",), 1.0
            wait_until(lambda: way.done)
            running.send_signal(number)
            errors = running.communicate(timeout=PATIENCE_S)[1]
    assert running.returncode == (-signal.SIGINT if number is signal.SIGINT else 128 + signal.SIGTERM)
    assert "KeyboardInterrupt" in errors or number is signal.SIGTERM
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.address)
    assert rx.status(target).state == "unfinished"
    rx.run_job(lines, range(1000))
    assert rx.finalize_jobs(lines).state == "finished"
    assert_exact(zarr.open_array(target, mode="r"), source)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("program", [FINALIZER, LINES])
def test_a_batch_command_whose_target_does_not_answer_ends_when_it_is_asked_to(
    program: str, number: signal.Signals, s3: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # To take its claim back it waited for the client's time-out, again and again.
    source = make_array(tmp_path / "a.zarr", (12, 40, 30), (1, 40, 30))
    lines, target = tmp_path / "jobs.jsonl", s3.url("t.zarr")
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.address)

    def planned() -> rx.Rechunked:
        return rx.rechunk(source, (12, 10, 10), "30kB", target, progress=False, mode="resume")

    if program == FINALIZER:
        planned().write_jobs(lines)
        rx.run_job(lines, range(len(lines.read_text().splitlines())))
    with running_proxy(s3.address) as way:
        monkeypatch.setenv("AWS_ENDPOINT_URL", way.address)
        command = sys.executable, "-c", program, lines, tmp_path / "a.zarr", target
        with started(*command, stderr=subprocess.PIPE) as running:
            wait_until(lambda: any("drivers/" in key for key in s3.contents()))
            wait_until(lambda: any(key.endswith("job.json") for key in s3.contents()))
            way.kinds, way.rate = ("hang",), 1.0
            wait_until(lambda: way.done)
            running.send_signal(number)
            errors = running.communicate(timeout=PATIENCE_S)[1]
    assert "KeyboardInterrupt" in errors or number is signal.SIGTERM
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.address)
    if program == FINALIZER:
        assert rx.finalize_jobs(lines).state == "finished"
    else:
        assert_exact(planned().execute(), source)
