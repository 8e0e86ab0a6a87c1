from .base import Executor, WorkerShape, worker_shape
from .beam import BeamExecutor
from .dask import DaskExecutor
from .flink import FlinkExecutor
from .function import FunctionExecutor
from .futures import FuturesExecutor
from .gpu import GpuExecutor
from .machine import available_cores, memory_left, memory_limit
from .main_module import refuse_while_importing_main
from .pool import PoolExecutor
from .processes import ProcessesExecutor
from .registry import check_stages, executor_named, known_names, resolve
from .serial import SerialExecutor
from .shared import Shared
from .staged import staged_copy
from .threads import ThreadsExecutor

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
