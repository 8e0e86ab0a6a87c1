"""Rewrite big chunked arrays to another chunk layout, within a stated memory.

>>> import rechunk_exec as rx
>>> plan = rx.plan_rechunk((128, 2048, 2048), 4, (1, 1024, 1024), (128, 64, 64), "2GB", target_shards=(128, 256, 256))
>>> len(plan.stages), plan.traffic
(1, 2.0)
"""

from __future__ import annotations

import lazy_loader

# What is named in ``__init__.pyi`` is imported when it is used: a worker process needs half of the package, and starts
# sooner without the rest. ``executors`` is there as a module, and is no name of the contract.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__all__.remove("executors")
