"""Clusters of ``distributed`` to test with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.conftest import needed_module

QUIET = {
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "10s",
    "distributed.admin.tick.limit": "60s",
    "distributed.admin.system-monitor.interval": "60s",
}
"""How little the parts of a cluster look at themselves: by default each of them is at that for a twentieth of its time,
and clusters here are idle for most of theirs."""


def quieted() -> Any:
    """The package ``distributed``, of which new clusters look at themselves but now and then.

    What is set before it is imported takes all of its settings away in the end.
    """
    distributed: Any = needed_module("distributed")
    needed_module("dask.config").set(QUIET)
    return distributed


def start_cluster(workers: int = 2, threads: int = 1, **options: Any) -> Any:
    """A client of a new cluster of processes on this machine."""
    distributed = quieted()
    # A cluster gives up a worker that was killed and is not there again in 15 s, as on a machine with much to do.
    needed_module("dask.config").set({"distributed.deploy.lost-worker-timeout": "300s"})
    cluster = distributed.LocalCluster(
        n_workers=workers,
        threads_per_worker=threads,
        dashboard_address="127.0.0.1:0",
        **{"processes": True, **options},
    )
    return distributed.Client(cluster, set_as_default=False)


def end_cluster(client: Any) -> None:
    client.close()
    client.cluster.close()


@contextmanager
def running_cluster(workers: int = 2, threads: int = 1, **options: Any) -> Iterator[Any]:
    """A client of a cluster that ends with the block."""
    client = start_cluster(workers, threads, **options)
    try:
        yield client
    finally:
        end_cluster(client)


def running_in_this_process(workers: int = 1, threads: int = 1, **options: Any) -> Any:
    """The same of workers that are threads of this process, and talk over the wire all the same."""
    return running_cluster(workers, threads, processes=False, protocol="tcp", **options)
