"""Flink as executor: a DataStream job in batch mode for each stage. Layer: executors.

A job is ranges of task positions, dealt out evenly to the slots of a cluster, each of which runs them in a Python
process of its own. The stage travels once, in the function. Results do not travel: workers note them beside the target,
a document a range, where this driver reads them while the job runs. A job begins when the one before has ended.
"""

from __future__ import annotations

import dataclasses
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from rechunk_exec import storage
from rechunk_exec.copy import finished_results, run_task
from rechunk_exec.errors import RechunkError, StorageError, TaskError
from rechunk_exec.executors import sight
from rechunk_exec.executors.base import WorkerShape, check_count
from rechunk_exec.executors.copyrun import CopyRun, nobody
from rechunk_exec.executors.flinksession import RESTARTS, FlinkSession, check_address, require_pyflink, root_cause
from rechunk_exec.executors.flinkworker import RangeWorker
from rechunk_exec.executors.records import missing_runs
from rechunk_exec.executors.remote import refuse_live_stores
from rechunk_exec.results import CopyReport, Event, OnEvent, TaskResult, in_order
from rechunk_exec.tasks import ArrayRef, CopyTask, Stage

_RANGES_A_WORKER = 64
_TASKS_A_RANGE = 64
_RANGES = 10_000
"""The most elements of a job: they all travel with it."""
_POLL_S = 0.1
_READ_S = 1.0
"""How often results are read, at most."""
_READING = 20.0
"""How many times longer than reading takes the next reading is put off: a journal can be long."""


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
        for stage in stages:
            if not storage.holds_documents(stage.target):
                raise StorageError(
                    f"executor 'flink' needs a target that takes records of tasks; got {stage.target}, in an icechunk "
                    "repository; use executor='threads' or 'processes'"
                )

    def staged_copy(self, stages: Sequence[Stage], *, on_event: OnEvent | None = None) -> CopyReport:
        """Run the tasks of ``stages``; see :meth:`rechunk_exec.executors.base.Executor.staged_copy`.

        Events of tasks come in batches: results are read about each second, and are there when their range is done.
        """
        run = CopyRun(on_event or nobody)
        begun = time.perf_counter()
        run.tell(Event(kind="start", total=sum(map(len, stages))))
        job = uuid.uuid4().hex
        unrecorded = any(stage.journal is None for stage in stages)
        try:
            for stage in stages:
                if len(stage):
                    recorded = dataclasses.replace(stage, journal=stages[-1].target, job=job)
                    self._run_stage(stage if stage.journal else recorded, run)
        finally:
            if unrecorded:
                storage.Journal(stages[-1].target, job).forget()
        seconds = time.perf_counter() - begun
        return CopyReport(executor=self.name, results=in_order(run.results), seconds=seconds, retries=run.retries)

    def _run_stage(self, stage: Stage, run: CopyRun) -> None:
        """Run one job, and tell of its tasks."""
        shape = self._session.shape()
        at_once = shape.workers * shape.tasks_per_worker
        watch = _Watch(stage, run)
        worker = RangeWorker(
            function=self.task_function,
            stage=dataclasses.replace(stage, journal=None),
            journal=watch.journal,
            landmarks=sight.Landmarks.of([stage]),
            versions=sight.versions(),
            cores=shape.cores_per_worker if shape.tasks_per_worker == 1 else None,
        )
        name = f"rechunk_exec: stage {stage.number} to {stage.target}"
        job = self._session.submit(name, worker, ranges_of(len(stage), at_once), at_once)
        try:
            while not job.is_done():
                time.sleep(_POLL_S)
                watch.look()
            problem = job.problem()
        except BaseException:  # of a listener, say, or Ctrl-C: nothing goes on alone
            job.cancel()
            raise
        watch.look(now=True)
        watch.refuse_failure()
        if problem is not None:
            raise RechunkError(
                f"Flink's job of stage {stage.number} must end well; it failed, after {RESTARTS} restarts where those "
                f"could help: {root_cause(problem)}; see the cause, and the logs of the task managers"
            ) from problem
        watch.refuse_missing()


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


@dataclass(slots=True)
class _Watch:
    """Reads what workers note of a stage, and tells of it."""

    stage: Stage
    run: CopyRun
    _told: set[int] = field(default_factory=set)
    _next: float = 0.0

    @property
    def journal(self) -> ArrayRef:
        """The array beside which they note it."""
        return self.stage.journal or self.stage.target

    def look(self, *, now: bool = False) -> None:
        """Tell of the tasks that are done, if it is time to read."""
        begun = time.monotonic()
        if not now and begun < self._next:
            return
        results = finished_results([self.stage])
        self._next = begun + max(_READ_S, _READING * (time.monotonic() - begun))
        for result in results:
            if result.index not in self._told:
                self._told.add(result.index)
                for _ in range(result.attempts - 1):
                    self.run.failed(self.stage, result.index, RechunkError("a worker of Flink failed or was lost"))
                self.run.done(result, attempts=result.attempts)

    def refuse_failure(self) -> None:
        """Raise if a task has failed for good."""
        for failure in storage.Journal(self.journal, self.stage.job, read_only=True).failures():
            if failure.stage == self.stage.number:
                raise TaskError(
                    f"task {failure.index} of stage {failure.stage}, which copies the region "
                    f"{' to '.join(map(str, self.stage.box(failure.index)))} of {self.stage.source} to "
                    f"{self.stage.target}, failed for good in a worker of Flink: {failure.message}; remove the cause "
                    "and run the job again",
                    stage=failure.stage,
                    index=failure.index,
                ) from RechunkError(failure.message)

    def refuse_missing(self) -> None:
        """Raise unless each task has left its result."""
        missing = missing_runs(self.stage, {(self.stage.number, index) for index in self._told})
        if missing:
            raise RechunkError(
                f"each task must leave its result beside the target; Flink's job of stage {self.stage.number} ended "
                f"without those of {missing}; have all machines share one file system or store"
            )
