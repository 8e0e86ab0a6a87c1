"""Build a cube by region: mask and difference an epoch cube on the way to its series shards, in one pass.

    pip install .
    python examples/region_jobs.py FOLDER

A cube of epochs, one epoch a chunk, becomes a cube of differences from epoch to epoch, whole series in each shard, with
pixels masked where they are not coherent. Doing one after the other would write and read the cube twice more. Here
each job is a region of whole shards: it reads the region of the epochs and of the mask, does both, and overwrites its
shards. It reads none of what it writes, so a job that failed, or ran twice, is simply run again.

The jobs are also written as lines of JSON, one a job, for schedulers of independent jobs: `run_line` runs one.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

import rechunk_exec as rx

SHAPE = (24, 200, 180)
"""Epochs, rows and columns. A real frame is 389 x 6898 x 9618; there, shards of 256 pixels a side do well."""
CHUNK, SHARD = 16, 64

Floats = NDArray[np.float32]


def masked_differences(epochs: Floats, coherence: Floats, *, threshold: float) -> Floats:
    """Difference each epoch to the one before, 0 for the first; NaN where a pixel is not coherent."""
    differences = np.diff(epochs, axis=0, prepend=epochs[:1])
    differences[:, coherence < threshold] = np.nan
    return differences


def make_epochs(folder: Path) -> tuple[zarr.Array[Any], zarr.Array[Any]]:
    """Make a cube of epochs and a map of coherence."""
    random = np.random.default_rng(0)
    steps = random.normal(scale=0.01, size=SHAPE).astype("f4")
    epochs = zarr.create_array(folder / "epochs.zarr", data=np.cumsum(steps, axis=0), chunks=(1, *SHAPE[1:]))
    coherence = zarr.create_array(folder / "coherence.zarr", data=random.random(SHAPE[1:], "f4"), chunks=(64, 64))
    return epochs, coherence


def make_jobs(epochs: zarr.Array[Any], coherence: zarr.Array[Any], series: zarr.Array[Any]) -> list[rx.ChunkTask]:
    """Return a job for each region of 2 x 2 shards of the series."""
    jobs = []
    for region in rx.Chunk.each(series, (SHAPE[0], 2 * SHARD, 2 * SHARD)):
        pixels = rx.Chunk.of(coherence, region.start[1:], region.stop[1:])
        jobs.append(
            rx.ChunkTask(
                function=masked_differences,
                reads=(region.at(epochs), pixels),
                writes=(region,),
                options={"threshold": 0.3},
            )
        )
    return jobs


def run_line(jobs: Path, index: int) -> rx.ChunkResult:
    """Run one line of a file of jobs, such as that of $SLURM_ARRAY_TASK_ID; only this script's function is run."""
    line = jobs.read_text().splitlines()[index]
    return rx.chunk_task(rx.ChunkTask.from_json(line, functions=[masked_differences]))


def main(folder: Path) -> None:
    """Do it all in a folder, and tell."""
    epochs, coherence = make_epochs(folder)
    series = zarr.create_array(
        folder / "differences.zarr",
        shape=SHAPE,
        chunks=(SHAPE[0], CHUNK, CHUNK),
        shards=(SHAPE[0], SHARD, SHARD),
        dtype="f4",
        fill_value=np.nan,
    )
    jobs = make_jobs(epochs, coherence, series)
    (folder / "jobs.jsonl").write_text("".join(f"{job.to_json()}\n" for job in jobs))
    results = rx.run_chunk_tasks(jobs, executor="processes")
    run_line(folder / "jobs.jsonl", 1)  # once more: it overwrites its shards
    written = sum(result.bytes_written for result in results)
    read = sum(result.bytes_read for result in results)
    print(f"{len(results)} jobs read {read / 1e6:.1f} MB and wrote {written / 1e6:.1f} MB to {series.store_path}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "region-jobs"))
