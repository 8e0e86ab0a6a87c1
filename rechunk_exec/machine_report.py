"""What this machine offers a rechunk, for ``rechunk-exec info``. Layer: beside cli.

Figures are those that this process may really use: cores by its affinity and its cgroup, memory by its cgroup and the
machine's.
"""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import zarr
from zarr.codecs import BloscCodec

from rechunk_exec.executors import available_cores, memory_limit
from rechunk_exec.report.tally import format_seconds
from rechunk_exec.sizes import format_bytes
from rechunk_exec.storage.viazarr import zarrs_pipeline

REQUIRED = ("rechunk_exec", "zarr", "numcodecs", "zarrs", "numpy", "rich", "click", "psutil", "threadpoolctl")
OPTIONAL = ("distributed", "apache-beam", "apache-flink", "cupy-cuda12x", "xarray", "h5py", "s3fs", "icechunk")

TOUCHED_BYTES = 2 * 2**30
"""How much fresh memory the health check touches, where that much is free."""
HEALTHY_SECONDS_PER_BYTE = 0.6 / TOUCHED_BYTES
"""A healthy machine takes about 0.2 s for 2 GiB; three times that is called slow."""

_PAGE_BYTES = 4096
_IDLE_WORKER = "import psutil, rechunk_exec.copy; print(psutil.Process().memory_info().rss)"


@dataclass(frozen=True, slots=True, kw_only=True)
class FreshMemory:
    """The time to touch memory that the process did not have before."""

    touched_bytes: int
    seconds: float

    @property
    def healthy(self) -> bool:
        """Whether fresh memory comes at the usual speed."""
        return self.seconds <= HEALTHY_SECONDS_PER_BYTE * self.touched_bytes

    def __str__(self) -> str:
        verdict = "healthy" if self.healthy else "SLOW: this machine is late in handing out memory, copies will be too"
        return f"{format_bytes(self.touched_bytes)} touched in {format_seconds(self.seconds)} ({verdict})"


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineReport:
    """What the machine offers. Sizes are in bytes."""

    python: str
    platform: str
    cores: int
    """Cores that this process may use."""
    memory_limit: int
    """Memory that this process may use: the cgroup's limit, or the machine's memory."""
    memory_available: int
    """Memory that the machine could hand out now."""
    disk_path: str
    disk_free: int
    """Free space of the file system of ``disk_path``."""
    idle_worker_bytes: int
    """Resident memory of a worker process before its first task, which comes on top of ``max_mem``."""
    fresh_memory: FreshMemory
    zarrs: str
    """Whether the codec pipeline of the package zarrs serves, or why not."""
    versions: dict[str, str]
    """Installed versions; optional packages that are missing are not listed."""

    def facts(self) -> list[tuple[str, str]]:
        """Names and values for people."""
        missing = [name for name in OPTIONAL if name not in self.versions]
        return [
            ("python", f"{self.python}, {self.platform}"),
            ("cores", f"{self.cores} that this process may use"),
            (
                "memory",
                f"{format_bytes(self.memory_limit)} allowed, {format_bytes(self.memory_available)} available now",
            ),
            ("disk", f"{format_bytes(self.disk_free)} free for {self.disk_path}"),
            ("idle worker", f"{format_bytes(self.idle_worker_bytes)} a process, on top of max_mem"),
            ("fresh memory", str(self.fresh_memory)),
            ("zarrs", self.zarrs),
            *self.versions.items(),
            ("not installed", ", ".join(missing) or "nothing"),
        ]


def inspect_machine(folder: Path) -> MachineReport:
    """Look at the machine; ``folder`` is on the disk that is asked about. It takes a few seconds."""
    memory = psutil.virtual_memory()
    allowed = memory_limit()
    return MachineReport(
        python=platform.python_version(),
        platform=platform.platform(),
        cores=available_cores(),
        memory_limit=allowed,
        memory_available=min(memory.available, allowed),
        disk_path=str(folder),
        disk_free=psutil.disk_usage(str(folder)).free,
        idle_worker_bytes=idle_worker_bytes(),
        fresh_memory=touch_fresh_memory(min(TOUCHED_BYTES, memory.available // 4, allowed // 4)),
        zarrs=zarrs_service(),
        versions={name: version for name in (*REQUIRED, *OPTIONAL) if (version := installed_version(name))},
    )


def touch_fresh_memory(size: int) -> FreshMemory:
    """Write one byte to each page of ``size`` bytes of new memory, and give them back."""
    size = max(size, _PAGE_BYTES)
    started = time.perf_counter()
    pages = np.empty(size, dtype=np.uint8)
    pages[::_PAGE_BYTES] = 1
    return FreshMemory(touched_bytes=size, seconds=time.perf_counter() - started)


def idle_worker_bytes() -> int:
    """Resident memory of a new process that has imported what a worker needs."""
    command = [sys.executable, "-c", _IDLE_WORKER]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def installed_version(name: str) -> str | None:
    """Version of an installed distribution, without importing it.

    >>> installed_version("no-such-distribution") is None
    True
    """
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def zarrs_service() -> str:
    """Whether the Rust codec pipeline of zarrs serves a sharded array with Blosc here."""
    with tempfile.TemporaryDirectory() as folder:
        array = zarr.create_array(
            folder, shape=(8, 8), shards=(4, 4), chunks=(2, 2), dtype="f4", compressors=BloscCodec()
        )
        try:
            pipeline = zarrs_pipeline(array.metadata, array.store, array.dtype)
        except ImportError as error:
            return f"cannot be imported: {error}"
    return "serves" if pipeline is not None else "does not serve; zarr's own codecs are used where it would"
