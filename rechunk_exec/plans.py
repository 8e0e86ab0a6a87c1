"""Plans as values: the stages, the sums of their figures, and why this plan. Layer: the planner."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import astuple, dataclass

from rechunk_exec import wire
from rechunk_exec.errors import PlanError
from rechunk_exec.memory import PROCESS_BYTES, RESULT_BYTES
from rechunk_exec.sizes import bytes_text, count_text, format_bytes
from rechunk_exec.stageplan import StagePlan

_INTERMEDIATE = re.compile(r"temp-[1-9][0-9]{0,3}")


def temp_bytes_of(stages: Sequence[StagePlan]) -> int:
    """Raw bytes that intermediates hold at most at once: all of them, since they stay until the job has ended."""
    return (len(stages) - 1) * stages[0].nbytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """A plan that was weighed, in figures."""

    name: str
    stages: int
    chosen: bool
    why: str
    """Why it was chosen, or was not."""
    peak_bytes: int
    """Bytes that it needs, also where that is more than the budget."""
    traffic: float
    operations: int
    objects: int
    temp_bytes: int
    tasks: int
    predicted_s: float

    @property
    def is_countable(self) -> bool:
        """Whether its figures are such as documents hold: of arrays near 2**63 bytes some are not."""
        return all(wire.holds(figure) for figure in astuple(self) if not isinstance(figure, str))

    @classmethod
    def of(cls, name: str, stages: Sequence[StagePlan], *, chosen: bool, why: str) -> Alternative:
        """The figures of ``stages``."""
        return cls(
            name=name,
            stages=len(stages),
            chosen=chosen,
            why=why,
            peak_bytes=max(stage.peak_bytes for stage in stages),
            traffic=sum(stage.traffic for stage in stages),
            operations=sum(stage.operations for stage in stages),
            objects=sum(stage.objects for stage in stages),
            temp_bytes=temp_bytes_of(stages),
            tasks=sum(stage.tasks for stage in stages),
            predicted_s=sum(stage.predicted_s for stage in stages),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The stages of a copy, in order, with the alternatives that were weighed. Figures are sums over the stages.

    Raises
    ------
    PlanError
        If there is no stage, the stages do not follow on each other, or one holds more than ``max_mem``.
    """

    stages: tuple[StagePlan, ...]
    max_mem: int
    """Budget of one worker process in bytes."""
    alternatives: tuple[Alternative, ...] = ()

    def __post_init__(self) -> None:
        if not self.stages:
            raise PlanError("a plan has at least one stage; got none")
        for before, after in zip(self.stages, self.stages[1:], strict=False):
            if before.target != after.source or before.shape != after.shape or before.itemsize != after.itemsize:
                raise PlanError(f"each stage reads what the one before it wrote; got {before!r}, then {after!r}")
        if self.stages[0].source != "source" or self.stages[-1].target != "target":
            raise PlanError("a plan goes from 'source' to 'target'; got other names at its ends")
        names = [stage.target for stage in self.stages[:-1]]
        if len(set(names)) < len(names) or not all(_INTERMEDIATE.fullmatch(name) for name in names):
            raise PlanError(f"intermediates are called temp-1, temp-2 and so on, each once; got {names}")
        if self.peak_bytes > self.max_mem:
            raise PlanError(f"a plan stays within max_mem; got a peak of {self.peak_bytes} for {self.max_mem} bytes")

    @property
    def traffic(self) -> float:
        """Bytes decoded plus bytes encoded over all stages, in array sizes; 2.0 is best."""
        return sum(stage.traffic for stage in self.stages)

    @property
    def operations(self) -> int:
        """Reads of read units plus writes of write units, over all stages."""
        return sum(stage.operations for stage in self.stages)

    @property
    def tasks(self) -> int:
        """Tasks of all stages."""
        return sum(stage.tasks for stage in self.stages)

    @property
    def objects(self) -> int:
        """Objects written over all stages, intermediates too."""
        return sum(stage.objects for stage in self.stages)

    @property
    def peak_bytes(self) -> int:
        """Most bytes that one worker process holds in any stage; never above ``max_mem``."""
        return max(stage.peak_bytes for stage in self.stages)

    @property
    def process_bytes(self) -> int:
        """Most bytes that a worker process may hold besides ``peak_bytes``, whatever its budget.

        A constant, what codecs work in as far as that is not counted, and the results of all tasks, which the process
        that runs the job holds.
        """
        uncounted = max(stage.uncounted_bytes for stage in self.stages)
        return PROCESS_BYTES + uncounted + RESULT_BYTES * self.tasks

    @property
    def temp_bytes(self) -> int:
        """Most raw bytes that intermediates hold at once; 0 for one stage."""
        return temp_bytes_of(self.stages)

    @property
    def predicted_s(self) -> float:
        """Seconds by the cost model, over all stages."""
        return sum(stage.predicted_s for stage in self.stages)

    def explain(self) -> str:
        """The plan in words and tables: what is done, each stage's figures, and the alternatives weighed."""
        parts = [str(self), _stage_table(self.stages), self._beside()]
        if self.alternatives:
            parts += ["Weighed:", _alternative_table(self.alternatives)]
            parts += [f"  {one.name}: {one.why}" for one in self.alternatives]
        return "\n".join(parts)

    def _repr_html_(self) -> str:
        """What :meth:`explain` tells, as notebooks show it, and a picture of each stage."""
        # Each worker process imports this module, and draws nothing.
        from rechunk_exec import htmltext
        from rechunk_exec.pictures import stage_pictures

        columns = [_stage_cells(number, stage) for number, stage in enumerate(self.stages)]
        parts = [
            f"<p>{htmltext.lines(str(self))}</p>",
            *stage_pictures(self.stages),
            htmltext.table([(name, *(cells[name] for cells in columns)) for name in columns[0]], headed=True),
            f"<p>{htmltext.text(self._beside())}</p>",
        ]
        if self.alternatives:
            rows = [_ALTERNATIVE_HEADER, *map(_alternative_cells, self.alternatives)]
            whys = htmltext.table([(one.name, one.why) for one in self.alternatives])
            parts.append(htmltext.folded("Weighed", htmltext.table(rows, headed=True) + whys))
        return "".join(parts)

    def _beside(self) -> str:
        return (
            f"Besides, a process may hold up to {format_bytes(self.process_bytes)} that do not count (process_bytes)."
        )

    def __str__(self) -> str:
        first = self.stages[0]
        nbytes = bytes_text(first.nbytes)
        way = " -> ".join([first.source, *(stage.target for stage in self.stages)])
        temp = "no temporary store is used"
        if self.temp_bytes:
            temp = f"a temporary store holds up to {bytes_text(self.temp_bytes)}, then is removed"
        stages = "one stage" if len(self.stages) == 1 else f"{len(self.stages)} stages"
        return (
            f"Copy {first.shape} of {first.itemsize}-byte elements, {nbytes}, in {stages}: {way}; {temp}.\n"
            f"{count_text(self.tasks, 'task')}, {count_text(self.operations, 'operation')}, "
            f"{count_text(self.objects, 'object')} written, "
            f"traffic {self.traffic:.4g} array sizes, "
            f"peak memory {bytes_text(self.peak_bytes)} of {bytes_text(self.max_mem)} a worker, "
            f"about {_seconds(self.predicted_s)}."
        )

    def to_json(self) -> str:
        """The plan as one line of JSON."""
        return wire.to_json(self)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """The plan that :meth:`to_json` wrote.

        Raises
        ------
        SerializationError
            If ``text`` is not such a document.
        """
        return wire.from_json(cls, text)


