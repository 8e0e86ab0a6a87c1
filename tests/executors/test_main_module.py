"""How programs of all kinds start worker processes, each in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rechunk_exec.executors.main_module import MainModule, refuse_while_importing_main
from tests.executors.workers import environment

GUARDED = """
import os, sys
import rechunk_exec.executors as ex

def double(number):
    return 2 * number

def main():
    with ex.ProcessesExecutor(1) as executor:
        print(list(executor.map({function}, range(1, 4))))

if __name__ == "__main__":
    main()
"""

UNGUARDED = """
import os, sys
from pathlib import Path
import rechunk_exec.executors as ex

print("top level", flush=True)
Path(sys.argv[1], str(os.getpid())).touch()
{call}
"""


def run(*arguments: str | Path, stdin: str | None = None, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        cwd=cwd,
        env=environment(),
        timeout=60,
        check=False,
    )


def test_a_script_whose_function_is_its_own(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(GUARDED.format(function="double"))
    done = run("script.py", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[2, 4, 6]\n", "")


def test_a_module_run_by_name(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(GUARDED.format(function="double"))
    done = run("-m", "program", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[2, 4, 6]\n", "")


def test_a_package_run_by_name(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__main__.py").write_text(GUARDED.format(function="abs"))
    done = run("-m", "package", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[1, 2, 3]\n", "")


UNCLOSED = "import rechunk_exec.executors as ex\ne = ex.ProcessesExecutor(1)\nprint(list(e.map(abs, [-1, -2])))\n"
"""No guard is needed where there is no script, and an executor that is not closed ends with the program."""


def test_a_command_line(tmp_path: Path) -> None:
    done = run("-c", UNCLOSED, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[1, 2]\n", "")


@pytest.mark.parametrize("arguments", [pytest.param([], marks=pytest.mark.long), ["-"]], ids=str)
def test_standard_input(tmp_path: Path, arguments: list[str]) -> None:
    done = run(*arguments, stdin=UNCLOSED, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[1, 2]\n", "")


@pytest.mark.long  # it is told to workers as standard input is
def test_an_interactive_session(tmp_path: Path) -> None:
    done = run("-i", "-q", stdin=UNCLOSED, cwd=tmp_path)
    assert done.returncode == 0
    assert "[1, 2]" in done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "call",
    [
        pytest.param("print(list(ex.ProcessesExecutor(1).map(abs, range(5))))", marks=pytest.mark.long),
        "ex.check_stages(ex.resolve('serial'), []); print(list(ex.ProcessesExecutor(1).map(abs, range(5))))",
    ],
)
def test_a_script_without_the_guard(tmp_path: Path, call: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(UNGUARDED.format(call=call))
    (tmp_path / "ran").mkdir()
    done = run(script, tmp_path / "ran")
    assert done.returncode == 1
    assert done.stderr.count("Traceback") == 1, "children are quiet"
    assert done.stderr.count("RechunkError") == 1
    assert 'if __name__ == "__main__":' in done.stderr
    assert str(script) in done.stderr
    assert len(list((tmp_path / "ran").iterdir())) <= 2, "the child has no children"


def test_a_script_without_the_guard_that_swallows_errors(tmp_path: Path) -> None:
    call = """
try:
    ex.ProcessesExecutor(1).run_on_workers(os.getpid)
except BaseException as error:
    print(error)
print("after", os.getpid())
"""
    script = tmp_path / "script.py"
    script.write_text(UNGUARDED.format(call=call))
    (tmp_path / "ran").mkdir()
    done = run(script, tmp_path / "ran")
    assert done.returncode == 0
    assert done.stdout.count("after") == 1, "a worker does nothing after it was refused"
    assert 'if __name__ == "__main__":' in done.stdout


def test_a_script_that_cannot_be_imported(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys\n"
        "if __name__ != '__main__':\n"
        "    if os.environ['HOW'] == 'leave':\n"
        "        sys.exit(0)\n"
        "    raise LookupError('in workers')\n"
        "import rechunk_exec.executors as ex\n"
        "for os.environ['HOW'] in ('raise', 'leave'):\n"
        "    try:\n"
        "        ex.ProcessesExecutor(1).run_on_workers(os.getpid)\n"
        "    except Exception as error:\n"
        "        print(error, error.__cause__)\n"
    )
    done = run(script)
    assert done.returncode == 0, done.stderr
    raised, left = done.stdout.split("LookupError: in workers", 1)
    assert "import the main script" in raised
    assert "SystemExit: 0" in left
    assert done.stdout.count("import the main script") == 2


def test_children_of_multiprocessing_are_told(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import multiprocessing, rechunk_exec.executors as ex\n"
        "if __name__ == '__main__':\n"
        "    process = multiprocessing.get_context('spawn').Process(target=print)\n"
        "    process.start(); process.join(); raise SystemExit(process.exitcode)\n"
        "ex.check_stages(ex.resolve('serial'), [])\n"
    )
    done = run(script)
    assert done.returncode == 1
    assert "must stand under the guard" in done.stderr


def test_a_task_in_a_daemonic_process_may_start_processes(tmp_path: Path) -> None:
    """A daemonic process may have no children by multiprocessing; ours it may have, and their tasks more."""
    script = tmp_path / "script.py"
    script.write_text(
        "import multiprocessing, rechunk_exec.executors as ex\n"
        "def task(number):\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as pool:\n"
        "        return pool.apply(abs, [number])\n"
        "def job():\n"
        "    with ex.ProcessesExecutor(1) as executor:\n"
        "        print(list(executor.map(task, [-1])))\n"
        "if __name__ == '__main__':\n"
        "    process = multiprocessing.get_context('spawn').Process(target=job, daemon=True)\n"
        "    process.start(); process.join()\n"
    )
    done = run(script)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[1]\n", "")


def test_this_process_is_not_refused() -> None:
    refuse_while_importing_main()


def test_what_cannot_be_imported_is_not() -> None:
    assert not MainModule(name=None, path=None, argv=())
