"""The main job on a small scale, for ``rechunk-exec demo``. Layer: beside cli; it uses the package as its users do.

It makes a frame cube on disk as a displacement product has it (one epoch a chunk), rewrites it to whole-series shards,
checks every bit, and times the read of one pixel's history before and after.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray
from rich.console import Console
from zarr.codecs import BloscCodec

import rechunk_exec as rx
from rechunk_exec.executors import Executor
from rechunk_exec.report.tables import facts_table, plan_table, report_table
from rechunk_exec.report.tally import format_seconds
from rechunk_exec.sizes import format_bytes, parse_bytes

SEED = 20140403
CHUNK_YX = 64
SHARD_YX = 256
NOISE_M = 0.003
"""Standard deviation of the noise, in metres."""
ZEROED_BITS = 12
"""Bits of the mantissa that hold nothing but noise, and are zeroed so that they compress."""
READS = 5
"""Pixels whose history is read; the median time is told."""

_MADE_BY = "rechunk-exec demo"


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSize:
    """Shape of the cube, and a budget that it does not fit."""

    shape: tuple[int, int, int]
    max_mem: str

    @property
    def nbytes(self) -> int:
        """Raw bytes of the cube, of float32."""
        epochs, rows, columns = self.shape
        return 4 * epochs * rows * columns

    def __str__(self) -> str:
        return f"{' x '.join(map(str, self.shape))}, {format_bytes(self.nbytes)}"


DEMO_SIZES = {
    "small": DemoSize(shape=(24, 512, 512), max_mem="25MB"),
    "medium": DemoSize(shape=(60, 1024, 1024), max_mem="256MB"),
    "large": DemoSize(shape=(120, 2048, 2048), max_mem="1GB"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoRequest:
    """What to do, and where."""

    folder: Path
    size: DemoSize
    max_mem: int | None
    """Bytes of one worker; the size's own if None."""
    executor: Executor
    keep: bool
    """Whether the two stores stay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOutcome:
    """What was made, and how long each part took."""

    source: str
    target: str
    shape: tuple[int, ...]
    nbytes: int
    max_mem: int
    identical: bool
    """Whether every bit of the target equals the source's."""
    make_seconds: float
    rechunk_seconds: float
    verify_seconds: float
    history_seconds_before: float
    """Median time of reading one pixel's history from the source."""
    history_seconds_after: float
    """The same from the target."""
    peak_bytes: int
    """Largest measured growth of a worker's memory."""


class DemoFailedError(rx.RechunkError):
    """The target is not what the source is."""


def run_demo(request: DemoRequest, console: Console) -> DemoOutcome:
    """Make, rewrite, check and time; what happens is told on ``console``.

    Raises
    ------
    TargetExistsError
        If something that this did not make is in the way.
    DemoFailedError
        If a bit of the target differs from the source.
    """
    source, target = request.folder / "frame.zarr", request.folder / "series.zarr"
    for store in (source, target):
        remove_own(store)
    size = request.size
    console.print(f"making {source}: {size} float32, one epoch a chunk", markup=False, highlight=False, soft_wrap=True)
    started = time.perf_counter()
    make_frame(source, size.shape)
    made = time.perf_counter()

    job = rx.rechunk(
        str(source),
        {"time": -1, "y": CHUNK_YX, "x": CHUNK_YX},
        request.max_mem or parse_bytes(size.max_mem),
        target_store=str(target),
        target_shards={"time": -1, "y": SHARD_YX, "x": SHARD_YX},
        executor=request.executor,
        progress=False if console.quiet else None,
    )
    console.print(plan_table(job.plan))
    planned = time.perf_counter()
    job.execute()
    copied = time.perf_counter()
    report = job.report
    assert report is not None
    console.print(report_table(report))

    differing = count_differing(source, target)
    checked = time.perf_counter()
    outcome = DemoOutcome(
        source=str(source.absolute()),
        target=str(target.absolute()),
        shape=size.shape,
        nbytes=size.nbytes,
        max_mem=job.plan.max_mem,
        identical=not differing,
        make_seconds=made - started,
        rechunk_seconds=copied - planned,
        verify_seconds=checked - copied,
        history_seconds_before=history_seconds(source),
        history_seconds_after=history_seconds(target),
        peak_bytes=report.peak_bytes,
    )
    if differing:
        raise DemoFailedError(f"{differing} of {size.nbytes // 4} elements of {target} differ from {source}")
    console.print(facts_table(_facts(outcome), title="result"))
    if not request.keep:
        for store in (source, target):
            remove_own(store)
    return outcome


