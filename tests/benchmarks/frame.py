"""The main job against its rivals: one run, fresh processes, seconds and peak memory. Run by hand; asserts nothing.

    python tests/benchmarks/frame.py [--folder DIR] [--layout blocks|epochs|both|staged] [--max-mem 2GB] [--rounds 3]
                                      [--epochs 128]

A cube of 128 epochs of 2048 x 2048 float32 (smooth deformation, noise with 12 mantissa bits zeroed, NaN mask; Blosc
zstd-3 bitshuffle) goes from chunks (1, 1024, 1024) or (1, 2048, 2048) to shards (128, 256, 256) of chunks
(128, 64, 64). The layout ``staged`` has whole epochs in plain Zstandard, of which no part can be decoded alone: within
less memory than the cube it takes two stages.

* ``limit``: decode every source chunk once and encode every target chunk once, on all cores, into memory that is
  used again; for ``staged`` also write the raw cube to files and read it again. Nobody can be faster with these codecs.
* ``zarr+zarrs loop``: ``target[part] = source[part]`` with the Rust pipeline, part by part.
* ``tensorstore``: the same copy in 1, 2, 4 or 8 parts; no cache, no file sync, one copy thread a core.
* ``rechunk_exec``: each executor. ``processes`` starts its workers, ``standing processes`` have started before, as all
  others have imported what they use.

Contenders take turns within a round, so that a machine's drift meets all of them; the table shows medians. Right before
each one memory is touched (see :func:`touch_memory`). Memory is the peak of the resident set over that of the same
process after its imports, for ``processes`` that of its largest worker.
Needs the extra ``bench``.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import zarr
from numcodecs import blosc, zstd
from zarr.codecs import BloscCodec, ZstdCodec

SHAPE = (128, 2048, 2048)
CHUNK, SHARD = (128, 64, 64), (128, 256, 256)
LAYOUTS = {"blocks": (1, 1024, 1024), "epochs": (1, 2048, 2048), "staged": (1, 2048, 2048)}
TOUCHED_BYTES = 6 * 10**9
"""More than a copy takes, in memory and in the page cache."""
EXECUTORS = ("serial", "threads", "processes", "standing processes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("frame-benchmark"))
    parser.add_argument("--layout", choices=[*LAYOUTS, "both"], default="both")
    parser.add_argument("--max-mem", default="2GB")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=SHAPE[0], help="16.8 MB each; what it costs to start weighs less")
    parser.add_argument("--only", help="contenders whose name contains this text")
    parser.add_argument("--one", nargs=2, metavar=("CONTENDER", "LAYOUT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        name, layout = options.one
        source = cube_path(options.folder, layout, options.epochs)
        print(json.dumps(run_one(name, source, options.max_mem)))
        return
    options.folder.mkdir(parents=True, exist_ok=True)
    for layout in ("blocks", "epochs") if options.layout == "both" else [options.layout]:
        make_cube(options.folder, layout, options.epochs)
        compare(options, layout)


def compare(options: argparse.Namespace, layout: str) -> None:
    names = [name for name in contenders() if not options.only or options.only in name or name == "limit"]
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for _ in range(options.rounds):
        for name in names:
            command = [sys.executable, __file__, "--folder", str(options.folder), "--max-mem", options.max_mem]
            command += ["--epochs", str(options.epochs), "--one", name, layout]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                print(f"{name} failed: {done.stderr.strip().splitlines()[-1]}", file=sys.stderr)
                continue
            runs[name].append(json.loads(done.stdout.splitlines()[-1]))
    limit = statistics.median(run["seconds"] for run in runs["limit"])
    print(
        f"\n{layout}: source chunks {LAYOUTS[layout]}, {options.epochs} epochs, max_mem {options.max_mem}, "
        f"{options.rounds} rounds, {len(os.sched_getaffinity(0))} cores"
    )
    print(f"{'':24}{'seconds':>9}{'x limit':>9}{'CPU s':>8}{'peak over idle':>16}  plan")
    for name, several in runs.items():
        if several:
            seconds, cpu = (statistics.median(run[key] for run in several) for key in ("seconds", "cpu"))
            peak = max(run["peak_bytes"] for run in several) / 1e6
            print(
                f"{name:24}{seconds:9.2f}{seconds / limit:9.2f}{cpu:8.2f}{peak:13.0f} MB  {several[0].get('plan', '')}"
            )


def contenders() -> dict[str, Callable[[Path, Path, str], str]]:
    """What runs, by name: a function of source, target and budget that returns a note."""
    named: dict[str, Callable[[Path, Path, str], str]] = {"limit": limit, "zarr+zarrs loop": zarrs_loop}
    named |= {f"tensorstore / {parts}": partial(tensorstore_copy, parts) for parts in (1, 2, 4, 8)}
    named |= {f"rechunk_exec {executor}": partial(ours, executor) for executor in EXECUTORS}
    return named


def run_one(name: str, source: Path, max_mem: str) -> dict[str, Any]:
    target = source.with_name("target.zarr")
    shutil.rmtree(target, ignore_errors=True)
    for chunk in (source / "c").rglob("*"):  # the page cache holds the source for everyone
        if chunk.is_file():
            chunk.read_bytes()
    prepare(name)
    idle = resident_bytes()
    touch_memory()
    began, cpu = time.perf_counter(), cpu_seconds()
    measured = contenders()[name](source, target, max_mem)
    figures: dict[str, Any] = {"seconds": time.perf_counter() - began, "cpu": cpu_seconds() - cpu}
    figures["peak_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - idle
    if measured.startswith("{"):  # the contender has measured itself
        figures |= json.loads(measured)
    shutil.rmtree(target, ignore_errors=True)
    return figures


def touch_memory() -> None:
    """Have the system hand out memory to another process and take it back: then it costs no more than it has to.

    Virtual machines get memory from their host page by page when it is first touched, at up to 4 s a GB, and some give
    it back when it has been free for a second. That is no part of a copy, and no two copies meet as much of it. So this
    comes last before the clock.
    """
    touch = f"import numpy; pages = numpy.empty({TOUCHED_BYTES}, 'u1'); pages[::4096] = 1"
    subprocess.run([sys.executable, "-c", touch], check=True)


def prepare(name: str) -> None:
    """Import what a contender uses, so that its idle memory counts it."""
    if name.startswith("tensorstore"):
        import tensorstore  # noqa: F401
    elif name.startswith("rechunk_exec"):
        import rechunk_exec

        _ = rechunk_exec.rechunk  # it is imported when it is used
        if name.endswith("standing processes"):
            standing_processes()
    elif name.startswith("zarr"):
        zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"})


@cache
def standing_processes() -> Any:
    """Workers that have started, and go when this process does."""
    from rechunk_exec.executors import ProcessesExecutor

    pool = ProcessesExecutor()
    list(pool.map(time.sleep, [0.5] * pool.worker_shape.workers))
    return pool


def ours(executor: str, source: Path, target: Path, max_mem: str) -> str:
    import rechunk_exec as rx

    workers = standing_processes() if executor.startswith("standing") else executor
    job = rx.rechunk(
        source, {"time": -1, "y": 64, "x": 64}, max_mem, target,
        executor=workers, target_shards={"time": -1, "y": 256, "x": 256}, progress=False,
        target_options={"compressors": compressor()},
    )  # fmt: skip
    job.execute()
    stages = " -> ".join(str(stage.region) for stage in job.stages)
    note: dict[str, Any] = {"plan": f"{stages}, traffic {job.plan.traffic:.2f}"}
    if executor.endswith("processes") and job.report is not None:
        note["peak_bytes"] = max(result.peak_bytes for result in job.report.results)
    return json.dumps(note)


def zarrs_loop(source: Path, target: Path, _: str) -> str:
    from_array = zarr.open_array(source, mode="r")
    to_array = new_target(target, from_array.shape[0])
    for part in parts_of(from_array.shape[0], 4 if from_array.chunks == LAYOUTS["blocks"] else 2):
        to_array[part] = from_array[part]
    return ""


def tensorstore_copy(parts: int, source: Path, target: Path, _: str) -> str:
    import tensorstore

    epochs = zarr.open_array(source, mode="r").shape[0]
    new_target(target, epochs)
    context = {
        "cache_pool": {"total_bytes_limit": 0},
        "data_copy_concurrency": {"limit": len(os.sched_getaffinity(0))},
        "file_io_sync": False,
    }
    arrays = [
        tensorstore.open(
            {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(path)}, "context": context}
        ).result()
        for path in (source, target)
    ]
    for part in parts_of(epochs, parts):
        arrays[1][part].write(arrays[0][part]).result()
    return ""


def parts_of(epochs: int, count: int) -> Iterator[tuple[slice, slice, slice]]:
    """Cut the cube into whole shards: bands of rows, and for 4 also two halves of columns."""
    columns = 2 if count == 4 else 1
    rows = count // columns
    height, width = SHAPE[1] // rows, SHAPE[2] // columns
    for row in range(rows):
        for column in range(columns):
            yield (
                slice(0, epochs),
                slice(row * height, (row + 1) * height),
                slice(column * width, (column + 1) * width),
            )


def limit(source: Path, target: Path, _: str) -> str:
    """Time the codecs alone: decoding the source's chunks, encoding the target's."""
    array = zarr.open_array(source, mode="r")
    files = sorted(path for path in (source / "c").rglob("*") if path.is_file())
    staged = not isinstance(array.compressors[0], BloscCodec)
    decompress = zstd.decompress if staged else blosc.decompress
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        own = threading.local()

        def decode(path: Path) -> None:
            if not hasattr(own, "buffer"):
                own.buffer = np.empty(array.chunks, array.dtype)
            decompress(path.read_bytes(), own.buffer)

        began, cpu = time.perf_counter(), cpu_seconds()
        list(pool.map(decode, files))
        seconds, used = time.perf_counter() - began, cpu_seconds() - cpu
        if staged:
            began, cpu = time.perf_counter(), cpu_seconds()
            through_files(target.with_suffix(".raw"), array.shape[0], pool)
            seconds, used = seconds + time.perf_counter() - began, used + cpu_seconds() - cpu

        def encode(chunk: np.ndarray[Any, Any]) -> int:
            return len(blosc.compress(chunk, b"zstd", 3, blosc.BITSHUFFLE))

        for band in range(0, SHAPE[1], 512):  # prepared outside the clock, a band at a time
            rows = np.asarray(array[:, band : band + 512])
            chunks = [
                np.ascontiguousarray(rows[:, y : y + 64, x : x + 64])
                for y in range(0, 512, 64)
                for x in range(0, SHAPE[2], 64)
            ]
            chunks = [chunk for chunk in chunks if not np.isnan(chunk).all()]
            began, cpu = time.perf_counter(), cpu_seconds()
            list(pool.map(encode, chunks))
            seconds, used = seconds + time.perf_counter() - began, used + cpu_seconds() - cpu
    return json.dumps({"seconds": seconds, "cpu": used, "peak_bytes": 0})


def through_files(folder: Path, epochs: int, pool: ThreadPoolExecutor) -> None:
    """Write the raw cube to a file an epoch, and read it again."""
    epoch = np.ones(SHAPE[1:], "f4")
    read_into = threading.local()

    def read(path: Path) -> None:
        if not hasattr(read_into, "buffer"):
            read_into.buffer = np.empty_like(epoch)
        with path.open("rb", buffering=0) as file:
            file.readinto(read_into.buffer)

    folder.mkdir()
    files = [folder / str(number) for number in range(epochs)]
    list(pool.map(lambda path: path.write_bytes(epoch), files))
    list(pool.map(read, files))
    shutil.rmtree(folder)


def new_target(path: Path, epochs: int) -> zarr.Array[Any]:
    return zarr.create_array(
        path, shape=(epochs, *SHAPE[1:]), chunks=(epochs, *CHUNK[1:]), shards=(epochs, *SHARD[1:]), dtype="f4",
        fill_value=np.nan, compressors=compressor(),
    )  # fmt: skip


def compressor() -> BloscCodec:
    return BloscCodec(cname="zstd", clevel=3, shuffle="bitshuffle", typesize=4)


def cube_path(folder: Path, layout: str, epochs: int) -> Path:
    """Where the cube of so many epochs is, in one of the layouts."""
    return folder / (f"{layout}.zarr" if epochs == SHAPE[0] else f"{layout}-{epochs}.zarr")


def make_cube(folder: Path, layout: str, epochs: int = SHAPE[0]) -> None:
    """Write the cube in one of the layouts, unless it is there."""
    path = cube_path(folder, layout, epochs)
    if path.exists():
        return
    array = zarr.create_array(
        path.with_suffix(".partial"),
        shape=(epochs, *SHAPE[1:]),
        chunks=LAYOUTS[layout],
        dtype="f4",
        fill_value=np.nan,
        compressors=ZstdCodec(level=3) if layout == "staged" else compressor(),
        dimension_names=["time", "y", "x"],
        overwrite=True,
    )
    y, x = np.meshgrid(np.linspace(-1, 1, SHAPE[1]), np.linspace(-1, 1, SHAPE[2]), indexing="ij")
    bowl, sea = np.exp(-4 * (y**2 + x**2)).astype("f4"), y + 0.5 * np.sin(3 * x) < -0.75
    noise = np.random.default_rng(0)
    for epoch in range(epochs):
        frame = bowl * np.float32(0.01 * epoch) + np.float32(0.01) * noise.standard_normal(SHAPE[1:], dtype="f4")
        frame = (frame.view("u4") & np.uint32(0xFFFFF000)).view("f4")
        frame[sea] = np.nan
        array[epoch] = frame
    path.with_suffix(".partial").rename(path)


def resident_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) * 1024


def cpu_seconds() -> float:
    """Of this process, of its children that are gone, and of those that stand."""
    usages = [resource.getrusage(of) for of in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    children = [child.cpu_times() for child in psutil.Process().children()]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages) + sum(one.user + one.system for one in children)


if __name__ == "__main__":
    main()
