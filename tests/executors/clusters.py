"""Clusters of ``distributed`` to test with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.conftest import needed_module


def start_cluster(workers: int = 2, threads: int = 1, **options: Any) -> Any:
    """A client of a new cluster of processes on this machine."""
    distributed: Any = needed_module("distributed")
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
