from __future__ import annotations

import dataclasses
import pickle
import tracemalloc
from typing import Any

import pytest

from rechunk_exec import wire
from rechunk_exec.executors.copyrun import CopyRun, nobody
from rechunk_exec.memory import RESULT_BYTES
from rechunk_exec.results import OVERRUN_BYTES, CopyReport, Event, TaskResult, in_order
from rechunk_exec.wire import SharedValues


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


def test_results_of_a_job_hold_little_each() -> None:
    def arrived(index: int) -> TaskResult:  # from another process: no value is another's
        made = result(
            index=index, seconds=index / 7, bytes_read=10**6, bytes_written=10**7, peak_bytes=4096 * (99 + index % 99),
            stored_bytes_read=50_000 + index % 900, stored_bytes_written=60_000 + index % 500,
        )  # fmt: skip
        again: TaskResult = pickle.loads(pickle.dumps(made))
        return again

    run = CopyRun(tell=nobody)
    count = 10_000
    arrived(0)
    tracemalloc.start()
    try:
        for index in range(count):
            run.done(arrived(index), attempts=1)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < RESULT_BYTES * count
    assert [one.index for one in run.results] == list(range(count))
    assert run.results[7777] == arrived(7777)


def test_values_are_shared_among_few_that_differ() -> None:
    values = SharedValues()
    assert [values.once(10**6 + number % 5000) for number in range(20_000)] == [10**6 + n % 5000 for n in range(20_000)]
    assert values.once(int("1000000")) is values.once(int("1000000"))
    assert (values.once("direct"), values.once(0)) == ("direct", 0)
    later = [int("1004999"), int("1004999")]
    assert [values.once(one) for one in later] == later, "what there is no room for is given back as it is"
