"""What only a real GPU can show. tests/gpu/run.sh runs this on a machine with one; elsewhere it is skipped."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import rechunk_exec as rx
from rechunk_exec.executors import GpuExecutor
from rechunk_exec.executors.devices import nvml_devices
from tests.values import Array, position_values, same_bits

pytestmark = pytest.mark.gpu

SHAPE = (24, 600, 500)
POOL_BYTES = 2_000_000_000


@pytest.fixture(scope="module")
def values() -> Array:
    """Smooth values with noise, which compress a little, as displacements do."""
    noise = position_values(SHAPE, "u2") % 64
    return (np.linspace(0, 1, SHAPE[0], dtype="f4")[:, None, None] + noise.astype("f4") / 4096).astype("f4")


@pytest.fixture(scope="module")
def pool() -> Iterator[GpuExecutor]:
    if not nvml_devices():
        if "gpu" in os.environ.get("RECHUNK_EXEC_REQUIRE", "").replace(",", " ").split():
            pytest.fail("RECHUNK_EXEC_REQUIRE asks for a GPU, and the driver tells of none")
        pytest.skip("needs an NVIDIA GPU")
    with GpuExecutor(device_max_mem=POOL_BYTES) as executor:
        yield executor


def pinned_device(number: int) -> tuple[int, str, int]:
    """In a worker: its process, what it is pinned to, and how many devices CUDA shows it."""
    import cupy

    return os.getpid(), os.environ["CUDA_VISIBLE_DEVICES"], int(cupy.cuda.runtime.getDeviceCount())


def pool_bytes(number: int) -> int:
    """In a worker: the size of its pool of device memory."""
    import rmm

    return int(rmm.mr.get_current_device_resource().pool_size())


def slope(epochs: Array, *, factor: float) -> Array:
    """A function of a user's, with arrays of the device."""
    import cupy

    result: Array = cupy.asnumpy(cupy.asarray(epochs) * np.float32(factor))
    return result


def test_each_worker_sees_its_device_only(pool: GpuExecutor) -> None:
    pool.run_on_workers(int)  # starts them all, and tries each codec both ways
    seen = set(pool.map(pinned_device, range(20 * len(pool.devices))))
    assert {pin for _, pin, _ in seen} == set(pool.devices)
    assert len(seen) == len(pool.devices)
    assert {count for _, _, count in seen} == {1}


def test_the_pool_of_device_memory_is_as_large_as_was_said(pool: GpuExecutor) -> None:
    assert set(pool.map(pool_bytes, range(4))) == {POOL_BYTES // 256 * 256}


CODECS: dict[str, dict[str, Any]] = {
    "zstd": {"compressors": zarr.codecs.ZstdCodec(level=3)},
    "gzip": {"compressors": zarr.codecs.GzipCodec(level=1)},
    "lz4": {"zarr_format": 2, "compressors": {"id": "lz4"}},
    "zlib": {"zarr_format": 2, "compressors": {"id": "zlib", "level": 1}},
}


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("max_mem", ["200MB", "10MB"])
def test_jobs_are_exact_and_any_cpu_reads_them(
    tmp_path: Path, pool: GpuExecutor, values: Array, codec: str, max_mem: str
) -> None:
    zarr.create_array(tmp_path / "source", data=values, chunks=(1, *SHAPE[1:]), **CODECS[codec])
    job = rx.rechunk(
        tmp_path / "source",
        (24, 32, 32),
        max_mem,
        tmp_path / "target",
        executor=pool,
        verify=True,
        progress=False,
        target_shards=None if "zarr_format" in CODECS[codec] else (24, 128, 128),
    )
    job.execute()
    assert job.report is not None
    last = len(job.stages) - 1
    assert {result.reader for result in job.report.results if result.stage == 0} == {"gpu"}
    assert {result.writer for result in job.report.results if result.stage == last} == {"gpu"}
    assert same_bits(np.asarray(zarr.open_array(tmp_path / "target", mode="r")[...]), values), "by zarr, on the CPU"
    back = rx.rechunk(tmp_path / "target", (1, *SHAPE[1:]), "200MB", tmp_path / "back", executor=pool, progress=False)
    back.execute()
    assert same_bits(np.asarray(zarr.open_array(tmp_path / "back", mode="r")[...]), values)


def test_tasks_of_ones_own_use_the_device(tmp_path: Path, pool: GpuExecutor, values: Array) -> None:
    zarr.create_array(tmp_path / "source", data=values, chunks=(24, 100, 100), compressors=zarr.codecs.ZstdCodec())
    target = zarr.create_array(tmp_path / "target", shape=SHAPE, chunks=(24, 100, 100), dtype="f4")
    tasks = [
        rx.ChunkTask(function=slope, reads=(out.at(tmp_path / "source"),), writes=(out,), options={"factor": 0.5})
        for out in rx.Chunk.each(target)
    ]
    rx.run_chunk_tasks(tasks, pool, progress=False)
    assert same_bits(np.asarray(target[...]), values * np.float32(0.5))


def test_how_long_it_takes_beside_the_cpu(tmp_path: Path, pool: GpuExecutor, values: Array) -> None:
    zarr.create_array(
        tmp_path / "source", data=values, chunks=(1, *SHAPE[1:]), compressors=zarr.codecs.ZstdCodec(level=3)
    )
    pool.run_on_workers(int)
    for name, executor in (("gpu", pool), ("threads", "threads")):
        began = time.perf_counter()
        rx.rechunk(
            tmp_path / "source", (24, 32, 32), "200MB", tmp_path / name, executor=executor, progress=False
        ).execute()
        print(f"{name}: {values.nbytes / 1e6:.0f} MB in {time.perf_counter() - began:.2f} s")
    for name in ("gpu", "threads"):
        assert same_bits(np.asarray(zarr.open_array(tmp_path / name, mode="r")[...]), values)
