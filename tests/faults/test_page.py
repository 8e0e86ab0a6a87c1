"""The page docs/reliability.md names a test for each promise; these are there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reliability.md"


def test_every_test_that_the_page_names_is_there() -> None:
    named = re.findall(r"`(?:tests/(\w+)/)?(\w+\.py)::(\w+)`", PAGE.read_text())
    assert len(named) > 30
    missing = [
        f"{file}::{test}"
        for folder, file, test in named
        if f"def {test}(" not in (ROOT / "tests" / (folder or "faults") / file).read_text()
    ]
    assert missing == []


def test_every_row_of_promises_names_a_test() -> None:
    after_the_figures = PAGE.read_text().partition("## Kills")[2]
    rows = [line for line in after_the_figures.splitlines() if line.startswith("| ")]
    promises = [row for row in rows if "| test |" not in row and row.count("|") == 3]
    assert len(promises) > 25
    assert [row for row in promises if ".py" not in row and "the same" not in row] == []
