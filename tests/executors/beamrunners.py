"""Beam's runners to test with, each a real one."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from rechunk_exec.executors import BeamExecutor
from tests.conftest import is_required

ROOT = Path(__file__).parents[2]
_VERSION = "2.77.0"

Make = Callable[..., BeamExecutor]
"""Makes an executor; further flags are added to the runner's."""


def prism_binary() -> str:
    """Where Prism is. Building it takes minutes, so that is done where it is required only."""
    folder = os.environ.get("RECHUNK_EXEC_PRISM") or Path.home() / ".cache" / "rechunk_exec"
    binary = Path(folder, f"prism-v{_VERSION}")
    if not binary.exists():
        if not is_required("prism"):
            pytest.skip("Prism is not built; .ci/prism does that")
        built = subprocess.run([ROOT / ".ci" / "prism"], check=False, capture_output=True, text=True)
        if built.returncode:
            pytest.fail(f"RECHUNK_EXEC_REQUIRE asks for prism, which cannot be built: {built.stderr}")
    return str(binary)


@contextmanager
def prism_service() -> Iterator[str]:
    """The address of Prism as a job service in a process of its own."""
    service, port = _started(5)
    try:
        yield f"localhost:{port}"
    finally:
        service.kill()
        service.wait()


def _started(tries: int) -> tuple[subprocess.Popen[bytes], int]:
    """Start Prism as a job service, at a port that is free; which may be taken by somebody else before it is there."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    service = subprocess.Popen(
        [prism_binary(), f"-job_port={port}", "-serve_http=false"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    while service.poll() is None:
        if _listens(service, port):
            return service, port
        time.sleep(0.05)
    assert tries > 1, "Prism has ended"
    return _started(tries - 1)


def _listens(service: subprocess.Popen[bytes], port: int) -> bool:
    """Whether a process, and no other one, answers at a port."""
    try:
        connections = psutil.Process(service.pid).net_connections("tcp")
    except psutil.Error:  # it is at its end
        return False
    return any(one.status == psutil.CONN_LISTEN and one.laddr.port == port for one in connections)


def in_memory(*flags: str) -> BeamExecutor:
    return BeamExecutor(options=list(flags))


def in_processes(*flags: str) -> BeamExecutor:
    return BeamExecutor("DirectRunner", ["--direct_running_mode=multi_processing", "--direct_num_workers=2", *flags])


def on_prism(*flags: str) -> BeamExecutor:
    return BeamExecutor("PrismRunner", [f"--prism_location={prism_binary()}", *flags])


@contextmanager
def runner_named(name: str) -> Iterator[Make]:
    """What makes executors of a runner, which is there while the context lasts."""
    if name != "service":
        yield {"memory": in_memory, "processes": in_processes, "prism": on_prism}[name]
        return
    with prism_service() as address:
        service = [f"--job_endpoint={address}", "--environment_type=LOOPBACK"]
        yield lambda *flags: BeamExecutor("PortableRunner", [*service, *flags])
