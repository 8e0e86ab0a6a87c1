"""Probes of arrays of every kind: what comes of them, and that nothing is left of them."""

from __future__ import annotations

import itertools
import math
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.codecs import BloscCodec
from zarr.storage import LocalStore, MemoryStore

import rechunk_exec as rx
from rechunk_exec import storage
from rechunk_exec.executors import available_cores
from rechunk_exec.measuring import sampling, tiny
from rechunk_exec.measuring.moving import Mover
from rechunk_exec.measuring.place import ProbePlace
from tests.conftest import needed_module
from tests.jobs import Shape, assert_exact, make_array, snapshot
from tests.s3 import Bucket

SHAPE = (12, 60, 50)
EPOCHS = (1, 60, 50)
SERIES = (12, 10, 10)
START_S = 0.375


@pytest.fixture(autouse=True)
def no_processes(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Worker processes take seconds to start; one test starts some."""
    if "real_processes" not in request.fixturenames:
        monkeypatch.setattr(tiny, "start_seconds", lambda workers: START_S)


@pytest.fixture
def real_processes() -> None:
    """Asks for what :func:`no_processes` leaves out."""


def measure(source: object, *arguments: Any, **options: Any) -> rx.CostModel:
    model = rx.measure(source, *arguments, **{"seconds": 0.05, "target_chunks": SERIES, **options})
    assert model.name == "measured"
    assert model.notes
    assert model.worker_start_s == START_S
    again = rx.CostModel.from_json(model.to_json())
    assert again == model
    return model


def files(folder: Path) -> dict[str, tuple[int, bytes]]:
    """What is in a folder; a folder's time changes when something comes and goes."""
    return {name: (0 if (folder / name).is_dir() else time, held) for name, (time, held) in snapshot(folder).items()}


# What it is good for.


def test_a_model_is_saved_and_given_again(tmp_path: Path) -> None:
    source = make_array(tmp_path / "source.zarr", SHAPE, EPOCHS, compressors=BloscCodec())
    target = tmp_path / "target.zarr"
    model = measure(source, target, target_shards=(12, 20, 20))
    (tmp_path / "model.json").write_text(model.to_json())
    given = rx.CostModel.from_json((tmp_path / "model.json").read_bytes())
    job = rx.rechunk(source, SERIES, "1MB", target, target_shards=(12, 20, 20), cost_model=given, progress=False)
    assert_exact(job.execute(), source)
    assert job.report is not None
    assert [time.predicted_s for time in job.report.stage_times] == [stage.predicted_s for stage in job.plan.stages]
    other = rx.rechunk(source, SERIES, "1MB", tmp_path / "other.zarr", target_shards=(12, 20, 20)).plan
    assert other.predicted_s != job.plan.predicted_s


def test_rates_are_of_what_was_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # All that is read and written takes what a clock says that only they move.
    source = make_array(tmp_path / "source.zarr", SHAPE, EPOCHS, compressors=BloscCodec())
    read, write = Mover.read, Mover.write
    took = {"read": 0.125, "write": 0.5}

    def slow_read(self: Mover, reader: Any, region: Any, limit_s: float, phase: Any) -> float:
        share = read(self, reader, region, 1e9, phase)
        phase.seconds = took["read"] * phase.nbytes / source.nbytes
        return share

    def slow_write(self: Mover, writer: Any, region: Any, limit_s: float, phase: Any) -> None:
        write(self, writer, region, 1e9, phase)
        phase.seconds = took["write"] * phase.nbytes / source.nbytes

    monkeypatch.setattr(Mover, "read", slow_read)
    monkeypatch.setattr(Mover, "write", slow_write)
    monkeypatch.setattr(tiny, "read_seconds", lambda *_: 0.0)
    monkeypatch.setattr(tiny, "write_seconds", lambda *_: 0.0)
    model = measure(source, tmp_path / "target.zarr")
    assert model.decode_bps == pytest.approx(source.nbytes / took["read"], rel=1e-3)
    assert model.encode_bps == pytest.approx(source.nbytes / took["write"], rel=1e-3)
    assert (model.raw_read_bps, model.raw_write_bps) == (model.decode_bps, model.encode_bps)
    assert model.operation_s == 0


def test_operations_are_not_counted_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Small operations that take longer than all of a phase leave a fifth of it to the bytes, and no negative rate.
    source = make_array(tmp_path / "source.zarr", SHAPE, EPOCHS, compressors=BloscCodec())
    monkeypatch.setattr(tiny, "read_seconds", lambda *_: 10.0)
    monkeypatch.setattr(tiny, "write_seconds", lambda *_: 10.0)
    model = measure(source, tmp_path / "target.zarr")
    assert 0 < model.operation_s < 1
    assert 0 < model.decode_bps < 1e12


def test_it_stands_for_the_cores_it_was_measured_with(tmp_path: Path) -> None:
    source = make_array(tmp_path / "source.zarr", SHAPE, EPOCHS)
    one = measure(source, tmp_path / "target.zarr", cores=1)
    assert (one.cores, one.in_flight, one.in_flight_scales, one.helpful_in_flight) == (1, 1, True, None)
    assert one.scaled(4).decode_bps == pytest.approx(4 * one.decode_bps)


def test_cores_that_are_not_there_start_no_processes_and_few_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make_array(tmp_path / "source.zarr", SHAPE, EPOCHS)
    processes: list[int] = []
    threads: list[int] = []
    seconds_each = tiny._seconds_each

    def start(workers: int) -> float:
        processes.append(workers)
        return START_S

    def timed(do: Any, count: int, limit_s: float) -> float:
        threads.append(count)
        return seconds_each(do, count, limit_s)

    monkeypatch.setattr(tiny, "start_seconds", start)
    monkeypatch.setattr(tiny, "_seconds_each", timed)
    many = available_cores() + 1000
    model = measure(source, tmp_path / "target.zarr", cores=many)
    assert model.cores == many
    assert processes == [available_cores()]
    assert max(threads) == max(64, available_cores())


@pytest.mark.usefixtures("real_processes")
def test_real_worker_processes_are_started(tmp_path: Path) -> None:
    source = make_array(tmp_path / "source.zarr", SHAPE, EPOCHS)
    model = rx.measure(source, tmp_path / "target.zarr", seconds=0.05, cores=1)
    assert model.worker_start_s > 0.01
    for executor, starts in (("threads", False), ("processes", True)):
        target = tmp_path / f"{executor}.zarr"
        job = rx.rechunk(source, SERIES, "1MB", target, executor=executor, cost_model=model, progress=False)
        assert_exact(job.execute(), source)
        assert job.report is not None
        assert job.report.start_predicted_s == (model.worker_start_s if starts else 0)
        assert job.report.predicted_s == pytest.approx(job.plan.predicted_s + job.report.start_predicted_s)


@pytest.mark.usefixtures("real_processes")
def test_processes_that_cannot_start_are_no_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    assert tiny.start_seconds(2) == 0


# Arrays of every kind.


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize(
    "shape, chunks, dtype",
    [
        ((), (), "f8"),
        ((1,), (1,), "u1"),
        ((7,), (100,), "i2"),
        ((5, 3), (2, 3), ">f4"),
        ((3, 4, 5), (1, 4, 5), "c16"),
        ((6, 4), (1, 4), "U3"),
        ((4, 3), (2, 2), "bool"),
        ((300, 2), (1, 2), "f4"),
        pytest.param((3000, 2), (1, 2), "f4", marks=pytest.mark.long),
    ],
    ids=str,
)
def test_kinds_of_arrays(tmp_path: Path, zarr_format: int, shape: Shape, chunks: Shape, dtype: str) -> None:
    source = make_array(tmp_path / "source.zarr", shape, chunks, dtype, zarr_format=zarr_format)
    before = files(tmp_path)
    model = measure(source, tmp_path / "target.zarr", target_chunks=-1)
    assert files(tmp_path) == before
    plan = rx.rechunk(source, -1, "1MB", tmp_path / "target.zarr", cost_model=model).plan
    assert 0 < plan.predicted_s < 1000


def test_strings_of_any_length(tmp_path: Path) -> None:
    source = make_array(tmp_path / "source.zarr", (6, 5), (1, 5), np.dtypes.StringDType())
    before = files(tmp_path)
    assert measure(source, tmp_path / "target.zarr", target_chunks=(6, 1)).decode_bps > 0
    assert files(tmp_path) == before


@pytest.mark.parametrize("shape", [(0,), (5, 0, 3)])
def test_an_array_without_elements_gives_a_preset(tmp_path: Path, shape: Shape) -> None:
    source = make_array(tmp_path / "source.zarr", shape, (2,) * len(shape))
    model = measure(source, tmp_path / "target.zarr", target_chunks=None, cores=2)
    assert replace(model, name="local", notes=(), worker_start_s=0.0) == rx.CostModel.local()
    assert model.notes == ("the array is empty: all figures but worker_start_s are those of a preset",)


@pytest.mark.parametrize("shards", [None, (4, 30, 50)])
def test_absent_chunks_are_said_to_be_so(tmp_path: Path, shards: Shape | None) -> None:
    options: dict[str, Any] = {"shape": SHAPE, "chunks": (1, 30, 50), "shards": shards, "dtype": "f4"}
    source = zarr.create_array(tmp_path / "source.zarr", fill_value=7.0, **options)
    note = "all chunks that were sampled are absent: decode_bps is the rate of filling memory"
    assert note in measure(source, tmp_path / "target.zarr").notes
    source[...] = 1.0
    assert note not in measure(source, tmp_path / "target.zarr").notes


def test_shards_of_the_source_and_the_target(tmp_path: Path) -> None:
    source = make_array(tmp_path / "source.zarr", SHAPE, (1, 30, 50), shards=(6, 60, 50))
    assert measure(source, tmp_path / "target.zarr", target_shards=(12, 30, 50)).encode_bps > 0


def test_without_chunks_the_source_s_are_kept(tmp_path: Path) -> None:
    source = make_array(tmp_path / "source.zarr", SHAPE, EPOCHS)
    assert measure(source, target_chunks=None).encode_bps > 0


@pytest.mark.parametrize("max_mem, stages", [("90kB", 2), ("1MB", 1)])
def test_what_intermediates_would_be_is_written_and_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, max_mem: str, stages: int
) -> None:
    source = make_array(tmp_path / "source.zarr", (40, 60, 50), (1, 60, 50), compressors=BloscCodec(blocksize=1 << 20))
    made = created(monkeypatch)
    temp = tmp_path / "scratch"
    temp.mkdir()
    before = files(tmp_path)
    quick = {"target_chunks": (40, 6, 5), "max_mem": max_mem, "temp_store": temp}
    model = measure(source, tmp_path / "target.zarr", **quick)
    assert files(tmp_path) == before
    inside = [ref for ref, design in made if Path(str(ref.store)).is_relative_to(temp)]
    assert len(inside) == 1
    assert {model.raw_read_bps, model.raw_write_bps}.isdisjoint({2.0e9, 1.5e9})
    assert max(1, stages - 1) == len(inside)


