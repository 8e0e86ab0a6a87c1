from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice, pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.storage import MemoryStore

from rechunk_exec.errors import PlanError, SerializationError
from rechunk_exec.stageplan import StagePlan
from rechunk_exec.tasks import DOCUMENT_SCHEMES, ArrayRef, CopyTask, Stage
from tests import oracles

SOURCE = ArrayRef(store="/data/frame.zarr", path="layers/displacement")
TARGET = ArrayRef(store="s3://bucket/series.zarr", storage_options={"anon": True, "endpoint_url": "http://h"})


def plan_of(shape: tuple[int, ...], region: tuple[int, ...], **fields: Any) -> StagePlan:
    values = {
        "itemsize": 4,
        "source": "source",
        "target": "target",
        "read_unit": region,
        "write_unit": region,
        "chunk": region,
        "threads": 2,
        "tasks_per_worker": 3,
        "peak_bytes": 3000,
        "predicted_s": 1.5,
    }
    return StagePlan(shape=shape, region=region, **{**values, **fields})


def stage_of(shape: tuple[int, ...], region: tuple[int, ...], **fields: Any) -> Stage:
    return Stage(number=1, plan=plan_of(shape, region), source=SOURCE, target=TARGET, **{"job": "j", **fields})


HUGE = stage_of((389, 68_980, 96_180), (389, 15, 31))
"""Some fourteen million tasks."""


def test_a_stage_of_millions_is_small_and_lazy() -> None:
    assert len(HUGE) == 4599 * 3103 == 14_270_697
    assert HUGE.tasks == len(HUGE)
    assert len(pickle.dumps(HUGE)) < 4000
    assert len(HUGE.to_json()) < 4000
    assert len(pickle.dumps(HUGE[9_999_999])) < 4000
    assert len(HUGE[9_999_999].to_json()) < 4000
    assert sys.getsizeof(HUGE) < 500
    assert not isinstance(HUGE, (list, tuple))
    assert not hasattr(HUGE, "__dict__")
    assert isinstance(HUGE, Sequence)


def test_any_task_of_millions_is_made_on_the_spot() -> None:
    last = HUGE[-1]
    assert last == HUGE[len(HUGE) - 1]
    assert last.index == 14_270_696
    assert (last.start, last.stop) == ((0, 68_970, 96_162), (389, 68_980, 96_180))
    middle = HUGE[7_000_000]
    row, column = divmod(7_000_000, 3103)
    assert (middle.start, middle.stop) == ((0, row * 15, column * 31), (389, row * 15 + 15, column * 31 + 31))
    assert middle in HUGE
    assert replace(middle, threads=1) not in HUGE
    assert replace(middle, index=10**9) not in HUGE
    anything: list[object] = ["no task", None]
    assert not any(thing in HUGE for thing in anything)
    assert [task.index for task in islice(HUGE, 3)] == [0, 1, 2]
    assert [task.index for task in islice(reversed(HUGE), 2)] == [14_270_696, 14_270_695]


def test_a_slice_of_millions_is_lazy_too() -> None:
    part = HUGE[10:-10:7]
    assert not isinstance(part, (list, tuple))
    assert len(part) == len(range(14_270_697)[10:-10:7])
    assert part[0].index == 10
    assert part[-1] == HUGE[range(14_270_697)[10:-10:7][-1]]
    assert [task.index for task in part[5:8]] == [45, 52, 59]
    assert [task.index for task in HUGE[::-1][:2]] == [14_270_696, 14_270_695]
    assert len(HUGE[5:5]) == 0
    assert len(pickle.dumps(part)) < 4000
    assert pickle.loads(pickle.dumps(part))[3] == part[3]


axes = st.lists(
    st.tuples(st.integers(0, 7), st.integers(1, 9), st.integers(1, 3)), max_size=3
)  # elements, write unit, write units in a region


def small_stage(axes: list[tuple[int, int, int]]) -> Stage:
    shape = tuple(n for n, _, _ in axes)
    write_unit = tuple(min(unit, n) for n, unit, _ in axes)
    region = tuple(min(unit * count, n) for n, unit, count in axes)
    plan = plan_of(shape, region, write_unit=write_unit, read_unit=write_unit, chunk=tuple(unit for _, unit, _ in axes))
    return Stage(number=0, plan=plan, source=SOURCE, target=TARGET)


