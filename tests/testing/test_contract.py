"""The contract finds executors that break it: each of its tests fails where it should."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.executors.workers import environment

BROKEN = Path(__file__).with_name("broken.py")
FOUND_BY = {
    "TestWithoutBarrier": ("no_task_starts_before_the_stage_before_has_ended", "values_are_exact"),
    "TestLeavesOneOut": ("the_tasks_of_the_stages_are_run_and_no_others", "values_are_exact"),
    "TestRunsTwice": ("the_tasks_of_the_stages_are_run_and_no_others",),
    "TestResultsAsTheyCome": ("results_are_in_order",),
    "TestSilent": ("events_tell_the_total_once_and_each_task_once",),
    "TestTellsElsewhere": ("events_tell_the_total_once_and_each_task_once",),
    "TestTriesOnce": ("a_task_that_fails_is_tried_again_and_no_more", "a_task_that_always_fails_ends_the_run"),
    "TestTriesFourTimes": ("a_task_that_always_fails_ends_the_run",),
    "TestCountsNoRetries": ("retries_are_told",),
    "TestHidesTheCause": (
        "a_task_that_always_fails_ends_the_run",
        "the_error_has_the_stage_and_index_of_the_task",
    ),
    "TestNamesThePosition": ("the_error_has_the_stage_and_index_of_the_task",),
    "TestLeavesOrphans": ("the_tasks_that_run_beside_a_failing_one_are_waited_for",),
    "TestRunsAllTasks": ("the_tasks_that_are_left", "stages_without_tasks"),
    "TestSendsMuch": ("little_crosses_the_wire",),
    "TestTakesAnyOption": ("wrong_options_are_a_type_error",),
    "TestSetsUpTwice": ("run_on_workers_runs_once_in_each",),
    "TestSendsEachTime": ("put_is_sent_once_a_worker",),
}
"""By executor: the tests that must fail, without their ``test_``."""


def test_each_broken_promise_is_found_and_a_loop_keeps_them_all_and_exceptions_must_name_tests(tmp_path: Path) -> None:
    wanted = {f"{kind}::test_{name}" for kind, names in FOUND_BY.items() for name in names}
    wanted.add("TestNamesNoTest::test_it_says_what_it_is")
    failed, rest = run_tests(["TestLoop", *sorted(wanted)], tmp_path)
    assert failed == wanted, rest
    assert "skipped" not in rest.splitlines()[-1]


def run_tests(names: list[str], tmp_path: Path) -> tuple[set[str], str]:
    """Run tests of broken.py; return those that failed, and what was printed."""
    command = [sys.executable, "-m", "pytest", "-q", "--tb=line", "-rfE", "-p", "no:cacheprovider"]
    command += [f"--basetemp={tmp_path / 'inner'}", f"--rootdir={BROKEN.parents[2]}"]
    run = subprocess.run(
        [*command, *(f"{BROKEN}::{name}" for name in names)],
        check=False,
        cwd=BROKEN.parents[2],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
    )
    lines = [line for line in run.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return {line.split(" - ")[0].split("broken.py::")[1].strip() for line in lines}, run.stdout + run.stderr
