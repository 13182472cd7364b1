"""The headline cards: latency, size, kernels, closeness, findings, each with what it was before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from fuseq.report.document import Document, EngineRow, TimingRow
from fuseq.report.document_closeness import ComparisonRow, OutputRow
from fuseq.report.html.figures import count, decimal, duration, how, milliseconds, share, size
from fuseq.report.html.markup import NOTHING, TIMES, Html, join, tag, text
from fuseq.report.shares import is_measured, total_us


def cards(document: Document) -> Html:
    """A list of cards; a card whose numbers are unknown is not there."""
    made = [card for card in _all(document) if card != NOTHING]
    return tag("ul", *made, class_="cards") if made else NOTHING


def _all(document: Document) -> Iterator[Html]:
    before, after = compared(document)
    yield _speedup(document)
    yield _median(document)
    if after is not None:
        yield _latency(before, after)
        yield _engine_size(before, after)
        yield _kernels(before, after)
    yield _closeness(document)
    if document.command in ("check", "deploy", "report") or document.findings:
        yield _findings(document)


def compared(document: Document) -> tuple[EngineRow | None, EngineRow | None]:
    """The float engine and the one that the page is about; both None without engines.

    A document of one engine has only the latter; of several, the first is the reference.
    """
    engines = document.engines
    if not engines:
        return None, None
    return (engines[0], engines[-1]) if len(engines) > 1 else (None, engines[0])


def best_timing(document: Document) -> TimingRow | None:
    """The timing to headline: measured before predicted, and with a speed-up."""
    known = [row for row in document.timings if row.speedup is not None]
    others = [row for row in known if row.engine != known[0].engine]
    return max(others, key=lambda row: row.measured, default=None)


def _speedup(document: Document) -> Html:
    row = best_timing(document)
    if row is None:
        return NOTHING
    against = text(f"against {_label(document, reference(document, row).engine)}", 60)
    return _card("Speed-up", decimal(row.speedup, 2, TIMES), how(row.measured), against)


def _median(document: Document) -> Html:
    row = best_timing(document)
    if row is None or not row.measured:
        return NOTHING
    first = reference(document, row)
    beside = join((text(f"{_label(document, first.engine)} ", 60), milliseconds(first.median_ms)))
    detail = join((how(row.measured), text(f" {row.what}, {row.runner}", 60)))
    return _card("Median latency", milliseconds(row.median_ms), detail, beside)


def reference(document: Document, row: TimingRow) -> TimingRow:
    """The row that the speed-up of ``row`` refers to: the first of its kind."""
    alike = (r for r in document.timings if (r.what, r.measured) == (row.what, row.measured))
    return next(alike, row)


def _label(document: Document, name: str) -> str:
    return next((e.label for e in document.engines if e.name == name and e.label), name)


def _latency(before: EngineRow | None, after: EngineRow) -> Html:
    value = total_us(after)
    if value is None:
        return NOTHING
    parts = [how(is_measured(after))]
    if not is_measured(after) and after.uncertainty is not None:
        parts.append(tag("span", text("± "), share(after.uncertainty, 0), class_="margin"))
    return _card("Sum of kernel times", duration(value), join(parts, " "), _was(before))


def _was(before: EngineRow | None) -> Html:
    value = total_us(before) if before is not None else None
    if before is None or value is None:
        return NOTHING
    return join((text(f"{before.label or before.name} "), duration(value)))


def _engine_size(before: EngineRow | None, after: EngineRow) -> Html:
    if after.engine_bytes <= 0:
        return NOTHING
    beside = NOTHING
    if before is not None and before.engine_bytes > 0:
        beside = join((text(f"{before.label or before.name} "), size(before.engine_bytes)))
    return _card("Engine size", size(after.engine_bytes), NOTHING, beside)


def _kernels(before: EngineRow | None, after: EngineRow) -> Html:
    alone = join((count(after.alone_kernels), text(" only quantize, dequantize or cast")))
    beside = NOTHING
    if before is not None:
        beside = join((text(f"{before.label or before.name} "), count(len(before.kernels))))
    return _card("Kernels", count(len(after.kernels)), alone, beside)


def headline_comparison(document: Document) -> ComparisonRow | None:
    """The comparison of the engine that the page is about; the last where none is called like it."""
    name = document.engines[-1].name if document.engines else ""
    about = [row for row in document.comparisons if row.other == name]
    return next(iter(about or document.comparisons[-1:]), None)


def _closeness(document: Document) -> Html:
    row = headline_comparison(document)
    if row is None or not row.outputs:
        return NOTHING
    worst = min(row.outputs, key=lambda output: (output.sqnr_db is not None, output.sqnr_db or 0))
    name, value = _agreement(worst)
    detail = join((text("SQNR "), decimal(worst.sqnr_db, 1, "dB")))
    samples = join((count(row.samples), text(" samples, measured")))
    return _card(name, value, samples, detail)


def _agreement(row: OutputRow) -> tuple[str, Html]:
    if row.top1 is not None:
        return "Top-1 agreement", share(row.top1)
    if row.nearest is not None:
        return "Retrieval agreement", share(row.nearest)
    return "Cosine, least", decimal(row.cosine_min, 5)


def _findings(document: Document) -> Html:
    counts = Counter(row.severity for row in document.findings)
    parts = [
        join((count(counts[word]), text(f" {word}{'' if counts[word] == 1 else 's'}")))
        for word in ("error", "warning", "note")
        if counts[word]
    ]
    detail = join(parts, ", ") if parts else text("nothing found")
    return _card("Findings", count(len(document.findings)), detail, NOTHING)


def _card(label: str, value: Html, detail: Html, beside: Html) -> Html:
    return tag(
        "li",
        tag("span", text(label), class_="label"),
        tag("span", value, class_="value"),
        tag("span", detail, class_="detail") if detail else NOTHING,
        tag("span", beside, class_="beside") if beside else NOTHING,
        class_="card",
    )
