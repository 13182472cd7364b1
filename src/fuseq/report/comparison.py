"""A comparison as terminal tables: outputs, tensors, and the error layer by layer as bars."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich import box
from rich.table import Table

from fuseq.report.document_closeness import ComparisonRow, OutputRow, TensorErrorRow
from fuseq.report.terminal import safe

_BAR = 30
_FLOOR_DB, _CEILING_DB = 0.0, 60.0
"""SQNR where a bar is full, and where it is empty: 60 dB is FP16 rounding, 0 dB noise like signal."""


def outputs_table(row: ComparisonRow) -> Table:
    """One row an output: every measure that means something for it."""
    table = _table(f"{safe(row.other)} against {safe(row.reference)}, {row.samples} samples")
    table.add_column("output", overflow="fold", min_width=12)
    for heading in ("cosine", "least", "SQNR dB", "max error", "relative"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("agreement")
    for output in row.outputs:
        table.add_row(
            safe(output.name),
            _number(output.cosine_mean, "{:.5f}"),
            _number(output.cosine_min, "{:.5f}"),
            "same" if output.identical else _number(output.sqnr_db, "{:.1f}"),
            _number(output.max_abs, "{:.3g}"),
            _percent(output.relative),
            _agreement(output),
        )
    return table


def tensors_table(rows: Sequence[TensorErrorRow], limit: int | None) -> Table:
    """The tensors in graph order with their error as a bar; with ``limit``, about that many of them.

    Jumps and the worst tensors are shown before others.
    """
    shown = _chosen(rows, limit)
    table = _table(f"error of {len(rows)} tensors, in graph order")
    table.add_column("tensor", overflow="fold")
    table.add_column("operator", no_wrap=True)
    table.add_column("SQNR dB", justify="right", no_wrap=True)
    table.add_column("relative", justify="right", no_wrap=True)
    table.add_column("error", no_wrap=True)
    for row in shown:
        db = "same" if row.identical else _number(row.sqnr_db, "{:.1f}")
        table.add_row(
            safe(row.name, 60), safe(row.op_type, 24), db, _percent(row.relative),
            bar(row) + (" jump" if row.jump else ""),
        )  # fmt: skip
    return table


def bar(row: TensorErrorRow, width: int = _BAR) -> str:
    """The error as a bar: empty at 60 dB or more, full at 0 dB or less, or where it is not finite."""
    if row.identical:
        return ""
    if row.not_finite or row.sqnr_db is None:
        return "█" * width if row.not_finite or row.relative != 0 else ""
    share = (_CEILING_DB - row.sqnr_db) / (_CEILING_DB - _FLOOR_DB)
    return "█" * math.ceil(width * min(max(share, 0.0), 1.0))


def _chosen(rows: Sequence[TensorErrorRow], limit: int | None) -> list[TensorErrorRow]:
    if limit is None or len(rows) <= limit:
        return list(rows)
    ranked = sorted(rows, key=lambda row: (not row.jump, not row.not_finite, -(row.added or 0.0)))
    kept = {row.name for row in ranked[:limit]}
    return [row for row in rows if row.name in kept]


def _table(title: str) -> Table:
    return Table(
        title=title, title_justify="left", box=box.SIMPLE, padding=(0, 1, 0, 0), show_edge=False
    )


def _agreement(output: OutputRow) -> str:
    parts = []
    for word, share in (
        ("top-1", output.top1),
        ("top-5", output.top5),
        ("nearest", output.nearest),
    ):
        if share is not None:
            parts.append(f"{word} {100 * share:.1f} %")
    if output.not_finite:
        parts.append(f"{output.not_finite} not finite")
    return ", ".join(parts)


def _number(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.2f} %"
