"""What running tasks gives back: a result a task, a report a run, events on the way. Layer: beside tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from rechunk_exec.sizes import count_text, format_bytes
from rechunk_exec.wire import NO_DOCUMENT, SharedValues

OVERRUN_BYTES = 16_000_000
"""How far a measured peak may pass the predicted one before it is reported: the noise of allocators."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """What one task did."""

    stage: int
    index: int
    seconds: float
    """Wall-clock seconds from the task's start to its end."""
    bytes_read: int
    """Decoded bytes: of every read unit touched, absent ones too, and ``bytes_beyond_plan``. Divided by the region's
    bytes: read amplification."""
    bytes_written: int
    """Bytes of the region, before encoding."""
    stored_bytes_read: int
    """Bytes that came from the source's store."""
    stored_bytes_written: int
    """Bytes that went to the target's store."""
    predicted_bytes: int
    """The peak that the plan predicted for this task."""
    peak_bytes: int
    """Growth of the worker's resident memory over its idle footprint, at its highest; shared evenly among the tasks
    that ran at the same time."""
    reader: str
    """How the source was decoded: ``direct``, ``gpu``, ``zarrs`` or ``zarr`` (see :mod:`rechunk_exec.storage`)."""
    writer: str
    """How the target was encoded, in the same words."""
    objects_written: int = 0
    """Objects stored: write units that are not all fill value."""
    store_retries: int = 0
    """Requests to a store that failed for a passing reason, and were made again within the task."""
    digest: str = ""
    """The digest of the region's elements (:mod:`rechunk_exec.digest`), as 16 hexadecimal digits; empty if the task was
    not asked for it."""
    unexpected_chunks: int = 0
    """Chunks of which more had to be decoded than the plan counted on: whole ones, or blocks larger than planned."""
    bytes_beyond_plan: int = 0
    """Decoded bytes that the plan did not count: of chunks that are unexpected, and of Blosc's blocks that reach beyond
    the bands they were decoded for."""
    attempts: int = 1
    """How many times the task was started until it succeeded, as far as the executor knows."""
    changes: bytes | None = field(default=None, repr=False, compare=False, metadata=NO_DOCUMENT)
    """What the task has changed in a copy of an icechunk session, as a pickle for the driver to merge. It has no JSON
    form; in reports it is None."""

    @property
    def overrun_bytes(self) -> int:
        """How far the measured peak passed the predicted one; 0 within the noise of allocators."""
        excess = self.peak_bytes - self.predicted_bytes
        return excess if excess > OVERRUN_BYTES else 0

    def sharing(self, values: SharedValues) -> TaskResult:
        """Return this result with values that others hold too: those of one stage are much alike."""
        return replace(self, **{name: values.once(getattr(self, name)) for name in _ALIKE})