def make_frame(path: Path, shape: tuple[int, int, int]) -> None:
    """Write a frame cube: smooth deformation, noise, zeroed low bits, and a sea of NaN; the same one every time."""
    frame = zarr.create_array(
        store=path,
        shape=shape,
        chunks=(1, *shape[1:]),
        dtype="float32",
        compressors=BloscCodec(cname="zstd", clevel=3, shuffle="bitshuffle"),
        fill_value=np.nan,
        dimension_names=("time", "y", "x"),
        attributes={"long_name": "displacement in line of sight", "units": "m", "made_by": _MADE_BY},
    )
    for number, epoch in enumerate(_epochs(shape)):
        frame[number] = epoch


def _epochs(shape: tuple[int, int, int]) -> Iterator[NDArray[np.float32]]:
    """One epoch after the other: a bowl that sinks, an uplift that comes and goes by the season, and noise."""
    epochs, rows, columns = shape
    y, x = np.ogrid[0 : 1 : rows * 1j, 0 : 1 : columns * 1j]
    bowl = -0.08 * np.exp(-((y - 0.4) ** 2 + (x - 0.6) ** 2) / 0.02)
    season = 0.015 * np.exp(-((y - 0.7) ** 2 + (x - 0.35) ** 2) / 0.05)
    sea = x + 0.08 * np.sin(7 * y) < 0.18
    random = np.random.default_rng(SEED)
    for number in range(epochs):
        years = number * 12 / 365.25
        epoch = (bowl * years + season * np.sin(2 * np.pi * years)).astype(np.float32)
        epoch += NOISE_M * random.standard_normal((rows, columns), dtype=np.float32)
        epoch.view(np.uint32)[...] &= np.uint32(0xFFFFFFFF << ZEROED_BITS & 0xFFFFFFFF)
        epoch[sea] = np.nan
        yield epoch


def count_differing(source: Path, target: Path) -> int:
    """Number of elements whose bits differ, a band of shards after the other."""
    before, after = open_cube(source), open_cube(target)
    if before.shape != after.shape or before.dtype != after.dtype:
        return before.size
    differing = 0
    for start in range(0, before.shape[1], SHARD_YX):
        band = (slice(None), slice(start, start + SHARD_YX))
        bits = (np.asarray(cube[band]).view(np.uint32) for cube in (before, after))
        differing += int(np.count_nonzero(np.not_equal(*bits)))
    return differing


def history_seconds(path: Path) -> float:
    """Median time of reading the history of one pixel, over some pixels; each from a newly opened array."""
    times = []
    for number in range(READS):
        started = time.perf_counter()
        cube = open_cube(path)
        row, column = (int(n * (0.35 + 0.1 * number)) for n in cube.shape[1:])
        history = np.asarray(cube[:, row, column])
        times.append(time.perf_counter() - started)
        assert history.shape == cube.shape[:1]
    return median(times)


def open_cube(path: Path) -> zarr.Array[Any]:
    """Open one of the demo's cubes for reading."""
    return zarr.open_array(path, mode="r")


def remove_own(path: Path) -> None:
    """Remove a cube of an earlier demo.

    Raises
    ------
    TargetExistsError
        If ``path`` is anything else.
    """
    if not path.exists():
        return
    try:
        own = open_cube(path).attrs.get("made_by") == _MADE_BY
    except (OSError, ValueError, KeyError):
        own = False
    if not own:
        raise rx.TargetExistsError(f"{path} exists and was not made by the demo; give another folder with --dir")
    shutil.rmtree(path)


def _facts(outcome: DemoOutcome) -> Iterator[tuple[str, str]]:
    before, after = outcome.history_seconds_before, outcome.history_seconds_after
    yield "frame", f"{outcome.source} (made in {format_seconds(outcome.make_seconds)})"
    yield "series", f"{outcome.target} (rewritten in {format_seconds(outcome.rechunk_seconds)})"
    yield "verified", f"all {outcome.nbytes // 4:,} elements, bit by bit, in {format_seconds(outcome.verify_seconds)}"
    yield "peak", f"{format_bytes(outcome.peak_bytes)} of {format_bytes(outcome.max_mem)} allowed"
    yield "one pixel's history", f"{1000 * before:.1f} ms before, {1000 * after:.1f} ms after"
