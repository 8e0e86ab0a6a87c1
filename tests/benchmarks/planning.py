"""How long planning takes, and what is planned, for every case of the corpus. Run by hand; asserts no time.

    python -m tests.benchmarks.planning [local|object]

Each line has the case, the processor time of one plan in milliseconds (the second one: the first also imports), the
stages, the traffic in array sizes, the operations, the predicted time, and that beside the best of the peers' plans.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from rechunk_exec.errors import BudgetError
from rechunk_exec.planning import plan_rechunk
from rechunk_exec.plans import Plan
from tests.test_planning import CASES, PEERS, peer_seconds


def planned(case: dict[str, Any], model: str) -> Plan:
    """The plan at twice the case's budget, or at the least that is enough."""
    arguments = (case["shape"], case["itemsize"], case["source_unit"], case["target_unit"])
    try:
        return plan_rechunk(*arguments, 2 * case["max_bytes"], cost_model=model)
    except BudgetError as refused:
        return plan_rechunk(*arguments, refused.needed_bytes, cost_model=model)


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
    main(sys.argv[1:] or ["local", "object"])
