"""How a command ends: exit codes, errors as messages, JSON. Layer: cli."""

from __future__ import annotations

import functools
import io
import json
import logging
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import IntEnum
from typing import Any

import click

from rechunk_exec.errors import NotReadyError, PlanError, RechunkError, error_text


class ExitCode(IntEnum):
    """What the process gives back to its caller."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    """The words of the command line are wrong."""
    NO_PLAN = 3
    """The request cannot be planned, or not within ``--max-mem``."""
    NOT_READY = 4
    """An earlier stage is unfinished."""
    INTERRUPTED = 130


def reporting_errors(command: Callable[..., ExitCode | None]) -> Callable[..., ExitCode]:
    """Give a command ``--json`` and ``--debug``, and turn its exceptions into a message and an exit code.

    A command that returns none is done.
    """

    @click.option("--json", "as_json", is_flag=True, help="Print one JSON document on standard output.")
    @click.option("--debug", is_flag=True, help="Show the traceback of an error.")
    @functools.wraps(command)
    def run(*, as_json: bool, debug: bool, **options: Any) -> ExitCode:
        try:
            with any_name_printable(), log_on_stderr(), ended_like_an_interrupt():
                return command(as_json=as_json, **options) or ExitCode.DONE
        except click.ClickException:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, people get one message
            if debug:
                traceback.print_exc()
            if as_json:
                print_json({"error": error_document(error)})
            click.echo(f"rechunk-exec: {error_message(error)}", err=True)
            return exit_code(error)

    return run


def exit_code(error: BaseException) -> ExitCode:
    """The exit code that tells of an error.

    >>> exit_code(PlanError("chunks are positive; got 0"))
    <ExitCode.NO_PLAN: 3>
    """
    if isinstance(error, PlanError):
        return ExitCode.NO_PLAN
    return ExitCode.NOT_READY if isinstance(error, NotReadyError) else ExitCode.FAILED


def error_message(error: BaseException) -> str:
    """One message for people: our own errors say all themselves, others are named.

    >>> error_message(PlanError("chunks are positive; got 0"))
    'chunks are positive; got 0'
    """
    if isinstance(error, RechunkError):
        return str(error)
    return "; ".join([error_text(error), *notes_of(error), "--debug shows the traceback"])


def notes_of(error: BaseException | None) -> list[str]:
    """What was added to an error on its way, such as what it left behind."""
    return list(getattr(error, "__notes__", ()))


def error_document(error: BaseException) -> dict[str, Any]:
    """The error as JSON values, with the figures that it carries, such as ``needed_bytes``."""
    figures = {name: value for name, value in vars(error).items() if isinstance(value, int)}
    return {"type": type(error).__name__, "message": str(error), **figures}


def print_json(document: Mapping[str, Any]) -> None:
    """Print one JSON document on standard output."""
    click.echo(json.dumps(document, indent=2))


@contextmanager
def any_name_printable() -> Iterator[None]:
    """Have standard output escape what its encoding has not: arrays and files may have any name."""
    stream = sys.stdout
    errors = getattr(stream, "errors", None)
    if errors not in ("strict", "surrogateescape") or not isinstance(stream, io.TextIOWrapper):
        yield
        return
    stream.reconfigure(errors="backslashreplace")
    try:
        yield
    finally:
        stream.reconfigure(errors=errors)


@contextmanager
def ended_like_an_interrupt() -> Iterator[None]:
    """Take a request to end (SIGTERM) like Ctrl-C: workers are stopped, and what is unfinished is named."""
    previous = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


@contextmanager
def log_on_stderr() -> Iterator[None]:
    """Show the package's log lines on standard error: they are the progress where there is no terminal."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", datefmt="%H:%M:%S"))
    logger = logging.getLogger("rechunk_exec")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
