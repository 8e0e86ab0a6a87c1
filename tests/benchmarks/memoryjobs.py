"""Random jobs to measure the memory of: how the source is stored, what it becomes, and what runs it.

A job is strings and numbers, so that it travels to a fresh process as JSON.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

Shape: TypeAlias = tuple[int, ...]
Codec: TypeAlias = tuple[str, str, int, str]
"""Name, inner compressor, level, shuffle; the latter three where they mean something."""

RAW: Codec = ("none", "", 0, "")
MB = 1_000_000

DTYPES = (
    *("u1", "i1", "b1", "<i2", ">i2", "<f2", "<f4", "<f4", "<f4", "<f4", ">f4", "<i4", ">u4", "<f8", ">f8", "<i8"),
    *("<c8", "<c16", "<M8[s]", "V3"),
)
"""Of 1 to 16 bytes; the commonest more often."""
LARGEST_AFAR = 300 * MB
"""Larger arrays stay on disks."""
ROOMS = (1.0, 1.02, 1.3, 2.0, 4.0, 0)
"""``max_mem`` over what a job needs at least; 0 for twice the array."""
V2_DTYPES = ("V5", "V12")  # structures, which format 3 has not settled yet
_STRUCTURES: dict[str, list[tuple[str, str]]] = {"V5": [("a", "<f4"), ("b", "u1")], "V12": [("a", "<f8"), ("b", ">i4")]}

_BLOSC = [
    ("blosc", cname, level, shuffle)
    for cname, levels in {
        "zstd": (1, 3, 5),
        "lz4": (1, 5, 9),
        "lz4hc": (5,),
        "blosclz": (5,),
        "zlib": (1,),
    }.items()
    for level in levels
    for shuffle in ("noshuffle", "shuffle", "bitshuffle")
]
_PLAIN: list[Codec] = [RAW, ("zstd", "", 0, ""), ("zstd", "", 3, ""), ("zstd", "", 1, ""), ("zstd", "", 9, "")]
_SLOW: list[Codec] = [("gzip", "", 1, ""), ("gzip", "", 5, "")]
_EXECUTORS = {"threads": (1, 2, 4), "processes": (1, 2), "dask": (2,)}
_V2: list[Codec] = [("lz4", "", 1, ""), ("zlib", "", 1, ""), ("bz2", "", 1, ""), ("lzma", "", 1, "")]


@dataclass(frozen=True, kw_only=True)
class Source:
    """An array to make."""

    number: int
    shape: Shape
    dtype: str
    chunks: Shape
    shards: Shape | None
    zarr_format: int
    codec: Codec
    order: str = "C"
    delta: bool = False
    """Whether a filter keeps all but zarr from decoding it; of format 2."""
    compressible: bool = False
    """Whether codecs make something of its values; random bytes else, whose encoded chunks are as large as raw ones."""
    place: str = "disk"
    """``disk``, ``memory``, ``objects`` or ``s3``."""

    @property
    def elements(self) -> np.dtype[Any]:
        """The dtype."""
        return np.dtype(_STRUCTURES.get(self.dtype, self.dtype))

    @property
    def nbytes(self) -> int:
        """Raw bytes of the array."""
        return math.prod(self.shape) * self.elements.itemsize


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is to be done with a source."""

    number: int
    source: Source
    chunks: Shape
    shards: Shape | None
    zarr_format: int
    codec: Codec
    executor: str = "threads"
    workers: int = 1
    """Processes, or threads of one."""
    room: float = 1.0
    """``max_mem`` over the least that the job needs; 0 for twice the array."""
    max_mem: int | None = None
    """Bytes, where it is given as such."""
    place: str = "disk"
    verify: bool = False


def from_json(record: dict[str, Any]) -> Job:
    """The job that ``asdict`` made a record of."""

    def exact(value: Any) -> Any:
        return tuple(value) if isinstance(value, list) else value

    fields = {name: exact(value) for name, value in record.items()}
    fields["source"] = Source(**{name: exact(value) for name, value in record["source"].items()})
    return Job(**fields)


