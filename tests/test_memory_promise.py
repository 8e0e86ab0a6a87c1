"""The promise of memory, measured: a short form of ``tests/benchmarks/memory_campaign.py``, which tells how.

Values are random, so that encoded chunks are as large as raw ones.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from unittest.mock import patch

import pytest

from rechunk_exec.results import OVERRUN_BYTES
from tests.benchmarks.memory_campaign import Campaign, broken_rules
from tests.benchmarks.memory_flat import run_fresh
from tests.benchmarks.memoryjobs import MB, RAW, Codec, Job, JobSpace, Shape, Source
from tests.s3 import Bucket, running_server

pytestmark = [
    pytest.mark.memory,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the high-water mark is Linux's"),
]

ZSTD: Codec = ("zstd", "", 3, "")
BLOSC: Codec = ("blosc", "zstd", 3, "bitshuffle")
FEW_TASKS_BYTES = 4 * MB
"""What a process may hold besides, where tasks are few and nothing goes over a network."""
SERIES, SHARDS = (32, 64, 64), (32, 256, 256)
FLAT_BYTES = 4 * MB
"""How much more a worker may hold after 1,000 tasks than after 100: what the driver notes of a task is 1 kB of it."""


def source(chunks: Shape, codec: Codec = ZSTD, **options: object) -> Source:
    one = Source(
        number=0, shape=(32, 768, 768), dtype="<f4", chunks=chunks, shards=None, zarr_format=3, codec=codec
    )  # 75 MB
    return replace(one, **options)  # type: ignore[arg-type]


BLOCKS, EPOCHS = source((1, 384, 384)), source((1, 768, 768))
SOURCES = {
    "blocks": BLOCKS,
    "epochs": EPOCHS,
    "blosc": source((1, 768, 768), BLOSC),
    "raw": source((1, 768, 768), RAW),
    "ragged": source((3, 300, 300), ("gzip", "", 1, ""), dtype=">f4"),
    "shards": source((1, 128, 128), shards=(4, 512, 512)),
    "v2 F": source((1, 768, 384), ("lz4", "", 1, ""), zarr_format=2, order="F"),
    "filter": source((1, 384, 384), zarr_format=2, delta=True),
}


def job(name: str, max_mem: int, chunks: Shape = SERIES, shards: Shape | None = SHARDS, **options: object) -> Job:
    number = list(SOURCES).index(name)
    one = Job(
        number=0,
        source=replace(SOURCES[name], number=number),
        chunks=chunks,
        shards=shards,
        zarr_format=3,
        codec=ZSTD,
        max_mem=max_mem,
        workers=2,
    )
    return replace(one, **options)  # type: ignore[arg-type]


JOBS = {
    "direct, few tasks": job("blocks", 80 * MB),
    "direct, large chunks": job("blocks", 150 * MB, (32, 512, 512), None),
    "direct, all at once": job("blocks", 250 * MB, codec=BLOSC),
    "staged": job("epochs", 40 * MB),
    "staged, serial": job("epochs", 30 * MB, executor="serial"),
    "bands": job("blosc", 60 * MB, codec=BLOSC),
    "raw": job("raw", 40 * MB, shards=None, codec=RAW),
    "ragged": job("ragged", 110 * MB, (32, 70, 70), (32, 280, 280), codec=("gzip", "", 1, "")),
    "shards to shards": job("shards", 120 * MB, executor="processes"),
    "format 2": job("v2 F", 60 * MB, (32, 128, 128), None, zarr_format=2, codec=("zlib", "", 1, "")),
    "through zarr": job("filter", 60 * MB, (32, 128, 128), None, zarr_format=2),
    "whole objects": job("blocks", 120 * MB, place="objects"),
    "verified": job("epochs", 220 * MB, executor="serial", verify=True),
}


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Campaign:
    return Campaign(tmp_path_factory.mktemp("campaign"), {"AWS_ENDPOINT_URL": os.environ.get("AWS_ENDPOINT_URL", "")})


@pytest.mark.parametrize("name", JOBS)
def test_a_job_holds_no_more_than_it_says(campaign: Campaign, name: str) -> None:
    found = campaign.measure(JOBS[name])
    # zarr's own layer makes a buffer for each step of each chunk, as many as it likes.
    assert broken_rules(found, OVERRUN_BYTES if "zarr" in found.ways else FEW_TASKS_BYTES) == [], found
    assert abs(found.told - found.measured) < 2 * MB, "what tasks tell is what they took"


@pytest.mark.serial
def test_a_worker_holds_no_more_after_a_thousand_tasks() -> None:
    course = run_fresh("tasks", "processes", 1000, 32_000)
    assert course.growth < FLAT_BYTES, course


def test_a_worker_holds_no_more_after_twenty_jobs() -> None:
    course = run_fresh("jobs", "serial", 20)
    assert course.growth < FLAT_BYTES, course


def test_indices_that_are_kept_take_no_page_each_of_what_codecs_work_in(campaign: Campaign) -> None:
    # 2,964 tasks of four threads, and 1,600 shards. Arrays of NumPy for their indices held 12.2 MB; bytes hold 4.5.
    toy = next(job for job in JobSpace(3).jobs(300) if job.number == 68)
    found = campaign.measure(replace(toy, source=replace(toy.source, number=len(SOURCES))))
    assert found.tasks > 2000, found
    assert found.measured < found.predicted + 7 * MB, found
    assert broken_rules(found) == [], found


def test_what_clients_of_a_store_far_away_work_in_does_not_pile_up(campaign: Campaign) -> None:
    # Two stages by way of S3: parts of answers and of objects, freed in arenas of many threads, held 7 to 13 MB more.
    far = next(job for job in JobSpace(18).jobs(120) if job.number == 90)
    with running_server() as endpoint:
        bucket = Bucket(endpoint, "memory")
        with patch.dict(os.environ, bucket.environment):
            bucket.make()
        found = replace(campaign, environment=bucket.environment).measure(
            replace(far, source=replace(far.source, number=len(SOURCES) + 1))
        )
    assert found.stages == 2, found
    assert broken_rules(found) == [], found
