from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.serial
def test_imports_point_down_only() -> None:
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"]
    run = subprocess.run([*command, "--no-cache"], check=False, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize(
    "package",
    ["apache_beam", "cupy", "dask", "distributed", "fsspec", "h5py", "icechunk", "IPython", "pyflink", "xarray"],
)
def test_importing_the_package_imports_no_optional_library(package: str, imported_modules: frozenset[str]) -> None:
    assert package not in imported_modules


@pytest.fixture(scope="module")
def imported_modules() -> frozenset[str]:
    code = "import sys, rechunk_exec; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return frozenset(run.stdout.split())
