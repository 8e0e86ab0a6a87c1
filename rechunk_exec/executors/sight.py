"""What a driver asks of worker processes that others started: versions, and sight of the arrays. Layer: executors.

Such a worker may be another machine, with other packages and other disks. It is asked before anything runs: a job that
it cannot do would fail one task at a time, or worse, write to a folder of the same name on a disk of its own.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rechunk_exec import storage
from rechunk_exec.errors import RechunkError
from rechunk_exec.tasks import ArrayRef, Stage

NEEDED_ALIKE = "rechunk_exec"
"""The package that must be of one version everywhere: tasks and results pickle by position."""
COMPARED = (NEEDED_ALIKE, "zarr", "numcodecs")
"""The packages that decide what a task does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Landmarks:
    """What this process sees of the arrays of some stages, and its workers should see too."""

    paths: tuple[str, ...]
    """The local arrays, or the nearest folders above them that exist."""
    arrays: tuple[ArrayRef, ...]
    """Arrays elsewhere that exist."""

    @classmethod
    def of(cls, stages: Iterable[Stage]) -> Landmarks:
        """Return those of the arrays that the stages read and write. Opens the ones that are not local."""
        refs = {ref.key: ref for stage in stages for ref in (stage.source, stage.target)}.values()
        places = [(ref, storage.local_path(ref)) for ref in refs]
        return cls(
            paths=tuple(dict.fromkeys(str(_nearest(path)) for _, path in places if path is not None)),
            arrays=tuple(ref for ref, path in places if path is None and not _problem(ref)),
        )


def versions() -> dict[str, str]:
    """Return the versions of the packages that decide what a task does, as they are installed here."""
    return {name: _version(name) for name in COMPARED}


def differences(there: Mapping[str, str]) -> dict[str, str]:
    """Return how the versions of a worker differ from those here: by package, both versions, for people.

    Examples
    --------
    >>> differences(versions())
    {}
    """
    here = versions()
    return {
        name: f"{name} {there.get(name)} there and {here[name]} here"
        for name in COMPARED
        if there.get(name) != here[name]
    }


def unseen(landmarks: Landmarks) -> tuple[str, ...]:
    """Return what this process does not see of what another one sees, for people."""
    paths = [f"{path}: it does not exist there" for path in landmarks.paths if not Path(path).exists()]
    arrays = [f"{ref}: {problem}" for ref in landmarks.arrays if (problem := _problem(ref))]
    return (*paths, *arrays)


def summary(problems: Sequence[str], shown: int = 3) -> str:
    """Return the first few of many problems, for people.

    Examples
    --------
    >>> summary(["a", "b", "c", "d"])
    'a; b; c; and 1 more'
    """
    more = (f"and {len(problems) - shown} more",) if len(problems) > shown else ()
    return "; ".join((*problems[:shown], *more))


def _nearest(path: Path) -> Path:
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def _problem(ref: ArrayRef) -> str:
    """Why an array cannot be opened here; empty if it can."""
    try:
        storage.open_array(ref, read_only=True)
    except (RechunkError, OSError) as error:
        return str(error)
    return ""


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
