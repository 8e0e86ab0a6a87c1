"""A plain function ``staged_copy(stages)`` as an executor. Layer: executors.

It may run the tasks wherever it likes; each leaves a record of its result beside the target, and from these we see
whether all are done.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from rechunk_exec.copy import finished_results
from rechunk_exec.errors import RechunkError, error_text
from rechunk_exec.executors.base import check_count
from rechunk_exec.executors.copyrun import nobody
from rechunk_exec.executors.missing import missing_tasks
from rechunk_exec.executors.records import records_kept, refuse_unrecorded
from rechunk_exec.results import CopyReport, Event, OnEvent, TaskResult, in_order
from rechunk_exec.tasks import Stage


class FunctionExecutor:
    """Calls a function with the stages, then checks that it has run all tasks.

    Parameters
    ----------
    fn : callable
        Called with one positional argument, a tuple of stages. It must run each task of a stage at least once, with
        :func:`rechunk_exec.run_task`, and begin no stage before the one before has ended. What it returns is ignored.
        Its attribute ``tasks_per_worker``, if it has one, says how many tasks it runs at once in one process.

    Examples
    --------
    >>> import rechunk_exec as rx
    >>> def staged_copy(stages):
    ...     for stage in stages:
    ...         for task in stage:
    ...             rx.run_task(task)
    >>> FunctionExecutor(staged_copy).name
    'staged_copy'
    """

    needs_records = True
    """Whether tasks must leave their results beside the target."""

    def __init__(self, fn: Callable[[Sequence[Stage]], object]) -> None:
        if not callable(fn):
            raise TypeError(f"fn must be a function of the stages; got {fn!r}")
        self.name = str(getattr(fn, "__name__", type(fn).__name__))
        self.tasks_per_worker = check_count("tasks_per_worker", getattr(fn, "tasks_per_worker", 1))
        self._fn = fn

    def check_stages(self, stages: Sequence[Stage]) -> None:
        """Refuse targets that no record can lie beside."""
        refuse_unrecorded(stages, "a function as executor", self.name)

    def staged_copy(self, stages: Sequence[Stage], *, on_event: OnEvent | None = None) -> CopyReport:
        """Run the tasks of ``stages``; see :meth:`rechunk_exec.executors.base.Executor.staged_copy`.

        The events of the tasks come at the end, all at once.

        Raises
        ------
        RechunkError
            If the function raised, which is the cause then, or returned before all tasks were done.
        """
        tell = on_event or nobody
        begun = time.perf_counter()
        tell(Event(kind="start", total=sum(len(stage) for stage in stages)))
        with records_kept(stages) as recorded:
            self._call(recorded)
            results = in_order(finished_results(recorded))
            self._refuse_missing(recorded, results)
        for result in results:
            tell(Event(kind="task", stage=result.stage, index=result.index, result=result))
        return CopyReport(executor=self.name, results=results, seconds=time.perf_counter() - begun)

    def _call(self, stages: Sequence[Stage]) -> None:
        try:
            self._fn(stages)
        except Exception as error:
            raise RechunkError(
                f"the function given as executor must run all tasks; {self.name!r} failed with "
                f"{error_text(error)}; see the cause"
            ) from error

    def _refuse_missing(self, stages: Sequence[Stage], results: Sequence[TaskResult]) -> None:
        missing = missing_tasks(stages, results)
        if missing:
            raise RechunkError(
                f"the function given as executor must return after all tasks are done; {self.name!r} returned with "
                f"{missing}; have it wait for all of them"
            )
