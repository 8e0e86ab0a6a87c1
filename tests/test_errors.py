from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable

import pytest

import rechunk_exec
from rechunk_exec import errors
from rechunk_exec.errors import (
    BudgetError,
    MissingExtraError,
    NotReadyError,
    PlanError,
    RechunkError,
    ResumeError,
    SerializationError,
    StorageError,
    TargetExistsError,
    TaskError,
)

TREE: dict[type[RechunkError], tuple[type[BaseException], ...]] = {
    RechunkError: (Exception,),
    PlanError: (RechunkError, ValueError),
    BudgetError: (PlanError,),
    TargetExistsError: (RechunkError, FileExistsError),
    StorageError: (RechunkError,),
    TaskError: (RechunkError,),
    NotReadyError: (RechunkError,),
    ResumeError: (RechunkError,),
    MissingExtraError: (RechunkError, ImportError),
    SerializationError: (RechunkError,),
}
EXAMPLES = [
    RechunkError("what happened"),
    PlanError("what happened"),
    BudgetError("what happened", needed_bytes=5, max_mem=4),
    TargetExistsError("what happened"),
    StorageError("what happened"),
    TaskError("what happened", stage=1, index=7),
    NotReadyError("what happened"),
    ResumeError("what happened"),
    MissingExtraError("distributed", "dask"),
    SerializationError("what happened"),
]


def test_the_tree_is_as_documented() -> None:
    found = {kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, RechunkError)}
    assert found == set(TREE)
    for kind, bases in TREE.items():
        assert kind.__bases__ == bases
        assert kind.__name__ in str(errors.__doc__)
        assert getattr(rechunk_exec, kind.__name__) is kind


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize(
    "travel",
    [lambda error: pickle.loads(pickle.dumps(error)), copy.copy, copy.deepcopy],
    ids=["pickle", "copy", "deep"],
)
def test_errors_survive_pickle_with_all_they_say(
    error: RechunkError, travel: Callable[[RechunkError], RechunkError]
) -> None:
    error.add_note("a note")
    found = travel(error)
    assert type(found) is type(error)
    assert str(found) == str(error)
    assert found.args == error.args
    assert found.__dict__ == error.__dict__
    assert found.__notes__ == error.__notes__


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_a_message_that_grew_survives_pickle(error: RechunkError) -> None:
    error = copy.copy(error)
    error.args = (f"{error.args[0]}; and more", *error.args[1:])
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert str(error).endswith("; and more")


def test_attributes() -> None:
    budget = BudgetError("b", needed_bytes=5, max_mem=4)
    assert (budget.needed_bytes, budget.max_mem) == (5, 4)
    task = TaskError("t", stage=1, index=7)
    assert (task.stage, task.index) == (1, 7)


def test_a_missing_package_names_its_extra() -> None:
    with pytest.raises(ImportError, match=r"'distributed'.*pip install 'rechunk_exec\[dask\]'"):
        raise MissingExtraError("distributed", "dask")


class ForeignError(TaskError):
    """Of another package."""


def test_subclasses_survive_pickle() -> None:
    found = pickle.loads(pickle.dumps(ForeignError("t", stage=1, index=7)))
    assert type(found) is ForeignError
    assert (found.stage, found.index) == (1, 7)
