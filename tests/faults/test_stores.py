"""Whole jobs on stores that fail: the target is exact, or an error says what failed and where."""

from __future__ import annotations

import math
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zarr
from zarr.storage import LocalStore, MemoryStore, StorePath

import rechunk_exec as rx
from rechunk_exec.executors import ProcessesExecutor
from rechunk_exec.storage import RetryPolicy, retry_policy
from tests.faults.stores import Faults, FaultyStore
from tests.jobs import assert_exact, make_array
from tests.values import position_values

SHAPE = (12, 40, 30)
EPOCHS = (1, 40, 30)
ONE, TWO = ((4, 20, 30), "200kB"), ((12, 10, 10), "30kB")
"""Target chunks and budgets of jobs of one stage and of two."""
QUICK = RetryPolicy(tries=12, first_wait_s=0.002, longest_wait_s=0.05)
LAYOUTS: dict[str, dict[str, Any]] = {
    "direct": {"compressors": zarr.codecs.BloscCodec(cname="zstd")},
    "zstd": {},
    "raw": {"compressors": None},
    "shards": {"shards": (4, 40, 30)},
    "zarr": {"dtype": zarr.dtype.VariableLengthUTF8()},
}


def source_in(store: Any, layout: str = "direct", *, sparse: bool = False) -> Any:
    values = position_values(SHAPE, object if layout == "zarr" else "f4")
    if sparse:
        values[3:9] = values[:, :10] = "" if layout == "zarr" else 0
    return make_array(store, SHAPE, EPOCHS, values=values, name="source", **LAYOUTS[layout])


def rechunk(store: FaultyStore, how: tuple[Any, str], executor: Any = "threads", **options: Any) -> rx.Rechunked:
    chunks, budget = how
    return rx.rechunk(
        StorePath(store, "source"), chunks, budget, StorePath(store, "target"), executor=executor,
        temp_store=StorePath(store, "temp"), progress=False, **options,
    )  # fmt: skip


def exact(content: MemoryStore) -> None:
    """Fail unless what is stored at last, seen without faults, is exact."""
    assert_exact(zarr.open_array(content, path="target", mode="r"), zarr.open_array(content, path="source", mode="r"))
    assert not [key for key in content._store_dict if key.startswith("temp/")]


@pytest.mark.parametrize("rate", [0.02, 0.2])
@pytest.mark.parametrize("how", [ONE, TWO], ids=["one stage", "two stages"])
@pytest.mark.parametrize("layout", ["direct", "raw", "shards"])
def test_requests_that_fail_and_answers_cut_short(layout: str, how: tuple[Any, str], rate: float) -> None:
    content = MemoryStore({})
    source_in(content, layout)
    store = FaultyStore(content, Faults(seed=7, fails=rate, truncates=rate, delays=rate, delay_s=0.002))
    with retry_policy(QUICK):
        job = rechunk(store, how, "serial")
        job.execute()
    assert len(job.stages) == (1 if how == ONE else 2)
    exact(content)
    assert job.report is not None
    assert job.report.retries == 0, "no task is run again for it"
    if rate == 0.2:
        assert store.seen.failed > 5
        assert store.seen.truncated > 1
        assert 0 < job.report.store_retries <= store.seen.failed + store.seen.truncated


THREE_STAGES = replace(rx.CostModel.object(), operation_s=5.0)
"""Operations so slow that three stages save more of them than they cost, and each task writes one object."""
LONG, LONGER = (66, 60), (130, 120)
"""Shapes of arrays that are copied in three stages; the latter where they are in shards."""


def in_three_stages(
    store: FaultyStore, shape: tuple[int, int] = LONG, max_mem: str = "4kB", **options: Any
) -> rx.Rechunked:
    room = 2 * math.prod(shape) * 4  # for two intermediates, and no third
    job = rechunk(store, ((shape[0], 1), max_mem), cost_model=THREE_STAGES, max_temp_bytes=room, **options)
    assert [stage.chunk == stage.write_unit for stage in job.plan.stages] == [False, False, True]
    return job


@pytest.mark.parametrize("sharded", [False, pytest.param(True, marks=pytest.mark.long)])
def test_every_third_request_fails_and_objects_show_late_in_three_stages(sharded: bool) -> None:
    content = MemoryStore({})
    shape = LONGER if sharded else LONG
    shards: dict[str, Any] = {"chunks": (1, 30), "shards": (1, 120)} if sharded else {"chunks": (1, 60)}
    make_array(content, shape, name="source", **shards)
    store = FaultyStore(content, Faults(seed=13, fails=1 / 3, truncates=0.1, hides_s=0.05))
    with retry_policy(replace(QUICK, tries=30)):
        job = in_three_stages(store, shape, "12kB" if sharded else "4kB", executor="serial")
        job.execute()
    exact(content)
    assert job.report is not None
    assert job.report.retries == 0, "no task is run again for it"
    assert store.seen.failed > 100
    assert store.seen.truncated > 8
    assert store.seen.hidden > 0


@pytest.mark.parametrize("stage", [1, 2])
def test_an_object_of_pieces_that_is_lost_in_the_middle_is_an_error_and_resume_makes_it_again(stage: int) -> None:
    content = MemoryStore({})
    source = make_array(content, LONG, (1, 60), name="source")
    store = FaultyStore(content, Faults(loses=f"temp-{stage}/c/1/0"))
    with retry_policy(RetryPolicy(tries=3, first_wait_s=0.001)):
        with pytest.raises(rx.TaskError, match=rf"temp-{stage}/c/1/0 .*not there; it was tried 3 times") as failed:
            in_three_stages(store, executor="serial").execute()
        assert failed.value.stage == stage
        store.faults = Faults()
        (key,) = [key for key in content._store_dict if key.endswith(f"temp-{stage}/c/1/0")]
        del content._store_dict[key]
        again = in_three_stages(store, executor="serial", mode="resume")
        assert_exact(again.execute(), source)
    assert again.report is not None
    assert again.report.tasks < again.plan.tasks
    exact(content)


