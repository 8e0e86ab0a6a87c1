from __future__ import annotations

import math
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from xml.etree import ElementTree as ET
from xml.etree.ElementTree import Element

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from rechunk_exec import plan_rechunk
from rechunk_exec.oblique import Frame
from rechunk_exec.pictures import COLOURS, stage_pictures
from rechunk_exec.stageplan import StagePlan

SVG = "{http://www.w3.org/2000/svg}"
MOST_BYTES = 15_000


def a_stage(
    shape: tuple[int, ...],
    read: tuple[int, ...],
    write: tuple[int, ...],
    region: tuple[int, ...],
    chunk: tuple[int, ...] | None = None,
) -> StagePlan:
    return StagePlan(
        shape=shape,
        itemsize=4,
        source="source",
        target="target",
        read_unit=read,
        write_unit=write,
        chunk=chunk or write,
        region=region,
        threads=1,
        tasks_per_worker=1,
        peak_bytes=1,
        predicted_s=0.1,
    )


def boxes(figure: Element) -> list[str]:
    return [box.attrib["data-box"] for box in figure.iter(f"{SVG}g") if "data-box" in box.attrib]


def words(figure: Element) -> list[str]:
    return [part.strip() for part in figure.itertext() if part.strip()]


def parsed(stages: Sequence[StagePlan]) -> list[Element]:
    return [ET.fromstring(picture) for picture in stage_pictures(stages)]


