"""The samples of a probe, and the model that they add up to. Layer: measuring."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import cycle, islice, pairwise
from pathlib import Path

from rechunk_exec import storage
from rechunk_exec.cost import CostModel
from rechunk_exec.executors import available_cores
from rechunk_exec.grid import Box, Grid, clip
from rechunk_exec.measuring import tiny
from rechunk_exec.measuring.moving import GOLDEN, Mover, Phase, fill_from, repeat_first, spread
from rechunk_exec.measuring.place import ProbePlace, probe_place
from rechunk_exec.measuring.subject import Subject
from rechunk_exec.memory import beside
from rechunk_exec.stageplan import StagePlan
from rechunk_exec.storage import Region, UnitReader
from rechunk_exec.storage.objects import Objects, objects_of
from rechunk_exec.storage.pagecache import cached_share, forget_cached
from rechunk_exec.storage.stores import open_store

_LEAST_ROUNDS, _MOST_ROUNDS = 8, 64
"""Samples, as far as time allows."""
_LEAST_FRESH_BYTES, _MOST_FRESH_BYTES = 4 * 2**20, 2**28
"""Of a region, how much is touched to see how fast memory comes; less comes in no time."""
_MOST_FILES = 4096
"""Files of a region that the system is asked to forget."""
_MOST_PIECES = 4096
"""Of an intermediate, about how many are moved: tiny ones take a file each, and the time that these take."""
_FROM_DISK = 0.1
"""Of the samples, what the page cache may hold while they are said to come from the disk."""
_SHARES = {"operations": 0.05, "reading": 0.03, "filling": 0.02, "completing": 0.15, "writing": 0.03, "raw": 0.06}
"""Of the probe's seconds, for each sample of that kind. As much is to be written as is filled with the source's values
in the time for *filling*; a write unit that takes longer is completed, in the time for that: planes that are repeated
compress several times as fast."""
_SAMPLED = 0.7
"""Of the probe's seconds, for all samples of reading and writing."""


