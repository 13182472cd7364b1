"""A document as terminal tables and sentences. It formats numbers of the document and adds none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich import box
from rich.table import Table

from fuseq.report.document import Document, LayerRow, TimingRow
from fuseq.report.document_closeness import ComparisonRow, OutputRow
from fuseq.report.terminal import gist, safe

_MB = 1e6
_SHOWN_REASONS = 12


def engines_table(document: Document) -> Table:
    """One row an engine: file, engine, kernels, only Q/DQ, activations, time, closeness."""
    outputs = {row.other: row.outputs[0] for row in document.comparisons if row.outputs}
    timed = any(row.measured for row in document.timings)
    predicted = any(engine.predicted_us is not None for engine in document.engines)
    agreement = next((_agreement(row)[0] for row in outputs.values() if _agreement(row)[0]), "")
    table = Table(
        title=safe(document.title),
        title_justify="left",
        box=box.SIMPLE,
        padding=(0, 1, 0, 0),
        show_edge=False,
    )
    table.add_column("\nengine", no_wrap=True)
    headings = ["file\nMB", "engine\nMB", "\nkernels", "only\nQ/DQ", "activ.\nMB"]
    headings += ["predicted\nus"] if predicted else []
    headings += ["measured\nms"] if timed else []
    headings += ["\ncosine", "SQNR\ndB"] if outputs else []
    headings += [agreement] if agreement else []
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for engine in document.engines:
        cells = [
            "" if engine.model_bytes is None else f"{engine.model_bytes / _MB:.1f}",
            f"{engine.engine_bytes / _MB:.1f}",
            str(len(engine.kernels)),
            str(engine.alone_kernels),
            f"{engine.activation_bytes / _MB:.1f}",
        ]
        cells += ["" if engine.predicted_us is None else f"{engine.predicted_us:.1f}"] * predicted
        cells += [_measured_ms(document.timings, engine.name)] * timed
        cells += _closeness_cells(outputs.get(engine.name), bool(agreement)) if outputs else []
        table.add_row(safe(engine.label), *cells)
    return table


def reasons_table(layers: Sequence[LayerRow]) -> Table:
    """How many layers run in which precision, and why; quantized ones first."""
    table = Table(box=box.SIMPLE, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("layers", justify="right")
    table.add_column("pattern")
    table.add_column("precision")
    table.add_column("because", overflow="fold")
    counts = Counter(
        (not row.quantized, row.pattern, row.planned_precision, gist(row.reason)) for row in layers
    )
    ordered = sorted(counts.items(), key=lambda item: (item[0][0], -item[1]))
    for (_, pattern, precision, reason), count in ordered[:_SHOWN_REASONS]:
        table.add_row(str(count), safe(pattern), safe(precision), safe(reason, 300))
    rest = ordered[_SHOWN_REASONS:]
    if rest:
        table.add_row(str(sum(count for _, count in rest)), "others", "", "see the report")
    return table


def sentences(document: Document) -> list[str]:
    """What the tables mean, one sentence each; text of the model is made printable."""
    nothing = _nothing(document)
    found = [nothing] if nothing else [_speed(document), _alone(document)]
    found.append(_findings(document))
    found += _closeness(document.comparisons[-1]) if document.comparisons else []
    found += [f"not done here: {text}." for text in document.missing]
    return [safe(text, 600) for text in found if text]


def _nothing(document: Document) -> str:
    if any(row.quantized for row in document.layers):
        return ""
    if document.layers:
        return "Nothing is quantized: every layer is in float, for the reasons above."
    planned = next((engine for engine in document.engines if engine.name == "quantized"), None)
    if planned is None or planned.format:
        return ""
    return "Nothing is quantized: the model has no layer that could be."


def _speed(document: Document) -> str:
    engines = {engine.name: engine for engine in document.engines}
    float_engine, quantized = engines.get("float"), engines.get("quantized")
    row = next((row for row in document.timings if row.engine == "quantized"), None)
    if float_engine is None or quantized is None or row is None or row.speedup is None:
        return ""
    how = f"measured by {row.runner}" if row.measured else "predicted"
    doubt = ""
    if not row.measured and quantized.uncertainty is not None:
        doubt = f"; a predicted time is good to {100 * quantized.uncertainty:.0f} %"
    return (
        f"The {quantized.label} engine is {how} {row.speedup:.2f} times as fast as the "
        f"{float_engine.label} engine{doubt}."
    )


def _alone(document: Document) -> str:
    engine = next((engine for engine in document.engines if engine.name == "quantized"), None)
    if engine is None:
        return ""
    if engine.alone_kernels == 0:
        return f"No kernel of the {engine.label} engine is only Q, DQ or a change of type."
    return (
        f"{engine.alone_kernels} of {len(engine.kernels)} kernels of the {engine.label} engine only "
        "quantize, dequantize or change type."
    )


def _findings(document: Document) -> str:
    if not document.engines:
        return ""
    if not document.findings:
        return "fuseq check finds nothing."
    counts = Counter(finding.severity for finding in document.findings)
    words = ", ".join(f"{count} {word}{'s' if count > 1 else ''}" for word, count in counts.items())
    codes = ", ".join(dict.fromkeys(finding.code for finding in document.findings))
    return f"fuseq check: {words} ({codes})."


def comparison_sentences(row: ComparisonRow) -> list[str]:
    """What a comparison means, one sentence each; text of the model is made printable."""
    return [safe(text, 600) for text in _closeness(row)]


def _closeness(row: ComparisonRow) -> list[str]:
    found = [
        f"Closeness is to {row.reference} on {row.samples} samples ({row.data}), computed by {row.runner}."
    ]
    if row.tensors:
        found.append(
            f"The error jumps first at {row.first_jump}: {row.jump_reason}."
            if row.first_jump
            else f"The error jumps at none of {len(row.tensors)} tensors inside."
        )
    for metric in row.metrics:
        shown = ("none" if x is None else f"{x:.4f}" for x in (metric.reference, metric.other))
        found.append(f"{metric.name}: " + ", then ".join(shown) + ".")
    return found


def _measured_ms(timings: Sequence[TimingRow], engine: str) -> str:
    row = next((row for row in timings if row.measured and row.engine == engine), None)
    return "" if row is None or row.median_ms is None else f"{row.median_ms:.2f}"


def _closeness_cells(row: OutputRow | None, has_agreement: bool) -> list[str]:
    if row is None:
        return ["", ""] + [""] * has_agreement
    cosine = "" if row.cosine_mean is None else f"{row.cosine_mean:.4f}"
    sqnr = "same" if row.identical else "" if row.sqnr_db is None else f"{row.sqnr_db:.1f}"
    share = _agreement(row)[1]
    return [cosine, sqnr] + ["" if share is None else f"{100 * share:.1f} %"] * has_agreement


def _agreement(row: OutputRow) -> tuple[str, float | None]:
    """Heading and share."""
    if row.kind == "classes":
        return "same\ntop-1", row.top1
    if row.kind == "embedding" and row.nearest is not None:
        return "same\nnearest", row.nearest
    return "", None
