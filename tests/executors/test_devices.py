"""Which devices, and how much of each."""

from __future__ import annotations

import pytest

from rechunk_exec.errors import PlanError
from rechunk_exec.executors.devices import FoundDevice, device_budget, nvml_devices, visible_devices

FOUND = [FoundDevice(name=f"GPU-{letter}", total_bytes=size) for letter, size in (("a", 1000), ("b", 500), ("c", 800))]


@pytest.mark.parametrize(
    "variable, names",
    [
        (None, ("GPU-a", "GPU-b", "GPU-c")),
        ("2, 0", ("2", "0")),
        ("", ()),
        ("-1", ()),
        ("1,-1,0", ("1",)),
        ("0,3,1", ("0",)),
        ("NoDevFiles", ()),
        ("GPU-xyz,MIG-1/2", ("GPU-xyz", "MIG-1/2")),
    ],
)
def test_visible_devices(variable: str | None, names: tuple[str, ...]) -> None:
    assert visible_devices({} if variable is None else {"CUDA_VISIBLE_DEVICES": variable}, FOUND) == names


def test_budgets() -> None:
    assert device_budget(None, FOUND) == 400
    assert device_budget(500, FOUND) == 500
    with pytest.raises(PlanError, match="got 501 B of 500 B"):
        device_budget(501, FOUND)
    with pytest.raises(PlanError, match="must be given"):
        device_budget(None, [])
    assert device_budget(10**12, []) == 10**12


def test_a_machine_without_the_driver_has_no_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr("ctypes.CDLL", missing)
    assert nvml_devices() == ()
