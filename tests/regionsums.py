"""What tests of regions have workers compute. They import this without pytest."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np

from tests.values import Array


def masked(epochs: Array, mask: Array, *, offset: int = 0) -> Array:
    values: Array = epochs + np.int32(offset)
    values[:, ~mask] = 0  # what is read is the function's own
    return values


def two_of(epochs: Array) -> tuple[Array, Array]:
    return epochs.max(axis=0), epochs[0] > 0


def scaled(epochs: Array, factors: Array) -> Array:
    product: Array = epochs * factors.astype("i4")
    return product


def refuse(epochs: Array) -> Array:
    raise ValueError("no such sum")


def give(epochs: Array, *, what: Any) -> Any:
    return what


def die_once(epochs: Array, *, mark: str) -> Array:
    if not Path(mark).exists():
        Path(mark).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return epochs