def created(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, storage.Design]]:
    """What probes create from now on."""
    made: list[tuple[Any, storage.Design]] = []
    create = ProbePlace.create

    def noting(self: ProbePlace, design: storage.Design, name: str) -> Any:
        ref = create(self, design, name)
        made.append((ref, design))
        return ref

    monkeypatch.setattr(ProbePlace, "create", noting)
    return made


def test_of_an_intermediate_of_tiny_pieces_some_are_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = make_array(tmp_path / "source.zarr", (150, 150), (150, 150))
    made = created(monkeypatch)
    measure(source, MemoryStore(), target_chunks=(1, 1))
    (pieces,) = (math.prod(design.like.shape) for ref, design in made if ref.path.endswith("temp-1"))
    assert 1000 < pieces <= 4096


def test_a_write_unit_is_completed_before_its_first_planes_are_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make_array(tmp_path / "source.zarr", (100, 20, 20), (1, 20, 20))
    shares: list[float] = []
    ticks = itertools.count()
    monkeypatch.setattr(Mover, "clock", staticmethod(lambda: next(ticks) / 1000))
    monkeypatch.setattr(sampling, "repeat_first", lambda share, region: shares.append(share))
    measure(source, tmp_path / "target.zarr", target_chunks=(100, 10, 10), seconds=1.0, cores=1)
    assert shares
    assert set(shares) == {1.0}, "reading all planes takes 0.1 s"


