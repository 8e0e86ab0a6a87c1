"""Running an example as its reader does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.executors.workers import environment

EXAMPLES = Path(__file__).parents[2] / "examples"


def told_by(script: str, folder: Path, *options: str) -> str:
    """Run an example in a process of its own, with ``options`` of the interpreter; return what it prints."""
    command: list[str | Path] = [sys.executable, *options, EXAMPLES / script, folder]
    run = subprocess.run(command, check=False, capture_output=True, text=True, env=environment(), timeout=120)
    assert run.returncode == 0, run.stderr
    return run.stdout
