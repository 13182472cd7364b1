"""Profiles as a document, and the document's tables: the terminal prints what the JSON holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich import box
from rich.table import Table

import fuseq
from fuseq.evaluate.bench_statistics import spread
from fuseq.evaluate.profile import Profiled
from fuseq.report.document import Document, EngineRow, KernelRow, ModuleRow, TimingRow
from fuseq.report.engine_rows import EngineText, engine_row
from fuseq.report.module_rows import module_rows
from fuseq.report.shares import Share, by_precision, by_type, is_measured, shares, time_us, total_us
from fuseq.report.terminal import safe


def profile_document(profiled: Profiled, beside: Profiled | None = None) -> Document:
    """Everything about one engine, or about a quantized engine with its float one beside it.

    Args:
        profiled: The engine in question.
        beside: The float engine that it is compared with.
    """
    both = [side for side in (beside, profiled) if side is not None]
    rows = [_engine_row(side, quantized=side is profiled and beside is not None) for side in both]
    quantized = rows[-1] if beside is not None or profiled.is_quantized else None
    without = rows[0] if rows[0] is not quantized and _has_modules(rows[0]) else None
    return Document(
        command="profile",
        fuseq=fuseq.__version__,
        title=" beside ".join(Path(side.source.path).name for side in reversed(both)),
        model=profiled.source.model or profiled.source.path,
        target=profiled.engine.target,
        engines=tuple(rows),
        modules=module_rows(without, quantized),
        timings=tuple(
            timing for side, row in zip(both, rows, strict=True) for timing in _timings(side, row)
        ),
        notes=tuple(dict.fromkeys(note for row in rows for note in row.notes)),
        missing=tuple(_missing(both)),
    )


def profile_tables(document: Document, top: int, depth: int) -> Iterator[Table]:
    """Totals, by type, by precision, by module, kernels that only convert, the slowest kernels."""
    engines = document.engines
    yield _totals(document)
    yield _grouped(engines, "type", [shares(engine, by_type) for engine in engines])
    yield _grouped(engines, "precision", [shares(engine, by_precision) for engine in engines])
    if any(row.path for row in document.modules):
        yield _modules(document, top, depth)
    engine = engines[-1]
    if engine.alone_kernels:
        alone = [kernel for kernel in engine.kernels if kernel.alone]
        yield _kernels(engine, alone, top, f"{len(alone)} kernels that only quantize or convert")
    yield _kernels(engine, engine.kernels, top, f"slowest of {len(engine.kernels)} kernels")


def _has_modules(engine: EngineRow) -> bool:
    """Without one, nothing of the engine can be laid beside another's modules."""
    return any(kernel.module for kernel in engine.kernels)


def _engine_row(side: Profiled, quantized: bool) -> EngineRow:
    is_quantized = quantized or side.is_quantized
    text = EngineText(
        name="quantized" if is_quantized else "float",
        label=Path(side.source.path).name,
        model_file=side.source.model or ("" if side.source.is_engine else side.source.path),
        simulated=side.engine.target.startswith("tensorrt:"),
    )
    return engine_row(side.engine, text, side.modules)


def _timings(side: Profiled, row: EngineRow) -> Iterator[TimingRow]:
    times = side.times
    if times is None:
        return
    if times.device_ms:
        found = spread(times.device_ms)
        yield TimingRow(
            row.name, "device", "trtexec", True, None, found.runs, found.min_ms, found.mean_ms,
            found.median_ms, found.p90_ms, found.p99_ms, found.max_ms, times.throughput_per_s,
        )  # fmt: skip
    elif times.summary:
        numbers = times.summary
        yield TimingRow(
            row.name, "device", "trtexec", True, None, None, numbers["min_ms"], numbers["mean_ms"],
            numbers["median_ms"], None, numbers["p99_ms"], numbers["max_ms"],
            times.throughput_per_s,
        )  # fmt: skip


def _missing(sides: Sequence[Profiled]) -> Iterator[str]:
    for side in sides:
        if not side.measured:
            why = "no --profile was given" if side.source.is_engine else "no GPU here"
            yield f"{Path(side.source.path).name}: {why}, so no kernel was timed."


