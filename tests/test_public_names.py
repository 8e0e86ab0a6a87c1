from __future__ import annotations

import ast
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

import rechunk_exec
from rechunk_exec import batch, errors, executors


def test_the_public_names_are_those_of_the_contract() -> None:
    assert sorted(rechunk_exec.__all__) == [
        "ArrayRef",
        "BudgetError",
        "Chunk",
        "ChunkResult",
        "ChunkTask",
        "CopyReport",
        "CopyTask",
        "CostModel",
        "JobStatus",
        "MissingExtraError",
        "NotReadyError",
        "Plan",
        "PlanError",
        "RechunkError",
        "Rechunked",
        "ResumeError",
        "SerializationError",
        "Stage",
        "StagePlan",
        "StorageError",
        "TargetExistsError",
        "TaskError",
        "TaskResult",
        "VerifyReport",
        "check_aligned",
        "chunk_task",
        "failed_jobs",
        "finalize_jobs",
        "measure",
        "plan_rechunk",
        "rechunk",
        "run_chunk_tasks",
        "run_job",
        "run_task",
        "staged_copy",
        "status",
        "verify",
        "write_jobs",
    ]


def test_every_public_name_is_there() -> None:
    assert [name for name in rechunk_exec.__all__ if not hasattr(rechunk_exec, name)] == []


def test_errors_are_the_same_in_both_places() -> None:
    tree = [
        value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, errors.RechunkError)
    ]
    assert [error.__name__ for error in tree if getattr(rechunk_exec, error.__name__) is not error] == []


@pytest.mark.parametrize("package", [rechunk_exec, batch, executors])
def test_type_checkers_are_told_the_same_names_from_the_same_modules(package: ModuleType) -> None:
    assert package.__file__ is not None
    stub = ast.parse(Path(package.__file__).with_suffix(".pyi").read_text())
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    homes = {alias.name: f"{package.__name__}.{node.module}" for node in imports if node.module for alias in node.names}
    assert sorted(homes) == sorted(package.__all__)
    for name, home in homes.items():
        assert getattr(package, name) is getattr(sys.modules[home], name)
    (declared,) = [ast.literal_eval(node.value) for node in stub.body if isinstance(node, ast.Assign)]
    assert sorted(declared) == sorted(package.__all__)


THREADS = """
import importlib, sys, threading
import rechunk_exec as rx
wanted = sys.argv[1:]
together, errors = threading.Barrier(len(wanted)), []
def use(name):
    together.wait()
    try:
        importlib.import_module(name) if "." in name else getattr(rx, name)
    except BaseException as error:
        errors.append(f"{name}: {error!r}")
threads = [threading.Thread(target=use, args=[name]) for name in wanted]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
sys.exit("; ".join(errors) or 0)
"""


def test_several_threads_may_be_the_first_to_use_the_package(long: bool) -> None:
    names = ["rechunk_exec.testing", "rechunk", "verify", "rechunk_exec.executors.processes", "measure", "run_job"]
    for order in (names, names[::-1]) if long else (names,):
        subprocess.run([sys.executable, "-c", THREADS, *order], check=True)


AT_A_MODULE = """
import sys, threading, time
import rechunk_exec as rx
reached, errors = threading.Event(), []
class Slow:
    @staticmethod
    def find_spec(name, path, target=None):
        if name == "rechunk_exec.batch" and not reached.is_set():
            reached.set()
            time.sleep(0.5)
sys.meta_path.insert(0, Slow)
def beside():
    reached.wait()
    import rechunk_exec.batch.running
threading.excepthook = lambda failure: errors.append(f"{failure.exc_value!r}")
threads = [threading.Thread(target=beside), threading.Thread(target=lambda: rx.run_job)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
sys.exit("; ".join(errors) or 0)
"""


def test_a_thread_may_import_a_module_while_another_imports_what_is_in_it() -> None:
    # Python saw that each waited for the other, and gave one of them an error, once in fifty times.
    subprocess.run([sys.executable, "-c", AT_A_MODULE], check=True)


def test_the_package_can_be_imported_from_a_zip_file(tmp_path: Path) -> None:
    folder = Path(rechunk_exec.__file__).parent
    with zipfile.ZipFile(tmp_path / "package.zip", "w") as archive:
        for path in folder.rglob("*.py"):
            archive.write(path, path.relative_to(folder.parent))
    code = "import rechunk_exec as rx; print(rx.__file__, rx.plan_rechunk((8, 8), 4, (1, 8), (8, 1), '1MB').traffic)"
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, 'package.zip'); {code}"]
    run = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True)
    assert run.stdout.split() == ["package.zip/rechunk_exec/__init__.py", "2.0"]
