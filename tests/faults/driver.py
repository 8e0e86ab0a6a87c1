"""A program that runs one job, to be killed: ``python -m tests.faults.driver '{"source": ...}'``.

It prints ``ready`` when its modules are imported, and at the end one line of JSON: how many tasks it has run.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import rechunk_exec as rx
from rechunk_exec import keeper
from rechunk_exec.executors import PoolExecutor, executor_named
from rechunk_exec.storage import claims


@dataclass(frozen=True, kw_only=True)
class Order:
    """What to run, and how slowly."""

    source: str
    target: str
    log: str
    """A folder, for what was run."""
    chunks: tuple[int, ...]
    max_mem: int
    temp: str | None = None
    mode: str = "resume"
    executor: str = "serial"
    workers: int = 2
    seconds: float = 0.0
    """What each task waits before it copies; a tenth of it is waited before each object gets its name."""
    write_s: float = 0.1
    """How often the journal is written."""
    beat_s: float = 10.0
    stale_s: float = 60.0
    options: dict[str, Any] = field(default_factory=dict)
    """For the function ``rechunk``; a cost model by its members, as JSON knows them."""

    def exact_options(self) -> dict[str, Any]:
        """The options as the function takes them."""
        model = self.options.get("cost_model")
        return self.options | ({"cost_model": rx.CostModel(**model)} if isinstance(model, dict) else {})

    def command(self) -> list[str]:
        """The command that runs it."""
        return [sys.executable, "-m", "tests.faults.driver", json.dumps(asdict(self))]


@dataclass(frozen=True)
class SlowCopy:
    """A task function: notes that a task begins, and copies slowly, so that a kill often meets a file half written."""

    log: str
    seconds: float

    def __call__(self, task: rx.CopyTask) -> rx.TaskResult:
        with (Path(self.log) / f"{os.getpid()}.tasks").open("a") as begun:
            begun.write(f"{task.stage} {task.index}\n")
        time.sleep(self.seconds)
        rename_slowly(self.seconds / 10)
        return rx.run_task(task)


_replace = os.replace


def rename_slowly(seconds: float) -> None:
    """Have every file of this process wait before it gets its name."""

    def replace_slowly(*names: Any, **folders: Any) -> None:
        time.sleep(seconds)
        _replace(*names, **folders)

    os.replace = replace_slowly


def tasks_begun(log: Path) -> list[tuple[int, int]]:
    """The stage and number of each task that was begun, once for each time."""
    lines = [line for path in log.glob("*.tasks") for line in path.read_text().splitlines()]
    return [(int(stage), int(index)) for stage, index in (line.split() for line in lines)]


def slow_executor(order: Order) -> Any:
    """The executor of an order, whose tasks are slow."""
    executor: Any = executor_named(order.executor, None if order.executor == "serial" else order.workers)
    assert isinstance(executor, PoolExecutor)
    executor.task_function = SlowCopy(order.log, order.seconds)
    return executor


def main(text: str) -> None:
    """Run the job that ``text`` orders."""
    order = Order(**json.loads(text))
    keeper.WRITE_S = order.write_s
    claims.__dict__.update(BEAT_S=order.beat_s, STALE_S=order.stale_s)
    with slow_executor(order) as executor:
        print("ready", flush=True)
        job = rx.rechunk(
            order.source,
            tuple(order.chunks),
            order.max_mem,
            order.target,
            temp_store=order.temp,
            executor=executor,
            mode=order.mode,  # type: ignore[arg-type]
            progress=False,
            **order.exact_options(),
        )
        job.execute()
    assert job.report is not None
    print(json.dumps({"tasks": job.report.tasks, "retries": job.report.retries}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
