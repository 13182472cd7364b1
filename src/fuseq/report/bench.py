"""The table and the numbers of a benchmark; both print the same values."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from rich.table import Table

from fuseq.evaluate.bench import BenchResult, BenchRow
from fuseq.evaluate.bench_statistics import Ratio, Spread
from fuseq.report.terminal import safe

Known = TypeVar("Known")

_HOST, _DEVICE = "host", "device"
_STATISTICS = ("median", "min", "mean", "p90", "p99", "max")


def bench_table(result: BenchResult) -> Table:
    """One column a model: latencies and throughput where measured, predicted time, ratio to the first."""
    table = Table(title=f"bench on {safe(result.target)}", title_justify="left")
    table.add_column("", no_wrap=True)
    for row in result.rows:
        table.add_column(safe(row.name), justify="right", overflow="fold")
    for heading, cells in _lines(result.rows):
        if any(cell != "-" for cell in cells):
            table.add_row(heading, *cells)
    return table


def _lines(rows: Sequence[BenchRow]) -> Iterator[tuple[str, list[str]]]:
    """Heading and a cell for each model; a line that no model fills is left out by the caller."""
    for side in (_DEVICE, _HOST):
        for name in _STATISTICS:
            times = [row.device if side == _DEVICE else row.host for row in rows]
            yield f"{side} {name} ms", ["-" if t is None else _statistic(t, name) for t in times]
    yield "runs/s", [_cell(row.throughput_per_s, lambda number: f"{number:.1f}") for row in rows]
    ratios = [row.ratio for row in rows]
    yield "ratio", [_cell(ratio, lambda r: f"{r.median:.3f}") for ratio in ratios]
    yield "ratio, 95 %", [_cell(ratio, _interval) for ratio in ratios]
    engines = [row.engine for row in rows]
    yield "kernels", [_cell(engine, lambda e: str(len(e.kernels))) for engine in engines]
    yield "kernels, only Q/DQ", [_cell(engine, lambda e: str(len(e.alone))) for engine in engines]
    yield (
        "engine MB",
        [_cell(engine, lambda e: f"{e.engine_bytes / 1e6:.1f}") for engine in engines],
    )
    yield "predicted us", [_cell(row.predicted_us, lambda us: f"{us:.1f}") for row in rows]
    yield "ratio, predicted", [_cell(row.predicted_ratio, lambda r: f"{r:.3f}") for row in rows]


def _statistic(times: Spread, name: str) -> str:
    value: float | None = getattr(times, f"{name}_ms")
    return _cell(value, lambda ms: f"{ms:.3f}")


def _interval(ratio: Ratio) -> str:
    if ratio.low is None or ratio.high is None:
        return "-"
    return f"{ratio.low:.3f}-{ratio.high:.3f}"


def _cell(value: Known | None, text: Callable[[Known], str]) -> str:
    return "-" if value is None else text(value)


def bench_numbers(result: BenchResult) -> dict[str, Any]:
    """Everything for ``--json``; run times in full."""
    return {
        "target": result.target,
        "models": [_row_numbers(row) for row in result.rows],
        "findings": list(result.findings),
        "missing": list(result.missing),
        "notes": list(result.notes),
    }


def _row_numbers(row: BenchRow) -> dict[str, Any]:
    engine = row.engine
    return {
        "name": row.name,
        "source": row.source,
        "batch": row.batch,
        "host": None if row.host is None else _spread_numbers(row.host),
        "device": None if row.device is None else _spread_numbers(row.device),
        "throughput_per_s": row.throughput_per_s,
        "ratio": None if row.ratio is None else dataclasses.asdict(row.ratio),
        "predicted_us": row.predicted_us,
        "predicted_ratio": row.predicted_ratio,
        "kernels": None if engine is None else len(engine.kernels),
        "engine_bytes": None if engine is None else engine.engine_bytes,
        "trtexec": row.trtexec,
        "notes": list(row.notes),
        "rounds_ms": list(row.rounds_ms),
    }


def _spread_numbers(times: Spread) -> dict[str, Any]:
    numbers = dataclasses.asdict(times)
    if not math.isfinite(times.outliers.limit_ms):
        numbers["outliers"]["limit_ms"] = None  # JSON has no infinity
    return numbers
