"""The options of the command line: each is defined here once, whichever commands have it. Layer: cli."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeVar

import click

import rechunk_exec as rx
from rechunk_exec.cli.parsing import Sizes, parse_cost_model, parse_max_mem, parse_sizes, parsed_by
from rechunk_exec.cost import CostModel
from rechunk_exec.errors import PlanError
from rechunk_exec.executors import Executor, executor_named
from rechunk_exec.sizes import parse_bytes

Command = TypeVar("Command", bound=Callable[..., Any])

ZARR_FORMATS: dict[str | None, Literal[2, 3] | None] = {None: None, "2": 2, "3": 3}


_OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "--chunks": {
        "callback": parsed_by(parse_sizes),
        "metavar": "SIZES",
        "help": "What one read returns: time=-1,y=64,x=64 or -1,64,64; -1 is the whole axis.",
    },
    "--shards": {
        "callback": parsed_by(parse_sizes),
        "metavar": "SIZES",
        "help": "What one stored object holds (zarr format 3); no shards if not given.",
    },
    "--max-mem": {
        "callback": parsed_by(parse_bytes),
        "metavar": "SIZE",
        "help": "Memory of one worker process over its idle footprint.",
    },
    "--temp-store": {"metavar": "PATH", "help": "Where intermediates go; beside the target if not given."},
    "--array": {"metavar": "NAME", "help": "Path of the array inside TARGET."},
    "--mode": {
        "type": click.Choice(["fail", "overwrite", "resume"]),
        "default": "fail",
        "show_default": True,
        "help": "What to do where the target exists.",
    },
    "--zarr-format": {"type": click.Choice(["2", "3"]), "help": "Of the target; the source's if not given."},
    "--cost-model": {
        "callback": parsed_by(parse_cost_model),
        "default": "local",
        "show_default": True,
        "metavar": "local|object|FILE",
        "help": "What the predicted times assume: a local disk, an object store, or what `probe --json` has measured.",
    },
    "--max-objects": {"type": int, "metavar": "COUNT", "help": "Objects that all stages together may write."},
    "--min-object-bytes": {
        "callback": parsed_by(partial(parse_bytes, name="--min-object-bytes", at_least=0)),
        "metavar": "SIZE",
        "help": "What every object has at least, in raw bytes: 1MB, ...",
    },
    "--max-temp-bytes": {
        "callback": parsed_by(partial(parse_bytes, name="--max-temp-bytes", at_least=0)),
        "metavar": "SIZE",
        "help": "What intermediates may hold at once, in raw bytes; 0 for none.",
    },
    "--verify": {"is_flag": True, "help": "Compare source and target after the copy."},
    "--executor": {
        "default": "threads",
        "show_default": True,
        "metavar": "NAME",
        "help": "What runs the tasks: serial, threads, processes, gpu, dask, dask:tcp://HOST:PORT, beam, or another's.",
    },
    "--workers": {
        "type": click.IntRange(min=1),
        "metavar": "N",
        "help": "Number of workers; one a core if not given.",
    },
    "--stage": {"type": click.IntRange(min=0), "metavar": "K", "help": "Count the lines of this stage only."},
}


def option(flag: str, *names: str, **own: Any) -> Callable[[Command], Command]:
    """Give a command one of the options that several commands have.

    Parameters
    ----------
    flag : str
        What it is called on the command line.
    *names : str
        The command's own name of its value.
    **own
        What is otherwise in this command, such as its default or its help.
    """
    return click.option(flag, *names, **{**_OPTIONS[flag], **own})


def _options(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Give a command several options, listed in this order."""

    def give(command: Command) -> Command:
        for one in reversed(options):
            command = one(command)
        return command

    return give


def executor_options(command: Command) -> Command:
    """Give a command ``--executor`` and ``--workers``."""
    return _options(option("--executor"), option("--workers"))(command)


def plan_options(command: Command) -> Command:
    """Give a command the options of :class:`JobOptions`, but for those of executors."""
    return _options(
        option("--chunks", required=True),
        option("--shards"),
        option(
            "--max-mem",
            callback=parsed_by(parse_max_mem),
            required=True,
            help="Memory of one worker process over its idle footprint: 8GB, 512MiB, ..., or auto for a share of what "
            "is left here.",
        ),
        option("--temp-store"),
        option("--array"),
        option("--mode"),
        option("--zarr-format"),
        option("--cost-model"),
        option("--max-objects"),
        option("--min-object-bytes"),
        option("--max-temp-bytes"),
        option("--verify"),
    )(command)


def job_options(command: Command) -> Command:
    """Give a command the options of :class:`JobOptions`."""
    return plan_options(executor_options(command))


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """What a command line asks for, besides the names of the two stores."""

    chunks: Sizes
    shards: Sizes | None
    max_mem: int | str
    executor: str
    workers: int | None
    temp_store: str | None
    array: str | None
    mode: Literal["fail", "overwrite", "resume"]
    zarr_format: str | None
    cost_model: str | CostModel
    verify: bool
    max_objects: int | None
    min_object_bytes: int | None
    max_temp_bytes: int | None

    @contextmanager
    def planned(self, source: str, target: str | None, *, silent: bool) -> Iterator[rx.Rechunked]:
        """The job, planned, with its executor open; nothing is written."""
        with opened_executor(self.executor, self.workers) as executor:
            yield rx.rechunk(
                source,
                self.chunks,
                self.max_mem,
                target_store=target,
                temp_store=self.temp_store,
                executor=executor,
                array_name=self.array,
                target_shards=self.shards,
                mode=self.mode,
                zarr_format=ZARR_FORMATS[self.zarr_format],
                cost_model=self.cost_model,
                verify=self.verify,
                progress=False if silent else None,
                max_objects=self.max_objects,
                min_object_bytes=self.min_object_bytes,
                max_temp_bytes=self.max_temp_bytes,
            )


@contextmanager
def opened_executor(name: str, workers: int | None) -> Iterator[Executor]:
    """The executor of a name, with so many workers if given; closed in the end."""
    try:
        executor = executor_named(name, workers)
    except PlanError as error:
        raise click.UsageError(str(error)) from error
    with ExitStack() as stack:
        close = getattr(executor, "close", None)
        if callable(close):
            stack.callback(close)
        yield executor
