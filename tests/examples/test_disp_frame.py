"""The example of a displacement frame: real granules' layout, real readers, real fits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import rechunk_exec as rx
from tests.conftest import Needs
from tests.examples.scripts import told_by
from tests.jobs import elements, stored_objects
from tests.values import same_bits

LAYERS = {
    "displacement",
    "short_wavelength_displacement",
    "temporal_coherence",
    "connected_component_labels",
    "recommended_mask",
    "shp_counts",
}

# rasterio's affine warns of what rioxarray does.
pytestmark = pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")


@pytest.fixture(scope="module")
def example() -> Any:
    from tests.conftest import needed_module

    needed_module("disp_xr")
    from examples import disp_frame

    return disp_frame


@pytest.fixture(scope="module")
def maps(example: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = example.write_maps(tmp_path_factory.mktemp("frame"))
    return path


def test_the_layers_become_whole_series_shards(example: Any, maps: Path, tmp_path: Path) -> None:
    jobs = example.rewrite(maps, tmp_path / "series.zarr")
    source, series = (zarr.open_group(path, mode="r") for path in (maps, tmp_path / "series.zarr"))
    assert set(jobs) == set(source.array_keys()) == set(series.array_keys())
    assert set(jobs) >= LAYERS | {"time", "reference_time", "x", "y", "spatial_ref"}
    assert dict(series.attrs) == dict(source.attrs)
    for name, array in source.arrays():
        copied: Any = series[name]
        assert same_bits(elements(copied), elements(array)), name
        assert rx.verify(array, copied).ok
        assert dict(copied.attrs) == dict(array.attrs)
        assert copied.metadata.dimension_names == array.metadata.dimension_names  # type: ignore[union-attr]
        assert np.array(copied.fill_value).tobytes() == np.array(array.fill_value).tobytes()
    for name in LAYERS:
        layer: Any = series[name]
        assert (layer.chunks, layer.shards) == ((11, 16, 16), (11, 32, 32))
        assert len(stored_objects(tmp_path / "series.zarr" / name)) <= 4
        assert len(jobs[name].stages) == 1
        assert jobs[name].plan.traffic == 2.0  # each epoch is decoded once


@pytest.mark.parametrize(
    "method, max_mem",
    [
        ("ols", "64MB"),
        ("whittle", "100kB"),
        pytest.param("ols", "100kB", marks=pytest.mark.long),
        pytest.param("whittle", "64MB", marks=pytest.mark.long),
    ],
)
def test_fitted_velocities_are_the_same_to_the_bit(
    needs: Needs, example: Any, maps: Path, tmp_path: Path, method: str, max_mem: str
) -> None:
    disp_xr = needs("disp_xr")
    example.rewrite(maps, tmp_path / "series.zarr", max_mem)
    before, after = (
        disp_xr.fit_velocity(disp_xr.open_zarr(path), method).compute() for path in (maps, tmp_path / "series.zarr")
    )
    assert np.isfinite(before.velocity.values).any()
    assert example.same_bits(before, after)
    assert before.velocity.attrs == after.velocity.attrs


def test_the_opened_frame_is_the_same(needs: Needs, example: Any, maps: Path, tmp_path: Path) -> None:
    xarray, disp_xr = needs("xarray"), needs("disp_xr")
    example.rewrite(maps, tmp_path / "series.zarr")
    before, after = (disp_xr.open_zarr(path).load() for path in (maps, tmp_path / "series.zarr"))
    xarray.testing.assert_identical(before, after)


def test_it_runs_as_a_script(needs: Needs, tmp_path: Path) -> None:
    needs("disp_xr")
    assert "the same to the last bit" in told_by("disp_frame.py", tmp_path / "frame")
    assert (tmp_path / "frame" / "series.zarr" / "displacement" / "zarr.json").exists()