# Where it writes.


def test_the_source_is_only_read_and_its_neighbours_are_left_alone(tmp_path: Path) -> None:
    source = make_array(tmp_path / "frames" / "source.zarr", SHAPE, EPOCHS)
    readable = zarr.open_array(LocalStore(tmp_path / "frames" / "source.zarr", read_only=True), mode="r")
    (tmp_path / "there").mkdir()
    make_array(tmp_path / "there" / "target.zarr", (3,), (1,))
    (tmp_path / "there" / ".target.zarr.0.rechunk_exec-probe").write_text("somebody else's")
    before = files(tmp_path)
    for target in (tmp_path / "there" / "target.zarr", tmp_path / "not" / "yet" / "target.zarr"):
        measure(readable, target)
        assert files(tmp_path) == before
    assert source.shape == readable.shape


def test_without_a_target_it_writes_to_the_system_s_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make_array(tmp_path / "source.zarr", SHAPE, EPOCHS)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    made = created(monkeypatch)
    before = files(tmp_path)
    model = measure(source)
    assert files(tmp_path) == before
    assert {storage.local_path(ref).parents[1] for ref, _ in made} == {tmp_path / "temporary"}  # type: ignore[union-attr]
    assert f"the target was written in the system's temporary folder {tmp_path / 'temporary'}" in model.notes


