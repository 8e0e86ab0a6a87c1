from __future__ import annotations

import hashlib
import itertools
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rechunk_exec.digest import box_digest, grid_digests, work_bytes
from rechunk_exec.weights import axis_weights
from tests.values import Array, position_values

DTYPES: list[Any] = [
    "?", "i1", "u2", "<i4", ">i4", "u8", "f2", "f4", ">f8", "c8", ">c16", "M8[ns]", "m8[s]",
    "S1", "S5", "S12", "U1", "U3", ">U3", "V3", "V6",
    [("a", "<i4"), ("b", "<f8")], [("a", ">i4"), ("b", ">f4"), ("c", "S3")],
]  # fmt: skip
MASK = 2**64 - 1


def splitmix64(state: int) -> int:
    """Steele, Lea and Flood, 2014: the output that follows ``state``."""
    state = (state + 0x9E3779B97F4A7C15) & MASK
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & MASK
    return state ^ (state >> 31)


def weight(axis: int, index: int) -> int:
    """The weight of an index: of each digit to base 4096 SplitMix64, made odd, in a stream for each axis and digit."""
    product, digit = 1, 0
    while index or not digit:
        index, value = divmod(index, 4096)
        if value or not digit:
            product *= splitmix64(((value + ((axis + 2) << 40) + (digit << 20)) * 0x9E3779B97F4A7C15) & MASK) | 1
        digit += 1
    return product & MASK


