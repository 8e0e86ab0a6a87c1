import html
import itertools
import json
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rechunk_exec.errors import PlanError, SerializationError
from rechunk_exec.grid import clip
from rechunk_exec.memory import PROCESS_BYTES, RESULT_BYTES
from rechunk_exec.planning import plan_rechunk
from rechunk_exec.plans import Alternative, Plan
from rechunk_exec.sizes import bytes_text, format_bytes
from rechunk_exec.stageplan import StagePlan
from tests import oracles

STAGE = StagePlan(
    shape=(10, 8),
    itemsize=4,
    source="source",
    target="target",
    read_unit=(1, 8),
    write_unit=(10, 2),
    chunk=(5, 2),
    region=(10, 4),
    threads=2,
    tasks_per_worker=3,
    peak_bytes=600,
    predicted_s=0.1,
)

axes = st.lists(st.tuples(st.integers(0, 6), st.integers(1, 7), st.integers(1, 7), st.integers(1, 3)), max_size=3)


@settings(max_examples=200)
@given(axes)
@example([])
@example([(0, 2, 2, 1), (5, 2, 3, 1)])
@example([(5, 7, 7, 1)])
def test_figures_equal_counts_of_elements(sizes: list[tuple[int, int, int, int]]) -> None:
    shape = tuple(n for n, *_ in sizes)
    write_unit = clip(tuple(b for _, _, b, _ in sizes), shape)
    stage = replace(
        STAGE,
        shape=shape,
        read_unit=clip(tuple(a for _, a, *_ in sizes), shape),
        write_unit=write_unit,
        chunk=write_unit,
        region=clip(tuple(b * k for _, _, b, k in sizes), shape),
    )
    if 0 in shape:
        figures = (stage.tasks, stage.read_units, stage.objects, stage.operations, stage.elements_read, stage.traffic)
        assert figures == (0, 0, 0, 0, 0, 0.0)
        return
    counts = oracles.stage_counts(shape, stage.read_unit, stage.write_unit, stage.region)
    assert stage.tasks == counts.tasks
    assert stage.read_units == counts.read_units
    assert stage.elements_read == counts.elements_read
    assert stage.objects == stage.write_units == counts.write_units
    assert stage.operations == counts.read_units + counts.write_units
    assert stage.elements == counts.elements_written
    assert stage.traffic == (counts.elements_read + counts.elements_written) / counts.elements_written
    filled = np.zeros(shape, dtype=int)
    for index in range(stage.tasks):
        start, stop = stage.box(index)
        filled[tuple(slice(a, b) for a, b in zip(start, stop, strict=True))] += 1
    assert (filled == 1).all()
    for index in (-1, stage.tasks):
        with pytest.raises(IndexError):
            stage.box(index)


def test_units_that_restart_are_counted_from_each_chunk() -> None:
    stage = replace(
        STAGE, shape=(2, 14), read_unit=(1, 3), write_unit=(2, 4), chunk=(2, 4), region=(2, 4), restart=(0, 7)
    )
    # Units of 3, 3, 1, 3, 3 and 1 elements. Each of the boundaries at 4, 8 and 12 is taken to cut one.
    assert (stage.read_units, stage.elements_read) == (2 * (6 + 3), 2 * (14 + 3 * 3))
    assert replace(stage, region=(2, 14)).elements_read == 28
    for restart in ((0,), (0, 2)):
        with pytest.raises(PlanError, match="restart"):
            replace(stage, restart=restart)


def test_boxes_are_in_c_order() -> None:
    stage = replace(STAGE, write_unit=(5, 4), region=(5, 4))
    corners = [stage.box(index)[0] for index in range(stage.tasks)]
    assert corners == list(itertools.product((0, 5), (0, 4)))


