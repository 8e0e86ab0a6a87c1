"""The main job as each peer does it: what runs in the peers' environments. Standard library and the peer only.

    python -m tests.benchmarks.peer_jobs JOB REQUEST      (started by tests/benchmarks/peers.py)

``REQUEST`` is the JSON of :class:`Request`. Each job is a generator (:mod:`tests.benchmarks.contender`): what comes
before its first ``yield`` is not timed: imports, and pools of processes.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.benchmarks.contender import compete

BLOSC = {"cname": "zstd", "clevel": 3, "shuffle": "bitshuffle", "typesize": 4, "blocksize": 0}
NAMES = ("time", "y", "x")
Box = tuple[slice, slice, slice]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to copy, and within what."""

    source: str
    target: str
    temp: str
    """A folder for what is needed in between; it is there and empty."""
    chunk: tuple[int, int, int]
    shard: tuple[int, int, int]
    max_mem: int
    """Bytes of one worker."""
    cores: int
    options: dict[str, Any] = field(default_factory=dict)
    """Of the job."""

    @classmethod
    def from_json(cls, text: str) -> Request:
        """Read what :mod:`tests.benchmarks.peers` has written."""
        given = json.loads(text)
        return cls(**{**given, "chunk": tuple(given["chunk"]), "shard": tuple(given["shard"])})


def imported(name: str) -> Any:
    """Import what is in the peer's environment, and perhaps unknown where types are checked."""
    return importlib.import_module(name)


def rechunk_exec(request: Request) -> Iterator[str]:
    """Ours. Workers are started, and have imported what they need, before the clock, as everybody's are."""
    rx, executors = imported("rechunk_exec"), imported("rechunk_exec.executors")
    name = request.options["executor"]
    executor = executors.ProcessesExecutor(request.cores) if name == "processes" else name
    if name == "processes":
        executor.run_on_workers(import_zarr)
    yield ""
    chunks, shards = (dict(zip(NAMES, shape, strict=True)) for shape in (request.chunk, request.shard))
    job = rx.rechunk(
        request.source, chunks, request.max_mem, request.target, temp_store=request.temp, executor=executor,
        target_shards=shards, progress=False,
    )  # fmt: skip
    job.execute()
    stages = " -> ".join(str(stage.region) for stage in job.stages)
    yield f"{stages}, traffic {job.plan.traffic:.2f}"


def import_zarr() -> None:
    """Import what a worker of ours uses."""
    imported("rechunk_exec.copy")
    imported("zarrs")


def zarr_loop(request: Request) -> Iterator[str]:
    """A loop by hand over parts that are whole shards."""
    zarr = with_rust()
    yield ""
    source, target = zarr.open_array(request.source, mode="r"), new_target(request)
    for box in boxes(source.shape, request.options["part"]):
        target[box] = source[box]
    yield ""


def tensorstore(request: Request) -> Iterator[str]:
    """One asynchronous copy a part; no cache, no file sync, one copy thread a core."""
    ts = imported("tensorstore")
    yield ""
    context = {
        "cache_pool": {"total_bytes_limit": 0},
        "data_copy_concurrency": {"limit": request.cores},
        "file_io_sync": False,
    }
    spec = {"driver": "zarr3", "context": context}
    source = ts.open({**spec, "kvstore": {"driver": "file", "path": request.source}}).result()
    byte_codec = {"name": "bytes", "configuration": {"endian": "little"}}
    sharding = {
        "chunk_shape": request.chunk,
        "codecs": [byte_codec, {"name": "blosc", "configuration": BLOSC}],
        "index_codecs": [byte_codec, {"name": "crc32c"}],
    }
    metadata = {
        "shape": source.shape,
        "data_type": "float32",
        "fill_value": "NaN",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": request.shard}},
        "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
    }
    kvstore = {"driver": "file", "path": request.target}
    target = ts.open({**spec, "kvstore": kvstore, "metadata": metadata, "create": True}).result()
    for box in boxes(source.shape, request.options["part"]):
        target[box].write(source[box]).result()
    yield ""


def zarrs_reencode(request: Request) -> Iterator[str]:
    """The program of the Rust crate ``zarrs_tools``; this process only waits for it."""
    command = [request.options["program"], "--chunk-shape", comma(request.chunk), "--shard-shape", comma(request.shard)]
    command += ["--bytes-to-bytes-codecs", json.dumps([{"name": "blosc", "configuration": BLOSC}])]
    command += [*request.options["arguments"], request.source, request.target]
    yield ""
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    yield ""


def dask_rechunk(request: Request) -> Iterator[str]:
    """``rechunk`` and ``store``, on threads of this process or on a cluster of one process a core."""
    dask, da, cluster = imported("dask"), imported("dask.array"), request.options["cluster"]
    with_rust()
    dask.config.set({"temporary-directory": request.temp, "array.chunk-size": math.prod(request.shard) * 4})
    client = None
    if cluster:
        distributed = imported("distributed")
        dask.config.set({"array.rechunk.method": "p2p"})
        pool = distributed.LocalCluster(
            n_workers=request.cores, threads_per_worker=1, memory_limit=request.max_mem, dashboard_address=None,
        )  # fmt: skip
        client = distributed.Client(pool)
        client.run(with_rust)
    else:
        dask.config.set(scheduler="threads", num_workers=request.cores)
    yield ""
    source = da.from_zarr(request.source, chunks=request.options.get("chunks"))
    if "chunks" in request.options:  # read in boxes that are whole shards: nothing to rechunk
        da.store(source, new_target(request), lock=False)
    else:
        da.to_zarr(source.rechunk(request.shard), new_target(request))
    yield ""
    if client is not None:
        client.shutdown()


