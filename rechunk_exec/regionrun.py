"""Running tasks of one's own: checked, on any pool of workers, with progress. Layer: above alignment."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager

from rechunk_exec.alignment import check_aligned
from rechunk_exec.chunktasks import ChunkTask
from rechunk_exec.errors import TaskError
from rechunk_exec.executors import PoolExecutor, check_stages, resolve
from rechunk_exec.regions import ChunkResult, chunk_task
from rechunk_exec.report.progress import progress as show_progress
from rechunk_exec.results import Event


def run_chunk_tasks(
    tasks: Iterable[ChunkTask], executor: object = "threads", *, progress: bool | None = None
) -> list[ChunkResult]:
    """Check tasks, run them on a pool of workers, and return their results in order.

    The same as ``check_aligned(tasks)`` and then ``executor.map(chunk_task, tasks)``, with progress and errors that
    name the task. A task whose worker died is run again, up to three times in all; one that raises is not. All of them
    may be run again after an error: each replaces what it writes.

    Parameters
    ----------
    tasks : iterable of ChunkTask
    executor : str, PoolExecutor, concurrent.futures.Executor or distributed.Client
        A pool that is given is left open, for the next tasks or job.
    progress : bool, optional
        None: a bar on a terminal and in a notebook, else a log line at each tenth of the tasks; False: nothing.

    Raises
    ------
    PlanError
        Before anything runs; see :func:`~rechunk_exec.alignment.check_aligned`.
    TaskError
        If a task failed; ``index`` is its number, its cause what was raised. No other one is running any more.
    TypeError
        If the executor is no pool of workers.
    """
    every = tuple(tasks)
    with _pool(executor) as pool, show_progress(progress) as tell:
        check_stages(pool, ())
        check_aligned(every)
        tell(Event(kind="start", total=len(every)))
        results: list[ChunkResult] = []
        with closing(pool.map(chunk_task, every)) as coming:  # type: ignore[type-var]
            while len(results) < len(every):
                index = len(results)
                try:
                    results.append(next(coming))
                except Exception as error:
                    raise _task_error(index, every[index], error) from error
                tell(Event(kind="task", index=index, bytes_written=results[-1].bytes_written))
    return results


@contextmanager
def _pool(executor: object) -> Iterator[PoolExecutor]:
    pool = resolve(executor)
    if not isinstance(pool, PoolExecutor):
        raise TypeError(
            "tasks of your own run on a pool of workers: 'serial', 'threads', 'processes', 'dask', or an object of "
            f"theirs; got {executor!r}"
        )
    try:
        yield pool
    finally:
        if pool is not executor:
            pool.close()


def _task_error(index: int, task: ChunkTask, error: Exception) -> TaskError:
    return TaskError(
        f"each task must end well; got {type(error).__name__} in task {index}, {task}: {error}; see the cause; what "
        "was written is replaced when the tasks are run again",
        stage=0,
        index=index,
    )