def test_a_source_in_memory(tmp_path: Path) -> None:
    source = make_array(MemoryStore(), SHAPE, EPOCHS)
    model = measure(source, tmp_path / "target.zarr")
    assert "the source was read from its store" in model.notes


class InjectedError(Exception):
    """On purpose."""


def test_nothing_is_left_when_it_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = make_array(tmp_path / "source.zarr", SHAPE, EPOCHS)
    before = files(tmp_path)

    def fail(*_: object, **__: object) -> None:
        raise InjectedError

    monkeypatch.setattr(Mover, "write", fail)
    with pytest.raises(InjectedError):
        measure(source, tmp_path / "target.zarr")
    assert files(tmp_path) == before


@pytest.mark.parametrize("target", [True, False])
def test_s3(s3: Bucket, target: bool) -> None:
    source = make_array(s3.store("source.zarr"), SHAPE, EPOCHS, compressors=BloscCodec())
    before = s3.contents()
    model = measure(s3.url("source.zarr"), s3.url("there/target.zarr") if target else None)
    assert s3.contents() == before
    assert (model.helpful_in_flight or 0) in {1, 2, 4, 8, 16, 32, 64}
    assert not model.in_flight_scales
    assert model.operation_s > 0
    assert "the source was read from its store" in model.notes
    assert any(("beside the target" in note) == target for note in model.notes if note.startswith("the target was"))
    if target:
        job = rx.rechunk(
            s3.url("source.zarr"), SERIES, "1MB", s3.url("there/target.zarr"), cost_model=model, progress=False
        )
        assert_exact(job.execute(), source)


def test_intermediates_on_s3_are_written_as_the_plan_says(s3: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    make_array(s3.store("source.zarr"), (64, 64, 64), (1, 64, 64), compressors=BloscCodec(blocksize=1 << 20))
    made = created(monkeypatch)
    measure(
        s3.url("source.zarr"), s3.url("target.zarr"), target_chunks=(64, 2, 2), target_shards=(64, 16, 16),
        max_mem="230kB", temp_store=s3.url("scratch"),
    )  # fmt: skip
    temps = [design.like for ref, design in made if "/scratch/" in f"{ref.store}/{ref.path}"]
    assert temps
    assert any(like.write_unit != like.chunk for like in temps), "one object for each task that writes it"
    assert set(s3.contents()) == {key for key in s3.contents() if key.startswith("source.zarr/")}


def test_icechunk_keeps_what_is_written_so_nothing_is(tmp_path: Path) -> None:
    icechunk = needed_module("icechunk")
    source = make_array(tmp_path / "source.zarr", SHAPE, EPOCHS)
    repository = icechunk.Repository.create(icechunk.local_filesystem_storage(str(tmp_path / "repository")))
    session = repository.writable_session("main")
    model = measure(source, session.store)
    assert not session.has_uncommitted_changes
    assert any("in the system's temporary folder" in note for note in model.notes)


# What is refused.


def test_too_little_memory_is_refused(tmp_path: Path) -> None:
    source = make_array(tmp_path / "source.zarr", SHAPE, EPOCHS)
    before = files(tmp_path)
    with pytest.raises(rx.BudgetError) as error:
        measure(source, tmp_path / "target.zarr", max_mem=10)
    assert files(tmp_path) == before
    measure(source, tmp_path / "target.zarr", max_mem=error.value.needed_bytes)


@pytest.mark.parametrize(
    "options, error, message",
    [
        ({"seconds": 0}, rx.PlanError, "seconds must be positive and finite; got 0"),
        ({"seconds": float("nan")}, rx.PlanError, "seconds must be positive and finite; got nan"),
        ({"seconds": float("inf")}, rx.PlanError, "seconds must be positive and finite; got inf"),
        ({"cores": 0}, ValueError, "cores must be at least 1; got 0"),
        ({"cores": 5000}, rx.PlanError, "cores must be at most 4096; got 5000"),
        ({"max_mem": "auto"}, rx.PlanError, "max_mem must be a number of bytes; got 'auto'"),
        ({"target_chunks": (1, 0, 1)}, rx.PlanError, "0"),
    ],
)
def test_wrong_arguments(tmp_path: Path, options: dict[str, Any], error: type[Exception], message: str) -> None:
    source = make_array(tmp_path / "source.zarr", SHAPE, EPOCHS)
    with pytest.raises(error, match=message):
        rx.measure(source, tmp_path / "target.zarr", **options)


def test_a_source_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(rx.StorageError, match=r"nowhere\.zarr"):
        rx.measure(tmp_path / "nowhere.zarr")