def codec_options(codec: Codec, zarr_format: int, itemsize: int) -> Any:
    """What zarr's ``create_array`` takes for ``compressors``."""
    import numcodecs
    from zarr.codecs import BloscCodec, GzipCodec, ZstdCodec

    name, cname, level, shuffle = codec
    if name == "none":
        return None
    if zarr_format == 2:
        number = {"noshuffle": 0, "shuffle": 1, "bitshuffle": 2}
        make: dict[str, Any] = {
            "blosc": lambda: numcodecs.Blosc(cname, level, number[shuffle]),
            "zstd": lambda: numcodecs.Zstd(level),
            "gzip": lambda: numcodecs.GZip(level),
            "zlib": lambda: numcodecs.Zlib(level),
            "bz2": lambda: numcodecs.BZ2(level),
            "lzma": lambda: numcodecs.LZMA(preset=level),
            "lz4": lambda: numcodecs.LZ4(level),
        }
        return make[name]()
    if name == "blosc":
        literal: dict[str, Any] = {"cname": cname, "shuffle": shuffle}
        return BloscCodec(clevel=level, typesize=itemsize, **literal)
    return GzipCodec(level=level) if name == "gzip" else ZstdCodec(level=level)


def make_source(source: Source, store: Any, shape: Shape | None = None) -> None:
    """Create the array and fill it, a part of some chunks at a time."""
    import zarr
    from numcodecs import Delta

    shape = shape or source.shape
    itemsize = source.elements.itemsize
    options: dict[str, Any] = {"order": source.order} if source.zarr_format == 2 else {}
    options["zarr_format"] = source.zarr_format
    array = zarr.create_array(
        store,
        shape=shape,
        dtype=source.elements,
        chunks=source.chunks,
        shards=source.shards,
        compressors=codec_options(source.codec, source.zarr_format, itemsize),
        filters=[Delta(source.dtype)] if source.delta else None,
        fill_value=None if source.elements.kind == "V" else 0,
        **options,
    )
    unit = (source.shards or source.chunks)[0]
    rows_bytes = math.prod(shape[1:]) * itemsize
    step = max(1, 32 * MB // (unit * rows_bytes)) * unit
    values = np.random.default_rng(source.number)
    for start in range(0, shape[0], step):
        rows = min(step, shape[0] - start)
        octets = values.integers(0, 256, rows * rows_bytes, "u1")
        if source.compressible:
            octets &= 7
        if source.dtype == "b1":
            octets &= 1
        array[start : start + rows] = octets.view(source.elements).reshape(rows, *shape[1:])


def placed(job: Job, place: str) -> Job:
    """The job with its target at a place; by threads, where one of its arrays is known to this process only."""
    within = job.source.place == "disk" and place == "disk"
    if not within and job.executor in {"processes", "dask"}:
        return replace(job, place=place, executor="threads", workers=2)
    return replace(job, place=place)


@dataclass
class JobSpace:
    """Draws sources and jobs from a seed."""

    seed: int
    random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    def jobs(self, count: int, per_source: int = 6) -> list[Job]:
        """``count`` jobs, some on each source."""
        jobs: list[Job] = []
        while len(jobs) < count:
            source = self.source(len(jobs) // per_source)
            jobs += [self.job(len(jobs) + i, source) for i in range(min(per_source, count - len(jobs)))]
        return jobs

    def source(self, number: int) -> Source:
        """A random array."""
        draw = self.random
        place = draw.choices(("disk", "memory", "s3"), (90, 5, 5))[0]
        zarr_format = 3 if draw.random() < 0.65 else 2
        dtype = draw.choice(V2_DTYPES if zarr_format == 2 and draw.random() < 0.15 else DTYPES)
        codec = self.codec(zarr_format)
        slow = codec[0] in {"gzip", "zlib", "bz2", "lzma"} or codec[1] in {"zlib", "lz4hc"} or place != "disk"
        size = draw.choices((50, 90, 240, 280, 450), (10, 8, 10, 6, 1))[0] if not slow else draw.choice((50, 60, 80))
        itemsize = np.dtype(_STRUCTURES.get(dtype, dtype)).itemsize
        shape = self.shape(int(size * draw.uniform(0.9, 1.1)) * MB // itemsize)
        bands = draw.random() < 0.15 and len(shape) > 1
        if bands:  # whole epochs, read by bands
            codec = draw.choice([RAW, *_BLOSC])
        chunks = (1, *shape[1:]) if bands and 4 * MB < math.prod(shape[1:]) * itemsize < 200 * MB else None
        chunks = chunks or self.chunk(shape, itemsize)
        shards = self.shard(shape, chunks, itemsize) if zarr_format == 3 and draw.random() < 0.3 else None
        if dtype.startswith("V"):
            shards = None  # zarr 3.1 cannot write them
        return Source(
            number=number,
            shape=shape,
            dtype=dtype,
            chunks=chunks,
            shards=shards,
            zarr_format=zarr_format,
            codec=codec,
            order="F" if zarr_format == 2 and draw.random() < 0.15 else "C",
            compressible=draw.random() < 0.2,
            place=place,
        )

    def job(self, number: int, source: Source) -> Job:
        """A random job on a source."""
        draw = self.random
        structured = source.dtype in V2_DTYPES
        zarr_format = 2 if structured else draw.choice((3, 3, 3, 2))
        itemsize = source.elements.itemsize
        chunks = self.chunk(source.shape, itemsize)
        place = draw.choices(("disk", "objects", "s3"), (92, 4, 4))[0] if source.nbytes < LARGEST_AFAR else "disk"
        executor, workers = draw.choices(
            [
                *(("threads", count) for count in (1, 2, 4)),
                ("serial", 1),
                ("processes", 1),
                ("processes", 2),
                ("dask", 2),
            ],
            (3, 2, 3, 2, 1, 2, 0.4),
        )[0]
        codec = self.codec(zarr_format)
        if source.nbytes > 100 * MB and codec[0] in {"gzip", "zlib", "bz2", "lzma"}:
            codec = ("zstd", "", 1, "")
        job = Job(
            number=number,
            source=source,
            chunks=chunks,
            shards=self.shard(source.shape, chunks, itemsize) if zarr_format == 3 and draw.random() < 0.5 else None,
            zarr_format=zarr_format,
            codec=codec,
            executor=executor,
            workers=workers,
            room=draw.choices(ROOMS, (2, 1, 1, 2, 4, 18) if source.nbytes > 210 * MB else (3, 1, 2, 2, 2, 2))[0],
            verify=draw.random() < 0.08,
        )
        return placed(job, place)

    def codec(self, zarr_format: int) -> Codec:
        """A codec, the slow ones seldom."""
        draw = self.random
        slow = _SLOW + (_V2 if zarr_format == 2 else [])
        return draw.choice(draw.choices((_PLAIN, _BLOSC, slow), (4, 4, 1.2))[0])

    def shape(self, elements: int) -> Shape:
        """A shape of about so many elements."""
        draw = self.random
        axes = draw.choice((1, 2, 2, 3, 3, 3, 3, 4))
        logs = [draw.uniform(0.6, 1.4) for _ in range(axes)]
        scale = math.log(elements) / sum(logs)
        return tuple(max(1, round(math.exp(log * scale))) for log in logs)

    def chunk(self, shape: Shape, itemsize: int) -> Shape:
        """A chunk of some kB to some dozens of MB, of any form; at most some thousands of them."""
        draw = self.random
        whole = math.prod(shape) * itemsize
        low = max(whole / 4000, 16_000)
        wanted = min(whole, math.exp(draw.uniform(math.log(low), math.log(max(low * 2, min(whole / 3, 64 * MB))))))
        sizes = list(shape)
        axes = list(range(len(shape)))
        while math.prod(sizes) * itemsize > wanted:
            axis = draw.choice(axes)
            if sizes[axis] > 1:
                excess = math.prod(sizes) * itemsize / wanted
                sizes[axis] = max(1, int(sizes[axis] / min(excess, draw.uniform(1.2, 30))))
        return tuple(sizes)

    def shard(self, shape: Shape, chunk: Shape, itemsize: int) -> Shape:
        """Some chunks, of no more than 100 MB together."""
        draw = self.random
        sizes = list(chunk)
        for axis in draw.sample(range(len(shape)), len(shape)):
            most = -(-shape[axis] // chunk[axis])
            count = draw.randint(1, max(1, min(most, 16)))
            if math.prod(sizes) * count * itemsize <= 100 * MB:
                sizes[axis] *= count
        return tuple(sizes)


def store_of(place: str, name: str, folder: Path) -> Any:
    """Where an array is: a path, a store of whole objects, or one in a bucket (the address is in the environment)."""
    from zarr.storage import FsspecStore, LocalStore, MemoryStore

    if place == "memory":
        return MemoryStore()
    if place == "objects":
        return _store_of_objects(LocalStore(folder / name))
    if place == "s3":
        import os

        address = os.environ["AWS_ENDPOINT_URL"]
        return FsspecStore.from_url(f"s3://memory/{name}", storage_options={"endpoint_url": address})
    return folder / name


def _store_of_objects(files: Any) -> Any:
    """A store outside the process whose client copies what it sends, as many do."""
    from zarr.core.buffer import Buffer, default_buffer_prototype
    from zarr.storage import LocalStore, WrapperStore

    class Objects(WrapperStore[LocalStore]):
        async def set(self, key: str, value: Buffer) -> None:
            await super().set(key, default_buffer_prototype().buffer.from_bytes(value.to_bytes()))

    return Objects(files)
