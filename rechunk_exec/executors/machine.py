"""What this machine offers to this process: cores and memory, within the limits of its container. Layer: executors.

A container shares its host's ``/proc`` and sees all of its cores and memory; what it may use is in its control groups
(`cgroups <https://docs.kernel.org/admin-guide/cgroup-v2.html>`_, both versions), where each parent group limits too.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

import psutil

_PROC = Path("/proc/self")
_THREAD_LIMITS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "RAYON_NUM_THREADS",
)


def available_cores(proc: Path = _PROC) -> int:
    """Return how many cores this process may really use, at least 1.

    That is the cores it may be scheduled on, or if less, the processor time that its control groups allow, rounded up.

    Parameters
    ----------
    proc : Path
        Where the kernel describes this process.

    Examples
    --------
    >>> 1 <= available_cores() <= os.cpu_count()
    True
    """
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not on this system
        cores = os.cpu_count() or 1
    quotas = [math.ceil(quota) for quota in _cpu_quotas(proc)]
    return max(1, min([cores, *quotas]))


def memory_limit(proc: Path = _PROC) -> int:
    """Return the bytes of memory that this process can have: the machine's, or what its control groups allow if less.

    Parameters
    ----------
    proc : Path
        Where the kernel describes this process.

    Examples
    --------
    >>> memory_limit() > 0
    True
    """
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([physical, *_memory_limits(proc)])


def memory_left(proc: Path = _PROC) -> int:
    """Return the bytes that this process can have on top of what is in use: the machine's, or its groups' if less.

    What a group holds of files that were not used lately can be given back at once, and counts as left.

    Parameters
    ----------
    proc : Path
        Where the kernel describes this process.

    Examples
    --------
    >>> 0 <= memory_left() <= memory_limit()
    True
    """
    return max(0, min([psutil.virtual_memory().available, *_memory_leavings(proc)]))


def thread_limits(cores: int) -> dict[str, str]:
    """Return the environment variables that bound the thread pools of libraries in a process to ``cores``.

    Where this process has a lower bound already, that is kept.

    Examples
    --------
    >>> thread_limits(1)["OMP_NUM_THREADS"]
    '1'
    """
    given = {name: os.environ.get(name, "") for name in _THREAD_LIMITS}
    return {
        name: str(min(cores, int(text))) if text.isdigit() and int(text) else str(cores) for name, text in given.items()
    }


def _cpu_quotas(proc: Path) -> Iterator[float]:
    """Each limit on processor time that holds for this process, in cores."""
    for folder in _groups(proc, "cpu"):
        numbers = _read(folder / "cpu.max").split()  # version 2: "200000 100000", or "max 100000"
        numbers = numbers or [_read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")]
        if len(numbers) == 2 and all(number.isdigit() for number in numbers) and int(numbers[1]):
            yield int(numbers[0]) / int(numbers[1])


def _memory_limits(proc: Path) -> Iterator[int]:
    """Each limit on memory that holds for this process, in bytes. None is "max" in version 2, a huge number in 1."""
    for folder in _groups(proc, "memory"):
        limit = _read(folder / "memory.max") or _read(folder / "memory.limit_in_bytes")
        if limit.isdigit():
            yield int(limit)


def _memory_leavings(proc: Path) -> Iterator[int]:
    """What each limit on memory leaves, in bytes; less than 0 where more is in use."""
    for folder in _groups(proc, "memory"):
        newer = [_read(folder / "memory.max"), _read(folder / "memory.high")]  # beyond "high" processes are held up
        limits = newer if any(newer) else [_read(folder / "memory.limit_in_bytes")]
        used = _read(folder / "memory.current") or _read(folder / "memory.usage_in_bytes")
        stats = dict(line.split()[:2] for line in _read(folder / "memory.stat").splitlines() if " " in line)
        idle = stats.get("total_inactive_file") or stats.get("inactive_file", "0")  # version 1 has both
        for limit in limits:
            if limit.isdigit():
                yield int(limit) - (int(used) if used.isdigit() else 0) + int(idle)


def _groups(proc: Path, controller: str) -> Iterator[Path]:
    """The folders of the groups of this process that may limit ``controller``, each with its parents."""
    own: dict[str, str] = {}
    for line in _read(proc / "cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        own |= dict.fromkeys(controllers.split(","), path)  # version 2 has no controllers here: the name ""
    for line in _read(proc / "mountinfo").splitlines():
        mount, _, system = line.partition(" - ")
        root, point = mount.split()[3:5]
        kind, *_, options = system.split()
        group = {"cgroup2": "", "cgroup": controller}.get(kind)
        if group in own and (group == "" or controller in options.split(",")):
            yield from _with_parents(Path(point.replace("\\040", " ")), root, own[group])


def _with_parents(mount: Path, root: str, path: str) -> Iterator[Path]:
    """The folder of group ``path`` and of its parents, as far as ``mount``, where the group ``root`` is, shows them."""
    parts = Path(path).parts[1:]
    above = Path(root).parts[1:]
    # Inside a container the path may be one of the host, which is not to be seen here: then the mount is the own group.
    parts = parts[len(above) :] if parts[: len(above)] == above and ".." not in parts else ()
    for depth in range(len(parts), -1, -1):
        folder = mount.joinpath(*parts[:depth])
        if folder.is_dir():
            yield folder


def _read(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""
