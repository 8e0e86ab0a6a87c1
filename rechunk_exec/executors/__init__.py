"""Where tasks run: in this process, in others, on clusters, by any function. Layer: above copy, below report and api.

An executor schedules and does no chunk arithmetic: stages in order, a full barrier between them, each task at least
once (:class:`~rechunk_exec.executors.base.Executor`). Pools of workers also offer ``map``, ``put`` and
``run_on_workers`` (:class:`~rechunk_exec.executors.pool.PoolExecutor`).
"""

from __future__ import annotations

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
from rechunk_exec.executors.staged import staged_copy
from rechunk_exec.executors.threads import ThreadsExecutor

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
