"""The peers' environments: what is installed for each, at which version, and how. Used by tests/benchmarks/peers.py.

Each is a virtual environment of the Python that runs this, or a folder into which cargo installs, under one folder. One
that has been made for the packages that are wanted is used again.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

_RUST_PIPELINE = ("zarr==3.4.2", "zarrs==0.2.3")


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """What one peer needs."""

    packages: tuple[str, ...]
    """As pip takes them, or for cargo ``name@version``."""
    program: str = "python"
    """What is run in it; anything but ``python`` is a program that cargo builds."""

    @property
    def title(self) -> str:
        """The peer and its version, which come first."""
        return self.packages[0].replace("==", " ").replace("@", " ")

    def path(self, folder: Path) -> Path:
        """Where its program is, if it has been made under ``folder``."""
        return folder / "bin" / self.program


ENVIRONMENTS = {
    "zarr": Environment(packages=_RUST_PIPELINE[::-1]),
    "tensorstore": Environment(packages=("tensorstore==0.1.86",)),
    "zarrs_tools": Environment(packages=("zarrs_tools@0.8.1",), program="zarrs_reencode"),
    "dask": Environment(packages=("dask==2026.8.0", "distributed==2026.8.0", *_RUST_PIPELINE)),
    "rechunker": Environment(packages=("rechunker==0.5.4", "dask==2026.8.0", "zarr==2.18.7")),
    "cubed": Environment(packages=("cubed==0.28.0", *_RUST_PIPELINE)),
    "xarray-beam": Environment(packages=("xarray-beam==0.11.5", "apache-beam==2.77.0", *_RUST_PIPELINE)),
    "rechunkit": Environment(packages=("rechunkit==0.6.0", *_RUST_PIPELINE)),
}


def default_folder() -> Path:
    """Where environments are kept if nobody says."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rechunk_exec" / "peers"


def prepare(name: str, parent: Path) -> Path:
    """Make an environment if it is not there; return its program.

    Raises
    ------
    subprocess.CalledProcessError
        If it cannot be made. What was begun is not taken for an environment later.
    """
    environment, folder = ENVIRONMENTS[name], (parent / name).absolute()
    made_for, wanted = folder / "made-for.txt", "\n".join(environment.packages)
    if made_for.exists() and made_for.read_text() == wanted:
        return environment.path(folder)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    print(f"preparing {folder}: {', '.join(environment.packages)}", file=sys.stderr, flush=True)
    if environment.program == "python":
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run([environment.path(folder), "-m", "pip", "install", "--quiet", *environment.packages], check=True)
    else:
        build = folder / "build"
        command = ["cargo", "install", "--quiet", "--root", str(folder)]
        command += ["--target-dir", str(build), "--bin", environment.program]
        subprocess.run([*command, *environment.packages], check=True)
        shutil.rmtree(build)
    made_for.write_text(wanted)
    return environment.path(folder)
