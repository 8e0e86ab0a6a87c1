"""Frame cubes of any size, made quickly from a seed: smooth deformation, noise, trimmed mantissas, a sea of NaN.

Two fields of noise are made once a process; each epoch takes a window of one of them, at a place of its own. So noise
costs no random numbers an epoch, and values still differ from place to place and from epoch to epoch.
"""

from __future__ import annotations

import shutil
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.codecs import BloscCodec

SEED = 11116
NOISE_M = np.float32(0.01)
KEPT_BITS = np.uint32(0xFFFFF000)
"""Of a float32: the 12 lowest bits of the mantissa hold nothing but noise."""
_WINDOW = 512
"""How far the windows of noise may be shifted, in elements."""

Field = NDArray[np.float32]


def make_frame(path: Path, shape: tuple[int, int, int], chunks: tuple[int, int, int], processes: int = 2) -> None:
    """Write a cube of ``shape`` (time, y, x) in ``chunks``, of one epoch each; the same one every time.

    One that is there is used again if it is of this shape and these chunks, and else replaced.
    """
    if path.exists():
        array = zarr.open_array(path, mode="r")
        if (array.shape, array.chunks) == (shape, chunks):
            return
        shutil.rmtree(path)
    partial = path.with_suffix(".partial")
    zarr.create_array(
        partial, shape=shape, chunks=chunks, dtype="f4", fill_value=np.nan, overwrite=True,
        compressors=BloscCodec(cname="zstd", clevel=3, shuffle="bitshuffle", typesize=4),
        dimension_names=["time", "y", "x"],
    )  # fmt: skip
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        done = [pool.submit(_write_epochs, partial, first, processes) for first in range(processes)]
        for one in done:
            one.result()
    partial.rename(path)


def _write_epochs(path: Path, first: int, step: int) -> None:
    """Write every ``step``-th epoch, one chunk at a time."""
    zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline", "threading.max_workers": 1})
    array = zarr.open_array(path)
    epochs, rows, columns = array.shape
    for number in range(first, epochs, step):
        array[number] = epoch((rows, columns), number)


def epoch(shape: tuple[int, int], number: int) -> Field:
    """One epoch: a bowl that sinks, an uplift that comes and goes with the season, and noise; in metres."""
    bowl, uplift, sea, noises = _fields(shape)
    years = np.float32(number * 12 / 365.25)
    values = bowl * years
    values += uplift * np.sin(np.float32(2 * np.pi) * years)
    top, left = (number * 211) % _WINDOW, (number * 379) % _WINDOW
    values += noises[number % len(noises)][top : top + shape[0], left : left + shape[1]]
    values.view("u4")[...] &= KEPT_BITS
    values[sea] = np.nan
    return values


@lru_cache(maxsize=1)
def _fields(shape: tuple[int, int]) -> tuple[Field, Field, NDArray[np.bool_], tuple[Field, Field]]:
    y, x = (np.linspace(-1, 1, n, dtype="f4") for n in shape)
    y = y[:, None]
    bowl = np.float32(-0.08) * np.exp(-4 * (y + np.float32(0.2)) ** 2) * np.exp(-4 * (x - np.float32(0.2)) ** 2)
    uplift = np.float32(0.015) * np.exp(-2 * (y - np.float32(0.4)) ** 2) * np.exp(-2 * (x + np.float32(0.3)) ** 2)
    sea = y + np.float32(0.5) * np.sin(3 * x) < np.float32(-0.75)
    random = np.random.default_rng(SEED)
    larger = tuple(n + _WINDOW for n in shape)
    one, other = (NOISE_M * random.standard_normal(larger, dtype="f4") for _ in range(2))
    return bowl, uplift, sea, (one, other)
