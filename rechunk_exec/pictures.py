"""Pictures of how the stages of a plan cut the array, as SVG in HTML. Layer: the planner, above its stages.

A stage shows the array twice, cut into the units that it reads and into those that it writes, each time with the region
of the first task, so that one sees which units a task holds whole. A write unit that is cut into chunks is shown once
more, on its own. Nothing has an id, so that many pictures can be on one page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rechunk_exec.grid import ceil_div, clip, units_touched
from rechunk_exec.htmltext import text
from rechunk_exec.oblique import EAST, MOST_AXES, RISE, Frame, box_svg, grid_svg, number
from rechunk_exec.sizes import count_text
from rechunk_exec.stageplan import StagePlan

COLOURS = {"read": "#2a86d8", "region": "#cf7a00", "write": "#0b9a70", "chunk": "#c25fa3"}
"""After Okabe and Ito, for the colour-blind; each has a contrast of 3 to 1 at least with white and with near black."""
_OPACITY = {"read": 0.6, "region": 0.25, "write": 0.6, "chunk": 0.6}

# Pixels.
_ARRAY_AXIS = 150.0
_ENLARGED_AXIS = 80.0
_LETTER = 6.4
_LINE = 16.0
_MARGIN = 6.0
_BETWEEN = 20.0


def stage_pictures(stages: Sequence[StagePlan]) -> list[str]:
    """One figure for each stage of a plan, all of the same axes: the three that tell most, where there are more.

    Examples
    --------
    >>> stage = StagePlan(
    ...     shape=(10, 8), itemsize=4, source="source", target="target", read_unit=(1, 8), write_unit=(10, 2),
    ...     chunk=(10, 2), region=(10, 4), threads=1, tasks_per_worker=1, peak_bytes=480, predicted_s=0.1)
    >>> [picture] = stage_pictures([stage])
    >>> "region of one task: (10, 4), in a grid of 1 x 2<br/>" in picture
    True
    """
    axes = _telling_axes(stages)
    return [
        _figure(f"Stage {index}, {stage.source} -> {stage.target}", stage, axes) for index, stage in enumerate(stages)
    ]


def _telling_axes(stages: Sequence[StagePlan]) -> tuple[int, ...]:
    """The axes that are drawn: those read and written in different units first, then those that are cut at all."""

    def tells(axis: int) -> tuple[bool, bool, int]:
        units = {(stage.read_unit[axis], stage.write_unit[axis]) for stage in stages}
        return any(a != b for a, b in units), any(min(pair) < stages[0].shape[axis] for pair in units), axis

    return tuple(sorted(sorted(range(len(stages[0].shape)), key=tells)[-MOST_AXES:]))


def _of(axes: tuple[int, ...], sizes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sizes[axis] for axis in axes)


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of box, and how many of it there are along each axis."""

    name: str
    words: str
    sizes: tuple[int, ...]
    counts: Sequence[int]

    def __str__(self) -> str:
        return f"{self.words}: {self.sizes}, in a grid of {' x '.join(map(str, self.counts)) or 1}"


def _kinds(stage: StagePlan) -> list[_Kind]:
    """Read unit, region, write unit, and chunk, where that is not the write unit."""
    shape, write, chunk = stage.shape, stage.write_unit, clip(stage.chunk, stage.write_unit)
    read_counts = [*map(units_touched, shape, stage.read_unit, shape, _restart(stage))]
    kinds = [
        _Kind("read", f"read unit of {stage.source}", stage.read_unit, read_counts),
        _Kind("region", "region of one task", stage.region, [*map(ceil_div, shape, stage.region)]),
        _Kind("write", f"write unit of {stage.target}", write, [*map(ceil_div, shape, write)]),
    ]
    if chunk != write:
        kinds.append(_Kind("chunk", "chunk in a write unit", chunk, [*map(ceil_div, write, chunk)]))
    return kinds


def _restart(stage: StagePlan) -> tuple[int, ...]:
    return stage.restart or (0,) * len(stage.shape)


def _figure(title: str, stage: StagePlan, axes: tuple[int, ...]) -> str:
    kinds = _kinds(stage)
    legend = [f'<span style="color: {COLOURS[kind.name]}">&#9632;</span> {text(str(kind))}' for kind in kinds]
    missing = [f"axis {axis} of {n}" for axis, n in enumerate(stage.shape) if axis not in axes]
    if missing:
        legend.append(text(f"Not drawn: {', '.join(missing)}"))
    words = "; ".join([f"{title}, an array of {stage.shape}", *map(str, kinds)])
    return (
        f'<figure style="margin: 1em 0"><strong>{text(title)}</strong><br/>{_svg(words, _drawings(stage, kinds, axes))}'
        f"<figcaption>{'<br/>'.join(legend)}</figcaption></figure>"
    )


