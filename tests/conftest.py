"""What all tests share: hypothesis profiles, and the parts of a machine that a test may need."""

from __future__ import annotations

import fcntl
import importlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import NoReturn

import pytest
from hypothesis import HealthCheck, settings

from rechunk_exec.executors import DaskExecutor, ProcessesExecutor
from tests.clouds import CLOUDS, EMULATORS, ROOT, Addresses, Cloud, running_emulators
from tests.s3 import Bucket, running_server

# gcsfs looks at this when it is imported, by whomever. The emulator speaks no gRPC, by which it would ask before each
# request what kind of bucket it has.
os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"

settings.register_profile("ci", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("dev", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "dev")

PYTHON_NEEDED = {"disp_xr": (3, 12)}
"""Packages that cannot be had on every Python that this package supports."""
APART = frozenset({"pyflink", "flink_jar", "flink_master"})
"""What ``all`` does not ask for, only its name does: a package that wants an environment of its own, and a file that
Beam fetches where it can."""

ONCE = (
    "tests/copy/test_drain.py",
    "tests/copy/test_noting.py",
    "tests/copy/test_worker.py::test_a_failure",
    "tests/copy/test_worker.py::test_a_source_that_is_torn",
    "tests/copy/test_worker.py::test_an_object_that_cannot_be_replaced",
    "tests/copy/test_worker.py::test_memory_that_stays_loose",
    "tests/examples/test_executor_of_your_own.py",
    "tests/examples/test_region_jobs.py",
    "tests/executors/test_batch_executor.py",
    "tests/executors/test_beam.py::test_a_failure",
    "tests/executors/test_beam.py::test_a_job_of_two_stages[processes",
    "tests/executors/test_beam.py::test_a_job_that_outlasts",
    "tests/executors/test_beam.py::test_a_listener",
    "tests/executors/test_beam.py::test_a_task_that_always_fails",
    "tests/executors/test_beam.py::test_an_interrupt",
    "tests/executors/test_beam.py::test_no_array",
    "tests/executors/test_beam.py::test_stages_without_tasks",
    "tests/executors/test_beam.py::test_what_cannot",
    "tests/executors/test_beam.py::test_workers_that",
    "tests/executors/test_contract.py",
    "tests/executors/test_contract_batch.py",
    "tests/executors/test_contract_beam.py",
    "tests/executors/test_contract_gpu.py",
    "tests/executors/test_dask.py",
    "tests/executors/test_docs.py",
    "tests/executors/test_futures.py",
    "tests/executors/test_futures_loky.py",
    "tests/executors/test_gpu.py",
    "tests/executors/test_main_module.py::test_a_command_line",
    "tests/executors/test_main_module.py::test_a_module_run_by_name",
    "tests/executors/test_main_module.py::test_a_script_that_cannot",
    "tests/executors/test_main_module.py::test_a_script_without_the_guard_that",
    "tests/executors/test_main_module.py::test_a_task_in_a_daemonic",
    "tests/executors/test_processes.py::TestProcesses",
    "tests/executors/test_processes.py::test_a_map_survives",
    "tests/executors/test_processes.py::test_a_worker",
    "tests/executors/test_processes.py::test_workers_that_do_not_end",
    "tests/executors/test_worker.py",
    "tests/faults/",
    "tests/measuring/",
    "tests/report/",
    "tests/storage/test_bands.py::test_any_region",
    "tests/storage/test_bands.py::test_chunks_of_any_length",
    "tests/storage/test_beats.py",
    "tests/storage/test_claims.py",
    "tests/storage/test_clouds.py",
    "tests/storage/test_drawnpieces.py",
    "tests/storage/test_full_disk.py",
    "tests/storage/test_icechunk.py::test_a_pool",
    "tests/storage/test_icechunk.py::test_job_after_job",
    "tests/storage/test_icechunk_failures.py",
    "tests/storage/test_icechunk_temp.py",
    "tests/storage/test_journal.py",
    "tests/storage/test_lease.py",
    "tests/storage/test_locations.py",
    "tests/storage/test_object_stores.py::test_a_bucket",
    "tests/storage/test_object_stores.py::test_an_object_is_read",
    "tests/storage/test_object_stores.py::test_an_overwritten_array",
    "tests/storage/test_object_stores.py::test_intermediates",
    "tests/storage/test_object_stores.py::test_the_endpoint",
    "tests/storage/test_secrets.py::test_a_secret",
    "tests/storage/test_secrets.py::test_stores_with_explicit",
    "tests/storage/test_torn.py",
    "tests/storage/test_vanished.py",
    "tests/test_algorithm.py",
    "tests/test_api.py::test_every_request",
    "tests/test_bad_input.py",
    "tests/test_batch.py",
    "tests/test_budget.py",
    "tests/test_chunkspec.py",
    "tests/test_cli.py",
    "tests/test_cli_batch.py",
    "tests/test_cost.py",
    "tests/test_endrequests.py",
    "tests/test_fitting.py",
    "tests/test_four_stages.py",
    "tests/test_grid.py",
    "tests/test_job.py",
    "tests/test_layers.py",
    "tests/test_leftovers.py",
    "tests/test_memory.py",
    "tests/test_memory_promise.py::test_a_job_holds_no_more_than_it_says[direct",
    "tests/test_memory_promise.py::test_a_job_holds_no_more_than_it_says[format 2",
    "tests/test_memory_promise.py::test_a_job_holds_no_more_than_it_says[ragged",
    "tests/test_memory_promise.py::test_a_job_holds_no_more_than_it_says[raw",
    "tests/test_memory_promise.py::test_a_job_holds_no_more_than_it_says[staged,",
    "tests/test_memory_promise.py::test_a_job_holds_no_more_than_it_says[verified",
    "tests/test_memory_promise.py::test_a_job_holds_no_more_than_it_says[whole objects",
    "tests/test_memory_promise.py::test_a_worker_holds",
    "tests/test_memory_promise.py::test_indices",
    "tests/test_oblique.py",
    "tests/test_pictures.py",
    "tests/test_planning.py",
    "tests/test_plans.py",
    "tests/test_preparation.py",
    "tests/test_readme.py",
    "tests/test_regions.py",
    "tests/test_reports.py::test_i0",
    "tests/test_reports.py::test_i1",
    "tests/test_reports.py::test_i4",
    "tests/test_reports.py::test_i5",
    "tests/test_reports.py::test_i6",
    "tests/test_results.py",
    "tests/test_resuming.py",
    "tests/test_sharded_temp.py",
    "tests/test_sizes.py",
    "tests/test_status.py",
    "tests/test_tasks.py",
    "tests/test_three_stages.py",
    "tests/test_waves.py",
    "tests/test_wire.py",
    "tests/testing/",
    "tests/verification/test_compare.py",
    "tests/verification/test_copied.py",
    "tests/verification/test_levels.py",
)
"""Tests that learn little from another interpreter and its zarr: arithmetic and planning, schedulers and contracts of
executors, drivers and their journals, faults, what is refused, printed and sent. They are most of the time. With the
variable RECHUNK_EXEC_AGAIN, which CI sets on the second interpreter, they are left out; those of metadata, codecs,
stores and copying run on both, jobs by each executor, how workers start and import, and a few of those that measure
memory."""

Needs = Callable[[str], ModuleType]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of this test suite."""
    parser.addoption("--long", action="store_true", help="run the tests that are marked as long, and more rounds")


def pytest_configure() -> None:
    """Have Ctrl-C mean what it does, here and in the programs that tests start.

    A shell that starts a program in the background has it ignore that signal, and so would all that it starts.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def once() -> tuple[str, ...]:
    """What to leave out here, as names of tests begin."""
    return ONCE if os.environ.get("RECHUNK_EXEC_AGAIN") else ()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Read no file of which all is left out."""
    name = collection_path.relative_to(config.rootpath).as_posix()
    return True if f"{name}/".startswith(tuple(f"{one.rstrip('/')}/" for one in once())) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what takes long and what must not run beside others; leave out the first, and what has run elsewhere."""
    elsewhere = once()
    left_out = set()
    for item in items:
        if getattr(item, "originalname", None) in long_of(getattr(item, "cls", None)):
            item.add_marker("long")
        if item.get_closest_marker("memory") or item.get_closest_marker("serial"):
            item.add_marker("alone")
        if item.nodeid.startswith(elsewhere) or (item.get_closest_marker("long") and not config.getoption("--long")):
            left_out.add(item)
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Begin what must not run beside others when nobody holds the file of the variable RECHUNK_EXEC_BESIDE any more."""
    beside = os.environ.get("RECHUNK_EXEC_BESIDE")
    if beside and any(item.get_closest_marker("alone") for item in session.items):
        with Path(beside).open() as held:
            fcntl.flock(held, fcntl.LOCK_SH)


def long_of(cls: type | None) -> tuple[str, ...]:
    """The tests that a class has inherited, cannot mark and so names as long, in its attribute ``long``."""
    names: tuple[str, ...] = getattr(cls, "long", ())
    for name in names:
        assert callable(getattr(cls, name, None)), f"{cls}.long must name tests of the class; got {name!r}"
    return names


@pytest.fixture
def long(request: pytest.FixtureRequest) -> bool:
    """Whether many rounds are wanted."""
    return bool(request.config.getoption("--long"))


@pytest.fixture
def needs() -> Needs:
    """Import an optional package for a test: ``needs("disp_xr")``.

    A missing one is a skip on a user's machine. Where the variable RECHUNK_EXEC_REQUIRE names it, or is ``all``, it is
    a failure, so that a green run in CI means that everything was tested. PyFlink, which has an environment of its own,
    is asked for by its name only.
    """
    return needed_module


def needed_module(name: str) -> ModuleType:
    floor = PYTHON_NEEDED.get(name, (3, 0))
    if sys.version_info < floor:
        pytest.skip(f"{name} needs Python {floor[0]}.{floor[1]}")
    try:
        return importlib.import_module(name)
    except ImportError as error:
        if is_required(name):
            pytest.fail(f"RECHUNK_EXEC_REQUIRE asks for {name}, which cannot be imported: {error}")
        pytest.skip(f"{name} is not installed")


def is_required(name: str) -> bool:
    """Whether a test may not be skipped for the lack of ``name``."""
    required = os.environ.get("RECHUNK_EXEC_REQUIRE", "").replace(",", " ").split()
    return name in required or ("all" in required and name not in APART)


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """The address of a real S3 server on this machine, with nothing in it."""
    for package in ("moto", "s3fs", "boto3"):
        needed_module(package)
    with running_server() as address:
        yield address


@pytest.fixture(scope="module")
def s3_environment(s3_server: str) -> Iterator[None]:
    """The environment that all buckets share, for workers that serve several tests."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in Bucket.at(s3_server).environment.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="module")
def s3_processes(s3_environment: None) -> Iterator[ProcessesExecutor]:
    """Two processes that reach any bucket, for all tests of a module."""
    with ProcessesExecutor(2) as pool:
        yield pool


@pytest.fixture(scope="module")
def s3_dask(s3_environment: None) -> Iterator[DaskExecutor]:
    """Two workers of a cluster that reach any bucket, for all tests of a module."""
    needed_module("distributed")
    with DaskExecutor(workers=2) as cluster:
        yield cluster


@pytest.fixture
def s3(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """A new bucket, whose address and credentials are in the environment, and nowhere else."""
    bucket = Bucket.at(s3_server)
    for name, value in bucket.environment.items():
        monkeypatch.setenv(name, value)
    bucket.make()
    return bucket


@pytest.fixture(scope="session")
def emulators(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Addresses]:
    """Emulators of Google Cloud Storage and Azure Blob Storage, with nothing in them."""
    for package in ("gcsfs", "adlfs", "obstore", "cryptography"):
        needed_module(package)
    if shutil.which("node") is None:
        refuse_or_skip("node", "node is not installed, on which Azurite runs")
    programs = {scheme: emulator_of(scheme) for scheme in EMULATORS}
    with running_emulators(programs, tmp_path_factory.mktemp("emulators")) as addresses:
        yield addresses


def emulator_of(scheme: str) -> str:
    """Where an emulator is. Making one takes half a minute, so that is done where it is required only."""
    script = ROOT / EMULATORS[scheme]
    program = subprocess.run([script, "where"], check=True, capture_output=True, text=True).stdout.strip()
    if not Path(program).exists():
        if not is_required(script.name):
            pytest.skip(f"there is no {script.name}; {EMULATORS[scheme]} makes it")
        made = subprocess.run([script], check=False, capture_output=True, text=True)
        if made.returncode:
            pytest.fail(f"RECHUNK_EXEC_REQUIRE asks for {script.name}, which cannot be made: {made.stderr}")
    return program


def refuse_or_skip(name: str, why: str) -> NoReturn:
    if is_required(name):
        pytest.fail(f"RECHUNK_EXEC_REQUIRE asks for {name}: {why}")
    pytest.skip(why)


@pytest.fixture(scope="module")
def clouds_processes(emulators: Addresses) -> Iterator[ProcessesExecutor]:
    """Two processes that reach any bucket of both clouds, for all tests of a module."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in emulators.environment.items():
            patch.setenv(name, value)
        with ProcessesExecutor(2) as pool:
            yield pool


@pytest.fixture(params=list(CLOUDS))
def cloud(request: pytest.FixtureRequest, emulators: Addresses, monkeypatch: pytest.MonkeyPatch) -> Cloud:
    """A new bucket of each cloud; addresses and credentials are in the environment, and nowhere else."""
    for name, value in emulators.environment.items():
        monkeypatch.setenv(name, value)
    return CLOUDS[request.param].at(emulators)
