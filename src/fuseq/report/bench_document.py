"""A benchmark as a document, for the page."""

from __future__ import annotations

from collections.abc import Iterator

import fuseq
from fuseq.evaluate.bench import BenchResult, BenchRow
from fuseq.evaluate.profile_modules import engine_modules
from fuseq.report.document import Document, EngineRow, TimingRow
from fuseq.report.engine_rows import EngineText, engine_row

PREDICTED_BY = "fuseq's cost model"


def bench_document(result: BenchResult) -> Document:
    """Every time of ``result``, measured or predicted, and the engines that were compiled."""
    batches = {row.batch for row in result.rows}
    return Document(
        command="bench",
        fuseq=fuseq.__version__,
        title=" beside ".join(row.name for row in reversed(result.rows)),
        target=result.target,
        batch=batches.pop() if len(batches) == 1 else None,
        engines=tuple(_engine(row) for row in result.rows if row.engine is not None),
        timings=tuple(timing for row in result.rows for timing in _timings(row, result.target)),
        notes=(*result.findings, *result.notes),
        missing=result.missing,
    )


def _engine(row: BenchRow) -> EngineRow:
    assert row.engine is not None
    text = EngineText(
        name=row.name,
        label=row.name,
        simulated=row.engine.target.startswith("tensorrt:"),
        model_file=row.source,
        trtexec=row.trtexec,
    )
    return engine_row(row.engine, text, engine_modules(row.engine))


def measured_timings(row: BenchRow, target: str) -> Iterator[TimingRow]:
    """The times that were taken, of the device first; the ratio stands where it was taken."""
    sides = [(what, s) for what, s in (("device", row.device), ("host", row.host)) if s is not None]
    ratio = None if row.ratio is None else row.ratio.median
    for number, (what, spread) in enumerate(sides):
        yield TimingRow(
            engine=row.name,
            what=what,
            runner=target,
            measured=True,
            batch=row.batch,
            iterations=spread.runs,
            min_ms=spread.min_ms,
            mean_ms=spread.mean_ms,
            median_ms=spread.median_ms,
            p90_ms=spread.p90_ms,
            p99_ms=spread.p99_ms,
            max_ms=spread.max_ms,
            throughput_per_s=row.throughput_per_s,
            speedup=ratio if number == 0 else None,
            notes=row.notes,
        )


def _timings(row: BenchRow, target: str) -> Iterator[TimingRow]:
    yield from measured_timings(row, target)
    if row.predicted_us is not None:
        yield TimingRow(
            engine=row.name,
            what="latency",
            runner=PREDICTED_BY,
            measured=False,
            batch=row.batch,
            median_ms=row.predicted_us / 1e3,
            speedup=row.predicted_ratio,
        )
