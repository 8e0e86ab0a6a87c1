"""Apache Beam as executor: one pipeline for all stages, on any runner. Layer: executors.

The pipeline is one transform (:mod:`.beamtransform`), which is there for pipelines of one's own too.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import Any

from rechunk_exec.copy import release_memory, run_task
from rechunk_exec.errors import RechunkError
from rechunk_exec.executors.base import WorkerShape, check_count
from rechunk_exec.executors.beamrun import BeamRunner
from rechunk_exec.executors.beamtransform import staged_copy_class
from rechunk_exec.executors.copyrun import nobody
from rechunk_exec.executors.machine import available_cores
from rechunk_exec.executors.records import Records, records_kept, refuse_unrecorded
from rechunk_exec.executors.remote import refuse_live_stores
from rechunk_exec.results import CopyReport, OnEvent, TaskResult
from rechunk_exec.tasks import CopyTask, Stage


class BeamExecutor:
    """Runs the stages as one Beam pipeline.

    Parameters
    ----------
    runner : str or PipelineRunner, optional
        Such as ``"PrismRunner"``, ``"PortableRunner"``, ``"FlinkRunner"``. Default: what ``options`` name, else Beam's
        local runner. ``"DirectRunner"`` is the local runner too: Beam's own would look for Prism on the network first.
    options : PipelineOptions, sequence of str or mapping, optional
        The pipeline's options, as Beam's flags (``["--job_endpoint=localhost:8073"]``) or by name.
    tasks_per_worker : int, optional
        How many tasks may run at once in a worker process: ``max_mem`` is divided by it. Further ranges wait.
    cores_per_worker : int, optional
        Cores that a worker process has to itself. Default: this machine's, shared by the local runner's processes.

    Raises
    ------
    MissingExtraError
        If ``apache-beam`` is not installed.
    TypeError, ValueError
        If a parameter is none of these.

    Examples
    --------
    >>> BeamExecutor("PrismRunner", ["--prism_location=/opt/prism"]).name  # doctest: +SKIP
    'beam'
    """

    name = "beam"
    needs_records = True
    """Whether tasks must leave their results beside the target."""
    task_function: Callable[[CopyTask], TaskResult] = staticmethod(run_task)
    """What is run for each task; anything but the default is for tests."""

    def __init__(
        self,
        runner: object = None,
        options: object = None,
        *,
        tasks_per_worker: int = 1,
        cores_per_worker: int | None = None,
    ) -> None:
        self._runner = BeamRunner.chosen(runner, options)
        self.tasks_per_worker = check_count("tasks_per_worker", tasks_per_worker)
        cores = max(1, available_cores() // self._runner.workers) if cores_per_worker is None else cores_per_worker
        self._cores = check_count("cores_per_worker", cores)

    @property
    def worker_shape(self) -> WorkerShape:
        """The worker processes as far as they are known: where a cluster has them, the shape of one."""
        return WorkerShape(
            workers=self._runner.workers,
            tasks_per_worker=self.tasks_per_worker,
            cores_per_worker=self._cores,
            elastic=True,
        )

    def check_stages(self, stages: Sequence[Stage]) -> None:
        """Refuse stores that workers would not see, and targets that no record can lie beside."""
        refuse_unrecorded(stages, "a Beam pipeline as executor", self.name)
        refuse_live_stores(stages, self.name)

    def staged_copy(self, stages: Sequence[Stage], *, on_event: OnEvent | None = None) -> CopyReport:
        """Run the tasks of ``stages``; see :meth:`rechunk_exec.executors.base.Executor.staged_copy`.

        Events of tasks come as their results are seen in the journal: each second, or with the local runner, which
        does not return before it has ended, all at the end.

        Raises
        ------
        TaskError
            If a task failed for good.
        RechunkError
            If the runner failed to run the pipeline, which is the cause then.
        """
        self.check_stages(stages)
        run = uuid.uuid4().hex
        with records_kept(stages) as kept:
            records = Records(kept, run, on_event or nobody)
            records.begin()
            if any(map(len, kept)):
                self._run(kept, run, records)
        return records.report(self.name)

    def _run(self, stages: Sequence[Stage], run: str, records: Records) -> None:
        wrong: Exception | None = None
        try:
            self._runner.run(staged_copy_class()(stages, run=run, task_function=self.task_function), records)
        except Exception as error:
            if error is records.listener_error:
                raise
            wrong = error
        finally:
            records.end()  # where a runner's workers are threads of this process, they go on when it is interrupted
            release_memory()
        records.look(last=True)
        failure = records.failure()
        if failure is not None:
            raise failure
        missing = records.missing()
        if wrong is not None or missing:
            what = "ended without an error" if wrong is None else f"failed with {type(wrong).__name__}: {wrong}"
            raise RechunkError(
                f"a Beam runner must run the pipeline to its end; {self._runner.runner!s} {what}; "
                f"{missing or 'no tasks missing'}; see the cause and the runner's own log"
            ) from wrong


def __getattr__(name: str) -> Any:
    if name == "StagedCopy":
        return staged_copy_class()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
