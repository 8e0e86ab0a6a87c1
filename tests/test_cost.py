import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import rechunk_exec as rx
from rechunk_exec.cost import CostModel, StageWork, resolve
from rechunk_exec.errors import PlanError, SerializationError

WORK = StageWork(decoded_bytes=6 * 10**9, written_bytes=3 * 10**9, operations=4000, source="source", target="target")


def test_seconds_of_a_direct_stage_are_bytes_at_their_rates_plus_operations() -> None:
    assert CostModel.local().stage_seconds(WORK) == 6e9 / 2.0e9 + 3e9 / 0.8e9 + 4000 * 1e-4 / 2
    assert CostModel.object().stage_seconds(WORK) == 6e9 / 32e9 + 3e9 / 12.8e9 + 4000 * 0.020 / 64


def test_intermediates_have_rates_of_their_own() -> None:
    model = replace(CostModel.local(), raw_read_bps=5e9)
    assert model.stage_seconds(replace(WORK, target="temp-1")) == 6e9 / 2.0e9 + 3e9 / 1.5e9 + 4000 * 1e-4 / 2
    assert model.stage_seconds(replace(WORK, source="temp-1")) == 6e9 / 5e9 + 3e9 / 0.8e9 + 4000 * 1e-4 / 2


@pytest.mark.parametrize("idle", [1.0, 8 / 5, 4.0])
def test_a_last_wave_with_idle_workers_costs_its_share(idle: float) -> None:
    alone = CostModel.local().stage_seconds(WORK)
    assert CostModel.local().stage_seconds(replace(WORK, idle=idle)) == pytest.approx(alone * idle, rel=1e-12)


def test_a_stage_takes_time_to_start_where_there_are_several_slots() -> None:
    model = replace(CostModel.local(), stage_s=0.5)
    assert replace(model, tasks_at_once=2).stage_seconds(WORK) == model.stage_seconds(WORK) + 0.5


def test_fewer_threads_than_wanted_cost_time() -> None:
    model = CostModel.local()
    waiting = WORK.operations * model.operation_s / model.in_flight
    moving = model.stage_seconds(WORK) - waiting
    assert model.stage_seconds(replace(WORK, slowdown=2.0)) == pytest.approx(2 * moving + waiting, rel=1e-12)
    assert model.stage_seconds(replace(WORK, waiting=8.0)) == pytest.approx(moving + 8 * waiting, rel=1e-12)


def test_scaling_to_other_cores() -> None:
    local, store = CostModel.local().scaled(8), CostModel.object().scaled(8)
    assert (local.decode_bps, local.encode_bps, local.raw_read_bps, local.raw_write_bps) == (8e9, 3.2e9, 8e9, 6e9)
    assert (local.in_flight, local.cores) == (8, 8)
    assert (store.decode_bps, store.in_flight, store.cores) == (8e9, 64, 8), "an object store sets its own limit"
    assert CostModel.local().scaled(1).in_flight == 1
    assert CostModel.local().scaled(2) == CostModel.local()


def test_presets_by_name() -> None:
    assert resolve("local") == CostModel.local()
    assert resolve("object") == CostModel.object()
    mine = replace(CostModel.local(), name="mine")
    assert resolve(mine) is mine
    wrongs: list[Any] = ["disk", None, 3, ["local"]]
    for wrong in wrongs:
        with pytest.raises(PlanError, match="'local', 'object' or a CostModel"):
            resolve(wrong)


@pytest.mark.parametrize("name, value", [("decode_bps", 0), ("encode_bps", -1.0), ("in_flight", 0), ("cores", 0)])
def test_rates_that_are_not_positive_are_refused(name: str, value: Any) -> None:
    with pytest.raises(PlanError, match=name):
        replace(CostModel.local(), **{name: value})
    with pytest.raises(PlanError, match="operation_s"):
        replace(CostModel.local(), operation_s=-1e-9)
    with pytest.raises(PlanError, match="at least one core"):
        CostModel.local().scaled(0)


def test_intermediates_are_compressed_where_their_store_is_slow() -> None:
    local = CostModel.local()
    assert local.with_temp(compressed=False) is local
    assert not local.compresses_temp
    slow = [replace(local, temp_bps=bps).compresses_temp for bps in (1e7, 1e8, 5e8, 3e9, 1e11)]
    assert slow == [True, True, True, False, False]
    noise = replace(local, temp_bps=1e8, temp_ratio=1.05)
    assert not noise.compresses_temp
    rates = replace(local, temp_bps=3e8, temp_ratio=2.0).with_temp(compressed=True)
    assert rates.raw_write_bps == pytest.approx(6e8)
    with pytest.raises(PlanError, match="temp_bps"):
        replace(local, temp_bps=0.0)
    with pytest.raises(PlanError, match="temp_ratio"):
        replace(local, temp_ratio=0.5)


