"""Comparing arrays by digests that do not depend on chunking. Layer: above the executors, below the api.

Each array is read once, piece by piece along its own chunks (:mod:`.pieces`), by the workers of an executor
(:mod:`.crew`), and gives the digests of boxes of a grid (:mod:`.sums`). Sums of both sides are compared from coarse to
fine (:mod:`.compare`), for all arrays of groups (:mod:`.groups`). After a copy whose tasks computed digests of what
they read, only the target is read (:mod:`.copied`).

What cannot be read in the target is a finding, with its place and the reason, and the rest is compared: whether bytes
are damaged or a store fails for good, they are not there to be compared. What cannot be read in the source is an error,
since then nothing can be said of the target.
"""

from __future__ import annotations

from rechunk_exec.verification.compare import VerifyOptions, verify_arrays
from rechunk_exec.verification.copied import verify_copied
from rechunk_exec.verification.groups import verify_nodes
from rechunk_exec.verification.report import DifferingBox, VerifyReport

__all__ = ["DifferingBox", "VerifyOptions", "VerifyReport", "verify_arrays", "verify_copied", "verify_nodes"]
