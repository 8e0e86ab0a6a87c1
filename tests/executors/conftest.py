"""What tests of executors share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rechunk_exec.executors import ProcessesExecutor


@pytest.fixture
def two() -> Iterator[ProcessesExecutor]:
    """Two worker processes that nobody has used."""
    with ProcessesExecutor(2) as executor:
        yield executor
