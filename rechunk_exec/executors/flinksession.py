"""The only user of PyFlink: a session with a cluster, which takes jobs. Layer: executors, below flink.

A session is made when it is needed, since PyFlink starts a Java process for it. What a cluster offers is asked without
one (:mod:`.flinkshape`).
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rechunk_exec.errors import MissingExtraError, RechunkError
from rechunk_exec.executors.base import WorkerShape
from rechunk_exec.executors.flinkjob import FlinkJob, root_cause
from rechunk_exec.executors.flinkshape import shape_at, shape_here
from rechunk_exec.executors.machine import available_cores

RESTARTS = 3
"""How often Flink starts the parts of a job again that were lost."""
_OPTIONS = {
    "execution.runtime-mode": "BATCH",
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": str(RESTARTS),
    "restart-strategy.fixed-delay.delay": "1 s",
    "python.fn-execution.bundle.size": "1",  # a range is long: none waits inside a worker while another slot is free
}
_SUBMITTED = "PYFLINK_GATEWAY_PORT"
"""Set in the environment of programs that ``flink run`` has started."""
_LOOPBACK = "python.loopback-server.address"
"""Set in a session on this machine whose Python workers are threads of this process."""


class FlinkSession:
    """A session with a cluster: given, at an address, the one that ``flink run`` was told, or on this machine.

    Parameters
    ----------
    address : str or None
        ``host:port`` of the job manager's REST service.
    env : StreamExecutionEnvironment or None
    workers : int or None
        Tasks that are to run at once.
    options : mapping
        Of Flink's configuration, besides our own.
    """

    def __init__(self, address: str | None, env: Any, workers: int | None, options: Mapping[str, str]) -> None:
        self._address = address
        self._given = env
        self._env: Any = None
        self._workers = workers
        self._options = {"python.executable": sys.executable, **_OPTIONS, **options}

    def shape(self) -> WorkerShape:
        """Return what the slots offer; see :attr:`~rechunk_exec.executors.flink.FlinkExecutor.worker_shape`."""
        if self._address is not None:
            return shape_at(self._address, self._workers)
        if self._given is None and _SUBMITTED not in os.environ:  # nothing is started for this
            return shape_here(self._workers or available_cores(), threads=False)
        env, configuration = self._environment(), self._configuration()
        workers = self._workers or int(env.get_parallelism())
        if configuration.get("execution.target") == "remote":
            return shape_at(f"{configuration['rest.address']}:{configuration.get('rest.port', '8081')}", workers)
        return shape_here(workers, threads=_LOOPBACK in configuration)

    def submit(self, name: str, function: object, elements: Sequence[tuple[int, int]], parallelism: int) -> FlinkJob:
        """Start a job that calls ``function`` on each of ``elements``, dealt out evenly.

        Raises
        ------
        RechunkError
            If the cluster does not take it.
        """
        env = self._environment()
        from pyflink.datastream.connectors.base import Sink
        from pyflink.java_gateway import get_gateway

        nowhere = get_gateway().jvm.org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink()
        try:
            stream = env.from_collection(list(elements)).rebalance()
            stream.process(function).set_parallelism(parallelism).sink_to(Sink(nowhere)).set_parallelism(parallelism)
            return FlinkJob(env.execute_async(name))
        except Exception as error:
            raise RechunkError(
                f"a cluster of Flink must take the job {name!r}; it did not: {root_cause(error)}; see the cause"
            ) from error

    def _environment(self) -> Any:
        """PyFlink's session, made when it is needed."""
        if self._env is None:
            require_pyflink()
            from pyflink.common import Configuration
            from pyflink.datastream import StreamExecutionEnvironment

            if self._given is not None:
                self._given.configure(Configuration.from_dict(self._options))
                self._env = self._given
            elif self._address is not None:
                self._env = _remote(self._address, self._options)
            else:
                # A cluster inside this program takes any port: the configuration may name that of one that runs.
                ports = {} if _SUBMITTED in os.environ else {"rest.port": "0", "rest.bind-port": "0"}
                with _workers_apart():
                    configuration = Configuration.from_dict({**ports, **self._options})
                    self._env = StreamExecutionEnvironment.get_execution_environment(configuration)
        return self._env

    def _configuration(self) -> dict[str, str]:
        from pyflink.common import Configuration
        from pyflink.util.java_utils import get_j_env_configuration

        java = get_j_env_configuration(self._environment()._j_stream_execution_environment)  # noqa: SLF001 - no other way
        return dict(Configuration(j_configuration=java).to_dict())


def require_pyflink() -> None:
    """Raise :class:`MissingExtraError` unless PyFlink is installed."""
    try:
        import pyflink.datastream  # noqa: F401 - the first of its parts that needs all of what it is built on
    except ImportError as error:
        raise MissingExtraError("apache-flink", "flink") from error


def _remote(address: str, options: Mapping[str, str]) -> Any:
    """Return a session with the cluster at an address."""
    from pyflink.common import Configuration
    from pyflink.datastream import StreamExecutionEnvironment
    from pyflink.find_flink_home import _find_flink_home
    from pyflink.java_gateway import get_gateway

    host, _, port = address.rpartition(":")
    # What runs Python in a task manager is not in its own library; ``flink run`` sends it along too.
    jar = next(Path(_find_flink_home(), "opt").glob("flink-python-*.jar"))
    configuration = Configuration.from_dict(
        {
            "execution.target": "remote",
            "execution.attached": "true",
            "rest.address": host.strip("[]"),
            "rest.port": port,
            "pipeline.jars": jar.as_uri(),
            **options,
        }
    )
    # PyFlink's own function makes a session on this machine, whatever the target.
    java = get_gateway().jvm.org.apache.flink.streaming.api.environment.StreamExecutionEnvironment
    return StreamExecutionEnvironment(java(configuration._j_configuration))  # noqa: SLF001 - as PyFlink does it


@contextlib.contextmanager
def _workers_apart() -> Iterator[None]:
    """Have PyFlink run workers on this machine in processes, where it would make them threads of this program.

    Those would change its logging, its environment and its working directory, and share one ``max_mem``.
    """
    name = "_python_worker_execution_mode"
    before = os.environ.get(name)
    os.environ[name] = "process"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
