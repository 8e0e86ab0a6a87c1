"""A plain loop: the reference that the other executors are compared with. Layer: executors."""

from __future__ import annotations

from collections.abc import Sequence

from rechunk_exec.copy import release_memory
from rechunk_exec.executors.base import WorkerShape
from rechunk_exec.executors.calls import Call, Outcome
from rechunk_exec.executors.machine import available_cores
from rechunk_exec.executors.pool import PoolExecutor


class SerialExecutor(PoolExecutor):
    """Runs one task after the other, here. A task decodes and encodes on all cores, so this is often no slower.

    Examples
    --------
    >>> with SerialExecutor() as executor:
    ...     list(executor.map(abs, [-1, -2]))
    [1, 2]
    """

    name = "serial"
    tasks_per_worker = 1

    def __init__(self) -> None:
        super().__init__()
        self._ended: list[Outcome] = []

    @property
    def worker_shape(self) -> WorkerShape:
        """One worker with all cores."""
        return WorkerShape(workers=1, tasks_per_worker=1, cores_per_worker=available_cores(), elastic=False, here=True)

    def _slots(self, tasks_per_worker: int | None) -> int:
        return 1

    def _start(self, call: Call) -> None:
        # No name is bound to the outcome here: the error's traceback would hold it, and so the memory of the task.
        try:
            self._ended.append(Outcome(number=call.number, value=call.function.value(call.argument)))
        except Exception as error:  # noqa: BLE001 - it is the call's outcome
            self._ended.append(Outcome(number=call.number, error=error))

    def _finished(self) -> Sequence[Outcome]:
        ended, self._ended = self._ended, []
        return ended

    def _settle(self, *, stop: bool) -> None:
        self._ended.clear()

    def _after_copy(self) -> None:
        release_memory()
