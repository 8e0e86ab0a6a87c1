"""Parts of Blosc frames, against the whole."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numcodecs import blosc

from rechunk_exec.storage.bloscframe import BloscFrame, PartReading, decode_span, frame_head, open_frame
from rechunk_exec.storage.chunkcodec import BloscBytes


def scratch(size: int) -> memoryview:
    return memoryview(bytearray(size))


def opened(frame: bytes, nbytes: int) -> BloscFrame:
    sizes = frame_head(frame[:16], nbytes)
    assert sizes is not None
    found = open_frame(frame[: sizes[1]], nbytes)
    assert found is not None
    return found


def reading(frame: bytes, codec: BloscBytes, piece_bytes: int) -> PartReading:
    def fetch(offset: int, buffer: memoryview) -> None:
        buffer[:] = frame[offset : offset + len(buffer)]

    return PartReading(fetch=fetch, decode=codec.decode, stored=scratch, decoded=scratch, piece_bytes=piece_bytes)


def content_of(kind: str, nbytes: int) -> bytes:
    source = np.random.default_rng(nbytes)
    if kind == "random":
        return source.bytes(nbytes)
    return np.cumsum(source.integers(0, 3, nbytes // 4 + 1)).astype("u4").tobytes()[:nbytes]


@pytest.mark.parametrize("cname", blosc.list_compressors())
@pytest.mark.parametrize("kind", ["smooth", "random"])
def test_any_span_of_a_frame_is_that_span_of_its_content(cname: str, kind: str) -> None:
    lengths = np.random.default_rng(7)
    for shuffle, typesize, blocksize in itertools.product((0, 1, 2), (1, 2, 4, 7, 8, 16), (0, 4096)):
        most = 312_345 if blocksize == 0 else 62_345  # blocks that Blosc chooses are large; several, the last is short
        nbytes = most // typesize * typesize
        content = content_of(kind, nbytes)
        codec = BloscBytes(cname, 5, shuffle, blocksize, typesize)
        frame = bytes(codec.encode(content))
        found = opened(frame, nbytes)
        # What does not compress has no blocks: it goes in pieces of just so many bytes.
        for piece_bytes in (1 if kind == "smooth" else 1013, 20_000, 10**9):
            low, high = sorted(int(number) for number in lengths.integers(0, nbytes + 1, 2))
            for span in ((low, high), (0, nbytes), (nbytes - 1, nbytes)):
                out = bytearray(span[1] - span[0])
                decode_span(found, span, memoryview(out), reading(frame, codec, piece_bytes))
                assert bytes(out) == content[span[0] : span[1]], (shuffle, typesize, blocksize, piece_bytes, span)


def test_blocks_may_lie_in_any_order() -> None:
    content = content_of("smooth", 200_000)
    codec = BloscBytes("zstd", 3, 2, 16384, 4)
    frame = bytes(codec.encode(content))
    found = opened(frame, len(content))
    starts, ends = found.places(0, found.blocks)
    order = np.random.default_rng(0).permutation(found.blocks)
    table, blocks, place = np.empty(found.blocks, "<i4"), [], 16 + 4 * found.blocks
    for number in order:
        block = frame[starts[number] : ends[number]]
        table[number], place = place, place + len(block)
        blocks.append(block)
    shuffled = frame[:16] + table.tobytes() + b"".join(blocks)
    out = bytearray(150_000)
    decode_span(opened(shuffled, len(content)), (30_001, 180_001), memoryview(out), reading(shuffled, codec, 50_000))
    assert bytes(out) == content[30_001:180_001]
    starts, ends = opened(shuffled, len(content)).places(3, 9)
    assert (ends - starts).tolist() == [len(blocks[order.tolist().index(number)]) for number in range(3, 9)]


@given(st.binary(max_size=40), st.integers(0, 10**6))
def test_a_head_that_is_no_frame_is_none_and_no_error(head: bytes, nbytes: int) -> None:
    if head[:1] not in (b"\x01", b"\x02"):
        assert open_frame(head, nbytes) is None
    else:
        open_frame(head, nbytes)
