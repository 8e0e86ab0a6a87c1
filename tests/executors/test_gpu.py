"""The pool of GPUs, on devices that are none: pinning, budgets, set-up, and whole jobs, equal to the bit."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import zarr

import rechunk_exec as rx
from rechunk_exec.errors import MissingExtraError, PlanError, RechunkError
from rechunk_exec.executors import GpuExecutor, resolve, worker_shape
from tests.executors.contract import SurvivorContract
from tests.executors.fakedevice import LOG, FakeGpuExecutor, LyingGpuExecutor, two_devices
from tests.executors.recording import Recording, make_stage
from tests.values import position_values, same_bits

SHAPE = (6, 90, 70)
VALUES = position_values(SHAPE, "f4")


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("log")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(LOG, str(folder))
        patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        yield folder


@pytest.fixture(scope="module")
def devices(log: Path) -> Iterator[FakeGpuExecutor]:
    """Two workers, for all tests: a pool serves job after job."""
    with FakeGpuExecutor(device_max_mem="2MB", rmm_pool_bytes="3MB") as executor:
        yield executor


@pytest.fixture
def pool(devices: FakeGpuExecutor, log: Path) -> Iterator[FakeGpuExecutor]:
    """The same, to which nothing has been told but what it was started with."""
    for path in [*log.glob("decode-*"), *log.glob("encode-*")]:
        path.unlink()
    copy = devices.task_function
    yield devices
    devices.task_function = copy


class TestGpu(SurvivorContract):
    """Three deaths of one task are shown by the pool of processes, which this is; one death, below."""

    long: ClassVar[tuple[str, ...]] = ("test_a_task_that_always_kills_its_worker",)

    @pytest.fixture
    def executor(self, pool: FakeGpuExecutor) -> FakeGpuExecutor:
        return pool


def told(log: Path, what: str) -> dict[str, str]:
    """By process: what its device has told of ``what``: its pin, and the bytes of its pool."""
    return {path.name.rpartition("-")[2]: path.read_text() for path in log.glob(f"{what}-*")}


def seen(number: int) -> tuple[int, str | None]:
    return os.getpid(), os.environ.get("CUDA_VISIBLE_DEVICES")


def source(folder: Path, **codec: Any) -> zarr.Array[Any]:
    return zarr.create_array(folder / "source", data=VALUES, chunks=(1, 90, 70), **codec)


def job(folder: Path, executor: Any, name: str = "target", **options: Any) -> rx.Rechunked:
    return rx.rechunk(
        zarr.open_array(folder / "source"),
        (6, 10, 10),
        "400kB",
        folder / name,
        target_shards=(6, 30, 20),
        executor=executor,
        progress=False,
        **options,
    )


def test_its_shape_and_its_note(pool: FakeGpuExecutor) -> None:
    shape = worker_shape(pool)
    assert (shape.workers, shape.tasks_per_worker, shape.elastic) == (2, 1, False)
    assert pool.devices == ("GPU-0", "GPU-1")
    assert pool.staged_copy([]).notes == ("2 devices, 2 MB of each, for zstd, lz4, deflate",)


def test_each_worker_has_a_device_of_its_own_before_anything_starts(pool: FakeGpuExecutor, log: Path) -> None:
    pool.run_on_workers(int)
    pins = dict(pool.map(seen, range(40)))
    assert set(pins.values()) == {"GPU-0", "GPU-1"}
    opened = told(log, "open")
    assert {pid: opened[str(pid)] for pid in pins} == {pid: f"{pin} 3000000" for pid, pin in pins.items()}
    assert "CUDA_VISIBLE_DEVICES" not in os.environ


def test_a_worker_that_takes_the_place_of_another_has_its_device(
    pool: FakeGpuExecutor, log: Path, tmp_path: Path
) -> None:
    pool.run_on_workers(int)
    before, opened = dict(pool.map(seen, range(40))), told(log, "open")
    pool.task_function = Recording(tmp_path, dies={(0, 0): 1})
    assert pool.staged_copy([make_stage(0, 4)]).retries == 1
    pool.run_on_workers(int)
    after = dict(pool.map(seen, range(40)))
    (dead,), (new,) = before.keys() - after.keys(), after.keys() - before.keys()
    assert after[new] == before[dead]
    assert told(log, "open") == opened | {str(new): f"{after[new]} 3000000"}


def test_the_devices_that_this_process_may_see(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    with FakeGpuExecutor() as one:
        assert (one.devices, one.device_max_mem) == (("1",), 80_000_000)
        assert [pin for _, pin in one.map(seen, [0])] == ["1"]
    with pytest.raises(PlanError, match="workers=2 for 1 devices"):
        FakeGpuExecutor(2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    with pytest.raises(RechunkError, match=r"needs an NVIDIA GPU .* got 2 devices and CUDA_VISIBLE_DEVICES=-1"):
        FakeGpuExecutor()


@pytest.mark.parametrize(
    "codec, max_mem, stages",
    [("zstd", "400kB", 1), ("zstd", "55kB", 2), ("gzip", "400kB", 1), ("gzip", "70kB", 2), ("lz4", "400kB", 1)],
)
def test_a_job_is_decoded_and_encoded_on_the_devices(
    tmp_path: Path, pool: FakeGpuExecutor, log: Path, codec: str, max_mem: str, stages: int
) -> None:
    codecs: Any = {
        "zstd": {"compressors": zarr.codecs.ZstdCodec()},
        "gzip": {"compressors": zarr.codecs.GzipCodec()},
        "lz4": {"zarr_format": 2, "compressors": {"id": "lz4"}},
    }
    source(tmp_path, **codecs[codec])
    shards = None if codec == "lz4" else (6, 30, 20)
    made = rx.rechunk(
        tmp_path / "source", (6, 10, 10), max_mem, tmp_path / "target", target_shards=shards, executor=pool,
        progress=False, verify=True,
    )  # fmt: skip
    made.execute()
    assert made.report is not None
    assert len(made.stages) == stages
    results = made.report.results
    assert {result.reader for result in results if result.stage == 0} == {"gpu"}
    assert {result.writer for result in results if result.stage == stages - 1} == {"gpu"}
    assert "2 devices" in " ".join(made.report.warnings)
    algorithm = "deflate" if codec == "gzip" else codec
    assert told(log, f"decode-{algorithm}")
    assert told(log, f"encode-{algorithm}")
    assert same_bits(np.asarray(zarr.open_array(tmp_path / "target")[...]), VALUES), "read by zarr alone"


def test_one_pool_for_job_after_job(tmp_path: Path, pool: FakeGpuExecutor, log: Path) -> None:
    source(tmp_path, compressors=zarr.codecs.ZstdCodec())
    pool.run_on_workers(int)  # else one may have done all before the other is there
    opened = told(log, "open")
    for name in ("one", "two"):
        made = job(tmp_path, pool, name)
        made.execute()
        assert same_bits(np.asarray(zarr.open_array(tmp_path / name)[...]), VALUES)
    tasks = [
        rx.ChunkTask(function=_same, reads=(out.at(tmp_path / "source"),), writes=(out,))
        for out in rx.Chunk.each(tmp_path / "two")
    ]
    rx.run_chunk_tasks(tasks, pool, progress=False)
    assert told(log, "open") == opened, "each worker opened its device once"


def test_chunks_beyond_the_budget_are_done_on_the_host_and_the_report_says_so(tmp_path: Path, log: Path) -> None:
    source(tmp_path, compressors=zarr.codecs.ZstdCodec())
    with FakeGpuExecutor(1, device_max_mem="20kB", codecs=["zstd"]) as small:  # a source chunk is 25 kB, twice
        made = job(tmp_path, small)
        made.execute()
    assert made.report is not None
    assert {(result.reader, result.writer) for result in made.report.results} == {("direct", "gpu")}
    assert same_bits(np.asarray(zarr.open_array(tmp_path / "target")[...]), VALUES)


def test_devices_that_are_broken_do_nothing(tmp_path: Path, log: Path) -> None:
    source(tmp_path, compressors=zarr.codecs.ZstdCodec())
    with LyingGpuExecutor(1) as broken, pytest.raises(RechunkError, match=r"run the function .*leave 'lz4' out"):
        job(tmp_path, broken).execute()
    with LyingGpuExecutor(1, codecs=["zstd"]) as whole:
        job(tmp_path, whole, mode="overwrite").execute()
    assert same_bits(np.asarray(zarr.open_array(tmp_path / "target")[...]), VALUES)


def test_wrong_options() -> None:
    with pytest.raises(PlanError, match="codecs must be some of zstd, lz4, deflate"):
        FakeGpuExecutor(codecs=["blosc"])
    with pytest.raises(PlanError, match="codecs must be some of"):
        FakeGpuExecutor(codecs="zstd")
    with pytest.raises(PlanError, match="rmm_pool_bytes must be at least device_max_mem; got 1 MB for 2 MB"):
        FakeGpuExecutor(device_max_mem="2MB", rmm_pool_bytes="1MB")
    with pytest.raises(PlanError, match="device_max_mem must be no more"):
        FakeGpuExecutor(device_max_mem="1GB")
    with pytest.raises(PlanError, match="device_max_mem must be a number of bytes"):
        FakeGpuExecutor(device_max_mem="much")
    with pytest.raises(TypeError, match="workers"):
        FakeGpuExecutor(True)


def test_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GpuExecutor, "find_devices", staticmethod(tuple))
    with pytest.raises(RechunkError, match=r"executor 'gpu' needs an NVIDIA GPU .*use executor='threads'"):
        resolve("gpu")


@pytest.mark.skipif(importlib.util.find_spec("cupy") is not None, reason="cupy is installed")
def test_without_the_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GpuExecutor, "find_devices", staticmethod(two_devices))
    with pytest.raises(MissingExtraError, match=r"cupy.*rechunk_exec\[gpu\]"):
        resolve("gpu")


def _same(elements: Any) -> Any:
    return elements
