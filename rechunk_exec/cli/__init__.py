"""The command line, ``rechunk-exec``. Layer: the top; it parses words, calls the Python functions and prints.

Results go to standard output, progress and errors to standard error. With ``--json``, standard output holds one JSON
document and nothing else, also after an error.
"""

from __future__ import annotations

from collections.abc import Sequence

import click

from rechunk_exec.cli import batch, probing, watching  # noqa: F401 - they add their commands
from rechunk_exec.cli.commands import program
from rechunk_exec.cli.outcome import ExitCode, notes_of

__all__ = ["ExitCode", "main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; see :class:`ExitCode`.

    Parameters
    ----------
    arguments : sequence of str, optional
        Those of the process if not given.
    """
    try:
        code = program.main(args=arguments, prog_name="rechunk-exec", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort as abort:  # which click makes of KeyboardInterrupt
        click.echo("; ".join(["rechunk-exec: interrupted", *notes_of(abort.__cause__)]), err=True)
        return ExitCode.INTERRUPTED
    return int(code or ExitCode.DONE)
