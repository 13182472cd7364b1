"""Plots: dots where the numbers say, and text from models that cannot break out."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET

from fuseq.report.scatter import Dot, Scatter, scatter_svg, scatter_text

SVG = "{http://www.w3.org/2000/svg}"


def _plot(*dots: Dot, log_y: bool = False) -> Scatter:
    return Scatter("title", "x", "y", dots, log_y, joined=True)


def test_dots_are_placed_in_proportion() -> None:
    plot = _plot(Dot(0, 0, "a"), Dot(5, 10, "b"), Dot(10, 5, "c", marked=True))
    circles = ET.fromstring(scatter_svg(plot)).findall(f"{SVG}circle")
    x = [float(c.get("cx", "nan")) for c in circles]
    y = [float(c.get("cy", "nan")) for c in circles]
    assert math.isclose(x[1] - x[0], x[2] - x[1], abs_tol=0.2)
    assert math.isclose(y[0] - y[2], y[2] - y[1], abs_tol=0.2)
    assert [c.get("fill") for c in circles] == ["#2c6fbb", "#2c6fbb", "#c0392b"]


def test_a_name_from_a_model_stays_text() -> None:
    svg = scatter_svg(_plot(Dot(1, 1, "</title><script>alert(1)</script>\x1b[31m")))
    assert "<script" not in svg
    assert "\x1b" not in svg
    ET.fromstring(svg)


def test_decades_and_what_cannot_be_drawn() -> None:
    plot = _plot(Dot(0, 1e-6, "a"), Dot(1, 1e-3, "b"), Dot(2, 1.0, "c"), Dot(3, 0.0, "zero"),
                 Dot(4, math.inf, "inf"), log_y=True)  # fmt: skip
    circles = ET.fromstring(scatter_svg(plot)).findall(f"{SVG}circle")
    y = [float(c.get("cy", "nan")) for c in circles]
    assert len(y) == 3
    assert math.isclose(y[0] - y[1], y[1] - y[2], abs_tol=0.2)


def test_text_shows_corners() -> None:
    lines = scatter_text(_plot(Dot(0, 0, "a"), Dot(1, 1, "b", marked=True)), 10, 3).splitlines()
    assert lines[2] == "1 |         X"
    assert lines[3] == "  |"
    assert lines[4] == "0 |o"


def test_nothing_to_draw_is_an_empty_plot() -> None:
    assert ET.fromstring(scatter_svg(_plot())).findall(f"{SVG}circle") == []
    assert "title" in scatter_text(_plot())
