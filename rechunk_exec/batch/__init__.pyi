from .finishing import Unfinished, failed_jobs, finalize_jobs, unfinished_lines
from .jobsfile import JobsFile, open_lines, refuse_inside, write_lines
from .prepared import note_lines, refuse_unnamed
from .running import INDEX_VARIABLES, run_job

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
