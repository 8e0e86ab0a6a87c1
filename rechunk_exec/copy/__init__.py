"""The copying: the only code that moves array bytes. Layer: above storage, below the executors.

:func:`run_task` does one task, in any process: it reads the region's units into one buffer, then encodes and writes
whole write units out of it, each on as many threads as the task says. What a process keeps from task to task (opened
arrays, buffers, threads) is in one :class:`~rechunk_exec.copy.worker.Worker`.
"""

from __future__ import annotations

from rechunk_exec.copy.noting import finished_results, flush_results, noted_by
from rechunk_exec.copy.worker import Worker, configure_worker, release_memory, run_task

__all__ = ["Worker", "configure_worker", "finished_results", "flush_results", "noted_by", "release_memory", "run_task"]
