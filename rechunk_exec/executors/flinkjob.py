"""A job that a cluster of Flink has taken, and what it says when it fails. Layer: executors, below flink."""

from __future__ import annotations

import contextlib
import re
from typing import Any

_RAISED = re.compile(r"Traceback \(most recent call last\):\n(?: .*\n)*([^\s].*)")
_CAUSED = re.compile(r"^Caused by: (.*)", re.MULTILINE)


class FlinkJob:
    """A job that was submitted."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._end = client.get_job_execution_result()

    def is_done(self) -> bool:
        """Whether the job has ended, well or not."""
        return bool(self._end.done())

    def problem(self) -> Exception | None:
        """Wait for the end; return why the job failed, or None if it went well."""
        try:
            self._end.result()
        except Exception as error:  # noqa: BLE001 - whatever Java says
            return error
        return None

    def cancel(self) -> None:
        """End the job and its workers, whatever they are at, and wait until that is done."""
        with contextlib.suppress(Exception):  # it may have ended by itself, and the cluster too
            self._client.cancel().result()
            self.problem()


def root_cause(error: BaseException) -> str:
    r"""Return the last line of what Java or the Python of a worker says that tells a reason.

    Examples
    --------
    >>> root_cause(RuntimeError("JobExecutionException: failed\nCaused by: java.io.IOException: no"))
    'java.io.IOException: no'
    """
    raised = _RAISED.findall(str(error))
    caused = _CAUSED.findall(str(error))
    first = [f"{type(error).__name__}: {line}" for line in str(error).splitlines()[:1]]
    return str((raised or caused or first or [type(error).__name__])[-1])