def test_one_task_has_its_part_of_the_peak() -> None:
    assert STAGE.tasks_at_once == STAGE.tasks == 2, "of three that could run"
    assert STAGE.task_bytes == 300
    large = replace(STAGE, shape=(10, 400), peak_bytes=600)
    assert large.task_bytes == 200
    assert STAGE.read_amplification == 2.0


@pytest.mark.parametrize("region", [(4, 4), (10, 3), (5, 8)])
def test_regions_that_share_a_write_unit_are_refused(region: tuple[int, int]) -> None:
    with pytest.raises(PlanError, match="whole write units") as refused:
        replace(STAGE, region=region)
    assert str(region) in str(refused.value)
    assert "(10, 2)" in str(refused.value)


@pytest.mark.parametrize("unit", ["read_unit", "write_unit", "region"])
def test_units_longer_than_the_array_are_refused(unit: str) -> None:
    for sizes in ((11, 8), (10, 2**62)):
        long: dict[str, Any] = {unit: sizes}
        with pytest.raises(PlanError, match="no longer than its array") as refused:
            replace(STAGE, **long)
        assert str(sizes) in str(refused.value)
    empty = replace(STAGE, shape=(0, 8), read_unit=(0, 8), write_unit=(0, 2), region=(0, 8))
    of_one: dict[str, Any] = {unit: (1, 8)}
    assert (empty.tasks, replace(empty, **of_one).tasks) == (0, 0)


def test_stages_need_whole_shapes_and_positive_counts() -> None:
    with pytest.raises(PlanError, match="one size per axis"):
        replace(STAGE, region=(10,))
    with pytest.raises(PlanError, match="at least one element"):
        replace(STAGE, read_unit=(0, 8))
    with pytest.raises(PlanError, match="at least 1"):
        replace(STAGE, threads=0)


def _two() -> Plan:
    first = replace(STAGE, target="temp-1", write_unit=(5, 4), chunk=(5, 4), region=(5, 8))
    second = replace(STAGE, source="temp-1", read_unit=(5, 4))
    return Plan(
        stages=(first, second),
        max_mem=700,
        alternatives=(Alternative.of("two stages", (first, second), chosen=True, why="chosen: it is a test"),),
    )


def test_a_plan_sums_its_stages() -> None:
    plan = _two()
    first, second = plan.stages
    assert plan.tasks == first.tasks + second.tasks == 4
    assert plan.operations == first.operations + second.operations
    assert plan.objects == 4 + 4
    assert plan.traffic == first.traffic + second.traffic
    assert plan.predicted_s == pytest.approx(0.2)
    assert plan.peak_bytes == 600
    assert plan.temp_bytes == 10 * 8 * 4
    assert Plan(stages=(STAGE,), max_mem=600).temp_bytes == 0


def test_a_middle_stage_holds_two_intermediates() -> None:
    first, second = _two().stages
    middle = replace(first, source="temp-1", target="temp-2", read_unit=(5, 4))
    plan = Plan(stages=(first, middle, replace(second, source="temp-2")), max_mem=700)
    assert plan.temp_bytes == 2 * 10 * 8 * 4


def test_plans_that_cannot_run_are_refused() -> None:
    first, second = _two().stages
    with pytest.raises(PlanError, match="at least one stage"):
        Plan(stages=(), max_mem=700)
    with pytest.raises(PlanError, match="each stage reads"):
        Plan(stages=(first, replace(second, source="temp-7")), max_mem=700)
    with pytest.raises(PlanError, match="at its ends"):
        Plan(stages=(first,), max_mem=700)
    with pytest.raises(PlanError, match="within max_mem"):
        Plan(stages=(STAGE,), max_mem=599)


def test_a_plan_travels_as_json() -> None:
    plan = plan_rechunk((30, 20), 4, (1, 20), (30, 5), "3kB")
    text = plan.to_json()
    assert Plan.from_json(text) == plan
    with pytest.raises(SerializationError):
        Plan.from_json(text.replace('"max_mem"', '"max_memory"'))