def test_the_longer_waits_of_every_day(tmp_path: Path) -> None:
    content = MemoryStore({})
    source_in(content)
    job = rechunk(FaultyStore(content, Faults(seed=3, fails=0.05, truncates=0.05)), TWO, "threads")
    job.execute()
    exact(content)
    assert job.report is not None
    assert job.report.store_retries > 0


def test_worker_processes_have_faults_of_their_own(tmp_path: Path) -> None:
    content = LocalStore(tmp_path)
    source_in(content)
    store = FaultyStore(content, Faults(seed=5, fails=0.1, truncates=0.1))
    with ProcessesExecutor(1) as pool:
        job = rechunk(pickle.loads(pickle.dumps(store)), TWO, pool)
        job.execute()
    assert_exact(zarr.open_array(content, path="target"), zarr.open_array(content, path="source"))
    assert job.report is not None
    assert job.report.store_retries > 0


@pytest.mark.parametrize("how", [ONE, TWO], ids=["one stage", "two stages"])
def test_what_goes_through_zarr_is_tried_again_too(how: tuple[Any, str]) -> None:
    content = MemoryStore({})
    source_in(content, "zarr")
    store = FaultyStore(content, Faults(seed=11, fails=0.15, truncates=0.15))
    with retry_policy(QUICK):
        job = rechunk(store, (how[0], "600kB" if how == ONE else "150kB"), "serial")
        assert len(job.stages) == (1 if how == ONE else 2)
        job.execute()
    exact(content)
    assert job.report is not None
    assert all(path.endswith("zarr -> zarr") for path in job.report.codec_paths)
    assert job.report.store_retries > 0


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("layout", ["direct", "zarr"])
def test_objects_that_do_not_show_at_once_are_not_taken_for_fill_value(layout: str, sparse: bool) -> None:
    content = MemoryStore({})
    source_in(content, layout, sparse=sparse)
    store = FaultyStore(content, Faults(hides_s=0.4))
    job = rechunk(store, (TWO[0], "30kB" if layout == "direct" else "150kB"), "threads")
    assert len(job.stages) == 2
    job.execute()
    exact(content)
    assert store.seen.hidden > 0
    assert job.report is not None
    assert job.report.store_retries > 0


@pytest.mark.parametrize("layout", ["direct", "zarr"])
def test_an_intermediate_object_that_is_lost_is_an_error(layout: str) -> None:
    content = MemoryStore({})
    source_in(content, layout)
    store = FaultyStore(content, Faults(loses="temp-1/c/0/0/0"))
    with retry_policy(RetryPolicy(tries=3, first_wait_s=0.001)):
        job = rechunk(store, (TWO[0], "30kB" if layout == "direct" else "150kB"), "serial")
        with pytest.raises(rx.TaskError, match=r"temp-1/c/0/0/0 .*not there; it was tried 3 times"):
            job.execute()


@pytest.mark.parametrize("denied,verb", [("source/c/0/0/0", "read"), ("target/c/0/0/0", "write")])
def test_denied_access_fails_at_once_and_names_key_and_store(denied: str, verb: str) -> None:
    content = MemoryStore({})
    source_in(content, "zstd")
    store = FaultyStore(content)
    job = rechunk(store, ONE, "threads")
    store.faults = Faults(denies=denied)
    store.seen.requests.clear()
    events: list[str] = []
    with pytest.raises(rx.TaskError, match=rf"cannot {verb} {denied} .*wrapping-memory.*denied") as caught:
        job.execute(on_event=lambda event: events.append(event.kind))
    assert "retry" not in events
    assert isinstance(caught.value.__cause__, rx.StorageError)
    assert caught.value.__cause__.permanent
    assert [key for _, key in store.seen.requests].count(denied) == 1


def test_denied_access_to_the_source_is_told_while_planning() -> None:
    content = MemoryStore({})
    source_in(content, "zstd")
    store = FaultyStore(content, Faults(denies="source/c/0/0/0"))
    with pytest.raises(rx.StorageError, match=r"cannot look at source/c/0/0/0 of .*wrapping-memory.*denied") as caught:
        rechunk(store, ONE)
    assert caught.value.permanent
    assert [key for _, key in store.seen.requests].count("source/c/0/0/0") == 1


def test_a_store_that_is_away_is_named_after_the_tries() -> None:
    content = MemoryStore({})
    source_in(content)
    store = FaultyStore(content, Faults())
    with retry_policy(RetryPolicy(tries=3, first_wait_s=0.001)):
        job = rechunk(store, ONE, "serial")

        def hear(event: Any) -> None:
            store.faults = Faults(fails=1.0)

        with pytest.raises(rx.TaskError, match=r"source.*wrapping-memory.*it was tried 3 times"):
            job.execute(on_event=hear)


def test_damaged_bytes_are_read_once(tmp_path: Path) -> None:
    content = MemoryStore({})
    source_in(content)
    key = "source/c/5/0/0"
    whole = content._store_dict[key]
    content._store_dict[key] = whole.from_bytes(whole.to_bytes()[:100])
    store = FaultyStore(content, Faults())
    job = rechunk(store, ONE, "threads")
    store.seen.requests.clear()
    with pytest.raises(rx.TaskError, match=r"torn.*c/5/0/0 of") as caught:
        job.execute()
    assert "is not tried again" in str(caught.value)
    assert [name for _, name in store.seen.requests].count(key) == 1