class Probe:
    """One measurement.

    Parameters
    ----------
    subject : Subject
    cached : bool
        Whether the source is to be read from the page cache.
    seconds : float
        About how long to measure.
    """

    def __init__(self, subject: Subject, *, cached: bool, seconds: float) -> None:
        self.subject = subject
        self.seconds = seconds
        self._cached = cached
        self._threads = min(subject.preset.cores, max(available_cores(), tiny.MOST_IN_FLIGHT))
        """As many as the cores that are asked for; of cores that this machine lacks, as many as a store may serve."""
        self._looks: list[float] = []
        """Shares of samples that were in the page cache when they were read."""
        self._phases = {name: Phase() for name in ("decode", "encode", "raw_read", "raw_write")}

    def run(self) -> CostModel:
        """Take the samples; return the model."""
        subject, first = self.subject, self.subject.plan.stages[0]
        start_s = tiny.start_seconds(min(self._threads, available_cores()))
        if not first.nbytes:
            note = "the array is empty: all figures but worker_start_s are those of a preset"
            return replace(subject.preset, name="measured", worker_start_s=start_s, notes=(note,))
        with ExitStack() as stack:
            mover = Mover(self._threads)
            stack.callback(mover.close)
            needed = 2 * max(stage.peak_bytes for stage in subject.plan.stages)
            place = stack.enter_context(probe_place(subject.target, "target", needed))
            temp = place
            if subject.temp is not None:
                temp = stack.enter_context(probe_place(subject.temp, "place of intermediates", needed))
            size = min(_MOST_FRESH_BYTES, math.prod(first.region) * first.itemsize)
            fresh_bps = mover.first_touch(size) if size >= _LEAST_FRESH_BYTES else None
            operations = self._operations(place)
            self._sample(mover, place, temp)
        return replace(self._model(operations, start_s, place), fresh_bps=fresh_bps and _figures(fresh_bps))

    def _operations(self, place: ProbePlace) -> _Operations:
        """Seconds for each small read of the source and each small write beside the target, side by side."""
        limit_s = self.seconds * _SHARES["operations"]
        source = self._source_objects()
        helpful = None
        if self.subject.remote:
            helpful = tiny.helpful_in_flight(source if not source.streams else place.objects(), limit_s)
        return _Operations(
            read_s=tiny.read_seconds(source, self._threads, limit_s),
            write_s=tiny.write_seconds(place, self._threads, limit_s),
            helpful=helpful,
        )

    def _source_objects(self) -> Objects:
        source = self.subject.source
        return objects_of(open_store(source, read_only=True), source.path)

    def _sample(self, mover: Mover, place: ProbePlace, temp: ProbePlace) -> None:
        """Read and write parts of the array, as long as there is time."""
        subject = self.subject
        first, last = subject.plan.stages[0], subject.plan.stages[-1]
        reader = storage.open_reader(subject.source, first.read_unit)
        writer = storage.open_writer(place.create(subject.design, "target"))
        ends = mover.clock() + self.seconds * _SAMPLED
        for turn, number in enumerate(_again(first.tasks)):
            box = Box(*first.box(number))
            with mover.region(subject.stored, box, _spare_bytes(first)) as region:
                complete = self._read(mover, reader, region) == 1
                if turn == 0:
                    self._move_raw(mover, temp, region)
                whole = region if complete and first is last else None
                for part in self._parts_to_write(mover, reader, region, whole, turn):
                    if turn == 0:  # one write unit: buffers grow once in a worker's life
                        mover.write(writer, part, 0.0, Phase())
                    mover.write(writer, part, self.seconds * _SHARES["writing"], self._phases["encode"])
            if mover.clock() > ends:
                break

    def _read(self, mover: Mover, reader: UnitReader, region: Region) -> float:
        files = self._files(region)
        if self._cached:
            mover.read(reader, region, self.seconds * _SHARES["reading"], Phase())
        else:
            forget_cached(files)
        share = cached_share(files[:: max(1, len(files) // 16)])
        if share is not None:
            self._looks.append(share)
        return mover.read(reader, region, self.seconds * _SHARES["reading"], self._phases["decode"])

    def _files(self, region: Region) -> list[Path]:
        folder = storage.local_path(self.subject.source)
        if folder is None:
            return []
        stored = self.subject.stored
        keys = (stored.metadata.encode_chunk_key(unit) for unit in region.units(stored.write_unit))
        return [folder / key for key in islice(keys, _MOST_FILES)]

    def _parts_to_write(
        self, mover: Mover, reader: UnitReader, sample: Region, whole: Region | None, turn: int
    ) -> Iterator[Region]:
        """Yield the region to write: what was read, if that is a task's region of the last stage, else one like it."""
        if whole is not None:
            yield whole
            return
        last = self.subject.plan.stages[-1]
        numbers = list(islice(_again(last.tasks), turn + 1))
        decode = self._phases["decode"]
        most_bytes = decode.nbytes / max(decode.seconds, 1e-9) * self.seconds * _SHARES["filling"]
        box = self._cut(Box(*last.box(numbers[-1])), last.write_unit, most_bytes, turn)
        with mover.region(self.subject.stored, box, _spare_bytes(last)) as region:
            # What is not read in time has values from elsewhere, best of the same place, which compress about as well.
            # Many places in part are better than few whole: a sea is not like the land.
            fill_from(sample.elements, region)
            repeat_first(mover.read(reader, region, self.seconds * _SHARES["completing"], Phase()), region)
            yield region

    def _move_raw(self, mover: Mover, temp: ProbePlace, sample: Region) -> None:
        """Write a part of what was read to each intermediate of the plan, or to one like the target; read it again."""
        stages = self.subject.plan.stages
        if len(stages) == 1:
            self._intermediate(mover, temp, sample, stages[0], None)
            return
        self._intermediate(mover, temp, sample, *stages[:2])
        for stage, after in pairwise(stages[1:]):
            box = self._cut(Box((0,) * len(stage.shape), clip(stage.region, stage.shape)), stage.chunk, self._raw_bytes)
            with mover.region(self.subject.stored, box, _spare_bytes(stage)) as region:
                fill_from(sample.elements, region)
                self._intermediate(mover, temp, region, stage, after)

    @property
    def _raw_bytes(self) -> float:
        """About how much of each intermediate is moved."""
        return self.subject.preset.raw_write_bps * self.seconds * _SHARES["raw"]

    def _intermediate(
        self, mover: Mover, temp: ProbePlace, sample: Region, stage: StagePlan, after: StagePlan | None
    ) -> None:
        """Write a part of a sample as ``stage`` writes its intermediate, and read it again as ``after`` does."""
        chunk = clip(stage.chunk if after else stage.write_unit, sample.elements.shape)
        whole = Box((0,) * len(chunk), sample.elements.shape)
        piece_bytes = math.prod(chunk) * self.subject.stored.dtype.itemsize
        box = self._cut(whole, chunk, min(self._raw_bytes, _MOST_PIECES * piece_bytes))
        sharded = after is not None and stage.write_unit != stage.chunk
        stored = replace(self.subject.stored, shape=box.shape)
        unit = tuple(-(-size // piece) * piece for size, piece in zip(box.shape, chunk, strict=True))
        ref = temp.create(storage.design_intermediate(stored, chunk, unit if sharded else chunk), "temp-1")
        part = Region(box.start, box.stop, sample.elements[box.slices], sample.spare_bytes)
        writing, reading = self._phases["raw_write"], self._phases["raw_read"]
        mover.write(storage.open_writer(ref), part, math.inf, writing)
        # A task of the next stage gathers such pieces; where one is no run of its region, they are copied once more.
        gap = after is not None and beside(after.read_unit, after.region, after.shape) > 0
        wider = (*box.shape[:-1], box.shape[-1] + gap) if box.shape else box.shape
        spare = 0 if after is None else _spare_bytes(after)
        with mover.region(stored, Box(box.start, wider), spare) as region:
            target = Region(box.start, box.stop, region.elements[box.slices], spare)
            mover.read(storage.open_reader(ref), target, math.inf, reading)
        pieces = len(Grid(box.shape, chunk))
        writing.operations += 1 if sharded else pieces
        reading.operations += pieces

    def _cut(self, box: Box, unit: tuple[int, ...], most_bytes: float, turn: int = 0) -> Box:
        """A part of a box, of whole units and about ``most_bytes``, at least one unit; elsewhere in it at each turn."""
        shape, start = list(box.shape), list(box.start)
        for axis, size in enumerate(unit):
            while shape[axis] > size and math.prod(shape) * self.subject.stored.dtype.itemsize > most_bytes:
                shape[axis] = max(1, shape[axis] // size // 2) * size
        for axis, size in enumerate(unit):
            room = (box.shape[axis] - shape[axis]) // size
            start[axis] += int(turn * GOLDEN * (axis + 1) % 1 * (room + 1)) * size
        return Box(tuple(start), tuple(min(a + n, b) for a, n, b in zip(start, shape, box.stop, strict=True)))

    def _model(self, operations: _Operations, start_s: float, place: ProbePlace) -> CostModel:
        stages = self.subject.plan.stages
        first, last = stages[0], stages[-1]
        phases = self._phases
        reads = [stage.read_units for stage in stages]
        reads[0] = self.subject.fetches
        phases["decode"].operations = phases["decode"].nbytes / (first.elements_read * first.itemsize) * reads[0]
        phases["encode"].operations = phases["encode"].nbytes / last.nbytes * last.write_units
        writes = sum(stage.write_units for stage in stages)
        each_s = (sum(reads) * operations.read_s + writes * operations.write_s) / (sum(reads) + writes)
        # What small operations took is a guess at their part of a phase: so much that nothing is left, it cannot be.
        each_s = min([each_s, *(phase.most_each_s for phase in phases.values() if phase.operations)])
        rates = {name: _figures(phase.rate(each_s)) for name, phase in phases.items()}
        in_flight = min(self._threads, operations.helpful or self._threads)
        return replace(
            self.subject.preset,
            decode_bps=rates["decode"],
            encode_bps=rates["encode"],
            raw_read_bps=rates["raw_read"],
            raw_write_bps=rates["raw_write"],
            operation_s=_figures(each_s * in_flight),
            in_flight=in_flight,
            in_flight_scales=not self.subject.remote,
            helpful_in_flight=operations.helpful,
            worker_start_s=_figures(start_s),
            name="measured",
            notes=tuple(self._notes(place)),
        )

    def _notes(self, place: ProbePlace) -> Iterator[str]:
        share = sum(self._looks) / len(self._looks) if self._looks else None
        if storage.local_path(self.subject.source) is None:
            yield "the source was read from its store"
        elif share is None:
            yield "the source was read from its file system, which does not tell what it has in memory"
        elif share < _FROM_DISK:
            yield "the source was read from the disk: the system was asked to forget the samples before"
        else:
            yield f"the source was read from the page cache: it held {share:.0%} of the samples"
        yield f"the target was written {place.described}"
        if self._phases["decode"].absent:
            yield "all chunks that were sampled are absent: decode_bps is the rate of filling memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Operations:
    """Seconds for each small operation, with as many side by side as there are cores."""

    read_s: float
    write_s: float
    helpful: int | None
    """How many side by side help; None for local disks."""


def _again(tasks: int) -> Iterator[int]:
    """Numbers of tasks to sample, spread over all; several times where there are few."""
    return islice(cycle(spread(tasks)), min(_MOST_ROUNDS, max(_LEAST_ROUNDS, tasks)))


def _spare_bytes(stage: StagePlan) -> int:
    """Bytes that each thread of a task of this stage may hold besides the region."""
    return max(0, stage.task_bytes - math.prod(stage.region) * stage.itemsize) // stage.threads


def _figures(number: float) -> float:
    """A number with four figures: more would seem more exact than it is."""
    return float(f"{number:.4g}")
