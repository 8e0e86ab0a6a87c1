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


@pytest.fixture(scope="module")
def imported_by_us() -> frozenset[str]:
    """Modules that the package imports and zarr, which some versions of import much, does not."""
    every_name = "from rechunk_exec import *; from rechunk_exec.executors import *"
    return modules_after(every_name) - modules_after("import zarr")


def modules_after(statement: str) -> frozenset[str]:
    code = f"import sys; {statement}; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return frozenset(run.stdout.split())


@pytest.mark.parametrize(
    "package",
    [
        "apache_beam",
        "cupy",
        "dask",
        "distributed",
        "fsspec",
        "h5py",
        "icechunk",
        "IPython",
        "nvidia",
        "pyflink",
        "pytest",
        "rmm",
        "xarray",
    ],
)
def test_importing_the_package_imports_no_optional_library(package: str, imported_by_us: frozenset[str]) -> None:
    assert package not in imported_by_us


def test_a_worker_process_imports_neither_planning_nor_what_draws() -> None:
    imported = modules_after("import rechunk_exec.executors.worker")
    assert "rechunk_exec.copy.worker" in imported
    useless = {"rich", *(f"rechunk_exec.{name}" for name in ("api", "search", "pictures", "executors.dask"))}
    assert useless & imported == set()
