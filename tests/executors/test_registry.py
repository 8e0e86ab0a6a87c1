from __future__ import annotations

from concurrent import futures
from importlib.metadata import EntryPoint
from typing import Any

import pytest

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
    assert known_names() == ("serial", "python", "threads", "processes", "dask", "flink", "mine")
    with pytest.raises(PlanError, match="mine"):
        resolve("yours")


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
