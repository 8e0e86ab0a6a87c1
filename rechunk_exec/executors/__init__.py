"""Where tasks run: in this process, in others, on clusters, by any function. Layer: above copy, below report and api.

An executor schedules and does no chunk arithmetic: stages in order, a full barrier between them, each task at least
once (:class:`~rechunk_exec.executors.base.Executor`). Pools of workers also offer ``map``, ``put`` and
``run_on_workers`` (:class:`~rechunk_exec.executors.pool.PoolExecutor`).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from rechunk_exec.errors import RechunkError
from rechunk_exec.executors.base import Executor, WorkerShape, worker_shape
from rechunk_exec.executors.beam import BeamExecutor
from rechunk_exec.executors.dask import DaskExecutor
from rechunk_exec.executors.flink import FlinkExecutor
from rechunk_exec.executors.function import FunctionExecutor
from rechunk_exec.executors.futures import FuturesExecutor
from rechunk_exec.executors.gpu import GpuExecutor
from rechunk_exec.executors.machine import available_cores, memory_left, memory_limit
from rechunk_exec.executors.main_module import refuse_while_importing_main
from rechunk_exec.executors.pool import PoolExecutor
from rechunk_exec.executors.processes import ProcessesExecutor
from rechunk_exec.executors.registry import check_stages, executor_named, known_names, resolve
from rechunk_exec.executors.serial import SerialExecutor
from rechunk_exec.executors.shared import Shared
from rechunk_exec.executors.threads import ThreadsExecutor
from rechunk_exec.results import CopyReport, OnEvent
from rechunk_exec.tasks import Stage

__all__ = [
    "BeamExecutor",
    "DaskExecutor",
    "Executor",
    "FlinkExecutor",
    "FunctionExecutor",
    "FuturesExecutor",
    "GpuExecutor",
    "PoolExecutor",
    "ProcessesExecutor",
    "SerialExecutor",
    "Shared",
    "ThreadsExecutor",
    "WorkerShape",
    "available_cores",
    "check_stages",
    "executor_named",
    "known_names",
    "memory_left",
    "memory_limit",
    "refuse_while_importing_main",
    "resolve",
    "staged_copy",
    "worker_shape",
]


def staged_copy(stages: Sequence[Stage], executor: object = "serial", *, on_event: OnEvent | None = None) -> CopyReport:
    """Run stages that you hold, whose arrays exist.

    Parameters
    ----------
    stages : sequence of Stage
        Such as :attr:`rechunk_exec.Rechunked.stages`. They run in order.
    executor : str, Executor, concurrent.futures.Executor or callable
        What runs them; see :func:`~rechunk_exec.executors.registry.resolve`. One made from a name is closed in the end.
    on_event : callable, optional
        Called with each :class:`~rechunk_exec.results.Event`.

    Returns
    -------
    CopyReport

    Raises
    ------
    TaskError
        If a task failed for good.

    Examples
    --------
    >>> staged_copy([]).tasks
    0
    """
    if isinstance(stages, Stage):
        raise TypeError("stages must be a sequence of stages; got a single one; put it in a list")
    held = tuple(stages)
    strangers = [stage for stage in held if not isinstance(stage, Stage)]  # type: ignore[redundant-expr]
    if strangers:
        raise TypeError(f"stages must be a sequence of Stage; got a {type(strangers[0]).__name__} in it")
    chosen = resolve(executor)
    with ExitStack() as stack:
        close = getattr(chosen, "close", None)
        if isinstance(executor, str) and callable(close):
            stack.callback(close)
        check_stages(chosen, held)
        report: object = chosen.staged_copy(held, on_event=on_event)
    if not isinstance(report, CopyReport):
        raise RechunkError(
            f"an executor's staged_copy must return a CopyReport; got {report!r} from {chosen.name!r}; return what "
            "rechunk_exec.staged_copy returns, or give a plain function as executor"
        )
    return report
