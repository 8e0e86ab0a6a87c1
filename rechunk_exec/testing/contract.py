"""What ``staged_copy`` promises, for any executor that has nothing else. Layer: testing."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import zarr

import rechunk_exec as rx
from rechunk_exec.executors import Executor, staged_copy, worker_shape
from rechunk_exec.results import Event
from rechunk_exec.testing.record import Faults, InjectedFault, Record, TaskKey
from rechunk_exec.testing.runs import FAILING, SharedRuns
from rechunk_exec.testing.trial import TASKS, Run, Trial, position_values

WIRE_BYTES = 64_000
"""What may cross the wire for a task, at most."""


class ExecutorContract(SharedRuns):
    """Derive from this, as ``Test...``, and override :meth:`make_executor`.

    Attributes
    ----------
    stores : {"live", "named"}
        ``"named"`` for executors that send stages as JSON: they get paths and URLs, which needs
        ``pip install 'rechunk_exec[http]'`` where tasks run. Else they get stores that pickle.
    tries : int
        How often a task is started before it has failed for good.
    tasks_may_run_twice : bool
        Whether a task that goes well may be run more than once: by an engine that bets on the faster of two, say.
    exceptions : mapping of str to str
        Tests by name that do not hold for this executor, each with the reason. They are skipped, with it.
    """

    # A run in which nothing goes wrong.

    def test_values_are_exact(self, first: Run, trial: Trial) -> None:
        _raise(first.error)
        assert first.target == trial.values.tobytes()

    def test_the_tasks_of_the_stages_are_run_and_no_others(self, first: Run) -> None:
        self._assert_run_once(first, TASKS)

    def test_no_task_starts_before_the_stage_before_has_ended(self, first: Run) -> None:
        _raise(first.error)
        written = first.written_ns["middle"]
        read = [
            request.began_ns
            for request in first.record.requests()
            if (request.array, request.verb) == ("middle", "read")
        ]
        assert len(written) >= 48
        assert len(read) >= 48
        assert max(written) <= min(read)

    def test_results_are_in_order(self, first: Run, executor: Executor) -> None:
        _raise(first.error)
        assert first.report is not None
        assert [(result.stage, result.index) for result in first.report.results] == list(TASKS)
        assert first.report.executor == executor.name
        assert first.report.retries == 0
        assert {result.bytes_written for result in first.report.results[:12]} == {48}
        assert {result.bytes_written for result in first.report.results[12:]} == {144}

    def test_events_tell_the_total_once_and_each_task_once(self, first: Run) -> None:
        _raise(first.error)
        assert first.report is not None
        assert first.events[0] == Event(kind="start", total=len(TASKS))
        assert {event.kind for event in first.events[1:]} == {"task"}
        told = [event.result for event in first.events[1:] if event.result is not None]
        assert tuple(sorted(told, key=lambda result: (result.stage, result.index))) == first.report.results
        assert [(e.stage, e.index) for e in first.events[1:]] == [(result.stage, result.index) for result in told]
        assert first.threads == {threading.get_ident()}, "events are told in the thread that called staged_copy"

    def test_little_crosses_the_wire(self, first: Run, trial: Trial) -> None:
        _raise(first.error)
        assert first.report is not None
        with trial.stages(first.record) as (stage, _):
            long = replace(stage, plan=replace(stage.plan, shape=(14_000_000, 12)))
            travelling = (long, stage[0], first.report.results[0])
            if self.stores == "live":
                assert max(len(pickle.dumps(value)) for value in travelling) < WIRE_BYTES
            else:
                assert max(len(value.to_json()) for value in (long, stage[0])) < WIRE_BYTES
        sent = self.wire_bytes(self._kept["given"])
        assert sent is None or 0 < sent <= WIRE_BYTES

    # Tasks that fail.

    def test_a_task_that_fails_is_tried_again_and_no_more(self, retried: Run) -> None:
        _raise(retried.error)
        wanted = dict.fromkeys(TASKS, 1) | {(0, 2): self.tries, (1, 0): 2}
        if self.tasks_may_run_twice:
            assert retried.tries().keys() == wanted.keys()
        else:
            assert retried.tries() == wanted
        assert retried.target == position_values((12, 12)).tobytes()

    def test_retries_are_told(self, retried: Run) -> None:
        _raise(retried.error)
        assert retried.report is not None
        assert retried.report.retries == self.tries
        attempts = {(result.stage, result.index): result.attempts for result in retried.report.results}
        assert attempts == dict.fromkeys(TASKS, 1) | {(0, 2): self.tries, (1, 0): 2}
        assert retried.retried() == {(0, 2): self.tries - 1, (1, 0): 1}
        messages = [event.message for event in retried.events if event.kind == "retry"]
        assert all(InjectedFault.__name__ in message for message in messages)
        assert sum(event.kind == "task" for event in retried.events) == len(TASKS)

    def test_a_task_that_always_fails_ends_the_run(self, failed: Run) -> None:
        assert isinstance(failed.error, rx.RechunkError), failed.error
        assert failed.report is None
        assert InjectedFault.__name__ in "".join(_texts(failed.error)), "the cause is told of"
        tried = failed.tries()
        assert tried[FAILING] == self.tries
        assert tried.keys() <= {(0, index) for index in range(1, 9)}, "nothing else is begun, nor the next stage"

    def test_the_error_has_the_stage_and_index_of_the_task(self, failed: Run) -> None:
        assert isinstance(failed.error, rx.TaskError), failed.error
        assert (failed.error.stage, failed.error.index) == FAILING, "its number in the stage, not among those left"
        assert failed.error.__cause__ is not None

    def test_the_tasks_that_run_beside_a_failing_one_are_waited_for(self, failed: Run) -> None:
        assert failed.error is not None
        assert all(request.began_ns <= failed.over_ns for request in failed.record.requests())
        assert failed.stored_later == failed.stored_when_over
        rows = {int(key.split("/")[1]) for key in failed.stored_when_over}
        assert rows == {index for _, index in failed.tries()} - {FAILING[1]}

    def test_running_again_after_a_failure_is_harmless(self, failed: Run, executor: Executor, failing: Trial) -> None:
        assert failed.error is not None
        again = failing.run(executor, "again")
        _raise(again.error)
        self._assert_run_once(again, TASKS)
        assert again.target == failing.values.tobytes()

    def test_a_listener_that_raises_stops_the_run(
        self, executor: Executor, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        def listen(event: Event) -> None:
            if event.kind == "task":
                raise LookupError("listener")

        trial = Trial(tmp_path_factory.mktemp("listener"), self.stores)
        record = Record(trial.folder / "records" / "listener")
        with trial.stages(record) as stages:
            with pytest.raises(LookupError, match="listener"):
                staged_copy(stages, executor, on_event=listen)
            over_ns = time.time_ns()
            time.sleep(0.3)
        assert all(request.began_ns <= over_ns for request in record.requests())

    # Stages of which all, some or no tasks are left.

    def test_the_tasks_that_are_left(self, first: Run, executor: Executor, trial: Trial) -> None:
        _raise(first.error)
        left = [(0, 0), (0, 3), (0, 4), (1, 2)]
        kept = {
            f"c/{row}/{column}": trial.stored("middle")[f"c/{row}/{column}"] for row in (0, 3, 4) for column in (0, 3)
        }
        for key in kept:
            (trial.folder / "middle" / key).unlink()
        (trial.folder / "target/c/0/2").unlink()
        run = trial.run(executor, "left", left=(((0, 1), (3, 5)), ((2, 3),)))
        _raise(run.error)
        self._assert_run_once(run, left)
        assert run.report is not None
        assert [(result.stage, result.index) for result in run.report.results] == left
        assert run.events[0].total == len(left)
        assert run.target == trial.values.tobytes()
        assert {key: trial.stored("middle")[key] for key in kept} == kept

    def test_stages_without_tasks(self, executor: Executor, trial: Trial) -> None:
        run = trial.run(executor, "nothing", left=((), ()))
        _raise(run.error)
        assert run.report is not None
        assert (run.report.results, run.tries()) == ((), {})
        assert run.events == [Event(kind="start", total=0)]
        with trial.stages(run.record) as (stage, _):
            rows = (0, 12)
            plan = replace(stage.plan, shape=rows, read_unit=rows, write_unit=rows, region=rows)
            assert staged_copy([replace(stage, plan=plan)], executor).results == ()
        assert staged_copy([], executor).results == ()

    def test_tasks_that_run_twice_at_once_leave_the_same_bytes(
        self, first: Run, executor: Executor, trial: Trial
    ) -> None:
        _raise(first.error)
        stored = trial.stored("target")
        faults = Faults(slow_s={(1, index): 0.1 for index in range(4)})
        rival: list[rx.TaskResult] = []
        with trial.stages(Record(trial.folder / "records" / "rival"), faults) as (_, stage):
            thread = threading.Thread(target=lambda: rival.extend(map(rx.run_task, [*reversed(stage), *stage])))
            thread.start()
            run = trial.run(executor, "twice", faults, left=((), None))
            thread.join()
        _raise(run.error)
        assert [result.index for result in rival] == [3, 2, 1, 0, 0, 1, 2, 3]
        assert trial.stored("target") == stored

    # Whole jobs, and making it.

    def test_a_whole_job(self, executor: Executor, tmp_path: Path) -> None:
        values = position_values((48, 40, 40))
        source = zarr.create_array(tmp_path / "source.zarr", shape=values.shape, chunks=(1, 40, 40), dtype="f4")
        source[...] = values
        shape = worker_shape(executor)
        job = rx.rechunk(
            tmp_path / "source.zarr",
            (48, 5, 5),
            60_000 * (1 if shape.elastic else shape.tasks_per_worker),
            tmp_path / "target.zarr",
            target_shards=(48, 10, 10),
            executor=executor,
            progress=False,
        )
        assert len(job.stages) == 2
        seen: list[bool] = []

        def listen(event: Event) -> None:
            if event.kind == "start":
                seen.extend(_is_empty_array(stage.target) for stage in job.stages)

        target = job.execute(on_event=listen)
        assert seen == [True, True], "the arrays are there, and empty, when the first task starts"
        assert np.asarray(target[...]).tobytes() == values.tobytes()
        assert (target.chunks, target.shards) == ((48, 5, 5), (48, 10, 10))
        assert job.report is not None
        assert [(r.stage, r.index) for r in job.report.results] == [(t.stage, t.index) for t in job.tasks()]
        status = rx.status(tmp_path / "target.zarr")
        assert (status.done, status.total) == (job.plan.tasks, job.plan.tasks)
        names = {path.name for path in tmp_path.iterdir() if not path.name.endswith(".lock")}
        assert names == {"source.zarr", "target.zarr"}, "the intermediate has gone"

    def test_a_whole_job_of_three_stages(self, executor: Executor, tmp_path: Path) -> None:
        # Operations so slow that they are saved by a third stage, and by intermediates of one object a task.
        dear = replace(rx.CostModel.object(), operation_s=5.0, deeper_s=0.0)
        values = position_values((64, 64))
        source = zarr.create_array(tmp_path / "source.zarr", shape=values.shape, chunks=(1, 64), dtype="f4")
        source[...] = values
        shape = worker_shape(executor)
        job = rx.rechunk(
            tmp_path / "source.zarr",
            (64, 1),
            2_000 * (1 if shape.elastic else shape.tasks_per_worker),
            tmp_path / "target.zarr",
            executor=executor,
            cost_model=dear,
            max_temp_bytes=2 * values.nbytes,  # room for no fourth stage
            verify=True,
            progress=False,
        )
        first, middle, last = (stage.plan for stage in job.stages)
        assert min(first.tasks, middle.tasks, last.tasks) > 1
        assert (first.chunk, middle.chunk) != (first.write_unit, middle.write_unit), "an object holds several pieces"
        target = job.execute()
        assert np.asarray(target[...]).tobytes() == values.tobytes()
        assert job.report is not None
        assert [(r.stage, r.index) for r in job.report.results] == [(t.stage, t.index) for t in job.tasks()]
        written = [sum(r.objects_written for r in job.report.results if r.stage == number) for number in range(3)]
        assert written == [stage.objects for stage in job.plan.stages]
        status = rx.status(tmp_path / "target.zarr")
        assert [one.done for one in status.stages] == [first.tasks, middle.tasks, last.tasks]
        names = {path.name for path in tmp_path.iterdir() if not path.name.endswith(".lock")}
        assert names == {"source.zarr", "target.zarr"}, "the intermediates have gone"

    def test_it_says_what_it_is(self, executor: Executor) -> None:
        assert isinstance(executor, Executor)
        assert executor.name
        shape = worker_shape(executor)
        assert shape.tasks_per_worker == executor.tasks_per_worker >= 1
        assert shape.workers >= 1
        assert shape.cores_per_worker >= 1

    def test_wrong_options_are_a_type_error(self) -> None:
        calls = list(self.wrong_options())
        if not calls:
            pytest.skip("a stated exception: wrong_options gives none")
        for call in calls:
            with pytest.raises(TypeError):
                call()

    def _assert_run_once(self, run: Run, tasks: Iterable[TaskKey]) -> None:
        _raise(run.error)
        assert run.tries().keys() == set(tasks)
        if not self.tasks_may_run_twice:
            assert set(run.tries().values()) <= {1}


def _raise(error: Exception | None) -> None:
    """Let a run that should have gone well fail with its own error."""
    if error is not None:
        raise error


def _texts(error: BaseException) -> Iterable[str]:
    """What an error and its causes say, and what they are."""
    link: BaseException | None = error
    while link is not None:
        yield f"{type(link).__name__}: {link}\n"
        link = link.__cause__


def _is_empty_array(ref: rx.ArrayRef) -> bool:
    root = Path(str(ref.store), ref.path)
    zarr.open_array(root, mode="r")
    return not (root / "c").exists()
