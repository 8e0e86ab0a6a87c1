"""Where tasks run: in this process, in others, on clusters, by any function. Layer: above copy, below report and api.

An executor schedules and does no chunk arithmetic: stages in order, a full barrier between them, each task at least
once (:class:`~rechunk_exec.executors.base.Executor`). Pools of workers also offer ``map``, ``put`` and
``run_on_workers`` (:class:`~rechunk_exec.executors.pool.PoolExecutor`).
"""

from __future__ import annotations

import lazy_loader

# As in the package above: only the modules of those executors are imported that somebody uses.
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "base": ["Executor", "WorkerShape", "worker_shape"],
        "beam": ["BeamExecutor"],
        "dask": ["DaskExecutor"],
        "flink": ["FlinkExecutor"],
        "function": ["FunctionExecutor"],
        "futures": ["FuturesExecutor"],
        "gpu": ["GpuExecutor"],
        "machine": ["available_cores", "memory_left", "memory_limit"],
        "main_module": ["refuse_while_importing_main"],
        "pool": ["PoolExecutor"],
        "processes": ["ProcessesExecutor"],
        "registry": ["check_stages", "executor_named", "known_names", "resolve"],
        "serial": ["SerialExecutor"],
        "shared": ["Shared"],
        "staged": ["staged_copy"],
        "threads": ["ThreadsExecutor"],
    },
)
