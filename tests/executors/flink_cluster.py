"""A real standalone cluster of Flink to test with, started by the scripts that PyFlink brings."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.conftest import needed_module
from tests.executors.workers import is_alive

_ROOT = Path(__file__).parents[2]
_UP_S = 120.0


@dataclass(frozen=True)
class Cluster:
    """A job manager and task managers on this machine."""

    address: str
    """Of its REST service."""
    folder: Path
    """Its configuration, its logs, and where its processes are noted."""
    home: Path
    """What PyFlink brings."""

    @property
    def environment(self) -> dict[str, str]:
        """Variables for its scripts and for programs that use it."""
        return os.environ | {
            "FLINK_CONF_DIR": str(self.folder / "conf"),
            "FLINK_LOG_DIR": str(self.folder / "log"),
            "FLINK_PID_DIR": str(self.folder / "pid"),
            # Workers are started with the first python on the path, and import this tree's package and tests.
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(_ROOT),
        }

    def script(self, *words: str, timeout_s: float = 120.0) -> subprocess.CompletedProcess[str]:
        """Run one of Flink's scripts to its end; its output goes to files, which its daemons keep open."""
        log = self.folder / "scripts.log"
        with log.open("a") as output:
            run = subprocess.run(
                [str(self.home / "bin" / words[0]), *words[1:]],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=timeout_s,
                check=False,
                text=True,
            )
        assert run.returncode == 0, log.read_text()
        return run

    def ask(self, question: str) -> dict[str, Any]:
        """Ask its REST service."""
        with urllib.request.urlopen(f"http://{self.address}/{question}", timeout=5) as answer:
            told: dict[str, Any] = json.load(answer)
        return told

    def wait_for_slots(self, slots: int) -> None:
        """Wait until so many slots are free."""
        deadline = time.monotonic() + _UP_S
        while True:
            try:
                if self.ask("overview")["slots-available"] == slots:
                    return
            except OSError:
                pass
            assert time.monotonic() < deadline, f"the cluster has no {slots} free slots; see {self.folder}/log"
            time.sleep(0.1)

    def processes(self) -> list[psutil.Process]:
        """All that have its folder in their environment, without this program and those that it has started."""
        ours = {psutil.Process(), *psutil.Process().children(recursive=True)}
        found = []
        for process in psutil.process_iter():
            try:
                mine = process.environ().get("FLINK_CONF_DIR", "").startswith(str(self.folder))
            except psutil.Error:
                continue
            if mine and process not in ours:
                found.append(process)
        return found

    def task_managers(self) -> list[psutil.Process]:
        """The Java processes that run tasks."""
        return [process for process in self.processes() if "TaskManagerRunner" in " ".join(process.cmdline())]


@contextmanager
def running_flink(folder: Path, task_managers: int = 2, slots: int = 2) -> Iterator[Cluster]:
    """A cluster that is gone, with all its processes, when the block ends."""
    pyflink = needed_module("pyflink")
    home = Path(str(pyflink.__file__)).parent
    rest, rpc = _free_ports(2)
    conf = folder / "conf"
    conf.mkdir(parents=True)
    (folder / "log").mkdir()  # the scripts do not make it
    for path in (home / "conf").glob("log4j*.properties"):
        shutil.copy(path, conf)
    given = (home / "conf" / "config.yaml").read_text()
    opens = next(line for line in given.splitlines() if line.strip().startswith("all: --add-exports"))
    options = f"{opens.strip()} {_SHORT_LIVED}"
    (conf / "config.yaml").write_text(_CONFIG.format(options=options, rest=rest, rpc=rpc, slots=slots))
    (conf / "masters").write_text(f"localhost:{rest}\n")
    (conf / "workers").write_text("localhost\n" * task_managers)
    cluster = Cluster(f"127.0.0.1:{rest}", folder, home)
    try:
        cluster.script("start-cluster.sh")
        cluster.wait_for_slots(task_managers * slots)
        yield cluster
    finally:
        for process in cluster.processes():  # as stop-cluster.sh does, which starts a Java process or two for that
            with suppress(psutil.NoSuchProcess):
                process.terminate()
        left = list(filter(is_alive, psutil.wait_procs(cluster.processes(), timeout=30)[1]))
        for process in left:
            process.kill()
    assert not left, f"processes were left: {left}"


@contextmanager
def held_gateway() -> Iterator[None]:
    """Hold the Java process that PyFlink starts in this program, and end it with the block; PyFlink lets go of it."""
    needed_module("pyflink")
    java_gateway: Any = needed_module("pyflink.java_gateway")
    launch = java_gateway.launch_gateway_server_process
    held: list[subprocess.Popen[bytes]] = []

    def launch_and_hold(*arguments: Any) -> subprocess.Popen[bytes]:
        held.append(launch(*arguments))
        return held[-1]

    java_gateway.launch_gateway_server_process = launch_and_hold
    try:
        yield
    finally:
        java_gateway.launch_gateway_server_process = launch
        gateway, java_gateway._gateway = java_gateway._gateway, None
        for process in held:
            gateway.shutdown()
            with process:
                process.terminate()


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


_SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Of Java: what it would spend on compiling a cluster's code well does not come back in some minutes."""
_CONFIG = """\
env:
  java:
    opts:
      {options}
jobmanager:
  bind-host: localhost
  rpc:
    address: localhost
    port: {rpc}
  memory:
    process:
      size: 1024m
taskmanager:
  bind-host: localhost
  host: localhost
  numberOfTaskSlots: {slots}
  memory:
    process:
      size: 1024m
    network:
      min: 32m
      max: 32m
rest:
  address: localhost
  bind-address: localhost
  port: {rest}
  bind-port: {rest}
# On a busy machine Java may take longer to start than the 10 s that it is given.
pekko:
  startup-timeout: 100 s
# A task manager that was killed is missed soon.
heartbeat:
  interval: 1000
  timeout: 10000
  rpc-failure-threshold: 1
"""
