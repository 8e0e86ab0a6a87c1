from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import zarr

import rechunk_exec.testing
from rechunk_exec.testing import InjectedFault, WatchedStore
from rechunk_exec.testing.record import Faults, Record, Watch
from rechunk_exec.testing.trial import Trial, position_values
from tests.executors.workers import environment


def test_workers_need_no_pytest() -> None:
    code = (
        "import sys; from rechunk_exec.testing import WatchedStore; import rechunk_exec.testing.calls; "
        "assert 'pytest' not in sys.modules; from rechunk_exec.testing import ExecutorContract; "
        "assert 'pytest' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=environment())


def test_its_names() -> None:
    assert all(hasattr(rechunk_exec.testing, name) for name in rechunk_exec.testing.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Contract'"):
        _ = rechunk_exec.testing.Contract


def test_a_store_that_travels_keeps_its_faults_and_its_record(tmp_path: Path) -> None:
    Trial(tmp_path)
    watch = Watch(array="source", faults=Faults(fails={(0, 3): 2}), record=Record(tmp_path / "record"))
    stores = [WatchedStore(tmp_path / "source", watch)]
    stores.append(pickle.loads(pickle.dumps(stores[0])))
    assert stores[0] == stores[1]
    assert len(pickle.dumps(stores[0])) < 1000
    for store in stores:
        with pytest.raises(InjectedFault, match=r"task 3 of stage 0, by its chunk c/3/0"):
            _ = zarr.open_array(store, mode="r")[3]
    rows = zarr.open_array(stores[1], mode="r")[2:4]
    assert rows.tobytes() == position_values((12, 12))[2:4].tobytes()  # type: ignore[union-attr]
    assert watch.record.tries() == {(0, 2): 1, (0, 3): 3}
    assert [(request.key, request.failed) for request in watch.record.requests()][:2] == [("c/3/0", True)] * 2
    assert all(request.ended_ns for request in watch.record.requests())


def test_nobody_dies_of_a_server(tmp_path: Path) -> None:
    trial = Trial(tmp_path, "named")
    faults = Faults(dies={(0, 0): 1})
    with pytest.raises(ValueError, match="stores='named'"), trial.stages(Record(tmp_path / "record"), faults):
        pass
