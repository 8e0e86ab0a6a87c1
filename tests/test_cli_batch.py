from __future__ import annotations

from pathlib import Path

import pytest
import zarr

from rechunk_exec.batch import INDEX_VARIABLES
from rechunk_exec.cli.parsing import parse_range
from tests.jobs import ZarrArray, assert_exact, make_array, snapshot
from tests.test_cli import run, run_json

LAYOUT = ("--chunks", "-1,1", "--max-mem", "1800B")


@pytest.fixture(autouse=True)
def _no_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in INDEX_VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def source(tmp_path: Path) -> ZarrArray:
    return make_array(tmp_path / "source.zarr", (30, 20), (1, 20), "f8")


def init(folder: Path, *words: str | Path, code: int = 0) -> tuple[Path, int, int]:
    """The file of jobs, and how many lines its two stages have."""
    jobs = folder / "jobs.jsonl"
    command = ("init", folder / "source.zarr", folder / "target.zarr", "--jobs", jobs, *LAYOUT, *words)
    document = run_json(*command, code=code)
    if code:
        return jobs, 0, 0
    first, second = (stage["lines"] for stage in document["stages"])
    assert document["lines"] == first + second == len(jobs.read_text().splitlines())
    return jobs, first, second


def test_a_job_from_the_first_to_the_last_command(
    tmp_path: Path, source: ZarrArray, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs, first, second = init(tmp_path)
    target = tmp_path / "target.zarr"
    before = snapshot(tmp_path)
    refused = run("run-task", jobs, "--stage", "1", "--index", "0", code=4)
    assert "stage 1 begins when all lines of stage 0 are done" in refused.stderr
    assert snapshot(tmp_path) == before
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "1")
    assert [one["index"] for one in run_json("run-task", jobs)["results"]] == [1]
    assert run("failed", jobs).stdout == f"0,2-{first - 1}\n"
    monkeypatch.setenv("AWS_BATCH_JOB_ARRAY_INDEX", "0")
    assert [one["index"] for one in run_json("run-task", jobs)["results"]] == [0]
    assert run_json("run-task", jobs, "--range", f"0:{first}")["tasks"] == first
    assert run_json("run-task", jobs, "--range", "1:9999", "--stage", "1")["tasks"] == second - 1
    refused = run("finalize", jobs, code=4)
    assert f"1 of {first + second} are not: indices {first} of {jobs}" in refused.stderr
    assert run("failed", jobs, "--stage", "1").stdout == "0\n"
    run("run-task", jobs, "--index", str(first))
    assert run("failed", jobs).stdout == ""
    status = run_json("status", target)
    assert (status["state"], status["done"], status["total"]) == ("unfinished", first + second, first + second)
    assert run_json("finalize", jobs, "--verify")["state"] == "finished"
    assert "the job has ended" in run("run-task", jobs).stdout
    assert_exact(zarr.open_array(target, mode="r"), source)
    assert {path.name for path in tmp_path.iterdir()} == {"source.zarr", "target.zarr", "jobs.jsonl"}
    assert not (tmp_path / "target.zarr" / ".rechunk_exec" / "temp").exists(), "no intermediate is left"


def test_failed_tells_why_and_writes_the_lines_to_a_file_of_their_own(tmp_path: Path, source: ZarrArray) -> None:
    jobs, first, _ = init(tmp_path)
    chunk = tmp_path / "source.zarr/c/0/0"
    content = chunk.read_bytes()
    chunk.write_bytes(b"torn")
    assert "1 of 2 lines failed" in run("run-task", jobs, "--range", "0:2", code=1).stderr
    run("run-task", jobs, "--range", f"3:{first}")
    again = tmp_path / "again.jsonl"
    done = run("failed", jobs, "--to", again)
    assert (done.stdout, done.stderr.startswith("task 0 of stage 0 failed: StorageError: ")) == ("0,2\n", True)
    document = run_json("failed", jobs)
    assert (document["lines"], document["stage"], document["indices"]) == (2, 0, [0, 2])
    assert [one["index"] for one in document["failures"]] == [0]
    chunk.write_bytes(content)
    assert [one["index"] for one in run_json("run-task", again, "--index", "1")["results"]] == [2]
    assert run("failed", again).stdout == "0\n"
    run("run-task", again, "--index", "0")
    assert run("failed", again).stdout == ""
    run("run-task", jobs, "--range", "0:", "--stage", "1")
    run("finalize", again)
    assert_exact(zarr.open_array(tmp_path / "target.zarr", mode="r"), source)


