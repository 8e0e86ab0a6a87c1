import math
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from rechunk_exec.algorithm import faster_plan, plan
from rechunk_exec.candidates import per_count, region_sizes
from rechunk_exec.choosing import holds_all
from rechunk_exec.cost import CostModel
from rechunk_exec.errors import BudgetError, PlanError
from rechunk_exec.grid import clip
from rechunk_exec.least import direct_needs, least_needs
from rechunk_exec.limits import needed_bytes
from rechunk_exec.memory import WriteScratch
from rechunk_exec.plans import Plan
from rechunk_exec.request import MOST_CHUNK_BYTES, PlanRequest, SourceLayout, TargetLayout
from rechunk_exec.search import DIRECT, Axes, best, rows_of
from rechunk_exec.weighing import Rows
from tests import oracles

LATENCIES = st.sampled_from([0.0, 1e-9, 1e-8, 1e-7, 1e-4])
"""Operations from free to all that counts, for arrays of a few hundred bytes."""


def direct_rows(request: PlanRequest) -> Rows | None:
    return rows_of(request, DIRECT, Axes(request))


@st.composite
def requests(
    draw: st.DrawFn, *, longest: int, most_axes: int, budget: tuple[float, float], sharded: bool = True
) -> PlanRequest:
    """Requests with odd sizes: chunks longer than the axis, primes, shards; with a budget in larger units."""
    axes = draw(st.integers(1, most_axes))
    shape = tuple(draw(st.integers(1, longest)) for _ in range(axes))
    source = tuple(draw(st.integers(1, n + 2)) for n in shape)
    chunk = tuple(draw(st.integers(1, n)) for n in shape)
    shard = None
    if draw(st.booleans()):
        shard = tuple(c * draw(st.integers(1, -(-n // c))) for c, n in zip(chunk, shape, strict=True))
    tasks_per_worker = draw(st.integers(1, 2))
    larger = max(math.prod(source), math.prod(shard or chunk)) * 4 * tasks_per_worker
    return PlanRequest(
        shape=shape,
        itemsize=4,
        source=SourceLayout(chunk=source),
        target=TargetLayout(chunk=chunk, shard=shard),
        max_mem=int(larger * draw(st.floats(*budget))),
        cost=replace(
            draw(st.sampled_from([CostModel.local(), CostModel.object()])) if sharded else CostModel.local(),
            operation_s=draw(LATENCIES),
            tasks_at_once=draw(st.sampled_from([1, 3])),
            stage_s=draw(st.sampled_from([0.0, 1e-7, 0.005])),
            deeper_s=draw(st.sampled_from([0.0, 1e-7, 1.0])),
        ),
        tasks_per_worker=tasks_per_worker,
        threads=draw(st.sampled_from([1, 2, 3])),
        sharded_temp=sharded and draw(st.booleans()),
        shard_scratch=WriteScratch(gathered=1, stored=0, assembled=draw(st.sampled_from([0, 1])) if sharded else 1),
    )


def check(request: PlanRequest, planned: Plan) -> None:
    """What holds for every plan."""
    assert planned.peak_bytes <= request.max_mem
    assert planned.stages[0].read_unit == request.read_unit
    assert planned.stages[-1].write_unit == request.write_unit
    for stage in planned.stages:
        counts = oracles.stage_counts(stage.shape, stage.read_unit, stage.write_unit, stage.region)
        assert (stage.tasks, stage.read_units, stage.write_units, stage.elements_read, stage.elements) == (
            counts.tasks,
            counts.read_units,
            counts.write_units,
            counts.elements_read,
            counts.elements_written,
        )
        at_once = min(request.tasks_per_worker, stage.tasks)
        region_bytes = math.prod(stage.region) * stage.itemsize
        regions_bytes = min(at_once * region_bytes, stage.nbytes)
        assert stage.peak_bytes == regions_bytes + at_once * (stage.task_bytes - region_bytes)
        assert stage.task_bytes * request.tasks_per_worker <= request.max_mem
    for before, after in zip(planned.stages, planned.stages[1:], strict=False):
        assert clip(before.chunk, before.shape) == after.read_unit
        if before.write_unit != after.read_unit:  # an object a task
            assert request.sharded_temp
            assert before.write_unit == before.region
    assert [one.chosen for one in planned.alternatives].count(True) == 1


@settings(max_examples=60)
@given(requests(longest=7, most_axes=3, budget=(1, 12)))
def test_every_plan_keeps_the_rules_and_every_refusal_names_the_least_budget(request: PlanRequest) -> None:
    try:
        check(request, plan(request))
        return
    except BudgetError as error:
        needed, stated = error.needed_bytes, error.max_mem
    assert stated == request.max_mem < needed < 10 * request.max_mem
    enough = replace(request, max_mem=needed)
    check(enough, plan(enough))
    with pytest.raises(BudgetError) as refused:
        plan(replace(request, max_mem=needed - 1))
    assert refused.value.needed_bytes == needed


@settings(max_examples=80)
@given(st.data())
def test_ten_times_the_bigger_chunk_is_always_enough(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=4)))
    source, target = (tuple(data.draw(st.integers(1, n)) for n in shape) for _ in range(2))
    times = data.draw(st.floats(1, 50))
    request = PlanRequest(
        shape=shape,
        itemsize=8,
        source=SourceLayout(chunk=source),
        target=TargetLayout(chunk=target),
        max_mem=int(max(math.prod(source), math.prod(target)) * 8 * times),
        cost=data.draw(st.sampled_from([CostModel.local(), CostModel.object()])),
    )
    try:
        planned = plan(request)
    except BudgetError:
        assert times < 10
        return
    assert planned.peak_bytes <= request.max_mem


@settings(max_examples=100)
@given(requests(longest=9, most_axes=2, budget=(2, 20)))
def test_one_stage_is_the_one_preferred_among_all_regions(request: PlanRequest) -> None:
    every = oracles.all_direct(request)
    found = best(request, direct_rows(request))
    if not every:
        assert found is None
        return
    assert found is not None
    assert oracles.preferred(request, [found]) == oracles.preferred(request, every)


@settings(max_examples=60)
@given(requests(longest=12, most_axes=2, budget=(0.5, 6)), st.integers(2, 5))
def test_units_that_restart_are_planned_as_they_are_counted(request: PlanRequest, part: int) -> None:
    unit = tuple(-(-chunk * 2 // part) if chunk > part else chunk for chunk in request.source.chunk)
    source = replace(request.source, read_unit=unit, together=True)
    request = replace(request, source=source)
    every, found = oracles.all_direct(request), best(request, direct_rows(request))
    assert (found is None) == (not every)
    if found is not None:
        assert oracles.preferred(request, [found]) == oracles.preferred(request, every)
    try:
        planned = plan(request)
    except BudgetError as refused:
        assert plan(replace(request, max_mem=refused.needed_bytes)).stages
        return
    first = planned.stages[0]
    assert first.restart == request.restart
    assert all(stage.restart is None for stage in planned.stages[1:])
    touched = [
        oracles.restarted_touched(n, u, g, chunk)
        for n, u, g, chunk in zip(first.shape, unit, first.region, request.source.chunk, strict=True)
    ]
    assert math.prod(elements for _, elements, _ in touched) <= first.elements_read


def test_a_small_last_task_may_fill_a_slot() -> None:
    """Seven rows of two columns on three slots: cut at five, both short tasks share a slot; halves leave one idle."""
    cost = replace(CostModel.local(), tasks_at_once=3, stage_s=0.0)
    request = replace(_request((7, 2), (7, 1), (1, 1), 10_000), cost=cost)
    fastest = min((stage.predicted_s, stage.region) for (stage,) in oracles.all_direct(request))
    assert fastest[1] == (5, 1)
    assert plan(request).stages[0].region == (5, 1)


@pytest.mark.parametrize(
    "longest, most_axes, most_stages, examples, more",
    [(60, 1, 2, 30, 150), (9, 2, 2, 30, 150), (12, 1, 3, 15, 60), (5, 2, 3, 8, 25)],
)
def test_plans_are_as_fast_as_the_best_of_all(
    longest: int, most_axes: int, most_stages: int, examples: int, more: int, long: bool
) -> None:
    ratios: list[float] = []

    @settings(max_examples=more if long else examples, deadline=None)
    @given(requests(longest=longest, most_axes=most_axes, budget=(4, 30)))
    def compare(request: PlanRequest) -> None:
        seconds = [stage.predicted_s for (stage,) in oracles.all_direct(request)]
        for way in oracles.ways(request, most_stages):
            staged = oracles.all_staged(request, way)
            if staged is not None:
                deeper_s = request.cost.deeper_s if way.stages > 2 or holds_all(request) else 0.0
                seconds.append(float(staged.seconds.min()) + deeper_s)
        fastest = min(seconds)
        ratios.append(plan(request).predicted_s / fastest)
        assert ratios[-1] <= 1.1

    compare()
    # 2 % may be given for fewer bytes or objects, and as much for plain pieces on a disk
    assert np.mean(np.array(ratios) <= 1.02**2 + 1e-9) >= 0.99


def _request(shape: tuple[int, ...], source: tuple[int, ...], target: tuple[int, ...], max_mem: int) -> PlanRequest:
    return PlanRequest(
        shape=shape,
        itemsize=4,
        source=SourceLayout(chunk=source),
        target=TargetLayout(chunk=target),
        max_mem=max_mem,
        cost=CostModel.local(),
    )


def test_scalars_and_empty_arrays() -> None:
    scalar = plan(_request((), (), (), 100))
    assert [(stage.tasks, stage.operations, stage.traffic) for stage in scalar.stages] == [(1, 2, 2.0)]
    assert scalar.stages[0].box(0) == ((), ())
    with pytest.raises(BudgetError) as refused:
        plan(_request((), (), (), 1))
    assert plan(_request((), (), (), refused.value.needed_bytes)).peak_bytes == refused.value.needed_bytes
    for shape in [(0, 5), (3, 0), (0,)]:
        empty = plan(_request(shape, (2,) * len(shape), (1,) * len(shape), 1))
        assert (len(empty.stages), empty.tasks, empty.operations, empty.traffic, empty.peak_bytes) == (1, 0, 0, 0.0, 0)


def test_equal_chunks_are_copied_in_one_stage() -> None:
    planned = plan(_request((100, 30), (7, 30), (7, 30), 10**6))
    assert (len(planned.stages), planned.traffic, planned.temp_bytes) == (1, 2.0, 0)


def test_tasks_are_as_large_as_the_budget_allows() -> None:
    planned = plan(_request((960, 78, 71), (24, 78, 71), (438, 5, 5), 8_000_000))
    assert planned.stages[-1].tasks <= 60


def test_a_worker_shares_its_budget_between_its_tasks() -> None:
    request = _request((40, 64, 64), (1, 64, 64), (40, 8, 8), 2_000_000)
    alone, shared = plan(request), plan(replace(request, tasks_per_worker=4))
    assert shared.peak_bytes <= 2_000_000
    assert shared.stages[0].task_bytes <= 500_000 < alone.stages[0].task_bytes
    assert shared.stages[0].tasks > alone.stages[0].tasks
    with pytest.raises(BudgetError, match="4 tasks a worker") as refused:
        plan(replace(request, tasks_per_worker=4, max_mem=40_000))
    assert refused.value.needed_bytes % 4 == 0


def test_more_tasks_than_workers_are_preferred() -> None:
    request = _request((64, 64), (1, 64), (64, 4), 10**6)
    assert plan(request).tasks == 1
    busy = replace(request, cost=replace(CostModel.local(), tasks_at_once=4, deeper_s=0.0))
    assert plan(busy).tasks > 4


def test_a_tight_budget_takes_fewer_units_in_flight_and_says_so_in_its_time() -> None:
    request = _request((200, 50), (200, 25), (20, 50), 50_000)
    stages = best(request, direct_rows(request))
    assert stages is not None
    (stage,) = stages
    # 2 units of 20,000 bytes with as much scratch would be 80,000
    assert (stage.threads, stage.peak_bytes <= 50_000) == (1, True)
    plain = stage.elements_read * 4 / 2.0e9 + stage.nbytes / 0.8e9 + stage.operations * 1e-4 / 2
    assert stage.predicted_s == 2 * plain


def test_intermediate_chunks_stay_below_the_codecs_limit() -> None:
    shape = (4096, 65536, 1024)
    planned = plan(replace(_request(shape, (1, 65536, 1024), (4096, 8, 8), 200 * 10**9), threads=1))
    assert len(planned.stages) == 2
    first, second = planned.stages
    assert math.prod(first.write_unit) * 4 < MOST_CHUNK_BYTES
    assert all(g % c == 0 or g == n for g, c, n in zip(second.region, first.write_unit, shape, strict=True))


def test_target_chunks_above_the_codecs_limit_are_refused() -> None:
    side = 2**15
    with pytest.raises(PlanError) as refused:
        _request((side, side), (1, side), (side, side), 10**12)
    assert str(side * side * 4) in str(refused.value)
    assert str(MOST_CHUNK_BYTES) in str(refused.value)
    sharded = TargetLayout(chunk=(side, 64), shard=(side, side))
    assert plan(replace(_request((side, side), (1, side), (side, 64), 10**11), target=sharded)).traffic == 2.0


def test_prime_sizes_do_not_make_tiny_intermediate_chunks() -> None:
    request = _request((10007, 10009), (97, 10009), (10007, 101), 40_000_000)
    planned = plan(request)
    assert planned.objects < 20 * math.ceil(10009 / 101)
    short = plan(_request((10007,), (97,), (101,), 20_000))
    assert short.operations < 10 * (10007 / 97 + 10007 / 101)


@pytest.mark.parametrize(
    "scratch, needed",
    [
        # the region, and the encoder's output twice
        (WriteScratch(), 1024 + 2 * 1024),
        (WriteScratch(in_place=False), 1024 + 3 * 1024),
        (WriteScratch(assembled=2), 1024 + 4 * 1024),
        # by two stages: a row is read, then rows of the raw intermediate are read to where they go
        (WriteScratch(stored=0), 1024),
    ],
)
def test_scratch_is_what_the_request_says(scratch: WriteScratch, needed: int) -> None:
    target = TargetLayout(chunk=(64, 4), scratch=scratch)
    with pytest.raises(BudgetError) as refused:
        plan(replace(_request((64, 64), (1, 64), (64, 4), 1), target=target))
    assert refused.value.needed_bytes == needed


def test_reads_finer_than_a_chunk_make_one_stage_of_two() -> None:
    request = _request((389, 1024, 512), (1, 1024, 512), (389, 64, 64), 100_000_000)
    finer = replace(request, source=SourceLayout(chunk=(1, 1024, 512), read_unit=(1, 16, 512)))
    assert len(plan(request).stages) == 2
    planned = plan(finer)
    assert (len(planned.stages), planned.traffic, planned.stages[0].read_unit) == (1, 2.0, (1, 16, 512))


@pytest.mark.parametrize(
    "changes, word",
    [
        ({"itemsize": 0}, "itemsize"),
        ({"max_mem": 0}, "max_mem"),
        ({"threads": 0}, "threads"),
        ({"shape": (-1, 8)}, "negative"),
        ({"source": SourceLayout(chunk=(1,))}, "source chunk"),
        ({"source": SourceLayout(chunk=(1, 8), read_unit=(0, 8))}, "read unit"),
        ({"target": TargetLayout(chunk=(0, 8))}, "target chunk"),
        ({"target": TargetLayout(chunk=(2, 8), shard=(3, 8))}, "whole number of chunks"),
    ],
)
def test_requests_that_mean_nothing_are_refused(changes: dict[str, object], word: str) -> None:
    with pytest.raises(PlanError, match=word):
        replace(_request((8, 8), (1, 8), (8, 1), 10**6), **changes)  # type: ignore[arg-type]


def test_the_refusal_names_shapes_bytes_and_the_remedy() -> None:
    with pytest.raises(BudgetError) as refused:
        plan(replace(_request((100, 100), (100, 100), (10, 10), 40_000), itemsize=8))
    message = str(refused.value)
    words = [
        "(100, 100)",
        "80000",
        "(10, 10)",
        "800",
        "max_mem=40000",
        str(refused.value.needed_bytes),
        "smaller chunks",
    ]
    assert [word for word in words if word not in message] == []


@given(st.integers(1, 3000), st.integers(1, 40))
@example(1, 1)
def test_one_size_for_each_number_of_regions(n: int, step: int) -> None:
    sizes = per_count(n, step).tolist()
    smallest: dict[int, int] = {}
    for size in [*range(step, n, step), n]:
        smallest.setdefault(-(-n // size), size)
    assert sizes == sorted(smallest.values())


@given(st.integers(1, 10**7), st.integers(1, 10**7), st.integers(1, 10**3))
def test_long_axes_have_few_sizes_all_of_whole_write_units(n: int, read_unit: int, write_unit: int) -> None:
    assume(write_unit <= n)
    sizes = region_sizes(n, min(read_unit, n), write_unit)
    assert len(sizes) < 8 * math.sqrt(n / write_unit) + 2100
    assert ((sizes % write_unit == 0) | (sizes == n)).all()
    assert sizes.max() == n
    assert sizes.min() == min(write_unit, n)


@pytest.mark.parametrize("axes", [4, 5, 6])
def test_many_axes_are_planned(axes: int) -> None:
    shape = (60, 45, 30, 70, 25, 40)[:axes]
    source = (1, 45, 7, 70, 3, 40)[:axes]
    target = (60, 4, 30, 9, 25, 7)[:axes]
    request = _request(shape, source, target, 40 * math.prod(map(max, source, target)))
    planned = plan(request)
    assert planned.peak_bytes <= request.max_mem
    assert planned.traffic < 8


def transposing(rng: random.Random, longest: int, axes: int) -> PlanRequest:
    """A request from slices along one axis to columns along it, with little memory: what takes several stages."""
    shape = tuple(rng.randint(2, longest) for _ in range(axes))
    source, target = (tuple(rng.randint(1, n) for n in shape) for _ in range(2))
    if rng.random() < 0.7:
        along = rng.randrange(axes)
        source = tuple(1 if axis == along else n for axis, n in enumerate(shape))
        target = tuple(n if axis == along else 1 for axis, n in enumerate(shape))
    return replace(
        _request(shape, source, target, int(max(math.prod(source), math.prod(target)) * 4 * rng.uniform(3, 12))),
        cost=replace(
            rng.choice([CostModel.local(), CostModel.object()]),
            operation_s=rng.choice([0, 1e-9, 1e-8, 1e-7, 1e-4]),
            deeper_s=0.0,
        ),
        threads=rng.choice([1, 2]),
        sharded_temp=rng.random() < 0.6,
        shard_scratch=WriteScratch(gathered=1, stored=0, assembled=rng.choice([0, 1])),
    )


@pytest.mark.parametrize(
    "longest, axes, most_stages, count, more",
    [(10, 2, 2, 60, 300), (12, 1, 3, 20, 60), (5, 2, 3, 15, 100), (7, 1, 4, 4, 20)],
)
def test_plans_of_several_stages_are_as_fast_as_the_best_of_all(
    longest: int, axes: int, most_stages: int, count: int, more: int, long: bool
) -> None:
    rng = random.Random(longest)
    ratios: list[float] = []
    while len(ratios) < (more if long else count):
        request = transposing(rng, longest, axes)
        try:
            planned = plan(request)
        except BudgetError:
            continue
        check(request, planned)
        seconds = [stage.predicted_s for (stage,) in oracles.all_direct(request)]
        for way in oracles.ways(request, most_stages):
            rows = oracles.all_staged(request, way)
            seconds += [] if rows is None else [float(rows.seconds.min())]
        ratios.append(planned.predicted_s / min(seconds))
    assert max(ratios) <= 1.1
    assert np.mean(np.array(ratios) <= 1.02**2 + 1e-9) >= 0.99
    assert np.mean(np.array(ratios) <= 1 + 1e-9) >= 0.95


SLOW_OPERATIONS = replace(CostModel.object(), operation_s=5.0)


def test_dear_operations_take_a_third_stage() -> None:
    room = 2 * 256 * 256 * 4  # for no fourth
    request = replace(_request((256, 256), (1, 256), (256, 1), 8_000), cost=SLOW_OPERATIONS, max_temp_bytes=room)
    planned = plan(request)
    check(request, planned)
    assert [stage.target for stage in planned.stages] == ["temp-1", "temp-2", "target"]
    assert planned.temp_bytes == room
    two = plan(replace(request, max_temp_bytes=room - 1))
    assert len(two.stages) == 2
    assert two.predicted_s > planned.predicted_s * 1.02
    assert {one.name for one in planned.alternatives} >= {"two stages", "three stages"}


def test_a_small_array_is_not_worth_a_third_stage() -> None:
    request = _request((40, 40, 20), (1, 40, 20), (40, 4, 4), 16_000)
    assert len(plan(request).stages) == 2
    assert len(plan(replace(request, cost=replace(request.cost, deeper_s=0.0))).stages) > 2


def test_an_object_a_task_saves_operations_on_an_object_store_and_must_win_on_a_disk() -> None:
    request = _request((256, 256), (1, 256), (256, 1), 16_000)
    in_objects = replace(request, cost=CostModel.object(), sharded_temp=True, max_temp_bytes=request.nbytes)
    planned = plan(in_objects)
    check(in_objects, planned)
    first, second = planned.stages
    assert (first.write_unit, first.objects) == (first.region, first.tasks)
    assert first.objects < math.prod(-(-n // c) for n, c in zip(first.shape, first.chunk, strict=True))
    assert second.read_unit == first.chunk
    plain = plan(replace(in_objects, sharded_temp=False))
    assert planned.operations < plain.operations
    assert planned.predicted_s < plain.predicted_s
    # the region, and a fifth of the object on its way; or the whole object
    assert first.peak_bytes >= 1.2 * math.prod(first.region) * 4
    held = plan(replace(in_objects, shard_scratch=replace(in_objects.shard_scratch, assembled=1))).stages[0]
    assert held.peak_bytes >= 2 * math.prod(held.region) * 4
    assert math.prod(held.region) < math.prod(first.region)
    # where operations are nearly free, pieces are left as they are
    on_disk = replace(in_objects, cost=replace(CostModel.local(), operation_s=1e-9))
    assert all(stage.write_unit == stage.chunk for stage in plan(on_disk).stages)


def test_a_small_array_is_not_cut_in_two_stages_to_keep_two_workers_busy() -> None:
    request = _request((8, 6, 4), (1, 6, 4), (8, 3, 4), 160_000_000)
    busy = replace(request, cost=replace(CostModel.local(), tasks_at_once=2, deeper_s=0.0), threads=1)
    assert len(plan(busy).stages) == 1
    free = replace(busy, cost=replace(busy.cost, stage_s=0.0))
    assert len(plan(free).stages) == 2


@pytest.mark.parametrize("workers", [2, 4, 8, 16])
def test_an_array_that_a_task_can_hold_gets_no_intermediate_to_keep_workers_busy(workers: int) -> None:
    for shape, unit in (((100, 200, 200), (100, 4, 4)), ((200, 64, 64), (200, 8, 8)), ((100, 40, 40), (100, 4, 4))):
        request = _request(shape, (1, *shape[1:]), unit, 160_000_000)
        local = CostModel.local().scaled(workers)
        busy = replace(request, cost=replace(local, tasks_at_once=workers), threads=1)
        planned = plan(busy)
        assert len(planned.stages) == 1
        (chosen,) = [other for other in planned.alternatives if other.chosen]
        assert "a task can hold the whole array, and two stages do not save 1 s" in chosen.why
        if workers > 2:
            assert len(plan(replace(busy, cost=replace(busy.cost, deeper_s=0.0))).stages) == 2


def test_an_array_that_a_task_can_hold_gets_an_intermediate_that_saves_seconds() -> None:
    request = _request((1000, 2000, 2000), (1, 2000, 2000), (1000, 50, 50), 40_000_000_000)
    busy = replace(request, cost=replace(CostModel.local().scaled(16), tasks_at_once=16), threads=1)
    planned = plan(busy)
    assert len(planned.stages) == 2
    faster = faster_plan(busy, planned.predicted_s * 1.05)
    assert faster is not None
    assert faster.stages == planned.stages
    reasons = {"the budget and the limits": replace(busy, max_temp_bytes=0), "no place": replace(busy, staged=False)}
    for reason, other in reasons.items():
        (chosen,) = [alternative for alternative in plan(other).alternatives if alternative.chosen]
        assert reason in chosen.why


LIMITED = replace(
    _request((128, 128), (1, 128), (128, 1), 1_375),
    target=TargetLayout(chunk=(128, 1), scratch=WriteScratch(stored=0)),
)
"""In at least two stages, one needs 1536 bytes; the target has 128 objects of 512 bytes."""


@pytest.mark.parametrize(
    "model, sharded",
    [
        (CostModel.local(), False),
        pytest.param(SLOW_OPERATIONS, True, marks=pytest.mark.long),
        pytest.param(CostModel.local(), True, marks=pytest.mark.long),
        pytest.param(SLOW_OPERATIONS, False, marks=pytest.mark.long),
    ],
    ids=["local", "slow operations, sharded", "local, sharded", "slow operations"],
)
def test_a_limit_of_objects_is_kept_or_the_least_is_named(model: CostModel, sharded: bool) -> None:
    request = replace(LIMITED, cost=model, sharded_temp=sharded)
    free = plan(request)
    assert free.objects > 128
    assert plan(replace(request, max_objects=free.objects)) == free
    with pytest.raises(BudgetError) as refused:
        plan(replace(request, max_objects=129))
    least = refused.value.limits["max_objects"]
    assert f"max_objects of at least {least}" in str(refused.value)
    assert 129 < least <= free.objects
    fewest = plan(replace(request, max_objects=least))
    check(request, fewest)
    assert fewest.objects <= least
    with pytest.raises(BudgetError) as again:
        plan(replace(request, max_objects=least - 1))
    assert again.value.limits == {"max_objects": least}


def test_a_limit_of_objects_says_how_much_memory_would_keep_it() -> None:
    request = replace(LIMITED, max_objects=175)
    with pytest.raises(BudgetError) as refused:
        plan(request)
    needed = refused.value.needed_bytes
    assert needed > 1_375
    assert plan(replace(request, max_mem=needed)).objects <= 175
    with pytest.raises(BudgetError) as again:
        plan(replace(request, max_mem=needed - 1))
    assert again.value.needed_bytes == needed


def test_the_objects_of_the_target_count() -> None:
    with pytest.raises(PlanError, match="128 objects") as refused:
        plan(replace(LIMITED, max_objects=127))
    assert not isinstance(refused.value, BudgetError)
    direct = plan(replace(LIMITED, max_objects=128, max_mem=4_000_000))
    assert (len(direct.stages), direct.objects) == (1, 128)


def test_a_limit_of_object_sizes_is_kept_or_the_largest_is_named() -> None:
    request = replace(LIMITED, max_temp_bytes=LIMITED.nbytes, sharded_temp=False)
    with pytest.raises(BudgetError) as refused:
        plan(replace(request, min_object_bytes=512))
    most = refused.value.limits["min_object_bytes"]
    enough = replace(request, min_object_bytes=most)
    planned = plan(enough)
    check(request, planned)
    assert all(math.prod(stage.write_unit) * 4 >= most for stage in planned.stages)
    with pytest.raises(BudgetError) as again:
        plan(replace(enough, min_object_bytes=most + 1))
    assert again.value.limits == {"min_object_bytes": most}
    needed = refused.value.needed_bytes
    assert plan(replace(request, min_object_bytes=512, max_mem=needed)).peak_bytes <= needed
    with pytest.raises(BudgetError) as less:
        plan(replace(request, min_object_bytes=512, max_mem=needed - 1))
    assert less.value.needed_bytes == needed
    with pytest.raises(PlanError, match=r"chunks \(128, 1\) of 512 bytes"):
        plan(replace(request, min_object_bytes=513))


def test_a_limit_of_intermediates_is_kept_or_the_least_is_named() -> None:
    request = replace(LIMITED, max_mem=1_250)
    assert len(plan(replace(request, max_temp_bytes=request.nbytes)).stages) == 2
    with pytest.raises(BudgetError, match=f"max_temp_bytes of at least {request.nbytes}") as refused:
        plan(replace(request, max_temp_bytes=request.nbytes - 1))
    assert refused.value.limits == {"max_temp_bytes": request.nbytes}
    needed = refused.value.needed_bytes
    assert plan(replace(request, max_temp_bytes=0, max_mem=needed)).temp_bytes == 0
    with pytest.raises(BudgetError) as less:
        plan(replace(request, max_temp_bytes=0, max_mem=needed - 1))
    assert less.value.needed_bytes == needed


def test_limits_together_are_kept_together() -> None:
    request = replace(LIMITED, sharded_temp=True, max_objects=275, min_object_bytes=375)
    planned = plan(request)
    assert len(planned.stages) > 1
    assert planned.objects <= 275
    assert all(math.prod(stage.write_unit) * 4 >= 375 for stage in planned.stages)


def test_room_for_an_intermediate_is_no_remedy_if_its_objects_are_too_many() -> None:
    request = replace(LIMITED, max_mem=1_250, max_objects=129, max_temp_bytes=0)
    with pytest.raises(BudgetError, match="max_objects of at least"):
        plan(replace(request, max_temp_bytes=request.nbytes))
    with pytest.raises(BudgetError) as refused:
        plan(request)
    assert refused.value.limits == {}
    assert "max_temp_bytes of at least" not in str(refused.value)
    assert plan(replace(request, max_mem=refused.value.needed_bytes)).objects == 128


def bounded(rng: random.Random) -> PlanRequest:
    """A request with some limits that its target keeps, and little memory."""
    request = transposing(rng, 12, rng.randint(1, 3))
    target_bytes = math.prod(request.write_unit) * 4
    limits: dict[str, int] = {}
    if rng.random() < 0.7:
        limits["max_objects"] = request.objects + rng.randint(0, 2 * request.objects)
    if rng.random() < 0.5:
        limits["min_object_bytes"] = rng.randint(1, target_bytes)
    if rng.random() < 0.5:
        limits["max_temp_bytes"] = rng.choice([0, 1, 2]) * request.nbytes
    return replace(request, max_mem=int(request.max_mem * rng.uniform(0.3, 1)), **limits)  # type: ignore[arg-type]


def assert_limits_are_kept(request: PlanRequest) -> None:
    planned = plan(request)
    assert planned.peak_bytes <= request.max_mem
    assert planned.objects <= (request.max_objects or planned.objects)
    assert planned.temp_bytes <= (planned.temp_bytes if request.max_temp_bytes is None else request.max_temp_bytes)
    sizes = [math.prod(stage.write_unit) * request.itemsize for stage in planned.stages]
    assert min(sizes) >= (request.min_object_bytes or 0)


def test_what_a_refusal_names_is_enough_and_no_less_is(long: bool) -> None:
    refusals = 0
    for seed in range(60 if long else 20):
        request = bounded(random.Random(seed))
        try:
            assert_limits_are_kept(request)
        except BudgetError as refused:
            refusals += 1
            assert_limits_are_kept(replace(request, max_mem=refused.needed_bytes))
            with pytest.raises(BudgetError) as less:
                plan(replace(request, max_mem=refused.needed_bytes - 1))
            assert less.value.needed_bytes == refused.needed_bytes, seed
            for name, value in refused.limits.items():
                assert f"{name} of at {'most' if name == 'min_object_bytes' else 'least'} {value}" in str(refused)
                assert_limits_are_kept(replace(request, **{name: value}))  # type: ignore[arg-type]
                nearer = value + 1 if name == "min_object_bytes" else value - 1
                with pytest.raises(PlanError):
                    plan(replace(request, **{name: nearer}))  # type: ignore[arg-type]
    assert refusals > (10 if long else 4)


@pytest.mark.parametrize("enough, most", [(88, 2), (89, 7), (107, 7), (108, 1)])
def test_what_a_refusal_names_is_found_in_few_searches(enough: int, most: int) -> None:
    request = transposing(random.Random(3), 12, 2)
    assert (least_needs(request), direct_needs(request)) == (88, 108)
    tried: list[int] = []

    def kept(other: PlanRequest) -> bool:
        tried.append(other.max_mem)
        return other.max_mem >= enough

    assert needed_bytes(request, kept) == enough
    assert len(tried) <= most


@pytest.mark.parametrize("name", ["max_objects", "min_object_bytes", "max_temp_bytes"])
def test_limits_below_zero_are_refused(name: str) -> None:
    with pytest.raises(PlanError, match=name):
        replace(LIMITED, **{name: -1})  # type: ignore[arg-type]
