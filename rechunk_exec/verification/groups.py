"""Comparing what two names stand for: two arrays, or all arrays of two groups."""

from __future__ import annotations

from dataclasses import replace

from rechunk_exec import storage
from rechunk_exec.errors import StorageError
from rechunk_exec.storage import Members, StoredArray
from rechunk_exec.tasks import ArrayRef
from rechunk_exec.verification.compare import Pair, VerifyOptions, compared, verify_arrays
from rechunk_exec.verification.crew import Crew, crew_of
from rechunk_exec.verification.report import DifferingBox, VerifyReport, joined

_SIDES = ("source", "target")


def verify_nodes(source: ArrayRef, target: ArrayRef, options: VerifyOptions) -> VerifyReport:
    """Compare two arrays, or the arrays of two groups by path; see :func:`rechunk_exec.verify`.

    In groups, an array that is on one side only, or whose shape or dtype is another one in the target, is a difference,
    and so is an array or group that cannot be opened, such as of damaged metadata, or an array whose source cannot be
    read; the others are compared.

    Raises
    ------
    StorageError
        If one is an array and the other a group; if what is there cannot be opened; of two arrays, if the source cannot
        be read, or shapes or dtypes differ; of groups, if an array cannot be opened or read for a reason that may pass.
    BudgetError
        If ``max_mem`` is too little to read a chunk.
    """
    ours, theirs = storage.members_of(source), storage.members_of(target)
    if ours is None and theirs is None:
        return verify_arrays(source, target, options)
    if ours is None or theirs is None:
        group, array = (target, source) if ours is None else (source, target)
        raise StorageError(
            f"two arrays or two groups can be compared; got the group {group} and the array {array}; name an array "
            "inside the group"
        )
    sides = (ours, theirs)
    paths = {path for side in sides for path in (*side.arrays, *side.damaged)}
    with crew_of(options.executor, (source, target)) as crew:
        found = joined([(path, _member((source, target), sides, path, options, crew)) for path in sorted(paths)])
        return replace(found, unfinished=options.unfinished, executor=crew.pool.name)


def _member(
    groups: tuple[ArrayRef, ArrayRef], sides: tuple[Members, Members], path: str, options: VerifyOptions, crew: Crew
) -> VerifyReport:
    """Compare what is at one path of two groups."""
    one, other = (replace(group, path="/".join(filter(None, (group.path, path)))) for group in groups)
    opened: dict[str, StoredArray] = {}
    problems = []
    for ref, side, name in zip((one, other), sides, _SIDES, strict=True):
        if path in side.damaged:
            problems.append(f"it cannot be opened in the {name}: {side.damaged[path]}")
        # What is in a group that cannot be opened is not listed, and may be there.
        elif path in side.arrays or any(path.startswith(f"{node}/") for node in side.damaged):
            try:
                opened[name] = storage.open_array(ref, read_only=True)
            except StorageError as error:
                if storage.has_outlasted(error):
                    raise
                problems.append(f"it cannot be opened in the {name}: {error}")
    if len(opened) < len(_SIDES):
        return _not_compared([*opened.values()], "; ".join(problems) or f"it is in the {next(iter(opened))} only")
    pair = Pair(one, other, (opened["source"], opened["target"]))
    problem = pair.mismatch()
    if problem:
        return _not_compared([*opened.values()], f"shapes and dtypes must be the same; {problem}")
    try:
        return compared(pair, options, crew)
    except StorageError as error:
        if not error.permanent:
            raise
        return _not_compared([*opened.values()], f"it cannot be read in the source: {error}")


def _not_compared(opened: list[StoredArray], reason: str) -> VerifyReport:
    """Report an array that cannot be compared, given those sides of it that could be opened."""
    shape = opened[0].shape if opened else ()
    box = DifferingBox(start=(0,) * len(shape), stop=shape, reason=reason)
    return VerifyReport(differing=(box,), boxes=0, bytes_read=0)
