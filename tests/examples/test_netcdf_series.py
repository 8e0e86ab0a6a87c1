"""The example of a NetCDF file: real values with missing cells, as xarray shows them before and after."""

from __future__ import annotations

from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from tests.conftest import Needs, needed_module
from tests.examples.scripts import told_by
from tests.jobs import elements
from tests.values import same_bits


@pytest.fixture(scope="module")
def example() -> Any:
    for name in ("xarray", "netCDF4", "iris_sample_data"):
        needed_module(name)
    from examples import netcdf_series

    return netcdf_series


@pytest.fixture(scope="module")
def made(example: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the example has done what it does, and in which a file has what it tells."""
    folder: Path = tmp_path_factory.mktemp("sea")
    with (folder / "told").open("w") as told, redirect_stdout(told):
        example.main(folder)
    return folder


@pytest.mark.parametrize("max_mem", ["16MB", "300kB"])
def test_xarray_shows_the_same_dataset(needs: Needs, example: Any, made: Path, tmp_path: Path, max_mem: str) -> None:
    xarray = needs("xarray")
    series = made / "series.zarr"
    if max_mem != "16MB":  # which the example gives
        series = tmp_path / "series.zarr"
        example.along_time(made / "monthly.zarr", series, max_mem)
    with (
        xarray.open_dataset(example.FILE) as file,
        xarray.open_zarr(made / "monthly.zarr", consolidated=False) as before,
        xarray.open_zarr(series, consolidated=False) as after,
    ):
        xarray.testing.assert_identical(before.load(), after.load())
        assert after.surface_temperature.dims == ("time", "latitude", "longitude")
        assert after.surface_temperature.attrs == file.surface_temperature.attrs
        values = after.surface_temperature.values
        assert same_bits(values, file.surface_temperature.values)
        assert 0 < np.isnan(values).sum() < values.size  # there is land, and there is sea
        xarray.testing.assert_equal(after, file.load())


def test_stored_values_are_copied_and_not_interpreted(made: Path) -> None:
    before, after = (zarr.open_group(made / name, mode="r") for name in ("monthly.zarr", "series.zarr"))
    for name, array in before.arrays():
        copied: Any = after[name]
        assert same_bits(elements(copied), elements(array)), name
        assert dict(copied.attrs) == dict(array.attrs)
    temperature: Any = after["surface_temperature"]
    assert temperature.chunks == (54, 6, 72)
    assert (elements(temperature) == np.float32(1e20)).any()  # the fill value over land, as in the file


def test_what_it_tells(made: Path) -> None:
    assert "the same Dataset before and after" in (made / "told").read_text()


@pytest.mark.long
def test_it_runs_as_a_script(example: Any, tmp_path: Path) -> None:
    assert "the same Dataset before and after" in told_by("netcdf_series.py", tmp_path / "sea")
