"""Apache Beam as executor: one pipeline for all stages, on any runner. Layer: executors.

What passes through the pipeline are pairs of numbers, the ranges of a stage's tasks. They are made on a worker, spread
over all of them by a ``Reshuffle``, and counted; the next stage has that count as a side input, which no runner has
before the last task has ended. Stages travel once, pickled in the transforms. Results go to the journal beside the
target (:mod:`.records`), so no runner has to hold them.

:class:`BeamExecutor` makes and runs such a pipeline; ``StagedCopy`` is its transform, for pipelines of one's own.
"""

from __future__ import annotations

import functools
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from rechunk_exec.copy import release_memory, run_task
from rechunk_exec.errors import MissingExtraError, RechunkError
from rechunk_exec.executors.base import WorkerShape, check_count
from rechunk_exec.executors.copyrun import nobody
from rechunk_exec.executors.machine import available_cores
from rechunk_exec.executors.records import RangeWork, Records, recorded, records_kept, refuse_unrecorded
from rechunk_exec.executors.remote import refuse_live_stores
from rechunk_exec.executors.sight import Landmarks
from rechunk_exec.results import CopyReport, Event, OnEvent, TaskResult
from rechunk_exec.tasks import ArrayRef, CopyTask, Stage

_RANGES = 4096
"""At most so many ranges of tasks a stage: enough for any cluster, and few for any runner."""
_LOOK_S = 0.5
"""How often a runner that works elsewhere is asked how far it is."""
_LOCAL_RUNNER = "apache_beam.runners.portability.fn_api_runner.FnApiRunner"

Range = tuple[int, int]
Count = tuple[int, int]
"""Tasks done, and how many ranges were cut short because a task failed."""

