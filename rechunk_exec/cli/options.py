"""The options that say what to rechunk, and how. Layer: cli."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar

import click

import rechunk_exec as rx
from rechunk_exec.budget import AUTO, asked_bytes
from rechunk_exec.cost import PRESETS, CostModel
from rechunk_exec.errors import PlanError, SerializationError
from rechunk_exec.executors import Executor, executor_named
from rechunk_exec.sizes import parse_bytes

Sizes = tuple[int, ...] | dict[str, int] | dict[int, int]

ZARR_FORMATS: dict[str | None, Literal[2, 3] | None] = {None: None, "2": 2, "3": 3}


def parse_sizes(text: str) -> Sizes:
    """Sizes by axis, as :func:`rechunk_exec.rechunk` takes them.

    Parameters
    ----------
    text : str
        ``time=-1,y=64,x=64`` by name, ``0=-1,2=64`` by number, or ``-1,64,64`` for all axes in order.

    Raises
    ------
    ValueError
        If it is like neither, or names an axis twice.

    Examples
    --------
    >>> parse_sizes("time=-1,y=64"), parse_sizes("0=-1"), parse_sizes("-1,64")
    ({'time': -1, 'y': 64}, {0: -1}, (-1, 64))
    """
    parts = [part.split("=") for part in text.split(",")]
    axes = [axis.strip() for axis, *_ in parts]
    try:
        sizes = [int(part[-1]) for part in parts]
    except ValueError:
        raise ValueError(f"{text!r} is neither like {_EXAMPLES}") from None
    lengths = {len(part) for part in parts}
    if lengths == {1}:
        return tuple(sizes)
    if lengths != {2} or not all(axes):
        raise ValueError(f"{text!r} is neither like {_EXAMPLES}")
    by_name = dict(zip(axes, sizes, strict=True))
    by_number = {int(axis): size for axis, size in by_name.items() if axis.isdecimal()}
    if len(by_name) < len(axes) or 0 < len(by_number) < len(axes):
        raise ValueError(f"{text!r} names an axis twice, or some by name and some by number")
    return by_number or by_name


_EXAMPLES = "time=-1,y=64,x=64 nor like -1,64,64"

Parsed = TypeVar("Parsed")


def parsed_by(parse: Callable[[str], Parsed]) -> Callable[[click.Context, click.Parameter, str | None], Parsed | None]:
    """The callback of an option whose text ``parse`` reads; its ValueError is wrong usage."""

    def callback(ctx: click.Context, param: click.Parameter, text: str | None) -> Parsed | None:
        try:
            return None if text is None else parse(text)
        except ValueError as error:
            raise click.BadParameter(str(error), ctx, param) from error

    return callback


def parse_max_mem(text: str) -> int | str:
    """A number of bytes, or ``"auto"``.

    >>> parse_max_mem("2MB"), parse_max_mem("auto")
    (2000000, 'auto')
    """
    return asked_bytes(text) or AUTO


def parse_cost_model(text: str) -> str | CostModel:
    """The name of a preset, or the cost model in a file.

    Raises
    ------
    ValueError
        If it is neither.
    """
    if text in PRESETS:
        return text
    try:
        return CostModel.from_json(Path(text).read_bytes())
    except (OSError, SerializationError) as error:
        raise ValueError(f"{text!r} is none of {', '.join(PRESETS)}, nor a file of a cost model: {error}") from error


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


_OPTIONS = (
    click.option(
        "--chunks",
        callback=parsed_by(parse_sizes),
        required=True,
        metavar="SIZES",
        help="What one read returns: time=-1,y=64,x=64 or -1,64,64; -1 is the whole axis.",
    ),
    click.option(
        "--shards",
        callback=parsed_by(parse_sizes),
        metavar="SIZES",
        help="What one stored object holds (zarr format 3); no shards if not given.",
    ),
    click.option(
        "--max-mem",
        callback=parsed_by(parse_max_mem),
        required=True,
        metavar="SIZE",
        help="Memory of one worker process over its idle footprint: 8GB, 512MiB, ..., or auto for a share of what is "
        "left here.",
    ),
    click.option("--temp-store", metavar="PATH", help="Where intermediates go; beside the target if not given."),
    click.option("--array", metavar="NAME", help="Path of the array inside TARGET."),
    click.option(
        "--mode",
        type=click.Choice(["fail", "overwrite", "resume"]),
        default="fail",
        show_default=True,
        help="What to do where the target exists.",
    ),
    click.option("--zarr-format", type=click.Choice(["2", "3"]), help="Of the target; the source's if not given."),
    click.option(
        "--cost-model",
        callback=parsed_by(parse_cost_model),
        default="local",
        show_default=True,
        metavar="local|object|FILE",
        help="What the predicted times assume: a local disk, an object store, or what `probe --json` has measured.",
    ),
    click.option("--max-objects", type=int, metavar="COUNT", help="Objects that all stages together may write."),
    click.option(
        "--min-object-bytes",
        callback=parsed_by(partial(parse_bytes, name="--min-object-bytes", at_least=0)),
        metavar="SIZE",
        help="What every object has at least, in raw bytes: 1MB, ...",
    ),
    click.option(
        "--max-temp-bytes",
        callback=parsed_by(partial(parse_bytes, name="--max-temp-bytes", at_least=0)),
        metavar="SIZE",
        help="What intermediates may hold at once, in raw bytes; 0 for none.",
    ),
    click.option("--verify", is_flag=True, help="Compare source and target after the copy."),
)

_EXECUTOR_OPTIONS = (
    click.option(
        "--executor",
        default="threads",
        show_default=True,
        metavar="NAME",
        help="What runs the tasks: serial, threads, processes, gpu, dask, dask:tcp://HOST:PORT, beam, or another's.",
    ),
    click.option(
        "--workers", type=click.IntRange(min=1), metavar="N", help="Number of workers; one a core if not given."
    ),
)


def executor_options(command: Callable[..., int]) -> Callable[..., int]:
    """Give a command ``--executor`` and ``--workers``."""
    for option in reversed(_EXECUTOR_OPTIONS):
        command = option(command)
    return command


def job_options(command: Callable[..., int]) -> Callable[..., int]:
    """Give a command the options of :class:`JobOptions`."""
    return plan_options(executor_options(command))


def plan_options(command: Callable[..., int]) -> Callable[..., int]:
    """Give a command the options of :class:`JobOptions`, but for those of executors."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command
