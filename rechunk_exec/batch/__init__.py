"""Jobs without a scheduler of ours: one line of JSON a task, for arrays of independent jobs. Layer: below job.

:meth:`rechunk_exec.Rechunked.write_jobs` prepares a job and writes its lines. Any process that sees the stores runs any
line (:func:`run_job`), in any order within a stage, some twice, two at once. Each leaves what came of it in the job's
journal, beside the target; :func:`failed_jobs` reads there what to run again, and :func:`finalize_jobs` ends the job.
"""

from __future__ import annotations

from rechunk_exec.batch.finishing import Unfinished, failed_jobs, finalize_jobs, unfinished_lines
from rechunk_exec.batch.jobsfile import JobsFile, open_lines, refuse_inside, write_lines
from rechunk_exec.batch.prepared import note_lines, refuse_unnamed
from rechunk_exec.batch.running import INDEX_VARIABLES, run_job

__all__ = [
    "INDEX_VARIABLES",
    "JobsFile",
    "Unfinished",
    "failed_jobs",
    "finalize_jobs",
    "note_lines",
    "open_lines",
    "refuse_inside",
    "refuse_unnamed",
    "run_job",
    "unfinished_lines",
    "write_lines",
]
