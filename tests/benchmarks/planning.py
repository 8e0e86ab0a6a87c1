"""How long planning takes, and what is planned, for every case of the corpus. Run by hand; asserts no time.

    python -m tests.benchmarks.planning [local|object]
    python -m tests.benchmarks.planning times

Each line has the case, the processor time of one plan in milliseconds (the second one: the first also imports), the
stages, the traffic in array sizes, the operations, the predicted time, and that beside the best of the peers' plans.

``times`` gives a table of how long planning takes as ``rechunk()`` does it, for threads on some numbers of cores, each
of which is a way more to share a worker's memory, and with limits: processor time in milliseconds over all cases.
"""

from __future__ import annotations

import contextlib
import math
import statistics
import sys
import time
from typing import Any

from rechunk_exec.errors import BudgetError
from rechunk_exec.executors.base import WorkerShape
from rechunk_exec.fitting import Layouts, plan_for_workers
from rechunk_exec.planning import plan_rechunk
from rechunk_exec.plans import Plan
from rechunk_exec.request import Limits, SourceLayout, TargetLayout
from tests.test_planning import CASES, PEERS, peer_seconds


def planned(case: dict[str, Any], model: str) -> Plan:
    """The plan at twice the case's budget, or at the least that is enough."""
    arguments = (case["shape"], case["itemsize"], case["source_unit"], case["target_unit"])
    try:
        return plan_rechunk(*arguments, 2 * case["max_bytes"], cost_model=model)
    except BudgetError as refused:
        return plan_rechunk(*arguments, refused.needed_bytes, cost_model=model)


def spent_ms(case: dict[str, Any], model: str, cores: int, *, limited: bool = False) -> float:
    """Processor time of the plan for threads on so many cores, at twice the case's budget; a refusal counts too."""
    targets = math.prod(-(-n // b) for n, b in zip(case["shape"], case["target_unit"], strict=True))
    layouts = Layouts(
        shape=tuple(case["shape"]),
        itemsize=case["itemsize"],
        source=SourceLayout(chunk=tuple(case["source_unit"])),
        target=TargetLayout(chunk=tuple(case["target_unit"])),
        has_temp_place=True,
        limits=Limits(max_objects=2 * targets) if limited else Limits(),
    )
    workers = WorkerShape(workers=1, tasks_per_worker=cores, cores_per_worker=cores, elastic=True)
    start = time.process_time()
    with contextlib.suppress(BudgetError):
        plan_for_workers(layouts, 2 * case["max_bytes"], model, workers)
    return 1000 * (time.process_time() - start)


def times() -> None:
    """Print the table."""
    spent_ms(CASES[0], "object", 2)
    print("| model | cores | median | nine of ten | most | most with `max_objects` |\n|---|---|---|---|---|---|")
    for model in ("local", "object"):
        for cores in (1, 2, 8, 32):
            free = sorted(spent_ms(case, model, cores) for case in CASES)
            limited = max(spent_ms(case, model, cores, limited=True) for case in CASES)
            nine = free[len(free) * 9 // 10]
            print(
                f"| {model} | {cores} | {statistics.median(free):.0f} | {nine:.0f} | {free[-1]:.0f} | {limited:.0f} |"
            )


def main(models: list[str]) -> None:
    for model in models:
        for case in CASES:
            planned(case, model)
            start = time.process_time()
            plan = planned(case, model)
            spent_ms = 1000 * (time.process_time() - start)
            best = min(peer_seconds(case, peer, model) for peer in PEERS if peer in case)
            print(
                f"{model:7}{case['name']:24}{spent_ms:7.1f} ms  {len(plan.stages)} stages  traffic {plan.traffic:6.2f}"
                f"{plan.operations:12,} operations{plan.predicted_s:12.3f} s  {plan.predicted_s / best:.4f} of peers"
            )


if __name__ == "__main__":
    if sys.argv[1:] == ["times"]:
        times()
    else:
        main(sys.argv[1:] or ["local", "object"])
