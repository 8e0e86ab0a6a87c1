"""Jobs whose target was moved or copied, or is replaced while unfinished."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import rechunk_exec as rx
from tests.faults.stopped import folder, source, stopped, wanted
from tests.faults.test_unfinished import FIRST, SECOND, SHAPE
from tests.jobs import ZarrArray, assert_exact, make_array, stop_after

__all__ = ["folder", "source", "stopped"]


def begun_beside(folder: Path, target: str, mode: str, **changed: Any) -> rx.Rechunked:
    return wanted(folder, **({"target_store": folder / target, "temp_store": None, "mode": mode} | changed))


@pytest.mark.parametrize("with_intermediates", [False, True])
@pytest.mark.parametrize("copied", [False, True])
def test_a_target_goes_on_where_it_was_moved_or_copied_to(
    copied: bool, with_intermediates: bool, tmp_path: Path
) -> None:
    source = make_array(tmp_path / "source", SHAPE, (1, *SHAPE[1:]))
    stop_after(FIRST + 5, begun_beside(tmp_path, "target", "fail"))
    endings = ["", ".rechunk_exec-temp"] if with_intermediates else [""]
    for ending in endings:
        old, new = tmp_path / f"target{ending}", tmp_path / f"new{ending}"
        if copied:
            shutil.copytree(old, new)
        else:
            old.rename(new)
    job = begun_beside(tmp_path, "new", "resume")
    assert_exact(job.execute(), source)
    assert job.report is not None
    stages = [result.stage for result in job.report.results]
    assert stages.count(1) == SECOND - 5
    assert (stages.count(0) == 0) is with_intermediates
    assert not (tmp_path / "new.rechunk_exec-temp").exists()
    if copied:
        again = begun_beside(tmp_path, "target", "resume")
        assert_exact(again.execute(), source)
        assert again.report is not None
        assert again.report.tasks == SECOND - 5


@pytest.mark.parametrize("in_temp_store", [False, True])
def test_a_job_that_an_earlier_version_has_begun_goes_on(in_temp_store: bool, tmp_path: Path) -> None:
    source = make_array(tmp_path / "source", SHAPE, (1, *SHAPE[1:]))
    changed = {"temp_store": tmp_path / "temp"} if in_temp_store else {}
    stop_after(FIRST + 5, begun_beside(tmp_path, "target", "fail", **changed))
    record = tmp_path / "target" / ".rechunk_exec" / "job.json"
    document = json.loads(record.read_text())
    name = document.pop("temp_name")
    old = tmp_path / "target.rechunk_exec-temp"  # then as now
    if in_temp_store:
        old = tmp_path / "temp" / name.rpartition("-")[0]
        (tmp_path / "temp" / name).rename(old)
        document["fingerprint"]["temp"] = document["fingerprint"]["temp"].replace(name, old.name)
    record.write_text(json.dumps(document))
    job = begun_beside(tmp_path, "target", "resume", **changed)
    assert_exact(job.execute(), source)
    assert job.report is not None
    assert [result.stage for result in job.report.results] == [1] * (SECOND - 5)
    assert not old.exists()


def test_a_target_goes_on_under_another_spelling_of_its_path(tmp_path: Path) -> None:
    source = make_array(tmp_path / "source", SHAPE, (1, *SHAPE[1:]))
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    stop_after(FIRST + 5, begun_beside(tmp_path, "link/group", "fail", array_name="a"))
    job = begun_beside(tmp_path, "real/group/a", "resume")
    assert_exact(job.execute(), source)
    assert job.report is not None
    assert job.report.tasks == SECOND - 5


@pytest.mark.parametrize("changed", [{"max_mem": "1MB"}, {"temp_store": "elsewhere"}, {}])
def test_replacing_an_unfinished_job_leaves_none_of_its_intermediates(changed: dict[str, Any], tmp_path: Path) -> None:
    source = make_array(tmp_path / "source", SHAPE, (1, *SHAPE[1:]))
    stop_after(FIRST + 5, begun_beside(tmp_path, "target", "fail"))
    if "temp_store" in changed:
        changed = {"temp_store": tmp_path / "elsewhere"}
    assert_exact(begun_beside(tmp_path, "target", "overwrite", **changed).execute(), source)
    assert {path.name for path in tmp_path.iterdir()} - {"elsewhere"} == {"source", "target"}


def test_an_unfinished_target_of_a_name_too_long_for_intermediates_beside_it_is_replaced(
    folder: Path, source: ZarrArray
) -> None:
    target = folder / ("x" * 250)
    stop_after(FIRST + 5, wanted(folder, mode="fail", target_store=target))
    assert_exact(wanted(folder, mode="overwrite", target_store=target).execute(), source)


def test_intermediates_elsewhere_of_a_job_that_is_replaced_are_named(
    folder: Path, source: ZarrArray, caplog: pytest.LogCaptureFixture
) -> None:
    assert_exact(begun_beside(folder, "target", "overwrite").execute(), source)
    (left,) = (folder / "temp").iterdir()
    assert str(left) in caplog.text
