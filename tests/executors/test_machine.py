from __future__ import annotations

import os
from pathlib import Path

import pytest

from rechunk_exec.executors.machine import available_cores, memory_left, memory_limit

CORES = len(os.sched_getaffinity(0))
PHYSICAL = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


class FakeMachine:
    """What the kernel says of a process and its control groups, as files."""

    def __init__(self, folder: Path) -> None:
        self.proc = folder / "proc"
        self.mounts = folder / "mount point"
        self.proc.mkdir()
        self.mounts.mkdir()
        self.cgroup = ""
        self.mountinfo = "22 1 0:21 / /proc rw,nosuid shared:12 - proc proc rw\n"

    def mount(self, kind: str, options: str, root: str = "/") -> None:
        point = str(self.mounts / options).replace(" ", "\\040")
        self.mountinfo += f"31 23 0:28 {root} {point} rw,relatime shared:9 - {kind} {kind} {options}\n"

    def write(self, path: str, text: str) -> None:
        file = self.mounts / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")

    def ready(self) -> Path:
        (self.proc / "cgroup").write_text(self.cgroup)
        (self.proc / "mountinfo").write_text(self.mountinfo)
        return self.proc


@pytest.fixture
def machine(tmp_path: Path) -> FakeMachine:
    return FakeMachine(tmp_path)


def test_this_machine() -> None:
    assert 1 <= available_cores() <= CORES
    assert 0 < memory_limit() <= PHYSICAL


def test_no_control_groups(tmp_path: Path) -> None:
    assert available_cores(tmp_path) == CORES
    assert memory_limit(tmp_path) == PHYSICAL
    assert 0 < memory_left(tmp_path) < PHYSICAL


@pytest.mark.parametrize(
    "quota, cores", [("100000 100000", 1), ("50000 100000", 1), ("1000 100000", 1), ("max 100000", CORES)]
)
def test_version_2_cores(machine: FakeMachine, quota: str, cores: int) -> None:
    machine.cgroup = "0::/job\n"
    machine.mount("cgroup2", "rw")
    machine.write("rw/job/cpu.max", quota)
    assert available_cores(machine.ready()) == min(CORES, cores)


def test_version_2_memory(machine: FakeMachine) -> None:
    machine.cgroup = "0::/user/job\n"
    machine.mount("cgroup2", "rw")
    machine.write("rw/user/job/memory.max", "max")
    assert memory_limit(machine.ready()) == PHYSICAL
    machine.write("rw/user/job/memory.max", "500000000")
    assert memory_limit(machine.ready()) == 500_000_000
    machine.write("rw/user/memory.max", "400000000")
    assert memory_limit(machine.ready()) == 400_000_000, "a parent group limits too"


def test_version_1(machine: FakeMachine) -> None:
    machine.cgroup = "4:memory:/job\n1:cpu,cpuacct:/job\n0::/\n"
    machine.mount("cgroup", "rw,memory")
    machine.mount("cgroup", "rw,cpu,cpuacct")
    machine.write("rw,memory/job/memory.limit_in_bytes", "300000000")
    machine.write("rw,memory/memory.limit_in_bytes", "9223372036854771712")
    machine.write("rw,cpu,cpuacct/job/cpu.cfs_quota_us", "100000")
    machine.write("rw,cpu,cpuacct/job/cpu.cfs_period_us", "100000")
    machine.write("rw,cpu,cpuacct/cpu.cfs_quota_us", "-1")
    machine.write("rw,cpu,cpuacct/cpu.cfs_period_us", "100000")
    assert memory_limit(machine.ready()) == 300_000_000
    assert available_cores(machine.ready()) == 1


def test_a_container_that_sees_its_own_group_as_the_root(machine: FakeMachine) -> None:
    machine.cgroup = "4:memory:/docker/abc\n"
    machine.mount("cgroup", "rw,memory", root="/docker/abc")
    machine.write("rw,memory/memory.limit_in_bytes", "200000000")
    assert memory_limit(machine.ready()) == 200_000_000


@pytest.mark.parametrize("path", ["/of/the/host", "/../../elsewhere"])
def test_a_container_whose_group_is_named_as_on_its_host(machine: FakeMachine, path: str) -> None:
    machine.cgroup = f"0::{path}\n"
    machine.mount("cgroup2", "rw")
    machine.write("rw/memory.max", "100000000")
    assert memory_limit(machine.ready()) == 100_000_000


def test_version_2_leaves_what_is_not_used_but_for_idle_files(machine: FakeMachine) -> None:
    machine.cgroup = "0::/user/job\n"
    machine.mount("cgroup2", "rw")
    machine.write("rw/user/job/memory.max", "50000000")
    machine.write("rw/user/job/memory.current", "30000000")
    machine.write("rw/user/job/memory.stat", "anon 20000000\ninactive_file 7000000\nactive_file 3000000")
    assert memory_left(machine.ready()) == 27_000_000
    machine.write("rw/user/job/memory.high", "48000000")
    assert memory_left(machine.ready()) == 25_000_000, "beyond its high mark a group is held up"
    machine.write("rw/user/memory.max", "60000000")
    machine.write("rw/user/memory.current", "58000000")
    assert memory_left(machine.ready()) == 2_000_000, "others in the parent group use its memory"
    machine.write("rw/user/memory.current", "61000000")
    assert memory_left(machine.ready()) == 0
    machine.write("rw/user/memory.max", "max")
    machine.write("rw/user/job/memory.high", "max")
    assert memory_left(machine.ready()) == 27_000_000


def test_version_1_leaves_what_is_not_used_but_for_idle_files(machine: FakeMachine) -> None:
    machine.cgroup = "4:memory:/job\n"
    machine.mount("cgroup", "rw,memory")
    machine.write("rw,memory/job/memory.limit_in_bytes", "30000000")
    machine.write("rw,memory/job/memory.usage_in_bytes", "12000000")
    machine.write("rw,memory/job/memory.stat", "inactive_file 100\ntotal_inactive_file 5000000\nhierarchical limit x")
    machine.write("rw,memory/memory.limit_in_bytes", "9223372036854771712")
    machine.write("rw,memory/memory.usage_in_bytes", "12000000")
    assert memory_left(machine.ready()) == 23_000_000


def test_a_limit_without_a_usage_is_left_whole(machine: FakeMachine) -> None:
    machine.cgroup = "0::/\n"
    machine.mount("cgroup2", "rw")
    machine.write("rw/memory.max", "10000000")
    assert memory_left(machine.ready()) == 10_000_000
