"""A view in a notebook cell that is drawn again in place. Layer: report; the one module that imports IPython."""

from __future__ import annotations

from io import StringIO
from typing import Any

from rich.console import Console, RenderableType


class NotebookView:
    """One output of a cell, replaced at each :meth:`show`. It needs no widgets, only IPython's display protocol."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, renderable: RenderableType) -> None:
        """Draw ``renderable`` in the place of what was shown before."""
        from IPython.display import display

        bundle = {"text/plain": render(renderable), "text/html": f"<pre>{render(renderable, html=True)}</pre>"}
        if self._handle is None:
            self._handle = display(bundle, raw=True, display_id=True)
        else:
            self._handle.update(bundle, raw=True)


def render(renderable: RenderableType, *, html: bool = False) -> str:
    """Text or HTML of ``renderable``.

    >>> render("2 of 8 tasks").strip()
    '2 of 8 tasks'
    """
    console = Console(file=StringIO(), width=100, record=True, force_jupyter=False, force_terminal=False)
    console.print(renderable)
    return console.export_html(inline_styles=True, code_format="{code}") if html else console.export_text()
