"""A scatter plot as an SVG that needs nothing else, and as text for terminals.

Text comes from models: it is escaped, and nothing in the SVG can execute.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from xml.sax.saxutils import escape

_WIDTH, _HEIGHT, _LEFT, _TOP, _RIGHT, _BOTTOM = 760, 460, 80, 40, 24, 56


@dataclasses.dataclass(frozen=True)
class Dot:
    """One point: its place, its name (shown on hover), and whether it is marked."""

    x: float
    y: float
    name: str
    marked: bool = False


@dataclasses.dataclass(frozen=True)
class Scatter:
    """A plot; ``log_y`` for values over several decades, ``joined`` draws a line through the dots."""

    title: str
    x_label: str
    y_label: str
    dots: tuple[Dot, ...]
    log_y: bool = False
    joined: bool = False


def scatter_svg(plot: Scatter) -> str:
    """The plot as one SVG document."""
    dots = _drawable(plot)
    xs, ys = [dot.x for dot in dots], [_y(plot, dot) for dot in dots]
    x_range, y_range = _range(xs), _range(ys)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" '
        f'viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        _text(_WIDTH / 2, 22, plot.title, "middle", 'font-size="15"'),
        _text(_WIDTH / 2, _HEIGHT - 12, plot.x_label, "middle"),
        _text(18, _HEIGHT / 2, plot.y_label, "middle",
              f'transform="rotate(-90 18 {_HEIGHT / 2:.0f})"'),
        *_axes(plot, x_range, y_range),
    ]  # fmt: skip
    placed = [(_place_x(x, x_range), _place_y(y, y_range)) for x, y in zip(xs, ys, strict=True)]
    if plot.joined and placed:
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in sorted(placed))
        parts.append(f'<polyline points="{line}" fill="none" stroke="#9aa7b5"/>')
    for dot, (x, y) in zip(dots, placed, strict=True):
        color, radius = ("#c0392b", 6) if dot.marked else ("#2c6fbb", 4)
        parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="{color}" fill-opacity="0.8">'
            f"<title>{_clean(dot.name)}: {dot.x:.4g}, {dot.y:.4g}</title></circle>"
        )
    return "\n".join([*parts, "</svg>", ""])


def scatter_text(plot: Scatter, columns: int = 64, rows: int = 16) -> str:
    """The plot in characters: ``o`` a dot, ``#`` several, ``X`` a marked one."""
    dots = _drawable(plot)
    x_range = _range([dot.x for dot in dots])
    y_range = _range([_y(plot, dot) for dot in dots])
    grid = [[" "] * columns for _ in range(rows)]
    for dot in dots:
        column = round(_part(dot.x, x_range) * (columns - 1))
        row = rows - 1 - round(_part(_y(plot, dot), y_range) * (rows - 1))
        taken = grid[row][column]
        grid[row][column] = "X" if dot.marked or taken == "X" else ("o" if taken == " " else "#")
    high, low = _tick(plot, y_range[1]), _tick(plot, y_range[0])
    margin = max(len(high), len(low))
    lines = [plot.title, f"{plot.y_label}"]
    for number, row_cells in enumerate(grid):
        label = high if number == 0 else (low if number == rows - 1 else "")
        lines.append(f"{label:>{margin}} |{''.join(row_cells).rstrip()}")
    lines.append(" " * margin + " +" + "-" * columns)
    left, right = f"{x_range[0]:.4g}", f"{x_range[1]:.4g}"
    gap = max(columns - len(left) - len(right) - len(plot.x_label), 2)
    lines.append(
        f"{'':>{margin}}  {left}{' ' * (gap // 2)}{plot.x_label}{' ' * (gap - gap // 2)}{right}"
    )
    return "\n".join(lines)


def _drawable(plot: Scatter) -> list[Dot]:
    return [
        dot
        for dot in plot.dots
        if math.isfinite(dot.x) and math.isfinite(dot.y) and (dot.y > 0 or not plot.log_y)
    ]


def _y(plot: Scatter, dot: Dot) -> float:
    return math.log10(dot.y) if plot.log_y else dot.y


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values, default=0.0), max(values, default=1.0)
    if low == high:
        return low - 0.5, high + 0.5
    return low, high


def _part(value: float, span: tuple[float, float]) -> float:
    return (value - span[0]) / (span[1] - span[0])


def _place_x(x: float, span: tuple[float, float]) -> float:
    return _LEFT + 10 + _part(x, span) * (_WIDTH - _LEFT - _RIGHT - 20)


def _place_y(y: float, span: tuple[float, float]) -> float:
    return _HEIGHT - _BOTTOM - 10 - _part(y, span) * (_HEIGHT - _TOP - _BOTTOM - 20)


def _axes(plot: Scatter, x_range: tuple[float, float], y_range: tuple[float, float]) -> list[str]:
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    parts = [
        f'<path d="M{_LEFT} {_TOP}V{bottom}H{right}" fill="none" stroke="#444"/>',
    ]
    for part in (0, 0.25, 0.5, 0.75, 1):
        x = x_range[0] + part * (x_range[1] - x_range[0])
        y = y_range[0] + part * (y_range[1] - y_range[0])
        parts.append(_text(_place_x(x, x_range), bottom + 18, f"{x:.4g}", "middle"))
        parts.append(_text(_LEFT - 6, _place_y(y, y_range) + 4, _tick(plot, y), "end"))
    return parts


def _tick(plot: Scatter, y: float) -> str:
    return f"{10**y:.2g}" if plot.log_y else f"{y:.4g}"


def _text(x: float, y: float, text: str, anchor: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {more}>{_clean(text)}</text>'


def _clean(text: str) -> str:
    return escape("".join(char if char.isprintable() else "\ufffd" for char in text[:200]))
