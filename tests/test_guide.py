"""The guide runs as it stands, from top to bottom."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

GUIDE = Path(__file__).parent.parent / "docs" / "guide.md"


def test_the_guide_does_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # All but the snippets is made blank, so that lines keep their numbers.
    lines = GUIDE.read_text().splitlines()
    inside = False
    for number, line in enumerate(lines):
        fence = line.startswith("```")
        inside = line == "```pycon" if fence else inside
        if fence or not inside:
            lines[number] = ""
    test = doctest.DocTestParser().get_doctest("\n".join(lines), {}, GUIDE.name, str(GUIDE), 0)
    assert len(test.examples) > 20
    told: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL)
    runner.run(test, out=told.append)
    assert runner.failures == 0, "".join(told)


def test_every_snippet_of_the_guide_is_run() -> None:
    assert set(re.findall(r"^```(\w+)", GUIDE.read_text(), re.MULTILINE)) == {"pycon"}
