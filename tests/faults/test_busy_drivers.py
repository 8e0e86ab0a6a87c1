"""A driver that is busy for long with something else than tasks: another one waits, or takes over and is left alone.

The second driver is one of another machine, as it can only see that the first one beats, or does not.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from zarr.storage import MemoryStore

import rechunk_exec as rx
from rechunk_exec import batch, job, preparation, storage
from rechunk_exec.batch import finishing
from rechunk_exec.storage import Journal, Lease, claims, lease, removal
from tests.faults.test_two_drivers import lockless
from tests.jobs import ZarrArray, elements, make_array
from tests.s3 import Bucket
from tests.values import same_bits

SHAPE = (12, 8)
LAYOUTS = ((12, 1), (6, 2))
"""Chunks that the two drivers are to make."""
MAX_MEM = 1_100
"""Jobs have two stages."""
LONG_S = 0.7
"""Longer than a claim stays fresh here."""


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "BEAT_S", 0.05)
    monkeypatch.setattr(claims, "STALE_S", 0.5)


@pytest.fixture
def source(tmp_path: Path) -> ZarrArray:
    return make_array(tmp_path / "source", SHAPE, (1, *SHAPE[1:]), "f8")


@pytest.fixture
def target(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if kind == "memory":
        return MemoryStore()
    if kind == "lockless":
        return lockless(tmp_path / "target")
    bucket: Bucket = request.getfixturevalue("s3")
    return bucket.url("target")


def planned(source: Any, target: Any, chunks: tuple[int, ...]) -> rx.Rechunked:
    temp = None if isinstance(target, str) else Path(str(source.store.root)).with_name("temp")
    job = rx.rechunk(
        source,
        chunks,
        MAX_MEM,
        target,
        temp_store=temp,
        executor="serial",
        mode="overwrite",
        verify=True,
        progress=False,
    )
    assert len(job.stages) == 2
    return job


class SecondDriver:
    """What comes to the same target from another machine, once, while the first driver is at something."""

    def __init__(self, source: ZarrArray, target: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self._source, self._target = source, target
        self._monkeypatch = monkeypatch
        self.outcome = ""

    def __call__(self) -> None:
        if self.outcome:  # its own steps come by here too
            return
        self.outcome = "came"
        time.sleep(LONG_S)
        with self._monkeypatch.context() as patches:
            for module in (claims, lease):
                patches.setattr(module, "this_system", lambda: "another machine")
            try:
                planned(self._source, self._target, LAYOUTS[1]).execute()
                self.outcome = "done"
            except rx.TargetExistsError as error:
                self.outcome = str(error)


def after(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, then: Callable[[], None]) -> None:
    """Have ``then`` come after a function has done its work."""
    plain = getattr(owner, name)

    def longer(*arguments: Any, **options: Any) -> Any:
        result = plain(*arguments, **options)
        then()
        return result

    monkeypatch.setattr(owner, name, longer)


def after_removing_some(monkeypatch: pytest.MonkeyPatch, then: Callable[[], None]) -> None:
    plain = removal._remove_tree

    async def longer(*arguments: Any) -> None:
        await plain(*arguments)
        await asyncio.to_thread(then)

    monkeypatch.setattr(removal, "_remove_tree", longer)


PHASES: dict[str, Callable[[pytest.MonkeyPatch, Callable[[], None]], None]] = {
    "removing": after_removing_some,
    "about to create": lambda patches, then: after(patches, preparation, "_create_intermediates", then),
    "beginning": lambda patches, then: after(patches, Journal, "begin", then),
    "verifying": lambda patches, then: after(patches, job, "verify_copied", then),
    "removing intermediates": lambda patches, then: after(patches, job, "remove_intermediates", then),
    "revealing": lambda patches, then: after(patches, storage, "reveal", then),
    "about to finish": lambda patches, then: after(patches, Journal, "forget", then),
}


def cases(lockless: str, s3: Sequence[str] = ()) -> list[Any]:
    """All phases in memory; on other stores those that are named, and the others with ``--long``."""
    shown = [*(("memory", phase) for phase in PHASES), ("lockless", lockless), *(("s3", phase) for phase in s3)]
    more = [*(("lockless", phase) for phase in PHASES), *(("s3", phase) for phase in ("removing", "verifying"))]
    return [*shown, *(pytest.param(*case, marks=pytest.mark.long) for case in more if case not in shown)]


@pytest.mark.parametrize("kind, phase", cases("removing", s3=("verifying",)))
def test_a_driver_that_is_busy_is_not_taken_for_dead(
    phase: str, source: ZarrArray, target: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned(source, target, LAYOUTS[1]).execute()
    second = SecondDriver(source, target, monkeypatch)
    PHASES[phase](monkeypatch, second)
    array = planned(source, target, LAYOUTS[0]).execute()
    assert "one job at a time writes a target" in second.outcome
    assert "nothing was touched" in second.outcome
    assert array.chunks == LAYOUTS[0]
    assert same_bits(elements(array), elements(source))
    assert rx.status(target).state == "finished"


def contents(target: Any, tmp_path: Path, s3: Bucket | None) -> dict[str, bytes]:
    if isinstance(target, MemoryStore):
        return {name: value.to_bytes() for name, value in target._store_dict.items()}
    if s3 is not None:
        return s3.contents()
    return {str(path): path.read_bytes() for path in (tmp_path / "target").rglob("*") if path.is_file()}


@pytest.fixture
def held(request: pytest.FixtureRequest, target: Any, tmp_path: Path) -> Callable[[], dict[str, bytes]]:
    """What the target's store holds."""
    s3 = request.getfixturevalue("s3") if isinstance(target, str) else None
    return lambda: contents(target, tmp_path, s3)


