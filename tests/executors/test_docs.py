"""The examples of docs/executors.md do what they say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import zarr

from tests.conftest import needed_module
from tests.executors.clusters import quieted
from tests.executors.workers import environment

PAGE = (Path(__file__).parents[2] / "docs" / "executors.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
EXAMPLES = [block for block in BLOCKS if "rechunk_exec.testing" not in block]
OF_A_SCRIPT = 1
"""The number of the example that is run as a script."""
FRAME = np.arange(7 * 300 * 90, dtype="f4").reshape(7, 300, 90)


@pytest.fixture
def frame(tmp_path: Path) -> None:
    source = zarr.create_array(
        tmp_path / "frame.zarr",
        shape=FRAME.shape,
        chunks=(1, 300, 90),
        dtype="f4",
        dimension_names=("time", "y", "x"),
    )
    source[...] = FRAME


def assert_done(folder: Path) -> None:
    series = zarr.open_array(folder / "series.zarr", mode="r")
    assert series.chunks == (7, 64, 64)
    np.testing.assert_array_equal(np.asarray(series[...]), FRAME)


def run_python(folder: Path, *arguments: str | Path) -> str:
    run = subprocess.run(
        [sys.executable, "-W", "error", *arguments],
        check=False,
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


@pytest.mark.usefixtures("frame")
@pytest.mark.parametrize("number", [number for number in range(len(EXAMPLES)) if number != OF_A_SCRIPT])
def test_examples(tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if "from distributed" in EXAMPLES[number]:
        quieted()
    if "beam" in EXAMPLES[number]:
        needed_module("apache_beam")
    monkeypatch.chdir(tmp_path)
    exec(compile(EXAMPLES[number], f"example {number}", "exec"), {"__name__": "__main__"})
    assert_done(tmp_path)


@pytest.mark.usefixtures("frame")
def test_the_example_of_a_script(tmp_path: Path) -> None:
    script = tmp_path / "example.py"
    script.write_text(EXAMPLES[OF_A_SCRIPT])
    run_python(tmp_path, script)
    assert_done(tmp_path)


def contract_of_an_example() -> Any:
    """The test class of the page, for the last example, which is a module of the reader's."""
    (contract,) = set(BLOCKS) - set(EXAMPLES)
    mine = ModuleType("mine")
    exec(EXAMPLES[-1].partition("\njob = ")[0], vars(mine))
    of_the_test: dict[str, Any] = {"__name__": "test_mine"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "mine", mine)
        exec(contract, of_the_test)
    return of_the_test["TestReversed"]


TestReversed = contract_of_an_example()


@pytest.mark.usefixtures("frame")
@pytest.mark.long  # the class is among the tests here
def test_the_contract_of_an_example_in_a_project_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)  # which may hold options of the tests here
    (contract,) = set(BLOCKS) - set(EXAMPLES)
    (tmp_path / "mine.py").write_text(EXAMPLES[-1])
    (tmp_path / "test_mine.py").write_text(contract)
    printed = run_python(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_mine.py")
    assert "3 skipped" in printed, "two that need a second try, and the stated exception"


def test_there_are_examples() -> None:
    assert len(EXAMPLES) == 8
    assert [number for number, example in enumerate(EXAMPLES) if "pool.map(mean_of_rows" in example] == [OF_A_SCRIPT]
