"""Progress of a run, for every executor alike. Layer: report; a listener to events, and nothing else.

On a terminal and in a notebook a bar a stage; elsewhere, where a moving bar would fill a file, one log line at each
tenth of the tasks, on the logger ``rechunk_exec``.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from rechunk_exec.report.notebook import NotebookView
from rechunk_exec.report.tally import Count, Tally, format_seconds
from rechunk_exec.results import Event, OnEvent
from rechunk_exec.sizes import format_bytes

logger = logging.getLogger("rechunk_exec")

NOTEBOOK_PERIOD_S = 0.3
"""How often a notebook's view is drawn again, at most."""


class NumberedTasks(Protocol):
    """What is looked at of a :class:`~rechunk_exec.tasks.Stage`: its number and how many tasks it has."""

    @property
    def number(self) -> int: ...

    def __len__(self) -> int: ...


@contextmanager
def progress(
    mode: bool | None = None, *, stages: Sequence[NumberedTasks] = (), console: Console | None = None
) -> Iterator[OnEvent]:
    """Show the progress of a run while the context lasts.

    Parameters
    ----------
    mode : bool or None
        False shows nothing. Otherwise a bar on a terminal and in a notebook, and log lines elsewhere.
    stages : sequence
        The stages that are run, for a bar each.
    console : rich.console.Console, optional
        Where the bar goes; standard error if not given.

    Yields
    ------
    callable
        What to call with each :class:`~rechunk_exec.results.Event`, from any thread.

    Examples
    --------
    >>> with progress(False) as on_event:
    ...     on_event(Event(kind="start", total=2))
    """
    console = console or Console(stderr=True)
    tally = Tally({stage.number: len(stage) for stage in stages})
    with ExitStack() as stack:
        if mode is False:
            yield _ignore
        elif console.is_jupyter or console.is_terminal:
            yield stack.enter_context(_Bar(tally, console))
        else:
            yield _Lines(tally)


def _ignore(event: Event) -> None:
    pass


class _Lines:
    """A log line at each tenth of the tasks."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._tenths = 0
        self._lock = threading.Lock()

    def __call__(self, event: Event) -> None:
        with self._lock:
            self._tally.add(event)
            count = self._tally.all
            if event.kind == "retry":
                logger.warning("%s", retry_line(event))
            if event.kind != "task" or not count.total:
                return
            tenths = 10 * count.done // count.total
            if tenths > self._tenths:
                self._tenths = tenths
                logger.info("%s", progress_line(count))


class _Bar:
    """A bar a stage, or one for all where the stages are not known."""

    def __init__(self, tally: Tally, console: Console) -> None:
        self._tally = tally
        self._lock = threading.Lock()
        self._rows: dict[int, TaskID] = {}
        self._drawn = 0.0
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TextColumn("{task.fields[pace]}"),
            console=console,
        )
        self._notebook = NotebookView() if console.is_jupyter else None

    def __enter__(self) -> _Bar:
        if self._notebook is None:
            self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._notebook is None:
            self._progress.stop()
        self._draw(now=True)

    def __call__(self, event: Event) -> None:
        with self._lock:
            self._tally.add(event)
            counts = self._tally.stages or {event.stage: self._tally.all}
            if event.kind == "start":
                for number, count in counts.items():
                    name = f"stage {number}" if self._tally.stages else "tasks"
                    self._rows[number] = self._progress.add_task(name, total=count.total, pace="")
            elif event.kind == "task":
                row = self._rows[event.stage if self._tally.stages else 0]
                self._progress.update(row, advance=1, pace=pace(counts[event.stage]))
            else:
                self._progress.console.print(retry_line(event), style="yellow", markup=False, highlight=False)
            self._draw()

    def _draw(self, *, now: bool = False) -> None:
        if self._notebook and (now or time.monotonic() - self._drawn > NOTEBOOK_PERIOD_S):
            self._drawn = time.monotonic()
            self._notebook.show(self._progress.get_renderable())


def pace(count: Count) -> str:
    """Bytes written, bytes a second and the time left, as ``1.2 GB, 410 MB/s, 7.3 s left``."""
    written = f"{format_bytes(count.bytes_written)}, {format_bytes(round(count.bytes_per_second))}/s"
    if count.done >= count.total:
        return f"{written}, in {format_seconds(count.seconds)}"
    return f"{written}, {format_seconds(count.seconds_left or 0)} left"


def progress_line(count: Count) -> str:
    """The log line of a count.

    >>> count = Count(total=8)
    >>> count.done, count.bytes_written, count.ended = 2, 1_000_000_000, 4.0
    >>> progress_line(count)
    '2 of 8 tasks (25 %): 1 GB, 250 MB/s, 12.0 s left'
    """
    return f"{count.done} of {count.total} tasks ({100 * count.done // count.total} %): {pace(count)}"


def retry_line(event: Event) -> str:
    """The log line of a task that is tried again."""
    return f"task {event.index} of stage {event.stage} failed and is tried again: {event.message}"
