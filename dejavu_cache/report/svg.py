"""Draw plots as inline SVG, coloured by the page's style sheet and without scripts or images."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from xml.etree import ElementTree

__all__ = ["PlotBar", "PlotCell", "PlotLine", "bars", "curves", "grid"]

_CELL, _CHARACTER, _LINE_HEIGHT = 34.0, 7.2, 16.0
_WIDTH, _HEIGHT = 480.0, 300.0
_TIMES = (1, 1.02, 1.05, 1.1, 1.2, 1.5, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1000)


class PlotCell(NamedTuple):
    """A square of a grid.

    Attributes:
        colour: class of the style sheet.
        hint: text that is shown under the pointer.
    """

    text: str
    colour: str
    hint: str


class PlotLine(NamedTuple):
    """A curve with one value per scenario, in any order; infinite where a config cannot run."""

    name: str
    colour: str
    values: Sequence[float]


class PlotBar(NamedTuple):
    """A solid bar with a longer, paler one behind it."""

    mark: str
    colour: str
    name: str
    solid: int
    pale: int
    hint: str


def grid(
    x: str,
    columns: Sequence[str],
    y: str,
    rows: Sequence[str],
    cells: Mapping[tuple[int, int], PlotCell],
    about: str,
) -> str:
    """Draw a map of squares.

    Args:
        x: name of the horizontal axis; an axis without a name is not drawn.
        columns: ticks of the horizontal axis, from the left.
        y: name of the vertical axis.
        rows: ticks of the vertical axis, from the bottom.
        cells: the squares by column and row; a missing one is drawn as a hole.
        about: description of the picture for screen readers.
    """
    left = max((len(row) for row in rows), default=0) * _CHARACTER + 12 + (_LINE_HEIGHT if y else 0)
    size = max(_CELL, max(len(column) for column in columns) * _CHARACTER + 6)
    width, height = len(columns) * size, len(rows) * _CELL
    svg = _svg(left + width + 2, height + (2.4 if x else 1.4) * _LINE_HEIGHT + 4, about)
    for column, row in (
        (column, row) for column in range(len(columns)) for row in range(len(rows))
    ):
        corner = left + column * size, (len(rows) - 1 - row) * _CELL + 2
        cell = cells.get((column, row))
        square = _add(
            svg, "rect", x=corner[0] + 1, y=corner[1] + 1, width=size - 2, height=_CELL - 2, rx=3
        )
        square.set("class", cell.colour if cell else "hole")
        if cell:
            _add(square, "title").text = cell.hint
            _text(svg, corner[0] + size / 2, corner[1] + _CELL / 2 + 5, cell.text, "middle", "mark")
    for column, name in enumerate(columns):
        _text(svg, left + (column + 0.5) * size, height + _LINE_HEIGHT + 2, name, "middle", "tick")
    for row, name in enumerate(rows):
        _text(svg, left - 6, (len(rows) - 0.5 - row) * _CELL + 6, name, "end", "tick")
    if x:
        _text(svg, left + width / 2, height + 2.1 * _LINE_HEIGHT + 4, x, "middle", "axis")
    if y:
        _upright(svg, 12, height / 2, y)
    return _to_text(svg)


def curves(lines: Sequence[PlotLine], about: str) -> str:
    """Draw, for each share of the scenarios, the largest slowdown in it on a logarithmic scale."""
    left, right, top, bottom = 78.0, 10.0, 10.0, 46.0
    worst = max(
        (value for line in lines for value in line.values if math.isfinite(value)), default=1.0
    )
    ceiling = next((time for time in _TIMES if time >= max(worst, 1.05)), worst)
    ticks = _separate_ticks([time for time in _TIMES if time <= ceiling], ceiling)
    svg = _svg(_WIDTH, _HEIGHT, about, "wide-plot curves")

    def across(share: float) -> float:
        return left + share * (_WIDTH - left - right)

    def up(times: float) -> float:
        return _HEIGHT - bottom - math.log(times) / math.log(ceiling) * (_HEIGHT - top - bottom)

    for times in ticks:
        _add(svg, "line", x1=left, x2=_WIDTH - right, y1=up(times), y2=up(times)).set(
            "class", "rule"
        )
        _text(svg, left - 6, up(times) + 4, f"{times:g}x", "end", "tick")
    for percent in (0, 25, 50, 75, 100):
        anchor = "end" if percent == 100 else "middle"
        _text(svg, across(percent / 100), _HEIGHT - bottom + 18, f"{percent}%", anchor, "tick")
    _text(svg, across(0.5), _HEIGHT - 6, "share of scenarios", "middle", "axis")
    _upright(svg, 16, up(ceiling**0.5), "time over the best")
    for line in lines:
        path = _add(svg, "path", d=_steps(line, across, up))
        path.set("class", f"line {line.colour}")
        _add(path, "title").text = line.name
    return _to_text(svg)


def _steps(line: PlotLine, across: Any, up: Any) -> str:
    ran = sorted(value for value in line.values if math.isfinite(value))
    points = []
    for index, value in enumerate(ran):
        points += [
            (across(index / len(line.values)), up(value)),
            (across((index + 1) / len(line.values)), up(value)),
        ]
    return "M" + " L".join(f"{_number(x)} {_number(y)}" for x, y in points) if points else "M0 0"


def _separate_ticks(ticks: Sequence[float], ceiling: float) -> list[float]:
    """Return the ticks whose labels do not touch each other, starting at the top."""
    chosen: list[float] = []
    for tick in [ticks[0], *reversed(ticks[1:])]:
        if all(abs(math.log(tick / other)) >= math.log(ceiling) / 14 for other in chosen):
            chosen.append(tick)
    return chosen


def bars(rows: Sequence[PlotBar], unit: str, about: str) -> str:
    """Draw horizontal bars under their names, on one scale from 0."""
    longest = max((max(row.solid, row.pale) for row in rows), default=1)
    pitch, left, right = 40.0, 30.0, 76.0
    height = len(rows) * pitch
    svg = _svg(_WIDTH, height + 40, about, "wide-plot")

    def across(count: float) -> float:
        return count / longest * (_WIDTH - left - right)

    for tick in _round_ticks(longest):
        _add(svg, "line", x1=left + across(tick), x2=left + across(tick), y1=0, y2=height + 4).set(
            "class", "rule"
        )
        _text(svg, left + across(tick), height + 19, f"{tick:g}", "middle", "tick")
    _text(svg, left + across(longest / 2), height + 36, unit, "middle", "axis")
    for index, row in enumerate(rows):
        top = index * pitch
        group = _add(svg, "g")
        _add(group, "title").text = row.hint
        mark = _add(group, "rect", x=2, y=top + 14, width=22, height=18, rx=3)
        mark.set("class", row.colour)
        _text(group, 13, top + 27.5, row.mark, "middle", "mark")
        _text(group, left, top + 13, _cut(row.name, 62), "start", "tick")
        for share, kind in ((row.pale, "pale"), (row.solid, "solid")):
            _add(group, "rect", x=left, y=top + 18, width=across(share), height=12, rx=2).set(
                "class", kind
            )
        _text(
            group,
            left + across(max(row.pale, row.solid)) + 5,
            top + 28.5,
            f"{row.solid} / {row.pale}",
            "start",
            "tick",
        )
    return _to_text(svg)


def _round_ticks(total: int) -> list[int]:
    """Return at most seven ticks from 0 in round steps."""
    steps = (lead * 10**zeros for zeros in range(12) for lead in (1, 2, 5))
    return list(range(0, total + 1, next(step for step in steps if total / step <= 6)))


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def _upright(parent: ElementTree.Element, x: float, y: float, text: str) -> None:
    position = f"translate({_number(x)} {_number(y)}) rotate(-90)"
    _text(parent, 0, 0, text, "middle", "axis").set("transform", position)


def _svg(width: float, height: float, about: str, kind: str = "") -> ElementTree.Element:
    """Return an empty picture, sized by the style sheet if it has a class."""
    svg = ElementTree.Element(
        "svg", {"viewBox": f"0 0 {_number(width)} {_number(height)}", "role": "img"}
    )
    svg.set("aria-label", about)
    if kind:
        svg.set("class", kind)
    else:
        svg.set("width", _number(width))
        svg.set("height", _number(height))
    return svg


def _add(parent: ElementTree.Element, tag: str, **attributes: float | str) -> ElementTree.Element:
    texts = {
        name: value if isinstance(value, str) else _number(value)
        for name, value in attributes.items()
    }
    return ElementTree.SubElement(parent, tag, texts)


def _text(
    parent: ElementTree.Element, x: float, y: float, text: str, anchor: str, kind: str
) -> ElementTree.Element:
    element = _add(parent, "text", x=x, y=y)
    element.set("text-anchor", anchor)
    element.set("class", kind)
    element.text = text
    return element


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _to_text(svg: ElementTree.Element) -> str:
    return ElementTree.tostring(svg, encoding="unicode")
