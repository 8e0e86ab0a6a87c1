"""Calls on their way to workers of a ``distributed`` cluster, and their replies. Layer: executors, below dask.

A call is a key that names its task and a few bytes (:class:`~rechunk_exec.executors.remote.Parcel`): the stage and
other shared objects are in the worker before it, sent once. Which worker runs a call is for the executor to say.
"""

from __future__ import annotations

import queue
import uuid
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from rechunk_exec.errors import RechunkError
from rechunk_exec.executors.calls import Call, Outcome
from rechunk_exec.executors.copyrun import StageTask
from rechunk_exec.executors.daskcluster import DaskCluster
from rechunk_exec.executors.daskfitness import Member
from rechunk_exec.executors.remote import Missing, Parcel, Reply, open_parcel, pack_call
from rechunk_exec.executors.shared import Shared

_ARRIVAL_S = 0.016
"""About how long a worker waits for its next call if that is sent when it has answered the last one: all go through the
scheduler, which sends messages some at a time."""
_RECENT = 16
"""Of how many calls the longest tells how long the next ones take."""
_MOST_AHEAD = 4


@dataclass(frozen=True, slots=True)
class Packed:
    """A call on its way to a worker."""

    number: int
    key: str
    parcel: Parcel
    needs: dict[str, Shared[Any]]
    """What the worker must have before it, by token."""


class DaskCalls:
    """The calls that workers of a cluster were given and have not answered."""

    def __init__(self, cluster: DaskCluster) -> None:
        self._cluster = cluster
        self._nonce = uuid.uuid4().hex[:8]
        self._flying: dict[int, _Flight] = {}
        self._answers: queue.SimpleQueue[tuple[int, object]] = queue.SimpleQueue()
        self._function = ""
        self._seconds: deque[float] = deque(maxlen=_RECENT)

    @property
    def ahead(self) -> int:
        """How many calls a worker may be given for each that it can run, beyond that one.

        Some, where calls end sooner than the next one arrives. Others have none waiting behind them, which another
        worker could begin, or which would be lost with theirs.
        """
        if len(self._seconds) < _RECENT:
            return 0
        return min(_MOST_AHEAD, int(_ARRIVAL_S / max(*self._seconds, _ARRIVAL_S / _MOST_AHEAD)))

    def __len__(self) -> int:
        return len(self._flying)

    def pack(self, call: Call, set_ups: Sequence[Shared[Any]]) -> Packed:
        """Return what is sent for a call, by a worker that has called ``set_ups`` before."""
        if call.function.token != self._function:
            self._function = call.function.token
            self._seconds.clear()
        data, needs = pack_call(call.function, call.argument)
        tokens = tuple(needs)
        for handle in set_ups:
            needs |= handle.pack().needs() | {handle.token: handle}
        parcel = Parcel(data=data, tokens=tokens, set_ups=tuple(handle.token for handle in set_ups))
        return Packed(call.number, f"{_name(call)}-{self._nonce}.{call.number}", parcel, needs)

    def launch(self, packed: Packed, member: Member) -> None:
        """Have a worker run a call.

        Raises
        ------
        OSError
            If it has gone; the call has not begun.
        """
        client = self._cluster.client
        self._cluster.share(member, packed.needs)
        future = client.submit(
            open_parcel, packed.parcel, key=packed.key, workers=[member.address], allow_other_workers=False, pure=False
        )
        member.running += 1
        self._flying[packed.number] = _Flight(packed, member, future)
        client.loop.add_callback(self._follow, packed.number, future)

    def lose(self, member: Member) -> None:
        """Take the calls of a worker that has left for lost."""
        error = RechunkError(f"worker {member.address} left the cluster while it ran the task; perhaps it was killed")
        for number, flight in self._flying.items():
            if flight.member is member:
                self._answers.put((number, _Lost(error)))

    def received(self, wait_s: float) -> tuple[list[Outcome], list[Packed]]:
        """Return how calls have ended, waiting for a first one, and those that must be started again."""
        answers = []
        with suppress(queue.Empty):
            answers.append(self._answers.get(timeout=wait_s))
            while True:
                answers.append(self._answers.get_nowait())
        outcomes: list[Outcome] = []
        again: list[Packed] = []
        for number, answer in answers:
            flight = self._land(number)
            if flight is None:  # of an earlier job
                continue
            if isinstance(answer, Missing):  # it keeps only so many objects
                for token in answer.tokens:
                    flight.member.kept.pop(token, None)
                again.append(flight.packed)
            elif isinstance(answer, Reply):
                self._seconds.append(answer.seconds)
                outcomes.append(answer.outcome(number))
            else:
                outcomes.append(_lost(number, answer))
        return outcomes, again

    def forget(self) -> None:
        """Wait for none of them any more."""
        for number in list(self._flying):
            self._land(number)

    async def _follow(self, number: int, future: Any) -> None:
        """Wait for a call's reply, in the client's own thread."""
        try:
            reply: object = await future
        except BaseException as error:  # noqa: BLE001 - whatever the cluster says of it
            reply = _Lost(error)
        self._answers.put((number, reply))

    def _land(self, number: int) -> _Flight | None:
        """Forget a call, here and on the scheduler."""
        flight = self._flying.pop(number, None)
        if flight is not None:
            flight.member.running -= 1
            flight.future.release()
        return flight


@dataclass(frozen=True, slots=True)
class _Flight:
    """A call that a worker was given."""

    packed: Packed
    member: Member
    future: Any


@dataclass(frozen=True, slots=True)
class _Lost:
    """Instead of a reply: why there is none."""

    error: BaseException


def _lost(number: int, answer: object) -> Outcome:
    cause = answer.error if isinstance(answer, _Lost) else None
    if isinstance(cause, RechunkError):
        return Outcome(number=number, error=cause, lost=True)
    error = RechunkError(f"the cluster must run each call; it gave one up: {type(cause).__name__}: {cause}")
    error.__cause__ = cause
    return Outcome(number=number, error=error, lost=True)


def _name(call: Call) -> str:
    """What the dashboard shows of a call: it groups keys by what comes before the first number that stands alone."""
    work = call.function.value
    if isinstance(work, StageTask):
        return f"rechunk_stage_{work.stage.number}-{work.stage.task_number(int(str(call.argument)))}"
    return str(getattr(work, "__name__", type(work).__name__)).strip("<>_") or "call"
