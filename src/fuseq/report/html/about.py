"""What the numbers stand on: options, shapes, commands for other machines, files with their hashes."""

from __future__ import annotations

from collections.abc import Iterable

from fuseq.report.document import Document
from fuseq.report.html.figures import share, size
from fuseq.report.html.grid import Cell, Column, Row, grid
from fuseq.report.html.markup import NOTHING, TIMES, Html, join, tag, text
from fuseq.report.html.overview import title


def about(document: Document) -> Html:
    """Everything that is not a result."""
    shapes = ((name, TIMES.join(map(str, shape))) for name, shape in document.shapes)
    return join((
        _notes(document), _uncertainty(document), _commands(document),
        _pairs("Shapes compiled for", shapes), _pairs("Options", document.options), _files(document),
    ))  # fmt: skip


def _notes(document: Document) -> Html:
    if not document.notes:
        return NOTHING
    return tag("ul", *(tag("li", text(note, 800)) for note in document.notes), class_="noted")


def _uncertainty(document: Document) -> Html:
    stated = [engine.uncertainty for engine in document.engines if engine.uncertainty is not None]
    if not stated:
        return NOTHING
    words = (
        text(
            "Predicted times come from the cost model, whose stated error of an engine's total is "
        ),
        share(max(stated), 0),
        text(". They compare engines of one model on one GPU; they are never measurements."),
    )
    return tag("p", *words, class_="quiet")


def _commands(document: Document) -> Html:
    known = [engine for engine in document.engines if engine.trtexec]
    if not known:
        return NOTHING
    shown = (
        join((tag("h4", text(title(engine))), tag("pre", tag("code", text(engine.trtexec)), class_="command")))
        for engine in known
    )  # fmt: skip
    return join((tag("h3", text("Build and time it elsewhere")), *shown))


def _pairs(heading: str, pairs: Iterable[tuple[str, str]]) -> Html:
    rows = [
        join((tag("dt", text(name, 120)), tag("dd", tag("code", text(value, 300)))))
        for name, value in pairs
    ]
    return join((tag("h3", text(heading)), tag("dl", *rows, class_="pairs"))) if rows else NOTHING


def _files(document: Document) -> Html:
    if not document.files:
        return NOTHING
    columns = (Column("Part"), Column("File"), Column("Size", number=True), Column("SHA-256"))
    rows = [
        Row((
            Cell(text(file.role)), Cell(tag("code", text(file.path, 200)), file.path),
            Cell(size(file.file_bytes)), Cell(tag("code", text(file.sha256))),
        ))
        for file in document.files
    ]  # fmt: skip
    return join((tag("h3", text("Files")), grid("files-table", "Files written", columns, rows)))