_CUT_SHORT: Range = (-1, -1)
"""Instead of a stage's ranges where the stage before has failed."""


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
        _beam()
        from apache_beam.options.pipeline_options import DirectOptions, StandardOptions
        from apache_beam.runners.runner import PipelineRunner

        self._options = _pipeline_options(options)
        chosen = runner if runner is not None else self._options.view_as(StandardOptions).runner
        if not isinstance(chosen, (str, PipelineRunner)) and chosen is not None:
            raise TypeError(f"runner must be the name of a Beam runner, or one; got {chosen!r}")
        local = chosen is None or str(chosen).lower() in {"directrunner", "direct", "fnapirunner"}
        self._runner = _LOCAL_RUNNER if local else chosen
        self.tasks_per_worker = check_count("tasks_per_worker", tasks_per_worker)
        direct = self._options.view_as(DirectOptions)
        many = local and direct.direct_running_mode == "multi_processing"
        self._workers = (direct.direct_num_workers or available_cores()) if many else 1
        cores = max(1, available_cores() // self._workers) if cores_per_worker is None else cores_per_worker
        self._cores = check_count("cores_per_worker", cores)

    @property
    def worker_shape(self) -> WorkerShape:
        """The worker processes as far as they are known: where a cluster has them, the shape of one."""
        return WorkerShape(
            workers=self._workers,
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
        tell = on_event or nobody
        begun = time.perf_counter()
        run = uuid.uuid4().hex
        with records_kept(stages) as kept:
            records = Records(kept, run, tell)
            records.begin()
            tell(Event(kind="start", total=sum(len(stage) for stage in kept)))
            if any(map(len, kept)):
                self._run(kept, run, records)
        return CopyReport(
            executor=self.name,
            results=records.results,
            seconds=time.perf_counter() - begun,
            retries=sum(result.attempts - 1 for result in records.results),
        )

    def _run(self, stages: Sequence[Stage], run: str, records: Records) -> None:
        beam = _beam()
        wrong: Exception | None = None
        pipeline = beam.Pipeline(runner=self._runner, options=self._options)
        _ = pipeline | "Rechunk" >> staged_copy_class()(stages, run=run, task_function=self.task_function)
        try:
            with _signals_kept():
                _finish(pipeline.run(), records)
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
                f"a Beam runner must run the pipeline to its end; {self._runner!s} {what}; "
                f"{missing or 'no tasks missing'}; see the cause and the runner's own log"
            ) from wrong


def _finish(result: Any, records: Records) -> None:
    """Wait for a pipeline that was started; if this is interrupted, cancel it."""
    from apache_beam.runners.runner import PipelineState

    try:
        state = result.state
        while not PipelineState.is_terminal(state):
            time.sleep(_LOOK_S)
            records.look()
            state = result.state
    except BaseException:
        with suppress(Exception):
            result.cancel()
        raise
    # What waits reads streams of the job service that end with its time limit for answers, a minute: a longer job that
    # went well would look as if it had failed. It is not needed but for clearing up, for which there is no other name.
    clear_up = getattr(result, "_cleanup", None) if state == PipelineState.DONE else None
    (clear_up or result.wait_until_finish)()


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Put the program's handler of SIGINT back: starting Prism replaces it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


# What runs on the workers.


@dataclass(frozen=True, slots=True)
class _Split:
    """Makes the ranges of a stage's tasks, once the stage before has been counted."""

    tasks: int
    counted: bool
    """Whether what it waits for is the count of a stage, not a PCollection of others."""

    # Methods of their own names: of an object that is called, Beam passes on no side inputs.
    def ranges(self, _: int, before: Any = None) -> Iterable[Range]:
        if self.counted and before[1]:
            return [_CUT_SHORT]
        size = max(1, -(-self.tasks // _RANGES))
        return ((first, min(first + size, self.tasks)) for first in range(0, self.tasks, size))


@dataclass(frozen=True, slots=True)
class _Copy:
    """Runs a range of tasks, and says in Beam's metrics what they moved."""

    work: RangeWork

    def ran(self, numbers: Range) -> Count:
        from apache_beam.metrics import Metrics

        if numbers == _CUT_SHORT:
            return 0, 1
        ran = self.work(*numbers)
        Metrics.counter("rechunk_exec", "tasks").inc(len(ran.results))
        for result in ran.results:
            Metrics.counter("rechunk_exec", "bytes_read").inc(result.bytes_read)
            Metrics.counter("rechunk_exec", "bytes_written").inc(result.bytes_written)
            Metrics.distribution("rechunk_exec", "task_bytes").update(result.bytes_written)
            Metrics.distribution("rechunk_exec", "task_ms").update(round(1000 * result.seconds))
        return len(ran.results), int(ran.failed)


def _sum(counts: Iterable[Count]) -> Count:
    held = list(counts)
    return sum(done for done, _ in held), sum(failed for _, failed in held)


def _refuse_failed(count: Count) -> int:
    """Return the number of tasks done; raise if one failed, so that the pipeline does not end as if all were well."""
    done, failed = count
    if failed:
        raise RechunkError(
            f"all tasks must be done; one failed, and the pipeline stopped after {done}; the journal beside the target "
            "says which and why"
        )
    return done


# The transform.


@functools.cache
def staged_copy_class() -> Any:
    """Return the class ``StagedCopy``, whose base is Beam's."""
    beam: Any = _beam()

    class StagedCopy(beam.PTransform):  # type: ignore[misc]
        """Copies the stages' arrays, in a pipeline of one's own: ``pipeline | StagedCopy(stages)``.

        Applied to a pipeline, or to a PCollection, which is waited for. Gives a PCollection of one number, the tasks
        done, that others can wait for. The arrays must exist: have a function as executor apply it, which
        :func:`rechunk_exec.rechunk` calls with stages that are ready.

        Parameters
        ----------
        stages : sequence of Stage
            They run in order; none starts before all tasks of the one before have ended.
        journal : ArrayRef, optional
            The array beside which tasks note their results, where the stages do not say. Default: the last target.
        """

        def __init__(
            self,
            stages: Sequence[Stage],
            journal: ArrayRef | None = None,
            *,
            run: str | None = None,
            task_function: Callable[[CopyTask], TaskResult] = run_task,
        ) -> None:
            super().__init__()
            held = tuple(stages)
            if not all(isinstance(stage, Stage) for stage in held):
                raise TypeError(f"stages must be a sequence of Stage; got {stages!r}")
            landmarks = Landmarks.of(held)
            name = run or uuid.uuid4().hex
            self._works = [
                RangeWork(stage=stage, run=name, landmarks=landmarks, function=task_function)
                for stage in recorded(held, journal)
            ]

        def expand(self, pbegin: Any) -> Any:
            start = pbegin.pipeline | "Start" >> beam.Create([0])
            before = [] if isinstance(pbegin, beam.pvalue.PBegin) else [beam.pvalue.AsIter(pbegin)]
            counts: list[Any] = []
            for work in self._works:
                label, split = f"stage {work.stage.number}", _Split(len(work.stage), bool(counts)).ranges
                counts.append(
                    start
                    | f"Ranges of {label}" >> beam.FlatMap(split, *before).with_output_types(Range)
                    | f"Spread {label}" >> beam.Reshuffle()
                    | f"Copy {label}" >> beam.Map(_Copy(work).ran).with_output_types(Count)
                    | f"Count {label}" >> beam.CombineGlobally(_sum).with_output_types(Count)
                )
                before = [beam.pvalue.AsSingleton(counts[-1])]
            return (
                tuple(counts)
                | "Counts" >> beam.Flatten(pipeline=pbegin.pipeline)
                | "Sum" >> beam.CombineGlobally(_sum).with_output_types(Count)
                | "Done" >> beam.Map(_refuse_failed).with_output_types(int)
            )

    return StagedCopy


def __getattr__(name: str) -> Any:
    if name == "StagedCopy":
        return staged_copy_class()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _pipeline_options(options: object) -> Any:
    from apache_beam.options.pipeline_options import PipelineOptions

    if isinstance(options, PipelineOptions):
        return options
    if options is None:
        return PipelineOptions([])  # without a list, Beam reads the program's own arguments
    if isinstance(options, Mapping):
        return PipelineOptions([], **options)
    if isinstance(options, Sequence) and not isinstance(options, str) and all(isinstance(o, str) for o in options):
        return PipelineOptions(list(options))
    raise TypeError(f"options must be Beam's PipelineOptions, a list of its flags, or a mapping; got {options!r}")


def _beam() -> Any:
    try:
        import apache_beam
    except ImportError as error:
        raise MissingExtraError("apache-beam", "beam") from error
    return apache_beam
