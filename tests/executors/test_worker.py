"""One worker process: its threads, its signals, its end, and what is sent to it."""

from __future__ import annotations

import gc
import os
import pickle
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from rechunk_exec.executors import ProcessesExecutor, worker_shape
from rechunk_exec.executors.worker import WorkerProcess
from tests.conftest import Needs
from tests.executors import sent
from tests.executors.recording import Recording, make_stage
from tests.executors.workers import (
    FOREVER_S,
    PATIENCE_S,
    await_end,
    environment,
    started,
    wait_until,
    workers_of,
)
from tests.jobs import make_array


@pytest.fixture(scope="module")
def one() -> Iterator[ProcessesExecutor]:
    """A worker, for all tests that leave the pool open."""
    with ProcessesExecutor(1) as executor:
        yield executor


@pytest.fixture
def sent_bytes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the messages that workers are sent."""
    sizes: list[int] = []
    send = WorkerProcess._send

    def measured(worker: WorkerProcess, *messages: object) -> None:
        sizes.extend(len(pickle.dumps(message)) for message in messages)
        send(worker, *messages)

    monkeypatch.setattr(WorkerProcess, "_send", measured)
    return sizes


def test_threads_are_bounded_before_libraries_start_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("MKL_NUM_THREADS", "64")
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    before = dict(os.environ)
    with ProcessesExecutor(1) as bounded:
        share = str(worker_shape(bounded).cores_per_worker)
        names = ["OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS"]
        assert list(bounded.map(os.getenv, names)) == ["1", share, share, share]
    assert dict(os.environ) == before


def test_workers_ignore_the_interrupt_key(one: ProcessesExecutor) -> None:
    assert list(one.map(sent.disposition, [signal.SIGINT])) == [signal.SIG_IGN]
    for worker in workers_of(one):
        worker.send_signal(signal.SIGINT)
    assert list(one.map(abs, [-1])) == [1]


def test_garbage_is_collected_in_workers(one: ProcessesExecutor) -> None:
    assert list(one.map(sent.collects_garbage, [0])) == [True]


def test_forgotten_objects_are_forgotten_by_workers(one: ProcessesExecutor) -> None:
    handle = one.put(bytes(50_000_000))
    assert list(one.map(sent.length, [handle])) == [50_000_000]
    (worker,) = workers_of(one)
    big = worker.memory_info().rss
    del handle
    gc.collect()
    list(one.map(abs, [-1]))
    assert worker.memory_info().rss < big - 40_000_000


def test_little_is_sent_a_task(one: ProcessesExecutor, tmp_path: Path, sent_bytes: list[int]) -> None:
    one.task_function = Recording(tmp_path)
    one.staged_copy([make_stage(0, 100), make_stage(1, 14_000_000)][:1])
    assert max(sent_bytes) < 10_000
    assert sorted(sent_bytes)[len(sent_bytes) // 2] < 400, "most messages are one task's number"
    assert len(pickle.dumps(make_stage(1, 14_000_000))) < 2000


def test_a_shared_object_is_sent_once_a_worker(one: ProcessesExecutor, sent_bytes: list[int]) -> None:
    handle = one.put(bytes(100_000))
    for _ in range(2):
        assert list(one.map(sent.length, [handle] * 20)) == [100_000] * 20
    assert sum(size > 100_000 for size in sent_bytes) == 1


def test_a_dead_worker_whose_child_holds_its_pipe(one: ProcessesExecutor, tmp_path: Path) -> None:
    list(one.map(abs, [-1]))
    (dead,) = workers_of(one)
    flag = tmp_path / "flag"
    flag.touch()
    (pid,) = one.map(sent.fork_and_die_once, [flag])
    assert flag.exists(), "a child has waited in vain"
    flag.unlink()
    assert pid != dead.pid
    assert list(one.map(abs, [-1])) == [1]


SLOW = f"""
import os, signal, sys, threading, time
import rechunk_exec.executors as ex
from pathlib import Path

def slow(number):
    Path(sys.argv[1], str(os.getpid())).touch()
    time.sleep({FOREVER_S})

if __name__ == "__main__":
    with ex.ProcessesExecutor(int(sys.argv[2])) as executor:
        print("begun", flush=True)
        list(executor.map(slow, range(10)))
