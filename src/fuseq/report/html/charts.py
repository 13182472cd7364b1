"""Bars and donuts as markup and inline SVG; every mark carries its number as text."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Sequence

from fuseq.report.html.markup import Html, join, tag, text

_RADIUS = 15.9155  # circumference 100: dash lengths are percents
_TAGS = re.compile("<[^>]*>")
_LONG_LABEL = 16  # characters; a longer label stands above its bar


@dataclasses.dataclass(frozen=True)
class Bar:
    """One bar: ``value`` sets its length, ``shown`` stands beside it, ``tone`` is a CSS class."""

    label: Html
    value: float
    shown: Html
    tone: str


@dataclasses.dataclass(frozen=True)
class Slice:
    """One slice of a donut: ``part`` of 1."""

    label: str
    part: float
    shown: Html
    tone: str


def bars(rows: Sequence[Bar], scale: float | None = None, labels: Sequence[str] = ()) -> Html:
    """Horizontal bars from 0; the full length is ``scale``, else the longest of them.

    ``labels``: all that stand in groups of bars one above the other, so that their bars begin alike.
    """
    longest = max((row.value for row in rows), default=0.0) if scale is None else scale
    letters = [len(_TAGS.sub("", row.label)) for row in rows] + [len(word) for word in labels]
    return tag(
        "dl", *(_bar(row, longest) for row in rows),
        class_="bars stacked" if max(letters, default=0) > _LONG_LABEL else "bars",
        style=f"--letters:{max(map(len, labels))}" if labels else None,
    )  # fmt: skip


def donut(slices: Sequence[Slice], caption: str, centre: Html) -> Html:
    """A ring with its legend; the legend says everything that the ring shows."""
    arcs, start = [], 0.0
    for piece in slices:
        arcs.append(_arc(piece, start))
        start += piece.part
    ring = tag(
        "svg", *arcs, viewBox="0 0 42 42", role="img", aria_label=caption, class_="ring"
    )  # fmt: skip
    legend = tag(
        "ul",
        *(
            tag(
                "li",
                tag("span", class_=f"key {piece.tone}", aria_hidden="true"),
                tag("span", text(piece.label)),
                tag("span", piece.shown, class_="said"),
            )
            for piece in slices
        ),
        class_="legend",
    )
    return tag("div", tag("div", ring, centre, class_="hole"), legend, class_="donut")


def tone_of(precision: str) -> str:
    """CSS class of a precision; unknown words share one."""
    known = (
        "fp32",
        "tf32",
        "fp16",
        "bf16",
        "fp8",
        "int8",
        "uint8",
        "int4",
        "int32",
        "int64",
        "bool",
    )
    if precision in known:
        return f"p-{precision}"
    if precision.startswith("int8"):  # int8x4: DP4A on CUDA cores
        return "p-int8"
    return "p-alone" if precision.startswith("Q/DQ") else "p-other"


def _bar(row: Bar, longest: float) -> Html:
    width = 100 * row.value / longest if longest > 0 else 0.0
    fill = tag("span", class_=f"fill {row.tone}", style=f"width:{width:.2f}%")
    return join(
        (
            tag("dt", row.label),
            tag(
                "dd",
                tag("span", fill, class_="track", aria_hidden="true"),
                tag("span", row.shown, class_="said"),
            ),
        )
    )


def _arc(piece: Slice, start: float) -> Html:
    length = 100 * piece.part
    return tag(
        "circle", tag("title", text(f"{piece.label}: {length:.1f} %")),
        cx=21, cy=21, r=_RADIUS, class_=f"arc {piece.tone}",
        stroke_dasharray=f"{max(length - 0.4, 0.05):.3f} {100 - max(length - 0.4, 0.05):.3f}",
        stroke_dashoffset=f"{math.fmod(125 - 100 * start, 100):.3f}",
    )  # fmt: skip
