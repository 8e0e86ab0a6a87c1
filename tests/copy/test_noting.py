from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

from rechunk_exec.copy import noting
from rechunk_exec.storage import array_ref
from rechunk_exec.tasks import CopyTask
from tests.executors.recording import make_stage


def task_of(job: str, folder: Path) -> CopyTask:
    return replace(make_stage(0, 1)[0], job=job, journal=array_ref(folder / job))


def test_a_thread_at_another_job_does_not_take_the_journal_away(tmp_path: Path) -> None:
    one, other = task_of("one", tmp_path), task_of("other", tmp_path)
    lines: list[int] = []

    def meanwhile(frame: FrameType, event: str, _: object) -> Any:
        """Before each line of the function, what another thread may do there."""
        if frame.f_code is not noting._journal.__code__:
            return None
        if event == "line":
            lines.append(frame.f_lineno)
            sys.settrace(None)
            assert noting._journal(other).job == "other"
            sys.settrace(meanwhile)
        return meanwhile

    before = sys.gettrace()
    sys.settrace(meanwhile)
    try:
        journal = noting._journal(one)
    finally:
        sys.settrace(before)
    assert len(set(lines)) > 3
    assert journal.job == "one"
