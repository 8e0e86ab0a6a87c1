"""A job that has stopped in its second stage, for tests of what resume makes of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zarr

import rechunk_exec as rx
from tests.faults.kept import Kept
from tests.faults.test_unfinished import FIRST, MAX_MEM, SHAPE
from tests.jobs import ZarrArray, make_array, stop_after

STOPPED_AFTER = FIRST + 4


def wanted(folder: Path, **changed: Any) -> rx.Rechunked:
    """The job, asked for with these words."""
    words: dict[str, Any] = {
        "target_chunks": (24, 4, 4),
        "max_mem": MAX_MEM,
        "target_store": folder / "target",
        "temp_store": folder / "temp",
        "executor": "serial",
        "mode": "resume",
        "progress": False,
    }
    words |= {"source": folder / "source"} | changed
    return rx.rechunk(**words)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    """A job that has stopped in its second stage."""
    folder = tmp_path_factory.mktemp("stopped")
    make_array(folder / "source", SHAPE, (1, *SHAPE[1:]), attributes={"units": "m"})
    stop_after(STOPPED_AFTER, wanted(folder, mode="fail"))
    return Kept(folder)


@pytest.fixture
def folder(stopped: Kept) -> Iterator[Path]:
    """Where the job is that has stopped; it is as it was after each test."""
    yield stopped.folder
    stopped.restore()


@pytest.fixture
def source(folder: Path) -> ZarrArray:
    """The source of the job that has stopped."""
    return zarr.open_array(folder / "source", mode="r")