@given(axes)
def test_the_tasks_of_a_stage_cover_the_array_once(axes: list[tuple[int, int, int]]) -> None:
    stage = small_stage(axes)
    tasks = list(stage)
    assert tasks == [*stage] == [stage[number] for number in range(len(stage))]
    assert [task.index for task in tasks] == list(range(len(stage)))
    counts = oracles.stage_counts(stage.shape, stage.read_unit, stage.write_unit, stage.region)
    assert len(stage) == counts.tasks
    elements = [element for task in tasks for element in _elements(list(zip(task.start, task.stop, strict=True)))]
    assert sorted(elements) == _elements([(0, n) for n in stage.shape])


def _elements(axes: list[tuple[int, int]]) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = [()]
    for low, high in axes:
        found = [(*start, number) for start in found for number in range(low, high)]
    return found


@given(axes, st.data())
def test_indices_and_slices_are_those_of_a_list(axes: list[tuple[int, int, int]], data: st.DataObject) -> None:
    stage = small_stage(axes)
    tasks = list(stage)
    cut = data.draw(st.slices(len(tasks) + 2))
    assert list(stage[cut]) == tasks[cut]
    assert list(reversed(stage)) == tasks[::-1]
    number = data.draw(st.integers(-len(tasks) - 2, len(tasks) + 1))
    if -len(tasks) <= number < len(tasks):
        assert stage[number] == tasks[number]
        assert stage.index(tasks[number]) == number % len(tasks)
    else:
        with pytest.raises(IndexError):
            stage[number]


def test_a_0d_array_is_one_task_and_a_zero_axis_none() -> None:
    assert [(task.start, task.stop) for task in stage_of((), ())] == [((), ())]
    assert list(stage_of((5, 0), (5, 0))) == []
    with pytest.raises(IndexError):
        stage_of((5, 0), (5, 0))[0]


@given(axes, st.text(st.characters(exclude_characters="./\\\0"), max_size=5), st.booleans())
@settings(max_examples=50)
def test_stages_and_tasks_travel_as_pickle_and_json(axes: list[tuple[int, int, int]], job: str, digest: bool) -> None:
    stage = replace(small_stage(axes), job=job, digest=digest, journal=TARGET if digest else None)
    assert pickle.loads(pickle.dumps(stage)) == stage == Stage.from_json(stage.to_json())
    assert list(Stage.from_json(stage.to_json())) == list(stage)
    for task in stage[:3]:
        assert pickle.loads(pickle.dumps(task)) == task == CopyTask.from_json(task.to_json())
        assert "\n" not in task.to_json()


def test_a_task_says_what_its_stage_says() -> None:
    stage = stage_of((10, 8), (10, 4), journal=SOURCE, digest=True)
    task = stage[1]
    assert (task.stage, task.index, task.start, task.stop) == (1, 1, (0, 4), (10, 8))
    assert (task.source, task.target, task.threads, task.predicted_bytes) == (SOURCE, TARGET, 2, 1500)
    assert (task.job, task.journal, task.digest) == ("j", SOURCE, True)
    assert stage.box(1) == (task.start, task.stop)
    assert (stage.shape, stage.region, stage.read_unit, stage.write_unit) == ((10, 8), *[(10, 4)] * 3)


@pytest.mark.parametrize(
    "fields",
    [
        {"start": (0, -1)},
        {"start": (0, 8)},
        {"start": (0, 9)},
        {"start": (0,)},
        {"stop": (10, 8, 1)},
        {"stage": -1},
        {"index": -1},
        {"threads": 0},
        {"predicted_bytes": -1},
        {"read_unit": (10,)},
        {"read_unit": (10, 0)},
        {"read_unit": (10, -8)},
    ],
    ids=str,
)
def test_a_task_that_makes_no_sense_is_refused_built_or_read(fields: dict[str, Any]) -> None:
    task = stage_of((10, 8), (10, 8))[0]
    with pytest.raises(PlanError, match="a task's"):
        replace(task, **fields)
    document = {**json.loads(task.to_json()), **fields}
    with pytest.raises(SerializationError, match="CopyTask: a task's"):
        CopyTask.from_json(json.dumps(document))


def test_a_stage_whose_regions_share_write_units_is_refused_built_or_read() -> None:
    stage = stage_of((10, 8), (10, 4))
    document = json.loads(stage.to_json())
    document["plan"]["region"] = [10, 3]
    with pytest.raises(SerializationError, match="region covers whole write units"):
        Stage.from_json(json.dumps(document))


