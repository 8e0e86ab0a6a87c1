"""What is told of a job that was ended: what is found there, in whatever phase it was."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import pytest
from zarr.storage import MemoryStore, StorePath

import rechunk_exec as rx
from rechunk_exec import job as job_module
from rechunk_exec import storage
from rechunk_exec.endrequests import Terminated
from rechunk_exec.results import Event
from tests.jobs import ZarrArray, assert_exact, make_array, stop_after

GOES_ON = "the same call with mode='resume' goes on from here"
ENDS = pytest.mark.parametrize("end", [KeyboardInterrupt, Terminated])


@pytest.fixture
def source(tmp_path: Path) -> ZarrArray:
    return make_array(tmp_path / "source", (20, 20, 20), (1, 20, 20))


def two_stages(source: ZarrArray, target: Any, **options: Any) -> rx.Rechunked:
    job = rx.rechunk(source, (20, 4, 4), 8_000, target, executor="serial", progress=False, **options)
    assert len(job.stages) == 2
    return job


def end_in(patch: pytest.MonkeyPatch, module: Any, name: str, end: type[BaseException]) -> None:
    """Have a function be ended on request when it is called."""

    def ended(*_: Any, **__: Any) -> Any:
        raise end

    patch.setattr(module, name, ended)


def told(job: rx.Rechunked, end: type[BaseException], caplog: pytest.LogCaptureFixture, run: str = "execute") -> str:
    """What a job tells that is ended on request; in the log too, where Python prints nothing of the error."""
    with caplog.at_level(logging.WARNING, "rechunk_exec"), pytest.raises(end) as raised:
        job.execute() if run == "execute" else job.write_jobs(run)
    (note,) = raised.value.__notes__
    assert (f"ended by SIGTERM: {note}" in caplog.text) == (end is Terminated)
    return note


@ENDS
@pytest.mark.parametrize("lines", [False, True], ids=["executed", "as lines"])
def test_while_arrays_are_created_it_tells_how_to_go_on(
    end: type[BaseException],
    lines: bool,
    tmp_path: Path,
    source: ZarrArray,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    target = tmp_path / "target"
    with monkeypatch.context() as patch:
        end_in(patch, storage, "create", end)
        note = told(two_stages(source, target), end, caplog, str(tmp_path / "lines") if lines else "execute")
    total = two_stages(source, target, mode="resume").plan.tasks
    assert note == f"the target {target} is unfinished: 0 of {total} tasks are done; {GOES_ON}"
    assert_exact(two_stages(source, target, mode="resume").execute(), source)


@ENDS
def test_before_anything_was_changed_it_tells_so(
    end: type[BaseException],
    tmp_path: Path,
    source: ZarrArray,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    target, old = tmp_path / "target", tmp_path / "old"
    make_array(old, (4,), (2,))
    with monkeypatch.context() as patch:
        end_in(patch, storage, "conceal", end)
        assert told(two_stages(source, target), end, caplog) == f"no array is at {target}; the same call begins again"
        note = told(two_stages(source, old, mode="overwrite"), end, caplog)
        assert note == f"the array at {old} is as it was; the same call begins again"
    stop_after(3, two_stages(source, target))
    end_in(monkeypatch, storage, "conceal", end)
    note = told(two_stages(source, target, mode="resume"), end, caplog)
    assert note == f"the job at {target} is as it was; the same call goes on with it"


@ENDS
def test_while_an_array_is_removed_from_an_object_store_it_tells_how_to_go_on(
    end: type[BaseException], source: ZarrArray, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = MemoryStore()
    target = StorePath(store, "t")
    make_array(store, (4,), (2,), name="t")
    with monkeypatch.context() as patch:
        end_in(patch, storage, "remove_array", end)
        note = told(two_stages(source, target, mode="overwrite"), end, caplog)
    assert "t is unfinished: 0 of" in note
    assert note.endswith(GOES_ON)
    assert rx.status(target).state == "unfinished"
    assert_exact(two_stages(source, target, mode="resume").execute(), source)


@ENDS
@pytest.mark.parametrize("phase", ["reveal", "finish"])
def test_at_the_end_nothing_is_said_to_be_kept_that_is_gone(
    end: type[BaseException],
    phase: str,
    tmp_path: Path,
    source: ZarrArray,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    job = two_stages(source, tmp_path / "target")
    with monkeypatch.context() as patch:
        end_in(patch, storage if phase == "reveal" else storage.Journal, phase, end)
        note = told(job, end, caplog)
    total = job.plan.tasks
    assert note == f"the target {tmp_path / 'target'} is unfinished: {total} of {total} tasks are done; {GOES_ON}"
    again = two_stages(source, tmp_path / "target", mode="resume")
    assert_exact(again.execute(), source)
    assert again.report is not None
    assert again.report.tasks == 0


def test_a_program_that_ends_itself_is_not_said_to_be_ended_by_a_signal(
    tmp_path: Path, source: ZarrArray, caplog: pytest.LogCaptureFixture
) -> None:
    def leave(_: Event) -> None:
        sys.exit(3)

    with caplog.at_level(logging.WARNING, "rechunk_exec"), pytest.raises(SystemExit) as raised:
        two_stages(source, tmp_path / "target").execute(on_event=leave)
    (note,) = raised.value.__notes__
    assert note.endswith(GOES_ON)
    assert caplog.messages == [f"ended by SystemExit(3): {note}"]


def test_before_the_intermediates_are_gone_they_are_said_to_be_kept(
    tmp_path: Path, source: ZarrArray, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    end_in(monkeypatch, job_module, "remove_intermediates", KeyboardInterrupt)
    note = told(two_stages(source, tmp_path / "target"), KeyboardInterrupt, caplog)
    assert f"kept: the intermediates temp-1 in {tmp_path / 'target.rechunk_exec-temp'}; {GOES_ON}" in note


def test_a_target_that_was_changed_is_not_said_to_go_on(
    tmp_path: Path, source: ZarrArray, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "target"
    stop_after(9, two_stages(source, target))
    monkeypatch.setattr(storage, "layout_differences", lambda *_: ["its fill_value: 0 then, 5 now"])
    with pytest.raises(
        rx.ResumeError, match=r"give mode='overwrite' to begin anew; the target .* is unfinished"
    ) as told:
        two_stages(source, target, mode="resume").execute()
    assert "mode='resume'" not in str(told.value)
