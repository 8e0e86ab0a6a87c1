"""Measuring the rates of a :class:`~rechunk_exec.cost.CostModel` on a user's own data. Layer: beside the api.

A probe runs samples of what the job's own tasks would do: it plans the copy, reads regions of the plan, spread over the
array, and writes parts of them to arrays of its own. Each phase's seconds, less those of its operations, give the rate
of its bytes, so that the model gives back the seconds that were measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

from rechunk_exec.chunkspec import ChunkSpec
from rechunk_exec.cost import CostModel
from rechunk_exec.errors import PlanError
from rechunk_exec.executors import available_cores
from rechunk_exec.executors.base import check_count
from rechunk_exec.measuring.sampling import Probe
from rechunk_exec.measuring.subject import Wishes, subject_of
from rechunk_exec.naming import Options
from rechunk_exec.sizes import parse_bytes
from rechunk_exec.stageplan import MOST_THREADS

__all__ = ["measure"]


def measure(  # noqa: PLR0913 - what rechunk takes, and how to measure
    source: object,
    target_store: object = None,
    *,
    target_chunks: ChunkSpec = None,
    target_shards: ChunkSpec = None,
    target_options: Mapping[str, Any] | None = None,
    zarr_format: Literal[2, 3] | None = None,
    temp_store: object = None,
    storage_options: Options | None = None,
    temp_storage_options: Options | None = None,
    max_mem: int | str = "1GB",
    cores: int | None = None,
    cached: bool = False,
    seconds: float = 3.0,
) -> CostModel:
    """Measure how fast an array is read and a target like the one that is wanted is written, in a few seconds.

    Give the result as ``cost_model`` to :func:`rechunk_exec.rechunk`, or save it (:meth:`CostModel.to_json`). It stands
    for the processor cores that it was measured with, while nothing else runs; see :meth:`CostModel.scaled` for others.

    **The page cache.** What is read from a local disk and lies in the system's page cache comes many times as fast as
    from the disk. So before files are read, the system is asked to forget them, and the rate is that of the disk.
    Where it does not (a file system in memory), or with ``cached=True``, the rate is that of cached reads: right for a
    job whose source was just written or read and fits in memory. The model's ``notes`` say which was measured.
    Intermediates are measured in the cache: a job reads them soon after it has written them.

    Parameters
    ----------
    source : str, os.PathLike, zarr.Array or zarr store
        The array. It is only read.
    target_store : str, os.PathLike or zarr store, optional
        Where the target is to go. The probe writes to a hidden folder beside it, which it removes in the end, and to
        nothing else. None writes to the system's folder for temporary files, never beside the source; so does a target
        in an icechunk repository, which would keep what was written.
    target_chunks, target_shards, target_options, zarr_format
        As for :func:`rechunk_exec.rechunk`; None keeps the source's chunks.
    temp_store : str, os.PathLike or zarr store, optional
        Where intermediates are to go; None is where the target is.
    storage_options, temp_storage_options : dict, optional
        Options for URLs.
    max_mem : int or str
        Memory that the job will have for a worker, which decides what its tasks read at once. The probe holds about as
        much; up to twice of it where the plan has several stages.
    cores : int, optional
        Cores to measure with, 4096 at most. Default: all that this process may use. More than there are share these: up
        to 64 threads, as if each were on a core.
    cached : bool
        Whether to read the source from the page cache: samples are read once before they are timed.
    seconds : float
        About how long to measure. Work that cannot be cut, such as one shard, is finished; to start a worker process
        takes a second more.

    Returns
    -------
    CostModel
        With the name ``"measured"``. What could not be measured, as with an empty array, has the preset's value, and
        ``notes`` say so.

    Raises
    ------
    PlanError
        If the target cannot be as wanted, ``seconds`` is not positive and finite, or there are too many ``cores``.
    BudgetError
        If one task needs more than ``max_mem``.
    StorageError
        If the source cannot be read, or the place beside the target cannot be written.

    Examples
    --------
    >>> import numpy as np, tempfile, zarr
    >>> folder = tempfile.mkdtemp()
    >>> frame = zarr.create_array(f"{folder}/frame.zarr", data=np.arange(6.0).reshape(2, 3), chunks=(1, 3))
    >>> model = measure(frame, f"{folder}/series.zarr", target_chunks=(2, 1), seconds=0.1)
    >>> model.name, model.decode_bps > 0, CostModel.from_json(model.to_json()) == model
    ('measured', True, True)
    """
    if not 0 < seconds < math.inf:
        raise PlanError(f"seconds must be positive and finite; got {seconds!r}")
    asked = available_cores() if cores is None else check_count("cores", cores)
    if asked > MOST_THREADS:
        raise PlanError(f"cores must be at most {MOST_THREADS}; got {asked}")
    subject = subject_of(
        Wishes(
            source=source,
            target_store=target_store,
            target_chunks=target_chunks,
            target_shards=target_shards,
            target_options=target_options,
            zarr_format=zarr_format,
            temp_store=temp_store,
            storage_options=storage_options,
            temp_storage_options=temp_storage_options,
        ),
        max_mem=parse_bytes(max_mem),
        cores=asked,
    )
    return Probe(subject, cached=cached, seconds=seconds).run()
