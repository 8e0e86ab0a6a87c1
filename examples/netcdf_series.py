"""A NetCDF file of monthly sea surface temperatures, as a zarr store whose time series are one read each.

    pip install '.[test]'
    python examples/netcdf_series.py FOLDER

xarray reads the file (OSTIA, from the package iris-sample-data) and writes it to zarr as it is stored: one month a
chunk, with a fill value over land. Then each array that has a time axis is rewritten along time. xarray shows the same
Dataset before and after: values, missing cells, dimensions, coordinates and attributes.
"""

from __future__ import annotations

import sys
from pathlib import Path

import iris_sample_data
import xarray as xr
import zarr

import rechunk_exec as rx

FILE = Path(iris_sample_data.path, "ostia_monthly.nc")


def to_zarr(file: Path, store: Path) -> None:
    """Write a NetCDF file to zarr, one step of time a chunk."""
    with xr.open_dataset(file) as dataset:
        for variable in dataset.variables.values():
            if variable.dims[:1] == ("time",):
                variable.encoding["chunks"] = (1, *variable.shape[1:])
        dataset.to_zarr(store, consolidated=False)


def along_time(store: Path, series: Path, max_mem: str = "16MB") -> None:
    """Rewrite a store so that each read along time is one chunk; arrays without time are copied as they are."""
    source = zarr.open_group(store, mode="r")
    zarr.create_group(series, attributes=dict(source.attrs))
    for name, array in source.arrays():
        has_time = "time" in (getattr(array.metadata, "dimension_names", None) or ())
        chunks = {"time": -1, "latitude": 6, "longitude": 72} if array.ndim == 3 else {"time": -1} if has_time else None
        job = rx.rechunk(array, chunks, max_mem, series, array_name=name, verify=True, progress=False)
        target = job.execute()
        print(f"{name:32} {array.shape} chunks {array.chunks} -> {target.chunks}")


def main(folder: Path) -> None:
    """Do it all in a folder, and tell."""
    to_zarr(FILE, folder / "monthly.zarr")
    along_time(folder / "monthly.zarr", folder / "series.zarr")
    with (
        xr.open_zarr(folder / "monthly.zarr", consolidated=False) as before,
        xr.open_zarr(folder / "series.zarr", consolidated=False) as after,
    ):
        xr.testing.assert_identical(before.load(), after.load())
        missing = int(after.surface_temperature.isnull().sum())
    print(f"xarray shows the same Dataset before and after, {missing} missing cells included")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "netcdf-series"))
