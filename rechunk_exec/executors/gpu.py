"""A pool with one worker process for each NVIDIA device, which decodes and encodes on it. Layer: executors.

A worker is pinned to its device before CUDA starts in it, makes its pool of device memory before its first task, and
tries each codec both ways against the CPU's. All else is as with processes: tasks, memory of the host, and shards,
which are put together there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rechunk_exec import storage
from rechunk_exec.errors import PlanError, RechunkError
from rechunk_exec.executors.base import check_count
from rechunk_exec.executors.devicequeue import DeviceBackend, DeviceQueue
from rechunk_exec.executors.devices import VISIBLE, FoundDevice, device_budget, nvml_devices, visible_devices
from rechunk_exec.executors.nvcomp import NvcompBackend, refuse_missing
from rechunk_exec.executors.processes import ProcessesExecutor
from rechunk_exec.sizes import format_bytes, parse_bytes


class GpuExecutor(ProcessesExecutor):
    """Runs tasks in one process for each GPU, one at a time in each; keeps them, and their CUDA, until it closes.

    Parameters
    ----------
    workers : int, optional
        How many devices to use. Default: all that ``CUDA_VISIBLE_DEVICES`` lets this process see.
    device_max_mem : int or str, optional
        What a worker may hold on its device at once, such as ``"8GB"``; apart from ``max_mem``, which bounds its
        memory on the host. It decides how many chunks are in flight on the device. Default: 80 % of the smallest
        device.
    rmm_pool_bytes : int or str, optional
        Size of the pool of device memory that each worker makes when it starts. Default: ``device_max_mem``, and never
        less than that.
    codecs : sequence of str
        What is decoded and encoded on the devices, of ``"zstd"``, ``"lz4"`` and ``"deflate"`` (zlib and gzip). All else
        is done on the host; reports name the way, ``gpu`` or another.

    Raises
    ------
    RechunkError
        If there is no device.
    MissingExtraError
        If a package is not installed.
    PlanError
        If the devices have not so much memory, or a codec is not among those shared.
    """

    name = "gpu"
    find_devices: Callable[[], Sequence[FoundDevice]] = staticmethod(nvml_devices)
    """What devices there are; anything but the default is for tests. So is what follows."""
    open_backend: Callable[[int], DeviceBackend] = NvcompBackend
    refuse_missing: Callable[[], None] = staticmethod(refuse_missing)

    def __init__(
        self,
        workers: int | None = None,
        *,
        device_max_mem: int | str | None = None,
        rmm_pool_bytes: int | str | None = None,
        codecs: Sequence[str] = storage.DEVICE_ALGORITHMS,
    ) -> None:
        unknown = [name for name in codecs if name not in storage.DEVICE_ALGORITHMS]
        if unknown or isinstance(codecs, str):
            raise PlanError(f"codecs must be some of {', '.join(storage.DEVICE_ALGORITHMS)}; got {codecs!r}")
        found = self.find_devices()
        visible = visible_devices(os.environ, found)
        if not visible:
            raise RechunkError(
                f"executor 'gpu' needs an NVIDIA GPU that this process may see; got {len(found)} devices and {VISIBLE}="
                f"{os.environ.get(VISIBLE, '(not set)')}; use executor='threads', which gives the same bytes"
            )
        self.refuse_missing()
        wanted = len(visible) if workers is None else check_count("workers", workers)
        if wanted > len(visible):
            raise PlanError(f"a worker has a device to itself; got workers={wanted} for {len(visible)} devices")
        super().__init__(wanted)
        self.devices = visible[:wanted]
        """What each worker is pinned to."""
        self.device_max_mem = device_budget(_bytes("device_max_mem", device_max_mem), found)
        """What each may hold on its device, in bytes."""
        pool_bytes = _bytes("rmm_pool_bytes", rmm_pool_bytes) or self.device_max_mem
        if pool_bytes < self.device_max_mem:
            raise PlanError(
                f"rmm_pool_bytes must be at least device_max_mem; got {format_bytes(pool_bytes)} for "
                f"{format_bytes(self.device_max_mem)}; make one larger or the other smaller"
            )
        self._codecs = tuple(codecs)
        self._workers.variables = tuple({VISIBLE: name} for name in self.devices)
        # As run_on_workers does it, but nothing is started before it is needed.
        open_device = OpenDevice(type(self).open_backend, pool_bytes, self.device_max_mem, self._codecs)
        self._workers.set_ups.append(self.put(open_device))

    def _notes(self) -> tuple[str, ...]:
        return (
            f"{len(self.devices)} devices, {format_bytes(self.device_max_mem)} of each, for {', '.join(self._codecs)}",
        )


@dataclass(frozen=True, slots=True)
class OpenDevice:
    """What a worker calls once, before its first task."""

    open_backend: Callable[[int], DeviceBackend]
    pool_bytes: int
    budget_bytes: int
    codecs: tuple[str, ...]

    def __call__(self) -> None:
        """Make the pool of device memory, try the codecs, and decode and encode on the device from now on."""
        queue = DeviceQueue(self.open_backend(self.pool_bytes), self.budget_bytes, self.codecs)
        storage.try_device(queue, self.codecs)
        storage.use_device(queue)


def _bytes(name: str, size: int | str | None) -> int | None:
    return None if size is None else parse_bytes(size, name=name)
