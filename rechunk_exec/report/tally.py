"""Running totals of a run, from its events. Layer: report; pure arithmetic on a clock.

The bar and the log lines both show a :class:`Tally`; neither counts for itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from rechunk_exec.results import CopyReport, Event, StageTime
from rechunk_exec.tasks import Stage


def format_seconds(seconds: float) -> str:
    """A duration for people.

    >>> format_seconds(0.042), format_seconds(7.31), format_seconds(63), format_seconds(7500)
    ('0.04 s', '7.3 s', '1 min 3 s', '2 h 5 min')
    """
    if seconds < 1:
        return f"{seconds:.2f} s"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min"


class Count:
    """Tasks and bytes of one stage, or of all of them."""

    __slots__ = ("bytes_written", "done", "ended", "started", "total")

    def __init__(self, total: int = 0) -> None:
        self.total = total
        self.done = 0
        self.bytes_written = 0
        self.started = 0.0
        """Time on the clock before the first task."""
        self.ended = 0.0
        """Time on the clock after the task that was done last."""

    def add(self, bytes_written: int, now: float) -> None:
        """Count one task that is done ``now``."""
        self.done += 1
        self.bytes_written += bytes_written
        self.ended = now

    @property
    def seconds(self) -> float:
        """Seconds from the start to the task that was done last."""
        return max(0.0, self.ended - self.started)

    @property
    def bytes_per_second(self) -> float:
        """Bytes written a second; 0 before the first task is done."""
        return self.bytes_written / self.seconds if self.seconds else 0.0

    @property
    def seconds_left(self) -> float | None:
        """Seconds that the tasks left will take at the pace so far; None before the first is done."""
        return self.seconds / self.done * (self.total - self.done) if self.done else None


class Tally:
    """Counts of a run: ``all`` of it, and each of its ``stages`` where their numbers of tasks are known.

    Parameters
    ----------
    stage_tasks : mapping of int to int
        Number of tasks of each stage, by the stage's number. Ignored if they do not add up to the total that the run
        announces, as when it resumes a job of which some tasks are done.
    clock : callable
        Seconds, from any origin.
    """

    def __init__(
        self, stage_tasks: Mapping[int, int] | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self.all = Count()
        self.stages = {number: Count(tasks) for number, tasks in (stage_tasks or {}).items()}
        self.retries = 0

    def add(self, event: Event) -> None:
        """Count one event."""
        now = self._clock()
        if event.kind == "start":
            self.all.total = event.total
            if sum(count.total for count in self.stages.values()) != event.total:
                self.stages = {}
            for count in (self.all, *self.stages.values()):
                count.started = count.ended = now
        elif event.kind == "task":
            written = event.result.bytes_written if event.result else event.bytes_written
            stage = self.stages.get(event.stage)
            if stage:
                stage.started = stage.started if stage.done else self.all.ended  # it starts where the one before ended
                stage.add(written, now)
            self.all.add(written, now)
        else:
            self.retries += 1


def stage_times(
    tally: Tally, stages: Sequence[Stage], report: CopyReport, fresh_s: Callable[[Stage], float]
) -> tuple[StageTime, ...]:
    """Return what the stages took and were predicted to take.

    Parameters
    ----------
    tally : Tally
        Which was told of the run; made with the number of tasks of each of the stages.
    stages : sequence of Stage
        With the tasks that were run.
    report : CopyReport
        Of the run.
    fresh_s : callable
        Seconds until the workers have the memory that the tasks of a stage need at once.
    """
    longest: dict[int, float] = {}
    for result in report.results:
        longest[result.stage] = max(result.seconds, longest.get(result.stage, 0.0))
    measured = {number: count.seconds for number, count in tally.stages.items()}
    # No stage is over before its longest task: else tasks were told of late, and nothing is known of any stage.
    known = all(measured.get(number, 0.0) * _CLOCKS_AGREE >= seconds for number, seconds in longest.items())
    return tuple(
        StageTime(
            stage=stage.number,
            predicted_s=stage.plan.predicted_s * (len(stage) / stage.tasks) + fresh_s(stage) if len(stage) else 0.0,
            measured_s=measured.get(stage.number, 0.0) if known else None,
        )
        for stage in stages
    )


_CLOCKS_AGREE = 1.05
"""Workers have clocks of their own, which run about as fast."""
