"""Beam's options and runners, and a pipeline that runs. Layer: executors, below beam. No other module imports Beam."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from rechunk_exec.errors import MissingExtraError
from rechunk_exec.executors.machine import available_cores
from rechunk_exec.executors.records import Records

_LOOK_S = 0.5
"""How often a runner that works elsewhere is asked how far it is."""
_LOCAL_RUNNER = "apache_beam.runners.portability.fn_api_runner.FnApiRunner"


@dataclass(frozen=True, slots=True)
class BeamRunner:
    """What runs a pipeline, as far as that is known before it does."""

    runner: Any
    options: Any
    workers: int
    """Worker processes of this machine; 1 where a cluster has them."""

    @classmethod
    def chosen(cls, runner: object, options: object) -> BeamRunner:
        """Return the runner that was asked for by itself, or by options.

        Raises
        ------
        MissingExtraError
            If Beam is not installed.
        TypeError
            If these are no runner and no options.
        """
        apache_beam()
        from apache_beam.options.pipeline_options import DirectOptions, StandardOptions
        from apache_beam.runners.runner import PipelineRunner

        made = _pipeline_options(options)
        chosen = runner if runner is not None else made.view_as(StandardOptions).runner
        if not isinstance(chosen, (str, PipelineRunner)) and chosen is not None:
            raise TypeError(f"runner must be the name of a Beam runner, or one; got {chosen!r}")
        local = chosen is None or str(chosen).lower() in {"directrunner", "direct", "fnapirunner"}
        direct = made.view_as(DirectOptions)
        many = local and direct.direct_running_mode == "multi_processing"
        return cls(
            runner=_LOCAL_RUNNER if local else chosen,
            options=made,
            workers=(direct.direct_num_workers or available_cores()) if many else 1,
        )

    def run(self, transform: Any, records: Records) -> None:
        """Run a pipeline of one transform to its end, telling of its tasks meanwhile; if interrupted, cancel it."""
        pipeline = apache_beam().Pipeline(runner=self.runner, options=self.options)
        _ = pipeline | "Rechunk" >> transform
        with _signals_kept():
            _finish(pipeline.run(), records)


def _finish(result: Any, records: Records) -> None:
    """Wait for a pipeline that was started; if this is interrupted, cancel it."""
    from apache_beam.runners.runner import PipelineState

    try:
        state = result.state
        while not PipelineState.is_terminal(state):
            time.sleep(_LOOK_S)
            records.look()
            state = result.state
    except BaseException:
        with suppress(Exception):
            result.cancel()
        raise
    # What waits reads streams of the job service that end with its time limit for answers, a minute: a longer job that
    # went well would look as if it had failed. It is not needed but for clearing up, for which there is no other name.
    clear_up = getattr(result, "_cleanup", None) if state == PipelineState.DONE else None
    (clear_up or result.wait_until_finish)()


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Put the program's handler of SIGINT back: starting Prism replaces it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _pipeline_options(options: object) -> Any:
    from apache_beam.options.pipeline_options import PipelineOptions

    if isinstance(options, PipelineOptions):
        return options
    if options is None:
        return PipelineOptions([])  # without a list, Beam reads the program's own arguments
    if isinstance(options, Mapping):
        return PipelineOptions([], **options)
    if isinstance(options, Sequence) and not isinstance(options, str) and all(isinstance(o, str) for o in options):
        return PipelineOptions(list(options))
    raise TypeError(f"options must be Beam's PipelineOptions, a list of its flags, or a mapping; got {options!r}")


def apache_beam() -> Any:
    """Return the package, or raise :class:`MissingExtraError`."""
    try:
        import apache_beam as beam
    except ImportError as error:
        raise MissingExtraError("apache-beam", "beam") from error
    return beam
