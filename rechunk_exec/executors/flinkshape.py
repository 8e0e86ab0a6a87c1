"""What the slots of a Flink cluster offer, asked of its REST service; PyFlink is not needed. Layer: executors.

The service: https://nightlies.apache.org/flink/flink-docs-stable/docs/ops/rest_api/
"""

from __future__ import annotations

import json
import re
import urllib.request
from typing import Any

from rechunk_exec.errors import PlanError, RechunkError
from rechunk_exec.executors.base import WorkerShape
from rechunk_exec.executors.machine import available_cores

_ANSWER_S = 10.0
"""How long a job manager may take to answer."""
_ADDRESS = re.compile(r"[^\s:/]+:\d{1,5}|\[[0-9a-fA-F:]+\]:\d{1,5}")


def check_address(address: object) -> None:
    """Raise unless ``address`` is ``host:port``.

    Examples
    --------
    >>> check_address("localhost:8081")
    >>> check_address("http://localhost:8081")
    Traceback (most recent call last):
    ValueError: address must be host:port of the job manager's REST service; got 'http://localhost:8081'
    """
    if not isinstance(address, str):
        raise TypeError(f"address must be a string, host:port of the job manager's REST service; got {address!r}")
    if not _ADDRESS.fullmatch(address):
        raise ValueError(f"address must be host:port of the job manager's REST service; got {address!r}")


def shape_at(address: str, workers: int | None) -> WorkerShape:
    """Return the shape of a cluster that answers at an address."""
    managers = _ask(address, "taskmanagers").get("taskmanagers", [])
    slots = sum(int(manager["slotsNumber"]) for manager in managers)
    if not slots:
        raise RechunkError(
            f"a cluster of Flink must have slots to run tasks; that at {address} has no task manager; start one "
            "(bin/taskmanager.sh start)"
        )
    if workers is not None and workers > slots:
        raise PlanError(f"workers must be at most the slots of the cluster, {slots} at {address}; got {workers}")
    cores = min(int(manager["hardware"]["cpuCores"]) // int(manager["slotsNumber"]) for manager in managers)
    return WorkerShape(workers=workers or slots, tasks_per_worker=1, cores_per_worker=max(1, cores), elastic=False)


def shape_here(workers: int, *, threads: bool) -> WorkerShape:
    """Return the shape of workers that are processes, each with its share of the cores, or threads of one."""
    if threads:
        return WorkerShape(workers=1, tasks_per_worker=workers, cores_per_worker=available_cores(), elastic=False)
    cores = max(1, available_cores() // workers)
    return WorkerShape(workers=workers, tasks_per_worker=1, cores_per_worker=cores, elastic=False)


def _ask(address: str, question: str) -> dict[str, Any]:
    try:
        with urllib.request.urlopen(f"http://{address}/{question}", timeout=_ANSWER_S) as answer:
            told: dict[str, Any] = json.load(answer)
    except (OSError, ValueError) as error:
        raise RechunkError(
            f"the job manager of a cluster of Flink must answer at its REST address; {address} did not: {error}; start "
            "the cluster (bin/start-cluster.sh), or give the host and port of its web page"
        ) from error
    return told