@pytest.mark.parametrize("max_mem", ["8GB", "2GB"])
def test_the_explanation_has_every_figure(max_mem: str) -> None:
    plan = plan_rechunk((389, 6898, 9618), 4, (1, 6898, 9618), (389, 64, 64), max_mem, target_shards=(389, 256, 256))
    text = plan.explain()
    assert text.startswith(str(plan))
    wanted: list[object] = [plan.tasks, plan.operations, plan.objects]
    wanted += map(bytes_text, [plan.peak_bytes, plan.max_mem] + [plan.temp_bytes] * bool(plan.temp_bytes))
    for stage in plan.stages:
        wanted += [stage.source, stage.target, stage.read_unit, stage.write_unit, stage.region, stage.tasks]
        wanted += [stage.read_units, stage.objects]
        wanted += map(bytes_text, [stage.elements_read * 4, stage.nbytes, stage.peak_bytes])
        wanted.append(format_bytes(stage.task_bytes))
        wanted += [f"{stage.read_amplification:.4g} times", stage.operations]
    wanted += [
        word for one in plan.alternatives for word in (one.name, one.operations, one.objects, one.tasks, one.why)
    ]
    missing = [word for word in wanted if str(word) not in text]
    assert not missing
    assert sum(line.startswith("* ") for line in text.splitlines()) == 1


def test_one_of_a_kind_is_in_the_singular() -> None:
    text = plan_rechunk((8, 8), 4, (8, 8), (8, 8), "1MB").explain()
    assert "1 task, 2 operations, 1 object written" in text
    assert "1 unit of (8, 8)" in text
    assert "1 tasks" not in text


# Plans that were edited by hand.

PLAN = Plan(
    stages=(
        replace(STAGE, target="temp-1", write_unit=(5, 8), region=(5, 8), chunk=(5, 8)),
        replace(STAGE, source="temp-1", read_unit=(5, 8)),
    ),
    max_mem=1000,
)


def edited(place: str, value: object) -> str:
    """The plan's JSON with one member replaced, such as ``stages.0.shape``; left out if the value is ``...``."""
    document = json.loads(PLAN.to_json())
    *way, last = place.split(".")
    inside = document
    for step in way:
        inside = inside[int(step) if step.isdigit() else step]
    inside[last] = value
    if value is ...:
        del inside[last]
    return json.dumps(document)


@pytest.mark.parametrize(
    "place,value,problem",
    [
        ("stages.0.region", [4, 8], "whole write units"),
        ("stages.1.write_unit", [10, 3], "whole write units"),
        ("stages.0.region", [0, 8], "at least one element"),
        ("stages.0.region", [-5, 8], "at least one element"),
        ("stages.0.chunk", [5], "one size per axis"),
        ("stages.0.shape", [-10, 8], "no negative sizes"),
        ("stages.0.shape", [20, 8], "each stage reads what the one before it wrote"),
        ("stages.0.itemsize", 8, "each stage reads what the one before it wrote"),
        ("stages.0.itemsize", 0, "at least 1"),
        ("stages.0.threads", 0, "at least 1"),
        ("stages.0.tasks_per_worker", -1, "at least 1"),
        ("stages.0.threads", 4097, "stages[0]: a document must ask for 4096 threads at most; got 4097"),
        ("stages.0.tasks_per_worker", 10**9, "4096 threads at most; got 1000000000"),
        ("stages.0.peak_bytes", -1, "at least 1"),
        ("stages.0.peak_bytes", 1001, "stays within max_mem"),
        ("stages.0.predicted_s", -1.0, "at least 0 seconds"),
        ("stages.0.predicted_s", "NaN", "at least 0 seconds"),
        ("stages.0.target", "temp-2", "each stage reads what the one before it wrote"),
        ("stages.0.source", "target", "goes from 'source' to 'target'"),
        ("stages.1.target", "source", "goes from 'source' to 'target'"),
        ("stages", [], "at least one stage"),
        ("max_mem", 100, "stays within max_mem"),
        ("stages.0.threads", True, "stages[0].threads must be an integer; got True"),
        ("stages.0.shape", [10.0, 8], "stages[0].shape[0] must be an integer; got 10.0"),
        ("stages.0.shape", "10,8", "stages[0].shape must be"),
        ("stages.0.shape", [2**63, 8], "at most 63 bits"),
        ("stages.0.more", 1, "stages[0].more is unknown"),
        ("stages.0.shape", ..., "stages[0].shape is missing"),
        ("max_mem", ..., "Plan.max_mem is missing"),
        ("alternatives", {}, "Plan.alternatives must be"),
        ("type", "Stage", "must be of type 'Plan'"),
        ("rechunk_exec", 2, "'rechunk_exec': 1"),
    ],
    ids=str,
)
def test_a_plan_edited_by_hand_is_refused_with_the_place(place: str, value: object, problem: str) -> None:
    with pytest.raises(SerializationError) as error:
        Plan.from_json(edited(place, value))
    assert problem in str(error.value)


