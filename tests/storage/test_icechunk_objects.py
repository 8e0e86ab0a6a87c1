"""Objects in an icechunk session, and what a task changes in its copy of one."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import rechunk_exec as rx
from rechunk_exec import storage
from rechunk_exec.copy import worker
from rechunk_exec.errors import (
    StorageError,
    TaskError,
)
from rechunk_exec.storage.objects import StoreObjects
from rechunk_exec.storage.sessions import IcechunkTarget
from rechunk_exec.tasks import Stage
from tests.jobs import ZarrArray, elements, make_array
from tests.storage.repositories import (
    SHAPE,
    make_repository,
    one_stage,
    open_repository,
    repo,
    source,
)
from tests.values import same_bits

__all__ = ["repo", "source"]

# Objects in a session.


def allocate(size: int) -> memoryview:
    return memoryview(bytearray(size))


def test_objects_of_a_session(repo: Any) -> None:
    store = repo.writable_session("main").store
    zarr.create_array(store, name="raw", shape=(300,), chunks=(100,), dtype="u1", compressors=None)
    objects = StoreObjects(store, "raw")
    content = bytes(range(100)) * 9  # more than what icechunk keeps inline
    writer = objects.create("c/1")
    writer.append(content[:500])
    writer.append(content[500:])
    assert writer.commit() == 900
    assert bytes(objects.read("c/1", allocate) or b"") == content
    assert bytes(objects.read("c/1", allocate, 20, 50) or b"") == content[20:70]
    assert bytes(objects.read("c/1", allocate, -30, 30) or b"") == content[-30:]
    assert objects.read("c/0", allocate) is None
    assert objects.read("c/0", allocate, -30, 30) is None
    for _ in range(2):  # what is not there is deleted as well
        objects.delete("c/1")
        objects.delete("c/2")
        assert objects.read("c/1", allocate) is None
    StoreObjects(store, "nowhere").delete("c/0")
    assert not storage.holds_documents(storage.array_ref(store))
    assert storage.holds_documents(storage.array_ref("/nowhere"))


@pytest.mark.parametrize("lost", ["chunks", "manifests"])
def test_what_the_repository_has_lost_is_no_fill_value(tmp_path: Path, lost: str) -> None:
    make_repository(tmp_path)
    for file in (tmp_path / "repository" / lost).iterdir():
        file.unlink()
    repo = open_repository(tmp_path)  # the other one may hold them still
    array = zarr.open_array(repo.readonly_session("main").store, path="epochs", mode="r")
    with pytest.raises(TaskError, match=r"c/0/0/0"):
        rx.rechunk(array, (20, 4, 4), 12_000, tmp_path / "target", executor="serial", progress=False).execute()


def test_an_object_that_is_too_short_is_an_error(repo: Any) -> None:
    store = repo.writable_session("main").store
    zarr.create_array(store, name="raw", shape=(300,), chunks=(100,), dtype="u1", compressors=None)
    objects = StoreObjects(store, "raw")
    writer = objects.create("c/1")
    writer.append(bytes(60))
    writer.commit()
    with pytest.raises(StorageError, match="c/1"):
        objects.read("c/1", allocate, 20, 50)
    with pytest.raises(StorageError, match="c/1"):
        objects.read("c/1", allocate, -70, 70)


def test_a_task_gives_back_its_own_changes_only(monkeypatch: pytest.MonkeyPatch, repo: Any, source: ZarrArray) -> None:
    """However often it runs, and whatever else its process has run."""
    session = repo.writable_session("main")
    job = one_stage(source, session)
    target = job.stages[0].target.store
    assert isinstance(target, IcechunkTarget)
    with target.making() as ref:
        make_array(ref.store, SHAPE, (20, 4, 4), name="layers/series", values=np.zeros(SHAPE, "f4"))
    arrived: Stage = pickle.loads(pickle.dumps(job.stages[0]))
    assert repr(arrived.target.store) == "IcechunkFork()"  # what opens a repository is not shown
    opened = []

    def open_reader(*given: Any) -> storage.UnitReader:
        opened.append(given)
        return storage.open_reader(*given)

    monkeypatch.setattr(worker, "open_reader", open_reader)
    results = [rx.run_task(arrived[index]) for index in (0, 1, 0)]
    assert len(opened) == 1  # what is known of the source is kept
    assert "changes" not in repr(results[0])
    assert os.getpid()
    for result, task in zip(results, (arrived[0], arrived[1], arrived[0]), strict=True):
        assert result.changes is not None
        changed = elements(zarr.open_array(pickle.loads(result.changes).store, path="layers/series", mode="r"))
        expected = np.zeros(SHAPE, "f4")
        box = tuple(map(slice, task.start, task.stop))
        expected[box] = elements(source)[box]
        assert same_bits(changed, expected)