@pytest.mark.parametrize(
    "edit,problem",
    [
        ({"start": [0, True]}, "CopyTask.start[1]"),
        ({"start": [0, 2**64]}, "63 bits"),
        ({"source": "/d"}, "CopyTask.source must be an object"),
        ({"source": {"store": 5}}, "CopyTask.source.store must be a string"),
        ({"source": {"store": "s3://b", "storage_options": {"secret": "x"}}}, "no credentials"),
        ({"source": {"store": "s3://b", "storage_options": {"a": {"b": 1}}}}, "CopyTask.source.storage_options['a']"),
        ({"code": "import os"}, "CopyTask.code is unknown"),
        ({"digest": 1}, "CopyTask.digest must be true or false"),
        ({"job": None}, "CopyTask.job must be a string"),
        ({"threads": 4097}, "CopyTask: a document must ask for 4096 threads at most; got 4097"),
    ],
    ids=str,
)
def test_a_task_edited_by_hand_is_refused(edit: dict[str, Any], problem: str) -> None:
    document = {**json.loads(stage_of((10, 8), (10, 4))[0].to_json()), **edit}
    with pytest.raises(SerializationError) as caught:
        CopyTask.from_json(json.dumps(document))
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    "name",
    [
        "secret",
        "key",
        "password",
        "passwd",
        "aws_secret_access_key",
        "aws_access_key_id",
        "account_key",
        "api_key",
        "private_key",
        "connection_string",
        "sas_token",
        "TOKEN",
        "credentials",
    ],
)
def test_credentials_are_refused(name: str) -> None:
    with pytest.raises(SerializationError, match=f"carries no credentials; got the storage option '{name}'") as caught:
        ArrayRef(store="s3://b/a", storage_options={"anon": False, name: "hunter2"})
    assert "hunter2" not in str(caught.value)


def test_a_password_in_a_url_is_refused() -> None:
    with pytest.raises(SerializationError, match="a URL of host with a password") as caught:
        ArrayRef(store="ftp://user:hunter2@host/a")
    assert "hunter2" not in str(caught.value)
    ArrayRef(store="ftp://user@host/a")
    ArrayRef(store="/odd:name@here/a")


@pytest.mark.parametrize(
    "url, what",
    [
        ("simplecache::http://me:hunter2@host/a", "a password"),
        ("zip://a.zarr::s3://key:hunter2@host/a.zip", "a password"),
        ("https://hunter2@host/a", "a user name alone"),
        ("https://host/a?versionId=7&X-Amz-Signature=hunter2", "'X-Amz-Signature'"),
        ("https://host/a?sv=2025&sig=hunter2", "'sig'"),
        ("https://host/a?token=hunter2", "'token'"),
    ],
)
def test_credentials_anywhere_in_a_url_are_refused(url: str, what: str) -> None:
    live = SimpleNamespace(path=url)  # as a store of this URL
    wanted: list[dict[str, Any]] = [
        {"store": url},
        {"store": "s3://b/a", "storage_options": {"endpoint_url": url}},
        {"store": live},
    ]
    for words in wanted:
        with pytest.raises(SerializationError, match=f"credentials; got a URL of host with {what}") as caught:
            ArrayRef(**words)
        assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "abfs://container@account/a",
        "ssh://me@host/a",
        "s3://b/a?versionId=7",
        "http://[/a",
        "github://organisation:repository@main/a",
    ],
)
def test_urls_without_credentials_are_taken(url: str) -> None:
    assert ArrayRef(store=url, storage_options={"endpoint_url": url}).by_name


@pytest.mark.parametrize("value", [{"endpoint_url": "http://h"}, ["a"], object()], ids=["dict", "list", "object"])
def test_options_that_are_no_plain_values_are_refused_at_once(value: Any) -> None:
    # They were found when a worker could not tell the array from others: an unhashable key.
    with pytest.raises(SerializationError, match="for 'client_kwargs'; make the store yourself"):
        ArrayRef(store="s3://b/a", storage_options={"client_kwargs": value})


@pytest.mark.parametrize("name", ["endpoint_url", "anon", "monkey", "use_ssl", "region", "project", "keyboard"])
def test_other_options_are_taken(name: str) -> None:
    assert ArrayRef(store="s3://b/a", storage_options={name: True}).by_name


# What comes from elsewhere.


