"""The accepted moves as a table for terminals."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from fuseq.report.terminal import safe
from fuseq.trials.climb import Step
from fuseq.trials.objective import UNITS


def step_table(steps: Sequence[Step], objective: str) -> Table:
    """One row a move: what it does, in how many equal places, its gain, and the value after it."""
    unit = UNITS[objective]
    word = "predicted " if objective == "latency" else ""
    table = Table(title=f"{len(steps)} moves accepted", title_justify="left")
    table.add_column("move", overflow="fold")
    table.add_column("places", justify="right")
    table.add_column(f"gain, {word}{unit}", justify="right")
    table.add_column(f"then, {unit}", justify="right")
    table.add_column("trials", justify="right")
    table.add_column("s", justify="right")
    for step in steps:
        table.add_row(
            safe(step.says),
            str(step.places),
            f"{step.gain:.1f}",
            f"{step.value:.1f}",
            str(step.trials),
            f"{step.seconds:.0f}",
        )
    return table
