"""The relative error of every tensor along the graph, on a logarithmic axis, as inline SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fuseq.report.document_closeness import TensorErrorRow
from fuseq.report.html.markup import NOTHING, Html, tag, text

_WIDTH, _HEIGHT = 1180, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 12, 14, 30


def error_plot(rows: Sequence[TensorErrorRow]) -> Html:
    """One point a tensor, jumps marked; tensors without an error (identical, undefined) are left out.

    The table below it holds the same numbers, so it is hidden from screen readers.
    """
    known = [(i, row, row.relative) for i, row in enumerate(rows) if row.relative]
    points = [(i, row, math.log10(value)) for i, row, value in known if value is not None]
    if not points:
        return NOTHING
    low = math.floor(min(level for _, _, level in points))
    high = max(math.ceil(max(level for _, _, level in points)), low + 1)

    def x(index: int) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (index + 0.5) / len(rows)

    def y(level: float) -> float:
        return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (high - level) / (high - low)

    axes = [_decade(level, y(level)) for level in range(low, high + 1)]
    line = " ".join(f"{x(i):.1f},{y(level):.1f}" for i, _, level in points)
    marks = [_mark(x(i), y(level), row) for i, row, level in points]
    names = (
        tag("text", text("first tensor"), x=_LEFT, y=_HEIGHT - 8, class_="axis"),
        tag("text", text("last tensor"), x=_WIDTH - _RIGHT, y=_HEIGHT - 8, class_="axis end"),
    )
    drawing = tag(
        "svg", *axes, tag("polyline", points=line, class_="way"), *marks, *names,
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}", class_="plot", aria_hidden="true",
    )  # fmt: skip
    return tag("div", tag("h4", text("relative error, logarithmic")), drawing, class_="panel")


def _decade(level: int, height: float) -> Html:
    label = f"{10.0**level:g}" if level >= -3 else f"1e{level}"
    line = tag("line", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=f"{height:.1f}", y2=f"{height:.1f}")
    word = tag("text", text(label), x=_LEFT - 8, y=f"{height + 4:.1f}", class_="axis end")
    return tag("g", line, word, class_="decade")


def _mark(x: float, y: float, row: TensorErrorRow) -> Html:
    title = tag("title", text(f"{row.name} ({row.op_type or 'input'}): {row.relative!r}", 200))
    return tag(
        "circle", title, cx=f"{x:.1f}", cy=f"{y:.1f}", r=4.5 if row.jump else 2,
        class_="point jump" if row.jump else "point",
    )  # fmt: skip