"""


@pytest.mark.parametrize(
    "how",
    [
        signal.SIGINT,
        pytest.param(
            signal.SIGTERM, marks=pytest.mark.long
        ),  # ends a program as the last one does, unless it catches it
        signal.SIGKILL,
    ],
)
def test_workers_end_with_their_parent(tmp_path: Path, how: signal.Signals) -> None:
    script = tmp_path / "script.py"
    script.write_text(SLOW)
    began = tmp_path / "began"
    began.mkdir()
    with started(sys.executable, script, began, 1, stderr=subprocess.PIPE) as driver:
        wait_until(lambda: list(began.iterdir()))
        workers = [psutil.Process(int(path.name)) for path in began.iterdir()]
        driver.send_signal(how)
        _, errors = driver.communicate(timeout=PATIENCE_S)
    assert driver.returncode == -how
    await_end(workers)
    assert errors.count("Traceback") == (how == signal.SIGINT)


@pytest.mark.parametrize(
    "delay_s",
    [0.02, pytest.param(0.1, marks=pytest.mark.long), 0.3, pytest.param(0.8, marks=pytest.mark.long)],
)
def test_the_interrupt_key_while_workers_start_and_work(tmp_path: Path, delay_s: float) -> None:
    script = tmp_path / "script.py"
    script.write_text(SLOW)
    began = tmp_path / "began"
    began.mkdir()
    with started(sys.executable, script, began, 2, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as driver:
        assert driver.stdout is not None
        driver.stdout.readline()
        time.sleep(delay_s)
        workers = psutil.Process(driver.pid).children(recursive=True)
        os.killpg(driver.pid, signal.SIGINT)
        _, errors = driver.communicate(timeout=PATIENCE_S)
    assert driver.returncode == -signal.SIGINT
    assert errors.count("Traceback") == 1, errors
    await_end(workers)


ENDINGS = """
import atexit
import ctypes
import os
import sys
import threading
import time
from pathlib import Path

import rechunk_exec as rx
from rechunk_exec.executors import ProcessesExecutor


atexit.register(Path(f"at_exit-{os.getpid()}").touch)
ctypes.CDLL(None).printf(b"by C\\n")  # which keeps it until a process ends in order


def print_and_dawdle():
    threading.Thread(target=finish_slowly).start()
    print("printed")
    print("complained", file=sys.stderr)


def finish_slowly():
    time.sleep(0.3)
    Path(f"finished-{os.getpid()}").touch()


def write_netcdf(number):
    global left
    import netCDF4
    left = netCDF4.Dataset("left.nc", "w")
    left.createDimension("x", 3)
    left.createVariable("v", "i4", ("x",))[:] = [1, 2, number]


if __name__ == "__main__":
    with ProcessesExecutor(1) as pool:
        rx.rechunk("source", (6, 1), "1MB", "target", executor=pool, verify=True, progress=False).execute()
        if "print" in sys.argv:
            pool.run_on_workers(print_and_dawdle)
        if "write" in sys.argv:
            list(pool.map(write_netcdf, [3]))
"""


def end_workers(folder: Path, *arguments: str, closed: str = "") -> subprocess.CompletedProcess[str]:
    """What a script prints that copies in a worker, and does more in it as its arguments say."""
    make_array(folder / "source", (6, 8), (1, 8))
    (folder / "script.py").write_text(ENDINGS)
    command = shlex.join([sys.executable, "script.py", *arguments])
    return subprocess.run(
        ["bash", "-c", f"unset PYTHONUNBUFFERED; exec {command} {closed}"],
        cwd=folder, env=environment(), capture_output=True, text=True, check=True,
    )  # fmt: skip


def traces(folder: Path) -> Counter[str]:
    """What processes have left as they ended, and how many of them."""
    return Counter(path.name.partition("-")[0] for path in folder.glob("*-*"))


def test_a_worker_that_has_copied_leaves_its_memory_to_the_system(tmp_path: Path) -> None:
    run = end_workers(tmp_path)
    assert run.stdout == "by C\n", "of the script itself"
    assert traces(tmp_path) == {"at_exit": 2}


def test_a_worker_that_ran_functions_of_others_ends_as_interpreters_do(tmp_path: Path, needs: Needs) -> None:
    netcdf = needs("netCDF4")
    run = end_workers(tmp_path, "print", "write")
    assert traces(tmp_path) == {"at_exit": 2, "finished": 1}
    assert sorted(run.stdout.splitlines()) == ["by C", "by C", "printed"]
    assert run.stderr == "complained\n"
    with netcdf.Dataset(tmp_path / "left.nc") as written:
        assert written["v"][:].tolist() == [1, 2, 3], "what is left in a file is written then"


@pytest.mark.parametrize(
    "closed, arguments",
    [
        ("1>&-", []),
        pytest.param("1>&-", ["print"], marks=pytest.mark.long),
        pytest.param("2>&-", [], marks=pytest.mark.long),
        ("2>&-", ["print"]),
    ],
    ids=str,
)
def test_a_worker_ends_well_where_nobody_reads_what_it_prints(
    tmp_path: Path, closed: str, arguments: list[str]
) -> None:
    end_workers(tmp_path, *arguments, closed=closed)
    assert traces(tmp_path)["at_exit"] == 2
