"""The demo's tables: one row an engine."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from rich import box
from rich.table import Table

from fuseq.evaluate.closeness import Closeness
from fuseq.targets.base import Engine

MB = 1e6
AGREEMENT = {"top1": "same\ntop-1", "nearest": "same\nnearest"}


@dataclasses.dataclass(frozen=True)
class Row:
    """What one engine is and costs.

    Attributes:
        name: FP32, FP16, INT8 ...
        file_bytes: The ONNX file.
        engine: What the target's compiler made of it.
        close: Closeness to the float model's outputs.
        cpu_ms: Measured on this machine's CPU, for one batch; None for other devices.
    """

    name: str
    file_bytes: int
    engine: Engine
    close: Closeness
    cpu_ms: float | None = None


def table_of(title: str, rows: Sequence[Row], agreement: str) -> Table:
    """One section a target; ``agreement`` is a key of ``AGREEMENT``."""
    measured = any(row.cpu_ms is not None for row in rows)
    table = Table(
        title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1)
    )
    table.add_column("\nengine", no_wrap=True)
    headings = ["file\nMB", "engine\nMB", "\nkernels", "only\nQ/DQ", "activ.\nMB", "predicted\nus"]
    if measured:
        headings.append("measured\nCPU ms")
    for heading in (*headings, "\ncosine", AGREEMENT[agreement]):
        table.add_column(heading, justify="right", no_wrap=True)
    shown = ""
    for row in rows:
        if row.engine.target != shown:
            shown = row.engine.target
            table.add_section()
            table.add_row(f"[cyan]{shown}[/]")
        table.add_row(*_cells(row, agreement, measured))
    return table


def _cells(row: Row, agreement: str, measured: bool) -> list[str]:
    engine = row.engine
    cells = [
        f"  {row.name}",
        f"{row.file_bytes / MB:.1f}",
        f"{engine.engine_bytes / MB:.1f}",
        str(len(engine.kernels)),
        str(len(engine.alone)),
        f"{engine.activation_bytes / MB:.0f}",
        f"{engine.predicted_us:.0f}" if engine.predicted_us else "",
    ]
    if measured:
        cells.append("" if row.cpu_ms is None else f"{row.cpu_ms:.1f}")
    share: float = getattr(row.close, agreement)
    return [*cells, f"{row.close.cosine_mean:.4f}", f"{share:.1%}"]
