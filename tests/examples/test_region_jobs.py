"""The example of region jobs: the same as numpy on the whole cube, whatever ran twice or was torn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import zarr

import rechunk_exec as rx
from examples import region_jobs
from tests.examples.scripts import told_by
from tests.jobs import stored_objects
from tests.values import Array, same_bits


def expected(folder: Path) -> Array:
    epochs, coherence = (np.asarray(zarr.open_array(folder / f"{name}.zarr")[...]) for name in ("epochs", "coherence"))
    wanted = np.zeros_like(epochs)
    wanted[1:] = epochs[1:] - epochs[:-1]
    return np.where(coherence < 0.3, np.float32("nan"), wanted)


def test_it_runs_as_a_script_and_is_exact(tmp_path: Path) -> None:
    assert "4 jobs read" in told_by("region_jobs.py", tmp_path, "-W", "error")
    series = zarr.open_array(tmp_path / "differences.zarr", mode="r")
    assert (series.chunks, series.shards) == ((24, 16, 16), (24, 64, 64))
    assert same_bits(np.asarray(series[...]), expected(tmp_path))
    assert len(stored_objects(tmp_path / "differences.zarr")) == 12

    # Lines run alone, in any order, over what is there or torn.
    objects = stored_objects(tmp_path / "differences.zarr")
    (tmp_path / "differences.zarr" / objects[0]).write_bytes(b"torn")
    (tmp_path / "differences.zarr" / objects[-1]).unlink()
    for index in (3, 0, 2, 1, 0):
        region_jobs.run_line(tmp_path / "jobs.jsonl", index)
    assert same_bits(np.asarray(series[...]), expected(tmp_path))


def test_its_jobs_are_whole_shards(tmp_path: Path) -> None:
    epochs, coherence = region_jobs.make_epochs(tmp_path)
    series = zarr.create_array(
        tmp_path / "series.zarr", shape=epochs.shape, chunks=(24, 16, 16), shards=(24, 64, 64), dtype="f4"
    )
    jobs = region_jobs.make_jobs(epochs, coherence, series)
    rx.check_aligned(jobs)
    written = np.zeros(epochs.shape, int)
    for job in jobs:
        written[job.writes[0].box.slices] += 1
    assert (written == 1).all()
