"""Comparing what two names stand for: two arrays, or all arrays of two groups."""

from __future__ import annotations

from dataclasses import replace

from rechunk_exec import storage
from rechunk_exec.errors import StorageError
from rechunk_exec.tasks import ArrayRef
from rechunk_exec.verification.compare import Pair, VerifyOptions, compared, verify_arrays
from rechunk_exec.verification.crew import Crew, crew_of
from rechunk_exec.verification.report import DifferingBox, VerifyReport, joined


def verify_nodes(source: ArrayRef, target: ArrayRef, options: VerifyOptions) -> VerifyReport:
    """Compare two arrays, or the arrays of two groups by path; see :func:`rechunk_exec.verify`.

    In groups, an array that is on one side only, that cannot be opened in the target, or whose shape or dtype is
    another one there is a difference, and the others are compared.

    Raises
    ------
    StorageError
        If one is an array and the other a group; if what is there cannot be opened, or the source cannot be read; for
        two arrays, if shapes or dtypes differ.
    BudgetError
        If ``max_mem`` is too little to read a chunk.
    """
    ours = storage.array_paths(source)
    try:
        theirs = storage.array_paths(target)
    except StorageError:
        if ours is None or not _opens_in_part(target, ours):
            raise
        theirs = ours  # one that cannot be opened, such as of damaged metadata, keeps the group from being listed
    if ours is None and theirs is None:
        return verify_arrays(source, target, options)
    if ours is None or theirs is None:
        group, array = (target, source) if ours is None else (source, target)
        raise StorageError(
            f"two arrays or two groups can be compared; got the group {group} and the array {array}; name an array "
            "inside the group"
        )
    reports = []
    with crew_of(options.executor, (source, target)) as crew:
        for path in sorted({*ours, *theirs}):
            if path in ours and path in theirs:
                reports.append((path, _member(source, target, path, options, crew)))
            else:
                there, name = (source, "source") if path in ours else (target, "target")
                reports.append((path, _alone(_member_ref(there, path), f"it is in the {name} only")))
        found = joined(reports)
        return replace(found, unfinished=options.unfinished, executor=crew.pool.name)


def _opens_in_part(group: ArrayRef, paths: tuple[str, ...]) -> bool:
    """Whether some arrays of a group can be opened, and others cannot."""
    opened = set()
    for path in paths:
        try:
            storage.open_array(_member_ref(group, path), read_only=True)
        except StorageError:
            opened.add(False)
        else:
            opened.add(True)
    return len(opened) > 1


def _member(source: ArrayRef, target: ArrayRef, path: str, options: VerifyOptions, crew: Crew) -> VerifyReport:
    one, other = _member_ref(source, path), _member_ref(target, path)
    try:
        storage.open_array(other, read_only=True)
    except StorageError as error:
        return _alone(one, _cannot_be_opened(error))
    pair = Pair.opened(one, other)
    problem = pair.mismatch()
    return _alone(one, f"shapes and dtypes must be the same; {problem}") if problem else compared(pair, options, crew)


def _alone(ref: ArrayRef, reason: str) -> VerifyReport:
    """Report an array that has nothing to be compared with."""
    shape = storage.open_array(ref, read_only=True).shape
    box = DifferingBox(start=(0,) * len(shape), stop=shape, reason=reason)
    return VerifyReport(differing=(box,), boxes=0, bytes_read=0)


def _member_ref(group: ArrayRef, path: str) -> ArrayRef:
    return replace(group, path="/".join(filter(None, (group.path, path))))


def _cannot_be_opened(error: StorageError) -> str:
    return f"it cannot be opened in the target: {error}"