@pytest.mark.parametrize(
    "name, code, said",
    [
        ("source.zarr/zarr.json", 3, "outside the arrays"),
        ("target.zarr/.rechunk_exec/job.json", 3, "outside the arrays"),
        ("linked/c/0/0", 3, "outside the arrays"),
        ("jobs.jsonl", 3, "another file"),
        ("also.jsonl", 3, "another file"),
        ("notes.json", 1, "something else"),
    ],
)
def test_lines_that_failed_replace_nothing_but_a_file_of_jobs(
    tmp_path: Path, source: ZarrArray, name: str, code: int, said: str
) -> None:
    jobs, _, _ = init(tmp_path)
    (tmp_path / "notes.json").write_text('{"rechunk_exec":1}')
    (tmp_path / "linked").symlink_to(tmp_path / "source.zarr")
    (tmp_path / "also.jsonl").symlink_to(jobs)
    before = snapshot(tmp_path)
    assert said in run("failed", jobs, "--to", tmp_path / name, code=code).stderr
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("mode", ["overwrite", "resume"])
def test_init_replaces_nothing_but_a_file_of_jobs(tmp_path: Path, source: ZarrArray, mode: str) -> None:
    init(tmp_path)
    (tmp_path / "notes.json").write_text("somebody's")
    (tmp_path / "linked").symlink_to(tmp_path / "source.zarr")
    before = {name: content for name, (_, content) in snapshot(tmp_path).items()}
    for name, code, said in (("notes.json", 1, "something else"), ("linked/zarr.json", 3, "outside the arrays")):
        words = ("--jobs", tmp_path / name, "--mode", mode, *LAYOUT)
        assert said in run("init", tmp_path / "source.zarr", tmp_path / "target.zarr", *words, code=code).stderr
    # The driver's claim comes and goes, so the time of its folder is another one.
    assert {name: content for name, (_, content) in snapshot(tmp_path).items()} == before


def test_init_does_as_the_mode_says(tmp_path: Path, source: ZarrArray) -> None:
    jobs, first, second = init(tmp_path)
    before = snapshot(tmp_path)
    init(tmp_path, code=1)
    assert snapshot(tmp_path) == before
    run("run-task", jobs, "--range", "0:2")
    assert init(tmp_path, "--mode", "resume") == (jobs, first - 2, second)
    assert init(tmp_path, "--mode", "overwrite", "--verify") == (jobs, first, second)
    printed = run("init", tmp_path / "source.zarr", tmp_path / "other.zarr", "--jobs", tmp_path / "o", *LAYOUT)
    assert f"{first + second} lines in {tmp_path / 'o'}" in printed.stdout
    assert f"  stage 1: indices {first} to {first + second - 1}\n" in printed.stdout


@pytest.mark.parametrize(
    "words,message",
    [
        ((), "AWS_BATCH_JOB_ARRAY_INDEX or SLURM_ARRAY_TASK_ID"),
        (("--index", "9999"), "numbered from 0; got number 9999"),
        (("--index", "-1"), "--index"),
        (("--index", "0", "--stage", "2"), "has 0 lines of stage 2"),
        (("--index", "0", "--range", "0:1"), "exclude each other"),
        (("--range", "3:3"), "is empty"),
        (("--range", "3"), "is not like"),
        (("--range", "a:b"), "is not like"),
    ],
)
def test_wrong_words_are_wrong_usage_and_nothing_is_written(
    tmp_path: Path, source: ZarrArray, words: tuple[str, ...], message: str
) -> None:
    jobs, *_ = init(tmp_path)
    before = snapshot(tmp_path)
    assert message in run("run-task", jobs, *words, code=2).stderr
    assert snapshot(tmp_path) == before


def test_a_file_that_is_none_of_jobs_is_told(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not a job\n")
    for command in (("run-task", "--index", "0"), ("failed",), ("finalize",)):
        assert "line 1 of " in run(*command, tmp_path / "notes.txt", code=1).stderr
        assert "there is none at" in run(*command, tmp_path / "none.jsonl", code=1).stderr


def test_ranges_are_like_slices() -> None:
    assert parse_range("3:7") == range(3, 7)
    assert parse_range(":7") == range(7)
    assert parse_range("3:").start == 3
