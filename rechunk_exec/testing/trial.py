"""A job of two stages on arrays that are watched, and what came of running it. Layer: testing.

The source is 12 chunks of one row each, the middle one 12 x 4 chunks, the target 4 chunks of three columns. So task
``i`` of the first stage reads row ``i``, task ``j`` of the second stage reads a chunk that each task of the first one
has written: whoever starts a stage too early copies holes.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import zarr
from numpy.typing import NDArray

from rechunk_exec.executors import staged_copy
from rechunk_exec.results import CopyReport, Event
from rechunk_exec.stageplan import StagePlan
from rechunk_exec.tasks import ArrayRef, Stage
from rechunk_exec.testing.record import Faults, Record, TaskKey, Watch
from rechunk_exec.testing.watched import WatchedStore, serving

Stores: TypeAlias = Literal["live", "named"]
"""How a trial's stages hold their arrays: as stores that pickle, or by paths and URLs alone."""

SHAPE = (12, 12)
CHUNKS = {"source": (1, 12), "middle": (1, 3), "target": (12, 3)}
REGIONS = {"source": (1, 12), "middle": (12, 3)}
"""Of the stage that reads the array."""
TASKS = tuple((0, index) for index in range(12)) + tuple((1, index) for index in range(4))
"""The stage and index of each task, in order."""
DTYPE = np.dtype("<f4")


def position_values(shape: tuple[int, ...]) -> NDArray[Any]:
    """Return a float32 array of which each element is a hash of its place: NaNs of any payload are among them.

    Examples
    --------
    >>> values = position_values((12, 12))
    >>> len(set(values.ravel().view("u4").tolist()))
    144
    """
    places = np.arange(int(np.prod(shape)), dtype="<u8") + np.uint64(1)
    hashes = (places * np.uint64(0x9E3779B97F4A7C15)) ^ (places << np.uint64(17))
    words = (hashes ^ (hashes >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    values: NDArray[Any] = (words >> np.uint64(32)).astype("<u4").view(DTYPE).reshape(shape)
    return values


@dataclass(slots=True)
class Run:
    """What one call of ``staged_copy`` came to."""

    record: Record
    events: list[Event] = field(default_factory=list)
    threads: set[int] = field(default_factory=set)
    """Those that the events were told in."""
    report: CopyReport | None = None
    error: Exception | None = None
    over_ns: int = 0
    """When the call returned, in nanoseconds since the epoch."""
    stored_when_over: frozenset[str] = frozenset()
    """The chunks of the middle array that were stored when the call had returned."""
    stored_later: frozenset[str] = frozenset()
    """Those that were stored some time later, where somebody has looked."""
    written_ns: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """When the chunks of the middle array and of the target were written, in nanoseconds since the epoch."""
    target: bytes = b""
    """The target's elements when the call had returned."""

    def tries(self) -> dict[TaskKey, int]:
        """How often each task has begun."""
        return self.record.tries()

    def retried(self) -> Counter[TaskKey]:
        """How many tries the events tell of that will be made again, by task."""
        return Counter((event.stage, event.index) for event in self.events if event.kind == "retry")


class Trial:
    """Three arrays in a folder, of which the last two are empty, and the stages between them.

    Parameters
    ----------
    folder : Path
        A folder that all workers see.
    stores : {"live", "named"}
        Whether stages hold stores that pickle, or names only. With names, chunks are read through a server in this
        process, by HTTP, and writes are known from the times of files.
    """

    def __init__(self, folder: Path, stores: Stores = "live") -> None:
        self.folder = folder
        self.stores = stores
        self.values = position_values(SHAPE)
        for name, chunks in CHUNKS.items():
            array = zarr.create_array(folder / name, shape=SHAPE, chunks=chunks, dtype=DTYPE)
            if name == "source":
                array[...] = self.values

    @contextmanager
    def stages(self, record: Record, faults: Faults | None = None) -> Iterator[tuple[Stage, Stage]]:
        """Yield the stages between the arrays, with faults and on record; they can be run while the context lasts."""
        given = faults or Faults()
        watches = {name: Watch(array=name, faults=given, record=record) for name in CHUNKS}
        paths = {name: str(self.folder / name) for name in CHUNKS}
        if self.stores == "live":
            live = {name: ArrayRef(store=WatchedStore(self.folder / name, watch)) for name, watch in watches.items()}
            yield _stage(0, live["source"], live["middle"]), _stage(1, live["middle"], live["target"])
            return
        if given.dies:
            raise ValueError("tasks die by a store that they read in their own process; got stores='named'")
        with serving(self.folder, watches) as address:
            read = {name: ArrayRef(store=f"{address}/{name}") for name in CHUNKS}
            yield (
                _stage(0, read["source"], ArrayRef(store=paths["middle"])),
                _stage(1, read["middle"], ArrayRef(store=paths["target"])),
            )

    def run(
        self,
        executor: object,
        name: str,
        faults: Faults | None = None,
        left: Sequence[tuple[tuple[int, int], ...] | None] = (None, None),
    ) -> Run:
        """Run the stages, or what is ``left`` of each, and return what came of it; an error is part of that.

        Parameters
        ----------
        executor : object
            What ``executor=`` takes.
        name : str
            Of the run: its record is kept under it.
        faults : Faults, optional
        left : sequence of (tuple of runs of task numbers, or None), optional
            See :attr:`rechunk_exec.Stage.left`; an empty tuple is a stage without tasks.
        """
        run = Run(Record(self.folder / "records" / name))

        def listen(event: Event) -> None:
            run.events.append(event)
            run.threads.add(threading.get_ident())

        with self.stages(run.record, faults) as stages:
            held = [replace(stage, left=runs) for stage, runs in zip(stages, left, strict=True)]
            try:
                run.report = staged_copy(held, executor, on_event=listen)
            except Exception as error:  # noqa: BLE001 - tests look at it
                run.error = error
            run.over_ns = time.time_ns()
            run.stored_when_over = frozenset(self.stored("middle"))
        run.written_ns = {name: self._written_ns(run, name) for name in ("middle", "target")}
        run.target = self.elements("target")
        return run

    def elements(self, name: str) -> bytes:
        """Return the bytes of an array's elements."""
        return np.asarray(zarr.open_array(self.folder / name, mode="r")[...]).tobytes()

    def stored(self, name: str) -> dict[str, bytes]:
        """Return an array's chunks as they are stored, by key."""
        root = self.folder / name
        return {
            str(path.relative_to(root)): path.read_bytes()
            for path in sorted((root / "c").rglob("*"))
            if path.is_file() and not path.name.startswith(".")
        }

    def _written_ns(self, run: Run, name: str) -> list[int]:
        if self.stores == "live":
            requests = [request for request in run.record.requests() if request.verb == "write"]
            return [request.ended_ns for request in requests if request.array == name and request.ended_ns is not None]
        return [path.stat().st_mtime_ns for path in (self.folder / name / "c").rglob("*") if path.is_file()]


def _stage(number: int, source: ArrayRef, target: ArrayRef) -> Stage:
    reads, writes = (("source", "middle"), ("middle", "target"))[number]
    plan = StagePlan(
        shape=SHAPE,
        itemsize=DTYPE.itemsize,
        source=("source", "temp-1")[number],
        target=("temp-1", "target")[number],
        read_unit=CHUNKS[reads],
        write_unit=CHUNKS[writes],
        chunk=CHUNKS[writes],
        region=REGIONS[reads],
        threads=1,
        tasks_per_worker=2,
        peak_bytes=2 * 4096,
        predicted_s=0.0,
    )
    return Stage(number=number, plan=plan, source=source, target=target)
