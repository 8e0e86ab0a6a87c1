"""Jobs without a scheduler of ours: one line of JSON a task, for arrays of independent jobs. Layer: below job.

:meth:`rechunk_exec.Rechunked.write_jobs` prepares a job and writes its lines. Any process that sees the stores runs any
line (:func:`run_job`), in any order within a stage, some twice, two at once. Each leaves what came of it in the job's
journal, beside the target; :func:`failed_jobs` reads there what to run again, and :func:`finalize_jobs` ends the job.
"""

from __future__ import annotations

import lazy_loader

# Each of its modules is imported by itself: else a thread that imports one, and another that imports the package with
# it, would wait for each other.
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "finishing": ["Unfinished", "failed_jobs", "finalize_jobs", "unfinished_lines"],
        "jobsfile": ["JobsFile", "open_lines", "refuse_inside", "write_lines"],
        "prepared": ["note_lines", "refuse_unnamed"],
        "running": ["INDEX_VARIABLES", "run_job"],
    },
)
