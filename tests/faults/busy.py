"""A whole job by obstore before a server that fails now and then."""

from __future__ import annotations

from typing import Any

import zarr
from zarr.storage import StorePath

import rechunk_exec as rx
from tests.faults.proxy import Proxy
from tests.jobs import assert_exact, make_array


def copy_before_a_busy_server(
    store: Any,
    proxy: Proxy,
    kinds: tuple[str, ...],
    *,
    shape: tuple[int, ...],
    source_chunks: tuple[int, ...],
    chunks: tuple[int, ...],
) -> None:
    """Rewrite an array in a store whose client does not try again itself, by way of intermediates there."""
    source = make_array(store, shape, source_chunks, name="source")
    proxy.kinds, proxy.rate = kinds, 0.1
    target, temp = StorePath(store, "target"), StorePath(store, "temp")
    job = rx.rechunk(source, chunks, "30kB", target, temp_store=temp, progress=False)
    job.execute()
    proxy.rate = 0.0
    assert_exact(zarr.open_array(store, path="target", mode="r"), source)
    assert len(proxy.done) > 2
    assert job.report is not None
    assert job.report.store_retries > 0
