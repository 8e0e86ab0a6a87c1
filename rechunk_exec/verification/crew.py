"""Who computes the sums: the workers of a pool, or threads of this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TypeVar

from rechunk_exec.executors import (
    PoolExecutor,
    SerialExecutor,
    ThreadsExecutor,
    refuse_while_importing_main,
    resolve,
)
from rechunk_exec.tasks import ArrayRef

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Crew:
    """The pool that computes sums."""

    pool: PoolExecutor

    @property
    def threads(self) -> int:
        """Threads of one call: the cores of a worker are shared among the calls that it runs at once."""
        shape = self.pool.worker_shape
        return max(1, shape.cores_per_worker // shape.tasks_per_worker)

    @property
    def at_once(self) -> int:
        """Pieces that one worker process could work on at once."""
        return self.pool.worker_shape.tasks_per_worker * self.threads

    @property
    def slots(self) -> int:
        """Calls that run at once, over all workers."""
        shape = self.pool.worker_shape
        return shape.workers * shape.tasks_per_worker

    def threads_for(self, pieces_at_once: int) -> int:
        """Return the threads of one call, where a worker process may hold so many pieces."""
        return max(1, min(self.threads, pieces_at_once // self.pool.worker_shape.tasks_per_worker))

    def map(self, fn: Callable[[T], R], work: Iterable[T], pieces_at_once: int) -> Iterator[R]:
        """Call ``fn`` for each piece of work, so that no worker process holds more pieces than said."""
        if pieces_at_once >= self.pool.worker_shape.tasks_per_worker:
            return self.pool.map(fn, work)
        # Nobody says which worker gets a call: so no more calls in all than one of them may run.
        return self.pool.map(fn, work, window=pieces_at_once)


@contextmanager
def crew_of(executor: object, refs: Sequence[ArrayRef]) -> Iterator[Crew]:
    """Return the crew that an executor makes for reading some arrays.

    Pools of workers do it themselves. Other executors only know how to run stages, and arrays in a live store may be
    seen by this process only: then threads here do it, and the report says so.
    """
    chosen = resolve(executor)
    with ExitStack() as stack:
        close = getattr(chosen, "close", None)
        if isinstance(executor, str) and callable(close):
            stack.callback(close)
        here = isinstance(chosen, (SerialExecutor, ThreadsExecutor))
        if not isinstance(chosen, PoolExecutor) or not (here or all(ref.by_name for ref in refs)):
            chosen = stack.enter_context(ThreadsExecutor())
        elif not here:
            refuse_while_importing_main()
        yield Crew(chosen)
