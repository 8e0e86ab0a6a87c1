from __future__ import annotations

import logging
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from io import StringIO
from types import ModuleType
from typing import Any

import pytest
from rich.console import Console

from rechunk_exec.report.progress import progress
from rechunk_exec.results import Event
from tests.report.test_tally import task_event


@dataclass
class Tasks:
    number: int
    count: int

    def __len__(self) -> int:
        return self.count


def run_lines(total: int, caplog: pytest.LogCaptureFixture) -> list[int]:
    """Numbers of tasks done at each log line."""
    with caplog.at_level(logging.INFO, "rechunk_exec"), progress(console=Console(file=StringIO())) as on_event:
        on_event(Event(kind="start", total=total))
        for index in range(total):
            on_event(task_event(0, index, 1000))
    return [int(record.getMessage().split()[0]) for record in caplog.records]


@pytest.mark.parametrize(
    "total,expected",
    [
        (0, []),
        (1, [1]),
        (3, [1, 2, 3]),
        (10, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
        (25, [3, 5, 8, 10, 13, 15, 18, 20, 23, 25]),
        (1000, [100, 200, 300, 400, 500, 600, 700, 800, 900, 1000]),
    ],
)
def test_one_line_at_each_tenth_of_the_tasks(total: int, expected: list[int], caplog: pytest.LogCaptureFixture) -> None:
    assert run_lines(total, caplog) == expected


def test_a_line_tells_done_total_bytes_rate_and_time_left(caplog: pytest.LogCaptureFixture) -> None:
    run_lines(2, caplog)
    half, whole = (record.getMessage() for record in caplog.records)
    assert half.startswith("1 of 2 tasks (50 %): 1 kB, ")
    assert "/s, " in half
    assert half.endswith(" left")
    assert whole.startswith("2 of 2 tasks (100 %): 2 kB, ")
    assert ", in " in whole


def test_lines_from_many_threads_are_still_one_at_each_tenth(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "rechunk_exec"), progress(console=Console(file=StringIO())) as on_event:
        on_event(Event(kind="start", total=500))
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda index: on_event(task_event(0, index, 1000)), range(500)))
    assert len(caplog.records) == 10
    assert caplog.records[-1].getMessage().startswith("500 of 500 tasks (100 %): 500 kB")


def test_a_retry_is_a_warning_line(caplog: pytest.LogCaptureFixture) -> None:
    with progress(console=Console(file=StringIO())) as on_event:
        on_event(Event(kind="start", total=1))
        on_event(Event(kind="retry", stage=1, index=7, message="timed out"))
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage() == "task 7 of stage 1 failed and is tried again: timed out"


def test_false_is_silent(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> None:
    with caplog.at_level(logging.DEBUG), progress(False) as on_event:
        on_event(Event(kind="start", total=1))
        on_event(Event(kind="retry", message="no"))
        on_event(task_event(0, 0, 1000))
    assert not caplog.records
    assert capfd.readouterr() == ("", "")


def test_a_bar_a_stage_on_a_terminal(caplog: pytest.LogCaptureFixture) -> None:
    terminal = StringIO()
    console = Console(file=terminal, force_terminal=True, width=120, color_system=None, legacy_windows=False)
    with progress(stages=[Tasks(0, 2), Tasks(1, 3)], console=console) as on_event:
        on_event(Event(kind="start", total=5))
        for stage, tasks in ((0, 2), (1, 3)):
            for index in range(tasks):
                on_event(task_event(stage, index, 1_000_000))
        on_event(Event(kind="retry", stage=1, index=2, message="[odd] text"))
    last = terminal.getvalue().rsplit("stage 0", 1)[1]
    assert "2/2 2 MB, " in last
    assert "stage 1" in last
    assert "3/3 3 MB, " in last
    assert "task 2 of stage 1 failed and is tried again: [odd] text" in terminal.getvalue()
    assert not caplog.records


def test_one_bar_where_the_stages_are_not_known() -> None:
    terminal = StringIO()
    console = Console(file=terminal, force_terminal=True, width=120, color_system=None, legacy_windows=False)
    with progress(console=console) as on_event:
        on_event(Event(kind="start", total=2))
        on_event(task_event(0, 0, 1000))
        on_event(task_event(1, 0, 1000))
    assert "2/2 2 kB, " in terminal.getvalue()


def test_the_bar_is_put_away_when_the_run_fails() -> None:
    terminal = StringIO()
    console = Console(file=terminal, force_terminal=True, width=120)
    with pytest.raises(ZeroDivisionError), progress(console=console) as on_event:
        on_event(Event(kind="start", total=1 // 0))
    hidden, shown = "\x1b[?25l", "\x1b[?25h"  # the cursor
    assert terminal.getvalue().count(hidden) == terminal.getvalue().count(shown) == 1


def test_a_notebook_draws_one_output_again(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[dict[str, str]] = []

    class Handle:
        def update(self, bundle: dict[str, str], *, raw: bool) -> None:
            drawn.append(bundle)

    def display(bundle: dict[str, str], *, raw: bool, display_id: bool) -> Any:
        drawn.append(bundle)
        return Handle()

    fake = ModuleType("IPython.display")
    fake.display = display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", fake)
    with progress(stages=[Tasks(0, 2)], console=Console(force_jupyter=True)) as on_event:
        on_event(Event(kind="start", total=2))
        for index in range(2):
            on_event(task_event(0, index, 1000))
    assert "2/2 2 kB, " in drawn[-1]["text/plain"]
    assert "2/2" in drawn[-1]["text/html"]
