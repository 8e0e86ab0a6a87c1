"""Jobs that rechunk epochs to series, for tests of stores."""

from __future__ import annotations

from typing import Any

import zarr

import rechunk_exec as rx
from rechunk_exec.storage import array_ref, open_array
from tests.jobs import QUICK_STAGES, assert_exact, assert_kept_promises

SHAPE = (12, 20, 30)
EPOCHS = (1, 20, 30)
SERIES = (12, 10, 10)
THIRDS = (4, 20, 30)
TWO_STAGES = "18kB"
"""A budget that takes an intermediate."""


def run(source: Any, target: Any, *, stages: int = 1, **options: Any) -> rx.Rechunked:
    """Rechunk epochs to series, and check what came of it."""
    there = array_ref(source.store_path if isinstance(source, zarr.Array) else source)
    chunks = SERIES if stages == 2 else THIRDS
    if stages == 2:
        options = {"cost_model": QUICK_STAGES, **options}
    job = rx.rechunk(source, chunks, TWO_STAGES if stages == 2 else "10MB", target, progress=False, **options)
    assert len(job.stages) == stages
    made = job.execute()
    assert_exact(made, open_array(there, read_only=True).array)
    assert_kept_promises(job)
    return job
