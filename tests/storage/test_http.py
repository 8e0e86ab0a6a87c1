"""Sources on web servers, which give whole files or parts of them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import zarr

import rechunk_exec as rx
from rechunk_exec.executors import ProcessesExecutor
from tests.conftest import needed_module
from tests.jobs import assert_exact, make_array
from tests.storage.copies import EPOCHS, SERIES, SHAPE
from tests.values import position_values
from tests.webserver import Quiet, Ranged, served


@pytest.fixture(params=["whole files only", "ranges"])
def web(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    needed_module("aiohttp")
    handler = partial(Ranged if request.param == "ranges" else Quiet, directory=str(tmp_path / "www"))
    with served(handler) as address:
        yield address


TEXTS = position_values(SHAPE, object)


@pytest.mark.parametrize("layout", ["zstd", "blosc", "raw", "shards", "format 2", "texts in shards"])
def test_http_is_a_source(web: str, layout: str, tmp_path: Path, s3_processes: ProcessesExecutor) -> None:
    options: dict[str, dict[str, Any]] = {
        "zstd": {},
        "blosc": {"compressors": zarr.codecs.BloscCodec(cname="lz4")},
        "raw": {"compressors": None},
        "shards": {"shards": SHAPE},
        "format 2": {"zarr_format": 2},
        "texts in shards": {"shards": SHAPE, "dtype": zarr.dtype.VariableLengthUTF8(), "values": TEXTS},
    }
    source = make_array(tmp_path / "www/a.zarr", SHAPE, EPOCHS, **options[layout])
    for number, executor in enumerate(("threads", s3_processes) if layout in ("zstd", "shards") else ("threads",)):
        job = rx.rechunk(
            f"{web}/a.zarr", SERIES, "1MB", tmp_path / f"t{number}.zarr", executor=executor, progress=False
        )
        assert_exact(job.execute(), source)


def test_absent_chunks_of_http_are_fill_value(web: str, tmp_path: Path) -> None:
    source = zarr.create_array(tmp_path / "www/a.zarr", shape=SHAPE, chunks=EPOCHS, dtype="f4", fill_value=3)
    source[5] = position_values(SHAPE[1:], "f4")
    assert_exact(rx.rechunk(f"{web}/a.zarr", SERIES, "1MB", tmp_path / "t.zarr", progress=False).execute(), source)


def test_http_is_no_target(web: str, tmp_path: Path) -> None:
    source = make_array(tmp_path / "www/a.zarr", SHAPE, EPOCHS)
    for places in ({"target_store": f"{web}/b.zarr"}, {"target_store": tmp_path / "t", "temp_store": f"{web}/tmp"}):
        with pytest.raises(rx.StorageError, match="read only"):
            rx.rechunk(source, SERIES, "25kB", **places, progress=False)
