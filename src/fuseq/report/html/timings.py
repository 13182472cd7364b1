"""End-to-end times as they were measured or predicted, one row a run."""

from __future__ import annotations

from fuseq.report.document import Document, TimingRow
from fuseq.report.html.figures import count, decimal, figure, how, milliseconds
from fuseq.report.html.grid import Cell, Column, Row, grid
from fuseq.report.html.markup import NOTHING, TIMES, Html, join, tag, text

_COLUMNS = (
    Column("Engine", choose=True),
    Column("Time of", choose=True),
    Column("How", choose=True),
    Column("Speed-up", number=True, hint="against the first engine of the same run"),
    Column("Batch", number=True),
    Column("Runs", number=True),
    Column("Least", number=True),
    Column("Mean", number=True),
    Column("Median", number=True),
    Column("p90", number=True, hint="nine of ten runs were no longer"),
    Column("p99", number=True),
    Column("Most", number=True),
    Column("Runs/s", number=True),
)


def timings(document: Document) -> Html:
    """The table; "" without timings."""
    if not document.timings:
        return NOTHING
    rows = [Row(_cells(row)) for row in document.timings]
    notes = dict.fromkeys(note for row in document.timings for note in row.notes)
    said = (tag("p", text(note, 600), class_="note") for note in notes)
    return join((grid("timings-table", "End-to-end times", _COLUMNS, rows), *said))


def _cells(row: TimingRow) -> tuple[Cell, ...]:
    runner = tag("div", tag("small", text(row.runner, 80)))
    rate = row.throughput_per_s
    times = (row.min_ms, row.mean_ms, row.median_ms, row.p90_ms, row.p99_ms, row.max_ms)
    return (
        Cell(text(row.engine, 120), row.engine),
        Cell(text(row.what), row.what),
        Cell(join((how(row.measured), runner)), "measured" if row.measured else "predicted"),
        Cell(decimal(row.speedup, 2, TIMES)),
        Cell(count(row.batch)),
        Cell(count(row.iterations)),
        *(Cell(milliseconds(value)) for value in times),
        Cell(figure(rate, "" if rate is None else f"{rate:,.1f}")),
    )
