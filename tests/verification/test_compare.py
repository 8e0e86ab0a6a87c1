from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.abc.store import ByteRequest
from zarr.codecs import BloscCodec
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.storage import MemoryStore, WrapperStore

from rechunk_exec.errors import StorageError
from rechunk_exec.executors import ThreadsExecutor
from rechunk_exec.storage.objects import objects_of, put_object
from rechunk_exec.storage.stores import open_store
from rechunk_exec.tasks import ArrayRef
from rechunk_exec.verification import VerifyOptions, VerifyReport, verify_arrays
from tests.storage.arrays import Place, Shape, make
from tests.values import Array, position_values

SHAPE = (9, 7)
VALUES = position_values(SHAPE, "f4")


def source_of(place: Place, values: Array = VALUES, **options: Any) -> ArrayRef:
    return make(place, values.shape, (1, 7)[: values.ndim], values.dtype, path="source", values=values, **options)


def target_of(place: Place, values: Array = VALUES, **options: Any) -> ArrayRef:
    return make(place, values.shape, (2, 2)[: values.ndim], values.dtype, path="target", values=values, **options)


def compare(source: ArrayRef, target: ArrayRef, workers: int) -> VerifyReport:
    with ThreadsExecutor(workers) as executor:
        return verify_arrays(source, target, VerifyOptions(executor=executor))


def boxes_of(report: VerifyReport) -> list[tuple[Shape, Shape]]:
    return [(box.start, box.stop) for box in report.differing]


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("shards", [None, (4, 4)])
def test_equal_arrays_are_equal_however_they_are_cut(shards: Shape | None, threads: int, tmp_path: Path) -> None:
    report = compare(source_of(tmp_path), target_of(tmp_path, shards=shards), threads)
    assert report.ok
    assert report.differing == ()
    assert report.boxes == (20 if shards is None else 6)
    assert report.bytes_read == 2 * VALUES.nbytes
    assert str(report) == f"verified: {report.boxes} boxes are the same to the bit"


