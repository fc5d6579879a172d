"""The map of a context's winners as inline SVG, coloured by the style sheet, without scripts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple
from xml.etree import ElementTree

__all__ = ["MapCell", "draw_map"]

_CELL, _CHARACTER, _LINE_HEIGHT = 34.0, 7.2, 16.0


class MapCell(NamedTuple):
    """A square of the map.

    Attributes:
        colour: Class of the style sheet.
        hint: Text that is shown under the pointer.
    """

    text: str
    colour: str
    hint: str


def draw_map(
    x: str,
    columns: Sequence[str],
    y: str,
    rows: Sequence[str],
    cells: Mapping[tuple[int, int], MapCell],
    about: str,
) -> str:
    """Draw a map of squares.

    Args:
        x: Name of the horizontal axis.
        columns: Ticks of the horizontal axis, from the left.
        y: Name of the vertical axis; an axis without a name is not drawn.
        rows: Ticks of the vertical axis, from the bottom.
        cells: The squares by column and row; a missing one is drawn as a hole.
        about: Description of the picture for screen readers.
    """
    left = max(len(row) for row in rows) * _CHARACTER + 12 + (_LINE_HEIGHT if y else 0)
    size = max(_CELL, max(len(column) for column in columns) * _CHARACTER + 6)
    width, height = len(columns) * size, len(rows) * _CELL
    across, down = left + width + 2, height + 2.4 * _LINE_HEIGHT + 4
    svg = ElementTree.Element("svg", role="img", viewBox=f"0 0 {across:.1f} {down:.1f}")
    svg.attrib.update({"width": f"{across:.1f}", "height": f"{down:.1f}", "aria-label": about})
    for column, row in (
        (column, row) for column in range(len(columns)) for row in range(len(rows))
    ):
        cell = cells.get((column, row))
        corner = left + column * size, (len(rows) - 1 - row) * _CELL + 2
        place = {"x": corner[0] + 1, "y": corner[1] + 1, "width": size - 2, "height": _CELL - 2}
        attributes = {name: f"{value:.1f}" for name, value in place.items()}
        square = ElementTree.SubElement(svg, "rect", attributes, rx="3")
        square.set("class", cell.colour if cell else "hole")
        if cell:
            ElementTree.SubElement(square, "title").text = cell.hint
            middle = corner[0] + size / 2, corner[1] + _CELL / 2 + 5
            _write(svg, *middle, cell.text, "middle", "mark")
    for column, name in enumerate(columns):
        _write(svg, left + (column + 0.5) * size, height + _LINE_HEIGHT + 2, name, "middle", "tick")
    for row, name in enumerate(rows):
        _write(svg, left - 6, (len(rows) - 0.5 - row) * _CELL + 6, name, "end", "tick")
    _write(svg, left + width / 2, height + 2.1 * _LINE_HEIGHT + 4, x, "middle", "axis")
    if y:
        upright = _write(svg, 0, 0, y, "middle", "axis")
        upright.set("transform", f"translate(12 {height / 2:.1f}) rotate(-90)")
    return ElementTree.tostring(svg, encoding="unicode")


def _write(
    svg: ElementTree.Element, x: float, y: float, text: str, anchor: str, kind: str
) -> ElementTree.Element:
    attributes = {"x": f"{x:.1f}", "y": f"{y:.1f}", "text-anchor": anchor, "class": kind}
    element = ElementTree.SubElement(svg, "text", attributes)
    element.text = text
    return element
