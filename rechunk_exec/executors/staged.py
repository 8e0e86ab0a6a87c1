"""Running stages on any executor. Layer: executors, above the pools."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from rechunk_exec.errors import RechunkError
from rechunk_exec.executors.registry import check_stages, resolve
from rechunk_exec.results import CopyReport, OnEvent
from rechunk_exec.tasks import Stage


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
