"""Seconds of a stage. Layer: the planner; imports NumPy, errors and wire.

A stage takes as long as its bytes at the rates of its two ends, plus its operations at their latency, as many at once
as the store takes:

    seconds = decoded bytes / read rate + written bytes / write rate + operations * operation_s / in_flight

The source is read at ``decode_bps`` and the target written at ``encode_bps``, because codecs are the work there. An
intermediate is raw bytes and has rates of its own. Two things make a stage slower than that, both as plain factors:

* *idle workers*: with ``tasks_at_once`` slots, ``tasks`` equal tasks run in ``ceil(tasks / slots)`` waves, and the last
  wave leaves slots empty: ``ceil(tasks/slots) * slots / tasks``; see :mod:`rechunk_exec.waves` for unequal ones;
* *fewer units in flight*, where the budget lets a task hold fewer than wanted: bytes take ``threads wanted for the
  codecs / threads used`` times as long, operations ``wanted in flight / in flight`` times.

With several slots each stage also takes ``stage_s`` to start, after the last task of the stage before it: a small array
is not cut in two stages so that each has work for all workers.

Example: 8 GB copied in one stage on two cores, everything read once, 3000 operations:

>>> CostModel.local().stage_seconds(StageWork(
...     decoded_bytes=8 * 10**9, written_bytes=8 * 10**9, operations=3000, source="source", target="target"))
14.15
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import SupportsFloat, SupportsIndex

import numpy as np

from rechunk_exec import wire
from rechunk_exec.errors import PlanError

SOURCE = "source"
TARGET = "target"
LZ4_ENCODE_S = 0.35e-9
"""Seconds that a core takes to compress a byte with LZ4, measured on float32 in Blosc frames: 0.1 to 0.8."""
LZ4_DECODE_S = 0.15e-9
"""The same to decode it again."""
_WORTH_COMPRESSING = 1.1
"""How much sooner it must be: how small LZ4 makes data is not known before."""


_MOST = 1e100
_COUNTS = ("in_flight", "cores", "tasks_at_once", "helpful_in_flight")
_RATES = ("decode_bps", "encode_bps", "raw_read_bps", "raw_write_bps", "temp_bps", "fresh_bps")
_LATENCIES = ("operation_s", "stage_s", "deeper_s", "worker_start_s")
_MAY_BE_NONE = ("helpful_in_flight", "temp_bps", "fresh_bps")
_FIGURES: tuple[tuple[tuple[str, ...], Callable[[float], bool], str], ...] = (
    (_COUNTS, lambda count: 1 <= count < 2**63, "a whole number of at least 1, and less than 2**63"),
    (_RATES, lambda rate: 1 / _MOST <= rate <= _MOST, "positive and finite, from 1e-100 to 1e100"),
    (_LATENCIES, lambda latency: 0 <= latency <= _MOST, "finite and not negative, at most 1e100"),
    (("temp_ratio",), lambda ratio: 1 <= ratio <= _MOST, "finite and at least 1, at most 1e100"),
)
"""Fields of a model, what they may be, and that in words: any plan's times by them are numbers of a document."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageWork:
    """What a stage does, as far as its time goes."""

    decoded_bytes: int
    """Bytes of all read units, once for each task that touches them."""
    written_bytes: int
    """Bytes of the array."""
    operations: int
    """Reads of units plus writes of units."""
    source: str
    """``"source"`` or the name of an intermediate."""
    target: str
    """``"target"`` or the name of an intermediate."""
    slowdown: float = 1.0
    """Threads wanted for the codecs / threads used."""
    waiting: float = 1.0
    """Operations wanted in flight / operations in flight."""
    idle: float = 1.0
    """Seconds of all slots / seconds of those that work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostModel:
    """Rates of the machine and its stores. All rates are of the raw (decoded) bytes.

    Raises
    ------
    PlanError
        If a rate, a count or a latency is no finite number, a count not whole, or one is not positive (a latency may be
        0), or so small or large that a plan's times could not be written. NumPy's numbers are taken too.
    """

    decode_bps: float
    """Bytes per second that the source is read and decoded at, over all ``cores``."""
    encode_bps: float
    """Bytes per second that the target is encoded and written at."""
    raw_read_bps: float
    """Bytes per second that an intermediate is read at."""
    raw_write_bps: float
    """Bytes per second that an intermediate is written at."""
    operation_s: float
    """Seconds that one read or write of a unit waits, whatever its size."""
    in_flight: int
    """Operations that wait side by side."""
    cores: int
    """Cores that these rates stand for."""
    tasks_at_once: int = 1
    """Tasks that the executor runs side by side; 1 where it is not known."""
    stage_s: float = 0.002
    """Seconds that it takes to start a stage on workers that have ended the one before. Part of the predicted time
    where it is known that there are several."""
    deeper_s: float = 1.0
    """Seconds that a third stage has to save, and a fourth: each intermediate more takes as much room again, and small
    arrays are not worth that. A second one has to save as much where one task can hold the whole array. No part of the
    predicted time."""
    temp_bps: float | None = None
    """Bytes per second that the store of the intermediates takes and gives, over all workers, where writing and reading
    them waits for it: a slow disk, a network. None: it does not, and they are stored raw."""
    temp_ratio: float = 1.5
    """How many times smaller LZ4 is expected to make an intermediate: 1.05 for noise, 1.3 to 3 for measurements."""
    in_flight_scales: bool = True
    """Whether more cores have more operations in flight (a disk), or the store sets the limit (an object store)."""
    name: str = "custom"
    helpful_in_flight: int | None = None
    """Operations side by side beyond which the store got no faster, where that was measured. Then ``in_flight`` is what
    the executor has under way, as far as this."""
    worker_start_s: float = 0.0
    """Seconds until a worker process that has to be started runs its first task. No part of a stage's seconds."""
    fresh_bps: float | None = None
    """Bytes per second, over all ``cores``, at which the system hands out memory that a worker did not have before;
    None: not measured. No part of a plan's seconds, but of what a report compares, and weighed where one job could be
    planned in several ways (:mod:`rechunk_exec.fitting`)."""
    notes: tuple[str, ...] = ()
    """How these figures were measured, for people."""

    def __post_init__(self) -> None:
        for names, accepted, rule in _FIGURES:
            for name in names:
                figure = getattr(self, name)
                if figure is None and name in _MAY_BE_NONE:
                    continue
                # NumPy's numbers become Python's: documents hold these
                number = _number(figure, whole=names is _COUNTS)
                if number is None or not accepted(number):
                    none = " or None" if name in _MAY_BE_NONE else ""
                    raise PlanError(f"CostModel.{name} must be {rule}{none}; got {figure!r}")
                object.__setattr__(self, name, number)

    @classmethod
    def local(cls) -> CostModel:
        """Two cores on a local disk. Measured with zstd-3 and bitshuffled float32."""
        return cls(
            decode_bps=2.0e9,
            encode_bps=0.8e9,
            raw_read_bps=2.0e9,
            raw_write_bps=1.5e9,
            operation_s=1e-4,
            in_flight=2,
            cores=2,
            name="local",
        )

    @classmethod
    def object(cls) -> CostModel:
        """Sixteen pairs of cores on an object store, 64 requests in flight."""
        return cls(
            decode_bps=32.0e9,
            encode_bps=12.8e9,
            raw_read_bps=32.0e9,
            raw_write_bps=24.0e9,
            operation_s=0.020,
            in_flight=64,
            cores=32,
            in_flight_scales=False,
            name="object",
        )

    def scaled(self, cores: int) -> CostModel:
        """The same machine and store with another number of cores.

        >>> CostModel.local().scaled(8).decode_bps
        8000000000.0
        """
        if cores < 1:
            raise PlanError(f"a cost model needs at least one core; got {cores}")
        factor = cores / self.cores
        return replace(
            self,
            decode_bps=self.decode_bps * factor,
            encode_bps=self.encode_bps * factor,
            raw_read_bps=self.raw_read_bps * factor,
            raw_write_bps=self.raw_write_bps * factor,
            fresh_bps=None if self.fresh_bps is None else self.fresh_bps * factor,
            in_flight=max(1, round(self.in_flight * factor)) if self.in_flight_scales else self.in_flight,
            cores=cores,
        )

    def with_temp(self, *, compressed: bool) -> CostModel:
        """The same machine, with the rates of intermediates that are stored raw, or compressed with LZ4.

        >>> slow = replace(CostModel.local(), temp_bps=2e8)
        >>> [f"{slow.with_temp(compressed=way).raw_write_bps:.3g}" for way in (False, True)]
        ['2e+08', '3e+08']
        """
        if not compressed and self.temp_bps is None:
            return self
        stored_s = 0.0 if self.temp_bps is None else 1 / self.temp_bps / (self.temp_ratio if compressed else 1.0)
        write_s, read_s = 1 / self.raw_write_bps, 1 / self.raw_read_bps
        if compressed:
            write_s, read_s = write_s + LZ4_ENCODE_S / self.cores, read_s + LZ4_DECODE_S / self.cores
        return replace(self, raw_write_bps=1 / max(write_s, stored_s), raw_read_bps=1 / max(read_s, stored_s))

    @property
    def compresses_temp(self) -> bool:
        """Whether intermediates are written and read sooner if they are compressed with LZ4."""
        raw, smaller = (self.with_temp(compressed=compressed) for compressed in (False, True))
        times = [1 / model.raw_write_bps + 1 / model.raw_read_bps for model in (raw, smaller)]
        return times[1] * _WORTH_COMPRESSING < times[0]

    def running(self, tasks_at_once: int, units: int) -> CostModel:
        """The same machine and store, for an executor that runs so many tasks, each with so many units in flight.

        >>> from dataclasses import replace
        >>> measured = replace(CostModel.local(), in_flight=2, helpful_in_flight=32)
        >>> measured.running(tasks_at_once=16, units=1).in_flight, measured.running(64, 1).in_flight
        (16, 32)
        """
        under_way = self.in_flight
        if self.helpful_in_flight is not None:
            under_way = min(self.helpful_in_flight, tasks_at_once * units)
        return replace(self, tasks_at_once=tasks_at_once, in_flight=under_way)

    def fresh_s(self, nbytes: int) -> float:
        """Seconds until workers have so many bytes of memory that they did not have before."""
        return 0.0 if self.fresh_bps is None else nbytes / self.fresh_bps

    def to_json(self) -> str:
        """Return the model as one line of JSON."""
        return wire.to_json(self)

    @classmethod
    def from_json(cls, text: str | bytes) -> CostModel:
        """Return the model that ``text`` holds; :class:`~rechunk_exec.errors.SerializationError` if it holds none."""
        return wire.from_json(cls, text)

    def read_bps(self, source: str) -> float:
        """Rate at which a stage reads ``"source"`` or an intermediate."""
        return self.decode_bps if source == SOURCE else self.raw_read_bps

    def write_bps(self, target: str) -> float:
        """Rate at which a stage writes ``"target"`` or an intermediate."""
        return self.encode_bps if target == TARGET else self.raw_write_bps

    def stage_seconds(self, work: StageWork) -> float:
        """Seconds that a stage takes; see the module for the formula."""
        moving = work.decoded_bytes / self.read_bps(work.source) + work.written_bytes / self.write_bps(work.target)
        seconds = moving * work.slowdown + work.operations * self.operation_s / self.in_flight * work.waiting
        return seconds * work.idle + self.start_s

    @property
    def start_s(self) -> float:
        """Seconds that each stage takes before its first task."""
        return self.stage_s if self.tasks_at_once > 1 else 0.0


def _number(figure: object, *, whole: bool) -> float | None:
    """A figure as a number of Python, or None if it is none that is finite, and whole if it has to be."""
    if isinstance(figure, (bool, np.bool_)):
        return None
    if whole:
        return operator.index(figure) if isinstance(figure, SupportsIndex) else None
    try:
        number = float(figure) if isinstance(figure, SupportsFloat) else math.nan
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


PRESETS = {"local": CostModel.local, "object": CostModel.object}
"""What there is to choose from without measuring."""


def resolve(cost_model: str | CostModel) -> CostModel:
    """The cost model that a user named or gave.

    Raises
    ------
    PlanError
        If it is neither ``"local"``, ``"object"`` nor a :class:`CostModel`.

    Examples
    --------
    >>> resolve("object").in_flight
    64
    """
    if isinstance(cost_model, CostModel):
        return cost_model
    for name, make in PRESETS.items():
        if cost_model == name:
            return make()
    raise PlanError(f"cost_model must be 'local', 'object' or a CostModel; got {cost_model!r}")
