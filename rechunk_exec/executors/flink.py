"""Flink as executor: a DataStream job in batch mode for each stage. Layer: executors.

A job is ranges of task positions, dealt out evenly to the slots of a cluster, each of which runs them in a Python
process of its own. The stage travels once, in the function. Results do not travel: workers note them beside the target,
many in a document, where this driver reads them while the job runs. A job begins when the one before has ended.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence

from rechunk_exec.copy import run_task
from rechunk_exec.errors import RechunkError
from rechunk_exec.executors.base import WorkerShape, check_count
from rechunk_exec.executors.copyrun import nobody
from rechunk_exec.executors.flinkjob import root_cause
from rechunk_exec.executors.flinksession import RESTARTS, FlinkSession, require_pyflink
from rechunk_exec.executors.flinkshape import check_address
from rechunk_exec.executors.flinkworker import RangeWorker
from rechunk_exec.executors.missing import missing_runs
from rechunk_exec.executors.rangework import RangeWork
from rechunk_exec.executors.records import Records, records_kept, refuse_unrecorded
from rechunk_exec.executors.remote import refuse_live_stores
from rechunk_exec.executors.sight import Landmarks
from rechunk_exec.results import CopyReport, OnEvent, TaskResult
from rechunk_exec.tasks import CopyTask, Stage

_RANGES_A_WORKER = 64
_TASKS_A_RANGE = 64
_RANGES = 10_000
"""The most elements of a job: they all travel with it."""
_POLL_S = 0.1


class FlinkExecutor:
    """Runs tasks on a Flink cluster, as many at once as it has slots, each in a Python process of its own.

    Parameters
    ----------
    address : str, optional
        ``host:port`` of the job manager's REST service. Default: in a program run by ``flink run -py``, the cluster
        that it was submitted to; else a cluster on this machine that ends with the program.
    env : pyflink.datastream.StreamExecutionEnvironment, optional
        A session that you have, with nothing else defined in it. It is set to batch mode.
    workers : int, optional
        How many tasks run at once: the parallelism. Default: all slots of the cluster; the parallelism of a session; or
        the available cores.
    options : mapping, optional
        More of Flink's configuration, by its names, such as ``{"python.executable": "/opt/venv/bin/python"}`` where
        the workers' Python is not where this one is.

    Raises
    ------
    MissingExtraError
        If PyFlink is not installed.
    RechunkError
        If nothing answers at ``address``, or the cluster has no slots.

    Examples
    --------
    >>> executor = FlinkExecutor("127.0.0.1:8081")  # doctest: +SKIP
    >>> executor.worker_shape.workers  # doctest: +SKIP
    4
    """

    name = "flink"
    needs_records = True
    """Tasks leave their results beside the target."""

    def __init__(
        self,
        address: str | None = None,
        *,
        env: object = None,
        workers: int | None = None,
        options: Mapping[str, str] | None = None,
    ) -> None:
        if address is not None and env is not None:
            raise TypeError(f"give an address or a session, not both; got {address!r} and {env!r}")
        if address is not None:
            check_address(address)
        if env is not None and not callable(getattr(env, "from_collection", None)):
            raise TypeError(f"env must be a StreamExecutionEnvironment of PyFlink; got {env!r}")
        if workers is not None:
            workers = check_count("workers", workers)
        require_pyflink()
        self._session = FlinkSession(address, env, workers, options or {})
        self.task_function: Callable[[CopyTask], TaskResult] = run_task
        """What runs a task in a worker."""
        self.tasks_per_worker = self._session.shape().tasks_per_worker
        """Tasks at once in one Python process: 1, but in a session whose workers are threads of this program."""

    @property
    def worker_shape(self) -> WorkerShape:
        """The Python processes that the slots run: each of these may hold ``max_mem``, besides the task managers.

        Raises
        ------
        RechunkError
            If the cluster does not answer, or has fewer slots than ``workers``.
        """
        return self._session.shape()

    def check_stages(self, stages: Sequence[Stage]) -> None:
        """Refuse stages that workers could not run. Whether they see the paths is found out when they start.

        Raises
        ------
        StorageError
            If a store is in this process's memory, or no record can lie beside a target.
        """
        refuse_live_stores(stages, self.name)
        refuse_unrecorded(stages, "Flink as executor", self.name)

    def staged_copy(self, stages: Sequence[Stage], *, on_event: OnEvent | None = None) -> CopyReport:
        """Run the tasks of ``stages``; see :meth:`rechunk_exec.executors.base.Executor.staged_copy`.

        Events of tasks come in batches: results are read about each second, and are there when their range is done.
        """
        run = uuid.uuid4().hex
        with records_kept(stages) as kept:
            records = Records(kept, run, on_event or nobody)
            records.begin()
            try:
                for stage in kept:
                    if len(stage):
                        self._run_stage(stage, run, records)
            finally:
                records.end()  # where workers are threads of this process, they go on when it is interrupted
        return records.report(self.name)

    def _run_stage(self, stage: Stage, run: str, records: Records) -> None:
        """Run one job, and tell of its tasks."""
        shape = self._session.shape()
        at_once = shape.workers * shape.tasks_per_worker
        worker = RangeWorker(
            work=RangeWork(stage=stage, run=run, landmarks=Landmarks.of([stage]), function=self.task_function),
            cores=shape.cores_per_worker if shape.tasks_per_worker == 1 else None,
        )
        name = f"rechunk_exec: stage {stage.number} to {stage.target}"
        job = self._session.submit(name, worker, ranges_of(len(stage), at_once), at_once)
        try:
            while not job.is_done():
                time.sleep(_POLL_S)
                records.look()
            problem = job.problem()
        except BaseException:  # of a listener, say, or Ctrl-C: nothing goes on alone
            job.cancel()
            raise
        records.look(last=True)
        failure = records.failure()
        if failure is not None:
            raise failure
        if problem is not None:
            raise RechunkError(
                f"Flink's job of stage {stage.number} must end well; it failed, after {RESTARTS} restarts where those "
                f"could help: {root_cause(problem)}; see the cause, and the logs of the task managers"
            ) from problem
        missing = missing_runs(stage, {(result.stage, result.index) for result in records.results})
        if missing:
            raise RechunkError(
                f"each task must leave its result beside the target; Flink's job of stage {stage.number} ended "
                f"without those of {missing}; have all machines share one file system or store"
            )


def ranges_of(tasks: int, workers: int) -> list[tuple[int, int]]:
    """Return ``(first, stop)`` of ranges of task positions: enough to keep workers even, and at most 10,000.

    Examples
    --------
    >>> ranges_of(3, 2)
    [(0, 1), (1, 2), (2, 3)]
    >>> len(ranges_of(14_000_000, 2))
    10000
    """
    size = min(_TASKS_A_RANGE, max(1, tasks // (_RANGES_A_WORKER * workers)))
    size = max(size, -(-tasks // _RANGES))
    return [(first, min(first + size, tasks)) for first in range(0, tasks, size)]