def _word(engine: EngineRow) -> str:
    return "measured us" if is_measured(engine) else "predicted us"


def _us(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _totals(document: Document) -> Table:
    table = Table(title=f"profile: {safe(document.title)}", title_justify="left")
    table.add_column("engine", overflow="fold")
    for heading in ("kernels", "only Q/DQ", "kernels us", "inference us"):
        table.add_column(heading, justify="right")
    medians = {row.engine: row.median_ms for row in document.timings}
    for engine in document.engines:
        median = medians.get(engine.name)
        total = total_us(engine)
        table.add_row(
            f"{safe(engine.label)} ({'measured' if is_measured(engine) else 'predicted'})",
            str(len(engine.kernels)),
            str(engine.alone_kernels),
            _us(total),
            _us(None if median is None else median * 1e3),
        )
    return table


def _grouped(engines: Sequence[EngineRow], what: str, groups: Sequence[Sequence[Share]]) -> Table:
    """One row a group, for every engine its kernels, time and share; the last engine's order."""
    words = dict.fromkeys(_word(engine) for engine in engines)
    table = Table(title=f"by {what}, {' and '.join(words)}", title_justify="left")
    table.add_column(what, no_wrap=True)
    for engine in engines:
        name = engine.name if len(engines) > 1 else "us"
        for heading in ("kernels", name, "share"):
            table.add_column(heading, justify="right", no_wrap=True)
    known = [{share.key: share for share in group} for group in groups]
    for key in dict.fromkeys(share.key for group in reversed(groups) for share in group):
        cells: list[str] = []
        for group in known:
            share = group.get(key)
            cells += (
                ["-", "-", "-"]
                if share is None
                else [str(share.kernels), _us(share.time_us), f"{share.part:.1%}"]
            )
        table.add_row(safe(key), *cells)
    return table


def _modules(document: Document, top: int, depth: int) -> Table:
    """Modules down to ``depth``, the slowest ``top`` of them in the model's order."""
    rows = [row for row in document.modules if row.depth <= depth]
    slowest = sorted(rows, key=lambda row: -_module_us(row))[: top + 1]
    word = "measured us" if any(row.measured for row in rows) else "predicted us"
    table = Table(title=f"by module, {word}, depth {depth}", title_justify="left")
    table.add_column("module", overflow="fold")
    for heading in ("kernels", "float", "quantized", "ratio"):
        table.add_column(heading, justify="right")
    for row in rows:
        if row not in slowest:
            continue
        ratio = row.float_us / row.quantized_us if row.float_us and row.quantized_us else None
        table.add_row(
            safe(row.path) or "(whole model)",
            str(row.kernels),
            _us(row.float_us),
            _us(row.quantized_us),
            "-" if ratio is None else f"{ratio:.2f}",
        )
    return table


def _module_us(row: ModuleRow) -> float:
    return max(row.float_us or 0.0, row.quantized_us or 0.0)


def _kernels(engine: EngineRow, kernels: Sequence[KernelRow], top: int, title: str) -> Table:
    measured = is_measured(engine)
    total = total_us(engine) or 0.0
    table = Table(
        title=f"{title}, {_word(engine)}", title_justify="left", box=box.SIMPLE_HEAD, expand=True
    )
    for heading, ratio in (("kernel", 3), ("module", 2)):
        table.add_column(heading, overflow="ellipsis", no_wrap=True, ratio=ratio)
    for heading, width in (("type", 13), ("dtype", 7)):
        table.add_column(heading, no_wrap=True, width=width)
    for heading, width in (("us", 9), ("share", 5)):
        table.add_column(heading, justify="right", no_wrap=True, width=width)
    for kernel in sorted(kernels, key=lambda k: -(time_us(k, measured) or 0.0))[:top]:
        us = time_us(kernel, measured)
        table.add_row(
            safe(kernel.name),
            safe(kernel.module),
            kernel.type,
            kernel.precision,
            _us(us),
            f"{us / total:.1%}" if us is not None and total else "-",
        )
    return table