@dataclass(frozen=True, slots=True)
class _Drawing:
    """A part of a picture, drawn from its top left corner."""

    svg: str
    width: float
    height: float


def _drawings(stage: StagePlan, kinds: Sequence[_Kind], axes: tuple[int, ...]) -> list[_Drawing]:
    """What is read, an arrow, what is written, and the chunks of what is written at once."""
    read, region, write, *chunks = kinds
    frame = Frame.of(_of(axes, stage.shape), _ARRAY_AXIS)
    all_drawn = len(axes) == len(stage.shape)
    labels = [str(stage.shape[axis]) if all_drawn else f"axis {axis}: {stage.shape[axis]}" for axis in axes]
    outline = box_svg("array", frame.lengths, "currentColor", 0.05)
    drawings = [
        _array(f"{stage.source}, read", frame, labels, outline + _cut(frame, axes, [region, read], _restart(stage))),
        _arrow(count_text(stage.tasks, "task"), frame),
        _array(f"{stage.target}, written", frame, labels, outline + _cut(frame, axes, [region, write])),
    ]
    if chunks:
        frame = Frame.of(_of(axes, write.sizes), _ENLARGED_AXIS)
        outline = box_svg("unit", frame.lengths, COLOURS["write"], 0.3)
        drawings.append(_array("one write unit, enlarged", frame, [], outline + _cut(frame, axes, chunks)))
    return drawings


def _cut(frame: Frame, axes: tuple[int, ...], kinds: Sequence[_Kind], restart: tuple[int, ...] = ()) -> str:
    """The grid of the last of some kinds, and a box of each; nothing where the array has no elements."""
    unit = kinds[-1]
    if 0 in unit.counts:
        return ""
    grid = grid_svg(frame, _of(axes, unit.sizes), _of(axes, restart or (0,) * len(unit.sizes)))
    boxes = ((kind.name, frame.box(_of(axes, kind.sizes))) for kind in kinds)
    return grid + "".join(box_svg(name, lengths, COLOURS[name], _OPACITY[name]) for name, lengths in boxes)


def _array(caption: str, frame: Frame, labels: Sequence[str], svg: str) -> _Drawing:
    """An array under its caption, with the lengths of its axes at its edges."""
    away, down, right = frame.lengths
    away_label, down_label, right_label = [*[""] * (MOST_AXES - len(labels)), *labels]
    left, top = _width(down_label) + _MARGIN, _LINE + _MARGIN + RISE * away
    beside = right + EAST * away / 2 + _MARGIN
    written = (
        _words(-_MARGIN, down / 2 + 4, down_label, "end"),
        _words(right / 2, down + _LINE, right_label, "middle"),
        _words(beside, down - RISE * away / 2 + 10, away_label, "start"),
    )
    return _Drawing(
        _words(left, 11, caption, "start") + _moved(left, top, svg + "".join(written)),
        left + max(right + EAST * away, beside + _width(away_label), _width(caption)),
        top + down + _LINE + _MARGIN,
    )


def _arrow(words: str, frame: Frame) -> _Drawing:
    """An arrow at half the height of an array's front."""
    away, down, _ = frame.lengths
    width, height = _width(words) + 2 * _MARGIN, _LINE + _MARGIN + RISE * away + down / 2
    line = f'<path fill="none" stroke="currentColor" d="M0 0H{number(width)}m-6-4l6 4l-6 4"/>'
    return _Drawing(_words(width / 2, height - 7, words, "middle") + _moved(0, height, line), width, height + _MARGIN)


def _width(words: str) -> float:
    return _LETTER * len(words)


def _words(x: float, y: float, words: str, anchor: str) -> str:
    return f'<text x="{number(x)}" y="{number(y)}" text-anchor="{anchor}">{text(words)}</text>' if words else ""


def _moved(x: float, y: float, svg: str) -> str:
    return f'<g transform="translate({number(x)} {number(y)})">{svg}</g>'


def _svg(title: str, drawings: Sequence[_Drawing]) -> str:
    """Drawings side by side."""
    placed, x, height = [], 0.0, max(drawing.height for drawing in drawings)
    for drawing in drawings:
        placed.append(_moved(x, 0, drawing.svg))
        x += drawing.width + _BETWEEN
    size = f"{number(x)} {number(height)}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {size}" width="{number(x)}" '
        f'height="{number(height)}" style="max-width: 100%; height: auto" font-size="11" font-family="sans-serif" '
        f'fill="currentColor"><title>{text(title)}</title>{"".join(placed)}</svg>'
    )
