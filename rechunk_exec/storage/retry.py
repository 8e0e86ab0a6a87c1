"""Requests to stores that fail for a passing reason, and are made again. Layer: storage."""

from __future__ import annotations

import threading


class _Count(threading.local):
    retries = 0


_COUNT = _Count()


def count_retry() -> None:
    """Count one request that this thread makes again."""
    _COUNT.retries += 1


def take_retries() -> int:
    """Return how many requests this thread has made again since it was last asked."""
    retries, _COUNT.retries = _COUNT.retries, 0
    return retries
