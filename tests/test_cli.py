from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
import zarr
from numpy.typing import NDArray
from zarr.storage import LocalStore

import rechunk_exec as rx
from rechunk_exec.cli import ExitCode, main
from rechunk_exec.cli.commands import program
from rechunk_exec.cli.parsing import parse_sizes
from rechunk_exec.machine_report import TOUCHED_BYTES, FreshMemory
from tests.values import same_bits

SHAPE = (12, 40, 36)
LAYOUT = ("--chunks", "time=-1,y=8,x=8", "--shards", "time=-1,y=16,x=16", "--max-mem", "2MB")


def by_position(shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Values that no two places share, with NaN among them."""
    bits = np.arange(np.prod(shape), dtype=np.uint32) * np.uint32(2654435761)
    return bits.view(np.float32).reshape(shape)


@pytest.fixture
def frame(tmp_path: Path) -> Path:
    path = tmp_path / "frame.zarr"
    array = zarr.create_array(
        path, shape=SHAPE, chunks=(1, 40, 36), dtype="f4", dimension_names=("time", "y", "x"), attributes={"units": "m"}
    )
    array[...] = by_position(SHAPE)
    return path


def run_process(*words: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run the program as people do, in a process of its own, and check its exit code."""
    command = [sys.executable, "-m", "rechunk_exec", *map(str, words)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == code, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def run(*words: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run the program in this process, which is quicker, and check its exit code."""
    output, errors = io.StringIO(), io.StringIO()
    with redirect_stdout(output), redirect_stderr(errors):
        returned = main([str(word) for word in words])
    done = subprocess.CompletedProcess(words, returned, output.getvalue(), errors.getvalue())
    assert returned == code, f"exit code {returned}\n{done.stdout}\n{done.stderr}"
    return done


def run_json(*words: str | Path, code: int = 0) -> Any:
    """Run the program with --json; standard output must be one JSON document and nothing else."""
    return json.loads(run(*words, "--json", code=code).stdout)


def assert_same_bits(path: Path) -> None:
    target = np.asarray(zarr.open_array(path, mode="r")[...])
    assert target.tobytes() == by_position(SHAPE).tobytes()


@pytest.mark.parametrize("executor", ["serial", "threads", "processes"])
def test_rechunk_copies_every_bit(frame: Path, tmp_path: Path, executor: str) -> None:
    words = ("rechunk", frame, tmp_path / "series.zarr", *LAYOUT, "--executor", executor)
    done = run_process(*words, "--workers", "1") if executor == "processes" else run(*words)
    assert_same_bits(tmp_path / "series.zarr")
    series = zarr.open_array(tmp_path / "series.zarr", mode="r")
    assert (series.chunks, series.shards, series.attrs["units"]) == ((12, 8, 8), (12, 16, 16), "m")
    assert f"written to {tmp_path / 'series.zarr'}" in done.stdout


def test_chunks_may_be_given_in_order(frame: Path, tmp_path: Path) -> None:
    run("rechunk", frame, tmp_path / "series.zarr", "--chunks", "-1,8,8", "--max-mem", "2MB")
    assert_same_bits(tmp_path / "series.zarr")
    assert zarr.open_array(tmp_path / "series.zarr", mode="r").chunks == (12, 8, 8)


def test_progress_goes_to_standard_error_a_line_at_each_tenth(frame: Path, tmp_path: Path) -> None:
    words = ("--chunks", "time=-1,y=8,x=8", "--max-mem", "60kB", "--executor", "serial")
    done = run("rechunk", frame, tmp_path / "series.zarr", *words)
    total = sum(stage["tasks"] for stage in stage_figures(frame, words))
    lines = [line for line in done.stderr.splitlines() if " tasks (" in line]
    assert len(lines) == min(total, 10)
    assert f" {total} of {total} tasks (100 %): " in lines[-1]
    assert " tasks (" not in done.stdout


def stage_figures(frame: Path, words: tuple[str, ...]) -> list[dict[str, int]]:
    from rechunk_exec import Plan

    plan = Plan.from_json(json.dumps(run_json("plan", frame, *words)["plan"]))
    return [{"tasks": stage.tasks} for stage in plan.stages]


def test_quiet_prints_nothing(frame: Path, tmp_path: Path) -> None:
    done = run_process("rechunk", frame, tmp_path / "series.zarr", *LAYOUT, "--quiet")
    assert (done.stdout, done.stderr) == ("", "")
    assert_same_bits(tmp_path / "series.zarr")


def test_json_holds_plan_and_report(frame: Path, tmp_path: Path) -> None:
    document = run_json("rechunk", frame, tmp_path / "series.zarr", *LAYOUT)
    assert document["target"] == str(tmp_path / "series.zarr")
    assert document["plan"]["type"] == "Plan"
    report = document["report"]
    assert report["tasks"] == len(report["results"])
    assert {"predicted_bytes", "peak_bytes", "seconds", "bytes_read", "bytes_written"} <= set(report["results"][0])


def test_plan_writes_nothing(frame: Path, tmp_path: Path) -> None:
    done = run("plan", frame, tmp_path / "series.zarr", *LAYOUT)
    assert "stage 0" in done.stdout
    assert "weighed" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["frame.zarr"]


def test_plan_needs_no_target(frame: Path) -> None:
    document = run_json("plan", frame, *LAYOUT)
    assert document["target"] is None
    assert document["plan"]["max_mem"] == 2_000_000


def test_explain_shows_what_was_weighed(frame: Path, tmp_path: Path) -> None:
    assert "weighed" in run("rechunk", frame, tmp_path / "a.zarr", *LAYOUT, "--explain").stdout
    assert "weighed" not in run("rechunk", frame, tmp_path / "b.zarr", *LAYOUT).stdout


def test_memory_of_its_own_says_the_number(frame: Path, tmp_path: Path) -> None:
    words = (*LAYOUT[:-1], "auto", "--executor", "serial")
    shown = run("plan", frame, *words).stdout
    assert re.search(
        r"^max_mem is .* \(\d+ bytes\): 60% of what this machine and its limits leave$", shown, re.MULTILINE
    )
    assert run_json("rechunk", frame, tmp_path / "series.zarr", *words)["plan"]["max_mem"] >= 10**6
    assert_same_bits(tmp_path / "series.zarr")
    again = run_json("rechunk", frame, tmp_path / "series.zarr", *words, "--mode", "resume")
    assert again["report"]["tasks"] == 0
    jobs = tmp_path / "jobs"
    error = run_json("init", frame, tmp_path / "b.zarr", "--jobs", jobs, *LAYOUT[:-1], "auto", code=3)["error"]
    assert "must be a number where tasks run anywhere" in error["message"]
    assert not jobs.exists()


def test_a_measured_cost_model_is_saved_and_given_again(frame: Path, tmp_path: Path) -> None:
    words = ("--chunks", "time=-1,y=8,x=8", "--shards", "time=-1,y=16,x=16")
    model = tmp_path / "model.json"
    probe = ("probe", frame, tmp_path / "series.zarr", *words, "--seconds", "0.1", "--max-mem", "2MB", "--cores", "1")
    printed = run(*probe, "--json").stdout
    model.write_text(printed)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["frame.zarr", "model.json"]
    assert rx.CostModel.from_json(printed).name == "measured"
    given = run_json("plan", frame, *LAYOUT, "--cost-model", model)["plan"]["stages"]
    preset = run_json("plan", frame, *LAYOUT, "--cost-model", "local")["plan"]["stages"]
    assert [stage["predicted_s"] for stage in given] != [stage["predicted_s"] for stage in preset]
    expected = rx.rechunk(
        frame,
        {"time": -1, "y": 8, "x": 8},
        "2MB",
        tmp_path / "series.zarr",
        target_shards={"time": -1, "y": 16, "x": 16},
        cost_model=rx.CostModel.from_json(printed),
    ).plan
    assert [stage["predicted_s"] for stage in given] == [stage.predicted_s for stage in expected.stages]
    report = run_json("rechunk", frame, tmp_path / "series.zarr", *LAYOUT, "--cost-model", model)["report"]
    assert report["predicted_s"] == sum(stage["predicted_s"] for stage in report["stage_times"])
    assert_same_bits(tmp_path / "series.zarr")


def test_a_probe_in_words(frame: Path) -> None:
    shown = run("probe", frame, "--seconds", "0.1").stdout
    assert re.search(r"^reading and decoding +\S+ .?B a second *$", shown, re.MULTILINE)
    assert "the target was written in the system's temporary folder" in shown
    assert [path.name for path in frame.parent.iterdir()] == ["frame.zarr"]


@pytest.mark.parametrize("text", ["", "{}", '{"rechunk_exec":1,"type":"Plan"}', None])
def test_a_file_that_is_no_cost_model_is_wrong_usage(frame: Path, tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "model.json"
    if text is not None:
        file.write_text(text)
    done = run("plan", frame, *LAYOUT, "--cost-model", file, code=2)
    assert f"{str(file)!r} is none of local, object, nor a file of a cost model" in done.stderr


def test_a_budget_too_small_is_exit_code_3_with_the_number_that_would_do(frame: Path, tmp_path: Path) -> None:
    words = ("rechunk", frame, tmp_path / "series.zarr", "--chunks", "-1,8,8")
    error = run_json(*words, "--max-mem", "1kB", code=3)["error"]
    assert (error["type"], error["max_mem"]) == ("BudgetError", 1000)
    assert [path.name for path in tmp_path.iterdir()] == ["frame.zarr"]
    run(*words, "--max-mem", str(error["needed_bytes"] - 1), code=3)
    run(*words, "--max-mem", str(error["needed_bytes"]))
    assert_same_bits(tmp_path / "series.zarr")


@pytest.mark.parametrize(
    "words,code,message",
    [
        (("--chunks", "time=-1,z=8", "--max-mem", "2MB"), 3, "'time', 'y', 'x'"),
        (("--chunks", "-1,8,8", "--shards", "-1,12,16", "--max-mem", "2MB"), 3, "12"),
        (("--chunks", "-1,0,8", "--max-mem", "2MB"), 3, "0"),
        (("--chunks", "time=-1,y", "--max-mem", "2MB"), 2, "neither like"),
        (("--chunks", "y=8,y=9", "--max-mem", "2MB"), 2, "names an axis twice"),
        (("--chunks", "-1,8,8", "--max-mem", "2 elephants"), 2, "elephants"),
        (("--chunks", "-1,8,8"), 2, "--max-mem"),
        (("--chunks", "-1,8,8", "--max-mem", "2MB", "--workers", "0"), 2, "--workers"),
        (("--chunks", "-1,8,8", "--max-mem", "2MB", "--executor", "elves"), 2, "elves"),
        (("--chunks", "-1,8,8", "--max-mem", "2MB", "--executor", "serial", "--workers", "2"), 2, "one worker"),
        (("--chunks", "-1,8,8", "--max-mem", "2MB", "--mode", "maybe"), 2, "maybe"),
    ],
)
def test_errors_are_one_message_and_nothing_is_written(
    frame: Path, tmp_path: Path, words: tuple[str, ...], code: int, message: str
) -> None:
    done = run("rechunk", frame, tmp_path / "series.zarr", *words, code=code)
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert [path.name for path in tmp_path.iterdir()] == ["frame.zarr"]


def test_an_existing_target_is_refused_and_overwritten_on_request(frame: Path, tmp_path: Path) -> None:
    words = ("rechunk", frame, tmp_path / "series.zarr", *LAYOUT)
    run(*words)
    done = run(*words, code=1)
    assert str(tmp_path / "series.zarr") in done.stderr
    assert "Traceback" not in done.stderr
    run(*words, "--mode", "overwrite")
    assert_same_bits(tmp_path / "series.zarr")


def test_a_job_that_had_ended_says_that_nothing_was_left(frame: Path, tmp_path: Path) -> None:
    words = ("rechunk", frame, tmp_path / "series.zarr", *LAYOUT, "--mode", "resume")
    assert "no task was left" not in run(*words).stdout
    assert "no task was left" in run(*words).stdout


def test_info_shows_codecs_in_full(frame: Path, tmp_path: Path) -> None:
    # Shards have long ones, of which it showed a SHA-256.
    run("rechunk", frame, tmp_path / "series.zarr", *LAYOUT)
    report = run_json("info", tmp_path / "series.zarr")
    document = json.loads((tmp_path / "series.zarr" / "zarr.json").read_text())
    assert json.loads(report["metadata"]["codecs"]) == document["codecs"]


def test_a_source_that_is_missing_is_exit_code_1(tmp_path: Path) -> None:
    done = run("rechunk", tmp_path / "no.zarr", tmp_path / "series.zarr", *LAYOUT, code=1)
    assert "no.zarr" in done.stderr
    assert "Traceback" not in done.stderr


def test_verify_tells_whether_the_bits_are_the_same(frame: Path, tmp_path: Path) -> None:
    series = tmp_path / "series.zarr"
    run("rechunk", frame, series, *LAYOUT, "--verify")
    assert "the same" in run("verify", frame, series).stdout
    assert run_json("verify", frame, series)["ok"] is True
    zarr.open_array(series, mode="r+")[3, 20, 5] = 1
    document = run_json("verify", frame, series, code=1)
    (box,) = document["differing"]
    assert document["ok"] is False
    assert all(low <= place < high for low, place, high in zip(box["start"], (3, 20, 5), box["stop"], strict=True))
    printed = run("verify", frame, series, code=1).stdout.splitlines()
    assert "differ" in printed[0]
    assert printed[1:] == [f"  {tuple(box['start'])} to {tuple(box['stop'])}"]


def test_verify_takes_a_sample_an_executor_and_a_budget(frame: Path, tmp_path: Path) -> None:
    series = tmp_path / "series.zarr"
    run("rechunk", frame, series, *LAYOUT)
    options = ("--sample", "0.2", "--max-mem", "1MB")
    assert run("verify", frame, series, *options, "--executor", "serial").stdout == (
        "verified: 2 of 9 boxes, a sample, are the same to the bit\n"
    )
    document = run_json("verify", frame, series, *options, "--executor", "processes", "--workers", "1")
    assert (document["boxes"], document["all_boxes"], document["executor"]) == (2, 9, "processes")
    assert "needed_bytes" in run_json("verify", frame, series, "--max-mem", "1000", code=3)["error"]
    for wrong in ("0", "1.5", "some"):
        assert "--sample" in run("verify", frame, series, "--sample", wrong, code=2).stderr


def test_verify_names_arrays_of_groups_and_what_cannot_be_read(tmp_path: Path) -> None:
    for name, chunk in (("one", 2), ("other", 3)):
        group = zarr.create_group(tmp_path / name)
        for path in ("a", "sub/b"):
            group.create_array(path, data=by_position((6,)), chunks=(chunk,))
    assert run("verify", tmp_path / "one", tmp_path / "other").stdout == (
        "verified: 4 boxes of 2 arrays are the same to the bit\n"
    )
    (tmp_path / "other/sub/b/c/1").write_bytes(b"torn")
    printed = run("verify", tmp_path / "one", tmp_path / "other", code=1).stdout
    assert "  sub/b (3,) to (6,): " in printed
    assert "c/1" in printed
    (box,) = run_json("verify", tmp_path / "one", tmp_path / "other", code=1)["differing"]
    assert (box["path"], box["start"], box["stop"]) == ("sub/b", [3], [6])
    assert "c/1" in box["reason"]


def test_verify_names_some_boxes_and_counts_the_rest(tmp_path: Path) -> None:
    for name, seed in (("one", 0), ("other", 1)):
        zarr.create_array(tmp_path / name, data=by_position((30,)).view("u4") + np.uint32(seed), chunks=(1,))
    printed = run("verify", tmp_path / "one", tmp_path / "other", code=1).stdout.splitlines()
    assert printed[0] == "30 of 30 boxes differ; the first is (0,) to (1,)"
    assert printed[1:3] == ["  (0,) to (1,)", "  (1,) to (2,)"]
    assert printed[-1] == "  and 10 more: --json names all"
    assert len(printed) == 22


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    done = run("rechunk", tmp_path / "no.zarr", tmp_path / "series.zarr", *LAYOUT, "--debug", code=1)
    assert "Traceback" in done.stderr


def test_an_interrupt_tells_what_it_leaves(
    frame: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*arguments: object, **options: object) -> None:
        error = KeyboardInterrupt()
        error.add_note("the target is unfinished")
        raise error

    monkeypatch.setattr("rechunk_exec.rechunk", interrupted)
    code = main(["rechunk", str(frame), str(tmp_path / "series.zarr"), *LAYOUT])
    assert code == ExitCode.INTERRUPTED
    assert capsys.readouterr().err.strip() == "rechunk-exec: interrupted; the target is unfinished"


def test_version_and_help() -> None:
    assert run("--version").stdout == "rechunk-exec 0.1.0\n"
    assert "--max-mem" in run("rechunk", "--help").stdout


def test_an_option_is_the_same_in_all_commands_that_have_it() -> None:
    # What it stands for, and its type; a command may have its own default, and say in its own words what that does.
    found: dict[tuple[str, ...], set[tuple[object, ...]]] = {}
    commands: dict[tuple[str, ...], int] = {}
    for command in program.commands.values():
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                words = (*parameter.opts, *parameter.secondary_opts)
                commands[words] = commands.get(words, 0) + 1
                traits = (repr(parameter.type), parameter.metavar, parameter.is_flag, parameter.multiple)
                found.setdefault(words, set()).add(traits)
    assert {words: traits for words, traits in found.items() if len(traits) > 1} == {}
    shared = {words[0] for words, count in commands.items() if count > 1}
    assert shared >= {"--chunks", "--max-mem", "--executor", "--stage", "--array", "--temp-store", "--zarr-format"}


def test_an_unknown_command_is_wrong_usage() -> None:
    done = run_process("rechunck", code=2)
    assert "rechunck" in done.stderr


@pytest.mark.serial
def test_demo_rewrites_checks_and_tells_where(tmp_path: Path) -> None:
    done = run_process("demo", "--dir", tmp_path, "--size", "small")
    assert "one pixel's history" in done.stdout
    assert str(tmp_path / "series.zarr") in done.stdout
    series = zarr.open_array(tmp_path / "series.zarr", mode="r")
    assert (series.shards, series.chunks) == ((24, 256, 256), (24, 64, 64))
    again = run_json("demo", "--dir", tmp_path, "--size", "small", "--no-keep")
    assert again["identical"] is True
    assert list(tmp_path.iterdir()) == []


def test_demo_touches_nothing_that_it_did_not_make(frame: Path, tmp_path: Path) -> None:
    done = run("demo", "--dir", tmp_path, "--size", "small", code=1)
    assert str(frame) in done.stderr
    assert_same_bits(frame)


@pytest.mark.serial
def test_info_tells_of_the_machine() -> None:
    document = run_json("info")
    assert document["cores"] >= 1
    assert document["versions"]["zarr"] == zarr.__version__
    assert document["fresh_memory"]["touched_bytes"] > 0
    assert 0 < document["idle_worker_bytes"] < 1_000_000_000
    table = run("info").stdout
    for name in ("cores", "memory", "disk", "idle worker", "fresh memory", "zarrs"):
        assert f"\n{name} " in table


@pytest.mark.parametrize(
    "text,sizes",
    [
        ("time=-1,y=64,x=64", {"time": -1, "y": 64, "x": 64}),
        (" time = -1 , y = 64", {"time": -1, "y": 64}),
        ("0=-1,2=5", {0: -1, 2: 5}),
        ("-1,64,64", (-1, 64, 64)),
        ("7", (7,)),
    ],
)
def test_sizes_per_axis(text: str, sizes: object) -> None:
    assert parse_sizes(text) == sizes


@pytest.mark.parametrize("text", ["", "a", "y=", "=5", "y=5,6", "y=1=2", "y=0x10", "y=5,y=6", "0=5,00=6"])
def test_sizes_that_cannot_be_read_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"names an axis twice|neither like"):
        parse_sizes(text)


@pytest.mark.parametrize("seconds,verdict", [(0.2, "(healthy)"), (4.0, "(SLOW: ")])
def test_slow_fresh_memory_is_called_slow(seconds: float, verdict: str) -> None:
    assert verdict in str(FreshMemory(touched_bytes=TOUCHED_BYTES, seconds=seconds))


def test_limits_are_kept_or_refused_with_what_would_do(frame: Path, tmp_path: Path) -> None:
    words = ("rechunk", frame, tmp_path / "series.zarr", *LAYOUT)
    error = run_json(*words, "--max-objects", "8", code=3)["error"]
    assert error["type"] == "PlanError"
    assert "at least 9" in error["message"]
    assert "--max-temp-bytes" in run(*words, "--max-temp-bytes", "lots", code=2).stderr
    assert [path.name for path in tmp_path.iterdir()] == ["frame.zarr"]
    run(*words, "--max-objects", "9", "--max-temp-bytes", "0", "--min-object-bytes", "12288")
    assert_same_bits(tmp_path / "series.zarr")


NO_TEXT, EAST, CONTROL = b"\xff\xfe", "\u20ac\u65e5".encode(), b"a\x1b[31mb\x07"
SHOWN_BELOW = [(NO_TEXT, "utf-8 strict"), (NO_TEXT, "ascii strict"), (EAST, "ascii surrogateescape"),
               (EAST, "latin-1 strict"), (CONTROL, "utf-8 strict")]  # fmt: skip
"""Each name in two encodings that cannot show it, if there are two; all in all with --long."""


@pytest.mark.parametrize(
    "name, encoding",
    [
        pytest.param(name, encoding, marks=() if (name, encoding) in SHOWN_BELOW else pytest.mark.long)
        for name in (NO_TEXT, EAST, CONTROL)
        for encoding in ("ascii strict", "ascii surrogateescape", "latin-1 strict", "utf-8 strict")
    ],
    ids=repr,
)
def test_names_that_an_output_cannot_show_are_escaped(tmp_path: Path, name: bytes, encoding: str) -> None:
    # The job was done, and its report died of a UnicodeEncodeError; with a name that is not UTF-8 it did not begin.
    folder = os.fsencode(tmp_path)
    source, target, temp, jobs = (os.fsdecode(folder + b"/" + kind + name) for kind in (b"s", b"t", b"temp", b"jobs"))
    names = ("t\u00e9\x1b", "x")
    array = zarr.create_array(LocalStore(source), shape=(30, 20), chunks=(1, 20), dtype="f4", dimension_names=names)
    array[...] = by_position((30, 20))
    layout = ("--chunks", "-1,1", "--max-mem", "1800B")

    def shown(*words: str, code: int = 0) -> bytes:
        kind, how = encoding.split()
        content, errors = io.BytesIO(), io.StringIO()
        output = io.TextIOWrapper(content, encoding=kind, errors=how)
        with redirect_stdout(output), redirect_stderr(errors):
            returned = main(words)
            assert output.errors == how
            output.flush()
        assert returned == code, errors.getvalue()
        assert "UnicodeEncodeError" not in errors.getvalue()
        return content.getvalue()

    shown("plan", source, target, *layout)
    assert b"written to" in shown("rechunk", source, target, *layout, "--temp-store", temp)
    shown("rechunk", source, target, *layout, code=1)
    shown("plan", source, "--chunks", f"{os.fsdecode(name)}=1", "--max-mem", "1MB", code=3)
    for command in ("info", "status"):
        shown(command, target)
    shown("verify", source, target)
    shown("init", source, f"{target}2", "--jobs", jobs, *layout)
    shown("run-task", jobs, "--range", ":1")
    shown("status", f"{target}2")
    shown("finalize", jobs, code=4)
    assert same_bits(np.asarray(zarr.open_array(LocalStore(target), mode="r")[...]), by_position((30, 20)))


def test_paths_and_file_urls_name_the_same_place_in_every_command(tmp_path: Path) -> None:
    odd = tmp_path / "t \u00fc%20#?.zarr"
    frame = zarr.create_array(LocalStore(odd / "source"), shape=(30, 20), chunks=(1, 20), dtype="f4")
    frame[...] = by_position((30, 20))
    before = {path.name for path in tmp_path.iterdir()}
    layout = ("--chunks", "-1,1", "--max-mem", "1800B")
    source, target, temp, jobs = (f"file://{odd}/{name}" for name in ("source", "target", "temp", "jobs"))
    run("rechunk", source, target, *layout, "--temp-store", temp)
    run("verify", odd / "source", target)
    for command in ("info", "status"):
        assert run(command, target).stdout == run(command, odd / "target").stdout
    for one, other in ((source, odd / "source"), (odd / "source", source)):
        assert "same or inside" in run("rechunk", one, other, *layout, "--mode", "overwrite", code=3).stderr
    run("init", source, f"{target}2", "--jobs", jobs, *layout, "--temp-store", temp)
    for stage in ("0", "1"):
        run("run-task", odd / "jobs", "--stage", stage, "--range", ":")
    run("finalize", jobs)
    run("verify", source, odd / "target2")
    assert {path.name for path in tmp_path.iterdir()} == before