_ALIKE = (
    *("bytes_read", "bytes_written", "stored_bytes_read", "stored_bytes_written", "predicted_bytes", "peak_bytes"),
    *("bytes_beyond_plan", "reader", "writer"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFailure:
    """A task that has failed for good."""

    stage: int
    index: int
    message: str
    """The class and message of the last error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTime:
    """How long a stage took, and was predicted to take."""

    stage: int
    predicted_s: float
    """By the plan's cost model: for the tasks that were run, and for the memory that workers get for them."""
    measured_s: float | None
    """Wall-clock seconds from the end of the stage before, or the run's start, to the end of its last task; None where
    the executor tells of tasks only later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyReport:
    """What a run of some stages did."""

    executor: str
    results: tuple[TaskResult, ...]
    """One for each task run, by stage and index."""
    seconds: float
    """Wall-clock seconds from the first stage's start to the last one's end."""
    retries: int = 0
    """Tries beyond the first, over all tasks."""
    notes: tuple[str, ...] = ()
    """What the preparation has to say, such as a fill value that the target's format cannot hold."""
    stage_times: tuple[StageTime, ...] = ()
    """Of the stages, in order, as the driver of a job knows them; empty where tasks were run without one."""
    start_predicted_s: float = 0.0
    """What the cost model adds for worker processes that had to be started; they are part of the first stage's seconds
    as they are measured."""

    @property
    def predicted_s(self) -> float | None:
        """Seconds that the run was predicted to take, beside ``seconds``; None where nobody has predicted any."""
        if not self.stage_times:
            return None
        return self.start_predicted_s + sum(stage.predicted_s for stage in self.stage_times)

    @property
    def tasks(self) -> int:
        """Number of tasks run."""
        return len(self.results)

    @property
    def store_retries(self) -> int:
        """Requests to stores that were made again within a task, over all tasks."""
        return sum(result.store_retries for result in self.results)

    @property
    def bytes_read(self) -> int:
        """Decoded bytes over all tasks."""
        return sum(result.bytes_read for result in self.results)

    @property
    def bytes_beyond_plan(self) -> int:
        """Those of the decoded bytes that the plan did not count, over all tasks."""
        return sum(result.bytes_beyond_plan for result in self.results)

    @property
    def bytes_written(self) -> int:
        """Bytes written over all tasks, before encoding."""
        return sum(result.bytes_written for result in self.results)

    @property
    def peak_bytes(self) -> int:
        """The largest measured peak of a task."""
        return max((result.peak_bytes for result in self.results), default=0)

    @property
    def codec_paths(self) -> tuple[str, ...]:
        """The ways in which bytes were decoded and encoded, for each stage: ``stage 0: direct -> direct``."""
        ways = sorted({(result.stage, result.reader, result.writer) for result in self.results})
        return tuple(f"stage {stage}: {reader} -> {writer}" for stage, reader, writer in ways)

    @property
    def warnings(self) -> tuple[str, ...]:
        """The notes of the preparation, memory overruns that name their tasks, and chunks that were not as expected."""
        overruns = tuple(
            f"task {result.index} of stage {result.stage} used {format_bytes(result.peak_bytes)} where "
            f"{format_bytes(result.predicted_bytes)} were predicted"
            for result in self.results
            if result.overrun_bytes
        )
        unexpected = sum(result.unexpected_chunks for result in self.results)
        more = (
            f"{unexpected} times more of a chunk had to be decoded than planned: it is no Blosc frame that can be read "
            "in part, or its blocks are larger than in the chunks that were looked at for the plan"
        )
        return self.notes + overruns + ((more,) if unexpected else ())

    def __str__(self) -> str:
        lines = [
            f"{count_text(self.tasks, 'task')} in {self.seconds:.2f} s ({self.executor}), {self.retries} retries"
            + (f"; {self.store_retries} requests to stores were made again" if self.store_retries else ""),
            f"read {format_bytes(self.bytes_read)}{self._beyond()}, wrote {format_bytes(self.bytes_written)}",
            f"most memory of a task: {format_bytes(self.peak_bytes)}",
            *self._times(),
            *self.codec_paths,
            *(f"warning: {warning}" for warning in self.warnings),
        ]
        return "\n".join(lines)

    def _beyond(self) -> str:
        return f" ({format_bytes(self.bytes_beyond_plan)} more than planned)" if self.bytes_beyond_plan else ""

    def _times(self) -> list[str]:
        if self.predicted_s is None:
            return []
        start = f", {self.start_predicted_s:.2f} s of it to start workers" if self.start_predicted_s else ""
        lines = [f"predicted {self.predicted_s:.2f} s{start}, took {self.seconds:.2f} s"]
        for time in self.stage_times:
            took = "not known" if time.measured_s is None else f"took {time.measured_s:.2f} s"
            lines.append(f"  stage {time.stage}: predicted {time.predicted_s:.2f} s, {took}")
        return lines


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One step of a run, for progress displays and logs."""

    kind: Literal["start", "task", "retry"]
    """``start`` once, before the first task, with the ``total``; ``task`` once for each task done, with its ``result``;
    ``retry`` for each try that failed and will be made again, with a ``message``."""
    stage: int = 0
    index: int = 0
    total: int = 0
    """Number of tasks over all stages; in ``start`` only."""
    result: TaskResult | None = None
    bytes_written: int = 0
    """Of a task that has no ``result``, before encoding."""
    message: str = ""


OnEvent: TypeAlias = Callable[[Event], object]


def in_order(results: Sequence[TaskResult]) -> tuple[TaskResult, ...]:
    """Return results by stage and index."""
    return tuple(sorted(results, key=lambda result: (result.stage, result.index)))
