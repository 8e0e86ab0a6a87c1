"""The examples of docs/executors.md do what they say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import zarr

from tests.conftest import needed_module
from tests.executors.workers import environment

PAGE = (Path(__file__).parents[2] / "docs" / "executors.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
EXAMPLES = [block for block in BLOCKS if "rechunk_exec.testing" not in block]
FRAME = np.arange(7 * 300 * 90, dtype="f4").reshape(7, 300, 90)


@pytest.fixture(autouse=True)
def frame(tmp_path: Path) -> None:
    source = zarr.create_array(
        tmp_path / "frame.zarr",
        shape=FRAME.shape,
        chunks=(1, 300, 90),
        dtype="f4",
        dimension_names=("time", "y", "x"),
    )
    source[...] = FRAME


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_examples(tmp_path: Path, number: int) -> None:
    if "from distributed" in EXAMPLES[number]:
        needed_module("distributed")
    if "beam" in EXAMPLES[number]:
        needed_module("apache_beam")
    script = tmp_path / "example.py"
    script.write_text(EXAMPLES[number])
    run = subprocess.run(
        [sys.executable, "-W", "error", script],
        check=False,
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    series = zarr.open_array(tmp_path / "series.zarr", mode="r")
    assert series.chunks == (7, 64, 64)
    np.testing.assert_array_equal(np.asarray(series[...]), FRAME)


def test_the_contract_of_an_example(tmp_path: Path) -> None:
    (contract,) = set(BLOCKS) - set(EXAMPLES)
    (tmp_path / "mine.py").write_text(EXAMPLES[-1])
    (tmp_path / "test_mine.py").write_text(contract)
    run = subprocess.run(
        [sys.executable, "-W", "error", "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_mine.py"],
        check=False,
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "3 skipped" in run.stdout, "two that need a second try, and the stated exception"


def test_there_are_examples() -> None:
    assert len(EXAMPLES) == 8
