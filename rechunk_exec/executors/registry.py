"""From what a user gives as ``executor=`` to an executor. Layer: executors, above the pools."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent import futures
from importlib.metadata import EntryPoint, entry_points
from typing import Any, cast

from rechunk_exec.errors import PlanError, RechunkError
from rechunk_exec.executors.base import Executor
from rechunk_exec.executors.beam import BeamExecutor
from rechunk_exec.executors.dask import DaskExecutor
from rechunk_exec.executors.daskclient import is_client
from rechunk_exec.executors.flink import FlinkExecutor
from rechunk_exec.executors.function import FunctionExecutor
from rechunk_exec.executors.futures import FuturesExecutor
from rechunk_exec.executors.gpu import GpuExecutor
from rechunk_exec.executors.main_module import refuse_while_importing_main
from rechunk_exec.executors.processes import ProcessesExecutor
from rechunk_exec.executors.serial import SerialExecutor
from rechunk_exec.executors.threads import ThreadsExecutor
from rechunk_exec.tasks import Stage

ENTRY_POINTS = "rechunk_exec.executors"
"""The entry-point group by which other packages add names: of classes or functions that make an executor."""

_BUILT_IN: dict[str, Any] = {
    "serial": SerialExecutor,
    "python": SerialExecutor,
    "threads": ThreadsExecutor,
    "processes": ProcessesExecutor,
    "dask": DaskExecutor,
    "beam": BeamExecutor,
    "flink": FlinkExecutor,
    "gpu": GpuExecutor,
    # It is made of what lies above this layer, so it is loaded as those of other packages are.
    "batch": EntryPoint(name="batch", value="rechunk_exec.batch.executor:BatchExecutor", group=ENTRY_POINTS),
}


def resolve(executor: object) -> Executor:
    """Return the executor that ``executor`` stands for.

    Parameters
    ----------
    executor : str, Executor, concurrent.futures.Executor, distributed.Client or callable
        A name (which makes a new executor, to be closed by who asked for it); an object with ``staged_copy``; a pool;
        a client; or a function ``staged_copy(stages)``.

    Raises
    ------
    PlanError
        If there is no executor of that name.
    TypeError
        If it is none of these.

    Examples
    --------
    >>> resolve("threads").name
    'threads'
    """
    if isinstance(executor, str):
        return executor_named(executor)
    if isinstance(executor, type):
        raise TypeError(
            f"executor must be a name or an object; got the class {executor.__name__}; make one of it: call it"
        )
    if callable(getattr(executor, "staged_copy", None)):
        return cast(Executor, executor)
    if isinstance(executor, futures.Executor):
        return FuturesExecutor(executor)
    if is_client(executor):
        return DaskExecutor(executor)
    if callable(executor):
        return FunctionExecutor(executor)
    raise TypeError(
        "executor must be a name, an object with staged_copy, a concurrent.futures.Executor, a distributed.Client or "
        f"a function of the stages; got {executor!r}"
    )


def executor_named(name: str, workers: int | None = None) -> Executor:
    """Return a new executor of a name, with so many workers if given.

    ``dask:tcp://host:8786`` is the cluster whose scheduler is at that address, ``flink:host:8081`` the one whose job
    manager is.

    Raises
    ------
    PlanError
        If there is no executor of that name, it cannot be loaded, or it cannot be told a number of workers.
    MissingExtraError
        If an optional package is needed and not installed.
    """
    kind, _, address = name.partition(":")
    found = _BUILT_IN.get(name)
    if kind == "dask" and address:
        if workers is not None:
            raise PlanError(f"a cluster that is given has its workers already; got workers={workers} and {name!r}")
        return DaskExecutor(address)
    if kind == "flink" and address:
        return FlinkExecutor(address, workers=workers)
    if found is None:
        added = _added()
        if name not in added:
            raise PlanError(f"executor must be one of {', '.join(known_names())}; got {name!r}")
        found = _loaded(added[name])
    if isinstance(found, EntryPoint):
        found = _loaded(found)
    if workers is None:
        return cast(Executor, found() if callable(found) else found)
    if found is SerialExecutor:
        raise PlanError(
            f"executor {name!r} has one worker; got workers={workers}; use 'threads' or 'processes' for more"
        )
    if found is BeamExecutor:
        raise PlanError(
            f"a Beam runner has the workers that its options say; got workers={workers} and {name!r}; give an object, "
            "such as BeamExecutor(options=['--direct_running_mode=multi_processing', '--direct_num_workers=2'])"
        )
    return cast(Executor, found(workers=workers))


def known_names() -> tuple[str, ...]:
    """Return the names that :func:`resolve` knows, those of other packages last.

    Examples
    --------
    >>> known_names()[:4]
    ('serial', 'python', 'threads', 'processes')
    """
    return (*_BUILT_IN, *sorted(_added().keys() - _BUILT_IN.keys()))


def check_stages(executor: object, stages: Sequence[Stage]) -> None:
    """Raise, before anything is created, if the executor could not run these stages, or must not run here at all.

    Raises
    ------
    RechunkError
        If this process only imports the main script of its parent; a worker process of ours ends quietly.
    StorageError
        If the executor's workers would not see the stages' stores.
    """
    refuse_while_importing_main()
    check = getattr(executor, "check_stages", None)
    if callable(check):
        check(stages)


def _loaded(point: EntryPoint) -> Any:
    """Return what an entry point names, or say what to install."""
    try:
        return point.load()
    except RechunkError:
        raise
    except (ImportError, AttributeError) as error:
        package = "another package" if point.dist is None else point.dist.name
        wanted = f"{package}[{','.join(point.extras)}]" if point.extras else package
        raise PlanError(
            f"executor {point.name!r} must load from {point.value!r}, which {package} declares; got "
            f"{type(error).__name__}: {error}; install what it needs (pip install '{wanted}'), or choose another one"
        ) from error


def _added() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=ENTRY_POINTS)}