@pytest.mark.parametrize("name", ["../up", "a/b", "/etc", "", ".", "target", "temp-0", "temp-1.", "Temp-1", "temp-1\n"])
def test_an_intermediate_is_called_by_its_number_alone(name: str) -> None:
    first, last = PLAN.stages
    with pytest.raises(PlanError, match="intermediates are called temp-1"):
        replace(PLAN, stages=(replace(first, target=name), replace(last, source=name)))


def test_no_two_intermediates_have_one_name() -> None:
    first, last = PLAN.stages
    middle = replace(first, source="temp-1", read_unit=(5, 8))
    with pytest.raises(PlanError, match=r"each once; got \['temp-1', 'temp-1'\]"):
        replace(PLAN, stages=(first, middle, last))
    three = (first, replace(middle, target="temp-2"), replace(last, source="temp-2"))
    assert Plan.from_json(replace(PLAN, stages=three).to_json()).stages == three


def test_what_a_process_holds_besides_is_said_and_does_not_count() -> None:
    small, large = replace(STAGE, uncounted_bytes=70_000), replace(STAGE, uncounted_bytes=0)
    plan = Plan(stages=(replace(small, target="temp-1"), replace(large, source="temp-1")), max_mem=600)
    assert plan.process_bytes == PROCESS_BYTES + 70_000 + RESULT_BYTES * 2 * STAGE.tasks
    assert plan.peak_bytes == 600
    assert f"up to {format_bytes(plan.process_bytes)} that do not count" in plan.explain()
    assert Plan.from_json(plan.to_json()) == plan
    before = plan.to_json().replace(',"uncounted_bytes":70000', "").replace(',"uncounted_bytes":0', "")
    assert Plan.from_json(before).process_bytes == plan.process_bytes - 70_000, "a plan of an earlier version"
    with pytest.raises(PlanError, match="uncounted_bytes are at least 0; got -1"):
        replace(STAGE, uncounted_bytes=-1)


def test_a_notebook_is_shown_all_that_the_text_tells() -> None:
    plan = plan_rechunk((60, 1024, 1024), 4, (1, 1024, 1024), (60, 64, 64), "30MB", target_shards=(60, 256, 256))
    assert len(plan.stages) == 2
    tables = re.sub(r"<figure.*?</figure>", "", plan._repr_html_())
    shown = html.unescape(re.sub(r"<[^>]*>", " ", tables))
    numbers = set(re.findall(r"[0-9]+", plan.explain()))
    assert len(numbers) > 30
    assert numbers <= set(re.findall(r"[0-9]+", shown))
    assert all(f"Stage {number}, {stage.source} -> {stage.target}" in shown for number, stage in enumerate(plan.stages))
    assert all(one.why in shown for one in plan.alternatives)