@pytest.mark.parametrize("shards", [None, (4, 4)])
@given(place=st.tuples(st.integers(0, 8), st.integers(0, 6)), bit=st.integers(0, 31), threads=st.integers(1, 3))
@settings(max_examples=15)
def test_one_flipped_bit_is_found_in_its_write_unit(
    shards: Shape | None, place: tuple[int, int], bit: int, threads: int
) -> None:
    store = MemoryStore()
    changed = VALUES.copy()
    changed.view("u4")[place] ^= np.uint32(1 << bit)
    report = compare(source_of(store), target_of(store, changed, shards=shards), threads)
    unit = shards or (2, 2)
    start = tuple(at // size * size for at, size in zip(place, unit, strict=True))
    stop = tuple(min(low + size, n) for low, size, n in zip(start, unit, SHAPE, strict=True))
    assert not report.ok
    assert boxes_of(report) == [(start, stop)]
    assert str(report) == f"1 of {report.boxes} boxes differ; the first is {start} to {stop}"


def test_all_that_differ_are_found_in_order(tmp_path: Path) -> None:
    report = compare(source_of(tmp_path), target_of(tmp_path, VALUES[::-1].copy(), shards=(4, 4)), 2)
    wanted = [
        ((i * 4, j * 4), (min(i * 4 + 4, 9), min(j * 4 + 4, 7)))
        for i, j in product(range(3), range(2))
        if not (VALUES[::-1] == VALUES)[i * 4 : i * 4 + 4, j * 4 : j * 4 + 4].all()
    ]
    assert boxes_of(report) == wanted
    assert len(wanted) == 6


def test_signs_of_zero_and_payloads_of_nan_differ(tmp_path: Path) -> None:
    zeros = np.zeros(SHAPE, "f4")
    for number, change in enumerate((0x80000000, 0x7FC00000)):
        other = zeros.copy()
        other.view("u4")[8, 6] = change
        folder = tmp_path / str(number)
        assert boxes_of(compare(source_of(folder, zeros), target_of(folder, other), 1)) == [((8, 6), (9, 7))]
    nan = np.full(SHAPE, np.nan, "f4")
    other = nan.copy()
    other.view("u4")[0, 0] ^= np.uint32(1)
    assert boxes_of(compare(source_of(tmp_path, nan), target_of(tmp_path, other), 1)) == [((0, 0), (2, 2))]


def test_absent_chunks_are_fill_value(tmp_path: Path) -> None:
    values = np.full(SHAPE, 7, "i4")
    absent = make(tmp_path / "a", SHAPE, (1, 7), "i4", fill_value=7)
    stored = make(tmp_path / "b", SHAPE, (2, 2), "i4", fill_value=0, values=values)
    other = make(tmp_path / "c", SHAPE, (2, 2), "i4", fill_value=8)
    assert compare(absent, stored, 2).ok
    assert compare(stored, absent, 2).ok
    report = compare(absent, other, 2)
    assert len(report.differing) == report.boxes == 20


def test_a_chunk_that_got_lost_is_found(tmp_path: Path) -> None:
    source, target = source_of(tmp_path), target_of(tmp_path)
    (tmp_path / "target/c/1/3").unlink()
    assert boxes_of(compare(source, target, 2)) == [((2, 6), (4, 7))]


def test_what_cannot_be_read_is_found_in_the_target_and_an_error_in_the_source(tmp_path: Path) -> None:
    source, target = source_of(tmp_path), target_of(tmp_path)
    (tmp_path / "target/c/1/3").write_bytes(b"torn")
    report = compare(source, target, 2)
    assert boxes_of(report) == [((2, 6), (4, 7))]
    assert "c/1/3" in report.differing[0].reason
    assert f"the first is (2, 6) to (4, 7): {report.differing[0].reason}" in str(report)
    with pytest.raises(StorageError, match="c/1/3"):
        compare(target, source, 2)


@pytest.mark.parametrize(
    "options", [{"zarr_format": 2, "order": "F"}, {"compressors": None}, {"shards": (8, 4)}], ids=str
)
def test_the_form_does_not_matter(options: dict[str, Any], tmp_path: Path) -> None:
    big = VALUES.astype(">f4")
    source = source_of(tmp_path, big, zarr_format=2)
    assert compare(source, target_of(tmp_path, **options), 2).ok


@pytest.mark.parametrize(
    "dtype", ["?", "S3", ">U2", "c16", "M8[ns]", np.dtypes.StringDType(), [("a", "<i4"), ("b", "S3")]], ids=str
)
def test_any_dtype_is_compared(dtype: Any, tmp_path: Path) -> None:
    # Texts failed: their dtype has no byte order to turn.
    values = position_values(SHAPE, dtype)
    source = source_of(tmp_path, values, zarr_format=2)
    assert compare(source, target_of(tmp_path, values, zarr_format=3 if values.dtype.kind == "T" else 2), 2).ok
    changed = values.copy()
    changed[4, 4] = values[3, 3]
    if dtype == "?":
        changed[4, 4] = not values[4, 4]
    other = target_of(tmp_path / "other", changed, zarr_format=2)
    assert boxes_of(compare(source, other, 2)) == [((4, 4), (6, 6))]


def test_0d_and_empty_arrays(tmp_path: Path) -> None:
    one, two = np.array(1.5, "f4"), np.array(2.5, "f4")
    source = source_of(tmp_path, one)
    assert compare(source, target_of(tmp_path, one), 2).ok
    assert boxes_of(compare(source, target_of(tmp_path / "other", two), 2)) == [((), ())]
    for shape in ((0,), (3, 0)):
        place = tmp_path / str(shape)
        refs = [make(place, shape, (2,) * len(shape), "f4", path=name) for name in ("a", "b")]
        report = compare(refs[0], refs[1], 2)
        assert report.ok
        assert (report.boxes, report.bytes_read) == (0, 0)


@pytest.mark.parametrize(
    "shape,dtype",
    [((9, 8), "f4"), ((9,), "f4"), ((9, 7), "f8"), ((9, 7), "i4"), ((9, 7), np.dtypes.StringDType())],
    ids=str,
)
def test_arrays_of_another_shape_or_dtype_cannot_be_compared(shape: Shape, dtype: Any, tmp_path: Path) -> None:
    other = make(tmp_path, shape, (2,) * len(shape), dtype, path="other")
    with pytest.raises(StorageError, match=r"one shape and dtype .*source.*other"):
        compare(source_of(tmp_path), other, 1)


def test_a_chunk_longer_than_the_axis(tmp_path: Path) -> None:
    source = make(tmp_path / "a", SHAPE, (20, 3), "f4", values=VALUES)
    target = make(tmp_path / "b", SHAPE, (4, 30), "f4", values=VALUES)
    assert compare(source, target, 2).boxes == 3
    assert compare(source, target, 2).ok


class Vanishing(WrapperStore[Any]):
    """A store of which all is gone once a certain chunk was read, as of a share that is unmounted."""

    _supports_sync_io = False

    def __init__(self, store: Any, last: list[str] | None = None) -> None:
        super().__init__(store)
        self.last = [] if last is None else last
        """The chunk, and then "gone"."""

    def _with_store(self, store: Any) -> Vanishing:
        return Vanishing(store, self.last)

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        answer = None if "gone" in self.last else await super().get(key, prototype, byte_range)
        if key in self.last:
            self.last.append("gone")
        return answer


@pytest.mark.parametrize("gone", ["both", "target"])
def test_what_is_removed_while_it_is_compared_is_no_fill_value(gone: str) -> None:
    # Both gave fill value from then on, which is the same.
    store = Vanishing(MemoryStore({}))
    values = VALUES.copy()
    values[3:] = 0
    source = source_of(store if gone == "both" else MemoryStore({}), values)
    target = target_of(store, values)
    store.last.append("source/c/0/0" if gone == "both" else "target/c/0/3")
    if gone == "both":
        with pytest.raises(StorageError, match="gone while it was read"):
            compare(source, target, 1)
        return
    report = compare(source, target, 1)
    assert not report.ok
    assert "gone while it was read" in str(report)
    assert boxes_of(report)[-1] == ((8, 6), (9, 7))


@pytest.mark.parametrize("kept", [0, 10])
@pytest.mark.parametrize("memory", [True, False])
def test_a_torn_frame_of_blosc_is_found_also_where_it_is_asked_how_to_read_others(
    memory: bool, kept: int, tmp_path: Path
) -> None:
    # It was an error, and nothing was compared.
    place: Place = MemoryStore({}) if memory else tmp_path
    source, target = source_of(place), target_of(place, compressors=BloscCodec(cname="lz4"))
    objects = objects_of(open_store(target, read_only=False), target.path)
    for key in ("c/0/0", "c/4/3"):
        whole = objects.read(key)
        assert whole is not None
        put_object(objects, key, bytes(whole[:kept]))
    report = compare(source, target, 1)
    assert boxes_of(report) == [((0, 0), (2, 2)), ((8, 6), (9, 7))]
    assert "c/0/0" in report.differing[0].reason
    with pytest.raises(StorageError, match=r"c/\d/\d"):
        compare(target, source, 1)
