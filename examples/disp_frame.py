"""A displacement frame, rewritten from one epoch a chunk to whole-series shards.

    pip install '.[test]'
    python examples/disp_frame.py FOLDER

disp-xr makes a small synthetic frame of DISP-S1 granules, chains them into one displacement history and writes a zarr
store of maps: one epoch a chunk, as the granules are. Reading one pixel's history from that decodes every epoch. The
store is rewritten to shards that hold the whole history of a block of pixels, and the velocities that disp-xr fits to
it are the same to the last bit.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from pathlib import Path

import disp_xr
import numpy as np
import xarray as xr
import zarr
from disp_xr.tutorial import make_disp_stack

import rechunk_exec as rx

LAYER = ("time", "y", "x")
CHUNKS = {"time": -1, "y": 16, "x": 16}
"""What one read returns: the whole history of 16 x 16 pixels."""
SHARDS = {"time": -1, "y": 32, "x": 32}
"""What one stored object holds. A real frame has 389 epochs of 6898 x 9618 pixels; there, 64 and 256 do well."""


def write_maps(folder: Path) -> Path:
    """Make granules and write them as a store of maps: one epoch a chunk."""
    make_disp_stack(folder / "granules")
    history = disp_xr.chain(disp_xr.open_disp(folder / "granules"))
    disp_xr.to_zarr(history, folder / "maps.zarr", preset="maps")
    return folder / "maps.zarr"


def rewrite(maps: Path, series: Path, max_mem: str = "64MB") -> Mapping[str, rx.Rechunked]:
    """Rewrite a store's layers to whole-series shards, and its other arrays as they are; return the jobs, by name."""
    source = zarr.open_group(maps, mode="r")
    zarr.create_group(series, attributes=dict(source.attrs))
    jobs = {}
    for name, array in source.arrays():
        is_layer = getattr(array.metadata, "dimension_names", None) == LAYER
        jobs[name] = rx.rechunk(
            array,
            CHUNKS if is_layer else None,  # None keeps the chunks
            max_mem,
            series,
            array_name=name,
            target_shards=SHARDS if is_layer else None,
            progress=False,
        )
        jobs[name].execute()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zarr warns that its format 3 does not say what consolidated metadata are
        zarr.consolidate_metadata(series)
    return jobs


def velocity(store: Path) -> xr.Dataset:
    """Fit a velocity and its sigma to each pixel of a store."""
    fit: xr.Dataset = disp_xr.fit_velocity(disp_xr.open_zarr(store), "ols")
    return fit.compute()


def same_bits(one: xr.Dataset, other: xr.Dataset) -> bool:
    """Whether two fits have the same variables, and the same bits in each."""
    return set(one) == set(other) and all(
        np.ascontiguousarray(one[name]).tobytes() == np.ascontiguousarray(other[name]).tobytes() for name in one
    )


def main(folder: Path) -> None:
    """Do it all in a folder, and tell."""
    maps = write_maps(folder)
    jobs = rewrite(maps, folder / "series.zarr")
    print(jobs["displacement"].plan)
    for store in (maps, folder / "series.zarr"):
        layer = zarr.open_array(store / "displacement", mode="r")
        print(
            f"{store.name}: chunks {layer.chunks}, a pixel's history is in {layer.shape[0] // layer.chunks[0]} of them"
        )
    if not same_bits(velocity(maps), velocity(folder / "series.zarr")):
        sys.exit("the velocities differ")
    print("the velocities fitted to both stores are the same to the last bit")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "disp-frame"))
