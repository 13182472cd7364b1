"""The curve of accuracy against the objective, as a picture and as numbers."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from fuseq.errors import OptionError
from fuseq.model import whole_file
from fuseq.report.scatter import Dot, Scatter, scatter_svg
from fuseq.trials.constraint import Constraint
from fuseq.trials.objective import UNITS
from fuseq.trials.tradeoff import Point, Tradeoff, formats_of

_SUFFIXES = (".svg", ".json")


def check_curve(path: str | None, constraint: Constraint | None) -> None:
    """Refuse before the long work what would fail after it.

    Raises:
        OptionError: There is no curve without a constraint, or the file has another suffix.
    """
    if path is None:
        return
    if constraint is None:
        raise OptionError(
            "--curve-out needs a constraint; give --min-cosine, --min-top1, or --metric and "
            "--max-drop."
        )
    if Path(path).suffix not in _SUFFIXES:
        raise OptionError(f"--curve-out {path}: give a name that ends in .svg or .json.")


def write_curve(tradeoff: Tradeoff, objective: str, path: str) -> None:
    """Write the picture or the numbers, by the file's suffix, whole or not at all."""
    file = Path(path)
    text = (
        scatter_svg(curve_picture(tradeoff, objective))
        if file.suffix == ".svg"
        else json.dumps(curve_numbers(tradeoff), indent=1) + "\n"
    )
    with whole_file(file) as beside:
        beside.write_text(text, encoding="utf-8")


def curve_picture(tradeoff: Tradeoff, objective: str) -> Scatter:
    """Points that no other beats, the chosen one marked; all lie between the fastest and float."""
    word = "predicted " if objective == "latency" else ""
    dots = tuple(
        Dot(point.value, point.score, _name(point), point is tradeoff.chosen)
        for point in {id(p): p for p in (*tradeoff.pareto, tradeoff.chosen)}.values()
    )
    title = f"{tradeoff.measure} against {objective}, at least {tradeoff.bar:.5g}"
    return Scatter(title, f"{word}{UNITS[objective]}", tradeoff.measure, dots, joined=True)


def curve_numbers(tradeoff: Tradeoff) -> dict[str, Any]:
    """Every point evaluated, fastest first; the chosen one's plan is the search's plan."""
    return {
        "measure": tradeoff.measure,
        "bar": tradeoff.bar,
        "kept": tradeoff.chosen.score >= tradeoff.bar,
        "chosen": _numbers(tradeoff.chosen),
        "unconstrained": _numbers(tradeoff.unconstrained),
        "pareto": [_numbers(point) for point in tradeoff.pareto],
        "points": [_numbers(point) for point in tradeoff.points],
    }


def _numbers(point: Point) -> dict[str, Any]:
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in point.numbers().items()
    }


def _name(point: Point) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(formats_of(point.plan).items()))
