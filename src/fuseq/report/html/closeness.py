"""How close the quantized model's values are: outputs, the error along the graph, every tensor."""

from __future__ import annotations

from collections.abc import Sequence

from fuseq.report.document import Document
from fuseq.report.document_closeness import ComparisonRow, OutputRow, TensorErrorRow
from fuseq.report.html.error_plot import error_plot
from fuseq.report.html.figures import UNKNOWN, count, decimal, scientific, share
from fuseq.report.html.grid import Cell, Column, Row, grid
from fuseq.report.html.markup import DASH, NOTHING, TIMES, Html, join, tag, text

_OUTPUTS = (
    Column("Output"),
    Column("Shape"),
    Column("SQNR", number=True, hint="dB; higher is closer"),
    Column("Cosine, mean", number=True),
    Column("Cosine, least", number=True),
    Column("Max difference", number=True),
    Column("Relative", number=True, hint="L2 of the difference over L2 of the reference"),
    Column("Top-1", number=True, hint="same best class"),
    Column("Top-5", number=True, hint="the reference's best class is among the five best"),
    Column("Nearest", number=True, hint="same nearest neighbour among the samples"),
)
_TENSORS = (
    Column("#", number=True, hint="order in the graph"),
    Column("Tensor"),
    Column("Made by", choose=True),
    Column("Jump", choose=True, hint="the error grows much more here than in what it is made from"),
    Column("SQNR", number=True, hint="dB"),
    Column("Relative", number=True),
    Column("Added", number=True, hint="growth against the worst tensor that it is computed from"),
    Column("Cosine", number=True),
    Column("Max difference", number=True),
    Column("Module"),
)


def closeness(document: Document) -> Html:
    """Every comparison, that of the last engine first; all of its numbers are measured."""
    return join(_comparison(i, row) for i, row in reversed(list(enumerate(document.comparisons))))


def _comparison(index: int, row: ComparisonRow) -> Html:
    said = join((
        text(f"{row.other} against {row.reference} on {row.data}: ", 300), count(row.samples),
        text(f" samples, {row.runner}. ", 120), tag("span", text("measured"), class_="chip measured"),
    ))  # fmt: skip
    parts = [tag("p", said, class_="note")]
    if row.first_jump:
        words = join((text("The error first jumps at "), tag("code", text(row.first_jump, 120)), text(f": {row.jump_reason}", 500)))  # fmt: skip
        parts.append(tag("p", words, class_="missing"))
    if row.outputs:
        rows = [Row(tuple(_output(output))) for output in row.outputs]
        parts.append(grid(f"outputs-{index}", "Outputs", _OUTPUTS, rows))
    if row.metrics:
        parts.append(_metrics(row))
    if row.tensors:
        parts.append(tag("h3", text("Error along the graph")))
        parts.append(error_plot(row.tensors))
        rows = [_tensor(place, tensor) for place, tensor in enumerate(row.tensors)]
        parts.append(grid(f"tensors-{index}", "Error of every common tensor", _TENSORS, rows))
    parts += [tag("p", text(note, 600), class_="note") for note in row.notes]
    return tag("section", *parts)


def _output(row: OutputRow) -> Sequence[Cell]:
    name = join((tag("code", text(row.name, 120)), _state(row.identical, row.not_finite)))
    return (
        Cell(name),
        Cell(text(_shape(row.shape))),
        Cell(decimal(row.sqnr_db, 1, "dB")),
        Cell(decimal(row.cosine_mean, 5)),
        Cell(decimal(row.cosine_min, 5)),
        Cell(scientific(row.max_abs)),
        Cell(scientific(row.relative)),
        Cell(share(row.top1) if row.top1 is not None else UNKNOWN),
        Cell(share(row.top5) if row.top5 is not None else UNKNOWN),
        Cell(share(row.nearest) if row.nearest is not None else UNKNOWN),
    )


def _tensor(place: int, row: TensorErrorRow) -> Row:
    name = join((
        tag("code", text(row.name, 120)), _state(row.identical, row.not_finite),
        tag("div", tag("small", text(row.source, 160))) if row.source else NOTHING,
    ))  # fmt: skip
    jump = tag("span", text("jump"), class_="chip warning") if row.jump else NOTHING
    return Row(
        (
            Cell(count(place + 1)),
            Cell(name),
            Cell(text(row.op_type or "input"), row.op_type or "input"),
            Cell(jump, "jump" if row.jump else "no"),
            Cell(decimal(row.sqnr_db, 1, "dB")),
            Cell(scientific(row.relative)),
            Cell(scientific(row.added)),
            Cell(decimal(row.cosine, 5)),
            Cell(scientific(row.max_abs)),
            Cell(text(row.module, 80), row.module),
        )
    )


def _state(identical: bool, not_finite: int) -> Html:
    if not_finite:
        return join((text(" "), tag("span", count(not_finite), text(" not finite"), class_="chip error")))  # fmt: skip
    return join((text(" "), tag("span", text("identical"), class_="chip measured"))) if identical else NOTHING  # fmt: skip


def _metrics(row: ComparisonRow) -> Html:
    columns = (Column("Metric"), Column("Reference", number=True), Column("Other", number=True))
    rows = [
        Row((Cell(text(m.name, 120)), Cell(scientific(m.reference)), Cell(scientific(m.other))))
        for m in row.metrics
    ]
    return grid("metrics", "Your metrics on both models", columns, rows)


def _shape(shape: tuple[int, ...]) -> str:
    return TIMES.join(map(str, shape)) or DASH