@pytest.mark.parametrize("kind, phase", cases("verifying"))
def test_a_driver_that_was_stopped_at_anything_touches_nothing_when_it_wakes(
    phase: str,
    source: ZarrArray,
    target: Any,
    held: Callable[[], dict[str, bytes]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planned(source, target, LAYOUTS[1]).execute()
    monkeypatch.setattr(Lease, "_keep", lambda lease: None)
    second, left = SecondDriver(source, target, monkeypatch), []

    def stopped() -> None:
        if not second.outcome:
            second()
            left.append(held())

    PHASES[phase](monkeypatch, stopped)
    first = planned(source, target, LAYOUTS[0])
    with pytest.raises(rx.TargetExistsError, match=r"silent for so long that another has taken over; it stops here$"):
        first.execute()
    assert second.outcome == "done"
    assert first.report is None
    assert [held()] == left
    array = storage.open_array(storage.array_ref(target), read_only=True).array
    assert array.chunks == LAYOUTS[1]
    assert same_bits(elements(array), elements(source))
    assert rx.status(target).state == "finished"


# Lines of a file of jobs.


@pytest.fixture
def url(s3: Bucket, source: ZarrArray) -> str:
    make_array(s3.store("source"), source.shape, source.chunks, "f8")
    return s3.url("target")


END_PHASES: dict[str, tuple[Any, str]] = {
    "verifying": (finishing, "verify_copied"),
    "revealing": (storage, "reveal"),
}


@pytest.mark.parametrize(
    "phase, stopped",
    [
        pytest.param("verifying", False, id="verifying-busy"),
        pytest.param("revealing", True, id="revealing-stopped"),
        pytest.param("verifying", True, id="verifying-stopped", marks=pytest.mark.long),
        pytest.param("revealing", False, id="revealing-busy", marks=pytest.mark.long),
    ],
)
def test_the_end_of_a_batch_job(
    phase: str, stopped: bool, source: ZarrArray, url: str, s3: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = tmp_path / "jobs.jsonl"
    planned(s3.url("source"), url, LAYOUTS[0]).write_jobs(jobs)
    rx.run_job(jobs, range(1000))
    if stopped:
        monkeypatch.setattr(Lease, "_keep", lambda lease: None)
    second, left = SecondDriver(source, url, monkeypatch), []

    def meanwhile() -> None:
        if not second.outcome:
            second()
            left.append(s3.contents())

    after(monkeypatch, *END_PHASES[phase], meanwhile)
    if not stopped:
        assert rx.finalize_jobs(jobs).state == "finished"
        assert "nothing was touched" in second.outcome
        return
    with pytest.raises(rx.TargetExistsError, match=r"another has taken over; it stops here$"):
        rx.finalize_jobs(jobs)
    assert second.outcome == "done"
    assert [s3.contents()] == left


@pytest.mark.parametrize("stopped", [False, True], ids=["busy", "stopped"])
def test_lines_that_take_long_to_write(
    stopped: bool, source: ZarrArray, url: str, s3: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if stopped:
        monkeypatch.setattr(Lease, "_keep", lambda lease: None)
    second = SecondDriver(source, url, monkeypatch)
    after(monkeypatch, batch, "write_lines", second)
    jobs = tmp_path / "jobs.jsonl"
    first = planned(s3.url("source"), url, LAYOUTS[0])
    if not stopped:
        assert first.write_jobs(jobs) == first.plan.tasks
        assert "nothing was touched" in second.outcome
        return
    with pytest.raises(rx.TargetExistsError, match=r"another has taken over; it stops here$"):
        first.write_jobs(jobs)
    assert second.outcome == "done"
    assert not jobs.exists()
