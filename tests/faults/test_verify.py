"""Every object of a finished target damaged in turn: verification finds it and names its box."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import rechunk_exec as rx
from tests.jobs import ZarrArray, elements, make_array, stored_objects
from tests.values import same_bits

SHAPE = (12, 20, 18)
CHUNKS = (12, 5, 6)
LAYOUTS: dict[str, dict[str, Any]] = {
    "raw": {"target_options": {"compressors": None}},
    "zstd": {},
    "shards": {"target_shards": (12, 10, 12)},
    "format 2": {"zarr_format": 2},
}


@pytest.fixture
def source(tmp_path: Path) -> ZarrArray:
    return make_array(tmp_path / "source", SHAPE, (1, *SHAPE[1:]))


@pytest.fixture(params=LAYOUTS)
def target(request: pytest.FixtureRequest, source: ZarrArray, tmp_path: Path) -> ZarrArray:
    options = LAYOUTS[request.param]
    return rx.rechunk(source, CHUNKS, "1MB", tmp_path / "target", progress=False, **options).execute()


def truncated(size: Callable[[int], int]) -> Callable[[bytes, random.Random], bytes | None]:
    return lambda content, _: content[: size(len(content))]


def flipped(content: bytes, chance: random.Random) -> bytes:
    damaged = bytearray(content)
    damaged[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    return bytes(damaged)


DAMAGES: dict[str, Callable[[bytes, random.Random], bytes | None]] = {
    "to nothing": truncated(lambda _: 0),
    "to 10 bytes": truncated(lambda _: 10),
    "to half": truncated(lambda size: size // 2),
    "deleted": lambda *_: None,
    "flipped": flipped,
}


def damaged_in_turn(folder: Path, flips: int, each: int) -> Iterator[tuple[str, str]]:
    """Damage one object after the other, each in so many ways, and made whole again afterwards; yield its key and how.

    The ways take turns.
    """
    chance = random.Random(7)
    ways = itertools.cycle(DAMAGES)
    for name in stored_objects(folder):
        whole = (folder / name).read_bytes()
        for damage in [way for way in itertools.islice(ways, each) for _ in range(flips if way == "flipped" else 1)]:
            content = DAMAGES[damage](whole, chance)
            if content is None:
                (folder / name).unlink()
            else:
                (folder / name).write_bytes(content)
            yield name, damage
            (folder / name).write_bytes(whole)


def box_of(key: str, array: ZarrArray) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The elements that an object holds, from its key."""
    number = [int(part) for part in key.removeprefix("c/").replace(".", "/").split("/")]
    unit = array.shards or array.chunks
    start = tuple(place * size for place, size in zip(number, unit, strict=True))
    stop = tuple(min(low + size, n) for low, size, n in zip(start, unit, array.shape, strict=True))
    return start, stop


def still_reads_the_same(folder: Path, values: Any) -> bool:
    """Whether zarr reads the right values all the same: not every bit of a compressed chunk counts."""
    try:
        return same_bits(np.asarray(zarr.open_array(folder, mode="r")[...]), values)
    except Exception:  # noqa: BLE001 - codecs fail in many ways
        return False


def test_each_damaged_object_is_found_and_its_box_named(
    source: ZarrArray, target: ZarrArray, tmp_path: Path, long: bool
) -> None:
    folder, values = tmp_path / "target", elements(source)
    found: Counter[str] = Counter()
    for key, damage in damaged_in_turn(folder, flips=64 if long else 3, each=len(DAMAGES) if long else 2):
        report = rx.verify(source, folder)
        if damage == "flipped" and still_reads_the_same(folder, values):
            assert report.ok
            continue
        assert not report.ok, (key, damage)
        assert [(box.start, box.stop) for box in report.differing] == [box_of(key, target)], (key, damage)
        found[damage] += 1
    assert found.keys() == DAMAGES.keys()
    assert rx.verify(source, folder).ok