@st.composite
def stages(draw: st.DrawFn) -> StagePlan:
    length = st.integers(0, 3) | st.integers(0, 10**4) | st.integers(0, 10**13)
    shape = tuple(draw(st.lists(length, max_size=6)))
    read, write = (tuple(draw(st.integers(min(n, 1), n)) for n in shape) for _ in range(2))
    regions = tuple(min(n, b * draw(st.integers(1, 10**4))) for n, b in zip(shape, write, strict=True))
    assume(math.prod(-(-n // max(g, 1)) for n, g in zip(shape, regions, strict=True)) <= sys.maxsize)
    chunk = tuple(draw(st.integers(1, b + 3)) for b in write)
    restart = tuple(draw(st.just(0) | st.integers(a, a * 9)) for a in read)
    return replace(a_stage(shape, read, write, regions, chunk), restart=draw(st.none() | st.just(restart)))


@given(stages())
def test_any_stage_is_drawn_small_well_formed_and_the_same_each_time(stage: StagePlan) -> None:
    [picture] = stage_pictures([stage])
    assert [picture] == stage_pictures([stage])
    figure = ET.fromstring(picture)
    svg = figure.find(f"{SVG}svg")
    assert svg is not None
    assert len(re.findall(r"<svg.*</svg>", picture)[0]) < MOST_BYTES
    assert svg.attrib["role"] == "img"
    assert str(stage.shape) in (svg.findtext(f"{SVG}title") or "")
    assert not {"id", "href", "class"} & {name for part in figure.iter() for name in part.attrib}
    assert not re.search(r"\b(nan|inf)\b", picture)
    tags = {part.tag.removeprefix(SVG) for part in figure.iter()}
    assert tags <= {"figure", "figcaption", "strong", "br", "span", "svg", "title", "g", "path", "text"}
    _, _, width, height = map(float, svg.attrib["viewBox"].split())
    assert 0 < width < 1500
    assert 0 < height < 400


def test_millions_of_units_take_no_more_room_than_some_tens() -> None:
    million = a_stage((10**6,) * 3, (1, 1, 1), (7, 7, 7), (700, 700, 700), (3, 3, 3))
    [picture] = stage_pictures([million])
    assert 3000 < len(picture) < MOST_BYTES


def test_each_stage_shows_its_units_and_its_region() -> None:
    plan = plan_rechunk((60, 1024, 1024), 4, (1, 1024, 1024), (60, 64, 64), "30MB", target_shards=(60, 256, 256))
    first, second = parsed(plan.stages)
    assert boxes(first) == ["array", "region", "read", "array", "region", "write"]
    assert boxes(second) == [*boxes(first), "unit", "chunk"]
    assert "Stage 1, temp-1 -> target" in words(second)
    assert f"read unit of temp-1: {plan.stages[1].read_unit}, in a grid of 12 x 4 x 4" in words(second)
    assert "chunk in a write unit: (60, 64, 64), in a grid of 1 x 4 x 4" in words(second)
    assert "12 tasks" in words(first)
    shown = plan._repr_html_()
    assert [shown.count(picture) for picture in stage_pictures(plan.stages)] == [1, 1]


def test_a_region_is_drawn_to_scale_over_both_grids() -> None:
    [figure] = parsed([a_stage((80, 100), (1, 100), (80, 10), (80, 30))])
    away, down, right = Frame.of((80, 100), 150).lengths
    assert away == 0
    regions = [box for box in figure.iter(f"{SVG}g") if box.attrib.get("data-box") == "region"]
    assert [len(region) for region in regions] == [1, 1]
    corner = f"M0 0L{right * 0.3:.1f} 0L{right * 0.3:.1f} {down:.1f}L0 {down:.1f}Z".replace(".0", "")
    assert [region[0].attrib["d"] for region in regions] == [corner, corner]


def test_the_grids_are_those_of_the_units() -> None:
    [figure] = parsed([a_stage((6, 100), (2, 100), (6, 10), (6, 30), (3, 5))])
    lines = [
        "".join(path.attrib["d"] for path in grid).count("M")
        for grid in figure.iter(f"{SVG}g")
        if "data-grid" in grid.attrib
    ]
    assert lines == [2, 9, 1 + 1], "lines between read units, between write units, and between the chunks of one"


@pytest.mark.parametrize("shape", [(389, 6898, 9618), (1, 1000000), (1000000,)])
def test_true_lengths_are_at_the_edges(shape: tuple[int, ...]) -> None:
    [figure] = parsed([a_stage(shape, shape, shape, shape)])
    labels = [label.text for label in figure.iter(f"{SVG}text")]
    assert all(labels.count(str(n)) == 2 for n in shape)


def test_of_many_axes_those_that_tell_most_are_drawn_in_every_stage() -> None:
    shape = (40, 721, 3, 1440, 5)
    first = a_stage(shape, (1, 721, 3, 1440, 5), (20, 721, 3, 144, 5), (20, 721, 3, 1440, 5))
    second = a_stage(shape, (20, 721, 3, 144, 5), (40, 16, 3, 16, 5), (40, 721, 3, 144, 5))
    for figure in parsed([replace(first, target="temp-1"), replace(second, source="temp-1")]):
        labels = [label.text or "" for label in figure.iter(f"{SVG}text") if (label.text or "").startswith("axis")]
        assert sorted(set(labels)) == ["axis 0: 40", "axis 1: 721", "axis 3: 1440"]
        assert "Not drawn: axis 2 of 3, axis 4 of 5" in words(figure)


def test_an_axis_read_and_written_in_different_units_is_drawn_rather_than_one_that_is_only_cut() -> None:
    [figure] = parsed([a_stage((40, 10, 10, 10), (1, 5, 5, 5), (40, 5, 5, 5), (40, 5, 5, 5))])
    assert "Not drawn: axis 1 of 10" in words(figure)


def test_of_many_axes_the_last_are_drawn_where_none_tells_more() -> None:
    [figure] = parsed([a_stage((9, 8, 7, 6), (9, 8, 7, 6), (9, 8, 7, 6), (9, 8, 7, 6))])
    assert "Not drawn: axis 0 of 9" in words(figure)


def test_a_chunk_that_goes_past_the_edge_is_no_other_than_its_write_unit() -> None:
    [figure] = parsed([a_stage((5, 6), (5, 6), (5, 6), (5, 6), (8, 8))])
    assert "chunk" not in boxes(figure)


def test_an_array_without_elements_has_an_outline_only() -> None:
    for shape, unit in [((0, 5), (0, 5)), ((0, 4, 4, 4), (0, 2, 2, 2))]:
        [figure] = parsed([a_stage(shape, unit, unit, unit)])
        assert boxes(figure) == ["array", "array"]
        assert "0 tasks" in words(figure)


def test_one_element_of_no_axes_is_one_unit() -> None:
    [figure] = parsed([a_stage((), (), (), ())])
    assert boxes(figure) == ["array", "region", "read", "array", "region", "write"]
    assert "read unit of source: (), in a grid of 1" in words(figure)


def test_names_are_escaped() -> None:
    stage = replace(a_stage((4,), (1,), (4,), (4,)), source="<b>&\"'</b>")
    [picture] = stage_pictures([stage])
    assert "<b>" not in picture
    assert "<b>&\"'</b>, read" in words(ET.fromstring(picture))


@pytest.mark.parametrize("colour", COLOURS.values())
@pytest.mark.parametrize("page", ["#ffffff", "#111111"])
def test_colours_are_seen_on_light_and_dark_pages(colour: str, page: str) -> None:
    """The contrast of WCAG 2.1, which asks for 3 to 1 of graphics."""
    light, dark = sorted((luminance(colour), luminance(page)), reverse=True)
    assert (light + 0.05) / (dark + 0.05) >= 3


def luminance(colour: str) -> float:
    parts = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
