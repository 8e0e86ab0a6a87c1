"""The promise of memory, measured: what a fresh process holds over its idle footprint while it runs one job.

Each job runs in a process of its own, which first imports what it needs and runs a tiny job of the same kind: what it
holds then is idle. The kernel's high-water mark (VmHWM) over that is compared with what the plan predicted and with
``max_mem``, each plus the noise of allocators. Values are random, so that encoded chunks are as large as raw ones.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr
from zarr.codecs import BloscCodec

from rechunk_exec.results import OVERRUN_BYTES

ROOT = Path(__file__).parent.parent
SHAPE = (32, 1024, 1024)
"""128 MiB of float32."""

pytestmark = [
    pytest.mark.memory,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the high-water mark is Linux's"),
]

SOURCES: Mapping[str, Mapping[str, Any]] = {
    "blocks": {"chunks": (1, 512, 512)},
    "epochs": {"chunks": (1, 1024, 1024)},
    "ragged": {"chunks": (3, 300, 300)},
    "slabs": {"chunks": (16, 1024, 1024)},
    "blosc": {"chunks": (1, 1024, 1024), "compressors": BloscCodec(cname="zstd", clevel=3, shuffle="bitshuffle")},
    "raw": {"chunks": (1, 1024, 1024), "compressors": None},
    "shards": {"chunks": (1, 128, 128), "shards": (4, 512, 512)},
    "v2 F": {"chunks": (1, 1024, 512), "zarr_format": 2, "compressors": numcodecs.Zstd(1), "order": "F"},
    "filter": {"chunks": (1, 512, 512), "zarr_format": 2, "filters": [numcodecs.Delta("f4")]},
}


@dataclass(frozen=True, kw_only=True)
class Job:
    """One job to measure."""

    source: str
    target: tuple[int, ...]
    shards: tuple[int, ...] | None = None
    max_mem: int
    executor: str = "threads"
    in_memory: bool = False
    """Whether the target is in the process' memory too, which is then not counted."""
    zarr_format: int | None = None
    compressor: bool = True
    verify: bool = False


MB = 1_000_000
SERIES, SHARDS = (32, 64, 64), (32, 256, 256)
JOBS = {
    "direct, few tasks": Job(source="blocks", target=SERIES, shards=SHARDS, max_mem=80 * MB),
    "direct, large chunks": Job(source="blocks", target=(32, 512, 512), max_mem=150 * MB),
    "direct, ragged": Job(source="ragged", target=(32, 70, 70), shards=(32, 280, 280), max_mem=80 * MB),
    "staged": Job(source="epochs", target=SERIES, shards=SHARDS, max_mem=40 * MB),
    "staged, serial": Job(source="epochs", target=SERIES, shards=SHARDS, max_mem=30 * MB, executor="serial"),
    "blosc": Job(source="blosc", target=SERIES, shards=SHARDS, max_mem=60 * MB),
    "raw": Job(source="raw", target=SERIES, max_mem=40 * MB, compressor=False),
    "shards to shards": Job(source="shards", target=SERIES, shards=SHARDS, max_mem=60 * MB),
    "format 2 to 3": Job(source="v2 F", target=SERIES, shards=SHARDS, max_mem=60 * MB, zarr_format=3),
    "through zarr": Job(source="filter", target=(32, 128, 128), max_mem=60 * MB),
    "processes": Job(source="blocks", target=SERIES, shards=SHARDS, max_mem=60 * MB, executor="processes"),
    "processes, staged": Job(source="epochs", target=SERIES, shards=SHARDS, max_mem=30 * MB, executor="processes"),
    "verified": Job(source="slabs", target=SERIES, shards=SHARDS, max_mem=220 * MB, verify=True),
}


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What a job took, in bytes, but for the stages."""

    predicted: int
    measured: int
    told: int
    """The largest peak that a task reported, times the tasks at once."""
    stages: int


def run_job(job: Job, source: Path, folder: Path) -> Measured:
    """Run a job in this process, a fresh one, and measure it."""
    import rechunk_exec as rx

    def plan(array: zarr.Array[Any], name: str, max_mem: int) -> rx.Rechunked:
        options: dict[str, Any] = {} if job.compressor else {"target_options": {"compressors": None}}
        return rx.rechunk(
            array,
            job.target,
            max_mem,
            folder / name,
            target_shards=job.shards,
            executor=job.executor,
            zarr_format=job.zarr_format,  # type: ignore[arg-type]
            verify=job.verify,
            progress=False,
            **options,
        )

    array = zarr.open_array(source, mode="r")
    tiny = zarr.open_array(source.with_name(f"{source.name}-tiny"), mode="r")
    plan(tiny, "tiny", 400 * MB).execute()
    measured = plan(array, "target", job.max_mem)
    idle = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    measured.execute()
    highest = _status("VmHWM")
    assert measured.report is not None
    at_once = {stage.number: stage.plan.tasks_per_worker for stage in measured.stages}
    told = max(result.peak_bytes * at_once[result.stage] for result in measured.report.results)
    return Measured(predicted=measured.plan.peak_bytes, measured=highest - idle, told=told, stages=len(measured.stages))


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def run_fresh(job: Job, source: Path, folder: Path) -> Measured:
    """Run a job in a fresh process and return what it measured."""
    arguments = json.dumps({"job": asdict(job), "source": str(source), "folder": str(folder)})
    done = subprocess.run(
        [sys.executable, __file__, arguments],
        check=False,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return Measured(**json.loads(done.stdout))


def make_source(path: Path, options: Mapping[str, Any]) -> None:
    random = np.random.default_rng(0)
    tiny = (SHAPE[0], 64, 64)
    for place, shape in ((path, SHAPE), (path.with_name(f"{path.name}-tiny"), tiny)):
        array = zarr.create_array(place, shape=shape, dtype="f4", **options)
        step = options.get("shards", options["chunks"])[0]
        for start in range(0, shape[0], step):
            stop = min(start + step, shape[0])
            array[start:stop] = random.random((stop - start, *shape[1:]), dtype="f4")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("sources")

    def made(name: str) -> Path:
        if not (folder / name).exists():
            make_source(folder / name, SOURCES[name])
        return folder / name

    return made


@pytest.mark.parametrize("name", JOBS)
def test_a_job_holds_no_more_than_it_says(tmp_path: Path, source: Callable[[str], Path], name: str) -> None:
    job = JOBS[name]
    found = run_fresh(job, source(job.source), tmp_path)
    assert found.predicted <= job.max_mem
    held = found.told if job.executor == "processes" else found.measured
    assert held <= found.predicted + OVERRUN_BYTES, found
    assert held <= job.max_mem + OVERRUN_BYTES, found


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    lists: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in given["job"].items()
    }
    print(json.dumps(asdict(run_job(Job(**lists), Path(given["source"]), Path(given["folder"])))))
