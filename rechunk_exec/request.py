"""What is asked of the planner. Layer: the planner; below the search, above memory and cost."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass, field
from typing import SupportsIndex, TypeAlias

from rechunk_exec.cost import CostModel
from rechunk_exec.errors import PlanError
from rechunk_exec.grid import boxes_touched, ceil_div, clip
from rechunk_exec.memory import RAW_READ, RAW_WRITE, ReadScratch, StageMemory, WriteScratch
from rechunk_exec.sizes import parse_bytes
from rechunk_exec.stageplan import MOST_THREADS

Size: TypeAlias = int | str
"""Bytes, as a number or such as ``"8MB"``."""

RAW_SHARD_WRITE = WriteScratch(gathered=0, stored=0, assembled=0.2)
"""Writing an uncompressed intermediate as one object a task, to a store whose client reads it while it sends it."""
SHARDED_TEMP = True
"""Whether intermediates of one object a task are weighed where nothing else is said."""
MOST_STAGES = 4
"""Each stage more moves the array once more, for pieces that are larger. A fourth pays on object stores, where tasks
have little memory beside the array: rows of 200,000 x 200,000 float32 to columns, in 20 MB, take half the time of
three."""
_MOST_ARRAY_BYTES = 1 << 63
"""An array has less: what is counted of it, such as tasks, is the length of a sequence, which Python bounds."""
MOST_CHUNK_BYTES = 2**31 - 1
"""A chunk that is encoded in one call stays below this many bytes: codecs count in 32 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceLayout:
    """How the source is stored, in elements; chunks may be longer than the array."""

    chunk: tuple[int, ...]
    read_unit: tuple[int, ...] | None = None
    """The smallest box that is decoded on its own, where that is less than the chunk. Counted anew from each chunk that
    is no whole number of them, where all of a chunk are fetched ``together``."""
    together: bool = False
    """Whether all units of a chunk that a task needs are fetched in one operation, as far as its time goes."""
    scratch: ReadScratch = field(default_factory=ReadScratch)

    @property
    def unit(self) -> tuple[int, ...]:
        """What one read decodes."""
        return self.read_unit or self.chunk


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetLayout:
    """How the target will be stored, in elements."""

    chunk: tuple[int, ...]
    shard: tuple[int, ...] | None = None
    """A whole number of chunks on every axis; None where each chunk is an object."""
    scratch: WriteScratch = field(default_factory=WriteScratch)

    @property
    def unit(self) -> tuple[int, ...]:
        """What one write replaces whole."""
        return self.shard or self.chunk


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a user wants no plan to pass; None for no limit.

    Raises
    ------
    PlanError
        If a limit is negative, or no objects are allowed.
    """

    max_objects: int | None = None
    """Objects that all stages together may write."""
    min_object_bytes: int | None = None
    """Raw bytes that every object has at least, those at the far edges of the array aside."""
    max_temp_bytes: int | None = None
    """Raw bytes that intermediates may hold at once; 0 for none."""

    def __post_init__(self) -> None:
        for name, least in (("max_objects", 1), ("min_object_bytes", 0), ("max_temp_bytes", 0)):
            limit = getattr(self, name)
            if limit is not None and limit < least:
                raise PlanError(f"{name} must be at least {least}; got {limit}")

    @classmethod
    def asked(
        cls, max_objects: SupportsIndex | None, min_object_bytes: Size | None, max_temp_bytes: Size | None
    ) -> Limits:
        """The limits as users give them: bytes may be text such as ``"8MB"``.

        >>> Limits.asked(1000, "8MB", 0)
        Limits(max_objects=1000, min_object_bytes=8000000, max_temp_bytes=0)
        """
        if isinstance(max_objects, bool) or not (max_objects is None or hasattr(max_objects, "__index__")):
            raise PlanError(f"max_objects must be a whole number of at least 1; got {max_objects!r}")
        return cls(
            max_objects=None if max_objects is None else operator.index(max_objects),
            min_object_bytes=_bytes_or_none(min_object_bytes, "min_object_bytes"),
            max_temp_bytes=_bytes_or_none(max_temp_bytes, "max_temp_bytes"),
        )


def _bytes_or_none(size: Size | None, name: str) -> int | None:
    return None if size is None else parse_bytes(size, name=name, at_least=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest(Limits):
    """All that a plan depends on.

    Raises
    ------
    PlanError
        If sizes are missing or not positive, threads or tasks at once are more than any machine runs, a shard is not a
        whole number of chunks, or a target chunk could not be encoded in one call.
    """

    shape: tuple[int, ...]
    itemsize: int
    """Bytes of one element."""
    source: SourceLayout
    target: TargetLayout
    max_mem: int
    """Bytes that one worker process may hold, over the tasks it runs at once."""
    cost: CostModel
    tasks_per_worker: int = 1
    threads: int = 2
    """Units that a worker can have in flight for one task: as many as it has threads for, or as the store wants."""
    codec_threads: int | None = None
    """How many of those keep the worker's cores busy; None for all."""
    staged: bool = True
    """Whether there is a place for an intermediate."""
    sharded_temp: bool = SHARDED_TEMP
    """Whether an intermediate may be stored as one object for each task that writes it, and read piece by piece."""
    shard_scratch: WriteScratch = RAW_SHARD_WRITE
    """What writing such an intermediate holds: its pieces are gathered, and its objects assembled or not."""
    temp_reading: ReadScratch = RAW_READ
    """What reading an intermediate holds."""
    temp_writing: WriteScratch = RAW_WRITE
    """What writing one holds of which each chunk is an object."""

    def __post_init__(self) -> None:
        for name in ("itemsize", "max_mem", "tasks_per_worker", "threads"):
            if getattr(self, name) < 1:
                raise PlanError(f"{name} must be at least 1; got {getattr(self, name)}")
        for name in ("tasks_per_worker", "threads"):
            if getattr(self, name) > MOST_THREADS:
                raise PlanError(f"{name} must be at most {MOST_THREADS}; got {getattr(self, name)}")
        Limits.__post_init__(self)
        if any(n < 0 for n in self.shape):
            raise PlanError(f"shape must not be negative; got {self.shape}")
        if math.prod(self.shape) * self.itemsize >= _MOST_ARRAY_BYTES:
            raise PlanError(f"an array has less than 2**63 bytes; got {self.shape} elements of {self.itemsize} bytes")
        units = {
            "source chunk": self.source.chunk,
            "read unit": self.source.unit,
            "target chunk": self.target.chunk,
            "target shard": self.target.unit,
        }
        for name, unit in units.items():
            if len(unit) != len(self.shape) or any(u < 1 for u in unit):
                raise PlanError(f"a {name} needs at least one element on each axis of shape {self.shape}; got {unit}")
        if any(b % c for b, c in zip(self.target.unit, self.target.chunk, strict=True)):
            raise PlanError(
                f"a shard holds a whole number of chunks on every axis; got shard {self.target.shard} for chunk "
                f"{self.target.chunk}; make it a multiple"
            )
        chunk_bytes = math.prod(self.target.chunk) * self.itemsize
        if chunk_bytes >= MOST_CHUNK_BYTES:
            raise PlanError(
                f"a target chunk stays below {MOST_CHUNK_BYTES} bytes, since codecs count in 32 bits; got chunk "
                f"{self.target.chunk} of {chunk_bytes} bytes; give smaller target chunks"
            )

    def slowdowns(self, threads: int) -> tuple[float, float]:
        """How many times as long codecs take, and waiting for the stores, with fewer units in flight than wanted."""
        return max(1.0, (self.codec_threads or self.threads) / threads), self.threads / threads

    @property
    def task_budget(self) -> int:
        """Bytes that one task may hold."""
        return self.max_mem // self.tasks_per_worker

    @property
    def read_unit(self) -> tuple[int, ...]:
        """The source's unit, clipped to the array."""
        return clip(self.source.unit, self.shape)

    @property
    def fetch_unit(self) -> tuple[int, ...]:
        """The box within which a task reads the source in one operation, clipped to the array."""
        return clip(self.source.chunk if self.source.together else self.source.unit, self.shape)

    @property
    def restart(self) -> tuple[int, ...] | None:
        """Elements after which read units are counted anew, 0 for never; None if that is so on all axes."""
        sizes = zip(self.shape, self.read_unit, self.fetch_unit, strict=True)
        restart = tuple(fetch if fetch < n and fetch % unit else 0 for n, unit, fetch in sizes)
        return restart if any(restart) else None

    @property
    def write_unit(self) -> tuple[int, ...]:
        """The target's unit, clipped to the array."""
        return clip(self.target.unit, self.shape)

    def fetches(self, region: tuple[int, ...]) -> int:
        """Operations in which tasks with this region read the source."""
        return boxes_touched(self.shape, self.fetch_unit, region)

    @property
    def nbytes(self) -> int:
        """Raw bytes of the array."""
        return math.prod(self.shape) * self.itemsize

    @property
    def objects(self) -> int:
        """Write units of the target."""
        return math.prod(ceil_div(n, b) for n, b in zip(self.shape, self.write_unit, strict=True))

    @property
    def most_stages(self) -> int:
        """Stages that a plan may have: as the places and the bytes for intermediates allow."""
        if not self.staged:
            return 1
        if self.max_temp_bytes is None:
            return MOST_STAGES
        room = self.max_temp_bytes // self.nbytes if self.nbytes else MOST_STAGES
        return min(MOST_STAGES, 1 + room)

    def memory(
        self,
        *,
        source: tuple[int, ...] | None = None,
        target: tuple[int, ...] | None = None,
        shard: tuple[int, ...] | None = None,
    ) -> StageMemory:
        """Memory of a stage; from the intermediate with chunk ``source``, or to that with chunk ``target``.

        With ``shard``, that intermediate has one object for each region ``shard``, made of whole chunks.
        """
        unit, chunk, writing = self.target.unit, self.target.chunk, self.target.scratch
        if target is not None:
            unit, chunk, writing = target, target, self.temp_writing
            if shard is not None:
                unit = tuple(-(-g // c) * c for g, c in zip(shard, target, strict=True))
                writing = self.shard_scratch
        return StageMemory(
            shape=self.shape,
            itemsize=self.itemsize,
            read_unit=self.source.unit if source is None else source,
            write_unit=unit,
            chunk=chunk,
            reading=self.source.scratch if source is None else self.temp_reading,
            writing=writing,
            restart=self.restart if source is None else None,
        )
