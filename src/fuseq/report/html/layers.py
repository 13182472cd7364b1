"""Layer by layer: what was planned, what the engine runs, and why a layer is still float."""

from __future__ import annotations

from collections import Counter

from fuseq.report.document import Document, LayerRow
from fuseq.report.html.figures import count
from fuseq.report.html.grid import Cell, Column, Row, grid
from fuseq.report.html.kernels import chip
from fuseq.report.html.markup import NOTHING, Html, join, tag, text

_COLUMNS = (
    Column("Layer"),
    Column("Pattern", choose=True),
    Column("Decision", choose=True),
    Column("Planned", choose=True),
    Column("In the engine", choose=True, hint="precision of the kernel that runs it"),
    Column("Why"),
    Column("Module"),
)


def layers(document: Document) -> Html:
    """A sentence a pattern and the table; "" without a plan."""
    rows = document.layers
    if not rows:
        return NOTHING
    total = Counter(row.pattern for row in rows)
    done = Counter(row.pattern for row in rows if row.quantized)
    said = (
        tag("li", text(f"{pattern}: "), count(done[pattern]), text(" of "), count(number), text(" quantized"))
        for pattern, number in total.most_common()
    )  # fmt: skip
    table = grid("layers-table", "Layers, their precision and the reason", _COLUMNS, [_row(row) for row in rows])  # fmt: skip
    return join((tag("ul", *said, class_="facts"), table))


def _row(row: LayerRow) -> Row:
    decision = "quantized" if row.quantized else "float"
    name = join((tag("code", text(row.name, 160)), tag("div", tag("small", text(row.source, 160)))))
    return Row(
        (
            Cell(name, row.name),
            Cell(text(row.pattern), row.pattern),
            Cell(text(decision), decision),
            Cell(chip(row.planned_precision), row.planned_precision),
            Cell(chip(row.engine_precision), row.engine_precision),
            Cell(text(row.reason, 400)),
            Cell(text(row.module, 80), row.module),
        )
    )
