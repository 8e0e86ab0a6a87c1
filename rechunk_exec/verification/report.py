"""What comparing arrays found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class DifferingBox:
    """A box in which two arrays differ, or cannot be compared: one write unit of the target, or an array as a whole."""

    start: tuple[int, ...]
    """First element, on each axis."""
    stop: tuple[int, ...]
    """One past the last element, on each axis."""
    path: str = ""
    """The array's path in a group."""
    reason: str = ""
    """Why it could not be compared: the target's bytes cannot be read, or the array is on one side only, or cannot be
    opened. Empty where both sides were read and hold other bits."""

    def __str__(self) -> str:
        words = [self.path, f"{self.start} to {self.stop}"]
        return " ".join(filter(None, words)) + (f": {self.reason}" if self.reason else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """What comparing two arrays, or the arrays of two groups, found."""

    differing: tuple[DifferingBox, ...]
    """The write units of the target whose elements are not bit for bit those of the source, or cannot be read; and
    arrays that are on one side only, or of another shape or dtype, or cannot be opened, groups too."""
    boxes: int
    """Write units compared."""
    bytes_read: int
    """Decoded bytes, of both arrays."""
    all_boxes: int | None = None
    """Write units of the target, where only a sample of them was compared; None where all were."""
    arrays: int = 1
    """Arrays compared: more than one in groups."""
    unfinished: str = ""
    """What says that a job has not ended whose target is compared, as source or target, or empty. Then what is equal
    now may not stay so."""
    executor: str = ""
    """What the sums were computed on."""
    way: str = ""
    """What was read for it, in words."""

    @property
    def ok(self) -> bool:
        """Whether source and target are finished, and nothing that was compared differs."""
        return not self.differing and not self.unfinished

    @property
    def sampled(self) -> bool:
        """Whether only a sample was compared."""
        return self.all_boxes is not None

    def __str__(self) -> str:
        looked_at = str(self.boxes) + (f" of {self.all_boxes} boxes, a sample," if self.sampled else " boxes")
        places = looked_at + (f" of {self.arrays} arrays" if self.arrays > 1 else "")
        if self.differing:
            found = f"{len(self.differing)} of {places} differ; the first is {self.differing[0]}"
        else:
            found = f"{'' if self.unfinished else 'verified: '}{places} are the same to the bit"
        return f"unfinished: {self.unfinished}; so far, {found}" if self.unfinished else found


def joined(reports: Sequence[tuple[str, VerifyReport]]) -> VerifyReport:
    """Return one report of the arrays of a group, given each with its path."""
    found = [report for _, report in reports]
    return VerifyReport(
        differing=tuple(replace(box, path=path) for path, report in reports for box in report.differing),
        boxes=sum(report.boxes for report in found),
        bytes_read=sum(report.bytes_read for report in found),
        all_boxes=sum(report.boxes if report.all_boxes is None else report.all_boxes for report in found)
        if any(report.sampled for report in found)
        else None,
        arrays=sum(report.arrays for report in found),
        unfinished="; ".join(filter(None, (report.unfinished for report in found))),
        executor=next((report.executor for report in found), ""),
        way=next((report.way for report in found), ""),
    )
