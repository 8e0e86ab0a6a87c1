"""A client of ``distributed``: given, at an address, or of processes started here. Layer: executors, below dask.

``distributed`` is imported here only, when a :class:`DaskClient` is made.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from contextlib import suppress
from typing import Any

from rechunk_exec.errors import MissingExtraError, RechunkError
from rechunk_exec.executors.machine import thread_limits
from rechunk_exec.executors.main_module import refuse_while_importing_main


class DaskClient:
    """Holds a client, and the processes of this machine that were started for it, if any.

    Parameters
    ----------
    given : distributed.Client, str or None
        A client, or the address of a scheduler; with None, :meth:`start` starts ``size`` processes of one thread each.
    size : int
        Number of processes to start.
    cores : int
        Number of cores that each of these may use.
    """

    def __init__(self, given: object, *, size: int, cores: int) -> None:
        distributed = _distributed()
        if not (given is None or isinstance(given, str | distributed.Client)):
            raise TypeError(f"client must be a distributed.Client or the address of a scheduler; got {given!r}")
        if isinstance(given, distributed.Client) and given.asynchronous:
            raise TypeError(f"client must not be asynchronous, since executors wait; got {given!r}")
        self.local = given is None
        """Whether its workers are processes that are started here."""
        self.client: Any = None if isinstance(given, str) else given
        """The client of ``distributed``; None before it is started, and after the end."""
        self._size, self._cores = size, cores
        self._cluster: Any = None
        self._owned = not isinstance(given, distributed.Client)
        if isinstance(given, str):
            try:
                self.client = distributed.Client(given, set_as_default=False)
            except (OSError, ValueError, TimeoutError) as error:
                raise RechunkError(
                    f"a scheduler must answer at the address given as client; got {given!r}: {error}"
                ) from error

    def start(self) -> None:
        """Start processes and a client of them.

        Raises
        ------
        RechunkError
            If they do not start.
        """
        distributed = _distributed()
        refuse_while_importing_main()
        try:
            # No limit of memory, for the plan has one. The dashboard at any free port: others use the usual one.
            self._cluster = distributed.LocalCluster(
                n_workers=self._size,
                threads_per_worker=1,
                processes=True,
                memory_limit=None,
                dashboard_address="127.0.0.1:0",
                env=thread_limits(self._cores),
            )
            self.client = distributed.Client(self._cluster, set_as_default=False)
        except RuntimeError as error:
            raise RechunkError(
                f"worker processes must start; got {type(error).__name__}: {error}; what they printed may say why. "
                'What starts a job in a script stands under the guard `if __name__ == "__main__":`'
            ) from error

    def refill(self, there: int) -> None:
        """Start again what is missing of the processes that were started here, of which so many are there.

        Their cluster gives up workers that do not start again in good time, which on a busy machine they may not.
        """
        if self._cluster is not None and there < self._size:
            self._cluster.scale(self._size)

    def end(self, *, at_once: bool) -> None:
        """Let go of what was started here; see :meth:`rechunk_exec.executors.daskcluster.DaskCluster.end`."""
        client, cluster, self.client, self._cluster = self.client, self._cluster, None, None
        for nanny in cluster.workers.values() if cluster is not None and at_once else ():
            nanny.auto_restart = False
            with suppress(ProcessLookupError, TypeError):  # it has no process any more
                os.kill(nanny.pid, signal.SIGKILL)
        if self._owned and client is not None:
            client.close()
        if cluster is not None:
            cluster.close()


def is_client(thing: object) -> bool:
    """Whether something is a client of ``distributed``, which is not imported for that."""
    distributed = sys.modules.get("distributed")
    return distributed is not None and isinstance(thing, distributed.Client)


def _distributed() -> Any:
    try:
        return importlib.import_module("distributed")
    except ImportError as error:
        raise MissingExtraError("distributed", "dask") from error