@pytest.mark.parametrize("path", ["../a", "a/../b", "..", ".", "a/./b", "/a", "/etc/passwd", "a/", "a//b", "/", "a\0b"])
def test_a_path_inside_a_store_leads_nowhere_else(path: str) -> None:
    with pytest.raises(SerializationError, match=r"an array's path inside its store|no NUL character"):
        ArrayRef(store="/data", path=path)
    document = json.loads(stage_of((10, 8), (10, 4))[0].to_json())
    document["target"]["path"] = path
    with pytest.raises(SerializationError, match=r"CopyTask\.target: an array's path|CopyTask\.target: .*no NUL"):
        CopyTask.from_json(json.dumps(document))


STRANGE = [
    *("relative", "./here", "../up", "/data/../etc", "/data/./a", "/data//a", "/data/", "~/a", ""),
    *("file:///etc", "file://localhost/etc", "local:///etc", "simplecache::s3://b/a", "s3://b/a::file:///etc"),
    *("filecache::file:///etc", "reference://", "reference::/refs.json", "zip://a::file:///b.zip", "zip:///b.zip"),
    *("dir:///etc", "cached:///a", "github://o:r@/a", "git:///repo", "jupyter://h/a", "libarchive:///a", "dask://a"),
    *("s3://b/../a", "http://h/a/../../b", "S3://b/a", "://a", "ssh+x://h/a", "py:os.system", "/data\0", "s3://b\0"),
]


@pytest.mark.parametrize("store", STRANGE)
@pytest.mark.parametrize("member", ["source", "target", "journal"])
def test_a_store_from_elsewhere_is_a_plain_path_or_one_url(member: str, store: str) -> None:
    document = json.loads(stage_of((10, 8), (10, 4), journal=SOURCE)[0].to_json())
    document[member]["store"] = store
    with pytest.raises(SerializationError) as caught:
        CopyTask.from_json(json.dumps(document))
    assert f"CopyTask.{member}" in str(caught.value)
    stage = json.loads(stage_of((10, 8), (10, 4), journal=SOURCE).to_json())
    stage[member]["store"] = store
    with pytest.raises(SerializationError):
        Stage.from_json(json.dumps(stage))


@pytest.mark.parametrize(
    "store", ["/", "/data/a.zarr", "/odd:name/a b", "/a..b", "/a.zip", "memory://a", "s3://b/a..b"]
)
def test_a_plain_path_or_url_is_taken(store: str) -> None:
    ref = ArrayRef(store=store, path="g/a..b")
    task = replace(stage_of((10, 8), (10, 4))[0], target=ref)
    assert CopyTask.from_json(task.to_json()) == task


@pytest.mark.parametrize("scheme", DOCUMENT_SCHEMES)
def test_every_scheme_that_is_named_is_taken(scheme: str) -> None:
    task = replace(stage_of((10, 8), (10, 4))[0], source=ArrayRef(store=f"{scheme}://place/a"))
    assert CopyTask.from_json(task.to_json()) == task


def test_within_a_program_any_url_goes() -> None:
    store = "simplecache::https://h/a"
    assert ArrayRef(store=store).store == store
    assert pickle.loads(pickle.dumps(stage_of((10, 8), (10, 4), journal=ArrayRef(store=store)))).journal.store == store


@pytest.mark.parametrize("job", ["../up", "a/b", ".hidden", "..", "a\0", "a\\b"])
def test_a_jobs_name_is_no_path(job: str) -> None:
    for kind, record in ((CopyTask, stage_of((10, 8), (10, 4))[0]), (Stage, stage_of((10, 8), (10, 4)))):
        with pytest.raises(SerializationError, match="a job's name"):
            replace(record, job=job)
        document = {**json.loads(record.to_json()), "job": job}
        with pytest.raises(SerializationError, match=f"{kind.__name__}: a job's name"):
            kind.from_json(json.dumps(document))


def test_a_document_is_no_pickle() -> None:
    for text in (pickle.dumps(stage_of((10, 8), (10, 4))[0]), b"\x80\x04.", "cos\nsystem\n(S'true'\ntR."):
        with pytest.raises(SerializationError, match="must be JSON"):
            CopyTask.from_json(text)


# Tasks that are left.

runs = st.sets(st.integers(0, 40)).map(sorted)


def left_of(numbers: list[int]) -> tuple[tuple[int, int], ...]:
    """The runs of some numbers, by cutting after each that the next does not follow."""
    cuts = [0, *(at for at in range(1, len(numbers)) if numbers[at] != numbers[at - 1] + 1), len(numbers)]
    return tuple((numbers[low], numbers[high - 1] + 1) for low, high in pairwise(cuts) if low < high)


