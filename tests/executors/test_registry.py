from __future__ import annotations

from concurrent import futures
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import rechunk_exec as rx
from rechunk_exec.errors import PlanError
from rechunk_exec.executors import (
    DaskExecutor,
    FunctionExecutor,
    FuturesExecutor,
    ProcessesExecutor,
    SerialExecutor,
    ThreadsExecutor,
    check_stages,
    executor_named,
    known_names,
    registry,
    resolve,
)
from tests.conftest import needed_module


@pytest.mark.parametrize(
    "name, kind",
    [
        ("serial", SerialExecutor),
        ("python", SerialExecutor),
        ("threads", ThreadsExecutor),
        ("processes", ProcessesExecutor),
        ("dask", DaskExecutor),
    ],
)
def test_names(name: str, kind: type) -> None:
    if kind is DaskExecutor:
        needed_module("distributed")
    assert type(resolve(name)) is kind
    assert resolve(name) is not resolve(name)
    assert name in known_names()


@pytest.mark.parametrize("name", ["flunk", "thread", "", "Serial", "dask:", "flink:"])
def test_unknown_names(name: str) -> None:
    with pytest.raises(PlanError, match="serial, python, threads, processes, dask") as caught:
        resolve(name)
    assert repr(name) in str(caught.value)


def test_numbers_of_workers() -> None:
    assert executor_named("threads", 3).tasks_per_worker == 3
    assert isinstance(executor_named("processes", 2), ProcessesExecutor)
    with pytest.raises(PlanError, match="one worker"):
        executor_named("serial", 2)


def test_names_of_other_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [
        EntryPoint(name="mine", value="rechunk_exec.executors.threads:ThreadsExecutor", group=registry.ENTRY_POINTS),
        EntryPoint(name="serial", value="nowhere:Nothing", group=registry.ENTRY_POINTS),
    ]
    monkeypatch.setattr(registry, "entry_points", lambda *, group: points if group == registry.ENTRY_POINTS else [])
    assert isinstance(resolve("mine"), ThreadsExecutor)
    assert isinstance(resolve("serial"), SerialExecutor), "built-in names come first"
    built_in = ("serial", "python", "threads", "processes", "dask", "beam", "flink", "gpu", "batch")
    assert known_names() == (*built_in, "mine")
    with pytest.raises(PlanError, match="mine"):
        resolve("yours")


def test_names_of_an_installed_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "reversing-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: reversing\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text(
        f"[{registry.ENTRY_POINTS}]\n"
        "reversed = reversing:Reversed\n"
        "fast = reversing_fast:Fast [speed]\n"
        "lost = reversing:Lost\n"
    )
    (tmp_path / "reversing.py").write_text(
        "from rechunk_exec.executors import ThreadsExecutor\n\n\n"
        "class Reversed(ThreadsExecutor):\n"
        "    name = 'reversed'\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    executor = resolve("reversed")
    assert (type(executor).__module__, executor.name) == ("reversing", "reversed")
    assert executor_named("reversed", 5).tasks_per_worker == 5
    assert known_names()[-3:] == ("fast", "lost", "reversed")
    with pytest.raises(PlanError, match=r"ModuleNotFoundError.*pip install 'reversing\[speed\]'"):
        resolve("fast")
    with pytest.raises(PlanError, match=r"'lost' must load from 'reversing:Lost', which reversing declares"):
        resolve("lost")
    source = zarr.create_array(tmp_path / "source.zarr", data=np.arange(24.0).reshape(4, 6), chunks=(1, 6))
    job = rx.rechunk(source, (4, 2), "1MB", tmp_path / "target.zarr", executor="reversed", progress=False)
    assert np.array_equal(job.execute()[:], source[:])
    assert job.report is not None
    assert job.report.executor == "reversed"


def test_objects() -> None:
    executor = SerialExecutor()
    assert resolve(executor) is executor
    with futures.ThreadPoolExecutor(1) as pool:
        assert isinstance(resolve(pool), FuturesExecutor)
    assert isinstance(resolve(print), FunctionExecutor)


@pytest.mark.parametrize("executor", [None, 3, object(), ["threads"]])
def test_what_is_no_executor(executor: Any) -> None:
    with pytest.raises(TypeError, match="executor must be"):
        resolve(executor)


def test_a_class_is_no_executor() -> None:
    with pytest.raises(TypeError, match="the class ThreadsExecutor"):
        resolve(ThreadsExecutor)


def test_stages_are_checked_where_an_executor_can() -> None:
    check_stages(print, [])
    check_stages(ProcessesExecutor(1), [])
