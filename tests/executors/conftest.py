"""What tests of executors share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rechunk_exec.executors import ProcessesExecutor
from tests.executors.flink_cluster import Cluster, held_gateway, running_flink


@pytest.fixture
def two() -> Iterator[ProcessesExecutor]:
    """Two worker processes that nobody has used."""
    with ProcessesExecutor(2) as executor:
        yield executor


@pytest.fixture(scope="session")
def flink(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of Flink for all tests: its processes take longer to start than most jobs. See ``running_flink``."""
    folder = tmp_path_factory.mktemp("flink")
    with held_gateway(), running_flink(folder) as cluster, pytest.MonkeyPatch.context() as patch:
        for name, value in cluster.environment.items():
            patch.setenv(name, value)  # for the Java process of this program
        yield cluster
