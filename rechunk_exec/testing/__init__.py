"""Test classes that any executor must pass, ours and other people's. Layer: above the executors, beside the api.

Derive from :class:`ExecutorContract`, or from :class:`PoolContract` for a pool of workers, say how to make the
executor, and run pytest:

.. code-block:: python

    from rechunk_exec.testing import ExecutorContract

    class TestMine(ExecutorContract):
        def make_executor(self):
            return Mine()

The contracts need pytest, and nothing else does: tasks that run in workers import this package without it.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

from rechunk_exec.testing.record import InjectedFault
from rechunk_exec.testing.watched import WatchedStore

if TYPE_CHECKING:
    from rechunk_exec.testing.contract import ExecutorContract
    from rechunk_exec.testing.pools import Pool, PoolContract

__all__ = ["ExecutorContract", "InjectedFault", "Pool", "PoolContract", "WatchedStore"]

_CONTRACTS = {"ExecutorContract": "contract", "Pool": "pools", "PoolContract": "pools"}

if "pytest" in sys.modules:  # failed assertions then tell their values
    sys.modules["pytest"].register_assert_rewrite(*(f"{__name__}.{module}" for module in ("runs", "contract", "pools")))


def __getattr__(name: str) -> object:
    if name not in _CONTRACTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_CONTRACTS[name]}"), name)
