"""Pieces of HTML for notebooks, in which all text is escaped. Layer: at the bottom, beside sizes."""

from __future__ import annotations

import html
from collections.abc import Sequence


def text(value: str) -> str:
    """Text as HTML; what is no Unicode, in names of files, is shown as an escape.

    >>> text("<a> & b")
    '&lt;a&gt; &amp; b'
    """
    return html.escape(value.encode(errors="backslashreplace").decode())


def lines(value: str) -> str:
    """Lines of text, each on a line of its own."""
    return "<br>".join(map(text, value.splitlines()))


def table(rows: Sequence[Sequence[str]], *, headed: bool = False) -> str:
    """A table whose first column names the rows, and whose first row, if it is ``headed``, names the columns.

    >>> table([("tasks", "3")])
    '<table><tr><th style="text-align: left">tasks</th><td style="text-align: left">3</td></tr></table>'
    """
    made = []
    for number, row in enumerate(rows):
        kinds = ("th" if place == 0 or (headed and number == 0) else "td" for place in range(len(row)))
        cells = (
            f'<{kind} style="text-align: left">{text(cell)}</{kind}>' for kind, cell in zip(kinds, row, strict=True)
        )
        made.append(f"<tr>{''.join(cells)}</tr>")
    return f"<table>{''.join(made)}</table>"


def folded(summary: str, body: str) -> str:
    """HTML that is shown when its summary is clicked on."""
    return f"<details><summary>{text(summary)}</summary>{body}</details>"