def slow_digest(elements: Array, start: tuple[int, ...]) -> int:
    """The digest by its definition, element by element, in Python's integers."""
    total = 0
    each = packed(elements)
    for index in itertools.product(*map(range, elements.shape)):
        *leading, last = [(0, 0), *enumerate(low + number for low, number in zip(start, index, strict=True))]
        place = share(last[1] % each, each)
        for axis, number in [*leading[1:], (last[0], last[1] // each)] if index else []:
            place = place * weight(axis, number) & MASK
        for number, word in enumerate(words_of(elements[index])):
            total += word * place * weight(-1, number)
    return total & MASK


def packed(elements: Array) -> int:
    """How many elements, side by side along the last axis, make a word."""
    return {1: 8, 2: 4}.get(elements.dtype.itemsize, 1) if elements.ndim else 1


def share(number: int, each: int) -> int:
    """What an element's bits are multiplied by in its word, of which the upper half counts twice."""
    power: int = 1 << 64 // each * number
    return power + (power >> 32) * 0x9E3779B9 if each > 1 else 1


def words_of(element: Any) -> list[int]:
    """An element's little-endian bytes, in words of 4 bytes or, where these do not divide them or they are 8, of 8.

    Elements of 1 and 2 bytes are a word each. In others the upper half is added to the lower one, without carry.
    """
    little = element.dtype.newbyteorder("<")
    size = little.itemsize
    content = np.array([element]).astype(little).tobytes().ljust(size, b"\0")
    width = size if size < 3 else 4 if size % 4 == 0 and size % 8 else 8
    content = content.ljust(-(-size // width) * width, b"\0")
    words = [int.from_bytes(content[at : at + width], "little") for at in range(0, len(content), width)]
    return [word ^ word >> 4 * width if width >= 4 else word for word in words]


def test_splitmix64_is_the_published_generator() -> None:
    # The first outputs for seed 1234567, as in the reference implementation of Vigna.
    state, found = 1234567, []
    for _ in range(3):
        found.append(splitmix64(state))
        state = (state + 0x9E3779B97F4A7C15) & MASK
    assert found == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_weights_are_odd_and_differ() -> None:
    seen: set[int] = set()
    for axis in range(-1, 4):
        weights = axis_weights(axis, 5, 1000)
        assert weights.dtype == np.uint64
        assert (weights % 2 == 1).all()
        assert weights.tolist()[:3] == [weight(axis, number) for number in (5, 6, 7)]
        seen |= set(weights.tolist())
    assert len(seen) == 5000


@pytest.mark.parametrize("first", [0, 4090, 4096, 8190, 2**24 - 3, 2**24, 2**36 - 5, 7 * 2**36 + 2**24 - 5])
@pytest.mark.parametrize("count", [1, 4, 9, 9000])
def test_weights_of_long_axes_are_those_of_their_digits(first: int, count: int) -> None:
    weights = axis_weights(1, first, count)
    assert weights.tolist() == [weight(1, first + number) for number in range(count)]
    assert len(set(weights.tolist())) == count
    assert (weights % 2 == 1).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (7,), (3, 5), (2, 3, 4)], ids=str)
def test_the_digest_is_what_its_definition_says(shape: tuple[int, ...], dtype: Any) -> None:
    values = position_values(shape, dtype)
    start = tuple(range(3, 3 + len(shape)))
    assert box_digest(values, start) == slow_digest(values, start)
    assert box_digest(values, (0,) * len(shape)) == slow_digest(values, (0,) * len(shape))


def test_rows_that_are_longer_than_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    values = position_values((5, 3, 7), "f4")
    wanted = slow_digest(values, (0, 0, 0))
    for block_bytes in (1, 8, 100, 56, 10**6):
        monkeypatch.setattr("rechunk_exec.digest._BLOCK_BYTES", block_bytes)
        assert box_digest(values, (0, 0, 0)) == wanted


@given(
    st.lists(st.tuples(st.integers(1, 9), st.lists(st.integers(1, 8), max_size=3)), max_size=3),
    st.sampled_from(["f4", ">i2", "S3", "c16"]),
    st.tuples(*[st.integers(0, 10**9)] * 3),
)
@settings(max_examples=60)
def test_digests_of_any_tiling_add_up(axes: list[tuple[int, list[int]]], dtype: str, start: tuple[int, ...]) -> None:
    shape = tuple(n for n, _ in axes)
    values = position_values(shape, dtype)
    origin = start[: len(shape)]
    cuts = [sorted({0, n, *(cut for cut in where if cut < n)}) for n, where in axes]
    total = 0
    for box in itertools.product(*[list(itertools.pairwise(edges)) for edges in cuts]):
        index: Any = (*(slice(*span) for span in box), ...)
        total += box_digest(values[index], tuple(low + span[0] for low, span in zip(origin, box, strict=True)))
    assert total % 2**64 == box_digest(values, origin)


@pytest.mark.parametrize("dtype", ["?", "u1", "f2", "f4", ">f8", "c8", "c16", "S3", "U2", "M8[s]", "V3"])
def test_any_flipped_bit_is_seen(dtype: str) -> None:
    values = position_values((3, 4), dtype)
    before = box_digest(values, (5, 6))
    octets = np.ascontiguousarray(values).view("u1").reshape(-1)
    for place in range(octets.size):
        for bit in range(1 if dtype == "?" else 8):
            changed = octets.copy()
            changed[place] ^= 1 << bit
            assert box_digest(changed.view(dtype).reshape(3, 4), (5, 6)) != before


@given(st.integers(0, 59), st.integers(0, 59))
def test_any_two_elements_swapped_are_seen(one: int, other: int) -> None:
    values = position_values((3, 4, 5), "i4")
    swapped = values.copy().reshape(-1)
    swapped[[one, other]] = swapped[[other, one]]
    assert (box_digest(swapped.reshape(3, 4, 5), (0, 0, 0)) == box_digest(values, (0, 0, 0))) == (one == other)


def test_values_that_moved_are_seen() -> None:
    values = position_values((6, 6), "f4")
    digest = box_digest(values, (0, 0))
    for moved in (values.T, values[::-1], values[:, ::-1], np.roll(values, 1, axis=0), np.roll(values, 1, axis=1)):
        assert box_digest(moved, (0, 0)) != digest
    assert box_digest(values, (0, 1)) != digest
    assert box_digest(values, (1, 0)) != digest


@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16", "i8"])
def test_signs_that_all_change_are_seen(dtype: str) -> None:
    # The highest bit of a 64-bit word times any odd number is itself: an even number of such changes went unseen.
    values = position_values((4, 6), dtype).reshape(-1)
    octets = np.ascontiguousarray(values).view("u1").reshape(24, -1).copy()
    octets[:, -1] ^= 0x80
    changed = octets.view(dtype).reshape(4, 6)
    assert box_digest(changed, (0, 0)) != box_digest(values.reshape(4, 6), (0, 0))
    for count in (2, 4):
        some = np.concatenate([changed.reshape(-1)[:count], values[count:]]).reshape(4, 6)
        assert box_digest(some, (0, 0)) != box_digest(values.reshape(4, 6), (0, 0))


def slow_cells(values: Array, start: tuple[int, ...], unit: tuple[int, ...]) -> dict[tuple[int, ...], int]:
    """The digest of each cell of a grid, by taking its elements one by one."""
    cells: dict[tuple[int, ...], int] = {}
    for index in itertools.product(*map(range, values.shape)):
        place = tuple(low + number for low, number in zip(start, index, strict=True))
        cell = tuple(at // size for at, size in zip(place, unit, strict=True))
        element: Any = tuple(slice(number, number + 1) for number in index)
        cells[cell] = (cells.get(cell, 0) + slow_digest(values[(*element, ...)], place)) & MASK
    return cells


@given(
    st.lists(st.tuples(st.integers(1, 7), st.integers(0, 30), st.integers(1, 9)), max_size=3),
    st.sampled_from(["f4", ">f8", "u1", "S3", "c16", ">c8", "?"]),
    st.sampled_from([1, 16, 100, 1 << 20]),
)
@settings(max_examples=120)
def test_cells_of_a_grid_are_its_boxes(axes: list[tuple[int, int, int]], dtype: str, block_bytes: int) -> None:
    shape, start, unit = (tuple(axis[number] for axis in axes) for number in range(3))
    values = position_values(shape, dtype)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rechunk_exec.digest._BLOCK_BYTES", block_bytes)
        found = grid_digests(values, start, unit)
    wanted = slow_cells(values, start, unit)
    first = tuple(low // size for low, size in zip(start, unit, strict=True))
    counts = tuple(-(-(low + n) // size) - low // size for low, n, size in zip(start, shape, unit, strict=True))
    assert found.shape == counts
    assert found.dtype == np.uint64
    assert {
        tuple(a + b for a, b in zip(first, index, strict=True)): int(found[index]) for index in np.ndindex(counts)
    } == wanted


@given(
    st.lists(st.integers(1, 3), max_size=2),
    st.tuples(st.integers(1, 40), st.integers(1, 300)),
    st.lists(st.tuples(st.integers(0, 999), st.integers(1, 999)), min_size=4, max_size=4),
    st.sampled_from(["u1", "?", "i1", "S1", "V1", "u2", ">i2", "f2"]),
    st.sampled_from([100, 2_000, 1 << 20]),
)
@settings(max_examples=100)
def test_cells_of_many_narrow_elements(
    outer: list[int],
    inner: tuple[int, int],
    places: list[tuple[int, int]],
    dtype: str,
    block_bytes: int,
) -> None:
    shape = (*outer, *inner)
    start, unit = (tuple(place[number] for place in places[: len(shape)]) for number in range(2))
    values = position_values(shape, dtype)
    each = packed(values)
    little = np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
    bits = little.view(f"<u{8 // each}") * np.uint64(weight(-1, 0))
    for axis, (low, n) in enumerate(zip(start, shape, strict=True)):
        by = each if axis == len(shape) - 1 else 1
        indices = range(low, low + n)
        weights = np.array([weight(axis, index // by) * share(index % by, by) & MASK for index in indices], "u8")
        bits *= weights.reshape(-1, *[1] * (len(shape) - axis - 1))
    for axis, (low, n, size) in enumerate(zip(start, shape, unit, strict=True)):
        edges = [number for number in range(n) if number == 0 or (low + number) % size == 0]
        bits = np.add.reduceat(bits, edges, axis)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rechunk_exec.digest._BLOCK_BYTES", block_bytes)
        assert grid_digests(values, start, unit).tolist() == bits.tolist()
        turned = np.asfortranarray(values)
        assert grid_digests(turned, start, unit).tolist() == bits.tolist()


@pytest.mark.parametrize("dtype", ["u1", "u2"])
def test_changes_of_many_narrow_elements_are_seen(dtype: str) -> None:
    # All by the same bit, in each place of a word and in all of them: that is where few bits are left of a product.
    values = position_values((6, 48), dtype)
    seen = {box_digest(values, (0, 0))}
    for bit in range(8 * values.itemsize):
        for every in (1, 2, 4, 8):
            for first in range(every):
                changed = values.copy()
                changed[:, first::every] ^= values.dtype.type(1 << bit)
                seen.add(box_digest(changed, (0, 0)))
    assert len(seen) == 1 + 8 * values.itemsize * (1 + 2 + 4 + 8)


@pytest.mark.parametrize("dtype, unit", [("u1", 1), ("u1", 13), ("u2", 3), ("u1", 1 << 22), ("f4", 5), ("S5", 7)])
def test_the_memory_is_what_work_bytes_says(dtype: str, unit: int) -> None:
    values = np.zeros(1 << 22, dtype)
    tracemalloc.start()
    try:
        found = grid_digests(values, (3,), (unit,))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak - found.nbytes <= work_bytes(values.dtype)


def test_cells_of_views_and_of_boxes_without_elements() -> None:
    values = position_values((9, 12), "f8")
    assert (grid_digests(values[2:, ::2], (2, 0), (4, 4)) == grid_digests(values[2:, ::2].copy(), (2, 0), (4, 4))).all()
    assert grid_digests(values.T, (0, 0), (5, 4)).tolist() == grid_digests(values.T.copy(), (0, 0), (5, 4)).tolist()
    assert grid_digests(np.zeros((0, 3), "f4"), (0, 0), (2, 2)).shape == (0, 2)
    assert grid_digests(np.zeros((3, 0), object), (4, 4), (2, 2)).shape == (2, 0)
    assert grid_digests(np.zeros((), "f4"), (), ()).shape == ()


def test_zeros_and_nans_are_bits_like_others() -> None:
    def digest(*words: int) -> int:
        return box_digest(np.array(words, "u4").view("f4"), (0,))

    assert digest(0) != digest(0x80000000)
    assert len({digest(0x7FC00000), digest(0x7FC00001), digest(0xFFC00000), digest(0x7F800001)}) == 4


@pytest.mark.parametrize("dtype", ["i2", "f4", "f8", "c8", "c16", "U3", "M8[ns]"])
def test_the_byte_order_does_not_matter(dtype: str) -> None:
    values = position_values((3, 5), dtype)
    other = values.astype(values.dtype.newbyteorder())
    assert other.dtype.byteorder != values.dtype.byteorder or values.dtype.byteorder == "|"
    assert box_digest(other, (2, 3)) == box_digest(values, (2, 3))


def test_the_layout_in_memory_does_not_matter() -> None:
    values = position_values((4, 6), "f4")
    digest = box_digest(values, (0, 0))
    assert box_digest(np.asfortranarray(values), (0, 0)) == digest
    wide = np.zeros((8, 12), "f4")
    wide[::2, ::2] = values
    assert box_digest(wide[::2, ::2], (0, 0)) == digest
    assert box_digest(np.frombuffer(b"x" + values.tobytes(), "f4", offset=1).reshape(4, 6), (0, 0)) == digest


def test_boxes_without_elements_count_nothing() -> None:
    for shape in ((0,), (0, 3), (3, 0), (2, 0, 4)):
        assert box_digest(np.zeros(shape, "f4"), (0,) * len(shape)) == 0
        assert box_digest(np.zeros(shape, object), (0,) * len(shape)) == 0


def test_an_array_of_zero_bits_has_the_digest_zero() -> None:
    # Documented by the sum: so shapes and dtypes are compared besides.
    assert box_digest(np.zeros((3, 4), "f8"), (0, 0)) == 0


def text_hash(text: str | bytes) -> int:
    """The hash by its definition: SplitMix64's last steps on weighted characters, BLAKE2b of what is longer."""
    if isinstance(text, bytes) or len(text) > 64:
        content = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
        return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")
    weighted = sum(ord(character) * weight(-2, 65 + place) for place, character in enumerate(text))
    state = (weighted + weight(-2, len(text))) & MASK
    return splitmix64((state - 0x9E3779B97F4A7C15) & MASK)


TEXTS = ["", "a", "é", "a" * 64, "a" * 65, "\0", "\0\0", "ab", "ba", "\ud800" * 3, "x" * 5000, "\U0001f6f0", ""]


@pytest.mark.parametrize("dtype", [np.dtypes.StringDType(), object], ids=str)
@pytest.mark.parametrize("long", [False, True], ids=["short", "long too"])
def test_texts_count_by_a_hash_of_each(long: bool, dtype: Any) -> None:
    texts = [text for text in TEXTS if (long or len(text) <= 64) and (dtype is object or "\ud800" not in text)]
    assert len({text_hash(text) for text in texts}) == len(set(texts))
    values = np.array(texts, dtype)
    wanted = sum(text_hash(text) * weight(0, 7 + number) * weight(-1, 0) for number, text in enumerate(texts)) & MASK
    assert box_digest(values, (7,)) == wanted
    for number in range(len(texts)):
        changed = values.copy()
        changed[number] = "other"
        assert box_digest(changed, (7,)) != wanted
    parts = box_digest(values[:2], (7,)) + box_digest(values[2:], (9,))
    assert parts & MASK == wanted


@pytest.mark.parametrize("dtype", [np.dtypes.StringDType(), object], ids=str)
def test_many_texts_count_like_few(dtype: Any) -> None:
    values = np.array([f"{number % 7}" * (number % 5) for number in range(5000)], dtype).reshape(50, 100)
    wanted = sum(box_digest(values[row : row + 1], (row, 3)) for row in range(50)) & MASK
    assert box_digest(values, (0, 3)) == wanted
    hashes = [[text_hash(str(text)) for text in row] for row in values]
    slow = sum(number * weight(0, i) * weight(1, 3 + j) for i, row in enumerate(hashes) for j, number in enumerate(row))
    assert wanted == slow * weight(-1, 0) & MASK


def test_a_text_counts_the_same_beside_long_ones_and_bytes() -> None:
    assert (
        box_digest(np.array(["ab", "c"], object), (0,))
        == (
            box_digest(np.array(["ab", "x" * 999], object), (0,))
            - box_digest(np.array(["x" * 999], object), (1,))
            + box_digest(np.array(["c"], object), (1,))
        )
        & MASK
    )
    assert box_digest(np.array([12, None], object), (0,)) == box_digest(np.array(["12", "None"], object), (0,))


def test_bytes_objects_count_by_their_bytes() -> None:
    values = np.array([b"\xff\0", b"", b"x"], object)
    assert box_digest(values, (0,)) != box_digest(values[::-1], (0,))
    assert box_digest(values, (0,)) == box_digest(values[:1], (0,)) + box_digest(values[1:], (1,)) & MASK