@given(runs, st.data())
def test_a_stage_of_which_some_is_left_is_the_sequence_of_those(numbers: list[int], data: st.DataObject) -> None:
    whole = stage_of((41, 3), (1, 3))
    stage = replace(whole, left=left_of(numbers))
    tasks = [whole[number] for number in numbers]
    assert (len(stage), stage.tasks) == (len(numbers), 41)
    assert list(stage) == [*stage] == tasks
    assert list(reversed(stage)) == tasks[::-1]
    cut = data.draw(st.slices(len(tasks) + 2))
    assert list(stage[cut]) == tasks[cut]
    assert [stage.task_number(position) for position in range(len(stage))] == numbers
    for number in range(41):
        assert stage.has_task(number) == (number in numbers) == (whole[number] in stage)
        if number in numbers:
            assert stage.index(whole[number]) == numbers.index(number)
    assert not stage.has_task(41)
    assert not stage.has_task(-1)
    position = data.draw(st.integers(-len(tasks) - 2, len(tasks) + 1))
    if -len(tasks) <= position < len(tasks):
        assert stage[position] == tasks[position]
    else:
        with pytest.raises(IndexError):
            stage[position]
    assert pickle.loads(pickle.dumps(stage)) == stage == Stage.from_json(stage.to_json())
    assert [stage.box(number) for number in range(41)] == [whole.box(number) for number in range(41)]


@pytest.mark.parametrize(
    "left",
    [((0, 0),), ((2, 1),), ((-1, 2),), ((0, 3),), ((1, 2), (0, 1)), ((0, 2), (1, 2)), ((5, 6),)],
    ids=str,
)
def test_runs_of_tasks_that_there_are_not_are_refused(left: tuple[tuple[int, int], ...]) -> None:
    with pytest.raises(PlanError, match="runs of task numbers go up, from 0 to 2"):
        stage_of((10, 8), (10, 4), left=left)
    document = {**json.loads(stage_of((10, 8), (10, 4)).to_json()), "left": left}
    with pytest.raises(SerializationError, match="Stage: a stage's runs"):
        Stage.from_json(json.dumps(document))


def test_a_stage_with_nothing_left_is_empty() -> None:
    stage = stage_of((10, 8), (10, 4), left=())
    assert (len(stage), list(stage), stage.tasks) == (0, [], 2)
    with pytest.raises(IndexError):
        stage[0]


def test_a_stages_number_is_no_less_than_0() -> None:
    with pytest.raises(PlanError, match="a stage's number is at least 0; got -1"):
        replace(stage_of((10, 8), (10, 4)), number=-1)


def test_a_live_store_travels_by_pickle_only() -> None:
    store = MemoryStore()
    stage = replace(stage_of((10, 8), (10, 4)), target=ArrayRef(store=store, path="a"))
    assert not stage.by_name
    assert stage_of((10, 8), (10, 4)).by_name
    with pytest.raises(SerializationError, match=r"ArrayRef.store must be .*; got a MemoryStore; .* pickle"):
        stage.to_json()
    with pytest.raises(SerializationError, match=r"ArrayRef.store"):
        stage[0].to_json()
    assert str(stage.target) == "<MemoryStore>/a"


def test_references_are_told_apart_in_a_process() -> None:
    stores = MemoryStore(), MemoryStore()
    refs = [
        ArrayRef(store="/a"),
        ArrayRef(store="/a", path="b"),
        ArrayRef(store="/a/b"),
        ArrayRef(store="s3://a"),
        ArrayRef(store="s3://a", storage_options={"anon": True}),
        ArrayRef(store="s3://a", storage_options={"anon": False}),
        ArrayRef(store=stores[0]),
        ArrayRef(store=stores[1]),
    ]
    assert len({ref.key for ref in refs}) == len(refs)
    one = ArrayRef(store="s3://a", storage_options={"x": 1, "y": 2})
    assert one.key == ArrayRef(store="s3://a", storage_options={"y": 2, "x": 1}).key
    assert (str(refs[0]), str(refs[1])) == ("/a", "/a/b")


@pytest.mark.parametrize(
    "store, name", [("s3://b/x/", "s3://b/x/a/b"), ("s3://b/x", "s3://b/x/a/b"), ("s3://b//x", "s3://b//x/a/b")]
)
def test_an_array_in_a_store_is_named_alike_whether_its_url_ends_in_a_slash(store: str, name: str) -> None:
    # With two slashes the name was of another place, and counted as one when a job was resumed.
    assert str(ArrayRef(store=store, path="a/b")) == name
    assert str(ArrayRef(store=store)) == store