def test_models_as_json() -> None:
    mine = replace(CostModel.object(), name="mine", helpful_in_flight=8, worker_start_s=1.5, notes=("one", "two"))
    assert CostModel.from_json(mine.to_json()) == mine
    assert CostModel.from_json(mine.to_json().encode()) == mine
    before = json.loads(CostModel.local().to_json())
    for name in ("helpful_in_flight", "worker_start_s", "fresh_bps", "notes", "temp_bps", "stage_s"):
        del before[name]  # of a version that did not have these yet
    assert CostModel.from_json(json.dumps(before)) == CostModel.local()
    for wrong in ("", "[]", json.dumps(before | {"decode_bps": -1.0}), json.dumps(before | {"decode": 1.0})):
        with pytest.raises(SerializationError):
            CostModel.from_json(wrong)


def test_what_was_measured_of_the_store_bounds_what_is_under_way() -> None:
    measured = replace(CostModel.object(), in_flight=2, helpful_in_flight=32)
    assert [measured.running(tasks, units).in_flight for tasks, units in ((1, 1), (2, 8), (16, 8))] == [1, 16, 32]
    assert CostModel.object().running(1, 1) == CostModel.object()
    assert measured.running(16, 8).tasks_at_once == 16


@pytest.mark.parametrize(
    "name, value", [("helpful_in_flight", 0), ("fresh_bps", 0.0), ("worker_start_s", -1.0), ("stage_s", -0.1)]
)
def test_measured_figures_that_cannot_be_are_refused(name: str, value: Any) -> None:
    with pytest.raises(PlanError, match=name):
        replace(CostModel.local(), **{name: value})


@pytest.mark.parametrize(
    "name, value",
    [
        *(
            ("decode_bps", wrong)
            for wrong in (math.nan, math.inf, True, np.True_, "2e9", None, 1j, np.ones(2), 10**400)
        ),
        *(("temp_bps", wrong) for wrong in (math.nan, math.inf, False)),
        *(("operation_s", wrong) for wrong in (math.nan, math.inf, np.float64("nan"), True, None)),
        *(("cores", wrong) for wrong in (1.5, 2.0, math.inf, True, np.True_, np.float64(2), "2", None)),
        *(("helpful_in_flight", wrong) for wrong in (2.5, True, math.inf)),
        *(("temp_ratio", wrong) for wrong in (math.nan, math.inf, True, None)),
    ],
)
def test_figures_that_are_no_finite_numbers_are_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(PlanError, match=rf"CostModel\.{name} must be .*; got"):
        replace(CostModel.local(), **{name: value})


RATES = ("decode_bps", "encode_bps", "raw_read_bps", "raw_write_bps", "temp_bps", "fresh_bps")
LARGE = ("decode_bps", "operation_s", "stage_s", "deeper_s", "worker_start_s", "temp_ratio")
COUNTS = ("in_flight", "cores", "tasks_at_once", "helpful_in_flight")


@pytest.mark.parametrize(
    "name, value",
    [
        *((name, 1e-300) for name in RATES),
        *((name, 1e300) for name in LARGE),
        *((name, 2**63) for name in COUNTS),
    ],
)
def test_figures_of_which_no_plan_could_be_written_are_refused_by_name(name: str, value: Any) -> None:
    # The predicted times had no place in a document, so that the plan's JSON was refused, or they were no numbers.
    with pytest.raises(PlanError, match=rf"CostModel\.{name} must be .*; got"):
        replace(CostModel.local(), **{name: value})


@pytest.mark.parametrize(
    "name, value",
    [
        *((name, 1e-100) for name in RATES),
        *((name, 1e100) for name in LARGE),
        *((name, 2**63 - 1) for name in COUNTS),
    ],
)
def test_a_plan_by_figures_that_are_taken_is_read_from_its_json(name: str, value: Any) -> None:
    model = replace(CostModel.local(), **{name: value})
    assert CostModel.from_json(model.to_json()) == model
    plan = rx.plan_rechunk((400, 6000, 6000), 4, (1, 100, 100), (400, 20, 20), 10**7, cost_model=model)
    assert rx.Plan.from_json(plan.to_json()) == plan
    assert plan.explain()


def test_numbers_of_numpy_are_taken_as_those_of_python() -> None:
    floats: dict[str, Any] = {"decode_bps": np.float32(2e9), "encode_bps": np.float64(8e8), "temp_bps": np.int64(5)}
    counts: dict[str, Any] = {"in_flight": np.int64(2), "cores": np.uint8(2)}
    model = replace(CostModel.local(), **floats, **counts)
    assert model == replace(CostModel.local(), temp_bps=5.0)
    assert {type(getattr(model, name)) for name in floats} == {float}
    assert (type(model.in_flight), type(model.cores)) == (int, int)
    assert CostModel.from_json(model.to_json()) == model
    assert replace(model, raw_read_bps=2_000_000_000) == model, "integers are rates too"


def test_fresh_memory_takes_time_where_that_was_measured() -> None:
    assert CostModel.local().fresh_s(10**12) == 0
    measured = replace(CostModel.local(), fresh_bps=1e9)
    assert (measured.fresh_s(2 * 10**9), measured.scaled(8).fresh_s(2 * 10**9)) == (2.0, 0.5)
