"""What the planner computes, found the slow way: element by element, or by trying everything."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

import numpy as np
from numpy.typing import NDArray

from rechunk_exec.combining import AxisOptions
from rechunk_exec.memory import ReadScratch, StageMemory, WriteScratch
from rechunk_exec.request import PlanRequest
from rechunk_exec.search import DIRECT, stages_of
from rechunk_exec.weighing import Rows, Stages, Way, weigh

Shape = tuple[int, ...]

# Counting element by element is slow, and searches ask for the same axis again and again: what was counted is kept.


def tasks_of_axis(n: int, region: int) -> list[range]:
    """The elements of each task along an axis, by filling one after another."""
    tasks: list[range] = []
    start = 0
    while start < n:
        tasks.append(range(start, min(start + region, n)))
        start += region
    return tasks


def touched_by_axis(n: int, unit: int, region: int) -> list[set[int]]:
    """Numbers of the units that each task touches, element by element."""
    return [{element // unit for element in task} for task in tasks_of_axis(n, region)]


@cache
def units_touched(n: int, unit: int, region: int) -> int:
    return sum(len(units) for units in touched_by_axis(n, unit, region))


@cache
def elements_touched(n: int, unit: int, region: int) -> int:
    length = Counter(element // unit for element in range(n))
    return sum(length[number] for units in touched_by_axis(n, unit, region) for number in units)


@cache
def most_units(n: int, unit: int, region: int) -> int:
    return max((len(units) for units in touched_by_axis(n, unit, region)), default=0)


def restarted_touched(n: int, unit: int, region: int, restart: int) -> tuple[int, int, int]:
    """Units touched, their elements, and the most units of a task, where units are counted anew in each restart."""
    unit_of = [(element // restart, element % restart // unit) for element in range(n)]
    length = Counter(unit_of)
    touched = [{unit_of[element] for element in task} for task in tasks_of_axis(n, region)]
    elements = sum(length[number] for units in touched for number in units)
    return sum(map(len, touched)), elements, max(map(len, touched), default=0)


@dataclass(frozen=True, kw_only=True)
class Counts:
    """What a stage's tasks read and write; a unit counts once for each task that touches it."""

    tasks: int
    read_units: int
    elements_read: int
    write_units: int
    elements_written: int


@cache
def stage_counts(shape: Shape, read_unit: Shape, write_unit: Shape, region: Shape) -> Counts:
    """Counts of a stage, by asking of each element which task copies it and which units it lies in."""
    task, read, written = (_box_of_each_element(shape, size) for size in (region, read_unit, write_unit))
    sizes = np.bincount(read)
    reads, writes = _pairs(task, read), _pairs(task, written)
    assert len(writes) == len(np.unique(written)), "two tasks write one unit"
    return Counts(
        tasks=len(np.unique(task)),
        read_units=len(reads),
        elements_read=int(sizes[reads[:, 1]].sum()),
        write_units=len(writes),
        elements_written=len(task),
    )


