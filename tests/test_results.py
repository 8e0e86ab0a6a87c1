from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import pytest

from rechunk_exec import wire
from rechunk_exec.results import OVERRUN_BYTES, CopyReport, Event, TaskResult, in_order


def result(stage: int = 0, index: int = 0, **fields: Any) -> TaskResult:
    values = {
        "seconds": 0.5,
        "bytes_read": 20,
        "bytes_written": 10,
        "stored_bytes_read": 5,
        "stored_bytes_written": 4,
        "predicted_bytes": 1_000_000,
        "peak_bytes": 900_000,
        "reader": "direct",
        "writer": "zarr",
    }
    return TaskResult(stage=stage, index=index, **{**values, **fields})


@pytest.mark.parametrize(
    "peak_bytes,overrun",
    [(0, 0), (10**6, 0), (10**6 + OVERRUN_BYTES, 0), (10**6 + OVERRUN_BYTES + 1, OVERRUN_BYTES + 1)],
)
def test_an_overrun_is_what_passes_the_noise(peak_bytes: int, overrun: int) -> None:
    assert result(peak_bytes=peak_bytes).overrun_bytes == overrun


def report(*results: TaskResult, **fields: Any) -> CopyReport:
    return CopyReport(**{"executor": "threads", "results": results, "seconds": 1.5, **fields})


def test_a_report_sums_its_tasks() -> None:
    made = report(result(0, 0), result(0, 1, bytes_read=30, peak_bytes=950_000), result(1, 0, reader="zarrs"))
    assert (made.tasks, made.bytes_read, made.bytes_written, made.peak_bytes) == (3, 70, 30, 950_000)
    assert made.codec_paths == ("stage 0: direct -> zarr", "stage 1: zarrs -> zarr")
    assert made.warnings == ()


def test_an_empty_report() -> None:
    made = report()
    assert (made.tasks, made.bytes_read, made.bytes_written, made.peak_bytes, made.codec_paths) == (0, 0, 0, 0, ())
    assert str(made).startswith("0 tasks in 1.50 s (threads), 0 retries")


def test_a_low_prediction_is_a_warning_that_names_the_task() -> None:
    made = report(result(0, 0), result(1, 7, predicted_bytes=1000, peak_bytes=20_000_000), notes=("a note",))
    assert made.warnings[0] == "a note"
    assert "task 7 of stage 1" in made.warnings[1]
    assert "1 kB" in made.warnings[1]
    assert f"warning: {made.warnings[1]}" in str(made)


def test_results_are_put_in_order() -> None:
    shuffled = [result(1, 0), result(0, 10), result(0, 2), result(1, 1)]
    assert [(one.stage, one.index) for one in in_order(shuffled)] == [(0, 2), (0, 10), (1, 0), (1, 1)]


def test_records_are_small_values() -> None:
    one = result()
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.stage = 1  # type: ignore[misc]
    assert not hasattr(one, "__dict__")
    assert pickle.loads(pickle.dumps(one)) == one == wire.from_json(TaskResult, wire.to_json(one))
    event = Event(kind="task", result=one)
    assert pickle.loads(pickle.dumps(event)) == event == wire.from_json(Event, wire.to_json(event))
    made = report(one, retries=2, notes=("é",))
    assert wire.from_json(CopyReport, wire.to_json(made)) == made