def _stage_table(stages: Sequence[StagePlan]) -> str:
    return "\n".join(_stage_lines(number, stage) for number, stage in enumerate(stages))


def _stage_lines(number: int, stage: StagePlan) -> str:
    title, *cells = _stage_cells(number, stage).items()
    head = f"{title[1]}: {cells[0][1]}"
    return "\n".join([head, *(f"  {name:8}{cell}" for name, cell in cells[1:])])


def _stage_cells(number: int, stage: StagePlan) -> dict[str, str]:
    """What there is to say of a stage, by name."""
    chunks = f" in chunks of {stage.chunk}" if stage.chunk != stage.write_unit else ""
    read_bytes = bytes_text(stage.elements_read * stage.itemsize)
    each = f"{stage.tasks_per_worker} x {format_bytes(stage.task_bytes)}"
    return {
        "": f"Stage {number}, {stage.source} -> {stage.target}",
        "tasks": f"{count_text(stage.tasks, 'task')}, each copies {stage.region}",
        "reads": f"{count_text(stage.read_units, 'unit')} of {stage.read_unit}, {read_bytes}, "
        f"{stage.read_amplification:.4g} times the array",
        "writes": f"{count_text(stage.objects, 'object')} of {stage.write_unit}{chunks}, {bytes_text(stage.nbytes)}",
        "memory": f"{bytes_text(stage.peak_bytes)} a worker: {each}, {count_text(stage.threads, 'unit')} in flight",
        "time": f"about {_seconds(stage.predicted_s)}, {count_text(stage.operations, 'operation')}",
    }


_ALTERNATIVE_HEADER = ("", "plan", "memory", "traffic", "operations", "objects", "tasks", "temp", "time")


def _alternative_table(alternatives: Sequence[Alternative]) -> str:
    rows = [_ALTERNATIVE_HEADER, *map(_alternative_cells, alternatives)]
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def _alternative_cells(one: Alternative) -> tuple[str, ...]:
    return (
        "*" if one.chosen else "",
        one.name,
        format_bytes(one.peak_bytes),
        f"{one.traffic:.4g}",
        str(one.operations),
        str(one.objects),
        str(one.tasks),
        format_bytes(one.temp_bytes),
        _seconds(one.predicted_s),
    )


def _seconds(seconds: float) -> str:
    """Seconds for people.

    >>> _seconds(0.25), _seconds(80), _seconds(9000)
    ('0.25 s', '1.3 min', '2.5 h')
    """
    if seconds < 60:
        return f"{seconds:.2g} s"
    return f"{seconds / 60:.2g} min" if seconds < 3600 else f"{seconds / 3600:.3g} h"