def rechunker(request: Request) -> Iterator[str]:
    """The ancestor, with zarr 2: a source and a target of format 2, chunks and no shards, on threads of dask."""
    dask, package, zarr = imported("dask"), imported("rechunker"), imported("zarr")
    imported("dask.array")
    dask.config.set(scheduler="threads", num_workers=request.cores)
    yield ""
    options = {"compressor": zarr.Blosc("zstd", 3, zarr.Blosc.BITSHUFFLE)}
    plan = package.rechunk(
        zarr.open_array(request.source, mode="r"), request.chunk, request.max_mem // request.cores, request.target,
        target_options=options, temp_store=str(Path(request.temp, "between.zarr")), temp_options={"compressor": None},
    )  # fmt: skip
    plan.execute()
    between = plan._intermediate
    yield f"{request.chunk} in format 2; " + ("direct" if between is None else f"by way of {between.chunks}")


def cubed(request: Request) -> Iterator[str]:
    """Worker processes of cubed's own, each allowed ``max_mem``; uncompressed intermediates."""
    package = imported("cubed")
    with_rust()
    executors = imported("cubed.runtime.create")
    yield ""
    spec = package.Spec(request.temp, allowed_mem=request.max_mem, reserved_mem=0, zarr_compressor=None)
    source = package.from_zarr(request.source, spec=spec)
    executor = executors.create_executor("processes", {"max_workers": request.cores})
    package.store([source.rechunk(request.shard)], [new_target(request)], executor=executor)
    yield ""


def xarray_beam(request: Request) -> Iterator[str]:
    """On Beam's local runner; read in boxes of whole shards, or rechunked by the pipeline."""
    xbeam, beam = imported("xarray_beam"), imported("apache_beam")
    runner = imported("apache_beam.runners.portability.fn_api_runner").FnApiRunner
    options = imported("apache_beam.options.pipeline_options").PipelineOptions
    with_rust()
    yield ""
    dataset, given = xbeam.open_zarr(request.source)
    chunks, shards = (dict(zip(NAMES, shape, strict=True)) for shape in (request.chunk, request.shard))
    how: dict[str, Any] = {}
    if "part" in request.options:  # with threads, the local runner fails to rechunk
        how = {"direct_num_workers": request.cores, "direct_running_mode": "multi_threading"}
    with beam.Pipeline(runner=runner(), options=options(**how)) as pipeline:
        part = request.options.get("part")
        read = dict(zip(NAMES, part, strict=True)) if part else {name: given[name] for name in NAMES}
        steps = pipeline | xbeam.DatasetToChunks(dataset, read)
        if not part:
            # Its bound is that of one chunk in between; a thread holds several.
            limit = request.max_mem // request.cores // 4
            steps |= xbeam.Rechunk(dict(dataset.sizes), read, shards, itemsize=4, max_mem=limit)
        codec = imported("zarr.codecs").BloscCodec(**BLOSC)
        encoding = {"layer": {"compressors": (codec,), "_FillValue": math.nan}}
        template = xbeam.make_template(dataset)
        _ = steps | xbeam.ChunksToZarr(
            request.target, template, chunks, zarr_shards=shards, zarr_format=3, encoding=encoding
        )
    yield ""


def rechunkit(request: Request) -> Iterator[str]:
    """Its generator reads and arranges; a loop writes what it yields, one shard after the other."""
    package, zarr = imported("rechunkit"), with_rust()
    yield ""
    source, target = zarr.open_array(request.source, mode="r"), new_target(request)
    for box, values in package.rechunker(
        source.__getitem__, source.shape, source.dtype, source.chunks, request.shard, request.max_mem
    ):
        target[box] = values
    yield ""


def with_rust() -> Any:
    """Have zarr use the Rust pipeline of the package ``zarrs``, here and in processes that are started; return zarr."""
    os.environ["ZARR_CODEC_PIPELINE__PATH"] = "zarrs.ZarrsCodecPipeline"
    warnings.filterwarnings("ignore", message="Array is unsupported by ZarrsCodecPipeline")
    zarr = imported("zarr")
    zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"})
    imported("zarrs")
    return zarr


def new_target(request: Request) -> Any:
    """Create the target with zarr 3."""
    zarr = imported("zarr")
    return zarr.create_array(
        request.target, shape=zarr.open_array(request.source, mode="r").shape, chunks=request.chunk,
        shards=request.shard, dtype="float32", fill_value=math.nan, compressors=zarr.codecs.BloscCodec(**BLOSC),
    )  # fmt: skip


def boxes(shape: tuple[int, int, int], part: tuple[int, int, int]) -> Iterator[Box]:
    """The boxes of size ``part`` that tile an array, in C order."""
    for time in range(0, shape[0], part[0]):
        for y in range(0, shape[1], part[1]):
            for x in range(0, shape[2], part[2]):
                yield slice(time, time + part[0]), slice(y, y + part[1]), slice(x, x + part[2])


def comma(shape: tuple[int, ...]) -> str:
    """A shape as a program wants it."""
    return ",".join(map(str, shape))


JOBS: dict[str, Callable[[Request], Iterator[str]]] = {
    job.__name__: job
    for job in (
        rechunk_exec, zarr_loop, tensorstore, zarrs_reencode, dask_rechunk, rechunker, cubed, xarray_beam, rechunkit,
    )
}  # fmt: skip


if __name__ == "__main__":
    os.environ.setdefault("PYTHONWARNINGS", "ignore")  # for the workers that it starts; nothing is asserted here
    compete(JOBS[sys.argv[1]](Request.from_json(sys.argv[2])))
