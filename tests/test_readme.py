from __future__ import annotations

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
import zarr

from rechunk_exec.cli import main

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)


def test_what_it_does_is_told_in_three_lines() -> None:
    title, _, rest = README.partition("\n\n")
    assert title == "# rechunk_exec"
    assert len(rest.split("\n\n")[0].splitlines()) == 3


def test_there_are_two_shell_commands_of_one_line_each() -> None:
    demo, tests = blocks("sh")
    assert demo.endswith(" && .venv/bin/rechunk-exec demo\n")
    assert " && .venv/bin/python -m pytest -n auto --dist loadfile -m 'not alone' && " in tests
    assert tests.endswith(" && .venv/bin/python -m pytest -m alone\n")
    for command in (demo, tests):
        assert command.startswith("python3 -m venv .venv && .venv/bin/pip install ")
        assert command.count("\n") == 1


def test_ci_runs_the_commands_that_stand_in_the_readme() -> None:
    run = ROOT / ".ci" / "run"
    printed = subprocess.run(["bash", run, "commands"], check=True, capture_output=True, text=True).stdout
    assert printed == "".join(blocks("sh"))
    assert "rechunk-exec demo" not in run.read_text()
    assert "pip install" not in run.read_text()


def test_the_python_example_does_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (example,) = blocks("python")
    frame = np.arange(7 * 300 * 90, dtype="f4").reshape(7, 300, 90)
    source = zarr.create_array(
        tmp_path / "frame.zarr", shape=frame.shape, chunks=(1, 300, 90), dtype="f4", dimension_names=("time", "y", "x")
    )
    source[...] = frame
    monkeypatch.chdir(tmp_path)
    exec(compile(example, "the example", "exec"), {"__name__": "__main__"})
    series = zarr.open_array(tmp_path / "series.zarr", mode="r")
    assert (series.chunks, series.shards) == ((7, 64, 64), (7, 256, 128))
    np.testing.assert_array_equal(np.asarray(series[...]), frame)


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))])
def test_links_to_files_lead_somewhere(page: str) -> None:
    path = ROOT / page
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", path.read_text()):
        if not target.startswith("https://"):
            assert (path.parent / target).exists(), f"{page} links to {target}"


def documented_commands() -> list[tuple[list[str], int, list[str]]]:
    """Words, exit code and output of each command in docs/cli.md."""
    page = (ROOT / "docs" / "cli.md").read_text()
    commands = []
    for block in re.findall(r"^```console\n\$ (.*?)^```$", page, flags=re.MULTILINE | re.DOTALL):
        command, _, output = block.replace("\\\n", " ").partition("\n")
        output, _, code = output.partition("$ echo $?\n")
        commands.append((command.split(), int(code or 0), output.splitlines()))
    return commands


def label(line: str) -> str:
    """What a line begins with, but for figures and for where an array is."""
    first = re.split(r"\s{2,}|; the array is", line.strip())[0]
    return " ".join(re.findall(r"[a-z][a-z_-]*", re.sub(r"\S*/\S*", "", first)))


def test_the_documented_commands_print_what_is_documented(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    commands = documented_commands()
    assert [words[1] for words, _, _ in commands] == [
        *("demo", "plan", "rechunk", "rechunk", "rechunk", "probe", "status", "verify", "info")
    ]
    for (program, *words), code, documented in commands:
        assert program == "rechunk-exec"
        quickly = ("--seconds", "0.1") if words[0] == "probe" else ()
        returned = main([*words, *quickly])
        shown = capsys.readouterr()
        assert returned == code, shown.err
        printed = {label(line) for line in (shown.out + shown.err).splitlines()}
        progress = re.compile(r"tasks \(|\d tasks, |^distributed|^apache|^not installed|^xarray|^h5py")
        missing = [line for line in documented if label(line) not in printed and not progress.search(line)]
        assert not missing, f"{words} does not print {missing}, but {sorted(printed)}"