def _box_of_each_element(shape: Shape, size: Shape) -> NDArray[np.int64]:
    """The number of the box that each element lies in, where boxes of one size fill the array."""
    numbers = np.zeros(shape, np.int64)
    for axis, (n, length) in enumerate(zip(shape, size, strict=True)):
        places = np.array([element // length for element in range(n)], np.int64)
        numbers = numbers * (n + 1) + places.reshape([-1 if other == axis else 1 for other in range(len(shape))])
    return numbers.ravel()


def _pairs(one: NDArray[np.int64], other: NDArray[np.int64]) -> NDArray[np.int64]:
    """The different pairs of two numbers of the same element."""
    return np.unique(np.stack([one, other], axis=1), axis=0)


def beside(unit: Shape, region: Shape, shape: Shape) -> int:
    """The most units of a task that are no whole contiguous run of the task's buffer, as NumPy says."""
    most = 0
    for task in itertools.product(*(tasks_of_axis(n, g) for n, g in zip(shape, region, strict=True))):
        buffer = np.empty([len(axis) for axis in task], dtype=np.int8)
        places: list[list[slice]] = []
        for axis, u in zip(task, unit, strict=True):
            first, last = axis.start // u * u, axis.stop
            places.append([slice(at - axis.start, at - axis.start + u) for at in range(first, last, u)])
        count = 0
        for place in itertools.product(*places):
            whole = all(part.start >= 0 and part.stop <= size for part, size in zip(place, buffer.shape, strict=True))
            count += not (whole and buffer[place].flags.c_contiguous)
        most = max(most, count)
    return most


def task_bytes(memory: StageMemory, region: Shape, threads: int) -> int:
    """The memory model, read from its description, with the most units of any task by counting."""
    shape = memory.shape

    def count(unit: Shape) -> int:
        return min(threads, math.prod(most_units(n, u, g) for n, u, g in zip(shape, unit, region, strict=True)))

    def sized(unit: Shape) -> int:
        return math.prod(unit) * memory.itemsize

    reading: ReadScratch = memory.reading
    writing: WriteScratch = memory.writing

    def counted(unit: Shape, in_place: bool) -> int:
        return min(count(unit), beside(unit, region, shape)) if in_place else count(unit)

    read = sized(memory.read_unit) * count(memory.read_unit) * reading.stored
    read += sized(memory.read_unit) * counted(memory.read_unit, reading.in_place) * reading.decoded
    write = sized(memory.chunk) * count(memory.chunk) * writing.stored
    write += sized(memory.chunk) * counted(memory.chunk, writing.in_place) * writing.gathered
    write += count(memory.write_unit) * (sized(memory.write_unit) * writing.assembled + writing.table)
    held = math.prod(min(g, n) for g, n in zip(region, shape, strict=True)) * memory.itemsize
    rest = held + math.ceil(max(read, write)) + reading.kept
    noticed = math.floor(Fraction(memory.itemsize * math.prod(shape), 2**13) ** 2)
    noticed = min(noticed, math.floor(Fraction(min(rest, 2**24), 2**9) ** 2))
    works = (memory.read_unit, reading.work), (memory.chunk, writing.work)
    return rest + sum(count(unit) * min(work, noticed) for unit, work in works)


def all_direct(request: PlanRequest) -> list[Stages]:
    """Every one-stage plan that fits."""
    axes = []
    for n, b in zip(request.shape, request.write_unit, strict=True):
        axes.append(sorted({*range(b, n + 1, b), n}))
    plans = (stages_of(request, DIRECT, [region]) for region in itertools.product(*axes))
    return [stages for stages in plans if stages is not None]


def preferred(request: PlanRequest, plans: list[Stages]) -> tuple[float, int, bool, int, int]:
    """What distinguishes the plan that is preferred among all that are nearly as fast as the fastest."""
    fastest = min(sum(stage.predicted_s for stage in stages) for stages in plans)
    slots = request.cost.tasks_at_once
    return min(
        (
            sum(stage.traffic for stage in stages),
            sum(stage.objects for stage in stages),
            slots > 1 and min(stage.tasks for stage in stages) <= slots,
            sum(stage.tasks for stage in stages),
            max(stage.peak_bytes for stage in stages),
        )
        for stages in plans
        if sum(stage.predicted_s for stage in stages) <= fastest * 1.02
    )


def chains_of_axis(n: int, write_unit: int, stages: int) -> list[Shape]:
    """Every (region, chunk, region, ...) of an axis: any chunk, regions of whole units of what they write, or all."""
    chains: list[Shape] = [(g,) for g in sorted({*range(write_unit, n + 1, write_unit), n})]
    for _ in range(stages - 1):
        chains = [
            (g, chunk, *chain)
            for chain in chains
            for chunk in range(1, n + 1)
            for g in sorted({*range(chunk, n + 1, chunk), n})
        ]
    return chains


def ways(request: PlanRequest, most_stages: int) -> list[Way]:
    """Every way with intermediates, of up to so many stages."""
    forms = (False, True) if request.sharded_temp else (False,)
    return [Way(form) for stages in range(2, most_stages + 1) for form in itertools.product(forms, repeat=stages - 1)]


def all_staged(request: PlanRequest, way: Way) -> Rows | None:
    """Every plan of a way with intermediates that fits; with counts by going through the elements."""
    axes = []
    for n, a, b in zip(request.shape, request.read_unit, request.write_unit, strict=True):
        chains = chains_of_axis(n, b, way.stages)
        factors = []
        for chain in chains:
            regions, chunks = chain[0::2], chain[1::2]
            sums: list[int] = []
            for unit, region in zip((a, *chunks), regions, strict=True):
                sums += [elements_touched(n, unit, region), units_touched(n, unit, region)]
                sums.append(len(tasks_of_axis(n, region)))
            factors.append((*regions, *sums, *(len(tasks_of_axis(n, chunk)) for chunk in chunks)))
        axes.append(AxisOptions(np.array(chains, dtype=np.int64).T, np.array(factors, dtype=np.float64).T))
    numbers = np.meshgrid(*(np.arange(len(options)) for options in axes), indexing="ij")
    return weigh(request, way, axes, [axis.ravel() for axis in numbers])
