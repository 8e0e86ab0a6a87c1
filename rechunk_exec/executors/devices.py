"""Which devices there are, which of them a pool pins its workers to, and what each may hold. Layer: executors.

Nothing here starts CUDA.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rechunk_exec.errors import PlanError
from rechunk_exec.sizes import format_bytes

VISIBLE = "CUDA_VISIBLE_DEVICES"
"""The variable that CUDA reads once, when it starts in a process."""
_SHARE = 0.8
"""Of a device's memory, what a pool takes if it is not told: CUDA itself and others need some."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundDevice:
    """A device of this machine."""

    name: str
    """What pins a process to it, whatever the order of devices: a UUID."""
    total_bytes: int
    """Its memory."""


def visible_devices(environment: Mapping[str, str], found: Sequence[FoundDevice]) -> tuple[str, ...]:
    """Return what to pin workers to: the devices that this process may see, in order.

    As CUDA reads the variable: what comes after an entry that is no device does not count.

    Examples
    --------
    >>> two = [FoundDevice(name=name, total_bytes=1) for name in ("GPU-a", "GPU-b")]
    >>> visible_devices({}, two), visible_devices({"CUDA_VISIBLE_DEVICES": "1,-1,0"}, two)
    (('GPU-a', 'GPU-b'), ('1',))
    """
    if VISIBLE not in environment:
        return tuple(device.name for device in found)
    names: list[str] = []
    for entry in environment[VISIBLE].split(","):
        name = entry.strip()
        if not (name.startswith(("GPU-", "MIG-")) or (name.isdigit() and int(name) < len(found))):
            break
        names.append(name)
    return tuple(names)


def device_budget(asked: int | None, found: Sequence[FoundDevice]) -> int:
    """Return how many bytes a worker may hold on its device: what was asked for, else a share of the smallest.

    Raises
    ------
    PlanError
        If no device has as much, or there is none to take a share of.
    """
    least = min((device.total_bytes for device in found), default=0)
    if asked is None:
        if not least:
            raise PlanError("device_max_mem must be given where no device tells its memory; got None")
        return int(least * _SHARE)
    if least and asked > least:
        raise PlanError(
            f"device_max_mem must be no more than a device has; got {format_bytes(asked)} of {format_bytes(least)}"
        )
    return asked


def nvml_devices() -> tuple[FoundDevice, ...]:
    """Return the NVIDIA devices of this machine, as its driver tells them without starting CUDA; none without one.

    Uses the `NVIDIA Management Library <https://docs.nvidia.com/deploy/nvml-api/>`_, which comes with the driver.
    """
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        if nvml.nvmlInit_v2():
            return ()
    except (OSError, AttributeError):
        return ()
    try:
        count = ctypes.c_uint()
        if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)):
            return ()
        return tuple(device for number in range(count.value) if (device := _nvml_device(nvml, number)) is not None)
    finally:
        nvml.nvmlShutdown()


class _NvmlMemory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


def _nvml_device(nvml: ctypes.CDLL, number: int) -> FoundDevice | None:
    handle, name, memory = ctypes.c_void_p(), ctypes.create_string_buffer(96), _NvmlMemory()
    if (
        nvml.nvmlDeviceGetHandleByIndex_v2(number, ctypes.byref(handle))
        or nvml.nvmlDeviceGetUUID(handle, name, len(name))
        or nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory))
    ):
        return None
    return FoundDevice(name=name.value.decode(), total_bytes=memory.total)
